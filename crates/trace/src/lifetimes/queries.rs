//! Queries over the lifetimes of a device.

use std::collections::BTreeMap;
use std::ops::Range;

use super::allocation::Allocation;
use super::allocation_table::{AllocationTable, row_number};
use super::change_list::ChangeList;
use super::labels::Labels;
use super::live_sets::LiveSets;
use super::row_group::RowGroup;
use crate::metrics::Churn;
use crate::site::SiteId;

/// The number of active allocations of a group at one moment, and the sums of their allocated,
/// active and requested bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationSums {
    /// Number of active allocations.
    pub count: u64,
    /// Bytes of the active allocations that the program has not freed.
    pub allocated: u64,
    /// Bytes of all active allocations.
    pub active: u64,
    /// Bytes that the program requested for all active allocations.
    pub requested: u64,
}

impl AllocationSums {
    /// Adds an allocation that is active at `moment`; its bytes count as allocated only if the
    /// program has not freed it by then.
    fn add(&mut self, one: &Allocation, moment: u64) {
        self.count += 1;
        self.active = self.active.saturating_add(one.size);
        self.requested = self.requested.saturating_add(one.requested);
        if one.is_allocated_at(moment) {
            self.allocated = self.allocated.saturating_add(one.size);
        }
    }
}

/// The number of a device's allocations and their median lifetime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LifetimeSummary {
    /// Number of allocations made by recorded events.
    pub allocations: u64,
    /// The shortest time within which the program freed at least half of the allocations, in
    /// nanoseconds; `None` if it freed fewer than half of them.
    pub median_ns: Option<u64>,
}

/// The lifetimes of all allocations of one device, in the order of their starts.
///
/// Each allocation has a row number, which identifies it for as long as the lifetimes exist, also
/// while they grow. Row numbers increase in the order of the starts and are below
/// [`row_end`](Self::row_end), but not every number is used.
#[derive(Clone, Debug, Default)]
pub struct DeviceLifetimes {
    pub(super) rows: AllocationTable,
    pub(super) live_sets: LiveSets,
    /// All starts and ends in the order of their events; `None` if they are not kept.
    pub(super) changes: Option<ChangeList>,
    pub(super) labels: Labels,
    /// Number of allocations that are not stored, because all row numbers are used.
    pub(super) omitted_allocations: u64,
}

impl DeviceLifetimes {
    /// Returns the number of the device's allocations, without [omitted](Self::omitted_allocations)
    /// ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if the device has no allocation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many allocations the queries omit because the device has more than about two
    /// billion.
    #[must_use]
    pub fn omitted_allocations(&self) -> u64 {
        self.omitted_allocations
    }

    /// Returns the memory that the device's lifetimes occupy, in bytes, approximately.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.rows.memory_bytes()
            + self.live_sets.memory_bytes()
            + self.labels.memory_bytes()
            + self.changes.as_ref().map_or(0, ChangeList::memory_bytes)
    }

    /// Returns all allocations of the device in the order of their starts.
    pub fn iter(&self) -> impl Iterator<Item = Allocation> + '_ {
        let groups = self.rows.groups().iter().enumerate();
        groups
            .flat_map(move |(group_index, group)| (0..group.len()).map(move |index| self.rows.get(group_index, index)))
    }

    /// Returns the positions (group, index) of the rows whose first moment is after `after` and at
    /// most `to`. Groups for which `wanted` returns false are skipped.
    fn started_in<'a>(
        &'a self,
        after: u64,
        to: u64,
        wanted: impl Fn(&RowGroup) -> bool + 'a,
    ) -> impl Iterator<Item = (usize, usize)> + 'a {
        let all = self.rows.groups();
        let first = all.partition_point(|group| group.last_first_moment() <= after);
        let groups = all[first..].iter().zip(first..).take_while(move |(group, _)| group.base <= to);
        groups.filter(move |(group, _)| wanted(group)).flat_map(move |(group, group_index)| {
            (group.started_by(after)..group.started_by(to)).map(move |index| (group_index, index))
        })
    }

    /// Returns true if the block of the row at a position (group, index), which has started by
    /// `moment`, is still active then.
    fn is_active_at(&self, (group_index, index): (usize, usize), moment: u64) -> bool {
        let group = &self.rows.groups()[group_index];
        self.rows.active_until(group_index, group, index).is_none_or(|until| until > moment)
    }

    /// Returns the positions (group, index) of the allocations that are active at a moment, in no
    /// particular order.
    pub(super) fn live_positions_at(&self, moment: u64) -> impl Iterator<Item = (usize, usize)> + '_ {
        let (stored, (next_block, next_index)) = self.live_sets.at_or_before(moment);
        let stored = stored.iter().map(|&row| AllocationTable::position(row));
        let groups = self.rows.groups()[next_block.min(self.rows.groups().len())..].iter().enumerate();
        let since = groups.take_while(move |(_, group)| group.base <= moment).flat_map(move |(after, group)| {
            let from = if after == 0 { next_index } else { 0 };
            (from..group.started_by(moment).max(from)).map(move |index| (next_block + after, index))
        });
        stored.chain(since).filter(move |&position| self.is_active_at(position, moment))
    }

    /// Returns the allocations that are active (allocated or pending free) at a moment, each with
    /// the site that it has then, in no particular order.
    ///
    /// The cost is linear in the number of allocations that are active at this moment, or at the
    /// closest earlier moment for which the index stores the active allocations.
    pub fn live_at(&self, moment: u64) -> impl Iterator<Item = Allocation> + '_ {
        self.live_positions_at(moment).map(move |(group_index, index)| {
            let site = self.site_at(row_number(group_index, index), Some(moment));
            Allocation { site, ..self.rows.get(group_index, index) }
        })
    }

    /// Returns the site of row `row` at a moment; for `None`, the site at which it was allocated.
    #[inline]
    pub(super) fn site_at(&self, row: u32, moment: Option<u64>) -> SiteId {
        let (group_index, index) = AllocationTable::position(row);
        let last = self.rows.groups()[group_index].origin[index];
        self.rows.origin(self.labels.origin_at(row, moment, last)).unwrap_or_default().site
    }

    /// Returns the row numbers of the allocations that are active at a moment, in no particular
    /// order. The cost is that of [`live_at`](Self::live_at), without reading the allocations.
    pub fn live_rows_at(&self, moment: u64) -> impl Iterator<Item = u32> + '_ {
        self.live_positions_at(moment).map(|(group_index, index)| row_number(group_index, index))
    }

    /// Returns the allocations that are active at any moment from `from` to `to`, both included.
    ///
    /// The cost is linear in the number of allocations that are active at `from` or start by `to`.
    pub fn active_between(&self, from: u64, to: u64) -> impl Iterator<Item = Allocation> + '_ {
        let positions = self.live_positions_at(from).chain(self.started_in(from, to, |_| true));
        positions.map(|(group_index, index)| self.rows.get(group_index, index))
    }

    /// Returns the `count` largest of the allocations that are active at a moment, largest first,
    /// then by address. Fewer if fewer are active.
    ///
    /// The cost is that of [`live_at`](Self::live_at) and a partial sort.
    #[must_use]
    pub fn largest_at(&self, moment: u64, count: usize) -> Vec<Allocation> {
        let mut live: Vec<Allocation> = self.live_at(moment).collect();
        let order = |one: &Allocation| (std::cmp::Reverse(one.size), one.address);
        if count > 0 && count < live.len() {
            live.select_nth_unstable_by_key(count - 1, order);
        }
        live.truncate(count);
        live.sort_unstable_by_key(order);
        live
    }

    /// Returns the number and bytes of the allocations that are active at a moment, grouped by
    /// `key`: site, stream, pool, or category (through
    /// [`Definitions::site`](crate::Definitions::site)).
    ///
    /// The cost is that of [`live_at`](Self::live_at).
    pub fn sums_at<K: Ord>(&self, moment: u64, key: impl Fn(&Allocation) -> K) -> BTreeMap<K, AllocationSums> {
        let mut sums = BTreeMap::<K, AllocationSums>::new();
        for one in self.live_at(moment) {
            sums.entry(key(&one)).or_default().add(&one, moment);
        }
        sums
    }

    /// Returns every allocation whose block contained the byte at `address`, in the order of their
    /// starts.
    ///
    /// The cost is one check per group of 1,024 allocations, and a scan of each group whose address
    /// range contains `address`: of all groups if the program uses all of its memory all the time.
    pub fn history_of(&self, address: u64) -> impl Iterator<Item = Allocation> + '_ {
        let groups = self.rows.groups().iter().enumerate();
        groups.filter(move |(_, group)| group.may_contain(address)).flat_map(move |(group_index, group)| {
            (0..group.len())
                .filter(move |&index| {
                    let start = self.rows.address(group, index);
                    // The size is in another column, so it is read only if the address can
                    // match.
                    start <= address && address - start < self.rows.sizes(group, index).0
                })
                .map(move |index| self.rows.get(group_index, index))
        })
    }

    /// Returns the allocations made by events with an index in `made_by` that are still allocated
    /// at the moment `at`: leaks, if that is the end of the recording (or `u64::MAX`).
    ///
    /// The cost is linear in the number of allocations made in the range; groups of 1,024
    /// allocations without a survivor are skipped.
    pub fn survivors(&self, made_by: Range<u64>, at: u64) -> impl Iterator<Item = Allocation> + '_ {
        self.made_by(made_by, move |group| group.active_until() >= at).filter(move |one| one.is_allocated_at(at))
    }

    /// Returns the allocations made by events with an index in `made_by` that the program freed
    /// within `within_events` events (1 is the very next event).
    ///
    /// The cost is linear in the number of allocations made in the range.
    pub fn temporaries(&self, made_by: Range<u64>, within_events: u64) -> impl Iterator<Item = Allocation> + '_ {
        // Most allocations live longer, so the length is compared before the rest is read.
        let is_short = move |&(group_index, index): &(usize, usize)| {
            let group = &self.rows.groups()[group_index];
            let freed = self.rows.allocated_until(group_index, group, index);
            freed.is_some_and(|freed| freed - group.first_moment(index) <= within_events)
        };
        let short = self.positions_made_by(made_by, |_| true).filter(is_short);
        let allocations = short.map(|(group_index, index)| self.rows.get(group_index, index));
        allocations.filter(|one| one.free_requested_event().is_some())
    }

    /// Returns the number and bytes of the allocations made by events with an index in `made_by`,
    /// grouped by `key`.
    ///
    /// The cost is linear in the number of allocations made in the range.
    pub fn churn_by<K: Ord>(&self, made_by: Range<u64>, key: impl Fn(&Allocation) -> K) -> BTreeMap<K, Churn> {
        let mut churn = BTreeMap::<K, Churn>::new();
        for one in self.made_by(made_by, |_| true) {
            churn.entry(key(&one)).or_default().add(one.size);
        }
        churn
    }

    /// Returns the number and the median lifetime of the allocations made by recorded events.
    /// `time_ns` returns the time of the event with an index (from 0), in nanoseconds.
    ///
    /// A lifetime ends when the program frees the block, although a stream may still use it. An
    /// allocation without a recorded free counts as longer than all others. Time is linear in the
    /// number of allocations, with 8 bytes of memory for each.
    #[must_use]
    pub fn summary(&self, time_ns: impl Fn(u64) -> u64) -> LifetimeSummary {
        /// Stands for the lifetime, in nanoseconds, of an allocation without a recorded free.
        const NOT_FREED: u64 = u64::MAX;
        let lifetime_ns = |one: Allocation| match (one.allocating_event(), one.free_requested_event()) {
            (Some(allocated), Some(freed)) => time_ns(freed).saturating_sub(time_ns(allocated)),
            _ => NOT_FREED,
        };
        let mut lifetimes_ns: Vec<u64> = self.made_by(0..u64::MAX, |_| true).map(lifetime_ns).collect();
        let allocations = lifetimes_ns.len() as u64;
        let median_ns = lifetimes_ns.len().checked_sub(1).map(|last| *lifetimes_ns.select_nth_unstable(last / 2).1);
        LifetimeSummary { allocations, median_ns: median_ns.filter(|&median_ns| median_ns != NOT_FREED) }
    }

    /// Returns the allocations whose allocating event is in a range of event indexes. Groups of
    /// rows for which `wanted` returns false are skipped.
    fn made_by<'a>(
        &'a self,
        events: Range<u64>,
        wanted: impl Fn(&RowGroup) -> bool + 'a,
    ) -> impl Iterator<Item = Allocation> + 'a {
        let positions = self.positions_made_by(events, wanted);
        positions.map(|(group_index, index)| self.rows.get(group_index, index))
    }

    /// Returns the positions (group, index) of the allocations whose allocating event is in a range
    /// of event indexes. Groups of rows for which `wanted` returns false are skipped.
    fn positions_made_by<'a>(
        &'a self,
        events: Range<u64>,
        wanted: impl Fn(&RowGroup) -> bool + 'a,
    ) -> impl Iterator<Item = (usize, usize)> + 'a {
        // The event with index i leads to moment i + 1. An empty range must stay empty.
        let to = if events.is_empty() { events.start } else { events.end };
        let rows = self.started_in(events.start, to, wanted);
        rows.filter(|&(group_index, _)| !self.rows.groups()[group_index].start_unobserved)
    }
}
