//! The side of the program that is recorded: a ring for each handle, and what is done when one is full.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rtrb::{Producer, PushError, RingBuffer};
use vramscope_trace::{Annotation, Definition, Event, MemoryState, Sink};

use super::clock::Clock;
use super::merge::Outlet;
use super::record::{self, ASIDE_SLOT, Slot};

/// Slots of a ring, 2 MiB: the 16,384 blocks that a program can allocate and free, 49,152 events, before it has to wait for the
/// recorder. A larger ring wakes the recorder less often, but the lines that it goes through leave the processor's own cache.
const RING_LEN: usize = 1 << 16;
/// The recorder is woken before its time each time a ring has been given this much.
const WAKE_LEN: usize = RING_LEN / 4;
/// How many handles may have a ring of their own; the others share one more.
pub(super) const MAX_RINGS: usize = 16;
/// Definitions that may wait for the recorder.
const MAX_DEFINITIONS: usize = 1 << 16;
/// Annotations and full states that may wait for the recorder. A state can be large.
const MAX_ASIDE: usize = 64;

/// What stands beside the events of a handle, in order with them.
pub(super) enum Aside {
    Annotation(Annotation),
    FullState(Box<MemoryState>),
}

/// What the handles and the recorder share, but for the rings.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Told when there is room again.
    room: Condvar,
    waits: AtomicU64,
    waited_ns: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Nothing more is taken.
    closed: bool,
    /// The recorder has passed on everything that it ever will.
    ended: bool,
    /// How often the recorder has looked at every ring and passed on what it found.
    rounds: u64,
    /// How many rings there are, the common one among them.
    rings: usize,
    /// The number of the next ring.
    next_ring: u64,
    /// Rings that the recorder does not know yet.
    outlets: Vec<Outlet>,
    /// The ring of all handles that found no place for one.
    common: Option<Arc<Mutex<Ring>>>,
    /// In the order of their numbers, whichever handles they came through.
    definitions: Vec<Definition>,
    /// With the rings in which the places are marked where they stand.
    aside: VecDeque<(u64, Aside)>,
}

impl Shared {
    pub(super) fn new() -> Self {
        Self { state: Mutex::default(), room: Condvar::new(), waits: AtomicU64::new(0), waited_ns: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, so what it guards is whole even if a thread died.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nothing is `full` anymore or the recording has ended, and counts it where there was anything to wait for.
    fn wait_while(&self, recorder: &Thread, mut full: impl FnMut(&mut State) -> bool) -> MutexGuard<'_, State> {
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

    /// What the recorder found in a round has been passed on.
    pub(super) fn round_is_done(&self) {
        self.lock().rounds += 1;
        self.room.notify_all();
    }

    /// The recorder will pass on nothing more.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        (state.closed, state.ended) = (true, true);
        drop(state);
        self.room.notify_all();
    }

    /// Ends the recording for all handles.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        // It refers back to what it stands in.
        let common = state.common.take();
        drop(state);
        drop(common);
        self.room.notify_all();
    }

    /// Adds the new rings to `outlets`; says whether the recording has been ended, and what was put before that is in a ring.
    pub(super) fn take_outlets(&self, outlets: &mut Vec<Outlet>) -> bool {
        let mut state = self.lock();
        outlets.append(&mut state.outlets);
        state.closed
    }

    /// Takes what came beside the events.
    pub(super) fn take_beside(&self, definitions: &mut Vec<Definition>, aside: &mut VecDeque<(u64, Aside)>) {
        let mut state = self.lock();
        definitions.append(&mut state.definitions);
        aside.append(&mut state.aside);
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

/// The end of a ring into which events are put.
pub(super) struct Ring {
    slots: Producer<Slot>,
    number: u64,
    /// How many slots were put since the recorder was last woken.
    since_wake: usize,
    shared: Arc<Shared>,
    recorder: Thread,
}

impl Ring {
    /// Puts an event; says whether the recording takes any more.
    #[inline]
    fn event(&mut self, event: &Event) -> bool {
        let (first, second) = record::pack(event);
        self.put(first) && (record::slots_of(&first) == 1 || self.put(second))
    }

    fn aside(&mut self, aside: Aside) -> bool {
        let mut state = self.shared.wait_while(&self.recorder, |state| state.aside.len() >= MAX_ASIDE);
        if state.closed {
            return false;
        }
        state.aside.push_back((self.number, aside));
        drop(state);
        self.put(ASIDE_SLOT)
    }

    #[inline]
    fn put(&mut self, slot: Slot) -> bool {
        if let Err(PushError::Full(slot)) = self.slots.push(slot)
            && !self.put_into_full(slot)
        {
            return false;
        }
        self.since_wake += 1;
        // Waking a thread costs more than everything else here, so it is done once a quarter of a ring.
        if self.since_wake == WAKE_LEN {
            self.wake();
        }
        true
    }

    #[cold]
    fn wake(&mut self) {
        self.since_wake = 0;
        self.recorder.unpark();
    }

    /// What happens when the program is faster than the recorder: it waits, and nothing is lost. Whatever else might be wanted then
    /// has its place here.
    #[cold]
    fn put_into_full(&mut self, slot: Slot) -> bool {
        drop(self.shared.wait_while(&self.recorder, |_| self.slots.is_full()));
        // Still full where the recording has ended.
        self.slots.push(slot).is_ok()
    }
}

/// Where a handle puts its events.
enum Inlet {
    /// It has put none.
    Unused,
    Own(Ring),
    /// Every ring was taken.
    Common(Arc<Mutex<Ring>>),
    /// The recording has ended.
    Closed,
}

/// Takes events for a [`Recorder`](super::Recorder).
///
/// Each clone that is given an event has a queue of its own, and what is put through one handle keeps its order. Between handles the
/// recorder goes by the events' times, so those of one handle should be put in the order of their times. What one thread puts
/// through several handles at times that [`now_ns`](Self::now_ns) told keeps its order too; of what two threads do at the same
/// moment either may come first. Definitions keep their order through whichever handles they come. A clone is dropped without a loss.
pub struct RecorderHandle {
    /// Never locked: a ring has one producer, and the lock is what makes the handle `Sync`, so that it can be anyone's clock.
    inlet: Mutex<Inlet>,
    clock: Clock,
    shared: Arc<Shared>,
    recorder: Thread,
}

impl RecorderHandle {
    pub(super) fn new(shared: Arc<Shared>, clock: Clock, recorder: Thread) -> Self {
        Self { inlet: Mutex::new(Inlet::Unused), clock, shared, recorder }
    }

    /// Nanoseconds since the recording began; never goes back.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Returns once everything that was put through any handle before has been passed on to the file and the viewers.
    pub fn flush(&self) {
        let mut state = self.shared.lock();
        // A round that is under way may have looked before. One that begins from now on finds everything, and leaves for the one
        // after it what has the time of another clock.
        let until = state.rounds + 3;
        while !state.ended && state.rounds < until {
            self.recorder.unpark();
            state = self.shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    #[inline]
    fn inlet(&mut self) -> &mut Inlet {
        self.inlet.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ring, or the common one where there are enough.
    fn open(&self) -> Inlet {
        let mut state = self.shared.lock();
        if state.closed {
            return Inlet::Closed;
        }
        if let Some(common) = &state.common
            && state.rings >= MAX_RINGS
        {
            return Inlet::Common(Arc::clone(common));
        }
        let (slots, outlet) = RingBuffer::new(RING_LEN);
        let number = state.next_ring;
        state.next_ring += 1;
        state.outlets.push(Outlet::new(number, outlet));
        let (shared, recorder) = (Arc::clone(&self.shared), self.recorder.clone());
        let ring = Ring { slots, number, since_wake: 0, shared, recorder };
        state.rings += 1;
        if state.rings <= MAX_RINGS {
            return Inlet::Own(ring);
        }
        let common = Arc::new(Mutex::new(ring));
        state.common = Some(Arc::clone(&common));
        Inlet::Common(common)
    }

    /// Puts something into whichever ring the handle has.
    fn put(&mut self, put: impl FnOnce(&mut Ring) -> bool) {
        if matches!(self.inlet(), Inlet::Unused) {
            *self.inlet() = self.open();
        }
        let is_open = match self.inlet() {
            Inlet::Own(ring) => put(ring),
            Inlet::Common(ring) => put(&mut ring.lock().unwrap_or_else(PoisonError::into_inner)),
            Inlet::Unused | Inlet::Closed => false,
        };
        if !is_open {
            *self.inlet() = Inlet::Closed;
        }
    }

    /// An event of a handle that has no ring of its own, or none yet.
    #[cold]
    fn event_elsewhere(&mut self, event: &Event) {
        self.put(|ring| ring.event(event));
    }
}

impl Clone for RecorderHandle {
    fn clone(&self) -> Self {
        let (shared, recorder) = (Arc::clone(&self.shared), self.recorder.clone());
        Self { inlet: Mutex::new(Inlet::Unused), clock: self.clock.clone(), shared, recorder }
    }
}

impl fmt::Debug for RecorderHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecorderHandle").finish_non_exhaustive()
    }
}

impl Sink for RecorderHandle {
    #[inline]
    fn event(&mut self, event: &Event) {
        match self.inlet() {
            Inlet::Own(ring) => {
                if !ring.event(event) {
                    *self.inlet() = Inlet::Closed;
                }
            }
            Inlet::Unused | Inlet::Common(_) | Inlet::Closed => self.event_elsewhere(event),
        }
    }
    fn define(&mut self, definition: &Definition) {
        let mut state = self.shared.wait_while(&self.recorder, |state| state.definitions.len() >= MAX_DEFINITIONS);
        if !state.closed {
            state.definitions.push(definition.clone());
        }
    }
    fn annotation(&mut self, annotation: &Annotation) {
        self.put(|ring| ring.aside(Aside::Annotation(*annotation)));
    }
    fn full_state(&mut self, state: &MemoryState) {
        self.put(|ring| ring.aside(Aside::FullState(Box::new(state.clone()))));
    }
}
