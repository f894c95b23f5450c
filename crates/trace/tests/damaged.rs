//! Recordings that were damaged after they were written: whatever is whole is still shown, and what is not is said to be missing.

#[allow(dead_code, reason = "each file of tests uses a part")]
mod common;
#[path = "common/program.rs"]
mod program;

use std::sync::Arc;

use common::Random;
use program::{Shape, program};
use vramscope_trace::{Chunk, ChunkKind, Encoder, IncidentKind, Info, Recording, Replay, Sink, digest};

/// A recording with an index, and its chunks of events and states with where they begin.
fn recorded(count: usize) -> (Vec<u8>, Vec<(u64, Chunk)>) {
    let mut encoder = Encoder::new(&Info::default());
    let shape = Shape { devices: 2, misfits_in_1000: 3, expandable: true, live: 50 };
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
    while let Some(chunk) = Chunk::read(&bytes[at..], at as u64).expect("a recording") {
        at += chunk.bytes.len();
        chunks.push((at as u64 - chunk.bytes.len() as u64, chunk));
    }
    chunks.retain(|(_, chunk)| matches!(chunk.kind, ChunkKind::Events | ChunkKind::State));
    let mut recording = Recording::new();
    recording.push(&bytes).expect("a recording");
    bytes.extend(recording.index().into_iter().flat_map(|chunk| chunk.bytes));
    (bytes, chunks)
}

fn opened(bytes: &[u8]) -> Recording {
    let len = bytes.len() as u64;
    let (recording, damage) = Recording::open(Arc::new(bytes.to_vec()), len, |_, _| {}).expect("a recording");
    assert_eq!(damage, None, "it opens by its index");
    recording
}

#[test]
fn what_is_whole_stays_whole() {
    let (bytes, _) = recorded(5000);
    let mut recording = opened(&bytes);
    assert_eq!(recording.leave_out_damaged(|_, _| {}), None);
    assert_eq!((recording.events(), recording.lost_events()), (5000, 0));
    assert_eq!(recording.incidents(), []);
}

#[test]
fn behind_a_damaged_chunk_all_is_there_from_the_next_full_state_on() {
    let (bytes, chunks) = recorded(40_000);
    let whole = opened(&bytes);
    let mut random = Random(77);
    let states = chunks.iter().filter(|(_, chunk)| chunk.kind == ChunkKind::State).count();
    assert!(states > 1, "{states} full states");
    for (place, (begin, chunk)) in chunks.iter().enumerate().step_by(7) {
        let mut damaged = bytes.clone();
        damaged[*begin as usize + random.below(chunk.bytes.len() as u64) as usize] ^= 1 << random.below(8);
        let mut recording = opened(&damaged);
        assert!(Replay::new().play(&recording, 0, whole.end_event()).is_err() || chunk.kind == ChunkKind::State);
        let damage = recording.leave_out_damaged(|_, _| {}).expect("damage");
        assert_eq!(damage.first.offset, *begin, "{damage:?}");

        let next = chunks[place..].iter().find(|(_, chunk)| chunk.kind == ChunkKind::State);
        let (from, to) = match chunk.kind {
            // What comes before it leads there, too.
            ChunkKind::State => (chunk.first_event, chunk.first_event),
            _ => (chunk.first_event, next.map_or(whole.end_event(), |(_, state)| state.first_event)),
        };
        assert_eq!(damage.events, to - from);
        assert_eq!((recording.events(), recording.lost_events()), (whole.events() - damage.events, damage.events));
        let gaps: Vec<_> = recording.incidents().iter().map(|incident| (incident.at_event, incident.kind)).collect();
        assert_eq!(gaps, if to > from { vec![(from, IncidentKind::Gap { lost: to - from })] } else { Vec::new() });

        let (mut replay, mut of_whole) = (Replay::new(), Replay::new());
        let at = |replay: &mut Replay, of: &Recording, moment: u64| {
            digest(replay.seek(of, moment).expect("what is there can be read"))
        };
        for _ in 0..10 {
            let moment = random.below(whole.end_event() + 1);
            let known = if moment > from && moment < to { from } else { moment };
            assert_eq!(at(&mut replay, &recording, moment), at(&mut of_whole, &whole, known), "moment {moment}");
            let event = replay.event(&recording, moment).expect("what is there can be read");
            let is_there = !(from..to).contains(&moment);
            assert_eq!(event, of_whole.event(&whole, moment).unwrap().filter(|_| is_there), "event {moment}");
        }
        replay.play(&recording, 0, whole.end_event()).expect("all of it can be read");
        assert_eq!(digest(replay.state()), digest(whole.end_state()));
    }
}
