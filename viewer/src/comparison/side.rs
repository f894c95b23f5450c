//! One of the two moments of a comparison.

use vramscope_insight::steps::Step;
use vramscope_trace::{DeviceId, Recording};

use crate::view::Context;

/// One side of a comparison: a moment of a device in a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Whether it is of the second recording.
    pub is_second: bool,
    /// The device.
    pub device: DeviceId,
    /// The moment, as an event number.
    pub event: u64,
    /// The time of the recording, in nanoseconds, that is drawn at the other side's origin: the
    /// start of the recording, or of the compared step.
    pub origin_ns: u64,
    /// Name of the recording or device; empty if both sides have one.
    pub name: String,
    /// A description of the moment, for example `at its peak`.
    pub when: String,
}

/// Moves a side to the moment `peak`, the peak of a step, and its origin to the step's start.
pub(super) fn set_step(side: &mut Side, step: Step, peak: u64) {
    (side.event, side.origin_ns) = (peak, step.from_ns);
    side.when = format!("at the peak of step {}", step.number);
}

/// Sets the sides' names to their devices' labels if the devices differ.
pub(super) fn named(mut sides: [Side; 2], label: impl Fn(DeviceId) -> String) -> [Side; 2] {
    if sides[0].device != sides[1].device {
        sides.iter_mut().for_each(|side| side.name = label(side.device));
    }
    sides
}

/// Returns the recording of a side; `None` if the second recording is no longer open.
pub(crate) fn recording_of<'a>(context: &Context<'a>, side: &Side) -> Option<&'a Recording> {
    match side.is_second {
        true => context.comparison.second().map(|second| &second.recording),
        false => Some(context.recording),
    }
}
