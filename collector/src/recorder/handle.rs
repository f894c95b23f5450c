//! The side of the program that is recorded: a ring for each handle, and what is done when one is full.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use vramscope_trace::{Annotation, Definition, Event, MemoryState, Sink};

use super::clock::Clock;
use super::merge::Source;
use super::record::{Packer, Put, Unit};
use super::ring::{Inlet, RING_LEN, ring};

/// The recorder is woken before its time each time a ring has been given this much.
const WAKE_LEN: u64 = RING_LEN / 4;
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
    /// How many wait for what was put so far to be passed on.
    flushes: usize,
    /// How many rings there are, the common one among them.
    rings: usize,
    /// The number of the next ring.
    next_ring: u64,
    /// Rings that the recorder does not know yet.
    sources: Vec<Source>,
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

/// A ring into which events are put.
pub(super) struct Ring {
    number: u64,
    packer: Packer,
    words: Words,
}

impl Ring {
    /// Puts an event, whose time is in `unit`; says whether the recording takes any more.
    // Always, all the way from where the pool makes the event, so that what kind it is of is known where it is packed.
    #[inline(always)]
    fn event(&mut self, event: &Event, unit: Unit) -> bool {
        self.packer.event(event, unit, &mut self.words)
    }

    fn aside(&mut self, aside: Aside) -> bool {
        let Words { shared, recorder, .. } = &self.words;
        let mut state = shared.wait_while(recorder, |state| state.aside.len() >= MAX_ASIDE);
        if state.closed {
            return false;
        }
        state.aside.push_back((self.number, aside));
        drop(state);
        self.packer.aside(&mut self.words)
    }
}

/// The words of a ring, and what is done when there is no room.
struct Words {
    inlet: Inlet,
    /// The recorder is woken once so many words have been put. Waking a thread costs more than everything else here.
    wake_at: u64,
    shared: Arc<Shared>,
    recorder: Thread,
}

impl Put for Words {
    #[inline(always)]
    fn put<const N: usize>(&mut self, record: [u64; N]) -> bool {
        if !self.inlet.has_room(N) && !self.make_room(N) {
            return false;
        }
        self.inlet.put(record);
        true
    }
}

impl Words {
    /// Does what is due. When the program is faster than the recorder it waits, and nothing is lost; whatever else might be wanted then
    /// has its place here. Says whether there is room, for which there is none where the recording has ended.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, len: usize) -> bool {
        let Self { inlet, wake_at, shared, recorder } = self;
        if inlet.at() + len as u64 > *wake_at {
            recorder.unpark();
            *wake_at = inlet.at() + WAKE_LEN;
        }
        if !inlet.look(len, *wake_at) {
            drop(shared.wait_while(recorder, |_| !inlet.look(len, *wake_at)));
        }
        inlet.look(len, *wake_at)
    }
}

/// Where a handle puts its events.
enum Place {
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
/// through several handles keeps its order too, where each has a later time than the one before, which [`now_ns`](Self::now_ns) told:
/// processors may tell the same time for some 10 ns. Of what two threads do at the same moment either may come first. Definitions keep their order through whichever handles they come. A clone is dropped without a loss.
pub struct RecorderHandle {
    place: Place,
    clock: Clock,
    shared: Arc<Shared>,
    recorder: Thread,
}

impl RecorderHandle {
    pub(super) fn new(shared: Arc<Shared>, clock: Clock, recorder: Thread) -> Self {
        Self { place: Place::Unused, clock, shared, recorder }
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
        state.flushes += 1;
        while !state.ended && state.rounds < until {
            self.recorder.unpark();
            state = self.shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.flushes -= 1;
    }

    /// A ring, or the common one where there are enough.
    fn open(&self) -> Place {
        let mut state = self.shared.lock();
        if state.closed {
            return Place::Closed;
        }
        if let Some(common) = &state.common
            && state.rings >= MAX_RINGS
        {
            return Place::Common(Arc::clone(common));
        }
        let (inlet, outlet) = ring();
        let number = state.next_ring;
        state.next_ring += 1;
        state.sources.push(Source::new(number, outlet));
        let (shared, recorder) = (Arc::clone(&self.shared), self.recorder.clone());
        let words = Words { inlet, wake_at: WAKE_LEN, shared, recorder };
        let ring = Ring { number, packer: Packer::default(), words };
        state.rings += 1;
        if state.rings <= MAX_RINGS {
            return Place::Own(ring);
        }
        let common = Arc::new(Mutex::new(ring));
        state.common = Some(Arc::clone(&common));
        Place::Common(common)
    }

    /// Puts something into whichever ring the handle has.
    fn put(&mut self, put: impl FnOnce(&mut Ring) -> bool) {
        if matches!(self.place, Place::Unused) {
            self.place = self.open();
        }
        let is_open = match &mut self.place {
            Place::Own(ring) => put(ring),
            Place::Common(ring) => put(&mut ring.lock().unwrap_or_else(PoisonError::into_inner)),
            Place::Unused | Place::Closed => false,
        };
        if !is_open {
            self.place = Place::Closed;
        }
    }

    /// An event of a handle that has no ring of its own, or none yet.
    #[cold]
    fn event_elsewhere(&mut self, event: &Event, unit: Unit) {
        self.put(|ring| ring.event(event, unit));
    }

    #[inline(always)]
    fn event_in(&mut self, event: &Event, unit: Unit) {
        match &mut self.place {
            Place::Own(ring) => {
                if !ring.event(event, unit) {
                    self.place = Place::Closed;
                }
            }
            Place::Unused | Place::Common(_) | Place::Closed => self.event_elsewhere(event, unit),
        }
    }

    /// What the counter says that the recording's time is made of. A reading costs less than [`now_ns`](Self::now_ns), and may be a little
    /// earlier than one that another thread took before.
    #[inline]
    pub(crate) fn ticks(&self) -> u64 {
        self.clock.ticks()
    }

    /// The time in nanoseconds, as [`now_ns`](Self::now_ns) would have told it, when the counter said so.
    pub(crate) fn ns_at(&self, ticks: u64) -> u64 {
        self.clock.ns_at(ticks)
    }

    /// Takes an event in the place of whose time stand [`ticks`](Self::ticks), of which the recorder makes nanoseconds.
    #[inline(always)]
    pub(crate) fn event_at_ticks(&mut self, event: &Event) {
        self.event_in(event, Unit::Ticks);
    }
}

impl Clone for RecorderHandle {
    fn clone(&self) -> Self {
        let (shared, recorder) = (Arc::clone(&self.shared), self.recorder.clone());
        Self { place: Place::Unused, clock: self.clock.clone(), shared, recorder }
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
        self.event_in(event, Unit::Nanoseconds);
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
