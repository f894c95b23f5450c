//! A moment of a recording as users name it.

use std::fmt;
use std::str::FromStr;

use vramscope_trace::{Count, DeviceId, Recording};

use crate::history::History;
use crate::spans::Marks;
use crate::steps::{Step, StepSource, StepTable, Steps, find_steps};

/// Prefix of the moment of a step: `step:12`.
const STEP: &str = "step:";
/// Prefix of the moment of a span: `span:forward`.
const SPAN: &str = "span:";

/// A moment of a device of a recording: `peak`, `end`, an event number, `step:N` or `span:NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Moment {
    /// The first moment of the device's most allocated bytes.
    #[default]
    Peak,
    /// The end of the recording.
    End,
    /// After this many events.
    Event(u64),
    /// The first moment of the most allocated bytes within the step with this number, see
    /// [`find_steps`].
    Step(u64),
    /// The first moment of the most allocated bytes within the first span with this name. Of a
    /// mark, its moment.
    Span(String),
}

/// The error of parsing a [`Moment`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a moment: use an event number, peak, end, step:N or span:NAME")]
pub struct ParseMomentError {
    text: String,
}

impl FromStr for Moment {
    type Err = ParseMomentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseMomentError { text: text.chars().take(80).collect() };
        if let Some(number) = text.strip_prefix(STEP) {
            return number.parse().map(Self::Step).map_err(|_| error());
        }
        if let Some(name) = text.strip_prefix(SPAN).filter(|name| !name.is_empty()) {
            return Ok(Self::Span(name.to_owned()));
        }
        match text {
            "peak" => Ok(Self::Peak),
            "end" => Ok(Self::End),
            _ => text.parse().map(Self::Event).map_err(|_| error()),
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peak => f.write_str("peak"),
            Self::End => f.write_str("end"),
            Self::Event(event) => write!(f, "{event}"),
            Self::Step(number) => write!(f, "{STEP}{number}"),
            Self::Span(name) => write!(f, "{SPAN}{name}"),
        }
    }
}

/// The error of looking up a [`Moment`] that a recording does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MomentError {
    /// The recording has no such event.
    #[error("no event {event}: the recording has {}, use {first} to {last}", Count(*events).of("event", "events"))]
    NoEvent {
        /// The event number.
        event: u64,
        /// Number of the recording's events.
        events: u64,
        /// The first moment.
        first: u64,
        /// The last moment.
        last: u64,
    },
    /// The device has no steps at all.
    #[error("no step {number}: {device} has no spans of steps and no sequence of allocations that repeats")]
    NoSteps {
        /// The step's number.
        number: u64,
        /// The device.
        device: DeviceId,
    },
    /// The device has steps, but none with this number.
    #[error("no step {number}: {device} has {}, use {first} to {last}", Count(*steps).of("step", "steps"))]
    NoStep {
        /// The step's number.
        number: u64,
        /// The device.
        device: DeviceId,
        /// Number of the device's steps.
        steps: u64,
        /// The number of the first step.
        first: u64,
        /// The number of the last step.
        last: u64,
    },
    /// No span has this name.
    #[error("no span or mark is named \"{name}\"")]
    NoSpan {
        /// The name.
        name: String,
    },
}

impl Moment {
    /// Returns the event number of this moment on a device. `history` must be complete.
    ///
    /// The cost is that of a look-up, for steps and spans that of a pass over the device's
    /// allocations.
    ///
    /// # Errors
    /// If the recording has no such event, step or span.
    pub fn event(&self, recording: &Recording, history: &History, device: DeviceId) -> Result<u64, MomentError> {
        let (first, last) = (recording.first_event(), recording.end_event());
        match self {
            Self::Peak => {
                let peak = recording.series(device).map_or(first, |series| series.peak_allocated().event);
                Ok(peak.clamp(first, last))
            }
            Self::End => Ok(last),
            &Self::Event(event) if (first..=last).contains(&event) => Ok(event),
            &Self::Event(event) => Err(MomentError::NoEvent { event, events: recording.events(), first, last }),
            &Self::Step(number) => step_event(recording, history, device, number),
            Self::Span(name) => span_event(recording, history, device, name),
        }
    }
}

/// Returns the event number of the peak of a device's step.
fn step_event(recording: &Recording, history: &History, device: DeviceId, number: u64) -> Result<u64, MomentError> {
    let mut marks = Marks::default();
    marks.update(recording);
    let steps = history
        .lifetimes(device)
        .map(|lifetimes| find_steps(recording, &marks, device, lifetimes, None, |moment| history.time_ns(moment)));
    let steps = steps.unwrap_or_default();
    let (Some(first), Some(last)) = (steps.as_slice().first(), steps.as_slice().last()) else {
        return Err(MomentError::NoSteps { number, device });
    };
    let step = steps.as_slice().iter().find(|step| step.number == number).ok_or(MomentError::NoStep {
        number,
        device,
        steps: steps.len() as u64,
        first: first.number,
        last: last.number,
    })?;
    Ok(peak_within(history, device, *step))
}

/// Returns the event number of the peak of the first span with a name that a device's process
/// recorded.
fn span_event(recording: &Recording, history: &History, device: DeviceId, name: &str) -> Result<u64, MomentError> {
    let mut marks = Marks::default();
    marks.update(recording);
    let mut spans = marks.spans_on(recording.info(), device);
    let span = spans.find(|span| recording.definitions().string(span.name) == name);
    let span = span.ok_or_else(|| MomentError::NoSpan { name: name.to_owned() })?;
    let (from_event, to_event) = (span.from_event, span.to_event.unwrap_or(recording.end_event()));
    Ok(peak_within(
        history,
        device,
        Step { number: 1, from_event, to_event, from_ns: span.from_ns, to_ns: span.from_ns },
    ))
}

/// Returns the first moment of a device's most allocated bytes within a step.
fn peak_within(history: &History, device: DeviceId, step: Step) -> u64 {
    let mut table = StepTable::new(&Steps::new(StepSource::Span(String::new()), [step]));
    if let Some(lifetimes) = history.lifetimes(device) {
        while !table.step(lifetimes) {}
    }
    // A step without events is left out of the table.
    table.rows().first().map_or(step.to_event, |row| row.peak_event)
}
