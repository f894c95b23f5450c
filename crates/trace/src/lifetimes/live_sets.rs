//! Stored sets of active allocations.

use super::allocation_table::AllocationTable;

/// The sets of active rows at some moments, from which the set of any moment is derived.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveSets {
    sets: Vec<StoredSet>,
    /// The rows of all sets, concatenated.
    live_rows: Vec<u32>,
}

/// One set; its rows are a range of [`LiveSets::live_rows`].
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
    /// Returns the number of rows in the table when the last set was stored.
    pub(super) fn rows(&self) -> usize {
        self.sets.last().map_or(0, |set| set.rows)
    }

    /// Stores the set `live` of the rows of `rows` that are active at `moment`.
    #[inline(never)]
    pub(super) fn store(&mut self, moment: u64, rows: &AllocationTable, live: impl Iterator<Item = u32>) {
        self.live_rows.extend(live);
        let groups = rows.groups();
        let next_row = groups.last().map_or((0, 0), |last| (groups.len() - 1, last.len()));
        self.sets.push(StoredSet { moment, rows: rows.len(), next_row, end: self.live_rows.len() });
    }

    /// Frees spare capacity.
    pub(super) fn finish(&mut self) {
        self.sets.shrink_to_fit();
        self.live_rows.shrink_to_fit();
    }

    /// Returns the last set stored at or before a moment, and the position of the first row after
    /// it.
    pub(super) fn at_or_before(&self, moment: u64) -> (&[u32], (usize, usize)) {
        let Some(set) = self.sets.partition_point(|set| set.moment <= moment).checked_sub(1) else {
            return (&[], (0, 0));
        };
        let start = set.checked_sub(1).map_or(0, |before| self.sets[before].end);
        (&self.live_rows[start..self.sets[set].end], self.sets[set].next_row)
    }

    /// Returns the memory they occupy, in bytes.
    pub(super) fn size_in_memory(&self) -> usize {
        self.sets.capacity() * size_of::<StoredSet>() + self.live_rows.capacity() * size_of::<u32>()
    }
}
