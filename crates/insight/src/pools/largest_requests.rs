//! The largest request in any range of events.

use vramscope_trace::{DeviceId, DeviceLifetimes, IncidentKind, Recording};

/// Number of allocations in a [group](LargestRequests) of which only the largest is kept.
const GROUP: usize = 32;

/// The largest requests of a device, so that the largest in a range of events is found without
/// visiting every allocation.
///
/// Keeps the largest of each 32 successive allocations, 0.5 bytes per allocation, and every request
/// that failed.
#[derive(Clone, Debug, Default)]
pub struct LargestRequests {
    /// First moment and largest requested size of each group of allocations, in order.
    groups: Vec<(u64, u64)>,
    /// Event number and size of each failed request, in order.
    failed: Vec<(u64, u64)>,
    /// Number of allocations added so far.
    added: usize,
    /// The first row of the lifetimes that has not been visited.
    next_row: u32,
}

impl LargestRequests {
    /// Collects the largest requests of a device from its allocations and out-of-memory events.
    ///
    /// The cost is linear in the number of allocations.
    #[must_use]
    pub fn new(recording: &Recording, device: DeviceId, lifetimes: &DeviceLifetimes) -> Self {
        let mut requests = Self::default();
        while !requests.step(recording, device, lifetimes, u32::MAX) {}
        requests
    }

    /// Adds up to `max_rows` further allocations (at least one), and returns true once all are
    /// added, with the out-of-memory events. Takes about 10 ns for each.
    pub fn step(
        &mut self,
        recording: &Recording,
        device: DeviceId,
        lifetimes: &DeviceLifetimes,
        max_rows: u32,
    ) -> bool {
        let rows = u32::try_from(lifetimes.len()).unwrap_or(u32::MAX);
        let end = self.next_row.saturating_add(max_rows.max(1)).min(rows);
        lifetimes.for_each_row(self.next_row..end, |row| {
            if !row.start_observed {
                return;
            }
            match self.groups.last_mut() {
                Some((_, largest)) if !self.added.is_multiple_of(GROUP) => *largest = (*largest).max(row.requested),
                _ => self.groups.push((row.first_moment, row.requested)),
            }
            self.added += 1;
        });
        self.next_row = end;
        if end < rows {
            return false;
        }
        self.failed.clear();
        for incident in recording.incidents().iter().filter(|incident| incident.device == device) {
            if let IncidentKind::OutOfMemory { requested } = incident.kind {
                self.failed.push((incident.at_event.saturating_add(1), requested));
            }
        }
        true
    }

    /// Returns the size in bytes of the largest request among the events with a number above
    /// `after` and at most `to`; 0 without one.
    ///
    /// A group of 32 allocations counts where its first allocation is, so that a range of few
    /// events may miss a request, or contain one that is up to 31 allocations later. Failed
    /// requests are exact.
    #[must_use]
    pub fn between(&self, after: u64, to: u64) -> u64 {
        self.largest_group(after, to).max(self.largest_failed(after, to))
    }

    /// Returns the size in bytes of the largest failed request in a range of events; 0 without one.
    pub(super) fn largest_failed(&self, after: u64, to: u64) -> u64 {
        largest_between(&self.failed, after, to)
    }

    /// Returns the size in bytes of the largest request of the groups that begin in the range.
    fn largest_group(&self, after: u64, to: u64) -> u64 {
        largest_between(&self.groups, after, to)
    }
}

/// Returns the largest size in `requests`, pairs of event number and size in the order of events,
/// whose event number is above `after` and at most `to`; 0 without one.
fn largest_between(requests: &[(u64, u64)], after: u64, to: u64) -> u64 {
    let first = requests.partition_point(|&(number, _)| number <= after);
    let rest = requests[first..].iter().take_while(|&&(number, _)| number <= to);
    rest.map(|&(_, bytes)| bytes).max().unwrap_or(0)
}
