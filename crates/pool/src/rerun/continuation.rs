//! Continues a recorded training program after a failed request, by repeating the calls of the last
//! complete training step.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::call_sequence::{CallSequence, Step};
use super::repeats::Repeats;
use super::workload::Workload;

/// Minimum share, in percent, of the failed training step's requests that must equal the previous
/// training step's requests at equal positions.
const MIN_EQUAL_PERCENT: usize = 90;

/// A block, identified by the number of the training step that requests it and the position of its
/// request in that step, both from 0.
type BlockKey = (usize, usize);

impl Workload {
    /// Returns the program continued after the failed request of event `failed`, as if the request
    /// had succeeded: the calls up to it; then, from the previous training step, the calls after
    /// the equal request; then all calls of the previous training step once more.
    ///
    /// `step_starts` are the moments at which complete steps before the failure begin, and last the
    /// moment at which the failed step begins. If the failed step's requests are larger or smaller
    /// than the previous step's requests, the repeated requests have the failed step's sizes.
    ///
    /// The repeated calls have event numbers after all recorded ones. [`Edits`](super::Edits) of a
    /// request change its repetitions too.
    ///
    /// Returns `None` if fewer than one complete step is given, or if the failed step differs from
    /// the step before it. The cost is linear in the number of calls.
    #[must_use]
    pub fn continued(&self, failed: u64, step_starts: &[u64]) -> Option<Self> {
        let (sequence, repeats) = Continuer::new(&self.sequence, failed, step_starts)?.run();
        Some(Self { sequence, repeats, ..self.clone() })
    }
}

/// Builds the call sequence of a program that continues after its failed request.
struct Continuer<'a> {
    from: &'a CallSequence,
    /// The index of the failed request.
    failed_at: usize,
    /// The calls of the last complete training step, which are repeated.
    reference_calls: Range<usize>,
    /// The number of the last complete training step, from 0.
    reference: usize,
    /// For each training step, the indices of its requests in `from`.
    requests: Vec<Vec<usize>>,
    /// The block that each call of the last complete training step frees, by index of the call.
    freed: BTreeMap<usize, BlockKey>,
    /// The slots of the blocks that the continued program holds.
    live: BTreeMap<BlockKey, u32>,
    sizes: SizeMap,
    to: CallSequence,
    repeats: Repeats,
    /// The event number of the next repeated call.
    next_event: u64,
    /// Difference between the rank of a repeated pending free and the recorded one.
    rank_offset: u32,
}

impl<'a> Continuer<'a> {
    /// Prepares the continuation after the failed request of event `failed`; `None` if the program
    /// cannot be continued, see [`Workload::continued`].
    fn new(from: &'a CallSequence, failed: u64, step_starts: &[u64]) -> Option<Self> {
        let is_failed =
            |(step, &event): (&Step, &u64)| event == failed && matches!(step, Step::Allocate { failed: true, .. });
        let failed_at = from.steps.iter().zip(&from.events).position(is_failed)?;
        let starts: Vec<usize> =
            step_starts.iter().map(|&moment| from.events.partition_point(|&event| event <= moment)).collect();
        let reference = starts.len().checked_sub(2)?;
        if !starts.is_sorted() || starts.last().is_none_or(|&last| last > failed_at) {
            return None;
        }
        let reference_calls = starts[reference]..starts[reference + 1];
        let mut holders: Vec<Option<BlockKey>> = vec![None; from.slot_count];
        let mut sizes: Vec<u64> = vec![0; from.slot_count];
        let mut kept_sizes = BTreeSet::new();
        let mut requests: Vec<Vec<usize>> = vec![Vec::new(); starts.len()];
        let mut freed = BTreeMap::new();
        let (mut step_number, mut last_rank, mut first_repeated_rank) = (0, 0, u32::MAX);
        for (index, step) in from.steps[..failed_at].iter().enumerate() {
            while starts.get(step_number).is_some_and(|&start| start <= index) {
                step_number += 1;
            }
            if index == reference_calls.start {
                kept_sizes.extend(sizes.iter().copied());
            }
            match *step {
                Step::Allocate { slot, failed, bytes, .. } => {
                    sizes[slot as usize] = if failed { 0 } else { bytes };
                    let key = step_number.checked_sub(1).map(|number| (number, requests[number].len()));
                    if let Some((number, _)) = key {
                        requests[number].push(index);
                    }
                    holders[slot as usize] = key.filter(|_| !failed);
                }
                Step::Free { slot } | Step::DeferredFree { slot, .. } => {
                    sizes[slot as usize] = 0;
                    if let Some(key) = holders[slot as usize].take().filter(|_| reference_calls.contains(&index)) {
                        freed.insert(index, key);
                    }
                }
                _ => {}
            }
            if let Step::DeferredFree { completed, .. } | Step::PassEvents { completed } = *step {
                last_rank = last_rank.max(completed);
                if reference_calls.contains(&index) {
                    first_repeated_rank = first_repeated_rank.min(completed);
                }
            }
        }
        let key_of = |(slot, key): (usize, &Option<BlockKey>)| key.map(|key| (key, slot as u32));
        let live = holders.iter().enumerate().filter_map(key_of).collect();
        let sizes = SizeMap::new(from, failed_at, &requests[reference], &requests[reference + 1], kept_sizes)?;
        let to = CallSequence {
            steps: from.steps[..failed_at].to_vec(),
            origins: from.origins[..failed_at].to_vec(),
            events: from.events[..failed_at].to_vec(),
            slot_count: from.slot_count,
            targets: from.targets.clone(),
            calls: from.calls,
            requests: from.requests,
        };
        let next_event = from.events.iter().max().map_or(1, |last| last.saturating_add(1));
        let rank_offset = (last_rank + 1).saturating_sub(first_repeated_rank);
        Some(Self {
            from,
            failed_at,
            reference_calls,
            reference,
            requests,
            freed,
            live,
            sizes,
            to,
            repeats: Repeats::default(),
            next_event,
            rank_offset,
        })
    }

    /// Returns the continued sequence, and which of its calls repeat which recorded calls.
    fn run(mut self) -> (CallSequence, Repeats) {
        let (reference, failed_step) = (&self.requests[self.reference], &self.requests[self.reference + 1]);
        let position = failed_step.len();
        let recorded: Vec<(usize, usize)> =
            reference.iter().copied().zip(failed_step.iter().copied().chain([self.failed_at])).collect();
        let resumed_from = reference[position] + 1;
        for (earlier, later) in recorded {
            self.add_image(self.from.events[earlier], self.from.events[later], 1);
        }
        if let Step::Allocate { bytes, target, .. } = self.from.steps[self.failed_at] {
            let slot = self.new_slot();
            self.live.insert((self.reference + 1, position), slot);
            let step = Step::Allocate { bytes, slot, target, failed: false };
            self.to.push(step, self.from.origins[self.failed_at], self.from.events[self.failed_at]);
        }
        let calls = self.reference_calls.clone();
        self.repeat(resumed_from..calls.end, 1, position + 1);
        self.rank_offset = self.rank_offset.saturating_mul(2);
        self.repeat(calls, 2, 0);
        (self.to, self.repeats)
    }

    /// Appends repetitions of the recorded `calls`, as calls of the training step that is `later`
    /// steps (1 or 2) after the recorded one. The first request has the index `position` among the
    /// requests of its step.
    fn repeat(&mut self, calls: Range<usize>, later: usize, mut position: usize) {
        for index in calls {
            let step = match self.from.steps[index] {
                Step::Allocate { bytes, target, failed, .. } => {
                    let slot = self.new_slot();
                    if !failed {
                        self.live.insert((self.reference + later, position), slot);
                    }
                    position += 1;
                    Step::Allocate { bytes: self.sizes.repeated_size(bytes), slot, target, failed }
                }
                step @ (Step::Free { .. } | Step::DeferredFree { .. }) => {
                    let key = self.freed.get(&index).map(|&(number, position)| (number + later, position));
                    let Some(slot) = key.and_then(|key| self.live.remove(&key)) else { continue };
                    match step {
                        Step::DeferredFree { completed, .. } => {
                            Step::DeferredFree { slot, completed: completed.saturating_add(self.rank_offset) }
                        }
                        _ => Step::Free { slot },
                    }
                }
                Step::PassEvents { completed } => {
                    Step::PassEvents { completed: completed.saturating_add(self.rank_offset) }
                }
                step => step,
            };
            let event = self.next_event;
            self.next_event = self.next_event.saturating_add(1);
            self.add_image(self.from.events[index], event, later);
            self.to.push(step, self.from.origins[index], event);
        }
    }

    /// Records that the call of event `image` repeats the call of event `recorded`, `later`
    /// training steps (1 or 2) later.
    fn add_image(&mut self, recorded: u64, image: u64, later: usize) {
        self.repeats.references.insert(image, (recorded, later));
        self.repeats.images[later - 1].push((recorded, image));
    }

    /// Returns a slot that no block of the recorded or continued program has used.
    fn new_slot(&mut self) -> u32 {
        self.to.slot_count += 1;
        (self.to.slot_count - 1) as u32
    }
}

/// Maps the request sizes of the last complete training step to the sizes that the failed training
/// step after it uses.
#[derive(Clone, Debug, Default)]
struct SizeMap {
    /// The new size for each size that both steps requested at one position.
    known: BTreeMap<u64, u64>,
    /// Sizes of blocks from before the earlier step, such as parameters: they do not change.
    kept: BTreeSet<u64>,
    /// Sum of the sizes of all requests whose size changed: in the complete step, and in the failed
    /// step.
    changed: (u128, u128),
}

impl SizeMap {
    /// Compares the requests of two training steps, given as indices in `from`; the later step ends
    /// with the failed request, at index `failed_at`. `None` if the later step does not make the
    /// earlier step's requests. `kept` are the sizes of blocks older than both.
    fn new(
        from: &CallSequence,
        failed_at: usize,
        earlier: &[usize],
        later: &[usize],
        kept: BTreeSet<u64>,
    ) -> Option<Self> {
        let request = |index: usize| match from.steps[index] {
            Step::Allocate { bytes, target, .. } => Some((bytes, (target, from.origins[index].site))),
            _ => None,
        };
        let mut counts: BTreeMap<u64, BTreeMap<u64, usize>> = BTreeMap::new();
        let (mut equal, mut changed) = (0, (0u128, 0u128));
        let mut ends_equal = false;
        for (&one, &other) in earlier.iter().zip(later.iter().chain([&failed_at])) {
            let ((before, place), (after, other_place)) = (request(one)?, request(other)?);
            ends_equal = place == other_place;
            if ends_equal {
                equal += 1;
                *counts.entry(before).or_default().entry(after).or_default() += 1;
                if before != after {
                    changed = (changed.0 + u128::from(before), changed.1 + u128::from(after));
                }
            }
        }
        let count = later.len() + 1;
        if earlier.len() < count || !ends_equal || equal * 100 < count * MIN_EQUAL_PERCENT {
            return None;
        }
        let most =
            |sizes: &BTreeMap<u64, usize>| sizes.iter().max_by_key(|&(_, count)| *count).map(|(&after, _)| after);
        let known = counts.iter().filter_map(|(&before, sizes)| Some((before, most(sizes)?))).collect();
        Some(Self { known, kept, changed })
    }

    /// Returns the size in bytes that a request for `bytes` has when the training step is repeated.
    fn repeated_size(&self, bytes: u64) -> u64 {
        if let Some(&after) = self.known.get(&bytes) {
            return after;
        }
        match self.changed {
            (before, after) if before > 0 && !self.kept.contains(&bytes) => {
                u64::try_from(u128::from(bytes) * after / before).unwrap_or(u64::MAX)
            }
            _ => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{DeviceId, Encoder, Recording, RecordingInfo, SiteId, StreamId};

    use super::*;
    use crate::rerun::{Edits, History};
    use crate::settings::Settings;
    use crate::{Origin, Pool, SimulatedDevice};

    const MIB: u64 = 1 << 20;

    /// Records training steps that each keep 30 MiB and request and free 40 MiB, on a device of 200
    /// MiB, until a request fails. Returns the calls, the number of the failed event, and the
    /// moments at which the steps begin. The fourth step requests `factor` times 40 MiB.
    fn leak(factor: u64) -> (Workload, u64, Vec<u64>) {
        let mut encoder = Encoder::new(&RecordingInfo::default());
        let mut pool = Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(200 * MIB));
        let mut starts = Vec::new();
        'program: for step in 0.. {
            starts.push(encoder.state().event());
            let factor = if step == 3 { factor } else { 1 };
            for (mib, site) in [(30, 1), (40 * factor, 2)] {
                let origin = Origin { site: SiteId(site), ..Origin::default() };
                let Ok(Some(block)) = pool.allocate(mib * MIB, StreamId(0), origin, &mut encoder) else {
                    break 'program;
                };
                if mib != 30 {
                    pool.free(block.address, origin, &mut encoder).expect("it is allocated");
                }
            }
        }
        let failed = encoder.state().event();
        encoder.flush();
        let mut recording = Recording::new();
        for chunk in encoder.take_output() {
            recording.push(&chunk.bytes).expect("a valid chunk");
        }
        let history = History::from_recording(&recording).expect("a valid recording").remove(0);
        (Workload::new(history, &Settings::default()).expect("a valid start"), failed, starts)
    }

    #[test]
    fn failed_step_and_the_next_repeat_the_step_before() {
        let (workload, failed, starts) = leak(1);
        let continued = workload.continued(failed, &starts).expect("the steps are equal");
        // 30 MiB more in the failed step and in the next one, and 40 MiB.
        let steps = starts.len() as u64 + 1;
        let run = continued.simulate(&Settings::default(), None);
        assert_eq!(run.peak_allocated_bytes, (steps * 30 + 40) * MIB);
        assert_eq!(run.ooms, 0);
    }

    #[test]
    fn edits_of_a_step_change_its_repetitions() {
        let (workload, failed, starts) = leak(1);
        let continued = workload.continued(failed, &starts).expect("the steps are equal");
        let mut edits = Edits::default();
        let kept = continued.sequence.steps.iter().zip(&continued.sequence.events);
        let kept: Vec<u64> = kept
            .filter(|(step, _)| matches!(step, Step::Allocate { bytes, .. } if *bytes == 30 * MIB))
            .map(|(_, &event)| event)
            .collect();
        // The growth of each recorded step is freed before the next one.
        for (request, next) in kept.iter().zip(&starts[1..]) {
            edits.free_before(*request, next + 1);
        }
        let run = continued.edited(&edits).simulate(&Settings::default(), Some(200 * MIB));
        assert_eq!((run.ooms, run.peak_allocated_bytes), (0, 70 * MIB));
    }

    #[test]
    fn larger_step_is_continued_with_its_sizes() {
        let (workload, failed, starts) = leak(3);
        assert_eq!(starts.len(), 4, "the larger request fails");
        let continued = workload.continued(failed, &starts).expect("the steps are alike");
        let run = continued.simulate(&Settings::default(), None);
        assert_eq!(run.peak_allocated_bytes, (5 * 30 + 120) * MIB);
    }

    #[test]
    fn step_unlike_the_one_before_is_not_continued() {
        let (workload, failed, starts) = leak(1);
        assert!(workload.continued(failed, &starts[..1]).is_none(), "no complete step");
        assert!(workload.continued(failed + 1, &starts).is_none(), "no failed request");
        // The failed step begins in its middle: its first request is not that of the step before.
        let mut shifted = starts.clone();
        *shifted.last_mut().expect("there are steps") += 1;
        let is_like = workload.continued(failed, &shifted).is_some();
        assert!(!is_like, "other begin");
    }
}
