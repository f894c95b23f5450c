//! The commands of the timeline: zoom, range, axis and stacked areas.

use vramscope_insight::group::GroupBy;

use super::session::Session;
use crate::timeline::{AxisKind, Stacking, TimedMoment};

/// Fraction of its length by which a key press moves the timeline's range.
pub(super) const PAN_FRACTION: f64 = 0.15;
/// Factor by which a key press shortens the timeline's range, or its inverse lengthens it.
pub(super) const ZOOM_FACTOR: f64 = 0.75;
/// The properties by which the stacked timeline can group live bytes, in the order in which a
/// command cycles through them.
pub(super) const STACKS: [GroupBy; 6] =
    [GroupBy::Category, GroupBy::Site, GroupBy::Module, GroupBy::Stream, GroupBy::Pool, GroupBy::Size];

/// Returns the value after `current` in `values`; after the last, or for an unknown value, the
/// first. `None` if `values` is empty.
fn next<T: Copy + PartialEq>(values: &[T], current: T) -> Option<T> {
    let index = values.iter().position(|&value| value == current).map_or(0, |index| index + 1);
    values.get(index).or_else(|| values.first()).copied()
}

impl Session {
    /// Makes the timeline show `factor` times as much (below 1: less), around the moment on the
    /// screen, or around its middle if the moment is out of sight.
    pub(super) fn zoom_timeline(&mut self, factor: f64) {
        let shown = self.model.shown_positions();
        let position = self.model.scale().position(self.model.timed_moment());
        let is_visible = (shown.start..=shown.end).contains(&position);
        let around = if is_visible { position } else { shown.start + (shown.end - shown.start) / 2 };
        self.model.zoom(factor, around);
    }

    /// Shows the selected range on the whole timeline, or the whole recording without a selection
    /// or if the range is shown already.
    pub(super) fn show_selection(&mut self) {
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

    /// Sets the unit of the timeline's axis; `None` sets the next one. An axis of steps is left out
    /// if the recording is known to have none.
    ///
    /// # Errors
    /// If the recording has no steps: a message for the user.
    pub(super) fn choose_axis(&mut self, chosen: Option<AxisKind>) -> Result<(), String> {
        let current = self.model.axis();
        let axis = chosen.or_else(|| next(&AxisKind::ALL, current)).unwrap_or_default();
        self.model.set_axis(axis);
        let has_no_steps = axis == AxisKind::Steps && self.complete_history().is_some() && self.step_scale().is_none();
        if has_no_steps {
            self.model.set_axis(if chosen.is_none() { AxisKind::Time } else { current });
            if chosen.is_some() {
                return Err("this recording has no steps: neither spans nor a repeating sequence".to_owned());
            }
        }
        Ok(())
    }

    /// Sets how the timeline groups the live bytes; `None` sets the next grouping.
    pub(super) fn choose_stack(&mut self, chosen: Option<Stacking>) {
        let following = || match self.model.stack() {
            None => STACKS.first().copied(),
            Some(last) if STACKS.last() == Some(&last) => None,
            Some(by) => next(&STACKS, by),
        };
        let stacking = chosen.unwrap_or_else(|| following().map_or(Stacking::Counters, Stacking::By));
        self.model.set_stacking(Some(stacking));
    }
}
