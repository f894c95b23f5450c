//! Scalars end at the values of PyTorch's counters with the same names.

use prost::Message;
use vramscope_formats::export;
use vramscope_trace::{Recording, SiteId};

use super::common::{RecordingBuilder, UNIT, snapshot};

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, tag = "2")]
    simple_value: f32,
}

/// Returns tag, step and value of each point.
fn points(recording: &Recording) -> Vec<(String, i64, f32)> {
    let mut file = Vec::new();
    export::tensorboard(recording, &mut file, &mut |_, _| {}).expect("memory can be written");
    let mut points = Vec::new();
    let mut rest = file.as_slice();
    while let Some((length, _)) = rest.split_first_chunk::<8>() {
        let length = usize::try_from(u64::from_le_bytes(*length)).expect("a record fits in memory");
        let event = Event::decode(&rest[12..12 + length]).expect("the record is an event");
        let values = event.summary.unwrap_or_default().value;
        points.extend(values.into_iter().map(|value| (value.tag, event.step, value.simple_value)));
        rest = &rest[12 + length + 4..];
    }
    points
}

#[test]
fn scalars_end_at_pytorchs_counters() {
    for name in ["mlp_train", "frag_a_expandable", "ring", "graphs"] {
        let (recording, truth) = snapshot(name);
        let points = points(&recording);
        for key in [
            "allocated_bytes.all.current",
            "active_bytes.all.current",
            "reserved_bytes.all.current",
            "requested_bytes.all.current",
            "inactive_split_bytes.all.current",
            "active.all.current",
            "segment.all.current",
        ] {
            let tag = format!("cuda_0/{key}");
            let (_, step, value) = points.iter().rfind(|(of, _, _)| *of == tag).expect("the export has the scalar");
            let expected = truth["stats"][key].as_u64().expect("PyTorch reports this counter");
            assert_eq!(*value, expected as f32, "{name}: {key}");
            assert_eq!(*step as u64, recording.end_event(), "{name}: {key}");
        }
    }
}

#[test]
fn steps_are_event_numbers() {
    let mut builder = RecordingBuilder::new();
    builder.alloc(0, UNIT, UNIT, SiteId(0));
    builder.alloc(1, 2 * UNIT, UNIT, SiteId(0));
    let points = points(&builder.finish());
    let allocated = points.iter().filter(|(tag, _, _)| tag == "cuda_0/allocated_bytes.all.current");
    let allocated: Vec<_> = allocated.map(|&(_, step, value)| (step, value)).collect();
    assert_eq!(allocated, [(1, UNIT as f32), (2, 2.0 * UNIT as f32)]);
}

#[test]
fn file_name_contains_the_time_of_the_recording() {
    let (recording, _) = snapshot("mlp_train");
    let seconds = recording.info().epoch_unix_ns / 1_000_000_000;
    assert_eq!(export::tensorboard_file_name(&recording), format!("events.out.tfevents.{seconds}.vramscope"));
}
