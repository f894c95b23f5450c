//! The side of the program that is recorded: a ring for each handle, and what is done when one is full.
//!
//! Where the program is to [wait](Overflow::Wait), it does. Where events are [dropped](Overflow::Drop), a handle that found its ring full is
//! *behind*: it counts what it is given and puts nothing until half of the ring is free. Then a [gap](EventKind::Gap) says how many
//! there were, and right after it stands the state that the pool is in, as far as whoever holds the handle can say.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use vramscope_trace::{
    Annotation, Definition, DeviceId, DeviceState, Event, EventKind, MemoryState, Sink, SiteId, Stage,
};

use super::clock::Clock;
use super::merge::Source;
use super::record::{Packer, Put, Unit};
use super::ring::{Inlet, RING_LEN, ring};
use crate::sites::Numbers;

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

/// Events of a handle that is behind, and are in no gap yet.
struct Dropped {
    device: DeviceId,
    /// The handle alone writes it.
    events: AtomicU64,
}

impl Dropped {
    #[inline]
    fn count(&self) {
        self.events.store(self.events.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// What the handles and the recorder share, but for the rings.
pub(super) struct Shared {
    overflow: Overflow,
    numbers: Numbers,
    /// [`State::closed`], for whoever has no time to lock.
    is_closed: AtomicBool,
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
    /// Of each handle that is behind.
    dropped: Vec<Arc<Dropped>>,
    /// In the order of their numbers, whichever handles they came through.
    definitions: Vec<Definition>,
    /// With the rings in which the places are marked where they stand.
    aside: VecDeque<(u64, Aside)>,
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
    /// Puts an event, whose time is in `unit`; says whether it was taken.
    // Always, all the way from where the pool makes the event, so that what kind it is of is known where it is packed.
    #[inline(always)]
    fn event(&mut self, event: &Event, unit: Unit) -> bool {
        let is_taken = self.packer.event(event, unit, &mut self.words);
        if !is_taken {
            self.packer.forget();
        }
        is_taken
    }

    /// Whether half of the ring is free, so that what begins again does not end at once.
    fn is_half_free(&mut self) -> bool {
        let Words { inlet, wake_at, .. } = &mut self.words;
        inlet.look(RING_LEN as usize / 2, *wake_at)
    }

    fn aside(&mut self, aside: Aside) -> bool {
        // It has no place in the order of things unless that is marked.
        if !self.words.inlet.has_room(1) && !self.words.make_room(1) {
            return false;
        }
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
    /// Does what is due, and waits where the program is faster than the recorder and nothing may be lost. Says whether there is room;
    /// there is none where events are dropped, or the recording has ended.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, len: usize) -> bool {
        let Self { inlet, wake_at, shared, recorder } = self;
        if inlet.at() + len as u64 > *wake_at {
            recorder.unpark();
            *wake_at = inlet.at() + WAKE_LEN;
        }
        if !inlet.look(len, *wake_at) && shared.overflow == Overflow::Wait {
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
    /// Its ring was full, and events are dropped.
    Behind(Behind),
    /// The recording has ended.
    Closed,
}

impl Place {
    /// The ring, where there is one; what `each` says of it.
    fn with_ring<R>(&mut self, each: impl FnOnce(&mut Ring) -> R) -> Option<R> {
        match self {
            Self::Own(ring) => Some(each(ring)),
            Self::Common(ring) => Some(each(&mut ring.lock().unwrap_or_else(PoisonError::into_inner))),
            Self::Unused | Self::Behind(_) | Self::Closed => None,
        }
    }
}

/// What a handle that is behind goes back to, and what it has dropped since.
struct Behind {
    place: Box<Place>,
    dropped: Arc<Dropped>,
}

/// Takes events for a [`Recorder`](super::Recorder).
///
/// Each clone that is given an event has a queue of its own, and what is put through one handle keeps its order. Between handles the
/// recorder goes by the events' times, so those of one handle should be put in the order of their times. What one thread puts
/// through several handles keeps its order too, where each has a later time than the one before, which [`now_ns`](Self::now_ns) told:
/// processors may tell the same time for some 10 ns. Of what two threads do at the same moment either may come first. Definitions keep their order through whichever handles they come. A clone is dropped without a loss.
///
/// Where events are [dropped](Overflow::Drop), a pool that is [recorded](crate::DevicePool::recorded) says after a gap what it looks like. One that has
/// the handle as its [`Sink`] is not asked, and what it freed unseen stays in the recording.
pub struct RecorderHandle {
    place: Place,
    /// Whether its holder looks at [`may_catch_up`](Self::may_catch_up), and says what the pool looks like then.
    says_state: bool,
    /// Whether nothing is recorded because the program said so.
    paused: bool,
    clock: Clock,
    shared: Arc<Shared>,
    recorder: Thread,
}

impl RecorderHandle {
    pub(super) fn new(shared: Arc<Shared>, clock: Clock, recorder: Thread) -> Self {
        Self { place: Place::Unused, says_state: false, paused: false, clock, shared, recorder }
    }

    /// The same for a holder that looks at [`may_catch_up`](Self::may_catch_up) before each change.
    pub(crate) fn saying_state(&self) -> Self {
        Self { says_state: true, ..self.clone() }
    }

    /// Nanoseconds since the recording began; never goes back.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// The numbers of the strings and sites in this recording. Whoever defines some by other numbers must be the only one who defines any.
    pub(crate) fn numbers(&self) -> Numbers {
        self.shared.numbers.clone()
    }

    /// Records a named moment of a device.
    pub fn mark(&mut self, device: DeviceId, name: &str) {
        let numbers = self.numbers();
        let name = numbers.number(self, |interner| interner.string(name));
        let kind = EventKind::Mark { stage: Stage::Instant, name, address: 0, site: SiteId(0) };
        self.event(&Event { device, time_ns: self.now_ns(), kind });
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

    /// Puts something of `device` into whichever ring the handle has.
    fn put(&mut self, device: DeviceId, time: (u64, Unit), put: impl FnOnce(&mut Ring) -> bool) {
        if matches!(self.place, Place::Unused) {
            self.place = self.open();
        }
        if !self.says_state && self.may_catch_up() {
            self.catch_up(device, time, || None);
        }
        if self.place.with_ring(put) != Some(true) {
            self.not_taken(device);
        }
    }

    /// An event of a handle that has no ring of its own, or none yet, or is behind.
    #[cold]
    fn event_elsewhere(&mut self, event: &Event, unit: Unit) {
        self.put(event.device, (event.time_ns, unit), |ring| ring.event(event, unit));
    }

    /// What was to be put found no room.
    #[cold]
    fn not_taken(&mut self, device: DeviceId) {
        if self.shared.is_closed.load(Ordering::Relaxed) {
            self.place = Place::Closed;
        }
        match std::mem::replace(&mut self.place, Place::Closed) {
            Place::Closed | Place::Unused => {}
            Place::Behind(behind) => {
                behind.dropped.count();
                self.place = Place::Behind(behind);
            }
            place @ (Place::Own(_) | Place::Common(_)) => {
                self.place = place;
                self.fall_behind(device, 1);
            }
        }
    }

    /// Begins to drop events, so many of which have been dropped already.
    fn fall_behind(&mut self, device: DeviceId, events: u64) {
        self.recorder.unpark();
        let dropped = Arc::new(Dropped { device, events: AtomicU64::new(events) });
        self.shared.lock().dropped.push(Arc::clone(&dropped));
        let place = std::mem::replace(&mut self.place, Place::Closed);
        self.place = Place::Behind(Behind { place: Box::new(place), dropped });
    }

    /// Whether events are being dropped for want of room, so that [`catch_up`](Self::catch_up) is to be called before the next.
    #[inline]
    pub(crate) fn may_catch_up(&self) -> bool {
        matches!(self.place, Place::Behind(_)) && !self.paused
    }

    /// Whether nothing is recorded because the program said so.
    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Records nothing of `device` from now on, but how many events there were; or ends that.
    pub(crate) fn set_paused(&mut self, device: DeviceId, paused: bool) {
        self.paused = paused;
        if matches!(self.place, Place::Unused) {
            self.place = self.open();
        }
        if paused && matches!(self.place, Place::Own(_) | Place::Common(_)) {
            self.fall_behind(device, 0);
        }
    }

    /// Ends that events are dropped, once there is room again: the recording is told how many there were and what the device's memory
    /// looks like since, which `seen` says where it can.
    pub(crate) fn catch_up(
        &mut self,
        device: DeviceId,
        (time, unit): (u64, Unit),
        seen: impl FnOnce() -> Option<DeviceState>,
    ) {
        let Place::Behind(behind) = &mut self.place else { return };
        if behind.place.with_ring(Ring::is_half_free) != Some(true) {
            return;
        }
        let mut state = self.shared.lock();
        if state.closed || state.aside.len() >= MAX_ASIDE {
            return;
        }
        state.dropped.retain(|dropped| !Arc::ptr_eq(dropped, &behind.dropped));
        drop(state);
        let lost = behind.dropped.events.load(Ordering::Relaxed);
        if lost > 0 {
            let gap = Event { device, time_ns: time, kind: EventKind::Gap { lost } };
            let seen = seen().map(|seen| Aside::Seen(device, Box::new(seen)));
            // Half a ring has room for both; and where the recording ends meanwhile, they are of no interest.
            behind.place.with_ring(|ring| ring.event(&gap, unit) && seen.is_none_or(|seen| ring.aside(seen)));
        }
        let place = std::mem::replace(&mut *behind.place, Place::Closed);
        self.place = place;
    }

    #[inline(always)]
    fn event_in(&mut self, event: &Event, unit: Unit) {
        match &mut self.place {
            Place::Own(ring) => {
                if !ring.event(event, unit) {
                    self.not_taken(event.device);
                }
            }
            Place::Behind(behind) if self.paused => behind.dropped.count(),
            Place::Unused | Place::Common(_) | Place::Behind(_) | Place::Closed => self.event_elsewhere(event, unit),
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
        Self { place: Place::Unused, says_state: false, paused: false, clock: self.clock.clone(), shared, recorder }
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
        let time = (annotation.time_ns, Unit::Nanoseconds);
        self.put(annotation.device, time, |ring| ring.aside(Aside::Annotation(*annotation)));
    }
    fn full_state(&mut self, state: &MemoryState) {
        let time = (state.time_ns(), Unit::Nanoseconds);
        self.put(DeviceId::HOST, time, |ring| ring.aside(Aside::FullState(Box::new(state.clone()))));
    }
}
