//! The recorder's side: what came through the handles, in one order.

use std::collections::VecDeque;

use vramscope_trace::{Definition, DeviceId, DeviceState, Event, EventKind, Sink};

use super::clock::Clock;
use super::record::{Record, Unit, Unpacker};
use super::ring::{Outlet, RING_LEN};
use super::shared::{Aside, Shared};

/// After this many words those who wait for room are told. Telling is a call to the operating system.
const TELL_EVERY: u64 = RING_LEN / 4;

/// A processor may read the clock before what it put earlier can be seen by others: until the lines of the cache are there that it
/// writes to, for which this is more than enough.
const UNSEEN_NS: u64 = 20_000;

/// What takes what came through the handles.
pub(super) trait Taker: Sink {
    /// Right after a gap: what the memory of a device looks like.
    fn seen(&mut self, device: DeviceId, seen: &DeviceState);
}

/// A ring out of which events are taken.
pub(super) struct Source {
    number: u64,
    words: Outlet,
    unpacker: Unpacker,
    /// The next record and its time. An [`Aside`] is to be taken as soon as what stands before it is, and so is at 0.
    next: Option<(u64, Entry)>,
    /// Where in the ring the words begin that were not there yet in the round before.
    new_at: u64,
    /// The number of words that were taken when those who wait were last told.
    told_at: u64,
}

/// What stands in a ring.
enum Entry {
    Event(Event),
    Aside,
}

impl Source {
    pub(super) fn new(number: u64, words: Outlet) -> Self {
        Self { number, words, unpacker: Unpacker::default(), next: None, new_at: 0, told_at: 0 }
    }

    fn look(&mut self, clock: &Clock) {
        self.new_at = self.words.until();
        self.words.look();
        if self.next.is_none() {
            self.unpack(clock);
        }
    }

    fn unpack(&mut self, clock: &Clock) {
        let Self { words, unpacker, .. } = self;
        self.next = unpacker.next(|| words.take()).map(|record| match record {
            Record::Event(event, Unit::Nanoseconds) => (event.time_ns, Entry::Event(event)),
            Record::Event(event, Unit::Ticks) => {
                let time_ns = clock.ns_at(event.time_ns);
                (time_ns, Entry::Event(Event { time_ns, ..event }))
            }
            Record::Aside => (0, Entry::Aside),
        });
    }

    /// The time of the next record, if there is one that may be taken now.
    fn next_time(&self, horizon_ns: u64) -> Option<u64> {
        let &(time_ns, _) = self.next.as_ref()?;
        // The words of the next record have been taken.
        (time_ns <= horizon_ns || self.words.at() <= self.new_at).then_some(time_ns)
    }

    fn take(&mut self, clock: &Clock) -> Option<Entry> {
        let (_, entry) = self.next.take()?;
        self.unpack(clock);
        Some(entry)
    }

    /// How many words were taken whose places were not given back.
    fn untold(&self) -> u64 {
        self.words.at() - self.told_at
    }

    /// Gives back the places of what was taken.
    fn give_back(&mut self) {
        self.words.give_back();
        self.told_at = self.words.at();
    }

    fn is_done(&self) -> bool {
        self.next.is_none() && self.words.is_done()
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
    sources: Vec<Source>,
    definitions: Vec<Definition>,
    aside: VecDeque<(u64, Aside)>,
}

impl Merge {
    /// Gives `sink` what has come since the round before. `clock` is the one that the handles tell.
    ///
    /// Rings are looked at one after another, and meanwhile a program may put one event into a ring that was looked at and then
    /// another into one that was not. So that the second does not come out a round before the first, what is later than the
    /// beginning of the look is left for the next round. That is done once, for the times may also be those of another clock.
    pub(super) fn round(&mut self, shared: &Shared, clock: &Clock, sink: &mut impl Taker) -> Round {
        let last = shared.take_sources(&mut self.sources);
        let horizon_ns =
            if last || self.sources.len() < 2 { u64::MAX } else { clock.now_ns().saturating_sub(UNSEEN_NS) };
        for source in &mut self.sources {
            source.look(clock);
        }
        // After the look, so that whatever the events name is here; and all at once, since definitions do no harm before their time.
        shared.take_beside(&mut self.definitions, &mut self.aside);
        let mut idle = self.definitions.is_empty();
        for definition in self.definitions.drain(..) {
            sink.define(&definition);
        }
        let mut events = 0;
        while let Some((place, until_ns)) = self.earliest(horizon_ns) {
            idle = false;
            let source = &mut self.sources[place];
            // Most of the time there is one ring, or one that is ahead of the others by far.
            while source.next_time(horizon_ns).is_some_and(|time_ns| time_ns <= until_ns) {
                match source.take(clock) {
                    Some(Entry::Event(event)) => {
                        events += 1;
                        sink.event(&event);
                    }
                    Some(Entry::Aside) => tell_aside(&mut self.aside, source.number, sink),
                    None => break,
                }
                if source.untold() >= TELL_EVERY {
                    source.give_back();
                    shared.tell_room();
                }
            }
        }
        if last {
            for (device, lost) in shared.take_dropped().into_iter().filter(|(_, lost)| *lost > 0) {
                events += 1;
                sink.event(&Event { device, time_ns: clock.now_ns(), kind: EventKind::Gap { lost } });
            }
        }
        self.sources.iter_mut().for_each(Source::give_back);
        shared.tell_room();
        self.sources.retain(|source| {
            let is_done = source.is_done();
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
        for (place, source) in self.sources.iter().enumerate() {
            let Some(time_ns) = source.next_time(horizon_ns) else { continue };
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

fn tell_aside(waiting: &mut VecDeque<(u64, Aside)>, ring: u64, sink: &mut impl Taker) {
    let place = waiting.iter().position(|(number, _)| *number == ring);
    match place.and_then(|place| waiting.remove(place)).expect("it was put there before its place was marked").1 {
        Aside::Annotation(annotation) => sink.annotation(&annotation),
        Aside::FullState(state) => sink.full_state(&state),
        Aside::Seen(device, seen) => sink.seen(device, &seen),
    }
}
