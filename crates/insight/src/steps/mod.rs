//! The steps of a training run, and memory by step.
//!
//! [`find_steps`] takes the first of these that the recording has:
//!
//! 1. spans with the name that the user chose, with or without a number;
//! 2. `ProfilerStep#N`, the spans of `torch.profiler`;
//! 3. numbered spans named `step`, `train_step`, `training_step`, `iteration` or `iter`;
//! 4. spans with one of these names and no number;
//! 5. `Optimizer.step#…`, which PyTorch records: a step lasts until its end, or until the gradients
//!    are cleared if nothing is allocated before; the first step begins with the recording, and
//!    events after the last optimizer step are in no step;
//! 6. a series of at least three numbered spans with another name (`epoch 3`), at the outermost
//!    level;
//! 7. a sequence of allocations that repeats (`inferred`).
//!
//! Marks count like spans: each lasts until the next one of its kind.

mod allocated_curve;
mod from_spans;
mod groups_by_step;
mod inferred;
mod span_names;
mod step;
mod step_table;

use vramscope_trace::{DeviceId, DeviceLifetimes, Recording};

pub(crate) use allocated_curve::{AllocatedCurve, CurvePoint};
pub use from_spans::current_step;
pub(crate) use from_spans::split_number;
pub use groups_by_step::{
    GroupInStep, GroupRow, GroupsByStep, GrowingGroups, Growth, MAX_COMPARED_STEPS, MIN_GROWTH_STEPS,
};
pub use span_names::{SpanName, span_names};
pub use step::{Step, StepSource, Steps};
pub use step_table::{StepMemory, StepTable};

use crate::spans::{Marks, Span};
use from_spans::Bounds;

/// Finds the steps of a device: from spans, or without them from a sequence of allocations that
/// repeats. Without either there are no steps.
///
/// `marks` are the recording's spans, `lifetimes` the device's allocations; `chosen_span` is the
/// name of the span that the user chose as a step. `time_ns` returns the time of a moment. The cost
/// is linear in the number of spans and allocations, about 50 ms for a million allocations.
#[must_use]
pub fn find_steps(
    recording: &Recording,
    marks: &Marks,
    device: DeviceId,
    lifetimes: &DeviceLifetimes,
    chosen_span: Option<&str>,
    time_ns: impl Fn(u64) -> u64,
) -> Steps {
    let bounds = Bounds {
        from_event: recording.first_event(),
        to_event: recording.end_event(),
        from_ns: recording.start_ns(),
        to_ns: recording.end_ns(),
    };
    let allocations_until = |moments: &[u64]| lifetimes.counts_until(moments.iter().copied()).collect();
    let info = recording.info();
    let definitions = recording.definitions();
    // The devices of a process share its spans, but the device's own spans take precedence.
    let own: Vec<&Span> = marks.spans().iter().filter(|span| span.device == device).collect();
    let steps = from_spans::find(own.iter().copied(), definitions, bounds, chosen_span, &allocations_until);
    if !steps.is_empty() {
        return steps;
    }
    let shared: Vec<&Span> = marks.spans_on(info, device).collect();
    let steps = from_spans::find(shared.iter().copied(), definitions, bounds, chosen_span, &allocations_until);
    if !steps.is_empty() || chosen_span.is_some() {
        return steps;
    }
    infer_steps(recording, lifetimes, time_ns)
}

/// Infers the steps of a device from a sequence of allocations that repeats at least five times,
/// without regard to spans. No steps if no sequence repeats clearly.
///
/// `time_ns` returns the time of a moment.
#[must_use]
pub fn infer_steps(recording: &Recording, lifetimes: &DeviceLifetimes, time_ns: impl Fn(u64) -> u64) -> Steps {
    inferred::infer(lifetimes, recording.end_event(), time_ns)
}
