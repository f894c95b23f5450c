//! Applies [`Edits`] to the calls of a recorded program.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::MempoolId;

use super::call_sequence::{CallSequence, Step};
use super::edits::{Edits, PRIVATE_POOL};
use super::repeats::Repeats;
use super::workload::Workload;
use crate::pool::Origin;

impl Workload {
    /// Returns the workload with changed calls. Its recorded figures stay the figures of the
    /// unchanged program.
    ///
    /// The cost is linear in the number of calls, and the copy as large as the original. Without
    /// changes nothing is copied.
    #[must_use]
    pub fn edited(&self, edits: &Edits) -> Cow<'_, Self> {
        if edits.is_empty() {
            return Cow::Borrowed(self);
        }
        Cow::Owned(Self { sequence: Editor::new(self, edits).run(), ..self.clone() })
    }
}

/// A call that an edit inserts: the early free of a request's block, its later repetition, or an
/// early request. The first two are left out if `slot` no longer holds the block of the request of
/// event `request`.
#[derive(Clone, Copy, Debug)]
enum InsertedCall {
    Free { slot: u32, request: u64 },
    Request { slot: u32, request: u64, step: Step, origin: Origin },
    EarlyRequest { step: Step, origin: Origin },
}

/// Builds the call sequence of the changed program.
struct Editor<'a> {
    from: &'a CallSequence,
    repeats: &'a Repeats,
    edits: &'a Edits,
    to: CallSequence,
    /// For each slot, the event number of the recorded request whose block it holds; `None` if it
    /// holds no block, or the request failed.
    holders: Vec<Option<u64>>,
    /// Slots whose block the recorded program holds at this point but the changed program does not,
    /// because it freed the block early or never requested it.
    absent: BTreeSet<u32>,
    /// The slots of blocks that are requested early, by event number of the recorded request.
    early_slots: BTreeMap<u64, u32>,
    /// Frees and repeated requests to insert, by the event before which they happen.
    inserted: BTreeMap<u64, Vec<InsertedCall>>,
    /// The largest rank of a deferred free so far.
    last_pending: Option<u32>,
    /// The index of one request target for each private pool that had a request so far.
    private_targets: BTreeSet<u16>,
}

impl<'a> Editor<'a> {
    fn new(workload: &'a Workload, edits: &'a Edits) -> Self {
        let from = &workload.sequence;
        let count = from.steps.len();
        let mut targets = from.targets.clone();
        if edits.shares_private_pools {
            let first = targets.iter().find(|(_, owner)| *owner != MempoolId::default()).copied();
            if let Some((_, first)) = first {
                let owners = targets.iter_mut().map(|(_, owner)| owner);
                owners.filter(|owner| **owner != MempoolId::default()).for_each(|owner| *owner = first);
            }
        }
        let to = CallSequence {
            steps: Vec::with_capacity(count),
            origins: Vec::with_capacity(count),
            events: Vec::with_capacity(count),
            slot_count: from.slot_count,
            targets,
            calls: from.calls,
            requests: from.requests,
        };
        Self {
            from,
            repeats: &workload.repeats,
            edits,
            to,
            holders: vec![None; from.slot_count],
            absent: BTreeSet::new(),
            early_slots: BTreeMap::new(),
            inserted: BTreeMap::new(),
            last_pending: None,
            private_targets: BTreeSet::new(),
        }
    }

    /// Returns the calls of the changed program.
    fn run(mut self) -> CallSequence {
        let from = self.from;
        let mut last_event = 0;
        self.insert_early_requests();
        for ((&step, &origin), &event) in from.steps.iter().zip(&from.origins).zip(&from.events) {
            if event > last_event {
                self.insert_until(event, origin);
                self.insert_calls(last_event, event, origin);
                last_event = event;
            }
            self.step(step, origin, event);
        }
        self.to
    }

    /// Inserts the requests that edits make early. Each of their blocks gets a slot of its own,
    /// because another block may be in the recorded slot at that time.
    fn insert_early_requests(&mut self) {
        if self.edits.requested_early.is_empty() {
            return;
        }
        for ((&step, &origin), &event) in self.from.steps.iter().zip(&self.from.origins).zip(&self.from.events) {
            let (Step::Allocate { bytes, target, failed: false, .. }, Some(&before)) =
                (step, self.edits.requested_early.get(&event).filter(|&&before| before < event))
            else {
                continue;
            };
            let Ok(slot) = u32::try_from(self.to.slot_count) else { return };
            self.to.slot_count += 1;
            self.early_slots.insert(event, slot);
            let step = Step::Allocate { bytes, slot, target, failed: false };
            self.inserted.entry(before).or_default().push(InsertedCall::EarlyRequest { step, origin });
        }
    }

    /// Returns the slot of a block that was requested early, if the recorded slot holds one.
    fn early_slot(&self, holder: Option<u64>) -> Option<u32> {
        self.early_slots.get(&holder?).copied()
    }

    /// Appends the early frees, repeated requests and early requests that are due before `event`.
    fn insert_until(&mut self, event: u64, origin: Origin) {
        while let Some(entry) = self.inserted.first_entry().filter(|entry| *entry.key() <= event) {
            for inserted in entry.remove() {
                match inserted {
                    InsertedCall::Free { slot, request } if self.holds(slot, request) => {
                        self.to.push(Step::Free { slot }, origin, event);
                        self.absent.insert(slot);
                    }
                    InsertedCall::Request { slot, request, step, origin }
                        if self.holds(slot, request) && self.absent.remove(&slot) =>
                    {
                        self.to.push(step, origin, event);
                    }
                    InsertedCall::EarlyRequest { step, origin } => self.to.push(step, origin, event),
                    _ => {}
                }
            }
        }
    }

    /// Appends the calls that edits insert before any of the events `last_event + 1..=event`:
    /// waiting for all streams, releasing private pools, and emptying the cache.
    fn insert_calls(&mut self, last_event: u64, event: u64, origin: Origin) {
        // A call inserted before a request is also inserted before its repetition.
        let repeated = |edits: &BTreeSet<u64>| {
            let Some((reference, later)) = self.repeats.references.get(&event) else { return false };
            let is_same = |request: &u64| {
                request == reference || self.repeats.references.get(request).is_some_and(|(of, _)| of == reference)
            };
            *later > 1 && edits.iter().any(is_same)
        };
        let is_before = |edits: &BTreeSet<u64>| edits.range(last_event + 1..=event).next().is_some() || repeated(edits);
        let is_synchronized = is_before(&self.edits.synchronized_before);
        let releases_pools = is_before(&self.edits.pools_released_before);
        let is_emptied = is_before(&self.edits.emptied_before);
        if is_synchronized {
            if let Some(completed) = self.last_pending {
                self.to.push(Step::PassEvents { completed }, origin, event);
            }
            self.to.push(Step::ProcessEvents, origin, event);
        }
        if releases_pools {
            for target in std::mem::take(&mut self.private_targets) {
                self.to.push(Step::ReleasePool { target }, origin, event);
            }
        }
        if is_emptied || releases_pools {
            self.to.push(Step::EmptyCache, origin, event);
        }
    }

    /// Returns true if the slot holds the block of the recorded request of event `request`.
    fn holds(&self, slot: u32, request: u64) -> bool {
        self.holders[slot as usize] == Some(request)
    }

    /// Returns the index of the target of the request of `event`: `recorded`, or another pool if an
    /// edit says so: the default one, or a new private one.
    fn target(&mut self, event: u64, recorded: u16) -> u16 {
        let targets = &mut self.to.targets;
        let Some(&(stream, _)) = targets.get(usize::from(recorded)) else { return recorded };
        let target = match () {
            () if self.edits.from_private_pool.contains(&event) => (stream, PRIVATE_POOL),
            () if self.edits.from_default_pool.contains(&event) => (stream, MempoolId::default()),
            () => return recorded,
        };
        let known = targets.iter().position(|one| *one == target && target.1 != PRIVATE_POOL);
        let Ok(index) = u16::try_from(known.unwrap_or(targets.len())) else { return recorded };
        if known.is_none() {
            targets.push(target);
        }
        index
    }

    /// Adds the private pool of a request's target to the pools that an edit may release. Does
    /// nothing for the default pool.
    fn add_private_target(&mut self, target: u16) {
        let owner = |target: u16| self.to.targets.get(usize::from(target)).map(|&(_, owner)| owner);
        let own = owner(target);
        let is_new = || !self.private_targets.iter().any(|&other| owner(other) == own);
        if own.is_some_and(|owner| owner != MempoolId::default()) && is_new() {
            self.private_targets.insert(target);
        }
    }

    /// Appends the recorded step of `event` as the edits change it, or leaves it out.
    fn step(&mut self, step: Step, origin: Origin, event: u64) {
        match step {
            Step::Allocate { bytes, slot, target, failed } => {
                let bytes = match self.edits.parts(event, self.repeats) {
                    Some(parts) => bytes.checked_div(parts).map_or(0, |part| part + u64::from(bytes % parts > 0)),
                    None => bytes,
                };
                let target = self.target(event, target);
                self.add_private_target(target);
                let step = Step::Allocate { bytes, slot, target, failed };
                self.holders[slot as usize] = Some(event).filter(|_| !failed);
                self.absent.remove(&slot);
                if bytes == 0 || self.early_slots.contains_key(&event) {
                    self.absent.insert(slot);
                    return;
                }
                if let Some(early) = self.edits.early_free(event, self.repeats).filter(|_| !failed) {
                    let free = InsertedCall::Free { slot, request: event };
                    self.inserted.entry(early.before).or_default().push(free);
                    if let Some(again_before) = early.again_before.filter(|&again| again > early.before) {
                        let again = InsertedCall::Request { slot, request: event, step, origin };
                        self.inserted.entry(again_before).or_default().push(again);
                    }
                }
                self.to.push(step, origin, event);
            }
            Step::Free { slot } | Step::DeferredFree { slot, .. } => {
                let holder = self.holders[slot as usize].take();
                let is_at_once = holder.is_some_and(|request| self.edits.freed_at_once.contains(&request));
                if let Step::DeferredFree { completed, .. } = step {
                    self.last_pending = self.last_pending.max(Some(completed));
                }
                let is_absent = self.absent.remove(&slot);
                if let Some(slot) = self.early_slot(holder) {
                    self.to.push(Step::Free { slot }, origin, event);
                } else if !is_absent {
                    self.to.push(if is_at_once { Step::Free { slot } } else { step }, origin, event);
                }
            }
            Step::EmptyCache if self.edits.keeps_cache => {}
            Step::ReleasePool { .. } if self.edits.shares_private_pools => {}
            _ => self.to.push(step, origin, event),
        }
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{DeviceId, Encoder, Recording, RecordingInfo, StreamId};

    use super::*;
    use crate::SimulatedDevice;
    use crate::pool::Pool;
    use crate::private_pools::CaptureFilter;
    use crate::rerun::History;
    use crate::settings::Settings;

    const MIB: u64 = 1 << 20;

    /// Requests 30, 40 and 50 MiB, frees the second and requests 60 MiB, 11 MiB more and then
    /// 60 MiB, of at most 150 MiB. The last request, event 10, fails.
    fn workload() -> Workload {
        let mut encoder = Encoder::new(&RecordingInfo::default());
        let mut pool = Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(150 * MIB));
        let mut second = None;
        for mib in [30, 40, 50, 11, 60] {
            if mib == 11 {
                let address = second.expect("40 MiB fit");
                pool.free(address, Origin::default(), &mut encoder).expect("it is allocated");
            }
            let allocated = pool.allocate(mib * MIB, StreamId(0), Origin::default(), &mut encoder);
            assert_eq!(allocated.is_err(), mib == 60, "{mib} MiB");
            if mib == 40 {
                second = allocated.ok().flatten().map(|block| block.address);
            }
        }
        workload_of(encoder)
    }

    /// Returns the calls that are reconstructed from the encoded events.
    fn workload_of(mut encoder: Encoder) -> Workload {
        encoder.flush();
        let mut recording = Recording::new();
        for chunk in encoder.take_output() {
            recording.push(&chunk.bytes).expect("a valid chunk");
        }
        let history = History::from_recording(&recording).expect("a valid recording").remove(0);
        Workload::new(history, &Settings::default()).expect("a valid start")
    }

    /// Returns the failed requests after an edit, on the device of 150 MiB.
    fn failed(edit: impl Fn(&mut Edits)) -> Vec<u64> {
        let mut edits = Edits::default();
        edit(&mut edits);
        workload().edited(&edits).failed_requests(&Settings::default(), Some(150 * MIB))
    }

    #[test]
    fn unchanged_program_fails_as_recorded() {
        assert_eq!(failed(|_| {}), [10]);
    }

    #[test]
    fn each_edit_can_prevent_the_failure() {
        let none: [u64; 0] = [];
        assert_eq!(failed(|edits| edits.divide(10, 3)), none, "a smaller request");
        assert_eq!(failed(|edits| edits.divide(10, 0)), none, "no request");
        assert_eq!(failed(|edits| edits.divide(6, 0)), none, "without the block of 50 MiB");
        assert_eq!(failed(|edits| edits.free_before(6, 10)), none, "an earlier free");
        assert_eq!(failed(|edits| edits.free_between(6, 8, 11)), none, "a block that is absent for now");
    }

    #[test]
    fn early_request_takes_its_memory_early() {
        let peak = |edit: &dyn Fn(&mut Edits)| {
            let mut edits = Edits::default();
            edit(&mut edits);
            workload().edited(&edits).simulate(&Settings::default(), None).peak_reserved_bytes
        };
        // Without a limit all five requests succeed, and 11 MiB are in the freed 40.
        assert_eq!(peak(&|edits| edits.divide(10, 0)), 120 * MIB);
        let early = |edits: &mut Edits| {
            edits.divide(10, 0);
            edits.request_before(9, 2);
        };
        assert_eq!(peak(&early), 132 * MIB, "11 MiB before the 40 MiB that are freed");
        assert_eq!(peak(&|edits| edits.request_before(9, 100)), peak(&|_| {}), "an event after the request");
    }

    #[test]
    fn private_pool_takes_no_cached_segment() {
        // Without the block of 11 MiB, the segment of 40 MiB can be released.
        let unpinned = |edits: &mut Edits| edits.divide(9, 0);
        assert!(failed(unpinned).is_empty());
        let in_private_pool = |edits: &mut Edits| {
            unpinned(edits);
            edits.from_private_pool.insert(10);
        };
        assert_eq!(failed(in_private_pool), [10]);
        let after_empty_cache = |edits: &mut Edits| {
            in_private_pool(edits);
            edits.emptied_before.insert(10);
        };
        assert!(failed(after_empty_cache).is_empty());
    }

    /// Requests 30 MiB in each of two private pools and frees both, empties the cache twice after
    /// 40 MiB, and returns the reserved peak and the driver's calls after an edit.
    fn peak_and_calls(edit: impl Fn(&mut Edits)) -> (u64, u64) {
        let mut encoder = Encoder::new(&RecordingInfo::default());
        let mut pool = Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(1 << 30));
        for number in 1..=2 {
            let owner = MempoolId(0, number);
            pool.create_pool(owner).expect("it is new");
            pool.begin_allocate_to_pool(owner, CaptureFilter::AllStreams).expect("no other is being filled");
            let block = pool.allocate(30 * MIB, StreamId(0), Origin::default(), &mut encoder);
            let address = block.ok().flatten().expect("30 MiB fit").address;
            pool.end_allocate_to_pool(owner).expect("it was begun");
            pool.release_pool(owner).expect("it was filled");
            pool.free(address, Origin::default(), &mut encoder).expect("it is allocated");
        }
        for _ in 0..2 {
            let block = pool.allocate(40 * MIB, StreamId(0), Origin::default(), &mut encoder);
            let address = block.ok().flatten().expect("40 MiB fit").address;
            pool.free(address, Origin::default(), &mut encoder).expect("it is allocated");
            pool.empty_cache(Origin::default(), &mut encoder).expect("nothing is being captured");
        }
        let mut edits = Edits::default();
        edit(&mut edits);
        let run = workload_of(encoder).edited(&edits).simulate(&Settings::default(), None);
        (run.peak_reserved_bytes, run.device_allocations)
    }

    #[test]
    fn private_pools_are_shared_and_the_cache_kept() {
        assert_eq!(peak_and_calls(|_| {}), (100 * MIB, 4));
        assert_eq!(peak_and_calls(|edits| edits.shares_private_pools = true), (70 * MIB, 3));
        assert_eq!(peak_and_calls(|edits| edits.keeps_cache = true), (100 * MIB, 3));
    }

    #[test]
    fn default_pool_reuses_what_private_pools_kept() {
        let from_default_pool = |edits: &mut Edits| edits.from_default_pool.extend(0..100);
        assert_eq!(peak_and_calls(from_default_pool), (70 * MIB, 3));
    }

    #[test]
    fn edits_that_come_too_late_change_nothing() {
        assert_eq!(failed(|edits| edits.free_before(6, 11)), [10]);
        assert_eq!(failed(|edits| edits.free_between(6, 8, 9)), [10]);
        assert_eq!(failed(|edits| assert!(edits.emptied_before.insert(10))), [10], "the allocator did so itself");
        assert_eq!(failed(|edits| edits.divide(1, 0)), [10], "event 1 is the segment, not the request");
    }

    /// Requests 60 MiB beside 4 MiB in one segment, lets stream 1 use them, frees them and requests
    /// 50 MiB, on a device of 80 MiB. The last request waits for the free and fails.
    fn waiting_workload() -> Workload {
        let mut encoder = Encoder::new(&RecordingInfo::default());
        let device = SimulatedDevice::new(80 * MIB).with_manual_events();
        let mut pool = Pool::new(DeviceId(0), Settings::default(), device);
        let (origin, stream) = (Origin::default(), StreamId(0));
        let first = pool.allocate(64 * MIB, stream, origin, &mut encoder).expect("it fits").expect("not empty");
        pool.free(first.address, origin, &mut encoder).expect("it is allocated");
        pool.allocate(4 * MIB, stream, origin, &mut encoder).expect("it fits");
        let second = pool.allocate(60 * MIB, stream, origin, &mut encoder).expect("it fits").expect("not empty");
        let second = second.address;
        pool.record_stream(second, StreamId(1)).expect("it is allocated");
        pool.free(second, origin, &mut encoder).expect("it is allocated");
        assert!(pool.allocate(50 * MIB, stream, origin, &mut encoder).is_err());
        workload_of(encoder)
    }

    #[test]
    fn request_that_waited_for_a_free_fails_again() {
        let workload = waiting_workload();
        let failed = |edits: &Edits| workload.edited(edits).failed_requests(&Settings::default(), Some(80 * MIB)).len();
        assert_eq!(failed(&Edits::default()), 1, "the free completes while the request waits");
        let requests: Vec<u64> = workload.sequence.events.clone();
        let last = requests.iter().max().copied().unwrap_or(0);
        let mut synchronized = Edits::default();
        synchronized.synchronized_before.insert(last);
        assert_eq!(failed(&synchronized), 0);
        let mut at_once = Edits::default();
        at_once.freed_at_once.extend(&requests);
        assert_eq!(failed(&at_once), 0);
    }
}
