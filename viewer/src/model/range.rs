//! The timeline's settings: its axis, the visible part of the recording, and the stacked areas.

use std::ops::Range;

use vramscope_insight::group::GroupBy;
use vramscope_trace::Annotation;

use super::state::Model;
use crate::span::{TimeSpan, whole};
use crate::timeline::{AxisKind, Scale, TimedMoment};

impl Model {
    /// Returns the range of time that the timeline shows, in nanoseconds of the recording's time.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        if self.scale == Scale::Time { self.span.within(self.whole()) } else { self.shown_times.clone() }
    }

    /// Returns the positions that the timeline shows, in the unit of its axis.
    #[must_use]
    pub fn shown_positions(&self) -> Range<u64> {
        self.span.within(self.whole())
    }

    /// Returns the positions of the whole recording, in the unit of the timeline's axis.
    #[must_use]
    pub fn whole_positions(&self) -> Range<u64> {
        self.whole()
    }

    /// Returns true if the timeline shows a part of the recording.
    #[must_use]
    pub fn is_zoomed(&self) -> bool {
        self.span.part().is_some()
    }

    /// Returns the unit of the timeline's axis.
    #[must_use]
    pub fn scale(&self) -> &Scale {
        &self.scale
    }

    /// Sets the unit of the timeline's axis, and the part of the recording that it shows; `None`
    /// keeps the part.
    pub fn set_scale(&mut self, scale: Scale, part: Option<Range<u64>>) {
        let is_other_kind = scale.kind() != self.scale.kind();
        self.scale = scale;
        if is_other_kind {
            self.span = TimeSpan::new(self.scale.least_length());
        }
        if let Some(part) = part {
            let whole = self.whole();
            self.span.set(part, whole);
        }
        self.changes.timeline = true;
    }

    /// Stores the range of time that the timeline shows on an axis of events or steps.
    pub fn set_shown_times(&mut self, times: Range<u64>) {
        self.shown_times = times;
    }

    /// Returns the unit that the user chose for the timeline's axis.
    #[must_use]
    pub fn axis(&self) -> AxisKind {
        self.axis
    }

    /// Sets the unit of the timeline's axis.
    pub fn set_axis(&mut self, axis: AxisKind) {
        self.axis = axis;
        self.pending_part = None;
        self.everything_changed();
    }

    /// Returns true if the timeline leaves out idle time.
    #[must_use]
    pub fn cuts_idle(&self) -> bool {
        self.cuts_idle.unwrap_or(self.is_mostly_idle)
    }

    /// Sets whether the timeline leaves out idle time; `None` does if most of the recording is
    /// idle.
    pub fn set_cuts_idle(&mut self, cuts_idle: Option<bool>) {
        self.cuts_idle = cuts_idle;
        self.everything_changed();
    }

    /// Stores whether most of the recording is idle time. Marks nothing as changed.
    pub fn set_mostly_idle(&mut self, is_mostly_idle: bool) {
        self.is_mostly_idle = is_mostly_idle;
    }

    /// Returns the grouping of the timeline's live bytes; `None` if it shows the counters.
    #[must_use]
    pub fn stack(&self) -> Option<GroupBy> {
        self.stack
    }

    /// Sets the grouping of the timeline's live bytes; `None` shows the counters.
    pub fn set_stack(&mut self, stack: Option<GroupBy>) {
        self.stack = stack;
        self.everything_changed();
    }

    /// Returns the moment on the screen with its time.
    #[must_use]
    pub fn timed_moment(&self) -> TimedMoment {
        TimedMoment { event: self.state().event(), time_ns: self.time_ns() }
    }

    /// Takes the positions of a link that were waiting for the axis to be shown.
    pub fn take_pending_part(&mut self) -> Option<Range<u64>> {
        self.pending_part.take()
    }

    /// Shows the marks of a recording that was opened by its index, once a pass over its events has
    /// found them. Does nothing if they are shown.
    pub fn add_marks(&mut self, marks: &[Annotation]) {
        if self.recording.add_marks(marks) {
            self.marks.update(&self.recording);
            self.everything_changed();
        }
    }

    /// Marks the timeline to be computed and drawn again.
    pub fn timeline_changed(&mut self) {
        self.changes.timeline = true;
    }

    /// Shows a part of the recording, given by positions on the timeline's axis.
    pub fn show_positions(&mut self, part: Range<u64>) {
        self.change_span(|span, whole| span.set(part, whole));
    }

    /// Returns the first and the last moment that the timeline shows. In a part of the recording
    /// whose chunks are not loaded, they are the first and last moments of chunks.
    #[must_use]
    pub fn shown_moments(&self) -> (u64, u64) {
        let (first, last) = (self.recording.first_event(), self.recording.end_event());
        let (from, to) = match &self.scale {
            _ if !self.is_zoomed() => (first, last),
            Scale::Events => {
                let positions = self.shown_positions();
                (positions.start, positions.end)
            }
            Scale::Time | Scale::Steps(_) => {
                let times = self.range();
                // The events at the first time are shown, too.
                let before = times.start.saturating_sub(1);
                (self.recording.event_at_time(before), self.recording.event_at_time(times.end))
            }
        };
        let from = from.clamp(first, last);
        (from, to.clamp(from, last))
    }

    /// Returns the range of time that the timeline shows, in nanoseconds of the recording's time;
    /// `None` if it shows the whole recording.
    #[must_use]
    pub fn zoomed_range(&self) -> Option<Range<u64>> {
        self.span.part().map(|_| self.range())
    }

    /// Returns the time range of the whole recording in nanoseconds, extended to the shortest range
    /// that the timeline can show.
    pub(super) fn whole_times(&self) -> Range<u64> {
        whole(self.recording.start_ns(), self.recording.end_ns())
    }

    /// Returns the positions of the whole recording, extended to the shortest range that the
    /// timeline can show.
    pub(super) fn whole(&self) -> Range<u64> {
        let (first, last) = (self.recording.first_event(), self.recording.end_event());
        match &self.scale {
            Scale::Time => self.whole_times(),
            Scale::Events => first..last.max(first.saturating_add(self.scale.least_length())),
            Scale::Steps(steps) => 0..steps.start(steps.len()),
        }
    }

    /// Changes the timeline's range by `change`, which also gets the whole recording's range, and
    /// redraws everything.
    pub(super) fn change_span(&mut self, change: impl FnOnce(&mut TimeSpan, Range<u64>)) {
        let whole = self.whole();
        change(&mut self.span, whole);
        self.fetching_failed = false;
        self.everything_changed();
    }

    /// Shows the whole recording on the timeline.
    pub fn fit(&mut self) {
        let least_length = self.scale.least_length();
        self.change_span(|span, _| *span = TimeSpan::new(least_length));
    }

    /// Makes the timeline show `factor` times as much (below 1: less), with the position `around`
    /// (a time in nanoseconds on an axis of time) at an unchanged pixel.
    pub fn zoom(&mut self, factor: f64, around: u64) {
        self.change_span(|span, whole| span.zoom(factor, around, whole));
    }

    /// Moves the timeline's range by `fraction` of its length, at most to an end of the recording;
    /// a negative fraction moves to earlier times.
    pub fn pan(&mut self, fraction: f64) {
        self.change_span(|span, whole| span.pan(fraction, whole));
    }
}
