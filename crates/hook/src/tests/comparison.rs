//! Compares a recording with the stand-in's log.

use std::fs;
use std::path::Path;

use vramscope_formats::{Limits, LiveSnapshot};
use vramscope_trace::{
    DecodedItem, Decoder, Definitions, DeviceId, DeviceState, Event, EventKind, MemoryState, StringId,
};

use super::standin::LogEntry;
use crate::torch::actions;

/// A decoded recording.
pub(super) struct Recorded {
    definitions: Definitions,
    events: Vec<Event>,
    /// The state after the last event.
    end: MemoryState,
}

impl Recorded {
    /// Reads a recording that must be complete and undamaged.
    pub(super) fn read(path: &Path) -> Self {
        let mut decoder = Decoder::new();
        decoder.push(&fs::read(path).expect("the recording is readable"));
        let (mut definitions, mut events, mut end) = (Definitions::default(), Vec::new(), MemoryState::default());
        while let Some(item) = decoder.next_item().expect("the recording is undamaged") {
            match item {
                DecodedItem::Define(definition) => definitions.define(definition),
                DecodedItem::FullState(state) => end = *state,
                DecodedItem::Event(event) => {
                    end.apply(&event);
                    events.push(event);
                }
                DecodedItem::Relabel(relabel) => end.relabel(&relabel),
                DecodedItem::Info(_) | DecodedItem::Annotation(_) => {}
            }
        }
        decoder.finish().expect("the recording is complete");
        Self { definitions, events, end }
    }

    /// Returns the number of marks with a name on a device.
    pub(super) fn marks(&self, device: u16, name: &str) -> usize {
        let events = self.events.iter().filter(|event| event.device == DeviceId(device));
        let named = events.filter(
            |event| matches!(event.kind, EventKind::Mark { name: id, .. } if self.definitions.string(id) == name),
        );
        named.count()
    }

    /// Returns the functions of the stack of each request for a block, innermost first.
    pub(super) fn request_stacks(&self, device: u16) -> impl Iterator<Item = Vec<&str>> {
        self.events.iter().filter(move |event| event.device == DeviceId(device)).filter_map(|event| {
            let EventKind::BlockAllocated { site, .. } = event.kind else { return None };
            let frames = self.definitions.stack(self.definitions.site(site).stack);
            Some(frames.map(|frame| self.definitions.string(frame.function)).collect())
        })
    }

    /// Compares a device's events with a log: each event is one log entry, in order, and each gap
    /// stands for the number of entries that it counts and the snapshot after them.
    pub(super) fn compare(&self, device: u16, log: &[LogEntry]) -> Compared {
        let mut entries = log.iter().enumerate();
        let mut compared = Compared::default();
        let mut time_ns = 0;
        for event in self.events.iter().filter(|event| event.device == DeviceId(device)) {
            match event.kind {
                EventKind::Gap { lost } => {
                    compared.lost += lost;
                    compared.gaps += 1;
                    let (number, after) = entries.nth(lost as usize).expect("the log has the lost entries");
                    assert_eq!(after.action, u64::from(actions::SNAPSHOT), "entry {number} follows {lost} lost ones");
                    continue;
                }
                EventKind::Mark { name, .. } if !self.is_snapshot(name) => continue,
                _ => {}
            }
            assert!(event.time_ns >= time_ns, "times of {event:?} and the event before descend");
            time_ns = event.time_ns;
            let (number, entry) = entries.next().unwrap_or_else(|| panic!("the log lacks {event:?}"));
            let expected = self.expected(&event.kind, entry);
            assert_eq!(*entry, expected, "entry {number} of device {device} was recorded as {event:?}");
            compared.events += 1;
        }
        assert_eq!(entries.next(), None, "the recording of device {device} ends early: {compared:?}");
        compared
    }

    fn is_snapshot(&self, name: StringId) -> bool {
        self.definitions.string(name) == "snapshot"
    }

    /// Returns the log entry that an event must have been derived from. Fields that an event does
    /// not have, such as the time, are copied from `entry`.
    fn expected(&self, kind: &EventKind, entry: &LogEntry) -> LogEntry {
        let (action, address, size, stream) = match *kind {
            EventKind::BlockAllocated { address, requested, stream, .. } => {
                (actions::ALLOC, address, requested, stream.0)
            }
            EventKind::FreeRequested { address, .. } => (actions::FREE_REQUESTED, address, entry.size, entry.stream),
            EventKind::FreeCompleted { address, .. } => (actions::FREE_COMPLETED, address, entry.size, entry.stream),
            EventKind::SegmentAllocated { address, size, stream, .. } => {
                (actions::SEGMENT_ALLOC, address, size, stream.0)
            }
            EventKind::SegmentFreed { address, size, .. } => (actions::SEGMENT_FREE, address, size, entry.stream),
            EventKind::OutOfMemory { requested, device_free, stream, .. } => {
                (actions::OOM, device_free, requested, stream.0)
            }
            EventKind::Mark { .. } => (actions::SNAPSHOT, 0, entry.size, 0),
            ref other => panic!("{other:?} was recorded"),
        };
        LogEntry { action: action.into(), address, size, stream, time: entry.time }
    }

    /// Asserts that the state at the recording's end equals the state in a snapshot.
    pub(super) fn assert_end_state(&self, snapshot: &[u8]) {
        let snapshot = LiveSnapshot::read(snapshot, &Limits::default()).expect("the snapshot is valid");
        for device in snapshot.devices() {
            let (expected, _) = snapshot.device(device);
            let found = self.end.device(device).expect("the device was recorded");
            assert_eq!(found.inconsistencies(), 0, "{device}");
            assert_eq!(blocks(found), blocks(&expected), "blocks of {device} at the end");
            assert_eq!(segments(found), segments(&expected), "segments of {device} at the end");
        }
    }
}

/// The result of a comparison: numbers of equal events, of gaps, and of lost entries.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// Number of events that equal their entries.
    pub(super) events: u64,
    pub(super) gaps: u64,
    /// Number of entries in the gaps.
    pub(super) lost: u64,
}

/// Returns address, size, requested bytes and stream of each block.
fn blocks(state: &DeviceState) -> Vec<[u64; 4]> {
    state.blocks().map(|block| [block.address, block.size, block.requested, block.stream.0]).collect()
}

/// Returns address, size and stream of each segment.
fn segments(state: &DeviceState) -> Vec<[u64; 3]> {
    state.segments().map(|segment| [segment.address, segment.size, segment.stream.0]).collect()
}
