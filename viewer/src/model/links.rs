//! Converts between a model's view and a [`Link`].

use vramscope_trace::FormatError;

use super::live_state::LINK_TOO_EARLY;
use super::state::{Model, Origin};
use crate::bands::{Band, BandChoice};
use crate::link::Link;
use crate::timeline::AxisKind;

impl Model {
    /// Returns the link to the current view, without the parts that the session adds: panes, views,
    /// the selected group, the span of steps and the second side of a comparison. Defaults are
    /// omitted.
    pub fn link(&self) -> Link {
        if let Some(link) = &self.pending_link {
            return link.clone();
        }
        let has_events = self.recording.end_event() > 0;
        Link {
            event: (has_events && !self.following).then(|| self.target_event()),
            axis: (self.axis() != AxisKind::Time).then_some(self.axis()),
            cuts_idle: self.cuts_idle,
            stack: self.stacking,
            range: self.pending_part.clone().or_else(|| self.span.part().filter(|_| self.scale.kind() == self.axis())),
            selected: self.selected_range(),
            device: (has_events && self.recording.devices().count() > 1).then_some(self.device),
            select: self.selection,
            since: self.selected_since(),
            pinned: self.comparison.pinned,
            bands: self.band_choice,
            ..Link::default()
        }
    }

    /// Returns the link with which to show the current view after the live recording was loaded
    /// again. If the page shows the last event, the link has no moment, and leads to the new end.
    pub fn link_to_resume(&self) -> Link {
        let link = self.link();
        let is_at_end = self.state().event() == self.recording.end_event();
        let event = self.live.linked_event.or(link.event.filter(|_| !is_at_end));
        Link { event, ..link }
    }

    /// Goes to the view of a link, and resets the parts of the view that the link omits to their
    /// defaults. Follows a live recording if the link has no moment.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn restore(&mut self, link: &Link) -> Result<(), FormatError> {
        self.playback.pause();
        (self.selection, self.selected_since, self.selected_range) = (None, None, None);
        self.selected_group = None;
        self.band_choice = BandChoice::default();
        (self.cuts_idle, self.stacking) = (None, None);
        self.comparison.pinned = None;
        let axis = link.axis.unwrap_or_default();
        if axis != self.axis {
            self.set_axis(axis);
        }
        if link.range.is_none() {
            self.pending_part = None;
            self.fit();
        }
        self.everything_changed();
        self.go_to_link(link)?;
        if link.event.is_none() && self.origin == Origin::Live { self.follow() } else { Ok(()) }
    }

    /// Goes to the view of a link; the parts of the view that the link omits stay. If a live
    /// recording has not reached the link's moment, goes there once it has.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn go_to_link(&mut self, link: &Link) -> Result<(), FormatError> {
        self.pending_link = None;
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
        if link.pinned.is_some() {
            self.comparison.pinned = link.pinned;
        }
        self.moment_changed();
        if link.select.is_some() {
            (self.selection, self.selected_since) = (link.select, link.since);
        }
        if link.cuts_idle.is_some() {
            self.set_cuts_idle(link.cuts_idle);
        }
        if link.stack.is_some() {
            self.set_stacking(link.stack);
        }
        let axis = link.axis.unwrap_or_default();
        // A link without an axis and a range keeps the axis.
        if link.axis.is_some() || link.range.is_some() {
            self.set_axis(axis);
        }
        match link.range.clone() {
            Some(range) if axis == self.scale.kind() => self.change_span(|span, whole| span.set(range, whole)),
            range => self.pending_part = range,
        }
        if link.selected.is_some() {
            self.select_range(link.selected);
        }
        if let Some(event) = link.event {
            if link.range.is_some() { self.seek_linked(event)? } else { self.seek(event)? }
        }
        // A link without `since` selects the allocation that is live at its moment.
        if link.select.is_some() && link.since.is_none() && !self.is_loading() {
            self.select(link.select);
        }
        let Some(event) = link.event else { return Ok(()) };
        if self.origin == Origin::Live && event < self.recording.first_event() {
            (self.live.linked_event, self.live.notice) = (Some(event), Some(LINK_TOO_EARLY));
        }
        Ok(())
    }
}
