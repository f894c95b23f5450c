//! The commands of the timeline: zoom, range, axis, stacked areas, marks and failures.

use vramscope_insight::group::GroupBy;

use crate::timeline::{AxisKind, TimedMoment};

use super::commands::number;
use super::core::Session;
use super::parts::STACKS;
use super::timeline_page::COUNTERS;

/// Fraction of its length by which a key press moves the timeline's range.
const PAN_FRACTION: f64 = 0.15;
/// Factor by which a key press shortens the timeline's range, or its inverse lengthens it.
const ZOOM_FACTOR: f64 = 0.75;

/// Returns the value after `current` in `values`; after the last, or for an unknown value, the
/// first. `None` if `values` is empty.
fn next<T: Copy + PartialEq>(values: &[T], current: T) -> Option<T> {
    let index = values.iter().position(|&value| value == current).map_or(0, |index| index + 1);
    values.get(index).or_else(|| values.first()).copied()
}

impl Session {
    /// Executes a command of the timeline. Returns false if `name` is another command.
    ///
    /// # Errors
    /// If an argument is invalid, no event matches, or the recording cannot be read: a message for
    /// the user.
    pub(super) fn timeline_command(&mut self, name: &str, argument: &str) -> Result<bool, String> {
        let moment = self.model.state().event();
        match name {
            "zoom-in" => self.zoom_timeline(ZOOM_FACTOR),
            "zoom-out" => self.zoom_timeline(1.0 / ZOOM_FACTOR),
            "pan-left" => self.model.pan(-PAN_FRACTION),
            "pan-right" => self.model.pan(PAN_FRACTION),
            "fit" => self.show_selection(),
            "fit-all" => self.model.fit(),
            "range-start" => {
                let end = self.model.selected_range().map_or(self.model.recording().end_event(), |(_, to)| to);
                self.model.select_range(Some((moment, end.max(moment))));
            }
            "range-end" => {
                let start = self.model.selected_range().map_or(self.model.recording().first_event(), |(from, _)| from);
                self.model.select_range(Some((start.min(moment), moment)));
            }
            "range-clear" if self.model.selected_range().is_none() => {
                return Err("no range of time is selected".to_owned());
            }
            "range-clear" => self.model.select_range(None),
            // Escape clears the range first, then the selection.
            "deselect" if self.model.selected_range().is_some() => {
                self.drag = None;
                self.model.select_range(None);
            }
            "range" => {
                let (from, to) = argument.split_once(' ').unwrap_or((argument, ""));
                self.model.select_range(Some((number(name, from)?, number(name, to)?)));
            }
            "axis" => self.choose_axis(argument)?,
            "cut-idle" => self.model.set_cuts_idle(Some(!self.model.cuts_idle())),
            "lanes" => {
                if self.model.recording().devices().count() < 2 {
                    return Err("this recording has only one device".to_owned());
                }
                self.timeline.hides_lanes = !self.timeline.hides_lanes;
                self.model.everything_changed();
            }
            "stack" => self.choose_stack(argument)?,
            "mark" => self.go_to_mark(argument == "1")?,
            "failure" => self.go_to_failure(argument == "1")?,
            _ => return Ok(false),
        }
        self.model.moment_changed();
        Ok(true)
    }

    /// Makes the timeline show `factor` times as much (below 1: less), around the moment on the
    /// screen, or around its middle if the moment is out of sight.
    fn zoom_timeline(&mut self, factor: f64) {
        let shown = self.model.shown_positions();
        let position = self.model.scale().position(self.model.timed_moment());
        let is_visible = (shown.start..=shown.end).contains(&position);
        let around = if is_visible { position } else { shown.start + (shown.end - shown.start) / 2 };
        self.model.zoom(factor, around);
    }

    /// Shows the selected range on the whole timeline, or the whole recording without a selection
    /// or if the range is shown already.
    fn show_selection(&mut self) {
        let Some((from, to)) = self.model.selected_range() else { return self.model.fit() };
        let start_ns = self.model.recording().start_ns();
        let mut moment = |event| {
            let known = self.complete_history().map(|history| history.time_ns(event));
            let time_ns = known.or_else(|| self.model.event_time_ns(event)).unwrap_or(start_ns);
            TimedMoment { event, time_ns }
        };
        let (from, to) = (moment(from), moment(to));
        let scale = self.model.scale();
        let part = scale.position(from)..scale.position(to);
        let before = self.model.shown_positions();
        self.model.show_positions(part);
        if self.model.shown_positions() == before {
            self.model.fit();
        }
    }

    /// Sets the unit of the timeline's axis: `argument`, or if that is empty, the next unit after
    /// the current one. An axis of steps is left out if the recording is known to have none.
    fn choose_axis(&mut self, argument: &str) -> Result<(), String> {
        let current = self.model.axis();
        let axis = if argument.is_empty() { next(&AxisKind::ALL, current) } else { AxisKind::from_name(argument) };
        let axis = axis.ok_or_else(|| format!("there is no axis of {argument:?}: choose time, events or steps"))?;
        self.model.set_axis(axis);
        let has_no_steps = axis == AxisKind::Steps && self.complete_history().is_some() && self.step_scale().is_none();
        if has_no_steps {
            self.model.set_axis(if argument.is_empty() { AxisKind::Time } else { current });
            if !argument.is_empty() {
                return Err("this recording has no steps: neither spans nor a repeating sequence".to_owned());
            }
        }
        Ok(())
    }

    /// Sets how the timeline groups the live bytes: by `argument`, or if that is empty, by the next
    /// grouping after the current one.
    fn choose_stack(&mut self, argument: &str) -> Result<(), String> {
        let stack = match argument {
            COUNTERS => None,
            "" => match self.model.stack() {
                None => STACKS.first().copied(),
                Some(last) if STACKS.last() == Some(&last) => None,
                Some(by) => next(&STACKS, by),
            },
            _ => Some(GroupBy::from_name(argument).ok_or_else(|| format!("there is no grouping by {argument:?}"))?),
        };
        self.model.set_stack(stack);
        Ok(())
    }
}
