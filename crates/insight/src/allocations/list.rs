//! A filtered and sorted list of allocations.

use std::ops::Range;

use vramscope_trace::sort::sort_by;
use vramscope_trace::{
    Allocation, AllocationOrigin, AllocationRow, Definitions, DeviceId, DeviceLifetimes, Recording, SiteId, site_name,
};

use super::lazy_sort::LazySort;
use super::order::{AllocationOrder, SortKey};
use crate::history::History;
use crate::query::{Matcher, Now, Query, ScanProgress, age_of};

/// Cost of naming one site, expressed as the number of rows that are visited in that time.
const ROWS_PER_NAME: u64 = 64;
/// Bits of an entry below its sort key; they hold the row number.
const ROW_BITS: u32 = 32;

/// The allocations to which a query is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// All allocations of the recording.
    #[default]
    All,
    /// Allocations that are live (active) at the list's moment.
    Live,
    /// Allocations made by the events with the numbers `from` to `to`, both included.
    MadeIn {
        /// Number of the first event.
        from: u64,
        /// Number of the last event.
        to: u64,
    },
    /// Allocations that are live (active) at any moment from `from` to `to`, both included.
    LiveIn {
        /// The first moment.
        from: u64,
        /// The last moment.
        to: u64,
    },
}

/// The history from which a list reads allocations. Pass one recording's history in every call.
#[derive(Clone, Copy, Debug)]
pub struct AllocationSource<'a> {
    /// The lifetimes and times.
    pub history: &'a History,
    /// The recording's definitions.
    pub definitions: &'a Definitions,
}

/// One allocation of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedAllocation {
    /// Its row number in the device's lifetimes, which identifies it.
    pub row: u32,
    /// The allocation.
    pub allocation: Allocation,
    /// Time of its first moment, in nanoseconds since the recording's time 0.
    pub start_ns: u64,
    /// Events from its first moment to the list's moment, or to its free if that was before;
    /// `None` if it starts later.
    pub age_events: Option<u64>,
    /// Age in nanoseconds, see [`age_events`](ListedAllocation::age_events).
    pub age_ns: Option<u64>,
    /// Time from its first moment to the program's free, in nanoseconds; `None` if it is not freed.
    pub lifetime_ns: Option<u64>,
    /// Whether it is pending free at the list's moment.
    pub is_pending: bool,
}

/// The remaining work for a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing was visited.
    #[default]
    Start,
    /// Rows are visited: first the rows in `live` from the index `next_live` on, then `rows`.
    Filter { live: Vec<u32>, next_live: usize, rows: Range<u32> },
    /// The sites of the found allocations are named.
    Names,
    /// The list can be read.
    Finished,
}

/// The allocations of a device that match a query and a scope, in an order.
///
/// [`step`](Self::step) finds them; then [`rows`](Self::rows) returns any window. A list describes
/// the lifetimes as they were when it began: for a recording that grows, or once it
/// [is stale](Self::is_stale), create another.
#[derive(Clone, Debug, Default)]
pub struct AllocationList {
    device: DeviceId,
    scope: Scope,
    order: AllocationOrder,
    moment: u64,
    /// [`History::generation`] when the list began.
    generation: u64,
    matcher: Matcher,
    stage: Stage,
    origins: Vec<AllocationOrigin>,
    /// Found allocations while the list is built: sort key and row number.
    found: Vec<u128>,
    /// By site number, whether a found allocation has the site; used to sort by name.
    sites: Vec<bool>,
    /// The sites that are named so far.
    names: Vec<(String, SiteId)>,
    sorted: LazySort,
    total_bytes: u64,
    pending_bytes: u64,
    /// Work done so far, in visited rows.
    done: u64,
    /// Work in all, as far as it is known, in visited rows.
    total: u64,
}

impl AllocationList {
    /// Creates a list that has visited nothing yet. Ages are counted from `moment`, which is also
    /// the moment of [`Scope::Live`].
    #[must_use]
    pub fn new(device: DeviceId, matcher: Matcher, scope: Scope, order: AllocationOrder, moment: u64) -> Self {
        Self { device, scope, order, moment, matcher, total: 1, ..Self::default() }
    }

    /// Creates the list of every allocation whose block contained the byte at `address`, in the
    /// order of their starts. Ages are counted from `moment`.
    #[must_use]
    pub fn history_of(device: DeviceId, address: u64, moment: u64, recording: &Recording) -> Self {
        let matcher = Query::containing(address).compile(recording, &[], None);
        let order = AllocationOrder { key: SortKey::Start, is_descending: false };
        Self::new(device, matcher, Scope::All, order, moment)
    }

    /// Visits up to about `max_rows` allocations, and returns how far the list is. All visits to
    /// 1,330,000 allocations take about 30 ms.
    pub fn step(&mut self, source: &AllocationSource<'_>, max_rows: u64) -> ScanProgress {
        let Some(lifetimes) = source.history.lifetimes(self.device) else {
            self.generation = source.history.generation();
            self.finish();
            return self.progress();
        };
        if self.stage == Stage::Start {
            self.generation = source.history.generation();
        } else if self.is_stale(source.history) {
            return self.progress();
        }
        let mut budget = max_rows.max(1);
        while budget > 0 && self.stage != Stage::Finished {
            let used = match &self.stage {
                Stage::Start => self.start(lifetimes),
                Stage::Filter { .. } => self.filter(source, lifetimes, budget),
                Stage::Names => self.name_sites(source, budget),
                Stage::Finished => 0,
            };
            budget = budget.saturating_sub(used);
        }
        self.progress()
    }

    /// Returns how much of the work for the list is done.
    #[must_use]
    pub fn progress(&self) -> ScanProgress {
        let is_finished = self.stage == Stage::Finished;
        let done = if is_finished { self.total } else { self.done.min(self.total.saturating_sub(1)) };
        ScanProgress { done, total: self.total }
    }

    /// Finds which rows to visit. Returns the work that this took, in visited rows.
    fn start(&mut self, lifetimes: &DeviceLifetimes) -> u64 {
        let live_at = |moment| lifetimes.live_rows_at(moment).collect::<Vec<u32>>();
        let (live, rows) = match self.scope {
            Scope::All => (Vec::new(), 0..lifetimes.row_end()),
            Scope::Live => (live_at(self.moment), 0..0),
            Scope::MadeIn { from, to } => (Vec::new(), lifetimes.rows_started_in(from.saturating_sub(1), to)),
            Scope::LiveIn { from, to } if from <= to => (live_at(from), lifetimes.rows_started_in(from, to)),
            Scope::LiveIn { .. } => (Vec::new(), 0..0),
        };
        self.origins = lifetimes.origins().collect();
        self.total = (live.len() as u64 + rows.len() as u64).max(1);
        let work = live.len() as u64 / 4;
        self.stage = Stage::Filter { live, next_live: 0, rows };
        work
    }

    /// Visits up to `budget` rows, and returns how many.
    fn filter(&mut self, source: &AllocationSource<'_>, lifetimes: &DeviceLifetimes, budget: u64) -> u64 {
        let Stage::Filter { live, next_live, rows } = std::mem::replace(&mut self.stage, Stage::Finished) else {
            return 0;
        };
        let now = Now::new(self.moment, source.history);
        if next_live < live.len() {
            let count = usize::try_from(budget).unwrap_or(usize::MAX).min(live.len() - next_live);
            for &row in &live[next_live..next_live + count] {
                lifetimes.row_times(row).into_iter().for_each(|row| self.visit(source, lifetimes, &row, &now));
            }
            self.stage = Stage::Filter { live, next_live: next_live + count, rows };
            self.done += count as u64;
            return count as u64;
        }
        let count = u32::try_from(budget).unwrap_or(u32::MAX).min(rows.end - rows.start);
        let end = rows.start + count;
        lifetimes.for_each_row(rows.start..end, |row| self.visit(source, lifetimes, &row, &now));
        self.done += u64::from(count);
        if end < rows.end {
            self.stage = Stage::Filter { live: Vec::new(), next_live: 0, rows: end..rows.end };
        } else if self.order.key == SortKey::Site {
            let sites = self.sites.iter().filter(|&&is_used| is_used).count() as u64;
            self.total += sites * ROWS_PER_NAME;
            self.stage = Stage::Names;
        } else {
            self.finish();
        }
        u64::from(count)
    }

    /// Adds an allocation if it matches.
    #[inline]
    fn visit(
        &mut self,
        source: &AllocationSource<'_>,
        lifetimes: &DeviceLifetimes,
        row: &AllocationRow,
        now: &Now<'_>,
    ) {
        let Some(&AllocationOrigin { site, stream, pool }) = self.origins.get(row.origin as usize) else { return };
        if !self.matcher.matches_site(site) {
            return;
        }
        let needs_address = self.matcher.needs_address() || self.order.key == SortKey::Address;
        let address = if needs_address { lifetimes.address_of_row(row.row).unwrap_or(0) } else { 0 };
        let one = Allocation {
            address,
            size: row.size,
            requested: row.requested,
            stream,
            pool,
            site,
            first_moment: row.first_moment,
            start_observed: row.start_observed,
            allocated_until: row.allocated_until,
            active_until: row.active_until,
            end_observed: true,
        };
        let is_in_scope = one.start_observed || !matches!(self.scope, Scope::MadeIn { .. });
        if !is_in_scope || !self.matcher.matches_allocation(self.device, &one, now) {
            return;
        }
        self.total_bytes = self.total_bytes.saturating_add(one.size);
        if is_pending(&one, self.moment) {
            self.pending_bytes = self.pending_bytes.saturating_add(one.size);
        }
        let mut value = self.order.key.value(&one, self.moment, source.history);
        if self.order.key == SortKey::Site {
            // An undefined site is the unknown site.
            let index = Some(site.0 as usize).filter(|&index| index <= source.definitions.site_count()).unwrap_or(0);
            if index >= self.sites.len() {
                self.sites.resize(index + 1, false);
            }
            self.sites[index] = true;
            value = index as u64;
        } else if self.order.is_descending {
            value = !value;
        }
        self.found.push(u128::from(value) << ROW_BITS | u128::from(row.row));
    }

    /// Names some of the sites. Returns the work that this took, in visited rows. After the last,
    /// replaces the site numbers in the sort keys by the ranks of the names.
    fn name_sites(&mut self, source: &AllocationSource<'_>, budget: u64) -> u64 {
        let mut used = 0;
        let named = self.names.last().map_or(0, |(_, last)| last.0 as usize + 1);
        for (index, _) in self.sites.iter().enumerate().skip(named).filter(|&(_, &is_used)| is_used) {
            if used >= budget {
                self.done += used;
                return used;
            }
            let site = SiteId(u32::try_from(index).unwrap_or(0));
            self.names.push((site_name(source.definitions, site), site));
            used += ROWS_PER_NAME;
        }
        let mut names = std::mem::take(&mut self.names);
        sort_by(&mut names, Ord::cmp);
        let mut ranks = vec![0u64; self.sites.len()];
        for (rank, same) in names.chunk_by(|(one, _), (next, _)| one == next).enumerate() {
            same.iter().for_each(|(_, site)| ranks[site.0 as usize] = rank as u64);
        }
        for entry in &mut self.found {
            let rank = ranks.get((*entry >> ROW_BITS) as usize).copied().unwrap_or(0);
            let key = if self.order.is_descending { !rank } else { rank };
            *entry = u128::from(key) << ROW_BITS | u128::from(*entry as u32);
        }
        self.finish();
        used.max(self.found.len() as u64 / 8)
    }

    /// Passes the found allocations to the sorted list, so that they can be read.
    fn finish(&mut self) {
        self.sorted = LazySort::new(std::mem::take(&mut self.found));
        (self.sites, self.origins) = (Vec::new(), Vec::new());
        self.stage = Stage::Finished;
    }

    /// Returns true if the history has begun again since the list began, so that its row numbers
    /// are not valid any more: then the list stops and has no rows.
    #[must_use]
    pub fn is_stale(&self, history: &History) -> bool {
        self.stage != Stage::Start && self.generation != history.generation()
    }

    /// Returns the order of the list.
    #[must_use]
    pub fn order(&self) -> AllocationOrder {
        self.order
    }

    /// Returns the number of allocations found so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.found.len() + self.sorted.entries().len()
    }

    /// Returns true if no allocation was found so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of the allocations found so far, after rounding. For [`Scope::Live`] and
    /// an empty query these are the device's active bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Returns the part of [`total_bytes`](Self::total_bytes) that is pending free at the list's
    /// moment.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// Returns up to `count` allocations from position `offset` on; none before the list is
    /// finished.
    ///
    /// The first window takes about 5 ms at 1,330,000 allocations; later ones take less, the nearer
    /// they are to one that was read.
    pub fn rows(&mut self, source: &AllocationSource<'_>, offset: usize, count: usize) -> Vec<ListedAllocation> {
        let moment = self.moment;
        let Some(lifetimes) = source.history.lifetimes(self.device).filter(|_| !self.is_stale(source.history)) else {
            return Vec::new();
        };
        let rows = self.sorted.window(offset, count).iter().map(|&entry| entry as u32);
        rows.filter_map(|row| listed(source.history, lifetimes, row, moment)).collect()
    }

    /// Returns the position of the allocation with a row number in the list, or `None` if the list
    /// lacks it or is not finished. The cost is linear in the number of allocations (1 ms a
    /// million).
    #[must_use]
    pub fn position_of(&self, row: u32) -> Option<usize> {
        let entries = self.sorted.entries();
        let entry = *entries.iter().find(|&&entry| entry as u32 == row)?;
        Some(entries.iter().filter(|&&other| other < entry).count())
    }
}

/// Returns true if an allocation is pending free at a moment.
fn is_pending(one: &Allocation, moment: u64) -> bool {
    one.is_active_at(moment) && !one.is_allocated_at(moment)
}

/// Returns the allocation with a row number, as a list shows it at a moment.
fn listed(history: &History, lifetimes: &DeviceLifetimes, row: u32, moment: u64) -> Option<ListedAllocation> {
    let allocation = lifetimes.row(row)?;
    let time_ns = |moment: u64| history.time_ns(moment);
    let start_ns = time_ns(allocation.first_moment);
    let age = age_of(&allocation, moment);
    Some(ListedAllocation {
        row,
        start_ns,
        age_events: age.map(|(from, to)| to.saturating_sub(from)),
        age_ns: age.map(|(_, to)| time_ns(to).saturating_sub(start_ns)),
        lifetime_ns: allocation.allocated_until.map(|until| time_ns(until).saturating_sub(start_ns)),
        is_pending: is_pending(&allocation, moment),
        allocation,
    })
}
