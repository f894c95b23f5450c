//! The moments at which training steps begin, for filters such as `age>10steps`.

use std::sync::Arc;

use vramscope_trace::{DeviceId, Recording};

use crate::history::History;
use crate::query::{Condition, Query, Span};
use crate::spans::Marks;
use crate::steps::find_steps;

/// Returns true if a query counts ages or lifetimes in steps.
#[must_use]
pub fn uses_steps(query: &Query) -> bool {
    let is_about_steps =
        |condition: &Condition| matches!(condition, Condition::Age(Span::Steps(_)) | Condition::Life(Span::Steps(_)));
    query.terms().iter().any(|term| is_about_steps(&term.condition))
}

/// The inputs of the moments at which steps begin, which are found again when these change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Basis {
    device: DeviceId,
    generation: u64,
    /// The moment up to which the history was complete.
    until: u64,
}

/// The cached moments at which the steps of a device begin; finding them visits all allocations.
#[derive(Clone, Debug, Default)]
pub struct StepStarts {
    basis: Option<Basis>,
    /// The end of the history at the last call.
    last_until: u64,
    starts: Arc<[u64]>,
}

impl StepStarts {
    /// Returns the moments at which the steps of a device begin, ascending; empty until the history
    /// has allocations of the device. While a recording grows, they are found again each time it
    /// has grown by a tenth.
    pub fn get(&mut self, recording: &Recording, marks: &Marks, history: &History, device: DeviceId) -> Arc<[u64]> {
        let Some(lifetimes) = history.lifetimes(device) else { return Arc::default() };
        let basis = Basis { device, generation: history.generation(), until: history.until() };
        let is_growing = basis.until != self.last_until;
        self.last_until = basis.until;
        let is_usable = self.basis.is_some_and(|known| {
            let is_recent = basis.until.saturating_sub(known.until) <= known.until / 10;
            known == basis || (is_growing && is_recent && Basis { until: basis.until, ..known } == basis)
        });
        if !is_usable {
            let steps = find_steps(recording, marks, device, lifetimes, None, |moment| history.time_ns(moment));
            self.starts = steps.as_slice().iter().map(|step| step.from_event).collect();
            self.basis = Some(basis);
        }
        Arc::clone(&self.starts)
    }
}
