//! A list that is sorted only where it is read.

use std::collections::BTreeSet;

/// Number of entries that are sorted together.
const PAGE: usize = 1024;
/// Maximum number of entries of a range that is divided at an exact index. A longer range is first
/// divided near its middle: that takes half of the time, and later windows find smaller ranges.
const DIVIDED_ABOVE: usize = 16 * PAGE;
/// Number of entries from which a value near the median is estimated.
const SAMPLE: usize = 255;

/// A list of numbers in ascending order, sorted in pages when they are read.
///
/// The first window takes time linear in the length; windows near one that was read before take
/// time linear in their own length.
#[derive(Clone, Debug, Default)]
pub(super) struct LazySort {
    entries: Vec<u128>,
    /// Indexes at which the list is divided: no entry before is greater than one from there on.
    divisions: BTreeSet<usize>,
    /// Whether each page is sorted.
    sorted: Vec<bool>,
}

impl LazySort {
    /// Creates a list of entries in any order.
    pub(super) fn new(entries: Vec<u128>) -> Self {
        let sorted = vec![false; entries.len().div_ceil(PAGE)];
        Self { entries, divisions: BTreeSet::new(), sorted }
    }

    /// Returns all entries, in no particular order.
    pub(super) fn entries(&self) -> &[u128] {
        &self.entries
    }

    /// Returns up to `count` entries from index `offset` of the sorted list on.
    pub(super) fn window(&mut self, offset: usize, count: usize) -> &[u128] {
        let start = offset.min(self.entries.len());
        let end = start.saturating_add(count).min(self.entries.len());
        if start < end {
            for page in start / PAGE..end.div_ceil(PAGE) {
                self.sort_page(page);
            }
        }
        &self.entries[start..end]
    }

    /// Sorts the entries of the page with index `page`, after dividing the list at the page's
    /// bounds.
    fn sort_page(&mut self, page: usize) {
        if self.sorted[page] {
            return;
        }
        let (start, end) = (page * PAGE, ((page + 1) * PAGE).min(self.entries.len()));
        self.divide_at(start);
        self.divide_at(end);
        self.entries[start..end].sort_unstable();
        self.sorted[page] = true;
    }

    /// Divides the list at an index, so that no entry before it is greater than one from there on.
    fn divide_at(&mut self, index: usize) {
        if index == 0 || index >= self.entries.len() {
            return;
        }
        loop {
            let start = self.divisions.range(..=index).next_back().copied().unwrap_or(0);
            if start == index {
                return;
            }
            let end = self.divisions.range(index..).next().copied().unwrap_or(self.entries.len());
            let range = &mut self.entries[start..end];
            let middle = if range.len() > DIVIDED_ABOVE { partition(range) } else { 0 };
            let middle = if middle > 0 {
                start + middle
            } else {
                range.select_nth_unstable(index - start);
                index
            };
            self.divisions.insert(middle);
        }
    }
}

/// Moves the entries below a value near the median to the front, and returns how many they are; 0
/// if the entries hardly differ.
fn partition(entries: &mut [u128]) -> usize {
    let mut sample: Vec<u128> = entries.iter().step_by((entries.len() / SAMPLE).max(1)).copied().collect();
    let middle = sample.len() / 2;
    let pivot = *sample.select_nth_unstable(middle).1;
    let mut below = 0;
    for at in 0..entries.len() {
        let entry = entries[at];
        entries.swap(at, below);
        // Without a branch, because the processor could not predict it.
        below += usize::from(entry < pivot);
    }
    below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_equal_slices_of_the_sorted_list() {
        let mut random = fastrand::Rng::with_seed(7);
        for len in [0, 1, 1023, 1024, 1025, 40_000, 100_001] {
            let entries: Vec<u128> = (0..len).map(|_| random.u128(..5000)).collect();
            let mut sorted = entries.clone();
            sorted.sort_unstable();
            let mut lazy = LazySort::new(entries);
            for _ in 0..60 {
                let (offset, count) = (random.usize(..=len + 2), random.usize(..3000));
                let start = offset.min(len);
                assert_eq!(lazy.window(offset, count), &sorted[start..(start + count).min(len)], "{len}");
            }
        }
    }
}
