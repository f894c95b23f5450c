//! A target for a recording that is followed: it comes a chunk at a time, and its oldest part is forgotten meanwhile.

use vramscope_trace::{Chunk, Recording, digest};

use crate::look::look;
use crate::random::Random;
use crate::sketch;

/// The chunks that bytes begin with, as what passes chunks on cuts them.
fn cut(bytes: &[u8]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut at = 0;
    while let Ok(Some(chunk)) = Chunk::read(&bytes[at..], at as u64) {
        assert!(bytes[at..].starts_with(&chunk.bytes), "a chunk is the bytes that it was read from");
        assert!(!chunk.bytes.is_empty(), "a chunk has bytes");
        at += chunk.bytes.len();
        chunks.push(chunk);
    }
    chunks
}

/// What stays is a recording: what a newcomer has who came with its first full state.
fn stays_whole(recording: &Recording) {
    let held: Vec<u8> = recording.held().flatten().collect();
    let mut opened = Recording::new();
    let taken = opened.push(&held).and_then(|()| opened.finish());
    assert_eq!(taken, Ok(()), "what stays is a recording");
    assert_eq!(opened.first_event(), recording.first_event(), "the first moment that stays");
    assert_eq!(
        (opened.events(), opened.lost_events(), opened.end_event()),
        (recording.events(), recording.lost_events(), recording.end_event()),
        "the events that stay"
    );
    assert_eq!(digest(opened.end_state()), digest(recording.end_state()), "the state at the end");
    assert_eq!(opened.info(), recording.info(), "what it says of itself");
    assert_eq!(opened.incidents(), recording.incidents(), "the incidents that stay");
}

/// A sketch of a recording, told chunk by chunk, of which the oldest part is forgotten again and again, a slice at a time.
pub fn growing(data: &[u8]) {
    let mut random = Random::of(data);
    let bytes = sketch::build(data);
    let mut recording = Recording::new();
    for chunk in cut(&bytes) {
        if recording.push(&chunk.bytes).is_err() {
            return look(&recording, &mut random);
        }
        if !recording.is_forgetting() && random.below(3) == 0 {
            recording.forget(recording.held_bytes() / (2 + random.index(8)));
        }
        let before = recording.first_event();
        if recording.forget_on(random.below(2000)) {
            assert!(recording.first_event() >= before, "what was forgotten is gone");
            stays_whole(&recording);
            look(&recording, &mut random);
        }
    }
    // As many slices as there could be chunks.
    for _ in 0..=bytes.len() {
        if !recording.is_forgetting() || recording.forget_on(5000) {
            break;
        }
    }
    assert!(!recording.is_forgetting(), "forgetting ends");
    look(&recording, &mut random);
}
