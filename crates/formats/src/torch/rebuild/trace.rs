//! One device's history within the snapshot's entries.

use std::ops::Range;

use crate::torch::snapshot::{Entry, Snapshot};

/// The entries of one device, in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceTrace<'a> {
    entries: &'a [Entry],
    ranges: &'a [Range<u32>],
}

impl<'a> DeviceTrace<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, device: u16) -> Self {
        Self { entries: &snapshot.entries, ranges: snapshot.trace_of(device) }
    }

    pub(super) fn len(&self) -> u64 {
        self.ranges.iter().map(|range| range.len() as u64).sum()
    }

    fn slice(&self, range: &Range<u32>) -> &'a [Entry] {
        self.entries.get(range.start as usize..range.end as usize).unwrap_or_default()
    }

    pub(super) fn entries(self) -> Entries<'a> {
        Entries { trace: self, next_range: 0, current: [].iter() }
    }

    pub(super) fn entries_reversed(self) -> impl Iterator<Item = &'a Entry> + 'a {
        self.ranges.iter().rev().flat_map(move |range| self.slice(range).iter().rev())
    }
}

/// Iterates over the entries of a trace.
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
