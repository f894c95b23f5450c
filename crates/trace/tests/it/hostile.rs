//! Recordings and queries that fuzzing found to fail.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use vramscope_trace::{
    DeviceId, Encoder, Event, EventKind, MemoryState, Metrics, PoolKey, ReadAt, Recording, RecordingInfo,
    RecordingOpener, Sink, SiteId, StreamId, peak_utilization,
};

use crate::common::program;

fn encode(events: &[Event]) -> Vec<u8> {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    events.iter().for_each(|event| encoder.event(event));
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

fn recording(events: &[Event]) -> Recording {
    let mut recording = Recording::new();
    recording.push(&encode(events)).expect("the encoder wrote valid chunks");
    recording
}

#[test]
fn timeline_accepts_a_reversed_range() {
    let recording = recording(&program(300, 3));
    let end = recording.end_ns();
    for (from, to) in [(end, 0), (u64::MAX, 0), (end / 2, end / 3)] {
        assert_eq!(recording.columns(DeviceId(0), from, to, 7).len(), 7);
        assert!(recording.missing_for_columns(DeviceId(0), from, to, 7).is_empty());
    }
}

fn event(kind: EventKind) -> Event {
    Event { device: DeviceId(0), time_ns: 1, kind }
}

fn segment(address: u64, size: u64) -> Event {
    let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
    event(EventKind::SegmentAllocated { address, size, stream, pool, site })
}

fn block(address: u64, size: u64) -> Event {
    let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
    event(EventKind::BlockAllocated { address, size, requested: size, stream, pool, site })
}

#[test]
fn shares_are_at_most_one() {
    // A block outside of every segment makes active bytes exceed reserved bytes.
    let outside = recording(&[segment(0, 4096), block(1 << 20, 1 << 20)]);
    assert_eq!(outside.series(DeviceId(0)).map(peak_utilization), Some(1.0));
    // The sum of squares and the square of the sum round differently.
    let mut state = MemoryState::default();
    state.apply(&segment(0, (1 << 60) + 127));
    let metrics =
        state.device(DeviceId(0)).map(|device| Metrics::at(device, |_, _| true)).expect("the event created it");
    assert_eq!(metrics.free_space_index(), 1.0);
}

/// A file that returns too few bytes before `whole_from`, where the index is.
struct ShortFile {
    bytes: Vec<u8>,
    whole_from: u64,
}

impl ReadAt for ShortFile {
    fn read_at(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let mut bytes = self.bytes.read_at(range.clone())?;
        if range.start < self.whole_from {
            bytes.pop();
        }
        Ok(bytes)
    }
}

#[test]
fn opener_gives_up_if_too_few_bytes_are_supplied() {
    let events = program(300, 3);
    let mut bytes = encode(&events);
    let index = recording(&events).index();
    let whole_from = (bytes.len() + index[0].bytes.len()) as u64;
    bytes.extend(index.into_iter().flat_map(|chunk| chunk.bytes));
    let len = bytes.len() as u64;
    let file = ShortFile { bytes, whole_from };
    let mut opener = RecordingOpener::new(len);
    let mut requests = 0;
    while let Some(range) = opener.wanted_range() {
        opener.supply(range.start, &file.read_at(range).expect("the range is in the file"));
        requests += 1;
        assert!(requests < 10, "the opener requests the same bytes forever");
    }
    assert!(opener.finish().is_none());
    // Reading the whole file fails, too.
    assert!(Recording::open(Arc::new(file), len, |_, _| {}).map_or(true, |(_, error)| error.is_some()));
}
