//! Changes of the program or its settings that may help against a problem.

use std::collections::BTreeMap;

use vramscope_pool::Settings;
use vramscope_pool::rerun::{Edits, Workload};
use vramscope_trace::{Allocation, ByteSize, Category, SiteId};

use super::context::Context;
use super::finding::{Goal, Problem, Trial};
use crate::advice::{Advisor, count_keys, required_pytorch};
use crate::autopsy::{ModuleCall, ModuleCalls, RecordingLines, checkpointed};
use crate::steps::Steps;

/// The newest version of PyTorch that a remedy may need without saying so.
const COMMON_PYTORCH: (u32, u32) = (2, 1);
/// Maximum number of recorded calls for which all settings are tried: a run takes about 0.1
/// microseconds a call.
const MAX_ADVISED_CALLS: u64 = 1_000_000;

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
    tried.into_iter().filter(|settings| settings != recorded).map(|settings| of_settings(recorded, settings)).collect()
}

/// Returns the trial of other settings than the `recorded` ones.
fn of_settings(recorded: &Settings, settings: Settings) -> Trial {
    let conf = settings.to_conf();
    let (major, minor) = required_pytorch(&settings);
    let detail = if conf.is_empty() {
        format!("Omit {} from PYTORCH_CUDA_ALLOC_CONF.", recorded.to_conf())
    } else if (major, minor) > COMMON_PYTORCH {
        format!("Set PYTORCH_CUDA_ALLOC_CONF={conf} for the program (needs PyTorch {major}.{minor}).")
    } else {
        format!("Set PYTORCH_CUDA_ALLOC_CONF={conf} for the program.")
    };
    Trial { detail: Some(detail), settings, edits: Edits::default(), goal: Goal::ReservedPeak }
}

/// Returns the trials of the settings that [`advice`](crate::advice) tries first, the simplest
/// first. A long recording gets only the one that usually helps.
pub(super) fn advised_trials(workload: &Workload, recorded: &Settings, capacity_bytes: Option<u64>) -> Vec<Trial> {
    let mut advisor = Advisor::new(workload, recorded, capacity_bytes);
    let mut tried: Vec<Settings> = std::iter::from_fn(|| advisor.next_run()).map(|run| run.settings).collect();
    if workload.calls() > MAX_ADVISED_CALLS {
        tried.retain(|settings| settings.expandable_segments && count_keys(settings) == 1);
    }
    let unlimited = Settings { limit_bytes: None, ..recorded.clone() };
    tried.retain(|settings| *settings != unlimited);
    tried.sort_by_key(|settings| (count_keys(settings), required_pytorch(settings)));
    let limited = |settings| Settings { limit_bytes: recorded.limit_bytes, ..settings };
    tried.into_iter().map(|settings| of_settings(recorded, limited(settings))).collect()
}

/// Returns the trial of the program changed by `edits`, for the remedy that the finding already
/// describes.
fn changed(context: &Context<'_>, edits: Edits) -> Trial {
    Trial { detail: None, settings: context.settings.clone(), edits, goal: Goal::ReservedPeak }
}

/// Returns the trial that frees each block at the end of the step in which it was allocated. A
/// block allocated between two steps counts for the later one.
pub(super) fn freed_in_step(
    context: &Context<'_>,
    steps: &Steps,
    blocks: impl IntoIterator<Item = Allocation>,
) -> Trial {
    let mut edits = Edits::default();
    let steps = steps.as_slice();
    for one in blocks {
        // Blocks that were allocated after the last step are not freed earlier.
        if let Some(step) = steps.get(steps.partition_point(|step| step.to_event < one.first_moment)) {
            edits.free_before(one.first_moment, step.to_event.saturating_add(1));
        }
    }
    changed(context, edits)
}

/// Returns the trial without the requests that allocated `blocks`.
pub(super) fn omitted(context: &Context<'_>, blocks: impl IntoIterator<Item = Allocation>) -> Trial {
    let mut edits = Edits::default();
    blocks.into_iter().for_each(|one| edits.divide(one.first_moment, 0));
    changed(context, edits)
}

/// Returns the trial that requests the blocks `last` when the first of them and of `versions` is
/// requested, and never requests `versions`: tensors that each step replaced by longer ones, made
/// once at their final sizes.
pub(super) fn allocated_once(context: &Context<'_>, versions: &[Allocation], last: &[Allocation]) -> Trial {
    let mut edits = Edits::default();
    let first = versions.iter().chain(last).map(|one| one.first_moment).min().unwrap_or(0);
    versions.iter().for_each(|one| edits.divide(one.first_moment, 0));
    last.iter().for_each(|one| edits.request_before(one.first_moment, first));
    changed(context, edits)
}

/// Returns the trial in which the frees of blocks do not wait for other streams.
pub(super) fn freed_at_once(context: &Context<'_>, blocks: impl IntoIterator<Item = Allocation>) -> Trial {
    let mut edits = Edits::default();
    edits.freed_at_once.extend(blocks.into_iter().map(|one| one.first_moment));
    changed(context, edits)
}

/// Returns the trial in which blocks are freed before the program frees them: each request with the
/// event before which its block is freed.
pub(super) fn freed_before(context: &Context<'_>, frees: impl IntoIterator<Item = (u64, u64)>) -> Trial {
    let mut edits = Edits::default();
    frees.into_iter().for_each(|(request, event)| edits.free_before(request, event));
    changed(context, edits)
}

/// Returns the trial in which blocks are freed `events` events after their request at the latest,
/// and those for which `is_omitted` is true are not requested.
pub(super) fn shortened(
    context: &Context<'_>,
    blocks: impl IntoIterator<Item = Allocation>,
    events: u64,
    is_omitted: impl Fn(&Allocation) -> bool,
) -> Trial {
    let mut edits = Edits::default();
    for one in blocks {
        match is_omitted(&one) {
            true => edits.divide(one.first_moment, 0),
            false => edits.free_before(one.first_moment, one.first_moment.saturating_add(events)),
        }
    }
    changed(context, edits)
}

/// Returns the trial in which blocks hold nothing but requested bytes: the requests whose tensors
/// the unused bytes of the others can hold are left out.
pub(super) fn packed(context: &Context<'_>, blocks: impl IntoIterator<Item = Allocation>) -> Trial {
    let mut edits = Edits::default();
    // Bytes of each site's tensors that no block holds yet.
    let mut waiting: BTreeMap<SiteId, u64> = BTreeMap::new();
    for one in blocks {
        let waiting = waiting.entry(one.site).or_default();
        *waiting = waiting.saturating_add(one.requested);
        match waiting.checked_sub(one.size) {
            Some(rest) => *waiting = rest,
            None => edits.divide(one.first_moment, 0),
        }
    }
    changed(context, edits)
}

/// Returns the trial that requests blocks from the default pool instead of a private one.
pub(super) fn in_default_pool(context: &Context<'_>, blocks: impl IntoIterator<Item = Allocation>) -> Trial {
    let mut edits = Edits::default();
    edits.from_default_pool.extend(blocks.into_iter().map(|one| one.first_moment));
    changed(context, edits)
}

/// Returns the trial in which all private pools are one.
pub(super) fn one_private_pool(context: &Context<'_>) -> Trial {
    let mut edits = Edits::default();
    edits.shares_private_pools = true;
    changed(context, edits)
}

/// Returns the trial in which the program does not empty the cache.
pub(super) fn without_emptying_cache(context: &Context<'_>) -> Trial {
    let mut edits = Edits::default();
    edits.keeps_cache = true;
    Trial { goal: Goal::DeviceAllocations, ..changed(context, edits) }
}

/// Returns the trials that compute the activations of repeated module calls again in the backward
/// pass, one for each line that calls modules.
pub(super) fn checkpointed_modules(context: &Context<'_>, lines: &RecordingLines<'_>) -> Vec<Trial> {
    let peak = context.peak_allocated.event;
    let activations = context.lifetimes.iter().filter(|one| lines.category_of(one) == Category::Activation);
    let definitions = context.recording.definitions();
    let step = context.steps.at(peak).map_or(0, |step| step.from_event);
    let calls = ModuleCalls::new(definitions, activations, step, peak.saturating_add(1));
    let trial = |call: &ModuleCall| {
        let mut edits = Edits::default();
        for (request, from, to) in checkpointed(call, u64::MAX) {
            edits.free_between(request, from, to);
        }
        let detail = format!(
            "Use torch.utils.checkpoint for {}: {} of activations in {} calls are then computed again in the backward \
             pass.",
            call.name,
            ByteSize(call.bytes),
            call.calls
        );
        Trial { detail: Some(detail), ..changed(context, edits) }
    };
    calls.largest().iter().map(trial).collect()
}
