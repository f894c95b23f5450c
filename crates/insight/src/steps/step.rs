//! The steps of a training run, and how they were found.

use std::ops::RangeInclusive;

use vramscope_trace::SiteId;

/// One step of a training run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The number in the step's name (`ProfilerStep#12`); without one, steps count from 1.
    pub number: u64,
    /// The moment at which it begins; the step's first event has the next number.
    pub from_event: u64,
    /// The moment at which it ends: the number of the step's last event.
    pub to_event: u64,
    /// Start time, in nanoseconds since the recording's time 0.
    pub from_ns: u64,
    /// End time, in nanoseconds since the recording's time 0.
    pub to_ns: u64,
}

impl Step {
    /// Returns the numbers of the step's events.
    #[must_use]
    pub fn event_numbers(&self) -> RangeInclusive<u64> {
        self.from_event.saturating_add(1)..=self.to_event
    }
}

/// How the steps of a recording were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepSource {
    /// Spans or marks of this name; `N` stands for the number (`ProfilerStep#N`).
    Span(String),
    /// The recording has no suitable spans; steps were inferred from a sequence of allocations that
    /// repeats.
    Inferred {
        /// A site that makes one allocation in each step.
        site: SiteId,
        /// Share of the allocations that consecutive steps have in common, in percent.
        regularity_percent: u8,
    },
}

/// The steps of a training run on one device, in order. They do not overlap; events may lie between
/// two steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    source: Option<StepSource>,
    steps: Vec<Step>,
}

impl Steps {
    /// Creates steps from a list. Leaves out steps without events, and steps that begin before the
    /// previous step ends.
    #[must_use]
    pub fn new(source: StepSource, steps: impl IntoIterator<Item = Step>) -> Self {
        let mut kept: Vec<Step> = Vec::new();
        for step in steps {
            let follows = kept.last().is_none_or(|last| step.from_event >= last.to_event);
            if follows && step.from_event < step.to_event {
                kept.push(step);
            }
        }
        Self { source: Some(source).filter(|_| !kept.is_empty()), steps: kept }
    }

    /// Returns how the steps were found; `None` without steps.
    #[must_use]
    pub fn source(&self) -> Option<&StepSource> {
        self.source.as_ref()
    }

    /// Returns all steps.
    #[must_use]
    pub fn as_slice(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the number of steps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns true if no step was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the position (from 0) of the step that contains the event with a number, or `None`
    /// if the event lies outside of every step.
    #[must_use]
    pub fn position_of(&self, event: u64) -> Option<usize> {
        let position = self.begun_before(event).checked_sub(1)?;
        Some(position).filter(|&position| event <= self.steps[position].to_event)
    }

    /// Returns the step that contains the event with a number, or `None` if the event lies outside
    /// of every step.
    #[must_use]
    pub fn at(&self, event: u64) -> Option<&Step> {
        self.position_of(event).map(|position| &self.steps[position])
    }

    /// Returns how many steps begin before the event with a number.
    pub(crate) fn begun_before(&self, event: u64) -> usize {
        self.steps.partition_point(|step| step.from_event < event)
    }

    /// Returns how many of the first steps count as warm-up unless the user says otherwise: a tenth
    /// of them, at least 1 and at most 10. They create memory that a program keeps, such as the
    /// optimizer's state.
    #[must_use]
    pub fn default_warm_up(&self) -> usize {
        (self.len() / 10).clamp(1, 10)
    }

    /// Returns up to `count` evenly spaced steps after the first `warm_up` ones, the last step
    /// always among them.
    #[must_use]
    pub fn spread(&self, warm_up: usize, count: usize) -> Vec<Step> {
        let steps = self.steps.get(warm_up..).unwrap_or_default();
        if steps.len() <= count {
            return steps.to_vec();
        }
        let Some(last) = count.checked_sub(1) else { return Vec::new() };
        let end = steps.len() - 1;
        let position = |index: usize| (index * end).checked_div(last).unwrap_or(end);
        (0..count).map(|index| steps[position(index)]).collect()
    }
}
