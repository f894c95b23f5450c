//! The results of a run of techniques.

use std::collections::BTreeMap;

use serde::Serialize;

/// The results of a run. Bytes are read from the allocator's counters.
///
/// Peaks cover the whole run, except in three programs: inference resets them when the model is
/// ready, generation after the prompt, and graphs after the warm-up.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TechniqueReport {
    /// The techniques' names, joined by commas.
    pub technique: String,
    /// `host` or `cuda`.
    pub device: &'static str,
    /// Most bytes of allocated blocks at one moment.
    pub peak_allocated_bytes: u64,
    /// Most bytes that the program had requested for live blocks at one moment, before rounding.
    pub peak_requested_bytes: u64,
    /// Most bytes held from the device at one moment.
    pub peak_reserved_bytes: u64,
    /// Most bytes of free blocks at one moment that could not be released, because other blocks of
    /// their segments were in use.
    pub peak_inactive_split_bytes: u64,
    /// Bytes of allocated blocks after the last step.
    pub end_allocated_bytes: u64,
    /// Bytes held from the device after the last step.
    pub end_reserved_bytes: u64,
    /// Number of allocations from the device, such as calls of `cuMemAlloc`.
    pub device_allocations: u64,
    /// Bytes of allocated blocks after each step.
    pub step_allocated_bytes: Vec<u64>,
    /// Bytes held from the device after each step.
    pub step_reserved_bytes: Vec<u64>,
    /// Bytes of optimizer state.
    pub optimizer_bytes: u64,
    /// The median time of a step after the first two, in milliseconds.
    pub step_ms: f64,
    /// The mean loss of each step. Programs without a loss report another number computed from the
    /// step's result.
    pub losses: Vec<f32>,
    /// Values that only some programs measure, by name.
    #[serde(flatten)]
    pub figures: BTreeMap<&'static str, Figure>,
}

/// A measured value of one program.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Figure {
    /// A size in bytes.
    Bytes(u64),
    /// A count.
    Count(u64),
    /// A number without unit.
    Number(f64),
    /// A text.
    Text(String),
    /// Several numbers.
    List(Vec<u64>),
}

impl Figure {
    /// Returns the value of a size or count.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Bytes(value) | Self::Count(value) => Some(value),
            _ => None,
        }
    }
}

/// The measurements of a step that has ended.
#[derive(Clone, Copy, Debug)]
pub struct TechniqueStep {
    /// The step's number, from 1.
    pub number: u64,
    /// Total number of steps of the run.
    pub steps: u64,
    /// The loss.
    pub loss: f32,
    /// Bytes of allocated blocks after the step.
    pub allocated_bytes: u64,
    /// Bytes held from the device after the step.
    pub reserved_bytes: u64,
    /// Most bytes of allocated blocks so far.
    pub peak_allocated_bytes: u64,
}

/// Returns the median of `times`, or 0 if there are none. Of more than two, leaves out the first
/// two: these steps load kernels and reserve memory.
pub(super) fn median_after_warm_up(times: &[f64]) -> f64 {
    let mut times = if times.len() > 2 { times[2..].to_vec() } else { times.to_vec() };
    times.sort_by(f64::total_cmp);
    match times.len() {
        0 => 0.0,
        len if len % 2 == 1 => times[len / 2],
        len => (times[len / 2 - 1] + times[len / 2]) / 2.0,
    }
}
