//! Changes of the program or its settings, checked by simulating the recorded program with them.

use vramscope_pool::Settings;
use vramscope_pool::rerun::{Edits, Workload};
use vramscope_trace::{Allocation, ByteSize};

use super::context::Context;
use super::finding::{Finding, Problem};

/// A checked remedy saves at least this share of the recorded reserved peak, as a divisor.
const MIN_SAVING: u64 = 20;

/// A change to simulate.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trial {
    /// The change as a sentence; `None` for the finding's own remedy.
    detail: Option<String>,
    settings: Settings,
    edits: Edits,
}

/// What the simulation of a remedy showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedRemedy {
    /// Bytes by which the reserved peak of the changed run is below the recorded one.
    pub saves_bytes: u64,
    /// The reserved peak of the changed run.
    pub peak_reserved_bytes: u64,
}

/// Returns the allocator settings that may help against a problem.
pub(super) fn settings_trials(context: &Context<'_>, problem: Problem) -> Vec<Trial> {
    let recorded = context.settings;
    let plain = Settings {
        max_split_size_bytes: None,
        garbage_collection_threshold: 0.0,
        roundup_power2_divisions: Settings::default().roundup_power2_divisions,
        ..recorded.clone()
    };
    let expandable = Settings { expandable_segments: true, ..plain.clone() };
    let tried = match problem {
        Problem::OversizeRanges => vec![plain],
        Problem::NearFailure | Problem::RecreatedSegments | Problem::RoundingWaste => vec![plain, expandable],
        _ => Vec::new(),
    };
    let trial = |settings: Settings| {
        let conf = settings.to_conf();
        let detail = if conf.is_empty() {
            format!("Omit {} from PYTORCH_CUDA_ALLOC_CONF.", recorded.to_conf())
        } else {
            format!("Set PYTORCH_CUDA_ALLOC_CONF={conf}.")
        };
        Trial { detail: Some(detail), settings, edits: Edits::default() }
    };
    tried.into_iter().filter(|settings| settings != recorded).map(trial).collect()
}

/// Returns the trial that frees each block at the end of the step in which it was allocated.
pub(super) fn freed_in_step(context: &Context<'_>, blocks: impl IntoIterator<Item = Allocation>) -> Trial {
    let mut edits = Edits::default();
    for one in blocks {
        if let Some(step) = context.steps.at(one.first_moment) {
            edits.free_before(one.first_moment, step.to_event.saturating_add(1));
        }
    }
    Trial { detail: None, settings: context.settings.clone(), edits }
}

/// Returns the trial in which the frees of blocks complete at once.
pub(super) fn completed_at_once(context: &Context<'_>, freed: impl IntoIterator<Item = u64>) -> Trial {
    let mut edits = Edits::default();
    freed.into_iter().for_each(|event| edits.synchronize_before(event.saturating_add(1)));
    Trial { detail: None, settings: context.settings.clone(), edits }
}

impl Finding {
    /// Returns true if the finding has a remedy to simulate.
    #[must_use]
    pub fn can_be_checked(&self) -> bool {
        !self.trials.is_empty()
    }

    /// Simulates the remedies of the finding, and keeps the one that saves most, if it saves at
    /// least a twentieth of the recorded reserved peak. The pool may reserve `capacity_bytes`.
    ///
    /// Nothing is kept if the simulation of the unchanged program differs from the recording.
    pub fn check(&mut self, workload: &Workload, settings: &Settings, capacity_bytes: Option<u64>) {
        let recorded_bytes = workload.recorded.peak_reserved_bytes;
        if self.trials.is_empty() || workload.simulate(settings, capacity_bytes).peak_reserved_bytes != recorded_bytes {
            return;
        }
        for trial in &self.trials {
            let run = workload.edited(&trial.edits).simulate(&trial.settings, capacity_bytes);
            let saves_bytes = recorded_bytes.saturating_sub(run.peak_reserved_bytes);
            let is_better = self.checked.is_none_or(|best| saves_bytes > best.saves_bytes);
            if run.ooms > 0 || saves_bytes < recorded_bytes / MIN_SAVING || !is_better {
                continue;
            }
            self.checked = Some(CheckedRemedy { saves_bytes, peak_reserved_bytes: run.peak_reserved_bytes });
            if let Some(detail) = &trial.detail {
                self.remedy = Some(detail.clone());
            }
        }
    }

    /// Returns the remedy with its saving, if it was checked.
    #[must_use]
    pub fn remedy_text(&self) -> Option<String> {
        let remedy = self.remedy.as_deref()?;
        Some(match self.checked {
            Some(checked) => format!(
                "{remedy} Checked by simulation: reserves {} less, {} at most.",
                ByteSize(checked.saves_bytes),
                ByteSize(checked.peak_reserved_bytes)
            ),
            None => remedy.to_owned(),
        })
    }
}
