//! Memory that is kept after its last use, as far as steps and backward passes tell: what a forward
//! pass returned and gradients, both until the next step replaces them.
//!
//! A recording does not contain uses. What a forward pass makes is used by its backward pass at the
//! latest, and gradients by the optimizer's step, unless the program itself keeps them for later.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::{Allocation, ByteSize, Category, DurationNs, Percent, SiteId};

use super::context::{Context, total_bytes};
use super::finding::{Finding, Goal, Problem, Severity, Trial};
use super::remedy::freed_before;
use crate::autopsy::RecordingLines;
use crate::group::Phase;
use crate::steps::MIN_GROWTH_STEPS;

/// Divisor: a site keeps its blocks into the next step if it does so in at least half of the steps.
const MIN_STEPS: usize = 2;
/// Maximum number of steps for which a block is kept after its own: longer ones have a purpose.
const MAX_LATER_STEPS: usize = 2;
/// Minimum size of a version of a cache, in bytes.
const MIN_VERSION_BYTES: u64 = 64 << 10;
/// Minimum bytes at the peak.
const MIN_BYTES: u64 = 32 << 20;

/// Memory that steps keep after its last use.
struct KeptBlocks {
    /// All of the recording, with the moment from which on each is not needed.
    all: Vec<(Allocation, u64)>,
    /// The blocks that are kept at the peak.
    at_peak: Vec<Allocation>,
}

impl KeptBlocks {
    /// Finds the blocks at the peak among `all`.
    fn new(context: &Context<'_>, all: Vec<(Allocation, u64)>) -> Self {
        let peak = context.peak_allocated.event;
        let at_peak = all.iter().filter(|(one, from)| *from <= peak && one.is_allocated_at(peak));
        Self { at_peak: at_peak.map(|(one, _)| *one).collect(), all }
    }
}

/// Finds results and gradients of one step that the next one still holds at the peak.
pub(super) fn find(context: &Context<'_>, lines: &mut RecordingLines<'_>) -> Vec<Finding> {
    if context.steps.len() < MIN_GROWTH_STEPS {
        return Vec::new();
    }
    let backward_moments = backward_moments(context, lines);
    let gradients = kept_blocks(context, |one| {
        let is_gradient = lines.category_of(one) == Category::Gradient && !backward_moments.is_empty();
        is_gradient && !is_between(&backward_moments, context, one)
    });
    let results = kept_blocks(context, |one| {
        let is_result =
            matches!(lines.category_of(one), Category::Activation | Category::Temporary | Category::Unknown);
        // The backward pass of the next step may be that of this one.
        let is_waiting =
            is_between(&backward_moments, context, one) && !has_backward_pass(&backward_moments, context, one);
        is_result && !is_waiting && matches!(lines.phase(one.site), Some(Phase::Forward | Phase::Other))
    });
    let versions = old_versions(context, lines);
    let kinds = [(gradients, StaleKind::Gradients), (results, StaleKind::Results), (versions, StaleKind::Versions)];
    kinds.into_iter().filter_map(|(kept, kind)| finding(context, lines, kept, kind)).collect()
}

/// What is kept after its last use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StaleKind {
    Gradients,
    Results,
    /// Versions of a cache that each step replaces.
    Versions,
}

/// Returns the blocks of caches that the program replaces by longer ones, each with the moment at
/// which the next version has been made from it.
///
/// A site may serve several layers. As many of its blocks as there are layers are made between a
/// version and the next one of the same layer: the least number that is made before any is freed.
fn old_versions(context: &Context<'_>, lines: &RecordingLines<'_>) -> KeptBlocks {
    let mut of_site: BTreeMap<SiteId, Vec<Allocation>> = BTreeMap::new();
    let large = context.lifetimes.iter().filter(|one| one.size >= MIN_VERSION_BYTES);
    for one in large.filter(|one| lines.category_of(one) == Category::Cache) {
        of_site.entry(one.site).or_default().push(one);
    }
    let mut all = Vec::new();
    for blocks in of_site.values() {
        // The end of the program frees its last versions.
        let last = blocks.last().map_or(0, |one| one.first_moment);
        let later = |(index, one): (usize, &Allocation)| {
            let until = one.allocated_until.filter(|until| *until <= last)?;
            Some(blocks.partition_point(|other| other.first_moment <= until).saturating_sub(index + 1))
        };
        let counts: Vec<usize> = blocks.iter().enumerate().filter_map(later).collect();
        let Some(layers) = counts.iter().copied().min().filter(|layers| *layers > 0) else { continue };
        // Other blocks of caches are kept for longer.
        let are_replaced = counts.iter().filter(|count| **count < layers * 2).count() * 10 >= counts.len() * 9;
        if !are_replaced {
            continue;
        }
        let pairs = blocks.iter().zip(blocks.iter().skip(layers)).filter(|(one, next)| next.size >= one.size);
        all.extend(pairs.map(|(one, next)| (*one, next.first_moment.saturating_add(1))));
    }
    all.retain(|(one, from)| one.allocated_until.is_some_and(|until| until > *from));
    KeptBlocks::new(context, all)
}

/// Returns the moments of the requests that backward passes make.
fn backward_moments(context: &Context<'_>, lines: &RecordingLines<'_>) -> Vec<u64> {
    let backward = context.lifetimes.iter().filter(|one| lines.phase(one.site) == Some(Phase::Backward));
    backward.map(|one| one.first_moment).collect()
}

/// Returns true if a backward pass runs after the step that made a block and before its free: it
/// may add to a gradient.
fn is_between(backward_moments: &[u64], context: &Context<'_>, one: &Allocation) -> bool {
    let end = context.steps.at(one.first_moment).map_or(u64::MAX, |step| step.to_event);
    let next = backward_moments.partition_point(|moment| *moment <= end);
    backward_moments.get(next).is_some_and(|moment| one.allocated_until.is_none_or(|until| *moment < until))
}

/// Returns true if a backward pass runs after the request of a block and before the end of its
/// step.
fn has_backward_pass(backward_moments: &[u64], context: &Context<'_>, one: &Allocation) -> bool {
    let end = context.steps.at(one.first_moment).map_or(0, |step| step.to_event);
    let next = backward_moments.partition_point(|moment| *moment <= one.first_moment);
    backward_moments.get(next).is_some_and(|moment| *moment <= end)
}

/// Returns the blocks that are kept for one step or two after their own by sites that keep theirs
/// in most steps.
fn kept_blocks(context: &Context<'_>, is_kind: impl Fn(&Allocation) -> bool) -> KeptBlocks {
    let steps = context.steps.as_slice();
    let kept_from = |one: &Allocation| {
        let made = context.steps.position_of(one.first_moment).filter(|_| one.start_observed)?;
        let end = steps[made].to_event;
        let until = one.allocated_until?;
        let begun = context.steps.begun_before(until).checked_sub(1)?;
        // What follows a step belongs to the next one.
        let freed = begun + usize::from(until > steps[begun].to_event.saturating_add(1));
        (made + 1..=made + MAX_LATER_STEPS).contains(&freed).then_some(end.saturating_add(1))
    };
    let mut all = Vec::new();
    let mut steps_of_site: BTreeMap<SiteId, BTreeSet<usize>> = BTreeMap::new();
    for one in context.lifetimes.iter() {
        let Some(from) = kept_from(&one).filter(|_| is_kind(&one)) else { continue };
        steps_of_site.entry(one.site).or_default().insert(context.steps.begun_before(one.first_moment));
        all.push((one, from));
    }
    let is_usual = |site: &SiteId| steps_of_site.get(site).is_some_and(|kept| kept.len() * MIN_STEPS >= steps.len());
    all.retain(|(one, _)| is_usual(&one.site));
    KeptBlocks::new(context, all)
}

/// Returns the finding about memory that is kept at the peak. It counts once a simulation proves
/// that the peak is lower without it.
fn finding(
    context: &Context<'_>,
    lines: &mut RecordingLines<'_>,
    kept: KeptBlocks,
    kind: StaleKind,
) -> Option<Finding> {
    let (bytes, peak) = (total_bytes(&kept.at_peak), context.peak_allocated);
    if bytes < MIN_BYTES {
        return None;
    }
    let time_ns = |event: u64| context.history.time_ns(event);
    let held_ns =
        |one: &Allocation, from: u64| time_ns(one.allocated_until.unwrap_or(from)).saturating_sub(time_ns(from));
    let gib_seconds: f64 = kept
        .all
        .iter()
        .map(|(one, from)| one.size as f64 / (1u64 << 30) as f64 * held_ns(one, *from) as f64 / 1e9)
        .sum();
    let longest_ns = kept.all.iter().map(|(one, from)| held_ns(one, *from)).max().unwrap_or(0);
    let share =
        format!("{} of the peak of {} ({})", ByteSize(bytes), ByteSize(peak.bytes), Percent::of(bytes, peak.bytes));
    let byte_time = match gib_seconds {
        0.1.. => format!("{gib_seconds:.1} GiB·s"),
        _ => format!("{:.1} GiB·ms", gib_seconds * 1000.0),
    };
    let time = format!("for up to {} a step, {byte_time} in all", DurationNs(longest_ns));
    let (problem, summary, remedy) = match kind {
        StaleKind::Gradients => (
            Problem::StaleGradients,
            format!("{share} are gradients that the optimizer has used, kept through the next forward pass, {time}."),
            "Call optimizer.zero_grad(set_to_none=True) right after optimizer.step(), not before the next backward \
             pass.",
        ),
        StaleKind::Versions => (
            Problem::StaleResults,
            format!(
                "{share} are old versions of a cache that each step replaces by longer ones, kept until it has made \
                 all, {time}."
            ),
            "Replace each version as soon as the next one is made (caches[layer] = new), or allocate the cache once \
             for the longest sequence.",
        ),
        StaleKind::Results => (
            Problem::StaleResults,
            format!("{share} are results of the step before, kept until this one replaces them, {time}."),
            "Delete the variables at the end of the step (del outputs, loss), or compute the step in a function, \
             unless the next step uses them.",
        ),
    };
    let mut finding = context.finding(lines, problem, bytes, &kept.at_peak, summary);
    if kind == StaleKind::Versions {
        finding.code = &[];
    }
    if (kind == StaleKind::Versions || !finding.names_call)
        && let Some(line) = lines.line_of_most_bytes(&kept.at_peak)
    {
        (finding.site, finding.names_call) = (line, true);
    }
    finding.events = (finding.events.0, peak.event);
    finding.severity = Severity::Low;
    finding.remedy = Some(remedy.to_owned());
    let trial = freed_before(context, kept.all.iter().map(|(one, from)| (one.first_moment, *from)));
    finding.trials = vec![Trial { goal: Goal::AllocatedPeak, ..trial }];
    Some(finding)
}
