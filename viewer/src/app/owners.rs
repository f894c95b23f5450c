//! Who holds the memory of a device: its parts in the details panel, and as rows for scripts.

use std::collections::HashMap;

use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::placement::recorded_settings;
use vramscope_insight::pools::{DeviceOwners, OwnerRow, free_memory, memory_tree, owner_rows};
use vramscope_insight::sites::{Caller, GroupRow, LineCallers, is_dominant, live_groups};
use vramscope_trace::{DeviceId, DeviceState, Replay};

use super::session::Session;
use crate::details::owners::{self, LineCalls};
use crate::ui::Node;
use crate::view::{Context, Topic};
use crate::views::ViewId;

/// Maximum number of lines whose calls of the model are named, largest first.
const MAX_NAMED_LINES: usize = 64;

/// Returns the lines that call the line with nearly all live bytes; none if no line has as much.
/// `rows` are the lines of the program, largest first.
fn callers(context: &Context<'_>, lines: &mut Grouping, rows: &[GroupRow]) -> Vec<Caller> {
    let all = context.state.counters().active;
    let Some(most) = rows.first().filter(|row| is_dominant(row.bytes, all)) else { return Vec::new() };
    let blocks = context.state.blocks().filter(|block| lines.group_of(block) == most.group);
    LineCallers::of_blocks(blocks).callers(context.definitions())
}

/// Returns the lines that call the model for the memory of a line, by its group number.
fn model_calls(context: &Context<'_>, lines: &Grouping, rows: &[GroupRow]) -> HashMap<u32, String> {
    let call = |row: &GroupRow| Some((row.group, lines.model_calls(context.definitions(), row.group)?));
    rows.iter().take(MAX_NAMED_LINES).filter_map(call).collect()
}

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
        let categories = self.analysis.history.categories_generation();
        let event = model.state().event();
        let key = [model.opened(), device.0.into(), event, counters.reserved, counters.active, categories];
        let free = model.free_memory();
        let known = self.details.owners.take().filter(|(known, _)| *known == key);
        let tree = match known {
            Some((_, tree)) => tree,
            None => self.with_views(|_, context, shared| {
                let info = context.recording.info();
                let owners = DeviceOwners::new(info, context.device, context.state);
                let lines = shared.groupings.get(GroupBy::Line, context.recording);
                let rows = live_groups(context.state, context.definitions(), lines);
                let calls = LineCalls {
                    callers: callers(context, lines, &rows),
                    model_calls: model_calls(context, lines, &rows),
                };
                (memory_tree(&owners, free, &rows), calls)
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
        let (info, history) = (recording.info(), &self.analysis.history);
        let lines = self.analysis.shared.groupings.get(GroupBy::Line, recording);
        let settings = recorded_settings(info);
        let rows = |(id, device): (DeviceId, &DeviceState)| {
            lines.set_categories(&history.categories(id));
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
