//! Temporaries by group, counted in parts.

use std::collections::HashMap;

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Churn, DeviceId};

use super::{Categories, DeviceHistory, EVENTS_PER_CALL};
use crate::group::{GroupBy, Grouping, MemoryCategory};
use crate::temporaries::{TemporaryGroup, temporaries_by_group};

/// The definition of the temporaries to count: where they are allocated and how soon they are
/// freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemporarySearch {
    /// The moment after which they are allocated.
    pub from_event: u64,
    /// The number of the last event that allocates them.
    pub to_event: u64,
    /// Most events from the allocation to its free.
    pub within_events: u64,
    /// Grouping of the temporaries.
    pub by: GroupBy,
}

/// Temporaries by group, and the sum of all allocations, of the events counted so far.
#[derive(Clone, Debug, Default)]
struct Sums {
    groups: HashMap<u32, TemporaryGroup>,
    categories: Categories,
    /// All allocations, whether temporary or not.
    all: Churn,
}

impl Sums {
    /// Adds the allocations made after the moment `from` and up to `to`; those freed at most
    /// `within_events` events later are temporaries.
    fn add(&mut self, source: &DeviceHistory<'_>, grouping: &mut Grouping, (from, to): (u64, u64), within_events: u64) {
        let Self { groups, categories, all } = self;
        let group_of = |one: &_| {
            let group = grouping.group_of_allocation(one);
            categories.add(group, grouping.category_of_allocation(one));
            group
        };
        let time_ns = |event| source.history.time_ns(event);
        let found =
            temporaries_by_group(source.lifetimes, from.saturating_add(1)..=to, within_events, group_of, time_ns);
        for one in found {
            let sums = groups.entry(one.group).or_insert(TemporaryGroup {
                allocations: 0,
                churned_bytes: 0,
                largest_bytes: 0,
                lifetime_events: 0,
                lifetime_ns: 0,
                ..one
            });
            sums.allocations += one.allocations;
            sums.churned_bytes = sums.churned_bytes.saturating_add(one.churned_bytes);
            sums.largest_bytes = sums.largest_bytes.max(one.largest_bytes);
            sums.lifetime_events = sums.lifetime_events.saturating_add(one.lifetime_events);
            sums.lifetime_ns = sums.lifetime_ns.saturating_add(one.lifetime_ns);
        }
        source.lifetimes.for_each_row(source.lifetimes.rows_started_in(from, to), |row| {
            if row.start_observed {
                all.add(row.size);
            }
        });
    }
}

/// The temporaries by group, as far as they are counted.
#[derive(Clone, Debug, Default)]
pub struct TemporaryRows {
    /// The groups, most bytes first, with the category that all of a group's temporaries have.
    pub groups: Vec<(TemporaryGroup, Option<MemoryCategory>)>,
    /// Number of all allocations in the range.
    pub all_allocations: u64,
    /// Bytes of all allocations in the range.
    pub all_bytes: u64,
    /// The share of the range that has been counted, from 0 to 1.
    pub progress: f64,
}

/// A search that counts temporaries in parts, one in each frame, and continues as the recording
/// grows.
#[derive(Default)]
pub struct TemporaryScan {
    /// Device, generations of the history and its categories, and the search, whose end may change.
    key: Option<(DeviceId, [u64; 2], TemporarySearch)>,
    /// The moment up to which allocations are counted for good: all that are freed soon have been.
    counted: u64,
    sums: Sums,
}

impl TemporaryScan {
    /// Continues a search for one frame and returns the rows found so far; `grouping` must be the
    /// search's grouping.
    pub fn advance(
        &mut self,
        source: &DeviceHistory<'_>,
        search: TemporarySearch,
        grouping: &mut Grouping,
    ) -> TemporaryRows {
        // A search up to a later event continues this one.
        let generations = [source.history.generation(), source.history.categories_generation()];
        let key = (source.device, generations, TemporarySearch { to_event: 0, ..search });
        let to = search.to_event.min(source.history.until());
        if self.key != Some(key) || self.counted > to {
            *self = Self { key: Some(key), counted: search.from_event, sums: Sums::default() };
        }
        let settled = source.history.until().saturating_sub(search.within_events).min(to);
        let next = settled.min(self.counted.saturating_add(EVENTS_PER_CALL)).max(self.counted);
        self.sums.add(source, grouping, (self.counted, next), search.within_events);
        self.counted = next;
        let mut sums = self.sums.clone();
        let is_complete = next >= settled;
        if is_complete {
            sums.add(source, grouping, (next, to), search.within_events);
        }
        let mut groups: Vec<_> = sums.groups.into_values().map(|one| (one, sums.categories.get(one.group))).collect();
        sort_by_key(&mut groups, |(one, _)| (std::cmp::Reverse((one.churned_bytes, one.allocations)), one.group));
        let length = to.saturating_sub(search.from_event).max(1);
        let progress = next.saturating_sub(search.from_event) as f64 / length as f64;
        TemporaryRows {
            groups,
            all_allocations: sums.all.allocations,
            all_bytes: sums.all.bytes,
            progress: if is_complete { 1.0 } else { progress },
        }
    }
}
