//! The reading side of one handle's ring: records with their times.

use vramscope_trace::{Event, Relabel};

use super::clock::Clock;
use super::record::{RING_LEN, Record, Unit, Unpacker};
use crate::ring::Consumer;

/// Reads the events of one handle's ring, in the order in which the handle wrote them.
pub(super) struct RingReader {
    pub(super) number: u64,
    consumer: Consumer<RING_LEN>,
    unpacker: Unpacker,
    /// The next item and its time in nanoseconds. A side record has time 0, so that the merger
    /// takes it right after the item before it.
    next: Option<(u64, RingItem)>,
    /// Position of the first word that was written after the previous merge pass, counted in words
    /// since the ring's creation.
    new_at: u64,
    /// Number of words read at the last release.
    released_at: u64,
}

/// An event or a relabel in a ring, or the placeholder of a side record.
pub(super) enum RingItem {
    Event(Event),
    Relabel(Relabel),
    SideRecord,
}

impl RingReader {
    pub(super) fn new(number: u64, consumer: Consumer<RING_LEN>) -> Self {
        Self { number, consumer, unpacker: Unpacker::default(), next: None, new_at: 0, released_at: 0 }
    }

    /// Begins a pass: makes the words readable that have been written since the last pass.
    pub(super) fn refresh(&mut self, clock: &Clock) {
        self.new_at = self.consumer.until();
        self.consumer.refresh();
        if self.next.is_none() {
            self.unpack(clock);
        }
    }

    /// Decodes the ring's next record into `next`, with its time converted to nanoseconds by
    /// `clock`.
    fn unpack(&mut self, clock: &Clock) {
        let Self { consumer, unpacker, .. } = self;
        self.next = unpacker.next(|| consumer.take()).map(|record| match record {
            Record::Event(event, Unit::Nanoseconds) => (event.time_ns, RingItem::Event(event)),
            Record::Event(event, Unit::Ticks) => {
                let time_ns = clock.ns_at(event.time_ns);
                (time_ns, RingItem::Event(Event { time_ns, ..event }))
            }
            Record::Relabel(relabel) => (relabel.time_ns, RingItem::Relabel(relabel)),
            Record::Side => (0, RingItem::SideRecord),
        });
    }

    /// Returns the time of the next item in nanoseconds. Returns `None` if the ring is empty, or if
    /// the item is later than `horizon_ns` and was written after the previous pass.
    pub(super) fn next_time(&self, horizon_ns: u64) -> Option<u64> {
        let &(time_ns, _) = self.next.as_ref()?;
        // The next item's words have already been read.
        (time_ns <= horizon_ns || self.consumer.at() <= self.new_at).then_some(time_ns)
    }

    /// Removes and returns the next item, and decodes the one after it.
    pub(super) fn take(&mut self, clock: &Clock) -> Option<RingItem> {
        let (_, item) = self.next.take()?;
        self.unpack(clock);
        Some(item)
    }

    /// Returns the number of words that have been read and whose room the producer cannot reuse
    /// yet.
    pub(super) fn unreleased(&self) -> u64 {
        self.consumer.at() - self.released_at
    }

    /// Lets the producer reuse the room of all words read so far.
    pub(super) fn release(&mut self) {
        self.consumer.release();
        self.released_at = self.consumer.at();
    }

    /// Returns true if the handle has been dropped and every item has been taken.
    pub(super) fn is_done(&self) -> bool {
        self.next.is_none() && self.consumer.is_done()
    }
}
