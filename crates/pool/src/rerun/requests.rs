//! The requests of a recorded program with their lifetimes, independent of the blocks that served
//! them.

use std::collections::HashMap;

use vramscope_trace::{EventKind, MempoolId, StreamId};

use super::history::History;
use super::segment_tracker::{SegmentIndex, SegmentTracker};
use crate::size::MIN_BLOCK_BYTES;

/// A request of a recorded program and its lifetime, in event numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// The requested bytes, rounded up to [`MIN_BLOCK_BYTES`] but at most to the block's size.
    pub bytes: u64,
    /// The event from which on its block exists; the first moment of the recording if it existed
    /// before.
    pub lower: u64,
    /// The event with which the program freed it; `u64::MAX` if it did not.
    pub freed: u64,
    /// The event from which on its memory can be reused: `freed`, or later if a stream still used
    /// it. `u64::MAX` if that is after the end.
    pub upper: u64,
    /// The index of its arena in [`RecordedRequests::arenas`].
    pub arena: u32,
}

/// A stream's part of the default pool or of a private pool. Requests of one arena can follow each
/// other in memory without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestArena {
    /// The stream of the requests.
    pub stream: StreamId,
    /// The private pool; (0, 0) is the default pool.
    pub mempool: MempoolId,
    /// The event after which a private pool had no segment any more; `u64::MAX` if it had some at
    /// the end, and for the default pool.
    pub released: u64,
}

/// All requests of a history with their lifetimes, the arenas that they belong to, and the peak of
/// live bytes.
#[derive(Clone, Debug, Default)]
pub struct RecordedRequests {
    /// The requests in the order of their starts. It begins with the blocks that existed before
    /// the history, by address.
    pub requests: Vec<RecordedRequest>,
    /// The streams and pools, in the order of their first requests. A private pool that is created
    /// again after its segments were released is another one.
    pub arenas: Vec<RequestArena>,
    /// The peak of the bytes of live requests. A request is live until the program frees it, so no
    /// allocator can serve the program with less.
    pub floor_bytes: u64,
}

impl RecordedRequests {
    /// Appends the requests of the next part of a recording, after missing events. Requests that
    /// were live before end with it, and begin again if it contains them.
    pub fn append(&mut self, next: Self) {
        let start = next.requests.first().map_or(u64::MAX, |request| request.lower);
        for request in &mut self.requests {
            request.freed = request.freed.min(start.max(request.lower));
            request.upper = request.upper.min(start.max(request.lower));
        }
        for arena in &mut self.arenas {
            arena.released = arena.released.min(start);
        }
        let base = self.arenas.len() as u32;
        self.requests
            .extend(next.requests.iter().map(|request| RecordedRequest { arena: base + request.arena, ..*request }));
        self.arenas.extend(next.arenas);
        self.floor_bytes = self.floor_bytes.max(next.floor_bytes);
    }
}

impl History {
    /// Returns the requests of the recorded program with their lifetimes.
    #[must_use]
    pub fn requests(&self) -> RecordedRequests {
        let mut collector =
            RequestCollector { requests: RecordedRequests::default(), pools: PrivatePoolEnds::new(self) };
        let floor_bytes = LiveRequests::walk(self, &mut collector);
        // Already set to an equal value if it was known.
        let _ = self.known_floor_bytes.set(floor_bytes);
        RecordedRequests { floor_bytes, ..collector.requests }
    }

    /// Returns the peak of the live requests in bytes, as in [`RecordedRequests::floor_bytes`].
    pub(super) fn floor_bytes(&self) -> u64 {
        *self.known_floor_bytes.get_or_init(|| LiveRequests::walk(self, &mut ()))
    }
}

/// A receiver of the lifetimes of requests, in the order of events. Requests are numbered from 0 in
/// the order of their starts.
trait LifetimeReceiver {
    /// Receives the start of the next request at `_moment`, an event number, for `_bytes`
    /// (rounded).
    fn started(&mut self, _moment: u64, _bytes: u64, _stream: StreamId, _mempool: MempoolId) {}
    /// Receives the program's free of the block of request number `_request`, at `_moment`.
    fn freed(&mut self, _request: u32, _moment: u64) {}
    /// Receives that the free of the block of request number `_request` is complete at `_moment`:
    /// its memory can be reused.
    fn completed(&mut self, _request: u32, _moment: u64) {}
    /// Receives an event that allocates, frees, maps or unmaps a segment. `_position` is its index
    /// in the history, `_moment` its event number.
    fn segment(&mut self, _position: usize, _kind: &EventKind, _moment: u64) {}
}

/// Ignores all lifetimes, for callers that need only the peak.
impl LifetimeReceiver for () {}

/// A request whose block is allocated or pending free.
#[derive(Clone, Copy, Debug)]
struct LiveRequest {
    /// The request's number, from 0, in the order of starts.
    number: u32,
    bytes: u64,
    /// True once the program has freed the block, while its free is not complete.
    is_pending: bool,
}

/// The live requests during a walk through a history, and the peak of their bytes.
#[derive(Debug, Default)]
struct LiveRequests {
    by_address: foldhash::HashMap<u64, LiveRequest>,
    /// The number of requests so far. Recordings have fewer than 2^32.
    count: u32,
    bytes: u64,
    peak_bytes: u64,
}

impl LiveRequests {
    /// Passes the lifetimes of all requests to `receiver`, and returns the peak of the live bytes.
    fn walk(history: &History, receiver: &mut impl LifetimeReceiver) -> u64 {
        let mut live = Self::default();
        let first = history.entries.first().map_or(0, |entry| entry.number);
        for block in history.start.blocks() {
            let bytes = rounded(block.requested, block.size);
            live.start(first, block.address, bytes, (block.stream, block.pool.owner), receiver);
            if block.pending_free {
                live.free(block.address, first, receiver);
            }
        }
        for (position, entry) in history.entries.iter().enumerate() {
            // The event with index i leads to moment i + 1.
            let moment = entry.number + 1;
            match entry.kind {
                EventKind::BlockAllocated { address, size, requested, stream, pool, .. } => {
                    live.start(moment, address, rounded(requested, size), (stream, pool.owner), receiver);
                }
                EventKind::FreeRequested { address, .. } => live.free(address, moment, receiver),
                EventKind::FreeCompleted { address, .. } => live.complete(address, moment, receiver),
                EventKind::SegmentAllocated { .. }
                | EventKind::SegmentFreed { .. }
                | EventKind::SegmentMapped { .. }
                | EventKind::SegmentUnmapped { .. } => receiver.segment(position, &entry.kind, moment),
                _ => {}
            }
        }
        live.peak_bytes
    }

    /// Adds a request whose block begins at `address`, from the private pool `mempool`.
    fn start(
        &mut self,
        moment: u64,
        address: u64,
        bytes: u64,
        (stream, mempool): (StreamId, MempoolId),
        receiver: &mut impl LifetimeReceiver,
    ) {
        // A block at the address of a new one was freed, but the recording missed it.
        self.complete(address, moment, receiver);
        self.by_address.insert(address, LiveRequest { number: self.count, bytes, is_pending: false });
        self.count = self.count.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        self.peak_bytes = self.peak_bytes.max(self.bytes);
        receiver.started(moment, bytes, stream, mempool);
    }

    /// Records the program's free of the block at `address`; ignores unknown and already freed
    /// blocks.
    fn free(&mut self, address: u64, moment: u64, receiver: &mut impl LifetimeReceiver) {
        if let Some(request) = self.by_address.get_mut(&address).filter(|request| !request.is_pending) {
            request.is_pending = true;
            self.bytes = self.bytes.saturating_sub(request.bytes);
            receiver.freed(request.number, moment);
        }
    }

    /// Removes the request whose block is at `address`, because its free is complete.
    fn complete(&mut self, address: u64, moment: u64, receiver: &mut impl LifetimeReceiver) {
        let Some(request) = self.by_address.remove(&address) else { return };
        if !request.is_pending {
            self.bytes = self.bytes.saturating_sub(request.bytes);
            receiver.freed(request.number, moment);
        }
        receiver.completed(request.number, moment);
    }
}

/// Returns the bytes of a request, rounded up to the smallest block. Other allocators than
/// PyTorch's round less, so the result is at most the size of its block.
fn rounded(requested: u64, block_bytes: u64) -> u64 {
    let rounded = requested.max(1).checked_next_multiple_of(MIN_BLOCK_BYTES).unwrap_or(u64::MAX);
    rounded.min(block_bytes.max(1))
}

/// Collects the requests of a history and their arenas.
#[derive(Debug)]
struct RequestCollector<'h> {
    requests: RecordedRequests,
    pools: PrivatePoolEnds<'h>,
}

impl LifetimeReceiver for RequestCollector<'_> {
    fn started(&mut self, moment: u64, bytes: u64, stream: StreamId, mempool: MempoolId) {
        let arena = self.pools.arena(&mut self.requests.arenas, stream, mempool);
        let (freed, upper) = (u64::MAX, u64::MAX);
        self.requests.requests.push(RecordedRequest { bytes, lower: moment, freed, upper, arena });
    }

    fn freed(&mut self, request: u32, moment: u64) {
        if let Some(request) = self.requests.requests.get_mut(request as usize) {
            request.freed = moment;
        }
    }

    fn completed(&mut self, request: u32, moment: u64) {
        if let Some(request) = self.requests.requests.get_mut(request as usize) {
            request.upper = moment;
        }
    }

    fn segment(&mut self, position: usize, kind: &EventKind, moment: u64) {
        for arena in self.pools.apply(position, kind) {
            self.requests.arenas[arena as usize].released = moment;
        }
    }
}

/// Finds the arena of each request, and when private pools have no segment any more.
#[derive(Debug)]
struct PrivatePoolEnds<'h> {
    /// The segments after the events so far.
    segments: SegmentTracker,
    /// All segments of the history with their private pools, which may be recorded only later.
    named: &'h SegmentTracker,
    /// The number of existing segments of each private pool.
    counts: HashMap<MempoolId, u64>,
    /// The index of the arena of each stream and pool.
    arenas: HashMap<(StreamId, MempoolId), u32>,
    /// The arena of the last request; most requests have the previous request's arena.
    last: Option<((StreamId, MempoolId), u32)>,
}

impl<'h> PrivatePoolEnds<'h> {
    fn new(history: &'h History) -> Self {
        let segments = SegmentTracker::new(&history.start);
        let mut ends =
            Self { named: &history.tracker, counts: HashMap::new(), arenas: HashMap::new(), last: None, segments };
        for index in 0..ends.segments.segments.len() {
            *ends.counts.entry(ends.owner(index)).or_default() += 1;
        }
        ends
    }

    /// Returns the pool of a segment; the default pool, (0, 0), if no private pool is recorded for
    /// it.
    fn owner(&self, index: SegmentIndex) -> MempoolId {
        self.named.segments.get(index).map_or(MempoolId::default(), |segment| segment.pool.owner)
    }

    /// Returns the index in `arenas` of the arena (stream and pool) of a request, adding the arena
    /// if it is new.
    fn arena(&mut self, arenas: &mut Vec<RequestArena>, stream: StreamId, mempool: MempoolId) -> u32 {
        let key = (stream, mempool);
        if let Some((_, arena)) = self.last.filter(|(last, _)| *last == key) {
            return arena;
        }
        let arena = *self.arenas.entry(key).or_insert_with(|| {
            arenas.push(RequestArena { stream, mempool, released: u64::MAX });
            arenas.len() as u32 - 1
        });
        self.last = Some((key, arena));
        arena
    }

    /// Applies an event of a segment. Returns the arenas of the private pool whose last segment it
    /// released; later requests of the pool get another arena.
    fn apply(&mut self, position: usize, kind: &EventKind) -> Vec<u32> {
        let before = self.segments.segments.len();
        let Some(index) = self.segments.apply(position, kind) else { return Vec::new() };
        let owner = self.owner(index);
        let count = self.counts.entry(owner).or_default();
        if self.segments.segments.len() > before {
            *count += 1;
        } else if !self.segments.segments[index].is_live {
            *count = count.saturating_sub(1);
        }
        if *count > 0 || owner == MempoolId::default() {
            return Vec::new();
        }
        self.last = None;
        let mut released = Vec::new();
        self.arenas.retain(|&(_, mempool), &mut arena| {
            if mempool == owner {
                released.push(arena);
            }
            mempool != owner
        });
        released
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{DeviceId, Encoder, Event, PoolKey, Recording, RecordingInfo, Sink, SiteId};

    use super::*;

    const SITE: SiteId = SiteId(0);

    /// Returns the requests of a recording with these events.
    fn requests(kinds: &[EventKind]) -> RecordedRequests {
        let mut encoder = Encoder::new(&RecordingInfo::default());
        for &kind in kinds {
            encoder.event(&Event { device: DeviceId(0), time_ns: 0, kind });
        }
        encoder.flush();
        let mut recording = Recording::new();
        for chunk in encoder.take_output() {
            recording.push(&chunk.bytes).expect("a valid chunk");
        }
        let histories = History::from_recording(&recording).expect("a valid recording");
        let mut parts = histories.iter().map(History::requests);
        let mut all = parts.next().expect("a device");
        parts.for_each(|next| all.append(next));
        all
    }

    fn segment(address: u64, mempool: u64) -> EventKind {
        let pool = PoolKey { owner: MempoolId(0, mempool), ..PoolKey::default() };
        EventKind::SegmentAllocated { address, size: 2 << 20, stream: StreamId(0), pool, site: SITE }
    }

    fn block(address: u64, requested: u64, mempool: u64) -> EventKind {
        let pool = PoolKey { owner: MempoolId(0, mempool), ..PoolKey::default() };
        let size = requested.next_multiple_of(512);
        EventKind::BlockAllocated { address, size, requested, stream: StreamId(0), pool, site: SITE }
    }

    fn freed(address: u64) -> EventKind {
        EventKind::FreeRequested { address, site: SITE }
    }

    fn completed(address: u64) -> EventKind {
        EventKind::FreeCompleted { address, site: SITE }
    }

    /// Returns the size and the lifetime of each request.
    fn lifetimes(requests: &RecordedRequests) -> Vec<(u64, u64, u64, u64)> {
        requests.requests.iter().map(|one| (one.bytes, one.lower, one.freed, one.upper)).collect()
    }

    #[test]
    fn request_is_live_until_its_free_and_in_use_until_that_is_completed() {
        let (a, b) = (1 << 21, (1 << 21) + 1024);
        let requests =
            requests(&[segment(a, 0), block(a, 600, 0), freed(a), block(b, 512, 0), completed(a), block(a, 512, 0)]);
        let end = u64::MAX;
        assert_eq!(lifetimes(&requests), [(1024, 2, 3, 5), (512, 4, end, end), (512, 6, end, end)]);
        assert_eq!(requests.floor_bytes, 1024, "the first two are not live at one time");
        assert_eq!(requests.arenas.len(), 1);
    }

    #[test]
    fn private_pool_ends_with_its_last_segment() {
        let (a, b) = (1 << 21, 1 << 22);
        let release = EventKind::SegmentFreed { address: a, size: 2 << 20, site: SITE };
        let requests = requests(&[
            segment(a, 1),
            block(a, 512, 1),
            freed(a),
            completed(a),
            release,
            segment(b, 1),
            block(b, 512, 1),
        ]);
        let arenas: Vec<u32> = requests.requests.iter().map(|request| request.arena).collect();
        assert_eq!(arenas, [0, 1], "a pool that is created again is another one");
        let released: Vec<u64> = requests.arenas.iter().map(|arena| arena.released).collect();
        assert_eq!(released, [5, u64::MAX]);
    }

    #[test]
    fn live_requests_end_with_missing_events() {
        let a = 1 << 21;
        let gap = EventKind::Gap { lost: 10 };
        let requests = requests(&[segment(a, 0), block(a, 512, 0), gap, segment(1 << 23, 0), block(1 << 23, 700, 0)]);
        let (first, last) = (requests.requests[0], requests.requests[requests.requests.len() - 1]);
        assert!(first.lower < first.upper && first.upper <= last.lower, "{requests:?}");
        assert_eq!((first.freed, last.upper), (first.upper, u64::MAX));
        assert_eq!(requests.arenas.len(), 2);
    }
}
