//! What the handles and the recorder share, but for the events themselves.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use vramscope_trace::{Annotation, Definition, DeviceId, DeviceState, MemoryState};

use super::merge::Source;
use super::place::Ring;
use crate::sites::Numbers;

/// Annotations and full states that may wait for the recorder. A state can be large.
pub(super) const MAX_ASIDE: usize = 64;

/// What stands beside the events of a handle, in order with them.
pub(super) enum Aside {
    Annotation(Annotation),
    FullState(Box<MemoryState>),
    /// A device's segments and blocks, after events of it were dropped.
    Seen(DeviceId, Box<DeviceState>),
}

/// What is done when a program is faster than its recorder, and a queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The program waits, and nothing is lost.
    #[default]
    Wait,
    /// Events are dropped and counted. The recording says how many, and what the pool looked like after them.
    Drop,
}

/// Looks at a pool that may be behind; says whether it is still there.
pub(crate) type Look = Box<dyn Fn() -> bool + Send>;

/// Events of a handle that is behind, and are in no gap yet.
pub(super) struct Dropped {
    pub(super) device: DeviceId,
    /// The handle alone writes it.
    pub(super) events: AtomicU64,
}

impl Dropped {
    #[inline]
    pub(super) fn count(&self) {
        self.events.store(self.events.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// What the handles and the recorder share, but for the rings.
pub(super) struct Shared {
    pub(super) overflow: Overflow,
    pub(super) numbers: Numbers,
    /// [`State::closed`], for whoever has no time to lock.
    pub(super) is_closed: AtomicBool,
    pub(super) state: Mutex<State>,
    /// Told when there is room again.
    pub(super) room: Condvar,
    pub(super) waits: AtomicU64,
    pub(super) waited_ns: AtomicU64,
}

#[derive(Default)]
pub(super) struct State {
    /// Nothing more is taken.
    pub(super) closed: bool,
    /// The recorder has passed on everything that it ever will.
    pub(super) ended: bool,
    /// How often the recorder has looked at every ring and passed on what it found.
    pub(super) rounds: u64,
    /// How many wait for what was put so far to be passed on.
    pub(super) flushes: usize,
    /// How many rings there are, the common one among them.
    pub(super) rings: usize,
    /// The number of the next ring.
    pub(super) next_ring: u64,
    /// Rings that the recorder does not know yet.
    pub(super) sources: Vec<Source>,
    /// The ring of all handles that found no place for one.
    pub(super) common: Option<Arc<Mutex<Ring>>>,
    /// Of each handle that is behind.
    pub(super) dropped: Vec<Arc<Dropped>>,
    /// What is called while events are dropped.
    pub(super) looks: Vec<Look>,
    /// In the order of their numbers, whichever handles they came through.
    pub(super) definitions: Vec<Definition>,
    /// With the rings in which the places are marked where they stand.
    pub(super) aside: VecDeque<(u64, Aside)>,
}

impl Shared {
    pub(super) fn new(overflow: Overflow) -> Self {
        Self {
            overflow,
            numbers: Numbers::default(),
            is_closed: AtomicBool::new(false),
            state: Mutex::default(),
            room: Condvar::new(),
            waits: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, so what it guards is whole even if a thread died.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nothing is `full` anymore or the recording has ended, and counts it where there was anything to wait for.
    pub(super) fn wait_while(
        &self,
        recorder: &Thread,
        mut full: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if state.closed || !full(&mut state) {
            return state;
        }
        recorder.unpark();
        let since = Instant::now();
        let wait = self.room.wait_while(state, |state| !state.closed && full(state));
        let state = wait.unwrap_or_else(PoisonError::into_inner);
        self.waits.fetch_add(1, Ordering::Relaxed);
        let waited_ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waited_ns.fetch_add(waited_ns, Ordering::Relaxed);
        state
    }

    /// Wakes those who wait for room.
    pub(super) fn tell_room(&self) {
        // Whoever has looked and found none is waiting by the time that the lock can be had.
        drop(self.lock());
        self.room.notify_all();
    }

    /// Whether what was found must not wait for more.
    pub(super) fn is_flush_wanted(&self) -> bool {
        self.lock().flushes > 0
    }

    /// What the recorder found in a round has been passed on.
    pub(super) fn round_is_done(&self) {
        self.lock().rounds += 1;
        self.room.notify_all();
    }

    /// The recorder will pass on nothing more.
    pub(super) fn end(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        (state.closed, state.ended) = (true, true);
        drop(state);
        self.room.notify_all();
    }

    /// Ends the recording for all handles.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        state.closed = true;
        // It refers back to what it stands in.
        let common = state.common.take();
        drop(state);
        drop(common);
        self.room.notify_all();
    }

    /// Adds the new rings to `sources`; says whether the recording has been ended, and what was put before that is in a ring.
    pub(super) fn take_sources(&self, sources: &mut Vec<Source>) -> bool {
        let mut state = self.lock();
        sources.append(&mut state.sources);
        state.closed
    }

    /// Takes what came beside the events.
    pub(super) fn take_beside(&self, definitions: &mut Vec<Definition>, aside: &mut VecDeque<(u64, Aside)>) {
        let mut state = self.lock();
        definitions.append(&mut state.definitions);
        aside.append(&mut state.aside);
    }

    /// Takes the events that were dropped and that no gap tells of.
    pub(super) fn take_dropped(&self) -> Vec<(DeviceId, u64)> {
        let dropped = std::mem::take(&mut self.lock().dropped);
        dropped.iter().map(|dropped| (dropped.device, dropped.events.load(Ordering::Relaxed))).collect()
    }

    pub(super) fn let_recorder_call(&self, look: Look) {
        self.lock().looks.push(look);
    }

    /// How many events were dropped that no gap tells of yet. Where there are any, those who can say what memory looks like are asked.
    pub(super) fn look_at_dropped(&self) -> u64 {
        let mut state = self.lock();
        if state.dropped.is_empty() {
            return 0;
        }
        let looks = std::mem::take(&mut state.looks);
        drop(state);
        // Not under the lock, which catching up takes.
        let mut kept: Vec<_> = looks.into_iter().filter(|look| look()).collect();
        let mut state = self.lock();
        kept.append(&mut state.looks);
        state.looks = kept;
        state.dropped.iter().map(|dropped| dropped.events.load(Ordering::Relaxed)).sum()
    }

    /// A ring whose handle is gone has been emptied.
    pub(super) fn ring_is_gone(&self) {
        self.lock().rings -= 1;
    }

    /// How many rings there are.
    #[cfg(test)]
    pub(super) fn rings(&self) -> usize {
        self.lock().rings
    }

    /// How often, and for how long in all, the program waited.
    pub(super) fn waits(&self) -> (u64, Duration) {
        let waited = Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed));
        (self.waits.load(Ordering::Relaxed), waited)
    }
}
