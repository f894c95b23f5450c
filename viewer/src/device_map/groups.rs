//! Groups of blocks, whose colors stay the same at all moments.

use vramscope_draw::GroupStyle;
use vramscope_insight::group::{DeviceCategories, Grouping};
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Block, Category, Definitions, DeviceState};

/// The groups of a recording's blocks in a fixed order: first the groups with blocks at the peak,
/// the largest first; then all others by number.
///
/// A group has a number, which a [`Grouping`] assigns, and an index, its position in this order.
/// The index selects the group's color and texture, so the largest groups have different colors.
#[derive(Clone, Debug)]
pub struct BlockGroups {
    grouping: Grouping,
    /// Index of each group, by group number; `None` for groups that have none yet.
    indexes: Vec<Option<u32>>,
    /// Number of each group, by index.
    order: Vec<u32>,
}

impl BlockGroups {
    /// Orders the groups of `grouping` by their bytes in `peak`, a device's memory at the peak of
    /// its allocated bytes. Groups without blocks there follow. Call it once for a recording.
    pub fn new(mut grouping: Grouping, peak: Option<&DeviceState>) -> Self {
        let mut bytes: Vec<u64> = Vec::new();
        for block in peak.into_iter().flat_map(DeviceState::blocks) {
            let group = grouping.group_of(block) as usize;
            if bytes.len() <= group {
                bytes.resize(group + 1, 0);
            }
            bytes[group] = bytes[group].saturating_add(block.size);
        }
        let mut order: Vec<u32> = (0..bytes.len() as u32).filter(|&group| bytes[group as usize] > 0).collect();
        sort_by_key(&mut order, |&group| std::cmp::Reverse(bytes[group as usize]));
        let mut groups = Self { grouping, indexes: Vec::new(), order: Vec::new() };
        for group in order {
            groups.index_of_group(group);
        }
        groups.add_known_groups();
        groups
    }

    /// Adds the groups of sites that a growing recording has defined since the last call. Returns
    /// true if blocks may have moved to other groups, so that the caller should create the groups
    /// anew; see [`Grouping::update`].
    pub fn update(&mut self, definitions: &Definitions) -> bool {
        let has_moved = self.grouping.update(definitions);
        self.add_known_groups();
        has_moved
    }

    /// Sets the index (from 0) of the recording's first event, which increases when the oldest part
    /// of a live recording is dropped.
    pub fn set_first_event(&mut self, first_event: u64) {
        self.grouping.set_first_event(first_event);
    }

    /// Sets the inferred categories of a device, whose blocks are shown from now on.
    pub fn set_categories(&mut self, categories: &DeviceCategories) {
        self.grouping.set_categories(categories);
    }

    /// Gives an index to every known group that has none, in the order of group numbers.
    fn add_known_groups(&mut self) {
        for group in 0..self.grouping.len() as u32 {
            self.index_of_group(group);
        }
    }

    /// Returns the index of a block's group in the fixed order. A group without an index gets the
    /// next one.
    pub fn index_of(&mut self, block: &Block) -> u32 {
        let group = self.grouping.group_of(block);
        self.index_of_group(group)
    }

    /// Returns the index in the fixed order of the group with the number `group`. A group without
    /// an index gets the next one.
    pub fn index_of_group(&mut self, group: u32) -> u32 {
        let at = group as usize;
        if self.indexes.len() <= at {
            self.indexes.resize(at + 1, None);
        }
        *self.indexes[at].get_or_insert_with(|| {
            self.order.push(group);
            (self.order.len() - 1) as u32
        })
    }

    /// Returns the style of the group with the number `group` in another grouping of the same
    /// recording by the same property; `Other` if it is not a group here. Not for categories: see
    /// [`GroupStyle::of_category`].
    pub fn style_of(&mut self, grouping: &Grouping, group: u32) -> GroupStyle {
        let known = self.grouping.same_group(grouping, group);
        known.map_or(GroupStyle::Other, |known| GroupStyle::Group(self.index_of_group(known) as usize))
    }

    /// Returns the number in `other`, a grouping of the same recording by the same property, of the
    /// group with the number `group`; `None` if it is not a group there.
    pub fn group_in(&self, other: &mut Grouping, group: u32) -> Option<u32> {
        other.same_group(&self.grouping, group)
    }

    /// Returns the number of the group at an index of the fixed order; `None` beyond the last one.
    pub fn group_at(&self, index: u32) -> Option<u32> {
        self.order.get(index as usize).copied()
    }

    /// Returns the name of the group at an index of the fixed order; empty beyond the last one.
    pub fn name(&self, definitions: &Definitions, index: u32) -> String {
        self.group_at(index).map(|group| self.grouping.group_name(definitions, group)).unwrap_or_default()
    }

    /// Returns a block's category, recorded or inferred.
    pub fn category_of(&self, block: &Block) -> Category {
        self.grouping.category_of(block).category
    }
}
