//! Equal buffers that one line makes and that are freed together, such as one for each layer.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::{Allocation, ByteSize, Category, Percent, SiteId};

use super::context::{Context, total_bytes};
use super::finding::{Finding, Problem, Severity, is_share};
use super::remedy::freed_before;
use crate::autopsy::RecordingLines;
use crate::group::Phase;

/// Minimum number of equal buffers at once: a few may be anything.
const MIN_BUFFERS: usize = 4;
/// Minimum size of a buffer, in bytes.
const MIN_BUFFER_BYTES: u64 = 1 << 20;
/// Minimum share of the allocated peak, in percent.
const MIN_PERCENT: u64 = 15;
/// Minimum bytes of the buffers.
const MIN_BYTES: u64 = 64 << 20;
/// Maximum number of events for each buffer between the first and the last of their frees.
const FREE_EVENTS: u64 = 4;
/// Minimum number of times that the buffers are made.
const MIN_REPEATS: usize = 2;

/// Finds equal buffers at the peak that one line made and that are freed together.
pub(super) fn find(context: &Context<'_>, lines: &mut RecordingLines<'_>) -> Option<Finding> {
    let mut at_peak: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    let is_kept = |category: Category| {
        matches!(category, Category::Gradient | Category::OptimizerState | Category::Cache | Category::Communication)
    };
    let large =
        context.peak_contents.iter().filter(|(category, one)| one.size >= MIN_BUFFER_BYTES && !is_kept(*category));
    for (_, one) in large {
        *at_peak.entry((lines.group_of_allocation(one), one.size)).or_default() += 1;
    }
    let peak = context.peak_allocated;
    let is_large = |&((_, size), count): &((u32, u64), u64)| {
        let bytes = size.saturating_mul(count);
        count >= MIN_BUFFERS as u64 && bytes >= MIN_BYTES && is_share(bytes, MIN_PERCENT, peak.bytes)
    };
    let mut candidates: Vec<((u32, u64), u64)> = at_peak.into_iter().filter(is_large).collect();
    candidates.sort_by_key(|&((_, size), count)| std::cmp::Reverse(size.saturating_mul(count)));
    candidates.into_iter().find_map(|((line, size), _)| {
        let of_size = context.lifetimes.iter().filter(|one| one.size == size && one.start_observed);
        let made: Vec<Allocation> = of_size.filter(|one| lines.group_of_allocation(one) == line).collect();
        of_line(context, lines, sets_of_buffers(made))
    })
}

/// Divides the buffers of one line into sets that exist together, by the first free of each set.
fn sets_of_buffers(made: Vec<Allocation>) -> Vec<Vec<Allocation>> {
    let mut sets: Vec<Vec<Allocation>> = Vec::new();
    let mut first_free = 0;
    for one in made {
        let end = one.allocated_until.unwrap_or(u64::MAX);
        match sets.last_mut().filter(|_| one.first_moment < first_free) {
            Some(set) => {
                set.push(one);
                first_free = first_free.min(end);
            }
            None => {
                sets.push(vec![one]);
                first_free = end;
            }
        }
    }
    sets.retain(|set| set.len() >= MIN_BUFFERS && are_freed_together(set));
    sets
}

/// Returns true if buffers are freed one right after the other.
fn are_freed_together(set: &[Allocation]) -> bool {
    let ends: Option<Vec<u64>> = set.iter().map(|one| one.allocated_until).collect();
    let bounds = ends.as_ref().and_then(|ends| ends.iter().min().zip(ends.iter().max()));
    bounds.is_some_and(|(first, last)| last - first <= FREE_EVENTS.saturating_mul(set.len() as u64))
}

/// Returns the finding about sets of buffers that one line makes, if one exists at the peak and
/// nothing shows that all its buffers are needed at once.
fn of_line(context: &Context<'_>, lines: &RecordingLines<'_>, sets: Vec<Vec<Allocation>>) -> Option<Finding> {
    let peak = context.peak_allocated;
    let buffers = sets.iter().find(|set| set.iter().any(|one| one.is_allocated_at(peak.event)))?.clone();
    let may_carry_state = passes(context, &buffers) > 1;
    if sets.len() < MIN_REPEATS || may_carry_state || are_needed_at_once(context, lines, &buffers) {
        return None;
    }
    let (bytes, size) = (total_bytes(&buffers), buffers.first()?.size);
    let needed = needed_buffers(context, &buffers);
    let summary = format!(
        "{} of the peak of {} ({}) are {} equal buffers of {}, which one line makes and which are freed together; if \
         each serves one layer, {} would do.",
        ByteSize(bytes),
        ByteSize(peak.bytes),
        Percent::of(bytes, peak.bytes),
        buffers.len(),
        ByteSize(size),
        if needed == 1 { "one" } else { "two" }
    );
    let saved = bytes.saturating_sub(size.saturating_mul(needed as u64));
    let mut finding = context.finding(lines, Problem::LayerBuffers, saved, &buffers, summary);
    finding.severity = finding.severity.min(Severity::Medium);
    finding.events = (finding.events.0, peak.event.max(finding.events.0));
    finding.remedy = Some(
        "Make each buffer in the layer that uses it and drop it there, or let all layers share one or two buffers."
            .to_owned(),
    );
    let in_turn = sets.iter().flat_map(|set| set.iter().zip(set.iter().skip(needed)));
    finding.trials = vec![freed_before(context, in_turn.map(|(one, later)| (one.first_moment, later.first_moment)))];
    Some(finding)
}

/// Returns the allocations that are made from the first of some buffers on, until one is freed.
fn requests_during<'a>(context: &'a Context<'_>, buffers: &[Allocation]) -> impl Iterator<Item = Allocation> + use<'a> {
    let first = buffers.first().map_or(0, |one| one.first_moment);
    let end = buffers.iter().filter_map(|one| one.allocated_until).min().unwrap_or(0);
    context.lifetimes.iter().filter(move |one| (first..end).contains(&one.first_moment))
}

/// Returns how many times all layers run while buffers exist, one for each layer: how often the
/// other sites that serve each layer make a series of requests. Memory that lives for several
/// passes may carry state from one to the next.
fn passes(context: &Context<'_>, buffers: &[Allocation]) -> usize {
    let sites: BTreeSet<SiteId> = buffers.iter().map(|one| one.site).collect();
    let mut series: BTreeMap<SiteId, usize> = BTreeMap::new();
    let meanwhile = requests_during(context, buffers);
    let mut last = None;
    for one in meanwhile.filter(|one| !sites.contains(&one.site)) {
        if last.replace(one.site) != Some(one.site) {
            *series.entry(one.site).or_default() += 1;
        }
    }
    let of_layers = series.into_values().filter(|count| *count >= buffers.len());
    of_layers.min().map_or(0, |count| count / buffers.len())
}

/// Returns how many buffers are enough, if each serves one layer: one, if layers request theirs
/// when they run; else that of the layer that runs and the next one.
fn needed_buffers(context: &Context<'_>, buffers: &[Allocation]) -> usize {
    let bounds = buffers.first().zip(buffers.last()).map(|(first, last)| first.first_moment..=last.first_moment);
    let made =
        bounds.map_or(0, |bounds| context.lifetimes.iter().filter(|one| bounds.contains(&one.first_moment)).count());
    if made >= buffers.len() * 2 - 1 { 1 } else { 2 }
}

/// Returns true if a backward pass runs while the buffers exist, which may need all of them, or if
/// a block as large as half of them is made, into which they may be copied.
fn are_needed_at_once(context: &Context<'_>, lines: &RecordingLines<'_>, buffers: &[Allocation]) -> bool {
    let half = total_bytes(buffers) / 2;
    let mut meanwhile = requests_during(context, buffers);
    meanwhile.any(|one| {
        one.size >= half
            || lines.phase(one.site) == Some(Phase::Backward)
            || lines.category_of(&one) == Category::Gradient
    })
}
