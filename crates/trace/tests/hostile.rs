//! What fuzzing found: recordings, and questions about them, that once did harm.

#[allow(dead_code, reason = "each file of tests uses a part")]
mod common;

use std::ops::Range;
use std::sync::Arc;

use common::program;
use vramscope_trace::{
    DeviceId, Encoder, Event, EventKind, Info, MemoryState, Metrics, Opening, Pool, ReadAt, Recording, Sink, SiteId,
    StreamId, peak_use,
};

fn encode(events: &[Event]) -> Vec<u8> {
    let mut encoder = Encoder::new(&Info::default());
    events.iter().for_each(|event| encoder.event(event));
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

fn recording(events: &[Event]) -> Recording {
    let mut recording = Recording::new();
    recording.push(&encode(events)).expect("it is sound");
    recording
}

#[test]
fn a_timeline_from_its_end_to_its_beginning_is_drawn() {
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
    let (stream, pool, site) = (StreamId(0), Pool::default(), SiteId(0));
    event(EventKind::SegmentAllocated { address, size, stream, pool, site })
}

fn block(address: u64, size: u64) -> Event {
    let (stream, pool, site) = (StreamId(0), Pool::default(), SiteId(0));
    event(EventKind::BlockAllocated { address, size, requested: size, stream, pool, site })
}

#[test]
fn shares_are_never_more_than_one() {
    // More is active than was ever reserved, for a block lies in no segment.
    let outside = recording(&[segment(0, 4096), block(1 << 20, 1 << 20)]);
    assert_eq!(outside.series(DeviceId(0)).map(peak_use), Some(1.0));
    // The sum of squares and the square of the sum round differently.
    let mut state = MemoryState::default();
    state.apply(&segment(0, (1 << 60) + 127));
    let metrics = state.device(DeviceId(0)).map(|device| Metrics::at(device, |_, _| true)).expect("a device");
    assert_eq!(metrics.free_space_index(), 1.0);
}

/// A file of which less is there than there was, but for its end, where the index is.
struct Cut {
    bytes: Vec<u8>,
    whole_from: u64,
}

impl ReadAt for Cut {
    fn read_at(&self, range: Range<u64>) -> Result<Vec<u8>, String> {
        let mut bytes = self.bytes.read_at(range.clone())?;
        if range.start < self.whole_from {
            bytes.pop();
        }
        Ok(bytes)
    }
}

#[test]
fn who_answers_with_less_than_was_wanted_is_not_asked_for_ever() {
    let events = program(300, 3);
    let mut bytes = encode(&events);
    let index = recording(&events).index();
    let whole_from = (bytes.len() + index[0].bytes.len()) as u64;
    bytes.extend(index.into_iter().flat_map(|chunk| chunk.bytes));
    let len = bytes.len() as u64;
    let cut = Cut { bytes, whole_from };
    let mut opening = Opening::new(len);
    let mut asked = 0;
    while let Some(range) = opening.wants() {
        opening.supply(range.start, &cut.read_at(range).expect("it is there"));
        asked += 1;
        assert!(asked < 10, "it asks for the same again");
    }
    assert!(opening.finish().is_none());
    // From the first byte to the last it cannot be read either.
    assert!(Recording::open(Arc::new(cut), len, |_, _| {}).map_or(true, |(_, error)| error.is_some()));
}
