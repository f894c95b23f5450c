//! Changes of the program or its settings that may help against a problem.

use vramscope_pool::Settings;
use vramscope_pool::rerun::Edits;
use vramscope_trace::Allocation;

use super::context::Context;
use super::finding::{Problem, Trial};

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
