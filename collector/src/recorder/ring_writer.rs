//! The writing side of a handle: its ring, and what happens when the ring is full.
//!
//! With [`Overflow::Wait`] the program waits. With [`Overflow::Drop`] the handle is *overflowing*:
//! it counts events without recording them until half of the ring is free. Then it records a
//! [gap](vramscope_trace::EventKind::Gap) with their number, followed by the pool's state if the
//! handle's owner provides it.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;

use vramscope_trace::{Event, Relabel};

use super::record::{Packer, RING_LEN, RecordSink, Unit};
use super::state::{DroppedEvents, MAX_SIDE_RECORDS, Overflow, RecorderState, SideRecord};
use crate::ring::Producer;

/// The recorder is woken each time this many words (64 bits) have been written to a ring.
pub(super) const WAKE_LEN: u64 = RING_LEN as u64 / 4;

/// Encodes a handle's events into its ring.
pub(super) struct RingWriter {
    pub(super) number: u64,
    pub(super) packer: Packer,
    pub(super) out: WaitingProducer,
}

impl RingWriter {
    /// Writes an event whose time is in `unit` and returns true; returns false if there is no room.
    // Always inlined, up to where the pool creates the event, so that its kind is known at compile
    // time.
    #[inline(always)]
    pub(super) fn event(&mut self, event: &Event, unit: Unit) -> bool {
        let is_taken = self.packer.event(event, unit, &mut self.out);
        if !is_taken {
            self.packer.forget();
        }
        is_taken
    }

    /// Writes a relabel and returns true; returns false if there is no room.
    pub(super) fn relabel(&mut self, relabel: &Relabel) -> bool {
        self.packer.relabel(relabel, &mut self.out)
    }

    /// Returns true if half of the ring is free. A handle then stops dropping events: it will not
    /// have to drop again at once.
    pub(super) fn is_half_free(&mut self) -> bool {
        let WaitingProducer { ring, wake_at, .. } = &mut self.out;
        ring.refresh(RING_LEN / 2, *wake_at)
    }

    /// Stores a side record, an item too large for the ring, and writes its placeholder. Returns
    /// false if there is no room or the recording has ended.
    pub(super) fn side_record(&mut self, side_record: SideRecord) -> bool {
        // Check the room for the placeholder first.
        if !self.out.ring.has_room(1) && !self.out.make_room(1) {
            return false;
        }
        let WaitingProducer { shared, recorder, .. } = &self.out;
        let mut state = shared.wait_while(recorder, |state| state.side_records.len() >= MAX_SIDE_RECORDS);
        if state.is_closed {
            return false;
        }
        state.side_records.push_back((self.number, side_record));
        drop(state);
        self.packer.side_record(&mut self.out)
    }
}

/// The writing end of a ring, which wakes the recorder and waits for room if necessary.
pub(super) struct WaitingProducer {
    pub(super) ring: Producer<RING_LEN>,
    /// Number of words written to the ring at which the recorder is woken next. The recorder is
    /// woken rarely, because waking a thread takes longer than all other work of the writing side.
    pub(super) wake_at: u64,
    pub(super) shared: Arc<RecorderState<RingWriter>>,
    pub(super) recorder: Thread,
}

impl RecordSink for WaitingProducer {
    #[inline(always)]
    fn put<const N: usize>(&mut self, record: [u64; N]) -> bool {
        if !self.ring.has_room(N) && !self.make_room(N) {
            return false;
        }
        self.ring.put(record);
        true
    }
}

impl WaitingProducer {
    /// Wakes the recorder if due, and with [`Overflow::Wait`] blocks until `len` words fit. Returns
    /// false if they still do not fit: events are to be dropped, or the recording has ended.
    #[cold]
    #[inline(never)]
    pub(super) fn make_room(&mut self, len: usize) -> bool {
        let Self { ring, wake_at, shared, recorder } = self;
        if ring.at() + len as u64 > *wake_at {
            recorder.unpark();
            *wake_at = ring.at() + WAKE_LEN;
        }
        if !ring.refresh(len, *wake_at) && shared.overflow == Overflow::Wait {
            drop(shared.wait_while(recorder, |_| !ring.refresh(len, *wake_at)));
        }
        ring.refresh(len, *wake_at)
    }
}

/// Where a handle's events go: to its own ring, to a shared ring, or nowhere.
pub(super) enum HandleRing {
    /// No event has been recorded yet.
    Unused,
    /// A ring that only this handle uses.
    Own(RingWriter),
    /// The ring shared by handles beyond the limit.
    Common(Arc<Mutex<RingWriter>>),
    /// The ring was full, and events are being dropped.
    Overflowing(Overflowing),
    /// The recording has ended.
    Closed,
}

impl HandleRing {
    /// Calls `f` with the handle's ring and returns its result; `None` if the handle is unused,
    /// dropping events or closed.
    pub(super) fn with_ring<R>(&mut self, f: impl FnOnce(&mut RingWriter) -> R) -> Option<R> {
        match self {
            Self::Own(ring) => Some(f(ring)),
            Self::Common(ring) => Some(f(&mut ring.lock().unwrap_or_else(PoisonError::into_inner))),
            Self::Unused | Self::Overflowing(_) | Self::Closed => None,
        }
    }
}

/// The state of a handle that drops events: the ring to return to, and the number of dropped
/// events.
pub(super) struct Overflowing {
    pub(super) ring: Box<HandleRing>,
    pub(super) dropped: Arc<DroppedEvents>,
}
