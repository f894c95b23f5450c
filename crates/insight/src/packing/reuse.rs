//! The moments at which the memory of recorded requests can be reused, and a lower bound of a
//! placement's height.
//!
//! A later request of the same stream and pool can have the memory at once. Any other request gets
//! it through the driver, which needs the stream or pool to give it back:
//!
//! - a request of 10 MiB and more has a segment of its own, which is given back when it ends;
//! - smaller requests share segments, which are given back when the stream has none of them;
//! - a private pool gives its memory back when its segments are released.
//!
//! If the default pool has only one stream, its requests give their memory back when they end.

use vramscope_pool::MIN_DEDICATED_SEGMENT_BYTES;
use vramscope_pool::rerun::{RecordedRequest, RecordedRequests};
use vramscope_trace::MempoolId;

/// A request with the moments from which on its memory can be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reuse {
    /// The number of the request.
    pub(super) number: u32,
    /// The index of its stream and pool.
    pub(super) arena: u32,
    /// The start of its lifetime.
    pub(super) lower: u64,
    /// From when on a request of its stream and pool can have the memory.
    pub(super) upper: u64,
    /// From when on any other request can have it; at least `upper`.
    pub(super) given_back: u64,
    pub(super) bytes: u64,
}

impl Reuse {
    /// Returns true if no byte of memory can serve both requests.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        let end = |one: &Self| if self.arena == other.arena { one.upper } else { one.given_back };
        self.lower < end(other) && other.lower < end(self)
    }
}

/// Returns when the memory of each request can be reused, in the order of their starts. Requests
/// that end as they start are left out.
pub(super) fn reuses(requests: &RecordedRequests) -> Vec<Reuse> {
    let is_default = |arena: u32| requests.arenas[arena as usize].mempool == MempoolId::default();
    let live = (0..).zip(&requests.requests).filter(|(_, request)| request.lower < request.upper);
    let mut reuses: Vec<Reuse> = live
        .map(|(number, &RecordedRequest { bytes, lower, upper, arena, .. })| {
            let released = if is_default(arena) { 0 } else { requests.arenas[arena as usize].released };
            Reuse { number, arena, lower, upper, given_back: upper.max(released), bytes }
        })
        .collect();
    let mut has_requests = vec![false; requests.arenas.len()];
    reuses.iter().for_each(|reuse| has_requests[reuse.arena as usize] |= is_default(reuse.arena));
    if has_requests.iter().filter(|&&has_requests| has_requests).count() > 1 {
        let mut small = vec![Vec::new(); requests.arenas.len()];
        for (position, reuse) in reuses.iter().enumerate() {
            if is_default(reuse.arena) && reuse.bytes < MIN_DEDICATED_SEGMENT_BYTES {
                small[reuse.arena as usize].push(position);
            }
        }
        small.iter().for_each(|positions| keep_until_idle(&mut reuses, positions));
    }
    reuses
}

/// Lets the requests at `positions`, which are in the order of their starts, keep their memory
/// until none of them lives.
fn keep_until_idle(reuses: &mut [Reuse], positions: &[usize]) {
    let mut from = 0;
    while from < positions.len() {
        let (mut next, mut idle) = (from, 0);
        while next < positions.len() && (next == from || reuses[positions[next]].lower < idle) {
            idle = idle.max(reuses[positions[next]].upper);
            next += 1;
        }
        positions[from..next].iter().for_each(|&position| reuses[position].given_back = idle);
        from = next;
    }
}

/// Returns a lower bound of the height of all placements, in bytes.
///
/// At a moment t, a stream or pool holds the memory of the requests that started before t and give
/// their memory back after t. Requests of that set that lived together at some moment need
/// different memory, so the stream holds at least their bytes, even if most of them have ended.
/// Other streams hold other memory at t, because no stream has given its memory back. So the bound
/// is the maximum over t of the sum of the bytes that all streams and pools hold at t.
pub(super) fn lower_bound_bytes(reuses: &[Reuse]) -> u64 {
    let arenas = reuses.iter().map(|reuse| reuse.arena as usize + 1).max().unwrap_or(0);
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); arenas];
    let mut changes: Vec<(u64, bool, usize)> = Vec::with_capacity(reuses.len() * 2);
    for (position, reuse) in reuses.iter().enumerate() {
        members[reuse.arena as usize].push(position);
        changes.extend([(reuse.lower, true, position), (reuse.given_back, false, position)]);
    }
    // Memory is given back before it is taken at the same moment.
    changes.sort_unstable();
    // For each request, the requests of its stream and pool, itself first, that start while it
    // lives.
    let mut lives_at: Vec<(usize, usize)> = vec![(0, 0); reuses.len()];
    for members in &members {
        for (first, &position) in members.iter().enumerate() {
            let end = members.partition_point(|&later| reuses[later].lower < reuses[position].upper);
            lives_at[position] = (first, end);
        }
    }
    // For each start, the bytes of the requests that lived then and have not given them back.
    let mut held: Vec<RangeMaximum> = members.iter().map(|members| RangeMaximum::new(members.len())).collect();
    let (mut sum, mut bound) = (0i64, 0);
    for (_, starts, position) in changes {
        let Reuse { arena, bytes, .. } = reuses[position];
        let held = &mut held[arena as usize];
        let before = held.maximum();
        held.add(lives_at[position], if starts { bytes as i64 } else { -(bytes as i64) });
        sum += held.maximum() - before;
        bound = bound.max(sum);
    }
    bound as u64
}

/// Values, initially 0, that can be changed range by range, with their maximum: a segment tree.
#[derive(Clone, Debug)]
struct RangeMaximum {
    /// A power of two, at least the number of values.
    len: usize,
    /// For each node, the maximum below it and the sum that was added to all values below it, which
    /// is part of the maximum. The root is node 1; node n has the children 2n and 2n + 1.
    nodes: Vec<(i64, i64)>,
}

impl RangeMaximum {
    /// Creates `count` values of 0.
    fn new(count: usize) -> Self {
        let len = count.next_power_of_two();
        Self { len, nodes: vec![(0, 0); 2 * len] }
    }

    /// Returns the maximum of all values.
    fn maximum(&self) -> i64 {
        self.nodes[1].0
    }

    /// Adds `amount` to the values with the indexes `range.0..range.1`.
    fn add(&mut self, range: (usize, usize), amount: i64) {
        self.add_below(1, (0, self.len), range, amount);
    }

    /// Adds `amount` to the values of a node that are in `range`; the node has the values with the
    /// indexes `below.0..below.1`.
    fn add_below(&mut self, node: usize, below: (usize, usize), range: (usize, usize), amount: i64) {
        if range.1 <= below.0 || below.1 <= range.0 {
            return;
        }
        if range.0 <= below.0 && below.1 <= range.1 {
            self.nodes[node].0 += amount;
            self.nodes[node].1 += amount;
            return;
        }
        let middle = usize::midpoint(below.0, below.1);
        self.add_below(2 * node, (below.0, middle), range, amount);
        self.add_below(2 * node + 1, (middle, below.1), range, amount);
        self.nodes[node].0 = self.nodes[2 * node].0.max(self.nodes[2 * node + 1].0) + self.nodes[node].1;
    }
}
