//! A placement of some buffers, in which buffers can be placed and removed.

use super::overlaps::OverlapIndex;
use super::problem::Span;
use super::reuse::Reuse;

/// The offset of a buffer that has no place.
pub(super) const UNPLACED: u64 = u64::MAX;

/// Maximum number of pairs of buffers of several streams and pools that are listed. A pair takes 4
/// bytes.
const MAX_LISTED_PAIRS: usize = 1 << 24;

/// A placed buffer that needs other memory than the one to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Neighbor {
    /// Its offset in units.
    pub(super) offset: u64,
    /// The offset after it.
    pub(super) end: u64,
    /// Its number.
    pub(super) number: u32,
}

/// Offsets of buffers, in units, and the search for gaps between them.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) spans: Vec<Span>,
    /// The lowest offset that each buffer can have.
    pub(super) floors: Vec<u64>,
    /// The offset of each buffer, or [`UNPLACED`].
    pub(super) offsets: Vec<u64>,
    /// The neighbors that [`find_neighbors`](Self::find_neighbors) found.
    pub(super) neighbors: Vec<Neighbor>,
    index: OverlapIndex,
    /// The buffers that need different memory. Spans of buffers of several streams and pools end
    /// when the buffer returns its memory.
    exclusions: Exclusions,
}

/// The rule by which two buffers need different memory.
#[derive(Clone, Debug)]
enum Exclusions {
    /// Buffers with overlapping spans.
    BySpan,
    /// Buffers with overlapping spans that also exclude each other.
    ByReuse(Vec<Reuse>),
    /// By buffer, the list of the buffers that it excludes.
    Listed(Vec<Vec<u32>>),
}

impl Layout {
    /// Creates a layout without a placed buffer.
    pub(super) fn new(spans: Vec<Span>, floors: Vec<u64>) -> Self {
        let index = OverlapIndex::new(&spans);
        Self {
            offsets: vec![UNPLACED; spans.len()],
            spans,
            floors,
            neighbors: Vec::new(),
            index,
            exclusions: Exclusions::BySpan,
        }
    }

    /// Lets buffers of one stream and pool follow each other before they give their memory back.
    pub(super) fn with_reuses(self, reuses: Vec<Reuse>) -> Self {
        let mut pairs = 0;
        let mut lists = Vec::new();
        for number in 0..reuses.len() {
            let mut list = Vec::new();
            self.index.for_each(&self.spans, number as u32, |other| {
                if reuses[number].excludes(&reuses[other as usize]) {
                    list.push(other);
                }
            });
            pairs += list.len();
            if pairs > MAX_LISTED_PAIRS {
                return Self { exclusions: Exclusions::ByReuse(reuses), ..self };
            }
            lists.push(list);
        }
        Self { exclusions: Exclusions::Listed(lists), ..self }
    }

    /// Finds the placed buffers that need other memory than the buffer `number`, lowest first.
    /// Returns the number of steps.
    pub(super) fn find_neighbors(&mut self, number: u32) -> usize {
        let Self { spans, offsets, neighbors, index, exclusions, .. } = self;
        neighbors.clear();
        let mut add = |other: u32| {
            let offset = offsets[other as usize];
            if offset != UNPLACED {
                neighbors.push(Neighbor { offset, end: offset + spans[other as usize].size, number: other });
            }
        };
        let steps = match exclusions {
            Exclusions::BySpan => index.for_each(spans, number, add),
            Exclusions::ByReuse(reuses) => index.for_each(spans, number, |other| {
                if reuses[number as usize].excludes(&reuses[other as usize]) {
                    add(other);
                }
            }),
            Exclusions::Listed(lists) => {
                lists[number as usize].iter().copied().for_each(&mut add);
                lists[number as usize].len()
            }
        };
        neighbors.sort_unstable();
        steps + neighbors.len() * 4 + 16
    }

    /// Returns the lowest offset at which the buffer `number` overlaps none of its `neighbors`.
    pub(super) fn first_fit(&self, number: u32) -> u64 {
        let size = self.spans[number as usize].size;
        let mut offset = self.floors[number as usize];
        for neighbor in &self.neighbors {
            if neighbor.offset >= offset + size {
                break;
            }
            offset = offset.max(neighbor.end);
        }
        offset
    }

    /// Returns the offset of the smallest gap between the `neighbors` of the buffer `number` that
    /// has room for the buffer and ends at or below `height`, the lowest gap if several are equal;
    /// `None` if no gap fits.
    pub(super) fn best_fit(&self, number: u32, height: u64) -> Option<u64> {
        let size = self.spans[number as usize].size;
        let mut gap_start = self.floors[number as usize];
        let mut best: Option<(u64, u64)> = None;
        let mut consider = |start: u64, end: u64| {
            if end >= start + size && best.is_none_or(|(length, _)| end - start < length) {
                best = Some((end - start, start));
            }
        };
        for neighbor in &self.neighbors {
            consider(gap_start, neighbor.offset);
            gap_start = gap_start.max(neighbor.end);
        }
        consider(gap_start, height);
        best.map(|(_, start)| start)
    }
}
