//! Recordings that were damaged after they were written: intact parts stay usable, and the damage
//! is reported.

use std::sync::Arc;

use vramscope_trace::{Chunk, ChunkKind, Encoder, IncidentKind, Recording, RecordingInfo, Replay, Sink, digest};

use crate::common::Random;
use crate::program::{ProgramShape, program};

/// Returns a recording with an index, and its chunks of events and full states with their offsets.
fn recorded(count: usize) -> (Vec<u8>, Vec<(u64, Chunk)>) {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let shape = ProgramShape { devices: 2, inconsistent_per_1000: 3, expandable: true, live: 50 };
    for (number, event) in program(count, 5, &shape).iter().enumerate() {
        encoder.event(event);
        if number % 700 == 0 {
            encoder.flush();
        }
    }
    encoder.flush();
    let mut bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let mut chunks = Vec::new();
    let mut at = 0;
    while let Some(chunk) = Chunk::read(&bytes[at..], at as u64).expect("the recording is valid") {
        at += chunk.bytes.len();
        chunks.push((at as u64 - chunk.bytes.len() as u64, chunk));
    }
    chunks.retain(|(_, chunk)| matches!(chunk.kind, ChunkKind::Events | ChunkKind::State));
    let mut recording = Recording::new();
    recording.push(&bytes).expect("the recording is valid");
    bytes.extend(recording.index().into_iter().flat_map(|chunk| chunk.bytes));
    (bytes, chunks)
}

fn open(bytes: &[u8]) -> Recording {
    let len = bytes.len() as u64;
    let (recording, damage) =
        Recording::open(Arc::new(bytes.to_vec()), len, |_, _| {}).expect("the recording is valid");
    assert_eq!(damage, None, "the recording opens by its index");
    recording
}

#[test]
fn intact_recording_is_unchanged() {
    let (bytes, _) = recorded(5000);
    let mut recording = open(&bytes);
    assert_eq!(recording.skip_damaged(|_, _| {}), None);
    assert_eq!((recording.events(), recording.lost_events()), (5000, 0));
    assert_eq!(recording.incidents(), []);
}

#[test]
fn recording_continues_at_the_full_state_after_a_damaged_chunk() {
    let (bytes, chunks) = recorded(40_000);
    let whole = open(&bytes);
    let mut random = Random(77);
    let states = chunks.iter().filter(|(_, chunk)| chunk.kind == ChunkKind::State).count();
    assert!(states > 1, "{states} full states");
    for (position, (begin, chunk)) in chunks.iter().enumerate().step_by(7) {
        let mut damaged = bytes.clone();
        damaged[*begin as usize + random.below(chunk.bytes.len() as u64) as usize] ^= 1 << random.below(8);
        let mut recording = open(&damaged);
        assert!(Replay::new().play(&recording, 0, whole.end_event()).is_err() || chunk.kind == ChunkKind::State);
        let damage = recording.skip_damaged(|_, _| {}).expect("a chunk is damaged");
        assert_eq!(damage.first.offset, *begin, "{damage:?}");

        let next = chunks[position..].iter().find(|(_, chunk)| chunk.kind == ChunkKind::State);
        let (from, to) = match chunk.kind {
            // The events before the full state lead to an equal state.
            ChunkKind::State => (chunk.first_event, chunk.first_event),
            _ => (chunk.first_event, next.map_or(whole.end_event(), |(_, state)| state.first_event)),
        };
        assert_eq!(damage.events, to - from);
        assert_eq!((recording.events(), recording.lost_events()), (whole.events() - damage.events, damage.events));
        let gaps: Vec<_> = recording.incidents().iter().map(|incident| (incident.at_event, incident.kind)).collect();
        assert_eq!(gaps, if to > from { vec![(from, IncidentKind::Gap { lost: to - from })] } else { Vec::new() });

        let (mut replay, mut of_whole) = (Replay::new(), Replay::new());
        let at = |replay: &mut Replay, of: &Recording, moment: u64| {
            digest(replay.seek(of, moment).expect("the remaining chunks are valid"))
        };
        for _ in 0..10 {
            let moment = random.below(whole.end_event() + 1);
            let known = if moment > from && moment < to { from } else { moment };
            assert_eq!(at(&mut replay, &recording, moment), at(&mut of_whole, &whole, known), "moment {moment}");
            let event = replay.event(&recording, moment).expect("the remaining chunks are valid");
            let is_recorded = !(from..to).contains(&moment);
            assert_eq!(event, of_whole.event(&whole, moment).unwrap().filter(|_| is_recorded), "event {moment}");
        }
        replay.play(&recording, 0, whole.end_event()).expect("the remaining chunks are valid");
        assert_eq!(digest(replay.state()), digest(whole.end_state()));
    }
}
