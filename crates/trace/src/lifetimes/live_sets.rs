//! Stored sets of active allocations.

use super::allocation_table::AllocationTable;

/// The active allocations, as row numbers, at selected moments. The active allocations at any other
/// moment are derived from the set before it.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveSets {
    sets: Vec<StoredSet>,
    /// The rows of all sets, concatenated.
    live_rows: Vec<u32>,
}

/// The active allocations at one moment; their row numbers are a range of [`LiveSets::live_rows`].
#[derive(Clone, Copy, Debug)]
struct StoredSet {
    moment: u64,
    /// Number of rows in the table at that moment.
    rows: usize,
    /// Position of the next row: group and index.
    next_row: (usize, usize),
    /// End of its range in `LiveSets::live_rows`.
    end: usize,
}

impl LiveSets {
    /// Returns how many rows the table of allocations had when the last set was stored; 0 if no set
    /// was.
    pub(super) fn rows(&self) -> usize {
        self.sets.last().map_or(0, |set| set.rows)
    }

    /// Stores `live`, the numbers of the rows of the table `rows` that are active at `moment`.
    #[inline(never)]
    pub(super) fn store(&mut self, moment: u64, rows: &AllocationTable, live: impl Iterator<Item = u32>) {
        self.live_rows.extend(live);
        let groups = rows.groups();
        let next_row = groups.last().map_or((0, 0), |last| (groups.len() - 1, last.len()));
        self.sets.push(StoredSet { moment, rows: rows.len(), next_row, end: self.live_rows.len() });
    }

    /// Frees spare memory once no set will be added.
    pub(super) fn finish(&mut self) {
        self.sets.shrink_to_fit();
        self.live_rows.shrink_to_fit();
    }

    /// Returns the row numbers of the last set stored at or before a moment, and the position
    /// (group, index) of the first row added after it. Without a set, no rows and the first
    /// position.
    pub(super) fn at_or_before(&self, moment: u64) -> (&[u32], (usize, usize)) {
        let Some(set) = self.sets.partition_point(|set| set.moment <= moment).checked_sub(1) else {
            return (&[], (0, 0));
        };
        let start = set.checked_sub(1).map_or(0, |before| self.sets[before].end);
        (&self.live_rows[start..self.sets[set].end], self.sets[set].next_row)
    }

    /// Returns the memory that the sets occupy, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.sets.capacity() * size_of::<StoredSet>() + self.live_rows.capacity() * size_of::<u32>()
    }
}
