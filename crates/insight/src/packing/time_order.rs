//! Places each buffer when its lifetime starts, in the smallest gap: a placement that is found in
//! n log n time, however many buffers live at one time.

use std::collections::{BTreeMap, BTreeSet};

use super::problem::{Problem, Span};

/// The gaps between placed buffers, below the height so far.
#[derive(Default)]
struct Gaps {
    /// Ends of the gaps, by start.
    by_start: BTreeMap<u64, u64>,
    /// Length and start of each gap.
    by_length: BTreeSet<(u64, u64)>,
}

impl Gaps {
    /// Adds a gap that touches no other gap.
    fn insert(&mut self, start: u64, end: u64) {
        self.by_start.insert(start, end);
        self.by_length.insert((end - start, start));
    }

    /// Removes the gap that begins at `start`, and returns its end; `None` if there is none.
    fn remove(&mut self, start: u64) -> Option<u64> {
        let end = self.by_start.remove(&start)?;
        self.by_length.remove(&(end - start, start));
        Some(end)
    }

    /// Adds a range that has become free, and joins it with the gaps beside it.
    fn free(&mut self, mut start: u64, mut end: u64) {
        if let Some(next_end) = self.remove(end) {
            end = next_end;
        }
        let before = self.by_start.range(..start).next_back();
        if let Some((&previous, _)) = before.filter(|(_, previous_end)| **previous_end == start) {
            self.remove(previous);
            start = previous;
        }
        self.insert(start, end);
    }
}

/// Returns an offset for each buffer, in units.
pub(super) fn place_in_time_order(problem: &Problem) -> Vec<u64> {
    let spans = &problem.spans;
    let mut ends = numbers_by(spans, |span| span.end).into_iter().peekable();
    let mut offsets = vec![0; spans.len()];
    let mut gaps = Gaps::default();
    let mut height = 0;
    for number in numbers_by(spans, |span| span.first) {
        let Span { first, size, .. } = spans[number as usize];
        while let Some(ended) = ends.next_if(|&ended| spans[ended as usize].end <= first) {
            let offset = offsets[ended as usize];
            gaps.free(offset, offset + spans[ended as usize].size);
        }
        let offset = &mut offsets[number as usize];
        if let Some(&(length, start)) = gaps.by_length.range((size, 0)..).next() {
            gaps.remove(start);
            if length > size {
                gaps.insert(start + size, start + length);
            }
            *offset = start;
            continue;
        }
        // A gap at the top grows.
        let top = gaps.by_start.iter().next_back().filter(|(_, end)| **end == height).map(|(&start, _)| start);
        if let Some(start) = top {
            gaps.remove(start);
        }
        *offset = top.unwrap_or(height);
        height = *offset + size;
    }
    offsets
}

/// Returns the numbers of all buffers, sorted by the clique that `clique` returns for each.
fn numbers_by(spans: &[Span], clique: impl Fn(&Span) -> u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..spans.len() as u32).collect();
    numbers.sort_by_key(|&number| clique(&spans[number as usize]));
    numbers
}
