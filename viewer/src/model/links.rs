//! Converts between a model's view and a [`Link`].

use vramscope_trace::FormatError;

use super::state::{Model, Origin};
use crate::bands::Band;
use crate::heatmap::ColorBy;
use crate::link::Link;

impl Model {
    /// Returns the link to the current view. Defaults are omitted.
    #[must_use]
    pub fn link(&self) -> Link {
        if let Some(link) = &self.pending_link {
            return link.clone();
        }
        let has_events = self.recording.end_event() > 0;
        Link {
            event: (has_events && !self.following).then(|| self.target_event()),
            range: self.span.part(),
            device: (has_events && self.recording.devices().count() > 1).then_some(self.device),
            select: self.selection,
            color_by: (self.color_by == ColorBy::Category).then_some(self.color_by),
            bands: self.band_choice,
        }
    }

    /// Returns the link to the current view for use when the live recording is loaded again. A view
    /// of the recording's last event has no moment in the link, so that it moves to the new end.
    #[must_use]
    pub fn link_to_resume(&self) -> Link {
        let link = self.link();
        let is_at_end = self.state().event() == self.recording.end_event();
        let event = self.live.linked_event.or(link.event.filter(|_| !is_at_end));
        Link { event, ..link }
    }

    /// Goes to the view of a link. If a live recording has not reached the link's moment, it is
    /// followed until it has.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn go_to_link(&mut self, link: &Link) -> Result<(), FormatError> {
        self.pending_link = None;
        if let Some(color_by) = link.color_by {
            self.color_by = color_by;
            self.moment_changed();
        }
        for band in Band::ALL {
            if let Some(is_shown) = link.bands.get(band) {
                self.band_choice.set(band, is_shown);
                self.changes.timeline = true;
            }
        }
        if self.origin == Origin::Live && self.recording.end_event() < link.event.unwrap_or(0).max(1) {
            self.pending_link = Some(link.clone());
            return Ok(());
        }
        if let Some(device) = link.device {
            self.set_device(device)?;
        }
        if link.select.is_some() {
            self.select(link.select);
        }
        if let Some(range) = link.range.clone() {
            self.change_span(|span, whole| span.set(range, whole));
        }
        let Some(event) = link.event else { return Ok(()) };
        self.seek(event)?;
        if self.origin == Origin::Live && event < self.recording.first_event() {
            self.link_is_too_early(event);
        }
        Ok(())
    }
}
