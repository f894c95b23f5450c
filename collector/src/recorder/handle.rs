//! The program's side of the recorder.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;

use vramscope_trace::{
    Annotation, AnnotationStage, Definition, DeviceId, DeviceState, Event, EventKind, Interner, MemoryState, Relabel,
    Sink, SiteId, StringId,
};

use super::clock::Clock;
use super::record::{Packer, Unit};
use super::ring_reader::RingReader;
use super::ring_writer::{HandleRing, Overflowing, RingWriter, WAKE_LEN, WaitingProducer};
use super::state::{CatchUpCallback, DroppedEvents, MAX_SIDE_RECORDS, RecorderState, SideRecord};
use crate::ring::ring;
use crate::sites::Numbers;
use crate::wait_check::Wait;

/// Maximum number of handles with a ring (queue) of their own; all further handles share one ring.
pub(super) const MAX_RINGS: usize = 16;
/// Maximum number of definitions that wait for the recorder; at the limit, the program waits.
const MAX_DEFINITIONS: usize = 1 << 16;

/// The sink through which events reach a [`Recorder`](super::Recorder). Clone it for each pool or
/// thread.
///
/// Each clone gets its own queue at its first event. Events of one handle keep their order and
/// should have ascending times. Events of different handles are ordered by time: one thread's
/// events keep their order across handles if each has a later time from [`now_ns`](Self::now_ns)
/// than the one before; readings up to some 10 ns apart may be equal. Definitions keep their order
/// across handles. Dropping a clone loses nothing.
///
/// If events are [dropped](crate::Overflow::Drop), a pool created with
/// [`DevicePool::recorded`](crate::DevicePool::recorded) records its state after the gap. A pool
/// that has the handle as a plain [`Sink`] does not, so blocks freed in the gap stay in the
/// recording.
pub struct RecorderHandle {
    ring: HandleRing,
    /// True if the owner calls [`catch_up`](Self::catch_up) with the pool's state when
    /// [`may_catch_up`](Self::may_catch_up) says so.
    provides_state: bool,
    /// True while the program has turned recording off.
    is_paused: bool,
    clock: Clock,
    shared: Arc<RecorderState<RingWriter>>,
    recorder: Thread,
}

impl RecorderHandle {
    pub(super) fn new(shared: Arc<RecorderState<RingWriter>>, clock: Clock, recorder: Thread) -> Self {
        Self { ring: HandleRing::Unused, provides_state: false, is_paused: false, clock, shared, recorder }
    }

    /// Returns a new handle for a pool that promises to check [`may_catch_up`](Self::may_catch_up)
    /// before each change and to provide its state to [`catch_up`](Self::catch_up).
    pub(crate) fn providing_state(&self) -> Self {
        Self { provides_state: true, ..self.clone() }
    }

    /// Returns nanoseconds since the recording began; never goes back.
    #[inline]
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Returns the numbering of strings and sites in this recording. Definitions with numbers from
    /// elsewhere must not be sent through the handle.
    pub(crate) fn numbers(&self) -> Numbers {
        self.shared.numbers.clone()
    }

    /// Converts a reading of the processor's time-stamp counter to nanoseconds since the recording
    /// began; earlier readings become 0. Returns the current time if the counter is not reliable.
    #[must_use]
    pub fn ns_at_time_stamp(&self, time_stamp: u64) -> u64 {
        self.clock.ns_at_time_stamp(time_stamp)
    }

    /// Calls `add` with the recording's table of definitions and returns its result, numbers that
    /// it found or assigned. All handles of a recording share the numbers.
    pub fn intern<R>(&mut self, add: impl FnOnce(&mut Interner) -> R) -> R {
        self.numbers().define(self, add)
    }

    /// Returns the number of a mark's name in this recording. The number of names is limited,
    /// because a program that numbers its steps has a new name for each step.
    pub fn name(&mut self, name: &str) -> StringId {
        self.numbers().name(self, name)
    }

    /// Records that `lost` events of `device` are missing before `time_ns`, and the device's state
    /// after them.
    pub fn resync(&mut self, device: DeviceId, time_ns: u64, lost: u64, state: DeviceState) {
        self.event(&Event { device, time_ns, kind: EventKind::Gap { lost } });
        let time = (time_ns, Unit::Nanoseconds);
        self.put(device, time, |ring| ring.side_record(SideRecord::DeviceState(device, Box::new(state))));
    }

    /// Records a mark, a named moment, on a device, at the current time.
    pub fn mark(&mut self, device: DeviceId, name: &str) {
        let numbers = self.numbers();
        let name = numbers.name(self, name);
        let kind = EventKind::Mark { stage: AnnotationStage::Instant, name, address: 0, site: SiteId(0) };
        self.event(&Event { device, time_ns: self.now_ns(), kind });
    }

    /// Blocks until all events recorded through any handle have been passed to the file and the
    /// hub. Returns at once if the recording has ended.
    pub fn flush(&self) {
        let mut state = self.shared.lock();
        // The current merge pass may already have read this ring. The next pass reads every event,
        // but may leave events whose times are from another clock for the pass after it.
        let until = state.passes + 3;
        state.flushes += 1;
        while !state.is_ended && state.passes < until {
            self.recorder.unpark();
            state = state.wait(&self.shared.changed);
        }
        state.flushes -= 1;
    }

    /// Writes a full state after all events recorded through any handle so far, so that a viewer of
    /// the hub can begin there. Blocks until file and hub have the state.
    pub fn write_state(&self) {
        self.flush();
        self.shared.lock().wants_state = true;
        self.flush();
    }

    /// Returns a ring for this handle: a new one, the shared one beyond [`MAX_RINGS`], or
    /// [`HandleRing::Closed`] if the recording has ended.
    fn open(&self) -> HandleRing {
        let mut state = self.shared.lock();
        if state.is_closed {
            return HandleRing::Closed;
        }
        if let Some(common) = &state.common
            && state.rings >= MAX_RINGS
        {
            return HandleRing::Common(Arc::clone(common));
        }
        let (producer, consumer) = ring();
        let number = state.next_ring;
        state.next_ring += 1;
        state.sources.push(RingReader::new(number, consumer));
        let (shared, recorder) = (Arc::clone(&self.shared), self.recorder.clone());
        let out = WaitingProducer { ring: producer, wake_at: WAKE_LEN, shared, recorder };
        let ring = RingWriter { number, packer: Packer::default(), out };
        state.rings += 1;
        if state.rings <= MAX_RINGS {
            return HandleRing::Own(ring);
        }
        let common = Arc::new(Mutex::new(ring));
        state.common = Some(Arc::clone(&common));
        HandleRing::Common(common)
    }

    /// Writes an item (an event or a side record) by calling `put` with the handle's ring. If `put`
    /// returns false, because the ring is full, the item counts as dropped. `device` and `time` are
    /// those of the item.
    fn put(&mut self, device: DeviceId, time: (u64, Unit), put: impl FnOnce(&mut RingWriter) -> bool) {
        let _forbidden = Wait::Hub.forbid();
        if matches!(self.ring, HandleRing::Unused) {
            self.ring = self.open();
        }
        if !self.provides_state && self.may_catch_up() {
            self.catch_up(device, time, || None);
        }
        if self.ring.with_ring(put) != Some(true) {
            self.handle_no_room(device);
        }
    }

    /// Records an event for a handle without its own ring, or one that is dropping events.
    #[cold]
    fn event_without_ring(&mut self, event: &Event, unit: Unit) {
        self.put(event.device, (event.time_ns, unit), |ring| ring.event(event, unit));
    }

    /// Counts an event of `device` that found no room in the ring, and drops later events; or
    /// closes the handle if the recording has ended.
    #[cold]
    fn handle_no_room(&mut self, device: DeviceId) {
        if self.shared.is_closed.load(Ordering::Relaxed) {
            self.ring = HandleRing::Closed;
        }
        match std::mem::replace(&mut self.ring, HandleRing::Closed) {
            HandleRing::Closed | HandleRing::Unused => {}
            HandleRing::Overflowing(overflowing) => {
                overflowing.dropped.count();
                self.ring = HandleRing::Overflowing(overflowing);
            }
            ring @ (HandleRing::Own(_) | HandleRing::Common(_)) => {
                self.ring = ring;
                self.start_dropping(device, 1);
            }
        }
    }

    /// Drops later events until [`catch_up`](Self::catch_up). `events` of `device` have been
    /// dropped already: 1 if the ring is full, 0 if the program turned recording off.
    fn start_dropping(&mut self, device: DeviceId, events: u64) {
        self.recorder.unpark();
        let dropped = Arc::new(DroppedEvents { device, events: AtomicU64::new(events) });
        self.shared.lock().dropped.push(Arc::clone(&dropped));
        let ring = std::mem::replace(&mut self.ring, HandleRing::Closed);
        self.ring = HandleRing::Overflowing(Overflowing { ring: Box::new(ring), dropped });
    }

    /// Returns true while events are dropped because the ring was full;
    /// [`catch_up`](Self::catch_up) is then due before the next event. False also while recording
    /// is turned off.
    #[inline]
    pub(crate) fn may_catch_up(&self) -> bool {
        matches!(self.ring, HandleRing::Overflowing(_)) && !self.is_paused
    }

    /// Returns true while the program has turned recording off.
    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Turns recording off (`is_paused` true) or on. Events while it is off count as lost events of
    /// `device`. The pool that has the handle calls [`catch_up`](Self::catch_up) after turning it
    /// on.
    pub(crate) fn set_paused(&mut self, device: DeviceId, is_paused: bool) {
        self.is_paused = is_paused;
        if matches!(self.ring, HandleRing::Unused) {
            self.ring = self.open();
        }
        if is_paused && matches!(self.ring, HandleRing::Own(_) | HandleRing::Common(_)) {
            self.start_dropping(device, 0);
        }
    }

    /// Makes the recorder call `callback` after each merge pass in which events were being dropped,
    /// until it returns false.
    pub(crate) fn register_catch_up(&self, callback: CatchUpCallback) {
        self.shared.register_catch_up(callback);
    }

    /// Stops dropping events if half of the ring is free; otherwise does nothing. Then records the
    /// number of lost events, at `time` in `unit`, and the memory state of `device` that
    /// `device_state` returns, if any. Never blocks for room.
    pub(crate) fn catch_up(
        &mut self,
        device: DeviceId,
        (time, unit): (u64, Unit),
        device_state: impl FnOnce() -> Option<DeviceState>,
    ) {
        let _forbidden = Wait::Hub.forbid();
        let Self { ring: HandleRing::Overflowing(overflowing), shared, .. } = self else { return };
        let lost = overflowing.dropped.events.load(Ordering::Relaxed);
        let gap = Event { device, time_ns: time, kind: EventKind::Gap { lost } };
        // The recorder's own thread may call this, so it must not wait: room is checked and used
        // under one lock.
        let has_caught_up = overflowing.ring.with_ring(|ring| {
            if !ring.is_half_free() {
                return false;
            }
            let device_state = if lost > 0 { device_state() } else { None };
            let mut state = shared.lock();
            if state.is_closed || state.side_records.len() >= MAX_SIDE_RECORDS {
                return false;
            }
            state.dropped.retain(|dropped| !Arc::ptr_eq(dropped, &overflowing.dropped));
            let has_state = device_state.is_some();
            state
                .side_records
                .extend(device_state.map(|state| (ring.number, SideRecord::DeviceState(device, Box::new(state)))));
            drop(state);
            // Half a ring has room for the gap and the state. If the recording ends meanwhile, they
            // are not needed.
            if lost > 0 && ring.event(&gap, unit) && has_state {
                ring.packer.side_record(&mut ring.out);
            }
            true
        });
        if has_caught_up != Some(true) {
            return;
        }
        let ring = std::mem::replace(&mut *overflowing.ring, HandleRing::Closed);
        self.ring = ring;
    }

    /// Records an event whose time is in `unit`, or counts it as dropped.
    #[inline(always)]
    fn record_event(&mut self, event: &Event, unit: Unit) {
        let _forbidden = Wait::Hub.forbid();
        match &mut self.ring {
            HandleRing::Own(ring) => {
                if !ring.event(event, unit) {
                    self.handle_no_room(event.device);
                }
            }
            HandleRing::Overflowing(overflowing) if self.is_paused => overflowing.dropped.count(),
            HandleRing::Unused | HandleRing::Common(_) | HandleRing::Overflowing(_) | HandleRing::Closed => {
                self.event_without_ring(event, unit)
            }
        }
    }

    /// Reads the counter of the recording's clock. Cheaper than [`now_ns`](Self::now_ns), and
    /// possibly a little earlier than a reading that another thread took before.
    #[inline]
    pub(crate) fn ticks(&self) -> u64 {
        self.clock.ticks()
    }

    /// Converts ticks to nanoseconds since the recording began, as [`now_ns`](Self::now_ns) returns
    /// them.
    pub(crate) fn ns_at(&self, ticks: u64) -> u64 {
        self.clock.ns_at(ticks)
    }

    /// Records an event whose `time_ns` holds [`ticks`](Self::ticks), which the recorder converts.
    #[inline(always)]
    pub(crate) fn event_at_ticks(&mut self, event: &Event) {
        self.record_event(event, Unit::Ticks);
    }
}

impl Clone for RecorderHandle {
    fn clone(&self) -> Self {
        let (clock, shared, recorder) = (self.clock.clone(), Arc::clone(&self.shared), self.recorder.clone());
        Self { ring: HandleRing::Unused, provides_state: false, is_paused: false, clock, shared, recorder }
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
        self.record_event(event, Unit::Nanoseconds);
    }
    fn define(&mut self, definition: &Definition) {
        let _forbidden = Wait::Hub.forbid();
        let mut state = self.shared.wait_while(&self.recorder, |state| state.definitions.len() >= MAX_DEFINITIONS);
        if !state.is_closed {
            state.definitions.push(definition.clone());
        }
    }
    fn annotation(&mut self, annotation: &Annotation) {
        let time = (annotation.time_ns, Unit::Nanoseconds);
        self.put(annotation.device, time, |ring| ring.side_record(SideRecord::Annotation(*annotation)));
    }
    fn relabel(&mut self, relabel: &Relabel) {
        let time = (relabel.time_ns, Unit::Nanoseconds);
        self.put(relabel.device, time, |ring| ring.relabel(relabel));
    }
    fn replace_state(&mut self, state: &MemoryState) {
        let time = (state.time_ns(), Unit::Nanoseconds);
        self.put(DeviceId::HOST, time, |ring| ring.side_record(SideRecord::FullState(Box::new(state.clone()))));
    }
}
