//! What a run of a technique measured.

use std::collections::BTreeMap;

use serde::Serialize;

/// The result of a run. Bytes are those of the allocator's counters.
///
/// Peaks are those of the whole run, except where a program says otherwise: inference resets them
/// when the model is ready, generation after the prompt, and graphs after the warm-up.
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
    /// Number of times that the device provided memory.
    pub device_allocations: u64,
    /// Bytes of allocated blocks after each step.
    pub step_allocated_bytes: Vec<u64>,
    /// Bytes held from the device after each step.
    pub step_reserved_bytes: Vec<u64>,
    /// Bytes of optimizer state.
    pub optimizer_bytes: u64,
    /// The median time of a step after the first two, in milliseconds.
    pub step_ms: f64,
    /// The mean loss, or another number that the result determines, of each step.
    pub losses: Vec<f32>,
    /// What only some programs measure, by name.
    #[serde(flatten)]
    pub figures: BTreeMap<&'static str, Figure>,
}

/// A measured value of one program.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Figure {
    /// A size in bytes.
    Bytes(u64),
    /// A number of things.
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

/// A step that has ended.
#[derive(Clone, Copy, Debug)]
pub struct TechniqueStep {
    /// The step's number, from 1.
    pub number: u64,
    /// Number of all steps.
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

/// Returns the median of `times`, without the first two if there are more: they load kernels and
/// reserve memory. 0 if there are none.
pub(super) fn median_after_warm_up(times: &[f64]) -> f64 {
    let mut times = if times.len() > 2 { times[2..].to_vec() } else { times.to_vec() };
    times.sort_by(f64::total_cmp);
    match times.len() {
        0 => 0.0,
        len if len % 2 == 1 => times[len / 2],
        len => (times[len / 2 - 1] + times[len / 2]) / 2.0,
    }
}
