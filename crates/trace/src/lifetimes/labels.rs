//! The relabels of a device's allocations.

use std::collections::HashMap;

/// A relabel of an allocation: the numbers of its origins before and after.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    /// The first moment with the new origin.
    pub(super) moment: u64,
    pub(super) row: u32,
    /// The number of the origin before the relabel.
    pub(super) from: u32,
    /// The number of the origin after the relabel.
    pub(super) to: u32,
    /// Index of its first entry in the list of changes, if that is kept.
    pub(super) position: usize,
}

/// All relabels of a device in the order of their moments. A row of the table of allocations has
/// the origin of its last relabel; the earlier origins are here.
#[derive(Clone, Debug, Default)]
pub(super) struct Labels {
    /// Each relabel, with the index here of the next relabel of its row; `usize::MAX` for the last.
    labels: Vec<(Label, usize)>,
    /// By row: the indexes of its first relabel (upper half) and of its last (lower half).
    by_row: HashMap<u32, u64>,
}

impl Labels {
    /// Adds a relabel. There are fewer than 2³² of them, because each takes 48 bytes.
    pub(super) fn push(&mut self, label: Label) {
        let index = self.labels.len();
        let first = match self.by_row.get(&label.row) {
            Some(&ends) => {
                self.labels[ends as u32 as usize].1 = index;
                ends >> 32
            }
            None => index as u64,
        };
        self.by_row.insert(label.row, first << 32 | index as u64);
        self.labels.push((label, usize::MAX));
    }

    /// Returns the number of the origin that a row has at a moment; for `None`, the origin with
    /// which it began. `current` is its origin after its last relabel.
    pub(super) fn origin_at(&self, row: u32, moment: Option<u64>, current: u32) -> u32 {
        if self.labels.is_empty() {
            return current;
        }
        let mut index = self.by_row.get(&row).map_or(usize::MAX, |ends| (ends >> 32) as usize);
        while let Some(&(label, next)) = self.labels.get(index) {
            if moment.is_none_or(|moment| label.moment > moment) {
                return label.from;
            }
            index = next;
        }
        current
    }

    /// Returns the relabel to which the entry at index `position` of the list of changes belongs,
    /// and true if that is the second of its two entries.
    pub(super) fn at_position(&self, position: usize) -> (Label, bool) {
        let index = self.labels.partition_point(|(label, _)| label.position <= position) - 1;
        let label = self.labels[index].0;
        (label, label.position < position)
    }

    /// Returns the memory that the relabels occupy, in bytes, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        self.labels.capacity() * size_of::<(Label, usize)>() + self.by_row.capacity() * 13
    }
}
