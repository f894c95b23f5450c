//! Changes of a recorded program, so that their effect can be simulated.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::MempoolId;

use super::call_sequence::{CallSequence, Step};
use super::workload::Workload;
use crate::pool::Origin;

/// The private pool of [`Edits::request_from_private_pool`]; recordings count pools from 0 or 1.
const PRIVATE_POOL: MempoolId = MempoolId(u64::MAX, u64::MAX);

/// When a block is freed earlier than recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EarlyFree {
    /// The block is freed before this event, if it is not free by then.
    before: u64,
    /// It is requested again before this event, if the program had not freed it by then.
    again_before: Option<u64>,
}

/// Changes of a recorded program's calls. A request is named by the number of the event that it led
/// to: an allocated block, or out of memory.
///
/// Blocks that existed before the history cannot be changed, and what names no request is ignored.
///
/// ```
/// use vramscope_pool::rerun::{Edits, Workload};
/// use vramscope_pool::Settings;
///
/// /// Returns true if the request that led to event `failed` succeeds after an emptied cache.
/// fn helps(workload: &Workload, settings: &Settings, capacity: Option<u64>, failed: u64) -> bool {
///     let mut edits = Edits::default();
///     edits.empty_cache_before(failed);
///     !workload.edited(&edits).failed_requests(settings, capacity).contains(&failed)
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    resized: BTreeMap<u64, u64>,
    freed_early: BTreeMap<u64, EarlyFree>,
    emptied_before: BTreeSet<u64>,
    synchronized_before: BTreeSet<u64>,
    from_private_pool: BTreeSet<u64>,
}

impl Edits {
    /// Gives a request another size. A size of 0 leaves the request and its free out.
    pub fn resize(&mut self, request: u64, bytes: u64) {
        self.resized.insert(request, bytes);
    }

    /// Frees the block of a request before `event`, unless the program freed it earlier.
    pub fn free_before(&mut self, request: u64, event: u64) {
        self.freed_early.insert(request, EarlyFree { before: event, again_before: None });
    }

    /// Frees the block of a request before event `from` and requests it again before event `to`,
    /// as activations that are computed again. The program's own free stays where it is.
    pub fn free_between(&mut self, request: u64, from: u64, to: u64) {
        self.freed_early.insert(request, EarlyFree { before: from, again_before: Some(to) });
    }

    /// Empties the cache before an event (`torch.cuda.empty_cache()`).
    pub fn empty_cache_before(&mut self, event: u64) {
        self.emptied_before.insert(event);
    }

    /// Waits for all streams before an event (`torch.cuda.synchronize()`), and completes the frees
    /// that were pending.
    pub fn synchronize_before(&mut self, event: u64) {
        self.synchronized_before.insert(event);
    }

    /// Makes a request for a private pool of its own (`torch.cuda.use_mem_pool`). No recording
    /// contains the pool of a request that failed.
    pub fn request_from_private_pool(&mut self, request: u64) {
        self.from_private_pool.insert(request);
    }

    /// Returns true if nothing is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Workload {
    /// Returns the workload with changed calls. Its recorded figures are those of the unchanged
    /// program.
    ///
    /// The cost is linear in the number of calls, and the copy as large as the original. Without
    /// changes nothing is copied.
    #[must_use]
    pub fn edited(&self, edits: &Edits) -> Cow<'_, Self> {
        if edits.is_empty() {
            return Cow::Borrowed(self);
        }
        Cow::Owned(Self {
            device: self.device,
            driver_calls: self.driver_calls.clone(),
            sequence: Editor::new(&self.sequence, edits).run(),
            recorded: self.recorded,
            recorded_capacity_bytes: self.recorded_capacity_bytes,
            floor_bytes: self.floor_bytes,
            unverified_from: self.unverified_from,
        })
    }
}

/// A call that an edit inserts.
#[derive(Clone, Copy, Debug)]
enum Inserted {
    Free { slot: u32, request: u64 },
    Request { slot: u32, request: u64, step: Step, origin: Origin },
}

/// Builds the changed sequence.
struct Editor<'a> {
    from: &'a CallSequence,
    edits: &'a Edits,
    to: CallSequence,
    /// The request whose block each slot holds in the recorded program; `None` if its block is gone
    /// already in the changed one.
    holders: Vec<Option<u64>>,
    /// Blocks that are free for now: the slot of each is empty.
    absent: BTreeSet<u32>,
    /// Frees and repeated requests to insert, by the event before which they happen.
    inserted: BTreeMap<u64, Vec<Inserted>>,
    /// The largest rank of a pending free so far.
    last_pending: Option<u32>,
}

impl<'a> Editor<'a> {
    fn new(from: &'a CallSequence, edits: &'a Edits) -> Self {
        let count = from.steps.len();
        let to = CallSequence {
            steps: Vec::with_capacity(count),
            origins: Vec::with_capacity(count),
            events: Vec::with_capacity(count),
            slot_count: from.slot_count,
            targets: from.targets.clone(),
            calls: from.calls,
            requests: from.requests,
        };
        let holders = vec![None; from.slot_count];
        Self { from, edits, to, holders, absent: BTreeSet::new(), inserted: BTreeMap::new(), last_pending: None }
    }

    fn run(mut self) -> CallSequence {
        let from = self.from;
        let mut last_event = 0;
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

    fn push(&mut self, step: Step, origin: Origin, event: u64) {
        self.to.steps.push(step);
        self.to.origins.push(origin);
        self.to.events.push(event);
    }

    /// Inserts the frees and repeated requests that happen before `event`.
    fn insert_until(&mut self, event: u64, origin: Origin) {
        while let Some(entry) = self.inserted.first_entry().filter(|entry| *entry.key() <= event) {
            for inserted in entry.remove() {
                match inserted {
                    Inserted::Free { slot, request } if self.holds(slot, request) => {
                        self.push(Step::Free { slot }, origin, event);
                        self.absent.insert(slot);
                    }
                    Inserted::Request { slot, request, step, origin }
                        if self.holds(slot, request) && self.absent.remove(&slot) =>
                    {
                        self.push(step, origin, event);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Inserts the calls that happen before the events after `last_event` up to `event`.
    fn insert_calls(&mut self, last_event: u64, event: u64, origin: Origin) {
        let new = last_event + 1..=event;
        if self.edits.synchronized_before.range(new.clone()).next().is_some() {
            if let Some(completed) = self.last_pending {
                self.push(Step::PassEvents { completed }, origin, event);
            }
            self.push(Step::ProcessEvents, origin, event);
        }
        if self.edits.emptied_before.range(new).next().is_some() {
            self.push(Step::EmptyCache, origin, event);
        }
    }

    /// Returns true if a slot still belongs to a request of the recorded program.
    fn holds(&self, slot: u32, request: u64) -> bool {
        self.holders[slot as usize] == Some(request)
    }

    /// Returns the target of a request: that of the recorded one, or a private pool.
    fn target(&mut self, event: u64, recorded: u16) -> u16 {
        let stream = self.to.targets.get(usize::from(recorded)).map(|&(stream, _)| stream);
        match (stream, u16::try_from(self.to.targets.len())) {
            (Some(stream), Ok(next)) if self.edits.from_private_pool.contains(&event) => {
                self.to.targets.push((stream, PRIVATE_POOL));
                next
            }
            _ => recorded,
        }
    }

    /// Appends a recorded step with its changes.
    fn step(&mut self, step: Step, origin: Origin, event: u64) {
        match step {
            Step::Allocate { bytes, slot, target, failed } => {
                let bytes = self.edits.resized.get(&event).copied().unwrap_or(bytes);
                let target = self.target(event, target);
                let step = Step::Allocate { bytes, slot, target, failed };
                self.holders[slot as usize] = Some(event).filter(|_| !failed);
                self.absent.remove(&slot);
                if bytes == 0 {
                    self.absent.insert(slot);
                    return;
                }
                if let Some(early) = self.edits.freed_early.get(&event).filter(|_| !failed) {
                    let free = Inserted::Free { slot, request: event };
                    self.inserted.entry(early.before).or_default().push(free);
                    if let Some(again_before) = early.again_before.filter(|&again| again > early.before) {
                        let again = Inserted::Request { slot, request: event, step, origin };
                        self.inserted.entry(again_before).or_default().push(again);
                    }
                }
                self.push(step, origin, event);
            }
            Step::Free { slot } | Step::DeferredFree { slot, .. } => {
                if let Step::DeferredFree { completed, .. } = step {
                    self.last_pending = self.last_pending.max(Some(completed));
                }
                self.holders[slot as usize] = None;
                if !self.absent.remove(&slot) {
                    self.push(step, origin, event);
                }
            }
            _ => self.push(step, origin, event),
        }
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{DeviceId, Encoder, Recording, RecordingInfo, StreamId};

    use super::*;
    use crate::SimulatedDevice;
    use crate::pool::Pool;
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
        assert_eq!(failed(|edits| edits.resize(10, 29 * MIB)), none, "a smaller request");
        assert_eq!(failed(|edits| edits.resize(10, 0)), none, "no request");
        assert_eq!(failed(|edits| edits.resize(6, 0)), none, "without the block of 50 MiB");
        assert_eq!(failed(|edits| edits.free_before(6, 10)), none, "an earlier free");
        assert_eq!(failed(|edits| edits.free_between(6, 8, 11)), none, "a block that is absent for now");
    }

    #[test]
    fn private_pool_takes_no_cached_segment() {
        // Without the block of 11 MiB, the segment of 40 MiB can be released.
        let unpinned = |edits: &mut Edits| edits.resize(9, 0);
        assert!(failed(unpinned).is_empty());
        let in_private_pool = |edits: &mut Edits| {
            unpinned(edits);
            edits.request_from_private_pool(10);
        };
        assert_eq!(failed(in_private_pool), [10]);
        let after_empty_cache = |edits: &mut Edits| {
            in_private_pool(edits);
            edits.empty_cache_before(10);
        };
        assert!(failed(after_empty_cache).is_empty());
    }

    #[test]
    fn edits_that_come_too_late_change_nothing() {
        assert_eq!(failed(|edits| edits.free_before(6, 11)), [10]);
        assert_eq!(failed(|edits| edits.free_between(6, 8, 9)), [10]);
        assert_eq!(failed(|edits| edits.empty_cache_before(10)), [10], "the allocator did so itself");
        assert_eq!(failed(|edits| edits.resize(1, 0)), [10], "event 1 is the segment, not the request");
    }
}
