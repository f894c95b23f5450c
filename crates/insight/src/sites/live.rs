//! The live bytes of each group at one moment.

use std::cmp::Reverse;
use std::sync::Arc;

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Allocation, Block, Definitions, DeviceLifetimes, DeviceState};

use crate::group::{Grouping, MemoryCategory};

/// The live blocks of a group at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupRow {
    /// Group number, see [`Grouping`].
    pub group: u32,
    /// Name of the group.
    pub name: Arc<str>,
    /// The bytes of each category, largest first; see [`common_category`].
    pub categories: Vec<(MemoryCategory, u64)>,
    /// Bytes of its live blocks, after rounding, including blocks that are pending free.
    pub bytes: u64,
    /// Bytes of its live blocks that are pending free.
    pub pending_bytes: u64,
    /// Bytes that the program requested for its live blocks.
    pub requested_bytes: u64,
    /// Number of its live blocks.
    pub blocks: u64,
    /// Share of the live bytes of all groups, from 0 to 1.
    pub share: f64,
}

/// Returns the category that all blocks have, from their bytes by category; `None` if they differ.
#[must_use]
pub fn common_category(categories: &[(MemoryCategory, u64)]) -> Option<MemoryCategory> {
    if let [(category, _)] = categories { Some(*category) } else { None }
}

/// The bytes of some blocks by category. There are few categories in a group.
#[derive(Clone, Debug, Default)]
pub(super) struct CategoryBytes(Vec<(MemoryCategory, u64)>);

impl CategoryBytes {
    /// Adds a block of `bytes` bytes.
    #[inline]
    pub(super) fn add(&mut self, category: MemoryCategory, bytes: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == category) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes),
            None => self.0.push((category, bytes)),
        }
    }

    /// Returns the bytes of each category, largest first.
    pub(super) fn sorted(&self) -> Vec<(MemoryCategory, u64)> {
        let mut categories = self.0.clone();
        sort_by_key(&mut categories, |&(category, bytes)| (Reverse(bytes), category));
        categories
    }
}

/// The sums over some blocks of a group.
#[derive(Clone, Debug, Default)]
struct Sums {
    bytes: u64,
    pending_bytes: u64,
    requested_bytes: u64,
    blocks: u64,
    categories: CategoryBytes,
}

/// The sums of all groups, by group number.
#[derive(Debug, Default)]
struct SumsByGroup(Vec<Sums>);

impl SumsByGroup {
    /// Adds a block to its group.
    fn add(&mut self, group: u32, category: MemoryCategory, size: u64, requested: u64, pending_free: bool) {
        let index = group as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, Sums::default());
        }
        let sums = &mut self.0[index];
        sums.categories.add(category, size);
        sums.bytes = sums.bytes.saturating_add(size);
        sums.requested_bytes = sums.requested_bytes.saturating_add(requested);
        sums.blocks += 1;
        if pending_free {
            sums.pending_bytes = sums.pending_bytes.saturating_add(size);
        }
    }

    /// Returns the groups with blocks as rows, largest first, then by group number.
    fn into_rows(self, definitions: &Definitions, grouping: &mut Grouping) -> Vec<GroupRow> {
        let total = self.0.iter().fold(0u64, |total, sums| total.saturating_add(sums.bytes));
        let used = (0u32..).zip(self.0).filter(|(_, sums)| sums.blocks > 0);
        let mut rows: Vec<GroupRow> = used
            .map(|(group, sums)| GroupRow {
                group,
                name: grouping.cached_name(definitions, group),
                categories: sums.categories.sorted(),
                bytes: sums.bytes,
                pending_bytes: sums.pending_bytes,
                requested_bytes: sums.requested_bytes,
                blocks: sums.blocks,
                share: if total == 0 { 0.0 } else { sums.bytes as f64 / total as f64 },
            })
            .collect();
        sort_by_key(&mut rows, |row| (Reverse(row.bytes), row.group));
        rows
    }
}

/// Returns the live blocks of a device by group, largest first. The cost is linear in the number of
/// live blocks.
#[must_use]
pub fn live_groups(device: &DeviceState, definitions: &Definitions, grouping: &mut Grouping) -> Vec<GroupRow> {
    groups_of(device.blocks(), definitions, grouping)
}

/// Returns some live blocks by group, largest first.
#[must_use]
pub fn groups_of<'a>(
    blocks: impl Iterator<Item = &'a Block>,
    definitions: &Definitions,
    grouping: &mut Grouping,
) -> Vec<GroupRow> {
    let mut sums = SumsByGroup::default();
    for block in blocks {
        let (group, category) = (grouping.group_of(block), grouping.category_of(block));
        sums.add(group, category, block.size, block.requested, block.pending_free);
    }
    sums.into_rows(definitions, grouping)
}

/// Returns the live blocks of a device at a moment by group, largest first: the rows that
/// [`live_groups`] returns for the memory state of that moment. The cost is that of
/// [`DeviceLifetimes::live_at`].
#[must_use]
pub fn groups_at(
    lifetimes: &DeviceLifetimes,
    moment: u64,
    definitions: &Definitions,
    grouping: &mut Grouping,
) -> Vec<GroupRow> {
    groups_of_allocations(lifetimes.live_at(moment), moment, definitions, grouping)
}

/// Returns some allocations that are live at a moment by group, largest first.
#[must_use]
pub fn groups_of_allocations(
    allocations: impl Iterator<Item = Allocation>,
    moment: u64,
    definitions: &Definitions,
    grouping: &mut Grouping,
) -> Vec<GroupRow> {
    let mut sums = SumsByGroup::default();
    for one in allocations {
        let (group, category) = (grouping.group_of_allocation(&one), grouping.category_of_allocation(&one));
        sums.add(group, category, one.size, one.requested, !one.is_allocated_at(moment));
    }
    sums.into_rows(definitions, grouping)
}
