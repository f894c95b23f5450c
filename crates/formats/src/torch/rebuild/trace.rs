//! One device's history within the snapshot's entries.

use std::ops::Range;

use crate::torch::snapshot::{Entry, Snapshot};

/// The history of one device: those of the snapshot's entries that belong to it, in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceTrace<'a> {
    entries: &'a [Entry],
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

    /// Returns the entries in a range of indices of [`Snapshot::entries`]; empty if the range is
    /// not within them.
    fn slice(&self, range: &Range<u32>) -> &'a [Entry] {
        self.entries.get(range.start as usize..range.end as usize).unwrap_or_default()
    }

    /// Returns an iterator from the device's first entry to its last.
    pub(super) fn entries(self) -> Entries<'a> {
        Entries { trace: self, next_range: 0, current: [].iter() }
    }

    /// Returns an iterator from the device's last entry to its first.
    pub(super) fn entries_reversed(self) -> impl Iterator<Item = &'a Entry> + 'a {
        self.ranges.iter().rev().flat_map(move |range| self.slice(range).iter().rev())
    }
}

/// Iterator over the entries of a device's history, in order.
#[derive(Clone, Debug)]
pub(super) struct Entries<'a> {
    trace: DeviceTrace<'a>,
    next_range: usize,
    current: std::slice::Iter<'a, Entry>,
}

impl<'a> Iterator for Entries<'a> {
    type Item = &'a Entry;

    fn next(&mut self) -> Option<&'a Entry> {
        loop {
            if let Some(entry) = self.current.next() {
                return Some(entry);
            }
            self.current = self.trace.slice(self.trace.ranges.get(self.next_range)?).iter();
            self.next_range += 1;
        }
    }
}
