//! The details panel: what it says of the selected allocation or of what is under the pointer.

use vramscope_trace::Allocation;

use crate::details::{BlockEvents, of_absent_allocation};
use crate::protocol::Frame;
use crate::ui::Node;
use crate::views;

use super::core::Session;

impl Session {
    /// Adds the content of the details panel to `frame` if it has changed.
    pub(super) fn update_details(&mut self, frame: &mut Frame) {
        let absent = self.model.selected_since().filter(|_| self.model.selected().is_none());
        let content = match self.model.selection().zip(absent) {
            Some((address, since)) => self.absent_allocation(address, since),
            None => self.block_or_device(),
        };
        if self.sent_details.as_ref() != Some(&content) {
            frame.details = Some(content.clone());
            self.sent_details = Some(content);
        }
    }

    /// Returns the content for the selection, else for what is under the pointer, else for the
    /// device.
    fn block_or_device(&mut self) -> Vec<Node> {
        let hit = self.scene.selected.or(self.scene.hovered);
        let moment = self.model.state().event();
        let found = hit.and_then(|hit| hit.block).and_then(|block| self.allocation_at(block.address, moment));
        let events = found.map(|one| self.events_of(&one));
        let texts = &mut self.scene.texts;
        let Some(details) = &mut texts.details else { return Vec::new() };
        if events.is_some() {
            details.events = events;
        }
        views::details::content(details, texts.is_selection, self.editor.as_ref())
    }

    /// Returns the content for a selected allocation that is not live at the moment.
    fn absent_allocation(&mut self, address: u64, since: u64) -> Vec<Node> {
        self.want_history();
        match self.allocation_at(address, since.max(self.model.recording().first_event())) {
            Some(one) => {
                let moment = self.model.state().event();
                let details = of_absent_allocation(&one, self.events_of(&one), moment, self.model.recording());
                views::details::content(&details, true, self.editor.as_ref())
            }
            None => {
                let progress = (!self.analysis.is_complete()).then(|| self.analysis.progress());
                views::details::reading(progress)
            }
        }
    }

    /// Returns the allocation that contains an address at a moment, if the history has it.
    fn allocation_at(&self, address: u64, moment: u64) -> Option<Allocation> {
        if self.history().is_stale(self.model.recording()) {
            return None;
        }
        let lifetimes = self.history().lifetimes(self.model.device())?;
        lifetimes.find(address, moment).map(|(_, one)| one)
    }

    /// Returns the events of an allocation as far as the history has them.
    fn events_of(&self, one: &Allocation) -> BlockEvents {
        BlockEvents::new(one, |event| self.history().time_ns(event), self.analysis.is_complete())
    }
}
