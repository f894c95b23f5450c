//! Groups of blocks: their colors in the heatmap, and the one that is selected.

use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_trace::{Definitions, MemoryState, Recording, Replay};

use crate::group_style::GroupStyle;
use crate::heatmap::BlockGroups;

use super::context::Context;
use super::searches::RecordingIdentity;
use super::small_map::SmallMap;
use super::table::Table;

/// The groups of a recording's blocks for their colors, by what blocks are grouped by.
#[derive(Default)]
pub struct BlockGroupCache {
    identity: Option<RecordingIdentity>,
    /// Whether the moment that orders the groups was not loaded when it was needed.
    is_provisional: bool,
    groups: SmallMap<GroupBy, BlockGroups>,
}

impl BlockGroupCache {
    /// Returns the groups of a recording. They are ordered by their bytes when most is allocated on
    /// a device; until that moment is loaded, by those in `state`, another moment.
    pub fn get(&mut self, by: GroupBy, recording: &Recording, state: &MemoryState) -> &mut BlockGroups {
        let peaks = recording.devices().filter_map(|device| Some(recording.series(device)?.peak_allocated()));
        let peak = peaks.max_by_key(|peak| peak.bytes).map_or(0, |peak| peak.event);
        let identity = Some(RecordingIdentity::of(recording));
        let is_loaded = || recording.missing(peak).is_empty();
        if self.identity != identity || (self.is_provisional && is_loaded()) {
            *self = Self { identity, ..Self::default() };
        }
        if let Some(groups) = self.groups.get_mut(by) {
            groups.set_first_event(recording.first_event());
            if groups.update(recording.definitions()) {
                self.groups.remove(by);
            }
        }
        let is_provisional = &mut self.is_provisional;
        self.groups.get_or_insert_with(by, || {
            let (grouping, mut replay) = (Grouping::of(by, recording), Replay::new());
            *is_provisional |= !is_loaded();
            let at_peak = if state.event() == peak { None } else { replay.seek(recording, peak).ok() };
            let devices = at_peak.unwrap_or(state).devices().map(|(_, device)| device);
            BlockGroups::new(grouping, devices)
        })
    }
}

/// Returns how groups of a grouping look, in the order of `groups`: the same in every view. `state`
/// is the memory of all devices at any moment.
pub fn group_styles(
    cache: &mut BlockGroupCache,
    (recording, state): (&Recording, &MemoryState),
    grouping: &Grouping,
    groups: &[u32],
) -> Vec<GroupStyle> {
    let of_category = |group: &u32| GroupStyle::of_category(grouping, *group);
    if grouping.by() == GroupBy::Category {
        return groups.iter().filter_map(of_category).collect();
    }
    let known = cache.get(grouping.by(), recording, state);
    groups.iter().map(|&group| known.style_of(grouping, group)).collect()
}

/// Gives the rows of a table that are about groups the groups' colors.
pub fn paint_groups(cache: &mut BlockGroupCache, context: &Context<'_>, grouping: &Grouping, table: &mut Table) {
    let groups: Vec<u32> = table.rows.iter().filter_map(|row| row.group).collect();
    let styles = group_styles(cache, (context.recording, context.all_devices), grouping, &groups);
    for (row, style) in table.rows.iter_mut().filter(|row| row.group.is_some()).zip(styles) {
        row.color = Some(style.color(context.theme));
    }
}

/// Returns the number of the group that is called `name`, or `None`. Groups that depend on a
/// block's stream, pool or size are found if such a block is live in `state`.
pub fn group_called(
    name: &str,
    grouping: &mut Grouping,
    definitions: &Definitions,
    state: &MemoryState,
) -> Option<u32> {
    for block in state.devices().flat_map(|(_, device)| device.blocks()) {
        grouping.group_of(block);
    }
    (0..grouping.len() as u32).find(|&group| *grouping.cached_name(definitions, group) == *name)
}
