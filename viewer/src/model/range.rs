//! The timeline's settings: its axis, the visible part of the recording, and the stacked areas.

use std::ops::Range;

use vramscope_insight::group::GroupBy;
use vramscope_trace::Annotation;

use super::state::Model;
use crate::span::{TimeSpan, whole};
use crate::timeline::{AxisKind, Scale, Stacking, TimedMoment};

impl Model {
    /// Returns the range of time that the timeline shows, in nanoseconds of the recording's time.
    pub fn range(&self) -> Range<u64> {
        if self.scale == Scale::Time { self.span.within(self.whole()) } else { self.shown_times.clone() }
    }

    /// Returns the range of positions that the timeline shows, in the unit of its axis:
    /// nanoseconds, event numbers or steps.
    pub fn shown_positions(&self) -> Range<u64> {
        self.span.within(self.whole())
    }

    /// Returns the range of positions of the whole recording, in the unit of the timeline's axis.
    pub fn whole_positions(&self) -> Range<u64> {
        self.whole()
    }

    /// Returns true if the timeline shows only a part of the recording.
    pub fn is_zoomed(&self) -> bool {
        self.span.part().is_some()
    }

    /// Returns the scale of the timeline's axis: its unit, and the steps on an axis of steps.
    pub fn scale(&self) -> &Scale {
        &self.scale
    }

    /// Sets the scale of the timeline's axis, and the part of the recording that it shows, in
    /// positions of `scale`. `None` keeps the part; if the unit changes, it shows the whole
    /// recording.
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

    /// Stores the times, in nanoseconds, of the range that the timeline shows on an axis of events
    /// or steps.
    pub fn set_shown_times(&mut self, times: Range<u64>) {
        self.shown_times = times;
    }

    /// Returns the unit that the user chose for the timeline's axis; events in place of times that
    /// the recording lacks. Until the recording has been read, [`scale`](Self::scale) may have
    /// another one.
    pub fn axis(&self) -> AxisKind {
        if self.axis == AxisKind::Time && self.recording.info().lacks_times { AxisKind::Events } else { self.axis }
    }

    /// Sets the unit that the user chose for the timeline's axis; [`set_scale`](Self::set_scale)
    /// applies it.
    pub fn set_axis(&mut self, axis: AxisKind) {
        self.axis = axis;
        self.pending_part = None;
        self.everything_changed();
    }

    /// Returns true if the timeline leaves out idle time.
    pub fn cuts_idle(&self) -> bool {
        self.cuts_idle.unwrap_or(self.is_mostly_idle)
    }

    /// Sets whether the timeline leaves out idle time; `None` leaves it out if most of the
    /// recording is idle.
    pub fn set_cuts_idle(&mut self, cuts_idle: Option<bool>) {
        self.cuts_idle = cuts_idle;
        self.everything_changed();
    }

    /// Stores whether most of the recording is idle time. Does not mark the timeline as changed.
    pub fn set_mostly_idle(&mut self, is_mostly_idle: bool) {
        self.is_mostly_idle = is_mostly_idle;
    }

    /// Returns the property by which the timeline groups and stacks the live bytes; `None` if it
    /// shows the counters.
    pub fn stack(&self) -> Option<GroupBy> {
        self.stacking.map_or(self.usual_stack, Stacking::group_by)
    }

    /// Sets the areas that the timeline shows; `None` for the usual ones.
    pub fn set_stacking(&mut self, stacking: Option<Stacking>) {
        self.stacking = stacking;
        self.everything_changed();
    }

    /// Sets the property by which the timeline groups the live bytes unless the user chooses
    /// another one; `None` shows the counters. Does not mark the timeline as changed.
    pub fn set_usual_stack(&mut self, by: Option<GroupBy>) {
        self.usual_stack = by;
    }

    /// Returns the moment on the screen with its time.
    pub fn timed_moment(&self) -> TimedMoment {
        TimedMoment { event: self.state().event(), time_ns: self.time_ns() }
    }

    /// Takes the range of a link, in positions of the chosen axis, that waits until this axis can
    /// be shown; `None` if no range waits.
    pub fn take_pending_part(&mut self) -> Option<Range<u64>> {
        self.pending_part.take()
    }

    /// Adds the marks of a recording that was opened by its index, once a pass over its events has
    /// found them. Does nothing if the recording already has its marks.
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

    /// Shows a part of the recording on the timeline, given by positions on its axis.
    pub fn show_positions(&mut self, part: Range<u64>) {
        self.change_span(|span, whole| span.set(part, whole));
    }

    /// Returns the first and the last moment (event number) that the timeline shows. Where chunks
    /// are not loaded, they are approximate: the first or last moment of a chunk.
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
                // Includes the events at the first time.
                let before = times.start.saturating_sub(1);
                (self.recording.event_at_time(before), self.recording.event_at_time(times.end))
            }
        };
        let from = from.clamp(first, last);
        (from, to.clamp(from, last))
    }

    /// Returns the range of time that the timeline shows, in nanoseconds of the recording's time;
    /// `None` if it shows the whole recording.
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
            Scale::Steps(steps) => 0..steps.start(steps.part_count()),
        }
    }

    /// Calls `change` with the timeline's range and the range of the whole recording, and marks
    /// everything as changed. Loading continues if it had stopped after an error.
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

    /// Makes the timeline show a range `factor` times as long (below 1: shorter). The position
    /// `around`, in the unit of the axis, stays at its pixel.
    pub fn zoom(&mut self, factor: f64, around: u64) {
        self.change_span(|span, whole| span.zoom(factor, around, whole));
    }

    /// Moves the timeline's range by `fraction` of its length, at most to an end of the recording;
    /// a negative fraction moves to earlier times.
    pub fn pan(&mut self, fraction: f64) {
        self.change_span(|span, whole| span.pan(fraction, whole));
    }
}
