//! Access to the allocations of a device by row number, and scans over their columns.

use std::ops::Range;

use super::allocation::{Allocation, AllocationOrigin, AllocationRow, RowChange};
use super::allocation_table::{AllocationTable, row_number};
use super::change_list::ChangeList;
use super::queries::DeviceLifetimes;
use super::row_group::{GROUP_ROWS, RowGroup};

impl DeviceLifetimes {
    /// Returns the exclusive bound of the row numbers.
    ///
    /// It can be much larger than [`len`](Self::len): numbers stay unused where more than 65,535
    /// events separate two allocations, and after full states that show allocations without an
    /// allocating event. For a list with an entry for each allocation, use
    /// [`index_of_row`](Self::index_of_row).
    #[must_use]
    pub fn row_end(&self) -> u32 {
        let groups = self.rows.groups();
        groups.last().map_or(0, |last| row_number(groups.len() - 1, last.len()))
    }

    /// Returns the index of the allocation with a row number among all allocations of the device in
    /// the order of their starts, from 0 to [`len`](Self::len) − 1; `None` if no allocation has the
    /// number. Like the row number, it never changes.
    #[inline]
    #[must_use]
    pub fn index_of_row(&self, row: u32) -> Option<usize> {
        self.position_of(row).map(|(_, group, index)| group.first_index + index)
    }

    /// Returns the group and the index in it of row `row`; `None` if the number is not used.
    #[inline]
    fn position_of(&self, row: u32) -> Option<(usize, &RowGroup, usize)> {
        let (group_index, index) = AllocationTable::position(row);
        let group = self.rows.groups().get(group_index).filter(|group| index < group.len())?;
        Some((group_index, group, index))
    }

    /// Returns the allocation with a row number, or `None` if no allocation has it.
    #[must_use]
    pub fn row(&self, row: u32) -> Option<Allocation> {
        self.position_of(row).map(|(group_index, _, index)| self.rows.get(group_index, index))
    }

    /// Returns the times, the size and the origin of the allocation with a row number, which is
    /// faster than [`row`](Self::row); `None` if no allocation has the number.
    #[inline]
    #[must_use]
    pub fn row_times(&self, row: u32) -> Option<AllocationRow> {
        self.position_of(row).map(|(group_index, group, index)| self.rows.row(group_index, group, index))
    }

    /// Returns the address of the first byte of the allocation with a row number, or `None` if no
    /// allocation has it.
    #[inline]
    #[must_use]
    pub fn address_of_row(&self, row: u32) -> Option<u64> {
        self.position_of(row).map(|(_, group, index)| self.rows.address(group, index))
    }

    /// Calls `each` with the times, size and origin of all allocations whose row number is in
    /// `rows`, in the order of their starts.
    ///
    /// Takes about 5 ns for each.
    #[inline(always)]
    pub fn for_each_row(&self, rows: Range<u32>, mut each: impl FnMut(AllocationRow)) {
        let (from, to) = (rows.start as usize, rows.end as usize);
        let groups = self.rows.groups().iter().enumerate().take(to.div_ceil(GROUP_ROWS)).skip(from / GROUP_ROWS);
        for (group_index, group) in groups {
            let base = group_index * GROUP_ROWS;
            let end = group.len().min(to.saturating_sub(base));
            for index in from.saturating_sub(base)..end {
                each(self.rows.row(group_index, group, index));
            }
        }
    }

    /// Calls `each` with the times, size and origin of all allocations that are active at any
    /// moment from `from` to `to`, both included: first the allocations active at `from`, in no
    /// particular order, then the allocations that start later, in the order of their starts.
    ///
    /// The cost is that of [`live_at`](Self::live_at), and about 5 ns for each that starts later.
    pub fn for_each_active_row(&self, from: u64, to: u64, mut each: impl FnMut(AllocationRow)) {
        for (group_index, index) in self.live_positions_at(from) {
            each(self.rows.row(group_index, &self.rows.groups()[group_index], index));
        }
        self.for_each_row(self.rows_started_in(from, to), each);
    }

    /// Returns the allocations whose row number is in `rows`, with their row numbers, in the order
    /// of their starts.
    pub fn rows(&self, rows: Range<u32>) -> impl Iterator<Item = (u32, Allocation)> + '_ {
        let (from, to) = (rows.start as usize, rows.end as usize);
        let groups = self.rows.groups().iter().enumerate().take(to.div_ceil(GROUP_ROWS)).skip(from / GROUP_ROWS);
        groups.flat_map(move |(group_index, group)| {
            let base = group_index * GROUP_ROWS;
            let indexes = from.saturating_sub(base)..group.len().min(to.saturating_sub(base));
            indexes.map(move |index| (row_number(group_index, index), self.rows.get(group_index, index)))
        })
    }

    /// Returns the row numbers of the allocations that started after the moment `after` and at most
    /// at the moment `to`, as a range; not every number in it is used.
    #[must_use]
    pub fn rows_started_in(&self, after: u64, to: u64) -> Range<u32> {
        let first_after = |moment: u64| {
            let groups = self.rows.groups();
            let group_index = groups.partition_point(|group| group.last_first_moment() <= moment);
            groups.get(group_index).map_or(self.row_end(), |group| row_number(group_index, group.started_by(moment)))
        };
        let start = first_after(after);
        start..first_after(to).max(start)
    }

    /// Returns, for each of `moments`, which must not decrease, how many allocations recorded
    /// events have made by then.
    pub fn counts_until(&self, moments: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
        let observed = |group: &RowGroup, rows: usize| if group.start_unobserved { 0 } else { rows as u64 };
        let mut groups = self.rows.groups().iter().peekable();
        let mut count_before = 0;
        moments.map(move |moment| {
            while let Some(group) = groups.next_if(|group| group.last_first_moment() <= moment) {
                count_before += observed(group, group.len());
            }
            count_before + groups.peek().map_or(0, |group| observed(group, group.started_by(moment)))
        })
    }

    /// Returns the sites, streams and pools that allocations have in common, by their numbers
    /// ([`AllocationRow::origin`]). The list is short and only grows at its end.
    ///
    /// Several numbers can stand for equal values.
    pub fn origins(&self) -> impl ExactSizeIterator<Item = AllocationOrigin> + '_ {
        self.rows.origins()
    }

    /// Returns the site, stream and pool with a number in [`origins`](Self::origins), or `None`
    /// beyond the last one.
    #[must_use]
    pub fn origin(&self, number: u32) -> Option<AllocationOrigin> {
        self.rows.origin(number)
    }

    /// Returns the allocation whose block contains the byte at `address` at a moment, with its row
    /// number; `None` if no block does. In an inconsistent history several blocks may: then the one
    /// that begins at `address`, else the newest.
    ///
    /// The cost is that of [`live_rows_at`](Self::live_rows_at).
    #[must_use]
    pub fn find(&self, address: u64, moment: u64) -> Option<(u32, Allocation)> {
        let contains = |&(group_index, index): &(usize, usize)| {
            let group = &self.rows.groups()[group_index];
            let start = self.rows.address(group, index);
            group.may_contain(address) && start <= address && address - start < self.rows.sizes(group, index).0
        };
        let begins_there = |&(group_index, index): &(usize, usize)| {
            self.rows.address(&self.rows.groups()[group_index], index) == address
        };
        let found = self.live_positions_at(moment).filter(contains);
        let (group_index, index) = found.max_by_key(|position| (begins_there(position), *position))?;
        Some((row_number(group_index, index), self.rows.get(group_index, index)))
    }

    /// Returns the starts and ends of allocations after the moment `after` and up to the moment
    /// `to`, in the order of their events; at one moment, in the order in which they take effect.
    /// `None` if they are not kept (see
    /// [`LifetimesBuilder::with_changes`](crate::LifetimesBuilder::with_changes)).
    ///
    /// Applied to the allocations that are [active](Self::live_rows_at) at `after`, they give the
    /// allocations that are active at `to`. Reading a change takes about 5 ns.
    #[must_use]
    pub fn changes(&self, after: u64, to: u64) -> Option<impl ExactSizeIterator<Item = RowChange> + '_> {
        let changes = self.changes.as_ref()?;
        let first_after = |moment: u64| {
            let (mut from, mut to) = (0, changes.len());
            while from < to {
                let middle = from.midpoint(to);
                if self.change(changes, middle).moment <= moment {
                    from = middle + 1;
                } else {
                    to = middle;
                }
            }
            from
        };
        let range = first_after(after)..first_after(to);
        Some(range.map(move |index| self.change(changes, index)))
    }

    /// Returns all starts and ends of allocations in the order of their events, see
    /// [`changes`](Self::changes); including the starts, at the first moment, of the allocations
    /// that are older than the recording. The list only grows at its end: a caller that has read n
    /// changes continues with `skip(n)`, which costs nothing.
    #[must_use]
    pub fn all_changes(&self) -> Option<impl ExactSizeIterator<Item = RowChange> + '_> {
        let changes = self.changes.as_ref()?;
        Some((0..changes.len()).map(move |index| self.change(changes, index)))
    }

    /// Returns the number of starts and ends in [`all_changes`](Self::all_changes); 0 if they are
    /// not kept.
    #[must_use]
    pub fn change_count(&self) -> usize {
        self.changes.as_ref().map_or(0, |changes| changes.len())
    }

    /// Returns the start or end at an index of [`all_changes`](Self::all_changes), or `None` beyond
    /// the last one. Takes about 5 ns.
    #[inline]
    #[must_use]
    pub fn change_at(&self, index: usize) -> Option<RowChange> {
        let changes = self.changes.as_ref().filter(|changes| index < changes.len())?;
        Some(self.change(changes, index))
    }

    /// Returns the start or end of an allocation at index `position` of `changes`, with its moment,
    /// size and origin.
    #[inline]
    fn change(&self, changes: &ChangeList, position: usize) -> RowChange {
        let Some((row, is_start)) = changes.get(position) else { return self.relabel_change(position) };
        let (group_index, index) = AllocationTable::position(row);
        let group = &self.rows.groups()[group_index];
        let moment = if is_start {
            group.first_moment(index)
        } else {
            // An entry for the end is only added with the end itself.
            self.rows.active_until(group_index, group, index).unwrap_or(u64::MAX)
        };
        let last = group.origin[index];
        let origin = if is_start { self.labels.origin_at(row, None, last) } else { last };
        RowChange { moment, row, is_start, is_relabel: false, size: self.rows.sizes(group, index).0, origin }
    }

    /// Returns the half of a relabel at index `position` of the list of changes: an end with the
    /// old origin, or a start with the new one.
    #[cold]
    fn relabel_change(&self, position: usize) -> RowChange {
        let (label, is_start) = self.labels.at_position(position);
        let (group_index, index) = AllocationTable::position(label.row);
        RowChange {
            moment: label.moment,
            row: label.row,
            is_start,
            is_relabel: true,
            size: self.rows.sizes(&self.rows.groups()[group_index], index).0,
            origin: if is_start { label.to } else { label.from },
        }
    }
}
