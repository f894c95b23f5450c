//! The allocations made between two moments, by group.

use std::cmp::Reverse;
use std::sync::Arc;

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Allocation, AllocationOrigin, AllocationRow, Definitions, DeviceLifetimes};

use super::live::CategoryBytes;
use crate::group::{GroupBy, Grouping, MemoryCategory};

/// The allocations that a group made between two moments.
///
/// A lifetime ends when the program frees the block, whether that is in the range or later.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeRow {
    /// Group number, see [`Grouping`].
    pub group: u32,
    /// Name of the group.
    pub name: Arc<str>,
    /// The bytes of each category, largest first; see [`common_category`](super::common_category).
    pub categories: Vec<(MemoryCategory, u64)>,
    /// Number of allocations.
    pub allocations: u64,
    /// Bytes of the allocations, after rounding.
    pub bytes: u64,
    /// Bytes that the program requested for the allocations.
    pub requested_bytes: u64,
    /// Number of these allocations that the program freed at any later moment. The fields about
    /// lifetimes count only these.
    pub freed: u64,
    /// Mean lifetime in events; 0 if none was freed.
    pub mean_lifetime_events: f64,
    /// Mean lifetime in nanoseconds; 0 if none was freed.
    pub mean_lifetime_ns: f64,
    /// Longest lifetime in events; 0 if none was freed.
    pub max_lifetime_events: u64,
    /// Longest lifetime in nanoseconds; 0 if none was freed.
    pub max_lifetime_ns: u64,
    /// Bytes of these allocations that are live at the end of the range.
    pub live_bytes_at_end: u64,
    /// Number of these allocations that are live at the end of the range.
    pub live_blocks_at_end: u64,
    /// Share of the bytes of all groups, from 0 to 1.
    pub share: f64,
}

/// The sums over some allocations of a group.
#[derive(Clone, Debug, Default)]
struct Sums {
    categories: CategoryBytes,
    allocations: u64,
    bytes: u64,
    requested_bytes: u64,
    freed: u64,
    lifetime_events: u128,
    lifetime_ns: u128,
    max_lifetime_events: u64,
    max_lifetime_ns: u64,
    live_bytes_at_end: u64,
    live_blocks_at_end: u64,
}

/// The sums, by group, of the allocations made between two moments, computed in steps.
///
/// ```
/// use vramscope_insight::group::{GroupBy, Grouping};
/// use vramscope_insight::sites::RangeGroups;
/// use vramscope_trace::{DeviceLifetimes, Recording};
///
/// let recording = Recording::new();
/// let lifetimes = DeviceLifetimes::default();
/// let mut by_site = Grouping::of(GroupBy::Site, &recording);
/// let mut range = RangeGroups::new(100, 200);
/// while !range.step(&lifetimes, &mut by_site, |moment| moment, None, 100_000) {
///     // Draw a frame.
/// }
/// assert!(range.rows(recording.definitions(), &mut by_site).is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct RangeGroups {
    from: u64,
    to: u64,
    /// The next row of the lifetimes, once known.
    next_row: Option<u32>,
    /// The share of the rows that have been added, from 0 to 1.
    progress: f64,
    groups: Vec<Sums>,
}

impl RangeGroups {
    /// Prepares the sums over the allocations made after the moment `from` and up to the moment
    /// `to`: by the events with the numbers `from` + 1 to `to`. Allocations whose event was not
    /// recorded are not counted.
    #[must_use]
    pub fn new(from: u64, to: u64) -> Self {
        Self { from, to, next_row: None, progress: 0.0, groups: Vec::new() }
    }

    /// Returns the share of the work that is done, from 0 to 1.
    #[must_use]
    pub fn progress(&self) -> f64 {
        self.progress
    }

    /// Adds up to `max_rows` allocations (at least one), and returns true once all are added.
    ///
    /// `time_ns` returns the time of the event with a number (moment); allocations that `keep`
    /// rejects are not counted. All steps need the same lifetimes and grouping; begin again if
    /// [`Grouping::update`] returns true in between. Takes about 40 ns for each allocation.
    pub fn step(
        &mut self,
        lifetimes: &DeviceLifetimes,
        grouping: &mut Grouping,
        time_ns: impl Fn(u64) -> u64,
        keep: Option<&dyn Fn(&Allocation) -> bool>,
        max_rows: u32,
    ) -> bool {
        let all = lifetimes.rows_started_in(self.from, self.to);
        let next = self.next_row.unwrap_or(all.start);
        let end = next.saturating_add(max_rows.max(1)).min(all.end);
        let origins: Vec<AllocationOrigin> = lifetimes.origins().collect();
        lifetimes.for_each_row(next..end, |row| {
            let is_kept = || keep.is_none_or(|keep| lifetimes.row(row.row).is_some_and(|one| keep(&one)));
            if let Some(origin) = origins.get(row.origin as usize).filter(|_| row.start_observed && is_kept()) {
                self.add((lifetimes, &row), origin, grouping, &time_ns);
            }
        });
        self.next_row = Some(end.max(next));
        let rows = all.end.saturating_sub(all.start);
        let is_done = end >= all.end;
        self.progress = if is_done { 1.0 } else { f64::from(end.saturating_sub(all.start)) / f64::from(rows.max(1)) };
        is_done
    }

    /// Adds an allocation to its group.
    #[inline]
    fn add(
        &mut self,
        (lifetimes, row): (&DeviceLifetimes, &AllocationRow),
        origin: &AllocationOrigin,
        grouping: &mut Grouping,
        time_ns: &impl Fn(u64) -> u64,
    ) {
        let group = grouping.group_of_row(lifetimes, origin, row) as usize;
        if self.groups.len() <= group {
            self.groups.resize(group + 1, Sums::default());
        }
        let category = grouping.category_of_row(lifetimes, origin, row);
        let sums = &mut self.groups[group];
        sums.categories.add(category, row.size);
        sums.allocations += 1;
        sums.bytes = sums.bytes.saturating_add(row.size);
        sums.requested_bytes = sums.requested_bytes.saturating_add(row.requested);
        if let Some(until) = row.allocated_until {
            let events = until.saturating_sub(row.first_moment);
            let ns = time_ns(until).saturating_sub(time_ns(row.first_moment));
            sums.freed += 1;
            sums.lifetime_events = sums.lifetime_events.saturating_add(events.into());
            sums.lifetime_ns = sums.lifetime_ns.saturating_add(ns.into());
            sums.max_lifetime_events = sums.max_lifetime_events.max(events);
            sums.max_lifetime_ns = sums.max_lifetime_ns.max(ns);
        }
        if row.active_until.is_none_or(|until| until > self.to) {
            sums.live_bytes_at_end = sums.live_bytes_at_end.saturating_add(row.size);
            sums.live_blocks_at_end += 1;
        }
    }

    /// Returns the groups that made allocations so far, most bytes first, then by group number.
    #[must_use]
    pub fn rows(&self, definitions: &Definitions, grouping: &mut Grouping) -> Vec<RangeRow> {
        let total = self.groups.iter().fold(0u64, |total, sums| total.saturating_add(sums.bytes));
        let mean = |sum: u128, count: u64| if count == 0 { 0.0 } else { sum as f64 / count as f64 };
        let used = (0u32..).zip(&self.groups).filter(|(_, sums)| sums.allocations > 0);
        let mut rows: Vec<RangeRow> = used
            .map(|(group, sums)| RangeRow {
                group,
                name: grouping.cached_name(definitions, group),
                categories: sums.categories.sorted(),
                allocations: sums.allocations,
                bytes: sums.bytes,
                requested_bytes: sums.requested_bytes,
                freed: sums.freed,
                mean_lifetime_events: mean(sums.lifetime_events, sums.freed),
                mean_lifetime_ns: mean(sums.lifetime_ns, sums.freed),
                max_lifetime_events: sums.max_lifetime_events,
                max_lifetime_ns: sums.max_lifetime_ns,
                live_bytes_at_end: sums.live_bytes_at_end,
                live_blocks_at_end: sums.live_blocks_at_end,
                share: if total == 0 { 0.0 } else { sums.bytes as f64 / total as f64 },
            })
            .collect();
        sort_by_key(&mut rows, |row| (Reverse(row.bytes), row.group));
        rows
    }
}

/// Returns the allocations made after the moment `from` and up to the moment `to` by group, most
/// bytes first; `time_ns` returns the time of the event with a number, and `keep` accepts the
/// allocations to count. For ranges with millions of allocations, use [`RangeGroups`].
#[must_use]
pub fn groups_in_range(
    lifetimes: &DeviceLifetimes,
    definitions: &Definitions,
    grouping: &mut Grouping,
    time_ns: impl Fn(u64) -> u64,
    (from, to): (u64, u64),
    keep: Option<&dyn Fn(&Allocation) -> bool>,
) -> Vec<RangeRow> {
    let mut range = RangeGroups::new(from, to);
    while !range.step(lifetimes, grouping, &time_ns, keep, u32::MAX) {}
    range.rows(definitions, grouping)
}

/// The peak of a group's live bytes between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupPeak {
    /// Live bytes, including blocks that are pending free.
    pub bytes: u64,
    /// The first moment with these bytes; 0 if the group had no live bytes.
    pub moment: u64,
}

/// The peak of each group's live bytes between two moments, computed in steps.
#[derive(Clone, Debug, Default)]
pub struct GroupPeaks {
    from: u64,
    to: u64,
    /// The moment up to which the changes have been applied; `None` before the first step.
    at: Option<u64>,
    /// Live bytes and peak, by group number.
    groups: Vec<(u64, GroupPeak)>,
}

impl GroupPeaks {
    /// Prepares the peaks at the moments `from` to `to`, both included.
    #[must_use]
    pub fn new(from: u64, to: u64) -> Self {
        Self { from, to, at: None, groups: Vec::new() }
    }

    /// Applies the changes of the next `max_moments` moments (at least one), and returns true once
    /// all are applied. `None` if the lifetimes lack the list of changes, see
    /// [`DeviceLifetimes::changes`].
    ///
    /// All steps need the same lifetimes and grouping; begin again if [`Grouping::update`] returns
    /// true in between. Takes about 30 ns for each allocation and each free.
    pub fn step(&mut self, lifetimes: &DeviceLifetimes, grouping: &mut Grouping, max_moments: u64) -> Option<bool> {
        let at = self.at.unwrap_or_else(|| {
            self.start(lifetimes, grouping);
            self.from
        });
        let until = at.saturating_add(max_moments.max(1)).min(self.to);
        let changes = lifetimes.changes(at, until)?;
        self.at = Some(until.max(at));
        let origins: Vec<AllocationOrigin> = lifetimes.origins().collect();
        let by_category = grouping.by() == GroupBy::Category;
        // Rows are in the order of their starts, so that older ones have smaller numbers.
        let first_recorded = lifetimes.rows_started_in(grouping.first_event().saturating_add(1), u64::MAX).start;
        // The groups changed at one moment: one group, and at a full state any number of others.
        let mut moment = at;
        let mut changed = 0;
        let mut also_changed: Vec<usize> = Vec::new();
        for change in changes {
            let Some(origin) = origins.get(change.origin as usize) else { continue };
            // One category may differ between the allocations of an origin; nothing else does.
            let row = if by_category { lifetimes.row_times(change.row) } else { None };
            let group = match row {
                Some(row) => grouping.group_of_row(lifetimes, origin, &row),
                None => grouping.group_of_origin(origin, change.size, change.row < first_recorded),
            } as usize;
            if change.moment != moment {
                self.raise(changed, moment);
                also_changed.drain(..).for_each(|group| self.raise(group, moment));
                (moment, changed) = (change.moment, group);
            } else if group != changed {
                also_changed.push(group);
            }
            let live = self.live_mut(group);
            *live = if change.is_start { live.saturating_add(change.size) } else { live.saturating_sub(change.size) };
        }
        self.raise(changed, moment);
        also_changed.into_iter().for_each(|group| self.raise(group, moment));
        Some(until >= self.to)
    }

    /// Returns the peaks so far, by group number; groups numbered later have none.
    #[must_use]
    pub fn peaks(&self) -> Vec<GroupPeak> {
        self.groups.iter().map(|&(_, peak)| peak).collect()
    }

    /// Sets the live bytes and the peaks to the live bytes at the first moment.
    fn start(&mut self, lifetimes: &DeviceLifetimes, grouping: &mut Grouping) {
        for one in lifetimes.live_at(self.from) {
            let live = self.live_mut(grouping.group_of_allocation(&one) as usize);
            *live = live.saturating_add(one.size);
        }
        for group in 0..self.groups.len() {
            self.raise(group, self.from);
        }
    }

    /// Returns the live bytes of a group, to change them.
    #[inline]
    fn live_mut(&mut self, group: usize) -> &mut u64 {
        if self.groups.len() <= group {
            self.groups.resize(group + 1, (0, GroupPeak::default()));
        }
        &mut self.groups[group].0
    }

    /// Raises a group's peak to its live bytes once all changes of a moment have been applied.
    #[inline]
    fn raise(&mut self, group: usize, moment: u64) {
        if let Some((live, peak)) = self.groups.get_mut(group)
            && *live > peak.bytes
        {
            *peak = GroupPeak { bytes: *live, moment };
        }
    }
}

/// Returns the peak of each group's live bytes at the moments `from` to `to`, by group number;
/// groups numbered later have none. `None` if the lifetimes lack the list of changes, see
/// [`DeviceLifetimes::changes`]. For ranges with millions of allocations, use [`GroupPeaks`].
#[must_use]
pub fn group_peaks(lifetimes: &DeviceLifetimes, grouping: &mut Grouping, from: u64, to: u64) -> Option<Vec<GroupPeak>> {
    let mut peaks = GroupPeaks::new(from, to);
    while !peaks.step(lifetimes, grouping, u64::MAX)? {}
    Some(peaks.peaks())
}
