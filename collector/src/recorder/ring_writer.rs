//! The writing side of a handle: its ring, and what happens when the ring is full.
//!
//! With [`Overflow::Wait`] the program waits. With [`Overflow::Drop`] the handle is *overflowing*:
//! it counts events without recording them until half of the ring is free. Then it records a
//! [gap](vramscope_trace::EventKind::Gap) with their number, followed by the pool's state if the
//! handle's owner provides it.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;

use vramscope_trace::Event;

use super::record::{Packer, RecordSink, Unit};
use super::ring::{Producer, RING_LEN};
use super::state::{DroppedEvents, MAX_SIDE_RECORDS, Overflow, RecorderState, SideRecord};

/// The recorder is woken each time this many words have been written to a ring.
pub(super) const WAKE_LEN: u64 = RING_LEN / 4;

/// Packs events into a ring.
pub(super) struct RingWriter {
    pub(super) number: u64,
    pub(super) packer: Packer,
    pub(super) words: RingWords,
}

impl RingWriter {
    /// Writes an event whose time is in `unit`; returns false if there is no room.
    // Always inlined, up to where the pool creates the event, so that its kind is known at compile
    // time.
    #[inline(always)]
    pub(super) fn event(&mut self, event: &Event, unit: Unit) -> bool {
        let is_taken = self.packer.event(event, unit, &mut self.words);
        if !is_taken {
            self.packer.forget();
        }
        is_taken
    }

    /// Returns true if half of the ring is free, so that recording does not stop again at once.
    pub(super) fn is_half_free(&mut self) -> bool {
        let RingWords { producer, wake_at, .. } = &mut self.words;
        producer.look(RING_LEN as usize / 2, *wake_at)
    }

    pub(super) fn side_record(&mut self, side_record: SideRecord) -> bool {
        // Check the room for the placeholder first.
        if !self.words.producer.has_room(1) && !self.words.make_room(1) {
            return false;
        }
        let RingWords { shared, recorder, .. } = &self.words;
        let mut state = shared.wait_while(recorder, |state| state.side_records.len() >= MAX_SIDE_RECORDS);
        if state.closed {
            return false;
        }
        state.side_records.push_back((self.number, side_record));
        drop(state);
        self.packer.side_record(&mut self.words)
    }
}

/// The words of a ring, and waiting for room.
pub(super) struct RingWords {
    pub(super) producer: Producer,
    /// Number of words after which the recorder is woken. Waking a thread costs more than
    /// everything else here.
    pub(super) wake_at: u64,
    pub(super) shared: Arc<RecorderState<RingWriter>>,
    pub(super) recorder: Thread,
}

impl RecordSink for RingWords {
    #[inline(always)]
    fn put<const N: usize>(&mut self, record: [u64; N]) -> bool {
        if !self.producer.has_room(N) && !self.make_room(N) {
            return false;
        }
        self.producer.put(record);
        true
    }
}

impl RingWords {
    /// Wakes the recorder if due, and waits for room with [`Overflow::Wait`]. Returns false if
    /// there is none: events are dropped, or the recording has ended.
    #[cold]
    #[inline(never)]
    pub(super) fn make_room(&mut self, len: usize) -> bool {
        let Self { producer, wake_at, shared, recorder } = self;
        if producer.at() + len as u64 > *wake_at {
            recorder.unpark();
            *wake_at = producer.at() + WAKE_LEN;
        }
        if !producer.look(len, *wake_at) && shared.overflow == Overflow::Wait {
            drop(shared.wait_while(recorder, |_| !producer.look(len, *wake_at)));
        }
        producer.look(len, *wake_at)
    }
}

/// The ring of a handle.
pub(super) enum HandleRing {
    /// No event has been recorded yet.
    Unused,
    Own(RingWriter),
    /// The ring shared by handles beyond the limit.
    Common(Arc<Mutex<RingWriter>>),
    /// The ring was full, and events are being dropped.
    Overflowing(Overflowing),
    /// The recording has ended.
    Closed,
}

impl HandleRing {
    /// Calls `f` with the ring, if there is one.
    pub(super) fn with_ring<R>(&mut self, each: impl FnOnce(&mut RingWriter) -> R) -> Option<R> {
        match self {
            Self::Own(ring) => Some(each(ring)),
            Self::Common(ring) => Some(each(&mut ring.lock().unwrap_or_else(PoisonError::into_inner))),
            Self::Unused | Self::Overflowing(_) | Self::Closed => None,
        }
    }
}

/// The ring to return to, and the events dropped meanwhile.
pub(super) struct Overflowing {
    pub(super) place: Box<HandleRing>,
    pub(super) dropped: Arc<DroppedEvents>,
}
