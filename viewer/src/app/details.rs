//! The details panel: its text on the selected allocation or on the object under the pointer.

use vramscope_insight::events::{EventRow, freed_allocation};
use vramscope_trace::{Allocation, EventKind, Replay};

use crate::details::{BlockEvents, Details, StackSection, elements, findings, of_absent_allocation, of_event_row};
use crate::model::Origin;
use crate::page_texts::LiveStatus;
use crate::protocol::PageUpdate;
use crate::ui::{Element, Node, Tag};
use crate::view::Topic;
use crate::views::ViewId;

use super::session::Session;

impl Session {
    /// Updates the texts and states of the page's elements.
    pub(super) fn update_texts(&mut self, status: LiveStatus) {
        let last_step = self.analysis.jobs.findings.last_step(self.model.device());
        self.details.texts.update(&mut self.model, self.details.hovered, status, last_step);
    }

    /// Adds the content of the details panel to `update` if it has changed.
    pub(super) fn update_details(&mut self, update: &mut PageUpdate) {
        let absent = self.model.selected_since().filter(|_| self.model.selected().is_none());
        let mut subject = match self.model.selection().zip(absent) {
            Some((address, since)) => self.absent_allocation(address, since),
            None => self.block_or_device(),
        };
        let mut is_first = self.model.selection().is_some();
        // Beside the list of events, the event of the moment is described, too: before the device,
        // after a block.
        if self.panes.surface_of(ViewId::about(Topic::Events)).is_some()
            && let Some(details) = self.event_details()
            && !self.is_of_selection(&details)
        {
            let event = elements::content(&details, self.model.recording().info(), false, self.details.editor.as_ref());
            let is_about_block = self.model.selection().is_some() || self.details.hovered.is_some();
            subject.splice(if is_about_block { subject.len()..subject.len() } else { 0..0 }, event);
            is_first = true;
        }
        let owners = Element { children: self.owners_elements(), ..Element::new(Tag::Section).with_class("owners") };
        let owners = Some(Node::from(owners)).filter(|_| self.details.owners.is_some());
        // What is under the pointer comes last, so that nothing else moves with the pointer.
        let mut content: Vec<Node> = owners.into_iter().chain(self.findings_section()).collect();
        content.splice(if is_first { 0..0 } else { content.len()..content.len() }, subject);
        if self.details.sent.as_ref() != Some(&content) {
            update.details = Some(content.clone());
            self.details.sent = Some(content);
        }
    }

    /// Returns the list of findings; nothing while it is empty.
    fn findings_section(&self) -> Option<Node> {
        let is_live = self.model.origin() == Origin::Live;
        findings::section(&self.analysis.jobs, is_live, &self.display.theme, title_of).map(Node::from)
    }

    /// Returns the details panel's content for the selection, else for the object under the
    /// pointer, else for the device.
    fn block_or_device(&mut self) -> Vec<Node> {
        let hit = self.model.selected().or(self.details.hovered);
        let moment = self.model.state().event();
        let found = hit.and_then(|hit| hit.block).and_then(|block| self.allocation_at(block.address, moment));
        let events = found.map(|one| self.events_of(&one));
        let free = found.filter(|_| self.details.texts.is_selection).and_then(|one| self.free_of(&one));
        let texts = &mut self.details.texts;
        let Some(details) = &mut texts.details else { return Vec::new() };
        if events.is_some() {
            details.events = events;
        }
        // The details are computed anew only if the moment or the pointer's subject has changed.
        details.stacks.retain(|section| section.heading != StackSection::FREED);
        details.stacks.extend(free);
        elements::content(details, self.model.recording().info(), texts.is_selection, self.details.editor.as_ref())
    }

    /// Returns true if the details of an event are about the selected allocation, whose own details
    /// already contain them.
    fn is_of_selection(&self, details: &Details) -> bool {
        let allocation = details.events.and_then(|events| events.allocation);
        allocation.is_some() && allocation == self.model.selection().zip(self.model.selected_since())
    }

    /// Returns the details of the event that led to the moment; `None` before the first event, and
    /// while the event is not loaded.
    fn event_details(&mut self) -> Option<Details> {
        let (index, event) = self.model.last_event()?;
        let number = index + 1;
        let (recording, history) = (self.model.recording(), self.history());
        let address = match event.kind {
            EventKind::BlockAllocated { address, .. }
            | EventKind::FreeRequested { address, .. }
            | EventKind::FreeCompleted { address, .. } => Some(address),
            _ => None,
        };
        let (mut freed, mut events) = (None, None);
        if let Some(address) = address.filter(|_| !history.is_stale(recording)) {
            let is_allocation = matches!(event.kind, EventKind::BlockAllocated { .. });
            if !is_allocation {
                freed = freed_allocation(history, event.device, address, index);
            }
            let since = freed.map_or(number, |block| block.since_event + 1);
            let known = history.lifetimes(event.device).and_then(|lifetimes| lifetimes.find(address, since));
            let known = known.filter(|_| is_allocation || freed.is_some());
            events = known.map(|(_, one)| self.events_of(&one));
        }
        let row = EventRow::new(number, event, freed.as_ref(), recording.definitions());
        Some(of_event_row(&row, events, recording))
    }

    /// Returns the call stack that freed an allocation; `None` if the allocation was not freed, or
    /// the event is not loaded yet.
    fn free_of(&mut self, one: &Allocation) -> Option<StackSection> {
        let index = one.free_requested_event()?;
        let key = (self.model.opened(), index);
        let recording = self.model.recording();
        let site = match self.details.free_site.filter(|(known, _)| *known == key) {
            Some((_, site)) => site,
            None => {
                let Ok(event) = Replay::new().event(recording, index) else {
                    if self.analysis.shared.missing.is_empty() {
                        self.analysis.shared.missing = recording.missing_between(index, index);
                    }
                    return None;
                };
                let site = event.and_then(|event| match event.kind {
                    EventKind::FreeRequested { site, .. } | EventKind::FreeCompleted { site, .. } => Some(site),
                    _ => None,
                });
                self.details.free_site = Some((key, site));
                site
            }
        };
        Some(StackSection::of_free(site?, self.model.recording().definitions()))
    }

    /// Returns the details panel's content for a selected allocation that is not live at the moment
    /// on the screen. It starts at `address`, and is live at the moment `since`.
    fn absent_allocation(&mut self, address: u64, since: u64) -> Vec<Node> {
        self.want_history();
        match self.allocation_at(address, since.max(self.model.recording().first_event())) {
            Some(one) => {
                let moment = self.model.state().event();
                let free = self.free_of(&one);
                let mut details = of_absent_allocation(&one, self.events_of(&one), moment, self.model.recording());
                details.stacks.extend(free);
                elements::content(&details, self.model.recording().info(), true, self.details.editor.as_ref())
            }
            None => {
                let progress = (!self.analysis.is_complete()).then(|| self.analysis.progress());
                elements::reading(progress)
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

/// Returns the title of the view that answers a question.
fn title_of(topic: Topic) -> &'static str {
    ViewId::about(topic).info().title
}
