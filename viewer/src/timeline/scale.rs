//! The units of the timeline's horizontal axis: time, events or steps.

use std::sync::Arc;

use vramscope_insight::steps::Steps;

use crate::named::named;

/// Shortest range of time that the timeline shows, in nanoseconds; zooming in stops there.
const MIN_TIME_NS: u64 = 100;
/// Minimum number of events that the timeline shows; zooming in stops there.
const MIN_EVENTS: u64 = 8;
/// Length of a step on an axis of steps; positions within a step are fractions of it.
const STEP_LENGTH: u64 = 1 << 20;

named! {
    /// The unit of the timeline's horizontal axis.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum AxisKind {
        /// Time.
        #[default]
        Time = "time",
        /// Events, all equally far apart.
        Events = "events",
        /// Steps of a training run, all equally long.
        Steps = "steps",
    }
}

/// A moment (an event number) with its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimedMoment {
    /// The moment, as an event number.
    pub event: u64,
    /// Its time, in nanoseconds.
    pub time_ns: u64,
}

/// The moments at which the steps of a recording begin.
///
/// Events after a step belong to it until the next step begins. The events before the first step
/// and after the last step are parts of their own, each as long as a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepScale {
    /// The moment at which each part begins, and the last moment; increasing.
    bounds: Vec<u64>,
    /// The number of the step that each part shows; `None` before the first and after the last.
    numbers: Vec<Option<u64>>,
}

/// Where a moment is among the steps, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepAt {
    /// In a step.
    In(u64),
    /// After a step, and outside of all.
    After(u64),
    /// Before the first step.
    BeforeFirst,
}

impl StepScale {
    /// Creates the scale of a recording's steps, whose first and last moment are `first_event` and
    /// `end_event`; `None` without steps.
    pub fn new(steps: &Steps, first_event: u64, end_event: u64) -> Option<Self> {
        let (first, last) = (steps.as_slice().first()?, steps.as_slice().last()?);
        let (mut bounds, mut numbers) = (Vec::new(), Vec::new());
        let mut add = |from: u64, number: Option<u64>| {
            if bounds.last().is_none_or(|&last| from > last) {
                bounds.push(from);
                numbers.push(number);
            }
        };
        if first_event < first.from_event {
            add(first_event, None);
        }
        for step in steps.as_slice() {
            add(step.from_event, Some(step.number));
        }
        if last.to_event < end_event {
            add(last.to_event, None);
        }
        bounds.push(end_event.max(last.to_event));
        Some(Self { bounds, numbers })
    }

    /// Returns the number of parts: the steps, and the parts before and after them.
    pub fn part_count(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the number of the step that part `index` of the axis shows; `None` for the parts
    /// before the first step and after the last, and beyond the end.
    pub fn number(&self, index: usize) -> Option<u64> {
        self.numbers.get(index).copied().flatten()
    }

    /// Returns the step at a moment. A moment at which a step ends belongs to it.
    pub fn step_at(&self, event: u64) -> StepAt {
        let part = self.bounds.partition_point(|&bound| bound < event).saturating_sub(1);
        let part = part.min(self.part_count() - 1);
        match (self.number(part), part.checked_sub(1).and_then(|before| self.number(before))) {
            (Some(number), _) => StepAt::In(number),
            (None, Some(before)) => StepAt::After(before),
            (None, None) => StepAt::BeforeFirst,
        }
    }

    /// Returns the number of the last step.
    pub fn last_number(&self) -> Option<u64> {
        self.numbers.iter().rev().find_map(|&number| number)
    }

    /// Returns the position on the axis of steps at which part `index` begins.
    pub fn start(&self, index: usize) -> u64 {
        index as u64 * STEP_LENGTH
    }

    /// Returns the index of the part that contains a position, or of the last part.
    pub fn part_at(&self, position: u64) -> usize {
        ((position / STEP_LENGTH) as usize).min(self.part_count().saturating_sub(1))
    }

    /// Returns the position of a moment on the axis of steps.
    fn position(&self, event: u64) -> u64 {
        let part = self.bounds.partition_point(|&bound| bound <= event).saturating_sub(1).min(self.part_count() - 1);
        let (from, to) = (self.bounds[part], self.bounds[part + 1]);
        let within =
            u128::from(event.clamp(from, to) - from) * u128::from(STEP_LENGTH) / u128::from((to - from).max(1));
        self.start(part) + within as u64
    }

    /// Returns the last moment at or before a position on the axis of steps.
    fn event(&self, position: u64) -> u64 {
        let part = self.part_at(position);
        let (from, to) = (self.bounds[part], self.bounds[part + 1]);
        let within = position.saturating_sub(self.start(part)).min(STEP_LENGTH);
        from + (u128::from(within) * u128::from(to - from) / u128::from(STEP_LENGTH)) as u64
    }
}

/// The unit of the timeline's horizontal axis. A *position* is a time in nanoseconds, an event
/// number, or a number of steps with its fraction.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Scale {
    /// Time in nanoseconds.
    #[default]
    Time,
    /// Event numbers.
    Events,
    /// Steps.
    Steps(Arc<StepScale>),
}

impl Scale {
    /// Returns the unit of the axis.
    pub const fn kind(&self) -> AxisKind {
        match self {
            Self::Time => AxisKind::Time,
            Self::Events => AxisKind::Events,
            Self::Steps(_) => AxisKind::Steps,
        }
    }

    /// Returns the length of the shortest range that the timeline shows, in positions; zooming in
    /// stops there.
    pub const fn least_length(&self) -> u64 {
        match self {
            Self::Time => MIN_TIME_NS,
            Self::Events => MIN_EVENTS,
            Self::Steps(_) => STEP_LENGTH / 1024,
        }
    }

    /// Returns the position of a moment on the axis.
    pub fn position(&self, at: TimedMoment) -> u64 {
        match self {
            Self::Time => at.time_ns,
            Self::Events => at.event,
            Self::Steps(steps) => steps.position(at.event),
        }
    }

    /// Returns the moment, as an event number, at a position of the axis; `None` on an axis of
    /// time.
    pub fn event(&self, position: u64) -> Option<u64> {
        match self {
            Self::Time => None,
            Self::Events => Some(position),
            Self::Steps(steps) => Some(steps.event(position)),
        }
    }
}

#[cfg(test)]
mod tests {
    use vramscope_insight::steps::{Step, StepSource};

    use super::*;

    /// Steps 1, 2, … between the given moments.
    fn scale(bounds: &[u64], first_event: u64, end_event: u64) -> StepScale {
        let steps = (1..).zip(bounds.windows(2)).map(|(number, pair)| Step {
            number,
            from_event: pair[0],
            to_event: pair[1],
            from_ns: pair[0],
            to_ns: pair[1],
        });
        let steps = Steps::new(StepSource::Span("step".to_owned()), steps);
        StepScale::new(&steps, first_event, end_event).expect("there are steps")
    }

    #[test]
    fn moments_and_positions_agree() {
        for (bounds, first, end, parts) in
            [(&[10, 20, 25, 1000][..], 0, 1000, 4), (&[10, 20, 25, 1000], 10, 2000, 4), (&[0, 1, 2], 0, 2, 2)]
        {
            let scale = scale(bounds, first, end);
            assert_eq!(scale.part_count(), parts);
            let mut before = None;
            for event in first..=end {
                let position = scale.position(event);
                assert!(before < Some(position), "positions increase");
                before = Some(position);
                // A position is rounded down by less than an event.
                assert!(scale.event(position) <= event && scale.event(position + STEP_LENGTH / 900) >= event);
            }
            assert_eq!(scale.position(end), parts as u64 * STEP_LENGTH);
        }
    }

    #[test]
    fn steps_are_equally_long() {
        let scale = scale(&[10, 20, 25, 1000], 0, 1000);
        let starts = [10, 20, 25].map(|event| scale.position(event));
        assert_eq!(starts, [1, 2, 3].map(|part| part * STEP_LENGTH));
        assert_eq!((scale.number(0), scale.number(1), scale.number(3)), (None, Some(1), Some(3)));
        assert_eq!(StepScale::new(&Steps::default(), 0, 10), None);
    }
}
