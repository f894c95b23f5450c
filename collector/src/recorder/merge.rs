//! Merges the rings of all handles into one sequence of events.

use std::collections::VecDeque;

use vramscope_trace::{Definition, DeviceId, DeviceState, Event, EventKind, Sink};

use super::clock::Clock;
use super::record::RING_LEN;
use super::ring_reader::{RingItem, RingReader};
use super::state::{RecorderState, SideRecord};

/// Number of words (64 bits) that the recorder reads from a ring before it gives their room back to
/// the program. Not fewer, because waking waiting threads is a system call.
const RELEASE_EVERY: u64 = RING_LEN as u64 / 4;

/// Age, in nanoseconds, from which an event in a ring is certainly visible to the recorder: its
/// cache lines arrive at the recorder's core much sooner after the event's time was read.
const VISIBILITY_NS: u64 = 20_000;

/// A sink that also takes the memory state of a single device.
pub(super) trait DeviceStateSink: Sink {
    /// Receives the complete memory state of `device`, right after a gap in its events.
    fn device_state(&mut self, device: DeviceId, state: &DeviceState);
}

/// The result of one pass over all rings: the number of events, whether there was nothing new, and
/// whether the recording has ended.
#[derive(Debug)]
pub(super) struct MergePass {
    pub(super) events: u64,
    /// True if there was nothing to do.
    pub(super) is_idle: bool,
    /// True if the recording has been closed and everything has been taken.
    pub(super) is_last: bool,
}

/// Merges events, relabels, definitions and side records from the rings of all handles in order of
/// time.
#[derive(Default)]
pub(super) struct RingMerger {
    sources: Vec<RingReader>,
    definitions: Vec<Definition>,
    side_records: VecDeque<(u64, SideRecord)>,
}

impl RingMerger {
    /// Passes everything that the rings contain to `sink`, in order of time. `clock` is the clock
    /// of the handles.
    ///
    /// Rings are read one after another. Meanwhile a program may put an event into a ring already
    /// read, and a later event into a ring not yet read. To keep their order, events later than the
    /// start of the pass are left for the next pass; only once, because their times may be from
    /// another clock.
    pub(super) fn run_pass(
        &mut self,
        shared: &RecorderState<impl Sized>,
        clock: &Clock,
        sink: &mut impl DeviceStateSink,
    ) -> MergePass {
        let is_last = shared.take_sources(&mut self.sources);
        let horizon_ns =
            if is_last || self.sources.len() < 2 { u64::MAX } else { clock.now_ns().saturating_sub(VISIBILITY_NS) };
        for source in &mut self.sources {
            source.refresh(clock);
        }
        // Taken after reading the rings, so that all definitions that the events refer to are
        // included. A definition may come before its first use.
        shared.take_definitions_and_side_records(&mut self.definitions, &mut self.side_records);
        let mut is_idle = self.definitions.is_empty();
        for definition in self.definitions.drain(..) {
            sink.define(&definition);
        }
        let mut events = 0;
        while let Some((index, until_ns)) = self.earliest(horizon_ns) {
            is_idle = false;
            let source = &mut self.sources[index];
            // Usually there is only one ring, or many consecutive events come from one ring.
            while source.next_time(horizon_ns).is_some_and(|time_ns| time_ns <= until_ns) {
                match source.take(clock) {
                    Some(RingItem::Event(event)) => {
                        events += 1;
                        sink.event(&event);
                    }
                    Some(RingItem::Relabel(relabel)) => sink.relabel(&relabel),
                    Some(RingItem::SideRecord) => take_side_record(&mut self.side_records, source.number, sink),
                    None => break,
                }
                if source.unreleased() >= RELEASE_EVERY {
                    source.release();
                    shared.notify_waiting();
                }
            }
        }
        if is_last {
            for (device, lost) in shared.take_dropped().into_iter().filter(|(_, lost)| *lost > 0) {
                events += 1;
                sink.event(&Event { device, time_ns: clock.now_ns(), kind: EventKind::Gap { lost } });
            }
        }
        self.sources.iter_mut().for_each(RingReader::release);
        shared.notify_waiting();
        self.sources.retain(|source| {
            let is_done = source.is_done();
            if is_done {
                shared.remove_ring();
            }
            !is_done
        });
        MergePass { events, is_idle, is_last }
    }

    /// Returns the index of the ring with the earliest item, and the time in nanoseconds of the
    /// earliest item in any other ring. Returns `None` if every ring is empty or has only items
    /// later than `horizon_ns`.
    fn earliest(&self, horizon_ns: u64) -> Option<(usize, u64)> {
        let mut earliest: Option<(usize, u64)> = None;
        let mut until_ns = u64::MAX;
        for (index, source) in self.sources.iter().enumerate() {
            let Some(time_ns) = source.next_time(horizon_ns) else { continue };
            match earliest {
                Some((_, other_ns)) if other_ns <= time_ns => until_ns = until_ns.min(time_ns),
                _ => {
                    until_ns = earliest.map_or(until_ns, |(_, other_ns)| other_ns);
                    earliest = Some((index, time_ns));
                }
            }
        }
        earliest.map(|(index, _)| (index, until_ns))
    }
}

/// Removes the first side record of ring number `ring` from the list `waiting` and passes it to
/// `sink`.
fn take_side_record(waiting: &mut VecDeque<(u64, SideRecord)>, ring: u64, sink: &mut impl DeviceStateSink) {
    let index = waiting.iter().position(|(number, _)| *number == ring);
    match index.and_then(|index| waiting.remove(index)).expect("a side record is stored before its placeholder").1 {
        SideRecord::Annotation(annotation) => sink.annotation(&annotation),
        SideRecord::FullState(state) => sink.replace_state(&state),
        SideRecord::DeviceState(device, state) => sink.device_state(device, &state),
    }
}
