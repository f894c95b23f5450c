//! The segments of one device while its history is walked.

use std::collections::BTreeMap;
use std::ops::Range;

use vramscope_trace::{MempoolId, PoolKind};

use crate::torch::snapshot::{Origin, SegmentRow};

/// A segment. Its pool is not said where it is made, only where it is still there at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) end: u64,
    pub(super) stream: u64,
    pub(super) pool: PoolGuess,
    pub(super) expandable: bool,
    pub(super) origin: Origin,
}

/// What is known of a segment's pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PoolGuess {
    pub(super) kind: Option<PoolKind>,
    pub(super) owner: Option<MempoolId>,
}

impl PoolGuess {
    /// This, and what `other` knows where this does not.
    pub(super) fn or(self, other: Self) -> Self {
        Self { kind: self.kind.or(other.kind), owner: self.owner.or(other.owner) }
    }
}

/// The segments by address. They never overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct Segments {
    by_address: BTreeMap<u64, Segment>,
}

impl Segments {
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (u64, &Segment)> + '_ {
        self.by_address.iter().map(|(&address, segment)| (address, segment))
    }

    /// The segment that holds `address`, and where it begins.
    pub(super) fn containing(&self, address: u64) -> Option<(u64, &Segment)> {
        let (&start, segment) = self.by_address.range(..=address).next_back()?;
        (address < segment.end).then_some((start, segment))
    }

    /// Those that overlap `range`.
    pub(super) fn overlapping_mut(&mut self, range: Range<u64>) -> impl Iterator<Item = &mut Segment> + '_ {
        let first = self.containing(range.start).map_or(range.start, |(start, _)| start);
        self.by_address.range_mut(first..range.end.max(first)).map(|(_, segment)| segment)
    }

    /// Adds a segment; a mapped range becomes one with those of its stream and pool that it touches. False where it took the place
    /// of another.
    pub(super) fn insert(&mut self, mut address: u64, mut segment: Segment) -> bool {
        let fits = self.cut(address..segment.end).0 == 0;
        if segment.expandable {
            let joins =
                |other: &Segment| other.expandable && other.stream == segment.stream && other.pool == segment.pool;
            if let Some(above) = self.by_address.get(&segment.end).copied().filter(joins) {
                self.by_address.remove(&segment.end);
                segment.end = above.end;
            }
            if let Some((&start, below)) = self.by_address.range(..address).next_back()
                && below.end == address
                && joins(below)
            {
                address = start;
                segment.origin = below.origin;
            }
        }
        self.by_address.insert(address, segment);
        fits
    }

    /// What the ranges that touch `range` and serve `stream` know of their pool: a stretch of address space is reserved for one.
    pub(super) fn pool_beside(&self, range: &Range<u64>, stream: u64) -> PoolGuess {
        let below = self.by_address.range(..range.start).next_back().map(|(_, segment)| segment);
        let below = below.filter(|segment| segment.end == range.start);
        let above = self.by_address.get(&range.end);
        [below, above]
            .into_iter()
            .flatten()
            .filter(|segment| segment.expandable && segment.stream == stream)
            .fold(PoolGuess::default(), |known, segment| known.or(segment.pool))
    }

    /// Takes away the ordinary segment that begins at `address`.
    pub(super) fn remove(&mut self, address: u64) -> Option<Segment> {
        self.by_address.get(&address).filter(|segment| !segment.expandable)?;
        self.by_address.remove(&address)
    }

    /// Takes a range away: of mapped ranges the part inside, ordinary segments whole. Gives the bytes taken and what was known of their pool.
    pub(super) fn cut(&mut self, range: Range<u64>) -> (u64, PoolGuess) {
        let (mut taken, mut pool) = (0u64, PoolGuess::default());
        while let Some((&start, &segment)) = self.by_address.range(..range.end).next_back()
            && segment.end > range.start
        {
            self.by_address.remove(&start);
            pool = pool.or(segment.pool);
            let inside = if segment.expandable {
                start.max(range.start)..segment.end.min(range.end)
            } else {
                start..segment.end
            };
            if start < inside.start {
                self.by_address.insert(start, Segment { end: inside.start, ..segment });
            }
            if inside.end < segment.end {
                self.by_address.insert(inside.end, segment);
            }
            taken = taken.saturating_add(inside.end - inside.start);
        }
        (taken, pool)
    }
}

/// A row's segment.
pub(super) fn of_row(row: &SegmentRow) -> Segment {
    Segment {
        end: row.end(),
        stream: row.stream,
        pool: PoolGuess { kind: row.kind, owner: Some(row.owner) },
        expandable: row.expandable == Some(true),
        origin: row.origin,
    }
}
