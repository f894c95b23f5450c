//! The side of the program that is recorded: what it puts its events through.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;

use vramscope_trace::{
    Annotation, Definition, DeviceId, DeviceState, Event, EventKind, MemoryState, Sink, SiteId, AnnotationStage,
};

use super::clock::Clock;
use super::merge::Source;
use super::place::{Behind, Place, Ring, WAKE_LEN, Words};
use super::record::{Packer, Unit};
use super::ring::ring;
use super::shared::{Aside, Dropped, Look, MAX_ASIDE, Shared};
use crate::sites::Numbers;

/// How many handles may have a ring of their own; the others share one more.
pub(super) const MAX_RINGS: usize = 16;
/// Definitions that may wait for the recorder.
const MAX_DEFINITIONS: usize = 1 << 16;

/// Takes events for a [`Recorder`](super::Recorder).
///
/// Each clone that is given an event has a queue of its own, and what is put through one handle keeps its order. Between handles the
/// recorder goes by the events' times, so those of one handle should be put in the order of their times. What one thread puts
/// through several handles keeps its order too, where each has a later time than the one before, which [`now_ns`](Self::now_ns) told:
/// processors may tell the same time for some 10 ns. Of what two threads do at the same moment either may come first. Definitions keep their order through whichever handles they come. A clone is dropped without a loss.
///
/// Where events are [dropped](crate::Overflow::Drop), a pool that is [recorded](crate::DevicePool::recorded) says after a gap what it looks like. One that has
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
        let name = numbers.name(self, name);
        let kind = EventKind::Mark { stage: AnnotationStage::Instant, name, address: 0, site: SiteId(0) };
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

    /// Has the recorder call `look` now and then while events are dropped, until it says that there is nothing to look at any more.
    pub(crate) fn let_recorder_call(&self, look: Look) {
        self.shared.let_recorder_call(look);
    }

    /// Ends that events are dropped, once there is room again: the recording is told how many there were and what the device's memory
    /// looks like since, which `seen` says where it can.
    pub(crate) fn catch_up(
        &mut self,
        device: DeviceId,
        (time, unit): (u64, Unit),
        seen: impl FnOnce() -> Option<DeviceState>,
    ) {
        let Self { place: Place::Behind(behind), shared, .. } = self else { return };
        let lost = behind.dropped.events.load(Ordering::Relaxed);
        let gap = Event { device, time_ns: time, kind: EventKind::Gap { lost } };
        // The recorder itself comes here, which must wait for nothing: room is looked for and taken without letting go of it.
        let is_told = behind.place.with_ring(|ring| {
            if !ring.is_half_free() {
                return false;
            }
            let seen = if lost > 0 { seen() } else { None };
            let mut state = shared.lock();
            if state.closed || state.aside.len() >= MAX_ASIDE {
                return false;
            }
            state.dropped.retain(|dropped| !Arc::ptr_eq(dropped, &behind.dropped));
            let is_seen = seen.is_some();
            state.aside.extend(seen.map(|seen| (ring.number, Aside::Seen(device, Box::new(seen)))));
            drop(state);
            // Half a ring has room for both; where the recording ends meanwhile, they are of no interest.
            if lost > 0 && ring.event(&gap, unit) && is_seen {
                ring.packer.aside(&mut ring.words);
            }
            true
        });
        if is_told != Some(true) {
            return;
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
