//! Assigns each recorded range of memory to its segment.
//!
//! An ordinary segment is one entry. An expandable segment consists of many: memory is mapped first
//! at its start, then always at its lowest unmapped address. A mapped range therefore belongs to
//! the segment that contains it or ends where it begins; otherwise it starts a new segment.

use std::collections::{BTreeMap, HashMap};

use vramscope_trace::{DeviceState, EventKind, MempoolId, PoolKey, StreamId};

use super::entry::Entry;

/// A segment's number in a history, from 0, in the order of creation.
pub(super) type SegmentIndex = usize;

/// A segment that exists or existed in a history: its stream, pool and addresses, and whether it
/// still exists.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrackedSegment {
    pub(super) stream: StreamId,
    /// Its pool. The owner may be recorded for only some of its ranges.
    pub(super) pool: PoolKey,
    pub(super) is_expandable: bool,
    /// The position of its first entry; `None` if it existed before the history.
    pub(super) created_at: Option<usize>,
    /// Whether any of its memory is mapped. At the end of the history: whether the segment still
    /// exists.
    pub(super) is_live: bool,
    start: u64,
    /// The end of the highest range that was ever mapped.
    end: u64,
    /// Bytes of the segment that exist or are mapped now.
    mapped_bytes: u64,
}

/// All segments of a history up to some entry, and which of them exist after that entry.
#[derive(Clone, Debug, Default)]
pub(super) struct SegmentTracker {
    pub(super) segments: Vec<TrackedSegment>,
    /// The existing segments by first address.
    live: BTreeMap<u64, SegmentIndex>,
    /// The smallest distance between the first addresses of two expandable segments that existed at
    /// one time.
    pub(super) min_spacing_bytes: Option<u64>,
    /// The largest span of an expandable segment.
    pub(super) max_span_bytes: u64,
}

impl SegmentTracker {
    /// Creates a tracker with the segments that exist before the first entry. Mapped ranges of the
    /// same stream and pool without another segment in between are one segment.
    pub(super) fn new(start: &DeviceState) -> Self {
        let mut tracker = Self::default();
        let mut last: Option<SegmentIndex> = None;
        for segment in start.segments() {
            let continues_segment = |&index: &SegmentIndex| {
                let tracked = &tracker.segments[index];
                segment.expandable
                    && tracked.is_expandable
                    && (tracked.stream, tracked.pool) == (segment.stream, segment.pool)
            };
            match last.filter(continues_segment) {
                Some(index) => tracker.grow(index, segment.address, segment.size),
                None => {
                    let key = (segment.stream, segment.pool);
                    last = Some(tracker.insert(key, segment.address, segment.size, segment.expandable, None));
                }
            }
        }
        tracker
    }

    /// Creates a tracker for a whole history. Also returns the indices of the entries that
    /// allocated or mapped memory of segments that do not exist at the end.
    pub(super) fn from_entries(start: &DeviceState, entries: &[Entry]) -> (Self, Vec<usize>) {
        let mut tracker = Self::new(start);
        let mut created = Vec::new();
        for (position, entry) in entries.iter().enumerate() {
            let index = tracker.apply(position, &entry.kind);
            if let EventKind::SegmentAllocated { .. } | EventKind::SegmentMapped { .. } = entry.kind {
                created.extend(index.map(|index| (position, index)));
            }
        }
        created.retain(|&(_, index)| !tracker.segments[index].is_live);
        (tracker, created.into_iter().map(|(position, _)| position).collect())
    }

    /// Applies the event with index `position` in the history. Returns the segment that it
    /// allocated, freed, mapped or unmapped; `None` for other events and unknown segments.
    pub(super) fn apply(&mut self, position: usize, kind: &EventKind) -> Option<SegmentIndex> {
        match *kind {
            EventKind::SegmentAllocated { address, size, stream, pool, .. } => {
                Some(self.insert((stream, pool), address, size, false, Some(position)))
            }
            EventKind::SegmentMapped { address, size, stream, pool, .. } => {
                let known = self.touching(address).filter(|&index| self.segments[index].accepts_range(stream, pool));
                if let Some(index) = known {
                    self.grow(index, address, size);
                    if self.segments[index].pool.owner == MempoolId::default() {
                        self.segments[index].pool = pool;
                    }
                    return known;
                }
                Some(self.insert((stream, pool), address, size, true, Some(position)))
            }
            EventKind::SegmentFreed { address, size, .. } | EventKind::SegmentUnmapped { address, size, .. } => {
                let index = self.containing(address)?;
                let tracked = &mut self.segments[index];
                tracked.mapped_bytes = tracked.mapped_bytes.saturating_sub(size);
                if tracked.mapped_bytes == 0 {
                    tracked.is_live = false;
                    self.live.remove(&tracked.start);
                }
                Some(index)
            }
            _ => None,
        }
    }

    /// Iterates over the segments that exist after the events applied so far, by address.
    pub(super) fn live_segments(&self) -> impl Iterator<Item = SegmentIndex> + '_ {
        self.live.values().copied()
    }

    /// Returns the existing segment that contains `address`; `None` if no existing segment does.
    pub(super) fn containing(&self, address: u64) -> Option<SegmentIndex> {
        self.touching(address).filter(|&index| address < self.segments[index].end)
    }

    /// Returns the existing segment that contains `address` or ends directly below it; `None` if no
    /// existing segment does.
    fn touching(&self, address: u64) -> Option<SegmentIndex> {
        let (_, &index) = self.live.range(..=address).next_back()?;
        (address <= self.segments[index].end).then_some(index)
    }

    /// Adds a segment of `size` bytes at `start` and returns its number. `created_at` is the index
    /// of the entry that created it; `None` if it existed before the history.
    fn insert(
        &mut self,
        (stream, pool): (StreamId, PoolKey),
        start: u64,
        size: u64,
        is_expandable: bool,
        created_at: Option<usize>,
    ) -> SegmentIndex {
        let index = self.segments.len();
        let end = start.saturating_add(size);
        self.segments.push(TrackedSegment {
            stream,
            pool,
            is_expandable,
            created_at,
            is_live: true,
            start,
            end,
            mapped_bytes: size,
        });
        if is_expandable {
            let neighbors = [self.live.range(..start).next_back(), self.live.range(start..).next()];
            let expandable = neighbors.into_iter().flatten().filter(|&(_, &other)| self.segments[other].is_expandable);
            let spacings = expandable.map(|(&other, _)| other.abs_diff(start));
            self.min_spacing_bytes = spacings.chain(self.min_spacing_bytes).filter(|&spacing| spacing > 0).min();
            self.max_span_bytes = self.max_span_bytes.max(size);
        }
        if let Some(before) = self.live.insert(start, index) {
            self.segments[before].is_live = false;
        }
        index
    }

    /// Extends the span of an expandable segment by a newly mapped range of `size` bytes at
    /// `address`.
    fn grow(&mut self, index: SegmentIndex, address: u64, size: u64) {
        let tracked = &mut self.segments[index];
        tracked.end = tracked.end.max(address.saturating_add(size));
        tracked.mapped_bytes = tracked.mapped_bytes.saturating_add(size);
        self.max_span_bytes = self.max_span_bytes.max(tracked.span_bytes());
    }
}

impl TrackedSegment {
    /// Returns the bytes from the segment's first address to the end of the highest range that was
    /// ever mapped.
    pub(super) fn span_bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Returns true if a range that is mapped for requests on `stream` from `pool` may belong to
    /// this segment: it is expandable, and stream and pool match. A private pool that is not
    /// recorded matches any. False otherwise.
    fn accepts_range(&self, stream: StreamId, pool: PoolKey) -> bool {
        let default = MempoolId::default();
        let same_owner = self.pool.owner == pool.owner || self.pool.owner == default || pool.owner == default;
        self.is_expandable && self.stream == stream && self.pool.kind == pool.kind && same_owner
    }
}

/// Writes private pools into the entries that allocate a segment or block, or map memory, and
/// contain no private pool. `owners` has the private pool of each segment to change; `start` is the
/// memory state before the first entry.
pub(super) fn write_owners(start: &DeviceState, entries: &mut [Entry], owners: &HashMap<SegmentIndex, MempoolId>) {
    let mut tracker = SegmentTracker::new(start);
    for (position, entry) in entries.iter_mut().enumerate() {
        let changed = tracker.apply(position, &entry.kind);
        let index = match entry.kind {
            EventKind::BlockAllocated { address, .. } => tracker.containing(address),
            _ => changed,
        };
        let Some(owner) = index.and_then(|index| owners.get(&index)) else { continue };
        if let EventKind::SegmentAllocated { pool, .. }
        | EventKind::SegmentMapped { pool, .. }
        | EventKind::BlockAllocated { pool, .. } = &mut entry.kind
            && pool.owner == MempoolId::default()
        {
            pool.owner = *owner;
        }
    }
}
