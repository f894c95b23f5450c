//! Rules about the composition of a peak: temporaries, the start of the program, a dominating role.

use std::collections::BTreeSet;

use vramscope_trace::{Allocation, ByteSize, Category, MempoolId, SiteId};

use super::context::{Context, total_bytes};
use super::copies::loaded_sites;
use super::finding::{Finding, Problem, Severity, is_share};
use super::peak_categories::is_temporary;
use super::remedy::{checkpointed_modules, omitted};
use crate::autopsy::RecordingLines;
use crate::group::Phase;

/// Minimum peak whose composition is examined, in bytes: lower peaks fit every GPU.
const MIN_PEAK_BYTES: u64 = 64 << 20;
/// Number of temporaries that count together: one operation and its inputs and results.
const LARGEST_TEMPORARIES: usize = 4;
/// Minimum share of the peak that the largest temporaries make up together, in percent.
const MIN_TEMPORARY_PERCENT: u64 = 42;
/// Maximum peak after the start of a program, in percent of the start's peak, for the start to be a
/// problem.
const MAX_LATER_PERCENT: u64 = 75;
/// Minimum number of steps after the start for it to be a problem.
const MIN_LATER_STEPS: usize = 3;
/// Minimum share of the peak from which activations dominate, in percent.
const MIN_ACTIVATION_PERCENT: u64 = 70;
/// Minimum share of the peak from which the optimizer's state dominates, in percent.
const MIN_STATE_PERCENT: u64 = 45;
/// Minimum share of the peak from which gradients dominate, in percent.
const MIN_GRADIENT_PERCENT: u64 = 38;
/// Minimum share of the peak from which gradients dominate, in percent, if they also have
/// [`MIN_GRADIENT_MULTIPLE_PERCENT`] of the parameters' bytes.
const MIN_SMALL_GRADIENT_PERCENT: u64 = 28;
/// Bytes of gradients, in percent of the parameters' bytes, that show more than the one copy that a
/// program needs.
const MIN_GRADIENT_MULTIPLE_PERCENT: u64 = 180;
/// Bytes that an 8-bit optimizer state saves compared with a 32-bit one, in percent.
const EIGHT_BIT_SAVING_PERCENT: u64 = 75;

/// Returns `bytes` in whole percent of `total`.
fn percent(bytes: u64, total: u64) -> u64 {
    (u128::from(bytes) * 100 / u128::from(total.max(1))) as u64
}

/// Finds a start that needs much more than the steps after it.
pub(super) fn start(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let peak = context.peak_allocated;
    let later = context.profile.step_peaks.iter().zip(context.steps.as_slice());
    // The first step belongs to the start, if the peak lies in it.
    let later: Vec<_> = later.filter(|(_, step)| step.from_event >= peak.event).collect();
    let skipped = context.steps.len() - later.len();
    if skipped > 1 || later.len() < MIN_LATER_STEPS {
        return None;
    }
    let later_bytes = later.iter().map(|(bytes, _)| **bytes).max()?;
    let begin = later.first()?.1.from_event;
    if is_share(later_bytes, MAX_LATER_PERCENT, peak.bytes) {
        return None;
    }
    let is_gone = |one: &Allocation| one.allocated_until.is_some_and(|until| until <= begin);
    let gone: Vec<Allocation> = context.peak_contents.iter().map(|(_, one)| *one).filter(is_gone).collect();
    // A CUDA graph needs the memory of its pool again at each replay, without requests.
    let is_of_default_pool = |one: &&Allocation| one.pool.owner == MempoolId::default();
    let freed_bytes = total_bytes(gone.iter().filter(is_of_default_pool));
    let bytes = (peak.bytes - later_bytes).min(freed_bytes);
    if !is_share(bytes, 100 - MAX_LATER_PERCENT, peak.bytes) {
        return None;
    }
    let summary = format!(
        "The peak of {} is reached at the start only: the steps after it need {} at most. {} of the peak were freed \
         before them.",
        ByteSize(peak.bytes),
        ByteSize(later_bytes),
        ByteSize(total_bytes(&gone))
    );
    let mut finding = context.finding(lines, Problem::StartPeak, bytes, &gone, summary);
    finding.events = (peak.event, peak.event);
    finding.remedy = Some(
        "Load checkpoints with map_location=\"cpu\", warm up with a small batch, or compute statistics in parts."
            .to_owned(),
    );
    let loaded = loaded_sites(context.recording.definitions());
    if gone.iter().any(|one| loaded.contains(&one.site)) {
        finding.code = &["state = torch.load(path, map_location=\"cpu\")"];
    }
    // Omit all blocks that the start frees, not only those at the peak: otherwise another copy or
    // batch of the start makes the next peak.
    let of_start = |one: &Allocation| one.first_moment <= begin && is_gone(one) && is_of_default_pool(&one);
    finding.trials = vec![omitted(context, context.lifetimes.iter().filter(of_start))];
    Some(at_most_medium(finding))
}

/// Finds large temporaries at the peak.
pub(super) fn temporaries(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let peak = context.peak_allocated;
    let mut temporaries = context.of_category(Category::Temporary);
    temporaries.retain(is_temporary);
    temporaries.sort_by_key(|one| (std::cmp::Reverse(one.size), one.first_moment));
    temporaries.truncate(LARGEST_TEMPORARIES);
    let bytes = total_bytes(&temporaries);
    if !is_share(bytes, MIN_TEMPORARY_PERCENT, peak.bytes) || peak.bytes < MIN_PEAK_BYTES {
        return None;
    }
    let summary = format!(
        "{} of the peak of {} ({}%) are {} temporaries, the largest of {}, which are freed soon after.",
        ByteSize(bytes),
        ByteSize(peak.bytes),
        percent(bytes, peak.bytes),
        temporaries.len(),
        ByteSize(temporaries.first()?.size)
    );
    let mut finding = context.finding(lines, Problem::TemporaryPeak, bytes, &temporaries, summary);
    finding.events = (peak.event, peak.event);
    finding.remedy = Some(
        "Avoid these tensors: compute the result in small parts, in place, or by one operation; the simulation omits \
         them."
            .to_owned(),
    );
    let requested: BTreeSet<(SiteId, u64)> = temporaries.iter().map(|one| (one.site, one.size)).collect();
    let is_repeated = |one: &Allocation| is_temporary(one) && requested.contains(&(one.site, one.size));
    // A computation in parts also divides other large blocks; how much that saves is not known.
    let least_bytes = temporaries.last().map_or(0, |one| one.size / 2);
    let is_other = |one: &&Allocation| temporaries.iter().all(|temporary| temporary.first_moment != one.first_moment);
    let of_step = [context.of_category(Category::Activation), context.of_category(Category::Temporary)];
    if of_step.iter().flatten().filter(is_other).all(|one| one.size < least_bytes) {
        finding.trials = vec![omitted(context, context.lifetimes.iter().filter(is_repeated))];
    }
    Some(advice(finding))
}

/// Finds a role that makes up most of the peak.
pub(super) fn dominant(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let peak = context.peak_allocated;
    if peak.bytes < MIN_PEAK_BYTES {
        return None;
    }
    let (parameters, gradients) = (context.of_category(Category::Parameter), context.of_category(Category::Gradient));
    let (state, activations) =
        (context.of_category(Category::OptimizerState), context.of_category(Category::Activation));
    let is_training = !gradients.is_empty() || !state.is_empty();
    let share = |blocks: &[Allocation]| {
        let bytes = total_bytes(blocks);
        format!("{} of the peak of {} ({}%)", ByteSize(bytes), ByteSize(peak.bytes), percent(bytes, peak.bytes))
    };
    let (problem, blocks, summary, remedy) = if is_share(total_bytes(&state), MIN_STATE_PERCENT, peak.bytes) {
        let bytes = total_bytes(&state);
        let saved = ByteSize(bytes / 100 * EIGHT_BIT_SAVING_PERCENT);
        let summary = format!("{} are the optimizer's state.", share(&state));
        let half = ByteSize(bytes / 2);
        let remedy = format!(
            "8-bit states save about {saved}; sharding the state over two ranks saves {half} on each (estimates)."
        );
        (Problem::DominantOptimizerState, state, summary, remedy)
    } else if gradients_dominate(total_bytes(&gradients), total_bytes(&parameters), peak.bytes) {
        let (bytes, own) = (total_bytes(&gradients), total_bytes(&parameters));
        let summary = format!("{} are gradients, for {} of parameters.", share(&gradients), ByteSize(own));
        let saved = ByteSize(bytes.saturating_sub(own));
        let remedy = format!(
            "Add gradients up in one copy of the parameters' type: saves about {saved} (estimate); clear them with \
             zero_grad(set_to_none=True)."
        );
        (Problem::DominantGradients, gradients, summary, remedy)
    } else if is_training && is_share(total_bytes(&activations), MIN_ACTIVATION_PERCENT, peak.bytes) {
        let summary = format!("{} are activations that the backward pass needs.", share(&activations));
        let remedy = checkpoint_estimate(lines, &activations);
        (Problem::DominantActivations, activations, summary, remedy)
    } else {
        return None;
    };
    let mut finding = context.finding(lines, problem, total_bytes(&blocks), &blocks, summary);
    finding.events = (peak.event, peak.event);
    finding.remedy = Some(remedy);
    if problem == Problem::DominantActivations {
        finding.trials = checkpointed_modules(context, lines);
    }
    Some(advice(finding))
}

/// Returns true if gradients of `bytes` are a large part of the peak, or a smaller part that is
/// more than one copy of the parameters.
fn gradients_dominate(bytes: u64, parameter_bytes: u64, peak_bytes: u64) -> bool {
    is_share(bytes, MIN_GRADIENT_PERCENT, peak_bytes)
        || (is_share(bytes, MIN_SMALL_GRADIENT_PERCENT, peak_bytes)
            && is_share(bytes, MIN_GRADIENT_MULTIPLE_PERCENT, parameter_bytes))
}

/// Returns a sentence on the bytes that checkpointing the modules saves at most.
fn checkpoint_estimate(lines: &RecordingLines<'_>, activations: &[Allocation]) -> String {
    let in_modules = activations.iter().filter(|one| lines.phase(one.site) == Some(Phase::Forward));
    let bytes = total_bytes(in_modules);
    format!(
        "Checkpoint the repeated modules (torch.utils.checkpoint): {} of activations are then computed again in the \
         backward pass, but for each module's input (estimate); or use a smaller batch.",
        ByteSize(bytes)
    )
}

/// Lowers the severity of a finding to low, because the memory serves the program.
fn advice(mut finding: Finding) -> Finding {
    finding.severity = Severity::Low;
    finding
}

/// Lowers the severity of a finding to medium if it is higher, because the program needs the
/// memory.
fn at_most_medium(mut finding: Finding) -> Finding {
    finding.severity = finding.severity.min(Severity::Medium);
    finding
}
