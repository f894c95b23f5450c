//! Where a handle puts its events: a ring, and what is done when that is full.
//!
//! Where the program is to [wait](Overflow::Wait), it does. Where events are [dropped](Overflow::Drop), a handle that found its ring full is
//! *behind*: it counts what it is given and puts nothing until half of the ring is free. Then a [gap](vramscope_trace::EventKind::Gap) says
//! how many there were, and right after it stands the state that the pool is in, as far as whoever holds the handle can say.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;

use vramscope_trace::Event;

use super::record::{Packer, Put, Unit};
use super::ring::{Inlet, RING_LEN};
use super::shared::{Aside, Dropped, MAX_ASIDE, Overflow, Shared};

/// The recorder is woken before its time each time a ring has been given this much.
pub(super) const WAKE_LEN: u64 = RING_LEN / 4;

/// A ring into which events are put.
pub(super) struct Ring {
    pub(super) number: u64,
    pub(super) packer: Packer,
    pub(super) words: Words,
}

impl Ring {
    /// Puts an event, whose time is in `unit`; says whether it was taken.
    // Always, all the way from where the pool makes the event, so that what kind it is of is known where it is packed.
    #[inline(always)]
    pub(super) fn event(&mut self, event: &Event, unit: Unit) -> bool {
        let is_taken = self.packer.event(event, unit, &mut self.words);
        if !is_taken {
            self.packer.forget();
        }
        is_taken
    }

    /// Whether half of the ring is free, so that what begins again does not end at once.
    pub(super) fn is_half_free(&mut self) -> bool {
        let Words { inlet, wake_at, .. } = &mut self.words;
        inlet.look(RING_LEN as usize / 2, *wake_at)
    }

    pub(super) fn aside(&mut self, aside: Aside) -> bool {
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
pub(super) struct Words {
    pub(super) inlet: Inlet,
    /// The recorder is woken once so many words have been put. Waking a thread costs more than everything else here.
    pub(super) wake_at: u64,
    pub(super) shared: Arc<Shared>,
    pub(super) recorder: Thread,
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
    pub(super) fn make_room(&mut self, len: usize) -> bool {
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
pub(super) enum Place {
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
    pub(super) fn with_ring<R>(&mut self, each: impl FnOnce(&mut Ring) -> R) -> Option<R> {
        match self {
            Self::Own(ring) => Some(each(ring)),
            Self::Common(ring) => Some(each(&mut ring.lock().unwrap_or_else(PoisonError::into_inner))),
            Self::Unused | Self::Behind(_) | Self::Closed => None,
        }
    }
}

/// What a handle that is behind goes back to, and what it has dropped since.
pub(super) struct Behind {
    pub(super) place: Box<Place>,
    pub(super) dropped: Arc<Dropped>,
}
