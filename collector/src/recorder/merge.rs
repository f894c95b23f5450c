//! The recorder's side: what came through the handles, in one order.

use std::collections::VecDeque;

use rtrb::Consumer;
use vramscope_trace::{Definition, Sink};

use super::handle::{Aside, Shared};
use super::record::{self, Record, Slot};

/// After this many slots those who wait for room are told. Telling is a call to the operating system.
const TELL_EVERY: usize = 1 << 14;

/// The end of a ring out of which events are taken.
pub(super) struct Outlet {
    number: u64,
    slots: Consumer<Slot>,
    /// How many slots may be taken in this round.
    here: usize,
    /// How many of them were there in the round before, too.
    old: usize,
}

impl Outlet {
    pub(super) fn new(number: u64, slots: Consumer<Slot>) -> Self {
        Self { number, slots, here: 0, old: 0 }
    }

    fn look(&mut self) {
        self.old = self.here;
        self.here = self.slots.slots();
    }

    /// The time of the next record, if there is one that may be taken now.
    fn next_time(&self, horizon_ns: u64) -> Option<u64> {
        let first = self.slots.peek().ok().filter(|first| self.here >= record::slots_of(first))?;
        let time_ns = record::time_ns(first);
        (time_ns <= horizon_ns || self.old > 0).then_some(time_ns)
    }

    fn pop(&mut self) -> Slot {
        self.here -= 1;
        self.old = self.old.saturating_sub(1);
        self.slots.pop().expect("no more is taken than was counted")
    }

    fn is_done(&self) -> bool {
        // In this order: what was put before the handle was dropped is there to be seen once the handle is seen to be gone.
        self.slots.is_abandoned() && self.slots.is_empty()
    }
}

/// What one round found.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) events: u64,
    /// There was nothing at all.
    pub(super) idle: bool,
    /// The recording has been ended, and everything that was put before that has been taken.
    pub(super) last: bool,
}

/// Brings together what the handles put.
#[derive(Default)]
pub(super) struct Merge {
    outlets: Vec<Outlet>,
    definitions: Vec<Definition>,
    aside: VecDeque<(u64, Aside)>,
}

impl Merge {
    /// Gives `sink` what has come since the round before. `now_ns` is the clock that the handles tell.
    ///
    /// Rings are looked at one after another, and meanwhile a program may put one event into a ring that was looked at and then
    /// another into one that was not. So that the second does not come out a round before the first, what is later than the
    /// beginning of the look is left for the next round. That is done once, for the times may also be those of another clock.
    pub(super) fn round(&mut self, shared: &Shared, now_ns: impl FnOnce() -> u64, sink: &mut impl Sink) -> Round {
        let last = shared.take_outlets(&mut self.outlets);
        let horizon_ns = if last || self.outlets.len() < 2 { u64::MAX } else { now_ns() };
        for outlet in &mut self.outlets {
            outlet.look();
        }
        // After the look, so that whatever the events name is here; and all at once, since definitions do no harm before their time.
        shared.take_beside(&mut self.definitions, &mut self.aside);
        let mut idle = self.definitions.is_empty();
        for definition in self.definitions.drain(..) {
            sink.define(&definition);
        }
        let (mut events, mut untold) = (0, 0);
        while let Some((place, until_ns)) = self.earliest(horizon_ns) {
            idle = false;
            let outlet = &mut self.outlets[place];
            // Most of the time there is one ring, or one that is ahead of the others by far.
            while let Some(time_ns) = outlet.next_time(horizon_ns)
                && time_ns <= until_ns
            {
                let before = outlet.here;
                let first = outlet.pop();
                match record::unpack(first, || outlet.pop()) {
                    Record::Event(event) => {
                        events += 1;
                        sink.event(&event);
                    }
                    Record::Aside => tell_aside(&mut self.aside, outlet.number, sink),
                }
                untold += before - outlet.here;
                if untold >= TELL_EVERY {
                    untold = 0;
                    shared.tell_room();
                }
            }
        }
        shared.tell_room();
        self.outlets.retain(|outlet| {
            let is_done = outlet.is_done();
            if is_done {
                shared.ring_is_gone();
            }
            !is_done
        });
        Round { events, idle, last }
    }

    /// The ring whose next record is the earliest, and the time of the earliest in another.
    fn earliest(&self, horizon_ns: u64) -> Option<(usize, u64)> {
        let mut earliest: Option<(usize, u64)> = None;
        let mut until_ns = u64::MAX;
        for (place, outlet) in self.outlets.iter().enumerate() {
            let Some(time_ns) = outlet.next_time(horizon_ns) else { continue };
            match earliest {
                Some((_, other_ns)) if other_ns <= time_ns => until_ns = until_ns.min(time_ns),
                _ => {
                    until_ns = earliest.map_or(until_ns, |(_, other_ns)| other_ns);
                    earliest = Some((place, time_ns));
                }
            }
        }
        earliest.map(|(place, _)| (place, until_ns))
    }
}

fn tell_aside(waiting: &mut VecDeque<(u64, Aside)>, ring: u64, sink: &mut impl Sink) {
    let place = waiting.iter().position(|(number, _)| *number == ring);
    match place.and_then(|place| waiting.remove(place)).expect("it was put there before its place was marked").1 {
        Aside::Annotation(annotation) => sink.annotation(&annotation),
        Aside::FullState(state) => sink.full_state(&state),
    }
}
