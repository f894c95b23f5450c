//! The selection: groups of blocks, and the events of the selected allocation.

use vramscope_insight::events::MatchSearch;
use vramscope_insight::group::GroupBy;
use vramscope_insight::pools::PartKind;
use vramscope_trace::Allocation;

use super::session::Session;
use crate::command::{Command, Direction};
use crate::linked_memory::LinkedMemory;
use crate::protocol::Surface;
use crate::view::{Topic, group_called};
use crate::views::ViewId;

impl Session {
    /// Clears the last selection: of a range, of an allocation, of a group, or within a view.
    pub(super) fn deselect(&mut self) {
        if self.model.selected_range().is_some() {
            self.input.drag = None;
            self.model.select_range(None);
        } else if self.model.selection().is_some() {
            self.model.select(None);
        } else if !std::mem::take(&mut self.details.lights.kept).is_empty() {
            self.model.everything_changed();
        } else if !self.deselect_group() {
            // The view that was used last comes first.
            let [left, right] = self.panes.views();
            let views = [Some(self.panes.active()), left, right].into_iter().flatten();
            let _ = views.into_iter().any(|view| self.views.get_mut(view).deselect());
        }
    }

    /// Lights up the memory that the element or the block under the pointer stands for, the most
    /// specific first; none when the pointer leaves it. `source` is the picture under the pointer.
    pub(super) fn light(&mut self, memory: Vec<LinkedMemory>, source: Option<Surface>) {
        let memory = self.with_other_names(memory);
        let lights = &self.details.lights;
        // The pointer leaves an element for a picture in this order: the picture hears of it first.
        let is_late = memory.is_empty() && source.is_none() && lights.source.is_some();
        if is_late || (lights.hovered == memory && (lights.source == source || memory.is_empty())) {
            return;
        }
        let lit = |session: &Self| {
            let lights = &session.details.lights;
            (lights.lit().first().copied(), lights.source, session.lit_on_stack())
        };
        let before = lit(self);
        let source = source.filter(|_| !memory.is_empty());
        (self.details.lights.hovered, self.details.lights.source) = (memory, source);
        let after = lit(self);
        // Elements light up with the next frame.
        self.input.hover_changed = true;
        if (before.0, before.1) != (after.0, after.1) {
            self.model.moment_changed();
        }
        if before.2 != after.2 {
            self.model.timeline_changed();
        }
    }

    /// Keeps memory lit, or no longer keeps it.
    pub(super) fn keep_light(&mut self, memory: LinkedMemory) {
        let is_kept = self.details.lights.kept.contains(&memory);
        self.details.lights.kept = if is_kept { Vec::new() } else { self.with_other_names(vec![memory]) };
        self.model.everything_changed();
    }

    /// Adds the other names of the memory of a category: as a part of the device and as groups of
    /// the grouping by category, of which it may have a recorded and an inferred one. The part
    /// comes first.
    pub(super) fn with_other_names(&mut self, memory: Vec<LinkedMemory>) -> Vec<LinkedMemory> {
        let [one] = memory[..] else { return memory };
        let grouping = self.analysis.shared.groupings.get(GroupBy::Category, self.model.recording());
        let category = match one {
            LinkedMemory::Part(PartKind::Category(category)) => category,
            LinkedMemory::Group(GroupBy::Category, group) => grouping.category_at(group),
            _ => return memory,
        };
        let groups = (0..grouping.len() as u32).filter(|&group| grouping.category_at(group) == category);
        let part = LinkedMemory::Part(PartKind::Category(category));
        std::iter::once(part).chain(groups.map(|group| LinkedMemory::Group(GroupBy::Category, group))).collect()
    }

    /// Clears the selected group. Returns false if none is selected.
    fn deselect_group(&mut self) -> bool {
        let pending = self.details.pending_group.take();
        let was_selected = self.model.selected_group().is_some() || pending.is_some();
        self.model.select_group(None);
        was_selected
    }

    /// Selects a group of blocks and goes to a moment if one is given; without, clears the
    /// selection of a selected group.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub(super) fn select_group(&mut self, group: (GroupBy, u32), moment: Option<u64>) -> Result<(), String> {
        self.details.pending_group = None;
        if let Some(moment) = moment {
            self.model.seek(moment).map_err(|error| error.to_string())?;
        }
        let is_selected = self.model.selected_group() == Some(group);
        self.model.select_group(Some(group).filter(|_| !is_selected || moment.is_some()));
        Ok(())
    }

    /// Selects the group that a link names, once the selected device has a block of that group.
    pub(super) fn find_pending_group(&mut self) {
        let Some((by, name)) = &self.details.pending_group else { return };
        let (recording, device) = (self.model.recording(), self.model.device_state());
        let grouping = self.analysis.shared.groupings.get(*by, recording);
        if let Some(group) = group_called(name, grouping, recording.definitions(), device) {
            self.model.select_group(Some((*by, group)));
            self.details.pending_group = None;
        }
    }

    /// Selects the group that a link names; `None` keeps the selected one.
    pub(super) fn select_linked_group(&mut self, group: Option<(GroupBy, String)>) {
        if group.is_some() {
            self.details.pending_group = group;
            self.model.moment_changed();
        }
    }

    /// Returns the grouping and the name of the selected group, or of the link's group while that
    /// is not found yet; `None` without either.
    pub(super) fn named_group(&self) -> Option<(GroupBy, String)> {
        let Some((by, group)) = self.model.selected_group() else { return self.details.pending_group.clone() };
        let grouping = self.analysis.shared.groupings.known(by)?;
        Some((by, grouping.group_name(self.model.recording().definitions(), group)))
    }

    /// Selects the next or previous block or free range, or with `whole_segments` the first one of
    /// the next or previous segment, and scrolls to it.
    ///
    /// # Errors
    /// If the device has no memory at the moment, or the first or last block is selected already.
    pub(super) fn select_neighbor(&mut self, direction: Direction, whole_segments: bool) -> Result<(), String> {
        let before = self.model.selection();
        self.model.select_neighbor(direction.is_forward(), whole_segments);
        let Some(address) = self.model.selection() else {
            return Err("this device has no memory at this moment".to_owned());
        };
        self.reveal(address);
        if before == Some(address) {
            let edge = if direction.is_forward() { "last" } else { "first" };
            return Err(format!("this is the {edge} {}", if whole_segments { "segment" } else { "block" }));
        }
        Ok(())
    }

    /// Scrolls the panes' pictures to an address.
    pub(super) fn reveal(&mut self, address: u64) {
        for view in self.panes.views().into_iter().flatten() {
            self.views.get_mut(view).reveal(self.model.device_state(), address);
        }
    }

    /// Goes to the next or previous event of the selected allocation; without one, of the
    /// allocations that used the selected address; without a selection, to an event that matches
    /// the filter of the list of events.
    ///
    /// # Errors
    /// If there is no such event, or it cannot be found yet: a message for the user.
    pub(super) fn go_to_event(&mut self, direction: Direction) -> Result<(), String> {
        self.model.playback.pause();
        self.analysis.event_search = None;
        match self.model.selection() {
            Some(address) => self.go_to_event_of(address, direction),
            None => {
                self.analysis.event_search = Some(direction);
                self.continue_event_search().map(|_| ())
            }
        }
    }

    /// Goes to the next or previous event of the selected allocation, or of all allocations that
    /// used `address`.
    fn go_to_event_of(&mut self, address: u64, direction: Direction) -> Result<(), String> {
        let (moment, is_forward) = (self.model.state().event(), direction.is_forward());
        let Some(lifetimes) = self.analysis.history.lifetimes(self.model.device()) else {
            return Err("the recording is still being read: try again".to_owned());
        };
        let events = |one: Allocation| [Some(one.first_moment), one.allocated_until, one.active_until];
        let is_ahead = |event: &u64| if is_forward { *event > moment } else { *event < moment };
        let nearest = |events: &mut dyn Iterator<Item = u64>| if is_forward { events.min() } else { events.max() };
        let selected = self.model.selected_since().and_then(|since| lifetimes.find(address, since));
        let found = match selected {
            Some((_, one)) => nearest(&mut events(one).into_iter().flatten().filter(is_ahead)),
            None => nearest(&mut lifetimes.history_of(address).flat_map(events).flatten().filter(is_ahead)),
        };
        let subject = if selected.is_some() { "the selected allocation" } else { "the selected address" };
        let which = if is_forward { "later" } else { "earlier" };
        let event = found.ok_or_else(|| format!("{subject} has no {which} event"))?;
        self.model.seek(event).map_err(|error| error.to_string())
    }

    /// Selects the range of moments in which the selected allocation is allocated; without a
    /// selected allocation, the range of the innermost span at the moment on the screen.
    ///
    /// # Errors
    /// If there is neither an allocation nor a span, or the allocation is not known yet: a message
    /// for the user.
    pub(super) fn select_range_of_selection(&mut self) -> Result<(), String> {
        let model = &self.model;
        let end = model.recording().end_event();
        let range = match model.selection() {
            Some(address) => {
                let since = model.selected_since().ok_or("nothing is allocated at the selected address")?;
                let lifetimes = self.analysis.history.lifetimes(model.device());
                let (_, one) = lifetimes
                    .and_then(|lifetimes| lifetimes.find(address, since.max(model.recording().first_event())))
                    .ok_or("the recording is still being read: try again")?;
                (one.first_moment, one.allocated_until.unwrap_or(end))
            }
            None => {
                let spans = model.marks().spans_at(model.recording().info(), model.device(), model.time_ns());
                let span = spans.first().ok_or(
                    "select an allocation, or go to a moment within a span (a named range that the program marked), \
                     to select its range of time",
                )?;
                (*span.event_numbers(end).start(), *span.event_numbers(end).end())
            }
        };
        self.model.select_range(Some(range));
        Ok(())
    }

    /// Continues the search for the next event that matches the filter of the list of events.
    /// Returns true if the search is not finished.
    ///
    /// # Errors
    /// If no event matches, or events cannot be read: a message for the user.
    pub(super) fn continue_event_search(&mut self) -> Result<bool, String> {
        let Some(direction) = self.analysis.event_search else { return Ok(false) };
        let view = ViewId::about(Topic::Events);
        let found = self.with_view(view, |view, context, shared| view.find_match(context, shared, direction));
        // The search goes on once the view has been loaded.
        let Some(found) = found else { return Ok(false) };
        if !matches!(found, Ok(MatchSearch::Unfinished)) {
            self.analysis.event_search = None;
        }
        match found? {
            MatchSearch::Unfinished => Ok(self.analysis.shared.missing.is_empty()),
            MatchSearch::Found(event) => {
                self.view_history.repeated(&Command::Event(direction));
                self.model.seek(event).map_err(|error| error.to_string())?;
                Ok(false)
            }
            MatchSearch::NotFound => {
                let is_filtered = !self.views.get_mut(view).options().filter().is_empty();
                let which = if is_filtered { "event that matches the filter" } else { "event" };
                Err(format!("there is no {} {which}", if direction.is_forward() { "later" } else { "earlier" }))
            }
        }
    }
}
