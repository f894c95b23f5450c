//! An evaluation that needs more memory than training.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use vramscope_trace::{Allocation, ByteSize, SiteId};

use super::context::{Context, total_bytes};
use super::finding::{Finding, Problem, is_share};
use super::remedy::shortened;
use crate::autopsy::RecordingLines;
use crate::group::Phase;
use crate::steps::AllocatedCurve;

/// Minimum allocated peak of an evaluation, in percent of that of training.
const MIN_PERCENT: u64 = 125;
/// Minimum bytes by which an evaluation needs more than training.
const MIN_BYTES: u64 = 64 << 20;
/// Minimum share of a caller's activations that live until the backward pass, in percent.
const MIN_TRAINED_PERCENT: u64 = 2;
/// Minimum number of training passes: fewer do not show what training needs.
const MIN_TRAINING_PASSES: usize = 2;
/// Minimum number of sites of a kept autograd graph.
const MIN_GRAPH_SITES: usize = 3;
/// Number of events after which a pass without a graph has freed an activation.
const ACTIVATION_EVENTS: u64 = 16;

/// Finds a peak in passes through the model that no backward pass follows, in a program that
/// trains.
pub(super) fn find(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let peak = context.peak_allocated;
    let evaluations = evaluations(context, lines);
    let evaluation = evaluations.iter().find(|range| range.contains(&peak.event))?;
    let training_bytes = training_peak(context, &evaluations);
    let bytes = peak.bytes.saturating_sub(training_bytes);
    if training_bytes == 0 || bytes < MIN_BYTES || !is_share(peak.bytes, MIN_PERCENT, training_bytes) {
        return None;
    }
    let is_of_evaluation = |one: &Allocation| evaluation.contains(&one.first_moment);
    let held: Vec<Allocation> = context.peak_contents.iter().map(|(_, one)| *one).filter(is_of_evaluation).collect();
    let is_forward = |one: &Allocation| lines.phase(one.site) == Some(Phase::Forward);
    // Without a graph, a pass frees an activation soon.
    let is_old = |one: &&Allocation| peak.event.saturating_sub(one.first_moment) > ACTIVATION_EVENTS;
    let activations = held.iter().filter(|one| is_forward(one)).filter(is_old);
    let sites: BTreeSet<SiteId> = activations.clone().map(|one| one.site).collect();
    let keeps_graph = total_bytes(activations) > total_bytes(&held) / 2 && sites.len() >= MIN_GRAPH_SITES;
    let (reason, remedy, code): (_, _, &[&str]) = if keeps_graph {
        (
            "keeps the activations of its passes, as if a backward pass followed",
            "Evaluate under torch.no_grad() or torch.inference_mode(), and keep numbers or tensors on the CPU.",
            &["with torch.inference_mode():", "    outputs = model(inputs)"],
        )
    } else {
        (
            "collects results on the GPU until it ends",
            "Move the results of each batch to the CPU, or reduce them to numbers.",
            &["results.append(outputs.cpu())  # not: results.append(outputs)"],
        )
    };
    let summary = format!(
        "The peak of {} is in an evaluation, which {reason} ({}); training needs {} at most.",
        ByteSize(peak.bytes),
        ByteSize(total_bytes(&held)),
        ByteSize(training_bytes)
    );
    let mut finding = context.finding(lines, Problem::EvaluationPeak, bytes, &held, summary);
    finding.events = (evaluation.start, peak.event);
    finding.grown_to_bytes = Some(total_bytes(&held));
    finding.remedy = Some(remedy.to_owned());
    finding.code = code;
    // Results that are concatenated at the end are as large as all of them together.
    let largest = held.iter().filter(|one| is_forward(one)).map(|one| one.size).max().unwrap_or(0);
    let is_in_evaluation = |one: &Allocation| {
        let begun = evaluations.partition_point(|range| range.start <= one.first_moment);
        begun.checked_sub(1).is_some_and(|index| evaluations[index].contains(&one.first_moment))
    };
    let blocks = context.lifetimes.iter().filter(is_in_evaluation);
    finding.trials = vec![shortened(context, blocks, ACTIVATION_EVENTS, |one| {
        !keeps_graph && !is_forward(one) && one.size > largest.saturating_mul(2)
    })];
    Some(finding)
}

/// The requests of passes through the model that lead to it by the same calls of the program.
#[derive(Clone, Copy, Default)]
struct Caller {
    /// Bytes of its activations.
    bytes: u64,
    /// Bytes of its activations that lived until a backward pass.
    trained_bytes: u64,
}

impl Caller {
    /// Returns true if its passes are trained. With checkpointing, few activations live until the
    /// backward pass.
    fn is_trained(self) -> bool {
        is_share(self.trained_bytes, MIN_TRAINED_PERCENT, self.bytes)
    }
}

/// Returns the ranges of moments with passes through the model that are not trained: from the first
/// request after a trained one whose activations no backward pass needs to the next that is
/// trained.
fn evaluations(context: &Context<'_>, lines: &RecordingLines<'_>) -> Vec<Range<u64>> {
    let mut numbers: BTreeMap<Vec<(u32, u32)>, usize> = BTreeMap::new();
    let mut of_site: BTreeMap<SiteId, usize> = BTreeMap::new();
    let mut callers: Vec<Caller> = Vec::new();
    // The callers of passes in a row, each with the first moment.
    let mut series: Vec<(usize, u64)> = Vec::new();
    // The activations since the last backward pass.
    let mut waiting: Vec<(usize, Allocation)> = Vec::new();
    let mut backward_passes = 0;
    for one in context.lifetimes.iter().filter(|one| one.start_observed) {
        match lines.phase(one.site) {
            Some(Phase::Forward) => {
                let caller = *of_site.entry(one.site).or_insert_with(|| {
                    let next = numbers.len();
                    *numbers.entry(lines.calls(one.site)).or_insert(next)
                });
                callers.resize(callers.len().max(caller + 1), Caller::default());
                callers[caller].bytes = callers[caller].bytes.saturating_add(one.size);
                waiting.push((caller, one));
                if series.last().is_none_or(|(last, _)| *last != caller) {
                    series.push((caller, one.first_moment));
                }
            }
            Some(Phase::Backward) if !waiting.is_empty() => {
                backward_passes += 1;
                let mut trained = None;
                for (caller, activation) in waiting.drain(..) {
                    if activation.is_allocated_at(one.first_moment) {
                        let bytes = &mut callers[caller].trained_bytes;
                        *bytes = bytes.saturating_add(activation.size);
                        trained = Some(caller);
                    }
                }
                // A pass without gradients may precede the backward pass, such as that of a
                // teacher.
                series.extend(trained.map(|caller| (caller, one.first_moment)));
            }
            _ => {}
        }
    }
    if backward_passes < MIN_TRAINING_PASSES {
        return Vec::new();
    }
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut is_open = false;
    // What precedes training, such as a warm-up, is its start.
    let series = series.into_iter().skip_while(|(caller, _)| !callers[*caller].is_trained());
    for (caller, first) in series {
        let is_trained = callers[caller].is_trained();
        match (is_trained, is_open) {
            (false, false) => ranges.push(first..u64::MAX),
            (true, true) => ranges.last_mut().into_iter().for_each(|range| range.end = first),
            _ => {}
        }
        is_open = !is_trained;
    }
    ranges
}

/// Returns the peak of the allocated bytes outside of the evaluations, from the first one on or
/// before it.
fn training_peak(context: &Context<'_>, evaluations: &[Range<u64>]) -> u64 {
    let mut curve = AllocatedCurve::new(context.recording.first_event(), context.recording.end_event());
    let (mut most_bytes, mut next) = (0, 0);
    while !curve.is_finished() {
        curve.advance(context.lifetimes, &mut |point| {
            while evaluations.get(next).is_some_and(|range| range.end <= point.event) {
                next += 1;
            }
            // What an evaluation leaves behind is freed by its end.
            if evaluations.get(next).is_none_or(|range| point.event < range.start) {
                most_bytes = most_bytes.max(point.allocated_bytes);
            }
        });
    }
    most_bytes
}
