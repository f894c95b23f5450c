//! Layers: the groups that are shown on their own, and the layer of all others.

use std::cmp::Reverse;

use vramscope_trace::sort::sort_by_key;

use super::rows::{AllocationRows, Change};

/// Number of layers, with the layer of all other groups.
pub const LAYERS: usize = 25;
/// Index of the layer of the groups without a layer of their own.
pub const OTHER_LAYER: u8 = LAYERS as u8 - 1;

/// The layers are outdated once the peak of a group without a layer exceeds the lowest peak of a
/// group with a layer by this factor: 3 ÷ 2.
const OUTDATED_RATIO: (u64, u64) = (3, 2);

/// Bytes of every layer at one moment.
pub type LayerBytes = [u64; LAYERS];

/// The live bytes of one group, and their peak so far.
#[derive(Clone, Copy, Debug, Default)]
struct GroupBytes {
    live: u64,
    peak: u64,
}

/// The live bytes and peaks of all groups, from which the groups with a layer are chosen.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupPeaks {
    /// By group number.
    groups: Vec<GroupBytes>,
}

impl GroupPeaks {
    /// Maximum number of groups with a peak of their own; further groups never have a layer.
    const MAX_GROUPS: u32 = 1 << 20;

    /// Applies a change to the live bytes of its group. Returns the group's peak in bytes.
    #[inline]
    pub(super) fn apply(&mut self, change: &Change) -> u64 {
        if change.group >= Self::MAX_GROUPS {
            return 0;
        }
        let index = change.group as usize;
        if index >= self.groups.len() {
            self.groups.resize(index + 1, GroupBytes::default());
        }
        let group = &mut self.groups[index];
        if change.is_start {
            group.live = group.live.saturating_add(change.bytes);
            group.peak = group.peak.max(group.live);
        } else {
            group.live = group.live.saturating_sub(change.bytes);
        }
        group.peak
    }

    /// Applies up to `max_changes` changes of `rows` from `position` on, and returns how many.
    pub(super) fn apply_from(&mut self, rows: &impl AllocationRows, position: usize, max_changes: usize) -> usize {
        let end = rows.change_count().min(position.saturating_add(max_changes));
        for position in position..end {
            self.apply(&rows.change(position));
        }
        end.saturating_sub(position)
    }

    /// Returns the groups with the highest peaks, highest first.
    pub(super) fn highest(&self) -> Vec<u32> {
        let groups = (0..).zip(&self.groups).filter(|(_, group)| group.peak > 0);
        let mut order: Vec<(u64, u32)> = groups.map(|(index, group)| (group.peak, index)).collect();
        sort_by_key(&mut order, |&(peak, group)| (Reverse(peak), group));
        order.into_iter().take(usize::from(OTHER_LAYER)).map(|(_, group)| group).collect()
    }

    /// Returns the peak above which a group without a layer makes the layers outdated. `chosen` are
    /// the groups with a layer.
    pub(super) fn outdated_peak(&self, chosen: &[u32]) -> u64 {
        let peak = |&group: &u32| self.groups.get(group as usize).map_or(0, |group| group.peak);
        let (numerator, denominator) = OUTDATED_RATIO;
        (chosen.iter().map(peak).min().unwrap_or(0) / denominator).saturating_mul(numerator)
    }

    /// Returns the memory that the peaks occupy, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.groups.capacity() * size_of::<GroupBytes>()
    }
}

/// The layer of every group.
#[derive(Clone, Debug, Default)]
pub(super) struct LayerTable {
    /// The group of each layer but the last.
    pub(super) groups: Vec<u32>,
    /// The layer of each group, by group number; groups with higher numbers have [`OTHER_LAYER`].
    layer_of: Vec<u8>,
}

impl LayerTable {
    /// Gives a group a layer of its own, if one is left. Returns the index of the layer that shows
    /// the group.
    pub(super) fn add(&mut self, group: u32) -> u8 {
        if self.groups.len() >= usize::from(OTHER_LAYER) || group >= GroupPeaks::MAX_GROUPS {
            return OTHER_LAYER;
        }
        let layer = self.groups.len() as u8;
        let end = self.layer_of.len().max(group as usize + 1);
        self.layer_of.resize(end, OTHER_LAYER);
        self.layer_of[group as usize] = layer;
        self.groups.push(group);
        layer
    }

    /// Returns the index of the layer that shows a group; [`OTHER_LAYER`] if the group has none of
    /// its own.
    #[inline]
    pub(super) fn layer_of(&self, group: u32) -> u8 {
        self.layer_of.get(group as usize).copied().unwrap_or(OTHER_LAYER)
    }
}
