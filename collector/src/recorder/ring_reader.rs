//! The reading side of one handle's ring: records with their times.

use vramscope_trace::Event;

use super::clock::Clock;
use super::record::{Record, Unit, Unpacker};
use super::ring::Consumer;

/// Reads one handle's ring.
pub(super) struct RingReader {
    pub(super) number: u64,
    words: Consumer,
    unpacker: Unpacker,
    /// The next item and its time. A side record has time 0, so that it follows the item before it
    /// at once.
    next: Option<(u64, RingItem)>,
    /// Where the words begin that were written after the previous pass.
    new_at: u64,
    /// Number of words read when room was last released.
    released_at: u64,
}

/// An item in a ring.
pub(super) enum RingItem {
    Event(Event),
    SideRecord,
}

impl RingReader {
    pub(super) fn new(number: u64, words: Consumer) -> Self {
        Self { number, words, unpacker: Unpacker::default(), next: None, new_at: 0, released_at: 0 }
    }

    pub(super) fn look(&mut self, clock: &Clock) {
        self.new_at = self.words.until();
        self.words.look();
        if self.next.is_none() {
            self.unpack(clock);
        }
    }

    fn unpack(&mut self, clock: &Clock) {
        let Self { words, unpacker, .. } = self;
        self.next = unpacker.next(|| words.take()).map(|record| match record {
            Record::Event(event, Unit::Nanoseconds) => (event.time_ns, RingItem::Event(event)),
            Record::Event(event, Unit::Ticks) => {
                let time_ns = clock.ns_at(event.time_ns);
                (time_ns, RingItem::Event(Event { time_ns, ..event }))
            }
            Record::Side => (0, RingItem::SideRecord),
        });
    }

    /// Returns the time of the next item, if it may be taken now.
    pub(super) fn next_time(&self, horizon_ns: u64) -> Option<u64> {
        let &(time_ns, _) = self.next.as_ref()?;
        // The next item's words have already been read.
        (time_ns <= horizon_ns || self.words.at() <= self.new_at).then_some(time_ns)
    }

    pub(super) fn take(&mut self, clock: &Clock) -> Option<RingItem> {
        let (_, entry) = self.next.take()?;
        self.unpack(clock);
        Some(entry)
    }

    /// Returns the number of words read but not yet released.
    pub(super) fn unreleased(&self) -> u64 {
        self.words.at() - self.released_at
    }

    /// Releases the room of all words read.
    pub(super) fn release(&mut self) {
        self.words.release();
        self.released_at = self.words.at();
    }

    pub(super) fn is_done(&self) -> bool {
        self.next.is_none() && self.words.is_done()
    }
}
