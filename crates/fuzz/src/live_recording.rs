//! The fuzz target for live recordings: chunks arrive one by one while the oldest part of the
//! recording is removed.

use vramscope_trace::{Chunk, Recording, digest};

use crate::inspect::inspect;
use crate::random::Random;
use crate::structured_input;

/// Splits bytes into chunks, as a hub does.
fn split_chunks(bytes: &[u8]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut at = 0;
    while let Ok(Some(chunk)) = Chunk::read(&bytes[at..], at as u64) {
        assert!(bytes[at..].starts_with(&chunk.bytes), "a chunk keeps the bytes that it was read from");
        assert!(!chunk.bytes.is_empty(), "a chunk has bytes");
        at += chunk.bytes.len();
        chunks.push(chunk);
    }
    chunks
}

/// Checks that the remaining part equals the recording of a viewer that joined at the part's first
/// full state.
fn check_remainder(recording: &Recording) {
    let held: Vec<u8> = recording.bytes_in_memory().flatten().collect();
    let mut opened = Recording::new();
    let taken = opened.push(&held).and_then(|()| opened.finish());
    assert_eq!(taken, Ok(()), "the remainder is a recording");
    let events = |of: &Recording| [of.first_event(), of.end_event(), of.events(), of.lost_events()];
    assert_eq!(events(&opened), events(recording), "the remaining events");
    assert_eq!(digest(opened.end_state()), digest(recording.end_state()), "the state at the end");
    assert_eq!(opened.info(), recording.info(), "the description");
    assert_eq!(opened.incidents(), recording.incidents(), "the remaining incidents");
}

/// Pushes a structured input chunk by chunk, and repeatedly removes its oldest part in slices.
pub fn live_recording(data: &[u8]) {
    let mut random = Random::from_bytes(data);
    let bytes = structured_input::build(data);
    let mut recording = Recording::new();
    for chunk in split_chunks(&bytes) {
        if recording.push(&chunk.bytes).is_err() {
            return inspect(&recording, &mut random);
        }
        if !recording.is_trimming() && random.below(3) == 0 {
            recording.start_trim(recording.memory_bytes() / (2 + random.index(8)));
        }
        let before = recording.first_event();
        if recording.continue_trim(random.below(2000)) {
            assert!(recording.first_event() >= before, "the first event only moves forward");
            check_remainder(&recording);
            inspect(&recording, &mut random);
        }
    }
    // The loop ends earlier: each slice removes at least one chunk.
    for _ in 0..=bytes.len() {
        if !recording.is_trimming() || recording.continue_trim(5000) {
            break;
        }
    }
    assert!(!recording.is_trimming(), "forgetting ends");
    inspect(&recording, &mut random);
}
