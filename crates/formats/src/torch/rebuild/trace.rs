//! One device's history within the snapshot's entries.

use std::ops::Range;

use crate::torch::paged_list::PagedList;
use crate::torch::snapshot::{Entry, Snapshot};

/// The history of one device: the snapshot's entries that belong to it, in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceTrace<'a> {
    entries: &'a PagedList<Entry>,
    /// Ranges of indices in `entries` that belong to the device.
    ranges: &'a [Range<u32>],
}

impl<'a> DeviceTrace<'a> {
    /// Finds the entries of `device`; the trace is empty if the snapshot has none.
    pub(super) fn new(snapshot: &'a Snapshot, device: u16) -> Self {
        Self { entries: &snapshot.entries, ranges: snapshot.trace_of(device) }
    }

    /// Returns the number of entries of the device's history.
    pub(super) fn len(&self) -> u64 {
        self.ranges.iter().map(|range| range.len() as u64).sum()
    }

    /// Returns the device's entries from the first to the last, as consecutive slices.
    pub(super) fn slices(self) -> impl DoubleEndedIterator<Item = &'a [Entry]> + 'a {
        self.ranges.iter().flat_map(move |range| self.entries.slices(range.start as usize..range.end as usize))
    }

    /// Returns an iterator over the entries of the device's history, from the first to the last.
    pub(super) fn entries(self) -> Entries<'a> {
        Entries { trace: self, next_range: 0, rest_of_range: 0..0, current: [].iter() }
    }
}

/// Iterator over the entries of a device's history, in order.
#[derive(Clone, Debug)]
pub(super) struct Entries<'a> {
    trace: DeviceTrace<'a>,
    /// Index in `DeviceTrace::ranges` of the range after the current one.
    next_range: usize,
    /// The indices of the entries of the current range that come after `current`.
    rest_of_range: Range<usize>,
    /// The rest of the current slice of entries.
    current: std::slice::Iter<'a, Entry>,
}

impl<'a> Iterator for Entries<'a> {
    type Item = &'a Entry;

    #[inline]
    fn next(&mut self) -> Option<&'a Entry> {
        loop {
            if let Some(entry) = self.current.next() {
                return Some(entry);
            }
            if let Some(slice) = self.trace.entries.slices(self.rest_of_range.clone()).next() {
                self.rest_of_range.start += slice.len();
                self.current = slice.iter();
                continue;
            }
            let range = self.trace.ranges.get(self.next_range)?;
            self.next_range += 1;
            self.rest_of_range = range.start as usize..range.end as usize;
        }
    }
}
