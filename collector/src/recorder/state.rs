//! State that the handles and the recorder share, apart from the rings.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use vramscope_trace::{Annotation, Definition, DeviceId, DeviceState, MemoryState};

use super::ring_reader::RingReader;
use crate::sites::Numbers;
use crate::wait_check::{CheckedGuard, Wait};

/// Maximum number of side records that wait for the recorder; at the limit, the program waits. A
/// full state can be large.
pub(super) const MAX_SIDE_RECORDS: usize = 64;

/// An item that is too large for a ring and waits in a list beside it. A placeholder in the ring
/// marks its position among the events.
pub(super) enum SideRecord {
    Annotation(Annotation),
    FullState(Box<MemoryState>),
    /// A device's memory state after dropped events.
    DeviceState(DeviceId, Box<DeviceState>),
}

/// What happens when a program produces events faster than the recorder takes them: it waits, or
/// events are dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The program waits; nothing is lost.
    #[default]
    Wait,
    /// Events are dropped and counted. The recording contains their number and the pool's state
    /// after them.
    Drop,
}

/// A function that makes a pool record its state once it can stop dropping events. Returns false
/// after the pool has been dropped, and is then not called again.
pub(crate) type CatchUpCallback = Box<dyn Fn() -> bool + Send>;

/// The number of events that one handle has dropped and that no gap event counts yet.
pub(super) struct DroppedEvents {
    pub(super) device: DeviceId,
    /// Written only by the handle.
    pub(super) events: AtomicU64,
}

impl DroppedEvents {
    /// Counts another dropped event.
    #[inline]
    pub(super) fn count(&self) {
        self.events.store(self.events.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// State that the handles and the recorder share. `R` is the type of the ring that several handles
/// have in common.
pub(super) struct RecorderState<R> {
    pub(super) overflow: Overflow,
    pub(super) numbers: Numbers,
    /// Copy of [`LockedState::is_closed`] that can be read without the lock.
    pub(super) is_closed: AtomicBool,
    pub(super) state: Mutex<LockedState<R>>,
    /// Notified when a ring may have room again, and after each pass.
    pub(super) changed: Condvar,
    /// How often a program thread has begun to wait for room.
    pub(super) waits: AtomicU64,
    /// Total time that program threads waited.
    pub(super) waited_ns: AtomicU64,
}

/// The part of [`RecorderState`] that its lock guards: flags, new rings, and queues of definitions
/// and side records, which do not fit into a ring.
pub(super) struct LockedState<R> {
    /// True once no more events are accepted.
    pub(super) is_closed: bool,
    /// True once the recorder has finished.
    pub(super) is_ended: bool,
    /// Number of merge passes whose results have been passed on.
    pub(super) passes: u64,
    /// Number of threads that wait in `flush`.
    pub(super) flushes: usize,
    /// True if the next pass writes a full state.
    pub(super) wants_state: bool,
    /// Number of rings, including the common one.
    pub(super) rings: usize,
    /// Number of the next ring.
    pub(super) next_ring: u64,
    /// New rings for the recorder.
    pub(super) sources: Vec<RingReader>,
    /// The common ring of all handles beyond the limit.
    pub(super) common: Option<Arc<Mutex<R>>>,
    /// Counters of the handles that are dropping events.
    pub(super) dropped: Vec<Arc<DroppedEvents>>,
    /// Functions that the recorder calls after each pass while events are being dropped.
    pub(super) catch_up_callbacks: Vec<CatchUpCallback>,
    /// New definitions in order of their numbers.
    pub(super) definitions: Vec<Definition>,
    /// Side records, with the number of their ring.
    pub(super) side_records: VecDeque<(u64, SideRecord)>,
}

impl<R> Default for LockedState<R> {
    fn default() -> Self {
        Self {
            is_closed: false,
            is_ended: false,
            passes: 0,
            flushes: 0,
            wants_state: false,
            rings: 0,
            next_ring: 0,
            sources: Vec::new(),
            common: None,
            dropped: Vec::new(),
            catch_up_callbacks: Vec::new(),
            definitions: Vec::new(),
            side_records: VecDeque::new(),
        }
    }
}

impl<R> RecorderState<R> {
    pub(super) fn new(overflow: Overflow) -> Self {
        Self {
            overflow,
            numbers: Numbers::default(),
            is_closed: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
            waits: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        }
    }

    /// Locks the state, also after a thread that held the lock has panicked.
    pub(super) fn lock(&self) -> CheckedGuard<'_, LockedState<R>> {
        Wait::Recorder.begin();
        // No code under the lock can panic, so the state is consistent even if a thread died.
        CheckedGuard::new(self.state.lock().unwrap_or_else(PoisonError::into_inner), Wait::Hub)
    }

    /// Blocks while `full` returns true and the recording has not ended, and returns the locked
    /// state. Wakes the thread `recorder` first, and adds the wait to the statistics of
    /// [`waits`](Self::waits).
    pub(super) fn wait_while(
        &self,
        recorder: &Thread,
        mut full: impl FnMut(&mut LockedState<R>) -> bool,
    ) -> CheckedGuard<'_, LockedState<R>> {
        let mut state = self.lock();
        if state.is_closed || !full(&mut state) {
            return state;
        }
        recorder.unpark();
        self.waits.fetch_add(1, Ordering::Relaxed);
        let since = Instant::now();
        let state = state.wait_while(&self.changed, |state| !state.is_closed && full(state));
        let waited_ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waited_ns.fetch_add(waited_ns, Ordering::Relaxed);
        state
    }

    /// Wakes the threads that wait for room in a ring or list.
    pub(super) fn notify_waiting(&self) {
        // A thread that found no room holds the lock until it waits, so it cannot miss this.
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Returns true if a thread waits in `flush`.
    pub(super) fn is_flush_wanted(&self) -> bool {
        self.lock().flushes > 0
    }

    /// Returns true if [`RecorderHandle::write_state`](super::RecorderHandle::write_state) has
    /// requested a full state since the last call.
    pub(super) fn take_state_request(&self) -> bool {
        std::mem::take(&mut self.lock().wants_state)
    }

    /// Counts a merge pass, after its results have been passed to file and hub, and wakes threads
    /// that wait for it.
    pub(super) fn finish_pass(&self) {
        self.lock().passes += 1;
        self.changed.notify_all();
    }

    /// Marks the recorder as finished: no more events are accepted, and waiting threads return.
    pub(super) fn end(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        (state.is_closed, state.is_ended) = (true, true);
        drop(state);
        self.changed.notify_all();
    }

    /// Stops accepting events from all handles. The recorder still reads the events in the rings.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        state.is_closed = true;
        // Breaks the reference cycle: the common ring refers to this state.
        let common = state.common.take();
        drop(state);
        drop(common);
        self.changed.notify_all();
    }

    /// Moves the reading ends of new rings to `sources`. Returns true if the recording has been
    /// closed, so that nothing more will be written to any ring.
    pub(super) fn take_sources(&self, sources: &mut Vec<RingReader>) -> bool {
        let mut state = self.lock();
        sources.append(&mut state.sources);
        state.is_closed
    }

    /// Moves the waiting definitions and side records to the ends of these lists. The number with a
    /// side record is that of its ring.
    pub(super) fn take_definitions_and_side_records(
        &self,
        definitions: &mut Vec<Definition>,
        side_records: &mut VecDeque<(u64, SideRecord)>,
    ) {
        let mut state = self.lock();
        definitions.append(&mut state.definitions);
        side_records.append(&mut state.side_records);
    }

    /// Removes the counters of dropped events that no gap event counts yet, and returns the device
    /// and the number of each.
    pub(super) fn take_dropped(&self) -> Vec<(DeviceId, u64)> {
        let dropped = std::mem::take(&mut self.lock().dropped);
        dropped.iter().map(|dropped| (dropped.device, dropped.events.load(Ordering::Relaxed))).collect()
    }

    /// Adds a function that the recorder calls while events are being dropped, until it returns
    /// false.
    pub(super) fn register_catch_up(&self, callback: CatchUpCallback) {
        self.lock().catch_up_callbacks.push(callback);
    }

    /// Returns the number of dropped events, of all handles, that no gap event counts yet. If
    /// handles are dropping events, first calls the [callbacks](CatchUpCallback).
    pub(super) fn dropped_events(&self) -> u64 {
        let mut state = self.lock();
        if state.dropped.is_empty() {
            return 0;
        }
        let catch_up_callbacks = std::mem::take(&mut state.catch_up_callbacks);
        drop(state);
        // The callbacks take the lock.
        let mut kept: Vec<_> = catch_up_callbacks.into_iter().filter(|callback| callback()).collect();
        let mut state = self.lock();
        kept.append(&mut state.catch_up_callbacks);
        state.catch_up_callbacks = kept;
        state.dropped.iter().map(|dropped| dropped.events.load(Ordering::Relaxed)).sum()
    }

    /// Subtracts one from the number of rings, for a ring that is empty and whose handle has been
    /// dropped.
    pub(super) fn remove_ring(&self) {
        self.lock().rings -= 1;
    }

    /// Returns the number of rings, including the shared one.
    #[cfg(test)]
    pub(super) fn rings(&self) -> usize {
        self.lock().rings
    }

    /// Returns how often program threads waited for room in a queue, and for how long in total.
    pub(super) fn waits(&self) -> (u64, Duration) {
        let waited = Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed));
        (self.waits.load(Ordering::Relaxed), waited)
    }
}
