//! A table with one row per allocation, in narrow columns.
//!
//! ```text
//! bytes  column
//!     2  first moment       moments since the first row of the group
//!     4  allocated for      moments until the program freed it; the two largest values mean "not
//!                           freed" and "too long"
//!     2  pending for        moments from there until the free was completed; likewise, and one value
//!                           for "end not observed"
//!     4  address            units of 256 bytes within a region of 1 TiB, given by the origin
//!     4  size               units of 256 bytes
//!     2  rounding           size − requested; the two largest values mean "size in bytes, requested
//!                           equal" and "sizes in the dictionary"
//!     4  origin             site, stream, pool and region, in a dictionary
//! ```
//!
//! Values that do not fit in their columns are kept in maps: lives of more than 2³² moments,
//! addresses that are not multiples of 256, and other sizes.

use std::collections::HashMap;

use super::allocation::{Allocation, AllocationOrigin, AllocationRow};
use super::dictionary::{CoarseHash, Dictionary};
use super::row_group::{GROUP_ROWS, RowGroup};
use crate::segment::Block;
use crate::site::SiteId;

/// Exclusive bound of row numbers: 2³¹, so that one bit remains to mark a row in a list. Further
/// allocations are counted but not stored.
pub(super) const MAX_ROWS: u32 = 1 << 31;
/// Maximum number of groups in an [`AllocationTable`]. One less than the row numbers allow, because
/// the highest number marks relabels in the list of changes.
const MAX_GROUPS: usize = MAX_ROWS as usize / GROUP_ROWS - 1;

/// Bytes in a unit of the columns `address` and `size`. Most addresses and sizes are multiples: RMM
/// aligns to 256 bytes, PyTorch to 512.
const UNIT: u64 = 256;
/// Base-2 logarithm of the size of a region, 1 TiB. The column `address` holds the address within a
/// region.
const REGION_BITS: u32 = 40;
/// Region number of addresses that are not multiples of [`UNIT`]; the column `address` then holds
/// an index in `AllocationTable::unaligned_addresses`.
const UNALIGNED: u32 = u32::MAX;

/// Value of the column `allocated_for`: the program has not freed the allocation.
const NOT_FREED: u32 = u32::MAX;
/// Value of the column `allocated_for`: the number of moments for which the block was allocated
/// does not fit and is in `AllocationTable::long_allocated`.
const TOO_LONG: u32 = u32::MAX - 1;
/// Value of the column `pending_for`: no free of the allocation was completed.
const NOT_COMPLETED: u16 = u16::MAX;
/// Value of the column `pending_for`: the number of moments for which the block was pending free
/// does not fit and is in `AllocationTable::long_pending`.
const PENDING_TOO_LONG: u16 = u16::MAX - 1;
/// Value of the column `pending_for`: the block was not pending free, and no event recorded its
/// end; a full state or a later allocation at its address showed that it was gone.
const END_UNOBSERVED: u16 = u16::MAX - 2;

/// Value of the column `rounding`: the column `size` holds the number of an entry of the dictionary
/// `AllocationTable::sizes`; the entry has the size and the requested size.
const IN_DICTIONARY: u16 = u16::MAX;
/// Value of the column `rounding`: the column `size` is in bytes, and the requested size equals it.
const IN_BYTES: u16 = u16::MAX - 1;

/// The site, stream, pool and address region of an allocation, stored once for all allocations that
/// have them in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RegionOrigin {
    origin: AllocationOrigin,
    region: u32,
}

impl CoarseHash for RegionOrigin {
    #[inline]
    fn coarse_hash(&self) -> u64 {
        let AllocationOrigin { site, stream, pool } = self.origin;
        let pool = pool.owner.1.wrapping_mul(31) ^ pool.owner.0.wrapping_mul(7) ^ pool.kind as u64;
        let small = u64::from(site.0) ^ u64::from(self.region).rotate_left(20) ^ pool.rotate_left(32);
        (small ^ stream.0.rotate_left(24)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// A size and a requested size, in bytes, that do not fit in the columns of an [`AllocationTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SizePair {
    size: u64,
    requested: u64,
}

impl CoarseHash for SizePair {
    #[inline]
    fn coarse_hash(&self) -> u64 {
        (self.size ^ self.requested.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// The completion of a free that does not fit in the column `pending_for`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LateCompletion {
    /// Number of moments for which the block was pending free.
    pending_for: u64,
    /// True if no event recorded the end of the allocation.
    end_unobserved: bool,
}

/// A table with a row for each allocation of a device, in the order of their first moments.
#[derive(Clone, Debug, Default)]
pub(super) struct AllocationTable {
    groups: Vec<RowGroup>,
    len: usize,
    origins: Dictionary<RegionOrigin>,
    sizes: Dictionary<SizePair>,
    unaligned_addresses: Vec<u64>,
    /// By row: "allocated for" values that are too large for the column.
    long_allocated: HashMap<u32, u64>,
    /// By row: completions that do not fit in the column "pending for".
    long_pending: HashMap<u32, LateCompletion>,
}

impl AllocationTable {
    /// Returns the number of allocations in the table, which has a row for each.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the groups of rows, in order.
    pub(super) fn groups(&self) -> &[RowGroup] {
        &self.groups
    }

    /// Adds a row for the allocation of `block` and returns its number, or `None` if all row
    /// numbers are used. `start_unobserved` is true if its allocating event is missing. First
    /// moments must not decrease.
    #[inline]
    pub(super) fn push(&mut self, first_moment: u64, start_unobserved: bool, block: &Block) -> Option<u32> {
        let fits = self.groups.last().is_some_and(|group| {
            group.len() < GROUP_ROWS
                && group.start_unobserved == start_unobserved
                && first_moment - group.base <= u64::from(u16::MAX)
        });
        if !fits {
            self.begin_group(first_moment, start_unobserved)?;
        }
        let &Block { address: first_address, site, stream, pool, .. } = block;
        let region = if first_address.is_multiple_of(UNIT) { (first_address >> REGION_BITS) as u32 } else { UNALIGNED };
        let address = if region == UNALIGNED {
            self.unaligned_addresses.push(first_address);
            self.unaligned_addresses.len() as u32 - 1
        } else {
            ((first_address & ((1 << REGION_BITS) - 1)) / UNIT) as u32
        };
        let (size, rounding) = self.encode_sizes(block.size, block.requested);
        let origin = self.origins.number(RegionOrigin { origin: AllocationOrigin { site, stream, pool }, region });
        let group_index = self.groups.len() - 1;
        let group = &mut self.groups[group_index];
        group.first_moment.push((first_moment - group.base) as u16);
        group.allocated_for.push(NOT_FREED);
        group.pending_for.push(NOT_COMPLETED);
        group.address.push(address);
        group.size.push(size);
        group.rounding.push(rounding);
        group.origin.push(origin);
        group.open_rows += 1;
        group.first_address = group.first_address.min(first_address);
        group.end_address = group.end_address.max(first_address.saturating_add(block.size));
        self.len += 1;
        Some(row_number(group_index, group.len() - 1))
    }

    /// Adds an empty group whose rows have first moments from `base` on; `None` if there are
    /// [`MAX_GROUPS`] groups. `start_unobserved` is true for rows without a recorded allocating
    /// event.
    #[inline(never)]
    fn begin_group(&mut self, base: u64, start_unobserved: bool) -> Option<()> {
        if self.groups.len() == MAX_GROUPS {
            return None;
        }
        if let Some(last) = self.groups.last_mut() {
            last.shrink();
        }
        self.groups.push(RowGroup::new(base, start_unobserved, self.len));
        Some(())
    }

    /// Returns the values of the columns `size` and `rounding` for a size and a requested size in
    /// bytes.
    #[inline]
    fn encode_sizes(&mut self, size: u64, requested: u64) -> (u32, u16) {
        let units = size / UNIT;
        if size.is_multiple_of(UNIT)
            && units <= u64::from(u32::MAX)
            && let Some(rounding) = size.checked_sub(requested)
            && rounding < u64::from(IN_BYTES)
        {
            (units as u32, rounding as u16)
        } else if size == requested && size <= u64::from(u32::MAX) {
            (size as u32, IN_BYTES)
        } else {
            (self.sizes.number(SizePair { size, requested }), IN_DICTIONARY)
        }
    }

    /// Returns the size and the requested size, in bytes, of the row at `index` in `group`.
    #[inline]
    pub(super) fn sizes(&self, group: &RowGroup, index: usize) -> (u64, u64) {
        let size = group.size[index];
        match group.rounding[index] {
            IN_DICTIONARY => {
                let SizePair { size, requested } = *self.sizes.value(size);
                (size, requested)
            }
            IN_BYTES => (u64::from(size), u64::from(size)),
            rounding => {
                let size = u64::from(size) * UNIT;
                (size, size - u64::from(rounding))
            }
        }
    }

    /// Returns the address of the block of the row at `index` in `group`.
    #[inline]
    pub(super) fn address(&self, group: &RowGroup, index: usize) -> u64 {
        let address = group.address[index];
        match self.origins.value(group.origin[index]).region {
            UNALIGNED => self.unaligned_addresses[address as usize],
            region => (u64::from(region) << REGION_BITS) + u64::from(address) * UNIT,
        }
    }

    /// Returns the first moment after the program freed the allocation; `None` if it was not freed
    /// by the end. The row is at `index` in `group`, which has index `group_index`.
    #[inline]
    pub(super) fn allocated_until(&self, group_index: usize, group: &RowGroup, index: usize) -> Option<u64> {
        let allocated_for = match group.allocated_for[index] {
            NOT_FREED => return None,
            TOO_LONG => self.long_allocated.get(&row_number(group_index, index)).copied().unwrap_or(0),
            allocated_for => u64::from(allocated_for),
        };
        Some(group.first_moment(index) + allocated_for)
    }

    /// Returns the first moment at which the block is no longer active; `None` if it is active at
    /// the end. The row is at `index` in `group`, which has index `group_index`.
    #[inline]
    pub(super) fn active_until(&self, group_index: usize, group: &RowGroup, index: usize) -> Option<u64> {
        let allocated_until = self.allocated_until(group_index, group, index)?;
        match group.pending_for[index] {
            NOT_COMPLETED => None,
            END_UNOBSERVED => Some(allocated_until),
            PENDING_TOO_LONG => {
                self.long_pending.get(&row_number(group_index, index)).map(|late| allocated_until + late.pending_for)
            }
            pending_for => Some(allocated_until + u64::from(pending_for)),
        }
    }

    /// Returns the times, size and origin of the row at `index` in `group`, which has index
    /// `group_index`.
    // Inlined, so that a loop over all rows does not compute fields that the caller does not use.
    #[inline(always)]
    pub(super) fn row(&self, group_index: usize, group: &RowGroup, index: usize) -> AllocationRow {
        let (size, requested) = self.sizes(group, index);
        AllocationRow {
            row: row_number(group_index, index),
            origin: group.origin[index],
            size,
            requested,
            first_moment: group.first_moment(index),
            start_observed: !group.start_unobserved,
            allocated_until: self.allocated_until(group_index, group, index),
            active_until: self.active_until(group_index, group, index),
        }
    }

    /// Returns the site, stream and pool of each origin, in the order of their numbers.
    pub(super) fn origins(&self) -> impl ExactSizeIterator<Item = AllocationOrigin> + '_ {
        self.origins.values().iter().map(|known| known.origin)
    }

    /// Returns the site, stream and pool with the origin number `number`; `None` if no origin has
    /// it.
    pub(super) fn origin(&self, number: u32) -> Option<AllocationOrigin> {
        self.origins.values().get(number as usize).map(|known| known.origin)
    }

    /// Returns the allocation whose row is at `index` in the group with index `group_index`.
    pub(super) fn get(&self, group_index: usize, index: usize) -> Allocation {
        let group = &self.groups[group_index];
        let found = self.row(group_index, group, index);
        let AllocationRow { row, origin, size, requested, first_moment, start_observed, .. } = found;
        let AllocationOrigin { site, stream, pool } = self.origins.value(origin).origin;
        let end_unobserved = match group.pending_for[index] {
            END_UNOBSERVED => true,
            PENDING_TOO_LONG => self.long_pending.get(&row).is_some_and(|late| late.end_unobserved),
            _ => false,
        };
        Allocation {
            address: self.address(group, index),
            size,
            requested,
            stream,
            pool,
            site,
            first_moment,
            start_observed,
            allocated_until: found.allocated_until,
            active_until: found.active_until,
            end_observed: !end_unobserved,
        }
    }

    /// Gives the allocation of row `row` the site `site`. Returns the numbers of its origins before
    /// and after; `None` if it has this site already.
    pub(super) fn relabel(&mut self, row: u32, site: SiteId) -> Option<(u32, u32)> {
        let (group_index, index) = Self::position(row);
        let number = &mut self.groups[group_index].origin[index];
        let RegionOrigin { mut origin, region } = *self.origins.value(*number);
        if std::mem::replace(&mut origin.site, site) == site {
            return None;
        }
        let from = std::mem::replace(number, self.origins.number(RegionOrigin { origin, region }));
        Some((from, *number))
    }

    /// Returns the position of the row with number `row`: the index of its group, and its index in
    /// that group.
    pub(super) fn position(row: u32) -> (usize, usize) {
        (row as usize / GROUP_ROWS, row as usize % GROUP_ROWS)
    }

    /// Sets the first moment after the program freed the allocation of row `row`; does nothing if
    /// that moment is set already.
    #[inline]
    pub(super) fn free(&mut self, row: u32, moment: u64) {
        let (group_index, index) = Self::position(row);
        let group = &mut self.groups[group_index];
        if group.allocated_for[index] != NOT_FREED {
            return;
        }
        let allocated_for = moment - group.first_moment(index);
        group.allocated_for[index] = if allocated_for < u64::from(TOO_LONG) {
            allocated_for as u32
        } else {
            self.long_allocated.insert(row, allocated_for);
            TOO_LONG
        };
    }

    /// Sets the first moment at which the block of row `row` is no longer active. If no free was
    /// set, the block counts as freed at that moment, too. `end_unobserved` is true if no event
    /// recorded the end.
    #[inline]
    pub(super) fn end(&mut self, row: u32, moment: u64, end_unobserved: bool) {
        let (group_index, index) = Self::position(row);
        let pending_for = match self.allocated_until(group_index, &self.groups[group_index], index) {
            Some(allocated_until) => moment - allocated_until,
            None => {
                self.free(row, moment);
                0
            }
        };
        let group = &mut self.groups[group_index];
        group.open_rows = group.open_rows.saturating_sub(1);
        group.latest_end = group.latest_end.max(moment);
        group.pending_for[index] = match (pending_for, end_unobserved) {
            (0, true) => END_UNOBSERVED,
            (0.., false) if pending_for < u64::from(END_UNOBSERVED) => pending_for as u16,
            _ => {
                self.long_pending.insert(row, LateCompletion { pending_for, end_unobserved });
                PENDING_TOO_LONG
            }
        };
    }

    /// Frees the memory of the dictionaries and spare rows that only adding rows needs.
    pub(super) fn finish(&mut self) {
        if let Some(last) = self.groups.last_mut() {
            last.shrink();
        }
        self.groups.shrink_to_fit();
        self.origins.finish();
        self.sizes.finish();
        self.unaligned_addresses.shrink_to_fit();
    }

    /// Returns the memory that the table occupies, in bytes, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        let maps = self.unaligned_addresses.capacity() * 8
            + self.long_allocated.capacity() * 17
            + self.long_pending.capacity() * 25;
        let dictionaries = self.origins.memory_bytes() + self.sizes.memory_bytes();
        // All groups but the last have no spare rows.
        let last = self.groups.last().map_or(0, |last| last.spare_rows());
        let rows = (self.len + last) * RowGroup::ROW_BYTES;
        rows + self.groups.capacity() * size_of::<RowGroup>() + maps + dictionaries
    }
}

/// Returns the number of the row at `index` in the group with index `group`.
pub(super) fn row_number(group: usize, index: usize) -> u32 {
    (group * GROUP_ROWS + index) as u32
}
