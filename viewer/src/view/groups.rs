//! Groups of blocks: their colors in the map, and the selected group.

use vramscope_draw::GroupStyle;
use vramscope_insight::group::{DeviceCategories, GroupBy, Grouping};
use vramscope_insight::incremental::RecordingIdentity;
use vramscope_insight::small_map::SmallMap;
use vramscope_trace::{Definitions, DeviceId, DeviceState, Peak, Recording, Replay};

use super::context::Context;
use super::table::Table;
use crate::device_map::BlockGroups;
use crate::model::AllDevices;

/// A cache of the groups of a recording's blocks, which determine the colors of blocks, for each
/// grouping.
#[derive(Default)]
pub struct BlockGroupCache {
    identity: Option<RecordingIdentity>,
    /// Whether the moment that orders the groups was not loaded when it was needed.
    is_provisional: bool,
    /// A number that changes when groups are ordered anew.
    revision: u64,
    groups: SmallMap<GroupBy, BlockGroups>,
    categories: DeviceCategories,
}

impl BlockGroupCache {
    /// Returns a number that changes when groups are ordered anew.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// Sets the inferred categories of a device, whose blocks are shown from now on.
    pub(super) fn set_categories(&mut self, categories: &DeviceCategories) {
        if !self.categories.is_same(categories) {
            self.categories = categories.clone();
            self.revision += 1;
            self.groups.values_mut().for_each(|groups| groups.set_categories(categories));
        }
    }

    /// Returns the groups of a recording. They are ordered by their bytes at the peak of a device:
    /// the first whose peak is at least nine tenths of the largest. Until that moment is loaded,
    /// they are ordered by their bytes in `memory`, at another moment.
    pub fn get(&mut self, by: GroupBy, recording: &Recording, memory: AllDevices<'_>) -> &mut BlockGroups {
        let peaks = recording.devices().filter_map(|device| Some((device, recording.series(device)?.peak_allocated())));
        let peaks: Vec<(DeviceId, Peak)> = peaks.collect();
        let most = peaks.iter().map(|(_, peak)| peak.bytes).max().unwrap_or(0);
        let (device, peak) = peaks.into_iter().find(|(_, peak)| peak.bytes >= most / 10 * 9).unwrap_or_default();
        let peak = peak.event;
        let identity = Some(RecordingIdentity::of(recording));
        let is_loaded = || recording.missing(peak).is_empty();
        if self.identity != identity || (self.is_provisional && is_loaded()) {
            let categories = std::mem::take(&mut self.categories);
            *self = Self { identity, revision: self.revision + 1, categories, ..Self::default() };
        }
        if let Some(groups) = self.groups.get_mut(by) {
            groups.set_first_event(recording.first_event());
            if groups.update(recording.definitions()) {
                self.revision += 1;
                self.groups.remove(by);
            }
        }
        let (is_provisional, categories) = (&mut self.is_provisional, &self.categories);
        self.groups.get_or_insert_with(by, || {
            let grouping = Grouping::of(by, recording).with_categories(categories);
            let mut replay = Replay::of_device(device);
            *is_provisional |= !is_loaded();
            let known = memory.known();
            let is_at_peak = known.event() == peak && known.device(device).is_some();
            let at_peak = if is_at_peak { None } else { replay.seek(recording, peak).ok() };
            let state = at_peak.unwrap_or(known);
            let any = || state.devices().next().map(|(_, memory)| memory);
            BlockGroups::new(grouping, state.device(device).or_else(any))
        })
    }
}

/// Returns the styles of groups of a grouping, in the order of `groups`, equal in all views.
/// `memory` is the memory of all devices at any moment.
pub(crate) fn group_styles(
    cache: &mut BlockGroupCache,
    (recording, memory): (&Recording, AllDevices<'_>),
    grouping: &Grouping,
    groups: &[u32],
) -> Vec<GroupStyle> {
    if grouping.by() == GroupBy::Category {
        return groups.iter().map(|&group| GroupStyle::of_category(grouping.category_at(group))).collect();
    }
    let known = cache.get(grouping.by(), recording, memory);
    groups.iter().map(|&group| known.style_of(grouping, group)).collect()
}

/// Sets the colors of those rows of a table that are about groups to the groups' colors.
pub(crate) fn paint_groups(cache: &mut BlockGroupCache, context: &Context<'_>, grouping: &Grouping, table: &mut Table) {
    let groups: Vec<u32> = table.rows.iter().filter_map(|row| row.group).collect();
    let styles = group_styles(cache, (context.recording, context.all_devices), grouping, &groups);
    for (row, style) in table.rows.iter_mut().filter(|row| row.group.is_some()).zip(styles) {
        row.color = Some(style.color(context.theme));
    }
}

/// Returns the number of the group that is called `name`, or `None`. Groups that depend on a
/// block's stream, pool or size are found if a block of the group is live on `device`.
pub(crate) fn group_called(
    name: &str,
    grouping: &mut Grouping,
    definitions: &Definitions,
    device: &DeviceState,
) -> Option<u32> {
    for block in device.blocks() {
        grouping.group_of(block);
    }
    (0..grouping.len() as u32).find(|&group| *grouping.cached_name(definitions, group) == *name)
}
