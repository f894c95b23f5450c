//! The starts and ends of allocations in the order of their events.

use super::allocation_table::MAX_ROWS;

/// The bit of an entry of a [`ChangeList`] that marks an end.
const END_BIT: u32 = MAX_ROWS;
/// The entry of a [`ChangeList`] that marks one of the two changes of a relabel; no row has this
/// number.
const RELABEL: u32 = u32::MAX;
/// Number of entries in a segment of a [`ChangeList`]; a segment takes 256 KiB.
const SEGMENT_ENTRIES: usize = 1 << 16;

/// The starts and ends of all allocations of a device in the order of their events, at 4 bytes
/// each, and relabels at 8. The moment of a start or end is in the row of its allocation; the
/// moment of a relabel is in its label.
///
/// Stored in segments, because growing one long list would pause to copy all of it.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangeList {
    /// The segments; all but the last are full.
    segments: Vec<Vec<u32>>,
    len: usize,
}

impl ChangeList {
    /// Adds the start of the allocation in row `row`.
    #[inline]
    pub(super) fn push_start(&mut self, row: u32) {
        self.push(row);
    }

    /// Adds the end of the allocation in row `row`.
    #[inline]
    pub(super) fn push_end(&mut self, row: u32) {
        self.push(row | END_BIT);
    }

    /// Adds a relabel, which takes two entries: the end of the allocation's time with the old site,
    /// and the start of its time with the new one. Returns the index of the first.
    pub(super) fn push_relabel(&mut self) -> usize {
        self.push(RELABEL);
        self.push(RELABEL);
        self.len - 2
    }

    /// Appends an entry: a row number, perhaps with [`END_BIT`], or [`RELABEL`].
    #[inline]
    fn push(&mut self, entry: u32) {
        if self.len.is_multiple_of(SEGMENT_ENTRIES) {
            self.segments.push(Vec::with_capacity(SEGMENT_ENTRIES));
        }
        if let Some(last) = self.segments.last_mut() {
            last.push(entry);
            self.len += 1;
        }
    }

    /// Returns the number of entries: one for each start and end, two for each relabel.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the row number of the entry with index `index`, and true if it is a start; `None`
    /// for one of the two entries of a relabel.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<(u32, bool)> {
        let entry = self.segments[index / SEGMENT_ENTRIES][index % SEGMENT_ENTRIES];
        (entry != RELABEL).then_some((entry & !END_BIT, entry & END_BIT == 0))
    }

    /// Frees spare memory once no entry will be added.
    pub(super) fn finish(&mut self) {
        self.segments.shrink_to_fit();
        if let Some(last) = self.segments.last_mut() {
            last.shrink_to_fit();
        }
    }

    /// Returns the memory that the list occupies, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let entries = self.segments.iter().map(Vec::capacity).sum::<usize>();
        entries * size_of::<u32>() + self.segments.capacity() * size_of::<Vec<u32>>()
    }
}
