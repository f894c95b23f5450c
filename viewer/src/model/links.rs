//! The way from a model to a link, and back.

use vramscope_trace::FormatError;

use super::{Model, Origin};
use crate::bands::Band;
use crate::heatmap::ColorBy;
use crate::link::Link;

impl Model {
    /// What a link to this view says.
    #[must_use]
    pub fn link(&self) -> Link {
        if let Some(awaited) = &self.awaited {
            return awaited.clone();
        }
        let has_data = self.recording.end_event() > 0;
        Link {
            event: (has_data && !self.following).then(|| self.moment()),
            range: self.span.part(),
            device: (has_data && self.recording.devices().count() > 1).then_some(self.device),
            select: self.selection,
            // What is not said is what a page begins with.
            color_by: (self.color_by == ColorBy::Category).then_some(self.color_by),
            bands: self.band_choice,
        }
    }

    /// A link to the same view of the same recording, when more of it has come: whoever was at its end wants to be there again.
    #[must_use]
    pub fn link_to_resume(&self) -> Link {
        let link = self.link();
        let was_at_end = self.state().event() == self.recording.end_event();
        let event = self.growth.linked.or(link.event.filter(|_| !was_at_end));
        Link { event, ..link }
    }

    /// Goes where a link says. A live recording that has not come that far is followed until it has.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn go_to_link(&mut self, link: &Link) -> Result<(), FormatError> {
        self.awaited = None;
        if let Some(color_by) = link.color_by {
            self.color_by = color_by;
            self.redraw_moment();
        }
        for band in Band::ALL {
            if let Some(shown) = link.bands.of(band) {
                self.band_choice.set(band, shown);
                self.stale.timeline = true;
            }
        }
        if self.origin == Origin::Live && self.recording.end_event() < link.event.unwrap_or(0).max(1) {
            self.awaited = Some(link.clone());
            return Ok(());
        }
        if let Some(device) = link.device {
            self.set_device(device)?;
        }
        if link.select.is_some() {
            self.select(link.select);
        }
        if let Some(range) = link.range.clone() {
            self.set_span(|span, whole| span.set(range, whole));
        }
        match link.event {
            Some(event) => {
                self.seek(event)?;
                if self.origin == Origin::Live && event < self.recording.first_event() {
                    self.link_leads_before(event);
                }
                Ok(())
            }
            None => Ok(()),
        }
    }
}
