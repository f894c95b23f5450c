//! Infers steps from a sequence of allocations that repeats, for recordings without spans.
//!
//! All training steps request memory at equal lines in equal order. An *anchor* is a site that
//! makes one allocation in each step. The sites of the allocations from one anchor to the next (a
//! *window*) are equal in every step. A step begins where the least memory is allocated within a
//! window, on average.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use vramscope_trace::sort::{sort_by, sort_by_key};
use vramscope_trace::{Allocation, DeviceLifetimes};

use super::allocated_curve::AllocatedCurve;
use super::step::{Step, StepSource, Steps};

/// Maximum number of allocations in which a repeating sequence is searched, from the middle of the
/// recording.
const SAMPLE_ALLOCATIONS: usize = 1 << 18;
/// Minimum number of steps that the sample must have.
const MIN_WINDOWS: usize = 5;
/// Minimum number of allocations that a step must have.
const MIN_STEP_ALLOCATIONS: usize = 4;
/// Minimum number of different sites (or sites and sizes) that a step must have.
const MIN_STEP_KEYS: usize = 3;
/// Maximum number of anchors to examine.
const MAX_ANCHORS: usize = 24;
/// Minimum share of the allocations that consecutive steps must have in common.
const MIN_REGULARITY: f64 = 0.9;
/// Maximum difference of two regularities that count as equal; the anchor with the shortest steps
/// is then chosen.
const EQUAL_REGULARITY: f64 = 0.01;
/// Maximum number of windows in which the allocated bytes are compared to find where steps begin.
const PHASE_WINDOWS: usize = 8;

/// A repeating sequence of allocations, with the anchor by which it was found: a site that makes
/// one allocation in each step.
#[derive(Clone, Copy, Debug)]
struct RepeatingSequence {
    /// An allocation of the anchor.
    anchor: Allocation,
    /// Whether the anchor's allocations also have its size; else only its site.
    same_size: bool,
    /// Share of the allocations that consecutive steps have in common, from 0 to 1.
    regularity: f64,
    /// Number of allocations in a typical step.
    length: usize,
    /// Number of allocations from the beginning of a step to its anchor; less than `length`.
    lead: usize,
}

impl RepeatingSequence {
    /// Returns true if the allocation was made by the anchor.
    fn is_anchor(&self, one: &Allocation) -> bool {
        one.site == self.anchor.site && (!self.same_size || one.size == self.anchor.size)
    }
}

/// Infers the steps of a device from its allocations; no steps if no sequence repeats clearly.
///
/// `time_ns` returns the time of a moment; `to_event` is the last moment. The cost is linear in the
/// number of allocations.
pub(super) fn infer(lifetimes: &DeviceLifetimes, to_event: u64, time_ns: impl Fn(u64) -> u64) -> Steps {
    let skipped = lifetimes.len().saturating_sub(SAMPLE_ALLOCATIONS) / 2;
    let observed = || lifetimes.iter().filter(|one| one.start_observed);
    let sample: Vec<Allocation> = observed().skip(skipped).take(SAMPLE_ALLOCATIONS).collect();
    let by_site = || repeating_sequence(&sample, lifetimes, false, |one| one.site);
    let by_size = || repeating_sequence(&sample, lifetimes, true, |one| (one.site, one.size));
    let Some(sequence) = by_site().or_else(by_size) else { return Steps::default() };
    let bounds = step_bounds(observed(), &sequence, to_event);
    let steps = bounds.windows(2).zip(1..).map(|(pair, number)| Step {
        number,
        from_event: pair[0],
        to_event: pair[1],
        from_ns: time_ns(pair[0]),
        to_ns: time_ns(pair[1]),
    });
    let regularity_percent = (sequence.regularity * 100.0) as u8;
    Steps::new(StepSource::Inferred { site: sequence.anchor.site, regularity_percent }, steps)
}

/// Finds the repeating sequence of a sample of consecutive allocations, whose `key` identifies
/// them.
fn repeating_sequence<K: Hash + Eq>(
    sample: &[Allocation],
    lifetimes: &DeviceLifetimes,
    same_size: bool,
    key: impl Fn(&Allocation) -> K,
) -> Option<RepeatingSequence> {
    let mut numbers: HashMap<K, u32> = HashMap::new();
    let mut positions: Vec<Vec<usize>> = Vec::new();
    let keys: Vec<u32> = (sample.iter().enumerate())
        .map(|(position, one)| {
            let number = *numbers.entry(key(one)).or_insert(positions.len() as u32);
            if number as usize == positions.len() {
                positions.push(Vec::new());
            }
            positions[number as usize].push(position);
            number
        })
        .collect();
    // Anchors of equal step lengths are equivalent, so one of each length is examined.
    let mut by_length: HashMap<usize, (usize, u32)> = HashMap::new();
    for (number, positions) in (0..).zip(&positions) {
        if let Some(length) = regular_length(positions, sample.len()) {
            by_length.entry(length).or_insert((0, number)).0 += 1;
        }
    }
    let mut anchors: Vec<(usize, usize, u32)> =
        by_length.into_iter().map(|(length, (count, number))| (count, length, number)).collect();
    sort_by_key(&mut anchors, |&(count, length, number)| (std::cmp::Reverse(count), length, number));
    anchors.truncate(MAX_ANCHORS);
    let mut counts = WindowCounts::new(positions.len());
    let scored: Vec<(f64, usize, u32)> = anchors
        .into_iter()
        .map(|(_, length, number)| (counts.regularity(&keys, &positions[number as usize]), length, number))
        .collect();
    let best = scored.iter().map(|scored| scored.0).fold(0.0, f64::max);
    let least = MIN_REGULARITY.max(best - EQUAL_REGULARITY);
    let chosen = scored.into_iter().filter(|scored| scored.0 >= least);
    let (regularity, length, number) = chosen.min_by_key(|&(_, length, number)| (length, number))?;
    let anchors = &positions[number as usize];
    let anchor = *sample.get(*anchors.first()?)?;
    Some(RepeatingSequence { anchor, same_size, regularity, length, lead: lead(sample, lifetimes, anchors, length) })
}

/// Returns the number of allocations in a typical step: the median distance between `positions`,
/// the indexes at which allocations of one key are in a sample of `sample_len` allocations. Returns
/// `None` if they are too few, their distances vary, or they cover less than half of the sample.
fn regular_length(positions: &[usize], sample_len: usize) -> Option<usize> {
    let covered = positions.last()?.checked_sub(*positions.first()?)?;
    if positions.len() < MIN_WINDOWS || covered.saturating_mul(2) < sample_len {
        return None;
    }
    // The first step also creates the optimizer's state.
    let mut lengths: Vec<usize> = positions.windows(2).skip(1).map(|pair| pair[1] - pair[0]).collect();
    let middle = lengths.len() / 2;
    sort_by(&mut lengths, Ord::cmp);
    let length = lengths[middle];
    let regular = lengths.iter().filter(|&&one| one.abs_diff(length) * 10 <= length).count();
    (length >= MIN_STEP_ALLOCATIONS && regular * 5 >= lengths.len() * 4).then_some(length)
}

/// The number of allocations of each key in two consecutive windows.
struct WindowCounts {
    before: Vec<u32>,
    current: Vec<u32>,
}

impl WindowCounts {
    /// Creates counts for `keys` different keys.
    fn new(keys: usize) -> Self {
        Self { before: vec![0; keys], current: vec![0; keys] }
    }

    /// Returns the share of allocations, from 0 to 1, that the windows between `anchors` have in
    /// common with the window before. The first window, which is a program's warm-up, is not
    /// compared. Returns 0 if the windows have too few different keys.
    fn regularity(&mut self, keys: &[u32], anchors: &[usize]) -> f64 {
        let windows: Vec<&[u32]> = anchors.windows(2).map(|pair| &keys[pair[0]..pair[1]]).collect();
        let (mut common, mut all) = (0u64, 0u64);
        for pair in windows.get(1..).unwrap_or_default().windows(2) {
            let [before, current] = [pair[0], pair[1]];
            before.iter().for_each(|&key| self.before[key as usize] += 1);
            current.iter().for_each(|&key| self.current[key as usize] += 1);
            let mut different_keys = 0;
            for &key in before.iter().chain(current) {
                let key = key as usize;
                let (before, current) = (std::mem::take(&mut self.before[key]), std::mem::take(&mut self.current[key]));
                common += u64::from(before.min(current));
                all += u64::from(before.max(current));
                different_keys += usize::from(before.max(current) > 0);
            }
            if different_keys < MIN_STEP_KEYS {
                return 0.0;
            }
        }
        if all == 0 { 0.0 } else { common as f64 / all as f64 }
    }
}

/// Returns the number of allocations from the beginning of a step to its anchor. A step begins with
/// the allocation before which the least memory is allocated, on average over windows of the
/// typical length. `anchors` are positions in `sample`.
fn lead(sample: &[Allocation], lifetimes: &DeviceLifetimes, anchors: &[usize], length: usize) -> usize {
    let windows: Vec<&[Allocation]> =
        (anchors.windows(2).map(|pair| &sample[pair[0]..pair[1]])).filter(|window| window.len() == length).collect();
    let mut sums = vec![0u128; length];
    let first = windows.len().saturating_sub(PHASE_WINDOWS) / 2;
    for window in windows.iter().skip(first).take(PHASE_WINDOWS) {
        let before = |one: &Allocation| one.first_moment.saturating_sub(1);
        let (Some(from), Some(to)) = (window.first().map(before), window.last().map(before)) else { continue };
        let mut curve = AllocatedCurve::new(from, to);
        let (mut next, mut allocated_bytes) = (0, 0);
        while !curve.is_finished() {
            curve.advance(lifetimes, &mut |point| {
                while window.get(next).is_some_and(|one| before(one) < point.event) {
                    sums[next] += u128::from(allocated_bytes);
                    next += 1;
                }
                allocated_bytes = point.allocated_bytes;
            });
        }
        sums[next..].iter_mut().for_each(|sum| *sum += u128::from(allocated_bytes));
    }
    let first = (0..length).min_by_key(|&offset| sums[offset]).unwrap_or(0);
    if first == 0 { 0 } else { length - first }
}

/// An allocation before an anchor.
#[derive(Clone, Copy, Debug)]
struct PrecedingAllocation {
    /// The moment before the allocation.
    moment: u64,
    /// Number of events since the allocation before it.
    pause: u64,
}

/// Returns the moments at which steps begin or end, among all allocations of a device: each step
/// lasts to the beginning of the next. The last step is included if it is complete; like the step
/// before, it lasts some events longer than its last allocation.
fn step_bounds(allocations: impl Iterator<Item = Allocation>, sequence: &RepeatingSequence, to_event: u64) -> Vec<u64> {
    let mut bounds = Vec::new();
    // The last `lead + 1` allocations; the first of them begins a step if the last is an anchor.
    let mut preceding: VecDeque<PrecedingAllocation> = VecDeque::new();
    // Number of allocations of a step from its anchor on.
    let from_anchor = sequence.length - sequence.lead;
    let mut since_anchor = 0usize;
    let mut last_moment = 0u64;
    // Number of events from the last allocation of a step to the next step.
    let mut pause = 0;
    let mut end = None;
    for one in allocations {
        let moment = one.first_moment.saturating_sub(1);
        if preceding.len() > sequence.lead {
            preceding.pop_front();
        }
        preceding.push_back(PrecedingAllocation { moment, pause: moment.saturating_sub(last_moment) });
        last_moment = one.first_moment;
        since_anchor = since_anchor.saturating_add(1);
        if sequence.is_anchor(&one)
            && preceding.len() > sequence.lead
            && let Some(first) = preceding.front()
            && bounds.last().is_none_or(|&last| last < first.moment)
        {
            bounds.push(first.moment);
            (pause, since_anchor) = (first.pause, 1);
        }
        if since_anchor == from_anchor {
            end = Some(one.first_moment);
        }
    }
    let is_complete = since_anchor.saturating_mul(10) >= from_anchor.saturating_mul(9);
    // Steps differ in length; events after the usual length of a step belong to the next one.
    let is_usual = since_anchor.saturating_mul(10) <= from_anchor.saturating_mul(11);
    let last_allocation = if is_usual { Some(last_moment) } else { end };
    let last_end = last_allocation.map(|moment| moment.saturating_add(pause).min(to_event));
    bounds.extend(last_end.filter(|_| is_complete));
    bounds
}
