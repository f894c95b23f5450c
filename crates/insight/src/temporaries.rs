//! Temporaries: allocations that are freed soon after, by group.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Allocation, DeviceLifetimes};

/// The temporaries of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TemporaryGroup {
    /// The group's number, as the caller's grouping defines it.
    pub group: u32,
    /// Number of allocations.
    pub allocations: u64,
    /// Bytes of all temporaries of the group (churn).
    pub churned_bytes: u64,
    /// Bytes of the largest temporary.
    pub largest_bytes: u64,
    /// Number of events from each allocation to its free, added up.
    pub lifetime_events: u64,
    /// Time from each allocation to its free, added up, in nanoseconds.
    pub lifetime_ns: u64,
}

impl TemporaryGroup {
    /// Returns the mean number of events from an allocation to its free; 1 is the very next event.
    #[must_use]
    pub fn mean_lifetime_events(&self) -> f64 {
        self.lifetime_events as f64 / self.allocations.max(1) as f64
    }

    /// Returns the mean time from an allocation to its free, in nanoseconds.
    #[must_use]
    pub fn mean_lifetime_ns(&self) -> u64 {
        self.lifetime_ns / self.allocations.max(1)
    }
}

/// Returns the allocations made by the events with numbers in `made_by` that the program freed
/// within `within_events` events, by group; the group with the most bytes first.
///
/// `group_of` returns the group of an allocation, `time_ns` the time of a moment. The cost is
/// linear in the number of allocations made by these events.
pub fn temporaries_by_group(
    lifetimes: &DeviceLifetimes,
    made_by: RangeInclusive<u64>,
    within_events: u64,
    mut group_of: impl FnMut(&Allocation) -> u32,
    time_ns: impl Fn(u64) -> u64,
) -> Vec<TemporaryGroup> {
    let mut groups: HashMap<u32, TemporaryGroup> = HashMap::new();
    let indexes = made_by.start().saturating_sub(1)..if made_by.is_empty() { 0 } else { *made_by.end() };
    for one in lifetimes.temporaries(indexes, within_events) {
        let Some(freed) = one.allocated_until else { continue };
        let group = group_of(&one);
        let sums = groups.entry(group).or_insert(TemporaryGroup { group, ..TemporaryGroup::default() });
        sums.allocations += 1;
        sums.churned_bytes = sums.churned_bytes.saturating_add(one.size);
        sums.largest_bytes = sums.largest_bytes.max(one.size);
        sums.lifetime_events = sums.lifetime_events.saturating_add(freed.saturating_sub(one.first_moment));
        let lifetime_ns = time_ns(freed).saturating_sub(time_ns(one.first_moment));
        sums.lifetime_ns = sums.lifetime_ns.saturating_add(lifetime_ns);
    }
    let mut groups: Vec<TemporaryGroup> = groups.into_values().collect();
    sort_by_key(&mut groups, |one| (std::cmp::Reverse((one.churned_bytes, one.allocations)), one.group));
    groups
}
