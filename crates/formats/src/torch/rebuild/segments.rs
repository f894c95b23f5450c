//! The segments of one device while its history is walked.

use std::collections::BTreeMap;
use std::ops::Range;

use vramscope_pool::size;
use vramscope_trace::{MempoolId, PoolKey, PoolKind};

use crate::torch::snapshot::{Origin, SegmentRow};

/// A segment during a walk over the history; its address is the key in [`Segments`]. Its pool is
/// certain only if the segment still exists at the history's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) end: u64,
    pub(super) stream: u64,
    pub(super) pool: PartialPool,
    pub(super) expandable: bool,
    pub(super) origin: Origin,
}

/// The known properties of a segment's pool: size class and private pool, each `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PartialPool {
    pub(super) kind: Option<PoolKind>,
    pub(super) mempool: Option<MempoolId>,
}

impl PartialPool {
    /// Returns this pool with its unknown properties (size class, private pool) taken from `other`.
    pub(super) fn or(self, other: Self) -> Self {
        Self { kind: self.kind.or(other.kind), mempool: self.mempool.or(other.mempool) }
    }
}

/// The segments of one device by address; they never overlap. Each mapped range of an expandable
/// segment counts as a segment.
#[derive(Clone, Debug, Default)]
pub(super) struct Segments {
    by_address: BTreeMap<u64, Segment>,
}

impl Segments {
    /// Iterates over the segments with their addresses, in the order of addresses.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (u64, &Segment)> + '_ {
        self.by_address.iter().map(|(&address, segment)| (address, segment))
    }

    /// Returns the segment that contains `address`, with the segment's start address; `None` if no
    /// segment contains it.
    pub(super) fn containing(&self, address: u64) -> Option<(u64, &Segment)> {
        let (&start, segment) = self.by_address.range(..=address).next_back()?;
        (address < segment.end).then_some((start, segment))
    }

    /// Returns the segments that overlap an address range, in order of address.
    pub(super) fn overlapping_mut(&mut self, range: Range<u64>) -> impl Iterator<Item = &mut Segment> + '_ {
        let first = self.containing(range.start).map_or(range.start, |(start, _)| start);
        self.by_address.range_mut(first..range.end.max(first)).map(|(_, segment)| segment)
    }

    /// Adds a segment at `address`. A mapped range is merged with adjacent ranges of equal stream
    /// and pool. Returns true if the addresses were free; false if it replaced overlapping
    /// segments.
    pub(super) fn insert(&mut self, mut address: u64, mut segment: Segment) -> bool {
        let fits = self.cut(address..segment.end).0 == 0;
        if segment.expandable {
            let can_merge =
                |other: &Segment| other.expandable && other.stream == segment.stream && other.pool == segment.pool;
            if let Some(above) = self.by_address.get(&segment.end).copied().filter(can_merge) {
                self.by_address.remove(&segment.end);
                segment.end = above.end;
            }
            if let Some((&start, below)) = self.by_address.range(..address).next_back()
                && below.end == address
                && can_merge(below)
            {
                address = start;
                segment.origin = below.origin;
            }
        }
        self.by_address.insert(address, segment);
        fits
    }

    /// Returns the known properties of the pool of the mapped ranges directly before and after
    /// `range` that serve `stream`; an expandable segment's addresses all belong to one pool.
    pub(super) fn pool_of_adjacent(&self, range: &Range<u64>, stream: u64) -> PartialPool {
        let below = self.by_address.range(..range.start).next_back().map(|(_, segment)| segment);
        let below = below.filter(|segment| segment.end == range.start);
        let above = self.by_address.get(&range.end);
        [below, above]
            .into_iter()
            .flatten()
            .filter(|segment| segment.expandable && segment.stream == stream)
            .fold(PartialPool::default(), |known, segment| known.or(segment.pool))
    }

    /// Removes and returns the segment that begins at `address`; `None`, and no effect, if no
    /// segment begins there or it is expandable.
    pub(super) fn remove(&mut self, address: u64) -> Option<Segment> {
        self.by_address.get(&address).filter(|segment| !segment.expandable)?;
        self.by_address.remove(&address)
    }

    /// Removes an address range from expandable segments, and removes every other segment that
    /// overlaps the range completely. Returns the number of bytes removed and the known properties
    /// of their pool.
    pub(super) fn cut(&mut self, range: Range<u64>) -> (u64, PartialPool) {
        let (mut removed, mut pool) = (0u64, PartialPool::default());
        while let Some((&start, &segment)) = self.by_address.range(..range.end).next_back()
            && segment.end > range.start
        {
            self.by_address.remove(&start);
            pool = pool.or(segment.pool);
            let overlap = if segment.expandable {
                start.max(range.start)..segment.end.min(range.end)
            } else {
                start..segment.end
            };
            if start < overlap.start {
                self.by_address.insert(start, Segment { end: overlap.start, ..segment });
            }
            if overlap.end < segment.end {
                self.by_address.insert(overlap.end, segment);
            }
            removed = removed.saturating_add(overlap.end - overlap.start);
        }
        (removed, pool)
    }
}

/// Converts a segment of the snapshot's list. A segment without an `expandable` flag counts as not
/// expandable.
pub(super) fn segment_of_row(row: &SegmentRow) -> Segment {
    Segment {
        end: row.end(),
        stream: row.stream,
        pool: PartialPool { kind: row.kind, mempool: Some(row.mempool) },
        expandable: row.expandable == Some(true),
        origin: row.origin,
    }
}

/// Completes a partially known pool: an unknown size class follows from the segment's size in
/// bytes, an unknown private pool is the default pool.
pub(super) fn likely_pool(known: PartialPool, segment_size: u64) -> PoolKey {
    let by_size = if segment_size <= size::SMALL_SEGMENT_BYTES { PoolKind::Small } else { PoolKind::Large };
    let kind = known.kind.unwrap_or(by_size);
    PoolKey { kind, owner: known.mempool.unwrap_or(MempoolId(0, 0)) }
}

/// Converts a pool to a [`PartialPool`] whose size class and private pool are both known.
pub(super) fn known_pool(pool: PoolKey) -> PartialPool {
    PartialPool { kind: Some(pool.kind), mempool: Some(pool.owner) }
}
