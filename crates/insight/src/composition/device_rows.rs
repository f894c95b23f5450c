//! The allocations of a device's lifetimes with the groups of a [`Grouping`].

use vramscope_trace::{AllocationOrigin, AllocationRow, DeviceLifetimes, RowChange};

use super::rows::{AllocationRows, AllocationSpan, Change};
use crate::group::{GroupBy, Grouping};

/// Stands for the group of an allocation's origin.
const BY_ORIGIN: u8 = u8::MAX;

/// The group of every allocation of a device, for reading while the [`Grouping`] is used elsewhere.
///
/// It must be updated after the lifetimes or the grouping have grown, and made anew when
/// [`Grouping::update`] returns true.
#[derive(Clone, Debug, Default)]
pub struct RowGroups {
    /// By origin number: the group of allocations made by recorded events, and the group of
    /// allocations older than the recording.
    by_origin: Vec<[u32; 2]>,
    /// By origin number: whether an entry of `by_index` takes precedence over the origin's group.
    /// Empty unless allocations are grouped by category.
    is_by_index: Vec<bool>,
    /// By the base-2 logarithm of the size, the group; `None` unless allocations are grouped by
    /// size.
    by_size: Option<[u32; 64]>,
    /// Rows below this are older than the recording.
    older_row_end: u32,
    /// Allocations with a first moment up to this are older than the recording.
    last_older_moment: u64,
    /// By index among the device's allocations, the group; [`BY_ORIGIN`] if the category is
    /// unknown. Empty unless allocations are grouped by category.
    by_index: Vec<u8>,
    /// If allocations are grouped by size or category: rows below this have been read.
    row_end: u32,
}

impl RowGroups {
    /// Adds the groups of the allocations that `lifetimes` has gained since the last call. Update
    /// the grouping first.
    pub fn update(&mut self, grouping: &mut Grouping, lifetimes: &DeviceLifetimes) {
        // As in `Grouping::is_older`; rows are in the order of their first moments.
        self.last_older_moment = grouping.first_event().saturating_add(1);
        self.older_row_end = lifetimes.rows_started_in(0, self.last_older_moment).end;
        if grouping.by() == GroupBy::Size {
            let mut groups = self.by_size.unwrap_or([0; 64]);
            let origin = lifetimes.origins().next();
            let Some(origin) = origin else { return };
            lifetimes.for_each_row(self.row_end..lifetimes.row_end(), |row| {
                if let Some(class) = row.size.checked_ilog2() {
                    groups[class as usize] = grouping.group_of_origin(&origin, row.size, false);
                }
            });
            (self.by_size, self.row_end) = (Some(groups), lifetimes.row_end());
            return;
        }
        if grouping.by() == GroupBy::Category {
            self.add_categories(grouping, lifetimes);
        }
        for origin in lifetimes.origins().skip(self.by_origin.len()) {
            // Where the program recorded the category, the origin determines the group.
            let is_by_index = grouping.by() == GroupBy::Category && !grouping.is_recorded(origin.site);
            if grouping.by() == GroupBy::Category {
                self.is_by_index.push(is_by_index);
            }
            self.by_origin.push([false, true].map(|is_older| match is_by_index {
                true => grouping.group_of_site(origin.site, is_older),
                false => grouping.group_of_origin(&origin, 0, is_older),
            }));
        }
    }

    /// Adds the groups of new allocations, which are grouped by category.
    fn add_categories(&mut self, grouping: &mut Grouping, lifetimes: &DeviceLifetimes) {
        let origins: Vec<AllocationOrigin> = lifetimes.origins().collect();
        let groups = &mut self.by_index;
        lifetimes.for_each_row(self.row_end..lifetimes.row_end(), |row| {
            let origin = origins.get(row.origin as usize).copied().unwrap_or_default();
            let known = grouping.categories().of_row(lifetimes, origin.site, &row);
            let group = known.map(|known| grouping.group_with_category(origin.site, Some(known).into(), false));
            groups.push(group.and_then(|group| u8::try_from(group).ok()).unwrap_or(BY_ORIGIN));
        });
        self.row_end = lifetimes.row_end();
    }

    /// Returns the group of an allocation.
    #[inline]
    pub(super) fn group_of(&self, lifetimes: &DeviceLifetimes, one: &AllocationRow) -> u32 {
        self.group(lifetimes, one.row, one.first_moment <= self.last_older_moment, (one.origin, one.size))
    }

    /// Returns the group of an allocation, by its row, whether it is older than the recording, its
    /// origin and size.
    #[inline]
    fn group(&self, lifetimes: &DeviceLifetimes, row: u32, is_older: bool, (origin, size): (u32, u64)) -> u32 {
        if let Some(groups) = &self.by_size {
            return groups[size.checked_ilog2().unwrap_or(0) as usize];
        }
        if self.is_by_index.get(origin as usize) == Some(&true) {
            let group = lifetimes.index_of_row(row).and_then(|index| self.by_index.get(index));
            if let Some(group) = group.filter(|group| **group != BY_ORIGIN) {
                return u32::from(*group);
            }
        }
        self.by_origin.get(origin as usize).map_or(0, |groups| groups[usize::from(is_older)])
    }
}

/// The allocations of a device and their groups. The lifetimes must contain their changes
/// ([`LifetimesBuilder::with_changes`](vramscope_trace::LifetimesBuilder::with_changes)).
#[derive(Clone, Copy, Debug)]
pub struct DeviceRows<'a> {
    /// The allocations.
    pub lifetimes: &'a DeviceLifetimes,
    /// Their groups.
    pub groups: &'a RowGroups,
}

impl AllocationRows for DeviceRows<'_> {
    fn change_count(&self) -> usize {
        self.lifetimes.change_count()
    }

    #[inline]
    fn change(&self, position: usize) -> Change {
        let Some(RowChange { moment, row, is_start, is_relabel, size, origin }) = self.lifetimes.change_at(position)
        else {
            return Change { moment: u64::MAX, row: 0, is_start: true, is_relabel: false, bytes: 0, group: 0 };
        };
        Change {
            moment,
            row,
            is_start,
            is_relabel,
            bytes: size,
            group: self.groups.group(self.lifetimes, row, row < self.groups.older_row_end, (origin, size)),
        }
    }

    #[inline]
    fn span(&self, row: u32) -> AllocationSpan {
        let Some(one) = self.lifetimes.row_times(row) else { return AllocationSpan::default() };
        let group = self.groups.group_of(self.lifetimes, &one);
        let AllocationRow { size, first_moment, active_until, .. } = one;
        AllocationSpan { first_moment, end: active_until.unwrap_or(u64::MAX), size, group }
    }

    #[inline]
    fn address(&self, row: u32) -> u64 {
        self.lifetimes.address_of_row(row).unwrap_or(0)
    }
}
