//! Pointer input on the timeline: select a range, scrub, pan and zoom.

use vramscope_trace::{Incident, IncidentKind};

use crate::command::Direction;
use crate::protocol::{Pointer, PointerKind};
use crate::timeline::{AxisKind, Target, TimedMoment};
use crate::view::Topic;
use crate::views::ViewId;

use super::input::{CLICK_DISTANCE, Drag, ZOOM_PER_PIXEL};
use super::session::Session;

impl Session {
    /// Returns true while a range is being selected by dragging.
    pub(super) fn is_brushing(&self) -> bool {
        matches!(self.input.drag, Some(Drag::Brush { has_moved: true, .. }))
    }

    /// Handles a pointer event on the timeline.
    pub(super) fn pointer_on_timeline(&mut self, pointer: &Pointer) {
        let Some(timeline) = &self.timeline.scene else { return };
        let (center, width) = (timeline.axis.position_at(pointer.x), f64::from(timeline.geometry.plot.width()));
        match pointer.kind {
            PointerKind::Down => self.press_on_timeline(pointer),
            PointerKind::Move => self.drag_on_timeline(pointer),
            PointerKind::Up => self.release_on_timeline(pointer),
            PointerKind::Leave => self.input.drag = None,
            PointerKind::DoubleClick => self.model.fit(),
            PointerKind::Wheel(dx, dy) => {
                let is_on_lane = matches!(timeline.target(pointer.y), Target::Lane(_));
                if is_on_lane && !pointer.shift && !pointer.ctrl && dy != 0.0 && self.scroll_lanes(dy > 0.0) {
                    return;
                }
                let sideways = if pointer.shift && dx == 0.0 { dy } else { dx };
                if sideways.abs() > dy.abs() || pointer.shift {
                    self.model.pan(sideways * f64::from(self.display.screen.scale) / width);
                } else {
                    self.model.zoom((dy * ZOOM_PER_PIXEL).exp(), center);
                }
            }
            PointerKind::Pinch(factor) => {
                self.cancel_drag();
                self.model.zoom(1.0 / factor.max(1e-6), center);
            }
        }
    }

    /// Ends a gesture without effect, because a second finger has landed: restores the moment and
    /// the shown positions at its begin.
    fn cancel_drag(&mut self) {
        self.input.scrub_x = None;
        let (Some(drag), Some((event, shown))) = (self.input.drag.take(), self.timeline.before_press.clone()) else {
            return;
        };
        match drag {
            Drag::Scrub => {}
            Drag::Overview { .. } => self.model.show_positions(shown),
            _ => return,
        }
        self.input.pending_seek = event;
        if event.is_none() {
            // The state at the end is in memory, so this cannot fail.
            drop(self.model.follow());
        }
    }

    /// Handles a press of the pointer on the timeline: chooses what dragging will do.
    fn press_on_timeline(&mut self, pointer: &Pointer) {
        let event = (!self.model.is_following()).then(|| self.model.state().event());
        self.timeline.before_press = Some((event, self.model.shown_positions()));
        let Some(timeline) = &self.timeline.scene else { return };
        let (x, y) = (pointer.x as i32, pointer.y as i32);
        let cursor = self.timeline.overlay.cursor.as_ref();
        let target = timeline.target(pointer.y);
        if pointer.shift {
            self.input.drag = Some(Drag::Pan { last_x: pointer.x });
        } else if target == Target::Overview {
            let shown = self.model.shown_positions();
            let length = shown.end - shown.start;
            let at = timeline.overview_position(pointer.x).unwrap_or(shown.start);
            // A press beside the window moves its middle there.
            let offset = if shown.contains(&at) { at - shown.start } else { length / 2 };
            self.input.drag = Some(Drag::Overview { offset });
            self.drag_on_timeline(pointer);
        } else if cursor.is_some_and(|cursor| cursor.is_arrow_at(x, y)) {
            self.show_moment();
        } else if target == Target::Axis
            || (pointer.is_touch && target == Target::Chart)
            || (cursor.is_some_and(|cursor| cursor.is_handle_at(x, y)) && timeline.incidents_at(x, y).is_empty())
        {
            self.input.drag = Some(Drag::Scrub);
            self.input.scrub_x = Some(pointer.x);
        } else {
            self.input.drag =
                Some(Drag::Brush { start_x: pointer.x, start: self.moment_at(pointer.x), has_moved: false });
        }
    }

    /// Handles a movement of the pressed pointer: goes to a moment, moves the range, or extends the
    /// selected range.
    fn drag_on_timeline(&mut self, pointer: &Pointer) {
        let Some(timeline) = &self.timeline.scene else { return };
        let width = f64::from(timeline.geometry.plot.width());
        match self.input.drag {
            Some(Drag::Scrub) => self.input.scrub_x = Some(pointer.x),
            Some(Drag::Pan { last_x }) => {
                self.input.drag = Some(Drag::Pan { last_x: pointer.x });
                self.model.pan((last_x - pointer.x) / width);
            }
            Some(Drag::Overview { offset }) => {
                let shown = self.model.shown_positions();
                let at = timeline.overview_position(pointer.x).unwrap_or(shown.start);
                let start = at.saturating_sub(offset);
                self.model.show_positions(start..start.saturating_add(shown.end - shown.start));
            }
            Some(Drag::Brush { start_x, start, has_moved })
                if (has_moved || (pointer.x - start_x).abs() > CLICK_DISTANCE) =>
            {
                if matches!(timeline.target(pointer.y), Target::Lane(_)) && !has_moved {
                    self.input.drag = Some(Drag::Scrub);
                    self.input.scrub_x = Some(pointer.x);
                    return;
                }
                self.input.drag = Some(Drag::Brush { start_x, start, has_moved: true });
                self.select_between(start, self.moment_at(pointer.x));
            }
            _ => {}
        }
    }

    /// Handles the release of the pointer on the timeline; a press without a movement is a click.
    fn release_on_timeline(&mut self, pointer: &Pointer) {
        match self.input.drag.take() {
            Some(Drag::Brush { has_moved: false, .. }) => {
                let target = self.timeline.scene.as_ref().map(|timeline| timeline.target(pointer.y));
                if let Some(Target::Lane(device)) = target {
                    return self.click_lane(device, (pointer.x, pointer.y));
                }
                let incidents = self
                    .timeline
                    .scene
                    .as_ref()
                    .map(|timeline| timeline.incidents_at(pointer.x as i32, pointer.y as i32));
                // Further clicks on a flag of several visit all of them.
                let moment = self.model.state().event();
                let next = |incidents: &'_ [Incident]| {
                    let later = incidents.iter().find(|incident| incident.at_event.saturating_add(1) > moment);
                    later.or(incidents.first()).copied()
                };
                match incidents.and_then(next) {
                    Some(incident) => self.input.pending_seek = Some(incident.at_event.saturating_add(1)),
                    None => self.input.scrub_x = Some(pointer.x),
                }
            }
            // The bytes of the range are computed now.
            Some(Drag::Brush { .. }) => self.model.moment_changed(),
            _ => {}
        }
    }

    /// Returns the moment at `x` pixels from the timeline's left edge.
    fn moment_at(&self, x: f64) -> TimedMoment {
        let Some(timeline) = &self.timeline.scene else { return TimedMoment::default() };
        let at = timeline.axis.moment_at(x);
        match (timeline.axis.scale().kind() == AxisKind::Time, self.complete_history()) {
            (true, None) => TimedMoment { event: self.model.recording().event_at_time(at.time_ns), ..at },
            (true, Some(history)) => TimedMoment { event: history.moment_at(at.time_ns), ..at },
            (false, Some(history)) => TimedMoment { time_ns: history.time_ns(at.event), ..at },
            (false, None) => at,
        }
    }

    /// Selects the range between two moments, given in any order.
    fn select_between(&mut self, one: TimedMoment, other: TimedMoment) {
        let (from, to) = if one.event <= other.event { (one, other) } else { (other, one) };
        self.model.select_range(Some((from.event, to.event)));
    }

    /// Goes to the moment at `x` pixels from the timeline's left edge.
    pub(super) fn scrub_to(&mut self, x: f64) -> Result<(), vramscope_trace::FormatError> {
        let Some(timeline) = &self.timeline.scene else { return Ok(()) };
        let axis = &timeline.axis;
        let position = axis.position_at(x);
        match axis.scale().event(position) {
            Some(event) => self.model.seek(event),
            None => self.model.seek_time(position),
        }
    }

    /// Moves the timeline's range so that the moment on the screen is in its middle.
    pub(super) fn show_moment(&mut self) {
        let shown = self.model.shown_positions();
        let length = shown.end - shown.start;
        let position = self.model.scale().position(self.model.timed_moment());
        let start = position.saturating_sub(length / 2);
        self.model.show_positions(start..start.saturating_add(length));
    }

    /// Goes to the next or previous begin of a span, or named moment, of the device's
    /// process.
    ///
    /// # Errors
    /// If no mark lies in that direction, or the recording cannot be read there.
    pub(super) fn go_to_mark(&mut self, direction: Direction) -> Result<(), String> {
        let model = &self.model;
        let moment = model.state().event();
        let spans = model.marks().spans_on(model.recording().info(), model.device());
        let events = spans.map(|span| span.from_event);
        let found = if direction.is_forward() {
            events.filter(|&event| event > moment).min()
        } else {
            events.filter(|&event| event < moment).max()
        };
        let which = if direction.is_forward() { "later" } else { "earlier" };
        let event = found.ok_or_else(|| format!("there is no {which} mark"))?;
        self.model.playback.pause();
        self.model.seek(event).map_err(|error| error.to_string())
    }

    /// Goes to the next or previous out-of-memory error, and shows its device.
    ///
    /// # Errors
    /// If no error lies in that direction, or the recording cannot be read there.
    pub(super) fn go_to_failure(&mut self, direction: Direction) -> Result<(), String> {
        let moment = self.model.state().event();
        let incidents = self.model.marks().incidents().iter();
        let failures = incidents.filter(|incident| matches!(incident.kind, IncidentKind::OutOfMemory { .. }));
        let failures = failures.map(|incident| (incident.at_event.saturating_add(1), incident.device));
        let all = failures.clone();
        let found = if direction.is_forward() {
            failures.filter(|(event, _)| *event > moment).min()
        } else {
            failures.filter(|(event, _)| *event < moment).max()
        };
        // After the last one comes the first one.
        let found = found.or(if direction.is_forward() { all.clone().min() } else { all.max() });
        let (event, device) = found.ok_or("no request failed in this recording")?;
        self.model.playback.pause();
        self.set_device(device).and_then(|()| self.model.seek(event)).map_err(|error| error.to_string())?;
        self.show_beside(ViewId::about(Topic::Failures));
        Ok(())
    }
}
