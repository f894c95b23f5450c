//! Groups of blocks: their colors in the heatmap, and the one that is selected.

use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_trace::{Definitions, MemoryState, Recording, Replay};

use crate::heatmap::BlockGroups;

use super::searches::RecordingIdentity;
use super::small_map::SmallMap;

/// The groups of a recording's blocks for the heatmap's colors, by what blocks are grouped by.
#[derive(Default)]
pub struct BlockGroupCache {
    identity: Option<RecordingIdentity>,
    groups: SmallMap<GroupBy, BlockGroups>,
}

impl BlockGroupCache {
    /// Returns the groups of a recording. They are ordered by their bytes at the event number
    /// `peak` when they are first needed; if that moment is not loaded, in `state`, another moment.
    pub fn get(&mut self, by: GroupBy, recording: &Recording, peak: u64, state: &MemoryState) -> &mut BlockGroups {
        let identity = Some(RecordingIdentity::of(recording));
        if self.identity != identity {
            *self = Self { identity, ..Self::default() };
        }
        if let Some(groups) = self.groups.get_mut(by) {
            groups.set_first_event(recording.first_event());
            if groups.update(recording.definitions()) {
                self.groups.remove(by);
            }
        }
        self.groups.get_or_insert_with(by, || {
            let (grouping, mut replay) = (Grouping::of(by, recording), Replay::new());
            let at_peak = if state.event() == peak { None } else { replay.seek(recording, peak).ok() };
            let devices = at_peak.unwrap_or(state).devices().map(|(_, device)| device);
            BlockGroups::new(grouping, devices)
        })
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
