//! The requests of a recorded device, divided into groups that can share memory.

use std::collections::BTreeMap;

use vramscope_pool::MIN_DEDICATED_SEGMENT_BYTES;
use vramscope_pool::rerun::{RecordedRequest, RecordedRequests};
use vramscope_trace::MempoolId;

use super::buffer::Buffer;

/// Maximum number of groups into which the requests of one arena are divided by time; further
/// groups are joined with the next ones.
const MAX_EPISODES: usize = 1000;

/// Requests that are placed as one: their memory is one range for as long as the group exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// The numbers of the requests.
    pub(super) members: Vec<u32>,
    /// The first moment at which the group needs its memory.
    pub(super) lower: u64,
    /// The moment from which other groups can have the memory.
    pub(super) upper: u64,
}

/// How an arena of the default pool is divided into groups. An arena has the requests of one stream
/// and pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Division {
    /// Not at all.
    Whole,
    /// By time: an arena gives its memory back when it is empty.
    Episodes,
    /// Requests that have a segment of their own are single groups, the others are divided by time.
    Segments,
    /// All requests are single groups.
    Requests,
}

/// Returns divisions of a device's requests into groups. Within a group, requests can follow each
/// other in memory at once. Memory goes from one group to another through the driver: PyTorch
/// releases segments without a live block, which waits until no stream uses them.
pub(super) fn divisions(requests: &RecordedRequests) -> Vec<Vec<Group>> {
    let by_arena = by_arena(requests);
    let is_default = |&&(arena, _): &&(u32, _)| requests.arenas[arena as usize].mempool == MempoolId::default();
    let divisions: &[Division] = match (by_arena.len(), by_arena.iter().filter(is_default).count()) {
        (0 | 1, _) => &[Division::Whole],
        // Every request of the only stream can follow every other one.
        (_, 0 | 1) => &[Division::Requests],
        _ => &[Division::Segments, Division::Episodes, Division::Whole],
    };
    let mut found: Vec<Vec<Group>> = Vec::new();
    for &division in divisions {
        let groups = divided(requests, &by_arena, division);
        if !found.contains(&groups) {
            found.push(groups);
        }
    }
    found
}

/// Returns the buffer to place for a request.
pub(super) fn buffer(request: &RecordedRequest) -> Buffer {
    Buffer { lower: request.lower, upper: request.upper, size: request.bytes }
}

/// Returns the numbers of the requests of each arena, without requests that end at the moment of
/// their start.
fn by_arena(requests: &RecordedRequests) -> Vec<(u32, Vec<u32>)> {
    let mut arenas: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (number, request) in (0..).zip(&requests.requests) {
        if request.lower < request.upper {
            arenas.entry(request.arena).or_default().push(number);
        }
    }
    arenas.into_iter().collect()
}

/// Returns the groups of all arenas; arenas of the default pool are divided by `division`.
fn divided(requests: &RecordedRequests, by_arena: &[(u32, Vec<u32>)], division: Division) -> Vec<Group> {
    let mut groups = Vec::new();
    for (arena, members) in by_arena {
        if requests.arenas[*arena as usize].mempool != MempoolId::default() {
            groups.push(private_pool(requests, *arena, members.clone()));
            continue;
        }
        let is_single = |&number: &u32| match division {
            Division::Whole | Division::Episodes => false,
            Division::Segments => requests.requests[number as usize].bytes >= MIN_DEDICATED_SEGMENT_BYTES,
            Division::Requests => true,
        };
        let (single, others): (Vec<u32>, Vec<u32>) = members.iter().copied().partition(is_single);
        groups.extend(single.into_iter().map(|number| whole(requests, vec![number])));
        match division {
            Division::Whole => groups.push(whole(requests, others)),
            _ => groups.extend(episodes(requests, others)),
        }
    }
    groups
}

/// Returns a group of all requests of an arena of a private pool, which keeps its memory until its
/// segments are released.
fn private_pool(requests: &RecordedRequests, arena: u32, members: Vec<u32>) -> Group {
    let group = whole(requests, members);
    Group { upper: group.upper.max(requests.arenas[arena as usize].released), ..group }
}

/// Returns a group that exists as long as any of its members, of which there must be one.
fn whole(requests: &RecordedRequests, members: Vec<u32>) -> Group {
    let of = |&number: &u32| requests.requests[number as usize];
    let lower = members.iter().map(of).map(|request| request.lower).min().unwrap_or(0);
    let upper = members.iter().map(of).map(|request| request.upper).max().unwrap_or(lower);
    Group { members, lower, upper }
}

/// Divides requests of one arena, in the order of their starts, into groups at the moments at which
/// none of them lives.
fn episodes(requests: &RecordedRequests, members: Vec<u32>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for number in members {
        let Buffer { lower, upper, .. } = buffer(&requests.requests[number as usize]);
        match groups.last_mut().filter(|last| lower < last.upper) {
            Some(last) => {
                last.members.push(number);
                last.upper = last.upper.max(upper);
            }
            None => groups.push(Group { members: vec![number], lower, upper }),
        }
    }
    let joined = groups.len().div_ceil(MAX_EPISODES).max(1);
    groups
        .chunks(joined)
        .map(|chunk| whole(requests, chunk.iter().flat_map(|group| group.members.clone()).collect()))
        .collect()
}

#[cfg(test)]
mod tests {
    use vramscope_pool::rerun::RequestArena;
    use vramscope_trace::StreamId;

    use super::*;
    use crate::packing::reuse;

    const MIB: u64 = 1 << 20;

    /// Returns requests with their arena, start, end and size in MiB. Arena 0 is the default pool,
    /// arena 1 another stream of it, arena 2 a private pool that is released at `released`.
    fn requests(released: u64, requests: &[(u32, u64, u64, u64)]) -> RecordedRequests {
        let arena = |stream, mempool, released| RequestArena { stream: StreamId(stream), mempool, released };
        let default = MempoolId::default();
        RecordedRequests {
            requests: requests
                .iter()
                .map(|&(arena, lower, upper, mib)| RecordedRequest {
                    bytes: mib * MIB,
                    lower,
                    freed: upper,
                    upper,
                    arena,
                })
                .collect(),
            arenas: vec![arena(0, default, u64::MAX), arena(1, default, u64::MAX), arena(0, MempoolId(0, 1), released)],
            floor_bytes: 0,
        }
    }

    /// Checks the members of all groups of each division, and the lower bound in MiB.
    fn check(requests: &RecordedRequests, expected: &[&[&[u32]]], bound_mib: u64) {
        let divisions = divisions(requests).into_iter().map(|groups| {
            let mut members: Vec<Vec<u32>> = groups.into_iter().map(|group| group.members).collect();
            members.sort();
            members
        });
        assert_eq!(divisions.collect::<Vec<_>>(), expected);
        assert_eq!(reuse::lower_bound_bytes(&reuse::reuses(requests)), bound_mib * MIB);
    }

    #[test]
    fn requests_of_one_stream_are_one_group() {
        check(&requests(0, &[(0, 0, 10, 1), (0, 20, 30, 50), (0, 25, 28, 1)]), &[&[&[0, 1, 2]]], 51);
    }

    #[test]
    fn stream_without_live_requests_gives_its_memory_back() {
        let program = [(0, 0, 10, 5), (0, 5, 12, 5), (1, 12, 20, 8), (0, 30, 40, 5)];
        check(&requests(0, &program), &[&[&[0, 1], &[2], &[3]], &[&[0, 1, 3], &[2]]], 10);
    }

    #[test]
    fn large_requests_have_segments_of_their_own() {
        // A weight of 1 MiB lives throughout, so that the stream is never empty.
        let program = [(0, 0, 99, 1), (0, 1, 10, 20), (1, 20, 30, 20), (0, 21, 22, 2)];
        check(&requests(0, &program), &[&[&[0, 3], &[1], &[2]], &[&[0, 1, 3], &[2]]], 23);
    }

    #[test]
    fn private_pool_keeps_its_memory_until_it_is_released() {
        let program = [(2, 0, 10, 5), (0, 15, 20, 3), (0, 30, 40, 4)];
        check(&requests(25, &program), &[&[&[0], &[1], &[2]]], 8);
        check(&requests(u64::MAX, &program), &[&[&[0], &[1], &[2]]], 9);
    }
}
