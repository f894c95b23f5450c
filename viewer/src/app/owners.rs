//! Who holds the memory of a device: its parts in the details panel, and as rows for scripts.

use vramscope_insight::group::GroupBy;
use vramscope_insight::placement::recorded_settings;
use vramscope_insight::pools::{DeviceOwners, OwnerRow, free_memory, memory_tree, owner_rows};
use vramscope_insight::sites::live_groups;
use vramscope_trace::{DeviceId, DeviceState, Replay};

use super::session::Session;
use crate::details::owners;
use crate::ui::Node;
use crate::view::Topic;
use crate::views::ViewId;

impl Session {
    /// Returns the elements that show where the device's memory goes; none without memory.
    pub(super) fn owners_elements(&mut self) -> Vec<Node> {
        let (model, device) = (&self.model, self.model.device());
        let state = model.device_state();
        if state.counters().reserved == 0 && state.blocks().len() == 0 {
            self.details.owners = None;
            return Vec::new();
        }
        let counters = state.counters();
        let key = [model.opened(), device.0.into(), model.state().event(), counters.reserved, counters.active];
        let free = model.free_memory();
        let known = self.details.owners.take().filter(|(known, _)| *known == key);
        let tree = match known {
            Some((_, tree)) => tree,
            None => self.with_views(|_, context, shared| {
                let info = context.recording.info();
                let owners = DeviceOwners::new(info, context.device, context.state);
                let lines = shared.groupings.get(GroupBy::Line, context.recording);
                let lines = live_groups(context.state, context.definitions(), lines);
                memory_tree(&owners, free, &lines)
            }),
        };
        let view = ViewId::about(Topic::Holders).name();
        let elements = owners::elements(&tree, &self.display.theme, self.details.lights.kept.first().copied(), view);
        self.details.owners = Some((key, tree));
        elements
    }

    /// Returns the memory of all devices as rows: at a moment, given as an event number, or at the
    /// one on the screen.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub(super) fn owner_rows(&mut self, event: Option<u64>) -> Result<Vec<OwnerRow>, String> {
        let recording = self.model.recording();
        let mut replay = Replay::new();
        // The state on the screen has the selected device only.
        let event = event.unwrap_or_else(|| self.model.state().event());
        let event = event.clamp(recording.first_event(), recording.end_event());
        let state = replay.seek(recording, event).map_err(|error| error.to_string())?;
        let (info, lines) = (recording.info(), self.analysis.shared.groupings.get(GroupBy::Line, recording));
        let settings = recorded_settings(info);
        let rows = |(id, device): (DeviceId, &DeviceState)| {
            let lines = live_groups(device, recording.definitions(), lines);
            let owners = DeviceOwners::new(info, id, device);
            let tree = memory_tree(&owners, free_memory(device, &settings), &lines);
            let process = info.device(id).map_or("", |device| &device.process);
            let process = if process.is_empty() { &info.source } else { process };
            owner_rows(&tree, process, id)
        };
        Ok(state.devices().flat_map(rows).collect())
    }
}
