//! Memory that the exception of a failed step keeps alive.
//!
//! An exception has a traceback, whose frames refer to all local variables of the functions that
//! were left. A program that keeps the exception keeps the tensors of the failed step.

use std::collections::BTreeSet;
use std::ops::Range;

use vramscope_trace::{Allocation, ByteSize, Category, SiteId};

use super::context::{Context, total_bytes};
use super::finding::{Finding, Problem};
use super::peak_categories::is_temporary;
use super::remedy::freed_before;
use crate::autopsy::RecordingLines;
use crate::group::Phase;
use crate::steps::Step;

/// Minimum number of steps to compare.
const MIN_STEPS: usize = 4;
/// Divisor: steps whose activations stay are exceptions if they are at most a quarter of all.
const MAX_FAILED: usize = 4;
/// Minimum number of sites whose activations stay: one or two may be results.
const MIN_SITES: usize = 3;
/// Divisor: at least a quarter of the lasting activations of a step stay. A failed step may be part
/// of the next one; what a program keeps for display is less.
const MIN_KEPT_PART: u64 = 4;
/// Divisor: memory counts if it is at least a twentieth of the allocated peak.
const MIN_SHARE: u64 = 20;

/// A step whose activations stay allocated after it.
struct FailedStep {
    kept: Vec<Allocation>,
    /// The moment after which the step fails.
    last: u64,
    /// Whether a request failed in it.
    has_failed_request: bool,
    /// The events of the step.
    events: Range<u64>,
}

/// The finding about memory that exceptions keep alive.
pub(super) struct KeptByExceptions {
    pub(super) finding: Finding,
    /// The events of the failed steps, in order.
    pub(super) steps: Vec<Range<u64>>,
}

/// Finds steps whose activations stay allocated, while those of other steps are freed.
pub(super) fn find(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<KeptByExceptions> {
    let steps = context.steps.as_slice();
    if steps.len() < MIN_STEPS {
        return None;
    }
    let failed = failed_steps(context, lines);
    let blocks: Vec<Allocation> = failed.iter().flat_map(|step| step.kept.iter().copied()).collect();
    let bytes = total_bytes(&blocks);
    if failed.is_empty()
        || failed.len() > steps.len().div_ceil(MAX_FAILED)
        || bytes < context.peak_allocated.bytes / MIN_SHARE
    {
        return None;
    }
    let failure = match failed.iter().any(|step| step.has_failed_request) {
        true => "a failed request",
        false => "a failed step",
    };
    let exceptions = if failed.len() == 1 { "the exception of" } else { "exceptions like that of" };
    let summary = format!(
        "{} of activations stay allocated after the step that made them: probably, {exceptions} {failure} was kept, \
         and with it all local variables.",
        ByteSize(bytes)
    );
    let mut finding = context.finding(lines, Problem::KeptByException, bytes, &blocks, summary);
    finding.remedy = Some(
        "Keep str(error), not the exception; leave the except block before the next attempt; or call \
         traceback.clear_frames(error.__traceback__)."
            .to_owned(),
    );
    let frees = failed.iter().flat_map(|step| step.kept.iter().map(|one| (one.first_moment, step.last)));
    finding.trials = vec![freed_before(context, frees)];
    let steps = failed.into_iter().map(|step| step.events).collect();
    Some(KeptByExceptions { finding, steps })
}

/// Returns the bytes of the activations of a step that are not freed soon: those of its graph.
fn lasting_bytes(context: &Context<'_>, step: &Step, is_activation: impl Fn(&&Allocation) -> bool) -> u64 {
    let made = context.lifetimes.active_between(step.from_event, step.to_event);
    let lasting = made.filter(|one| one.first_moment > step.from_event && is_activation(&one) && !is_temporary(one));
    lasting.fold(0, |sum, one| sum.saturating_add(one.size))
}

/// Returns the steps, in order, whose activations stay allocated beyond the next step, although
/// other steps free what the same lines request.
fn failed_steps(context: &Context<'_>, lines: &RecordingLines<'_>) -> Vec<FailedStep> {
    let steps = context.steps.as_slice();
    let is_of_pass = |one: &Allocation| {
        let is_lasting = matches!(
            lines.named_category(one),
            Category::Parameter | Category::Gradient | Category::OptimizerState | Category::Workspace | Category::Cache
        );
        !is_lasting && !matches!(lines.phase(one.site), Some(Phase::Backward | Phase::Optimizer))
    };
    let is_activation = |one: &&Allocation| {
        lines.phase(one.site) == Some(Phase::Forward) || lines.category_of(one) == Category::Activation
    };
    let is_freed = |one: &Allocation| {
        let end = context.steps.at(one.first_moment).map(|step| step.to_event);
        end.zip(one.allocated_until).is_some_and(|(end, until)| until <= end)
    };
    let freed: BTreeSet<SiteId> = context.lifetimes.iter().filter(is_freed).map(|one| one.site).collect();
    let mut failed = Vec::new();
    for pair in steps.windows(2) {
        let made = pair[0].from_event..pair[0].to_event;
        let survivors = context.lifetimes.survivors(made, pair[1].to_event);
        let kept: Vec<Allocation> = survivors.filter(|one| is_of_pass(one) && freed.contains(&one.site)).collect();
        let sites: BTreeSet<SiteId> = kept.iter().filter(is_activation).map(|one| one.site).collect();
        let Some(last) = kept.iter().map(|one| one.first_moment).max() else { continue };
        let activations = total_bytes(kept.iter().filter(is_activation));
        if sites.len() < MIN_SITES || activations < lasting_bytes(context, &pair[0], is_activation) / MIN_KEPT_PART {
            continue;
        }
        let reports = &context.profile.obtainable;
        let later = reports[reports.partition_point(|one| one.event < last)..].iter();
        let mut later = later.take_while(|one| one.event <= pair[0].to_event);
        let failed_request = later.find(|one| one.site.is_some()).map(|one| one.event);
        let last = failed_request.unwrap_or(last).saturating_add(1);
        let events = pair[0].from_event..pair[0].to_event.saturating_add(1);
        failed.push(FailedStep { kept, last, has_failed_request: failed_request.is_some(), events });
    }
    failed
}
