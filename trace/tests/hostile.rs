//! What fuzzing found: recordings, and questions about them, that once did harm.

#[allow(dead_code, reason = "each file of tests uses a part")]
mod common;

use common::program;
use vramscope_trace::{DeviceId, Encoder, Event, Info, Recording, Sink};

fn recording(events: &[Event]) -> Recording {
    let mut encoder = Encoder::new(&Info::default());
    events.iter().for_each(|event| encoder.event(event));
    encoder.flush();
    let mut recording = Recording::new();
    encoder.take_output().iter().try_for_each(|chunk| recording.push(&chunk.bytes)).expect("it is sound");
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
