//! Targets for the recording format.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use vramscope_trace::{Opening, ReadAt, Recording, Replay};

use crate::look::look;
use crate::random::Random;
use crate::{agree, events, seeds, sketch};

/// Takes in bytes, cut anywhere, up to the first error.
fn taken(bytes: &[u8], random: &mut Random) -> Recording {
    let mut recording = Recording::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(1 + random.index(rest.len()));
        rest = later;
        if let Err(error) = recording.push(now) {
            assert!(error.offset <= bytes.len() as u64, "an error lies in the recording");
            assert_eq!(recording.push(b"more"), Err(error), "an error stays");
            break;
        }
    }
    let _ = recording.finish();
    recording
}

/// The bytes of a file, as they are: what stands before the checksums, and that nothing gets behind them.
pub fn recording(data: &[u8]) {
    let mut random = Random::of(data);
    look(&taken(data, &mut random), &mut random);
    open(data.to_vec(), &mut random);
}

/// A sketch of a recording: what stands behind the checksums, however it is packed.
pub fn chunks(data: &[u8]) {
    let mut random = Random::of(data);
    let bytes = sketch::build(data);
    let recording = taken(&bytes, &mut random);
    look(&recording, &mut random);
    // Up to the error it is a recording, and has an index as any other.
    let whole = sketch_with_index(&recording, bytes);
    open(whole, &mut random);
}

fn sketch_with_index(recording: &Recording, mut bytes: Vec<u8>) -> Vec<u8> {
    if recording.finish().is_ok() {
        bytes.extend(recording.index().into_iter().flat_map(|chunk| chunk.bytes));
    }
    bytes
}

/// Opens a recording by its index, or by reading all of it, and looks at it.
fn open(bytes: Vec<u8>, random: &mut Random) {
    let len = bytes.len() as u64;
    if let Ok((recording, _)) = Recording::open(Arc::new(bytes), len, |_, _| {}) {
        look(&recording, random);
    }
}

/// A recording that an encoder wrote, with what an index of it is made of.
struct Base {
    /// Up to where the index begins.
    bytes: Vec<u8>,
}

fn bases() -> &'static [Base] {
    static BASES: OnceLock<Vec<Base>> = OnceLock::new();
    BASES.get_or_init(|| {
        let without_index = |bytes: &Vec<u8>| {
            let mut recording = Recording::new();
            recording.push(bytes).expect("what an encoder wrote is sound");
            let state = recording.index().swap_remove(0);
            Base { bytes: [bytes.as_slice(), &state.bytes].concat() }
        };
        seeds::recordings().iter().map(without_index).collect()
    })
}

/// An index of a sound recording: the first byte says of which, and how the index is packed; the second, whether a source that changes
/// what it reads; the rest is the sketch of its payload.
pub fn index(data: &[u8]) {
    let Some((&[which, how], sketch)) = data.split_first_chunk() else { return };
    let base = &bases()[usize::from(which) % bases().len()];
    let payload = sketch::build_payload(sketch, if how & 3 == 0 { how >> 2 } else { 0 });
    let index = sketch::chunk(sketch::INDEX, how & 3, (0, 0), &payload, 0);
    let at = (base.bytes.len() + index.len()) as u64;
    let end = [(index.len() as u64).to_le_bytes(), at.to_le_bytes()].concat();
    let end = sketch::chunk(sketch::INDEX + 1, 0, (0, 0), &end, 0);
    let bytes = [base.bytes.as_slice(), &index, &end].concat();
    let mut random = Random::of(data);
    match how >> 6 {
        0 | 1 => open(bytes, &mut random),
        2 => supplied(&bytes, &mut random),
        _ => {
            let len = bytes.len() as u64;
            let source = Unsteady { bytes, seed: random.next() };
            if let Ok((recording, _)) = Recording::open(Arc::new(source), len, |_, _| {}) {
                look(&recording, &mut random);
            }
        }
    }
}

/// A file that something else writes to: it is sometimes shorter than it was, and sometimes another.
struct Unsteady {
    bytes: Vec<u8>,
    seed: u64,
}

impl ReadAt for Unsteady {
    fn read_at(&self, range: Range<u64>) -> Result<Vec<u8>, String> {
        let mut random = Random::new(self.seed ^ range.start.rotate_left(17) ^ range.end);
        let mut bytes = self.bytes.read_at(range)?;
        match random.below(8) {
            0 => bytes.truncate(random.index(bytes.len() + 1)),
            1 => bytes.push(0),
            2 if !bytes.is_empty() => {
                let at = random.index(bytes.len());
                bytes[at] ^= 1;
            }
            _ => {}
        }
        Ok(bytes)
    }
}

/// Opens a recording as the browser does, where bytes are asked for and come later.
fn supplied(bytes: &[u8], random: &mut Random) {
    let part = |range: &Range<u64>| bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
    let mut opening = Opening::new(bytes.len() as u64);
    // An opening asks for each byte once, so it is done after as many questions as there are chunks.
    for _ in 0..bytes.len() {
        let Some(range) = opening.wants() else { break };
        assert!(range.start <= range.end && range.end <= bytes.len() as u64, "what is wanted is there: {range:?}");
        opening.supply(range.start, part(&range));
    }
    assert!(opening.wants().is_none(), "an opening ends");
    let Some(mut recording) = opening.finish() else { return };
    let span = (recording.end_event().saturating_sub(recording.first_event())).saturating_add(1).max(1);
    for _ in 0..3 {
        let moment = recording.first_event().saturating_add(random.below(span));
        for range in recording.missing(moment) {
            let _ = recording.supply(range.start, part(&range));
        }
        let _ = Replay::new().seek(&recording, moment);
    }
    look(&recording, random);
}

/// A sketch of a recording: the decoder, the recording, the encoder and the index must say the same of it.
pub fn agreement(data: &[u8]) {
    agree::check(&sketch::build(data), false, &mut Random::of(data));
}

/// A history made of the bytes: what the encoder writes is taken, whole, and says what the encoder was told.
pub fn encoder(data: &[u8]) {
    let (bytes, events) = events::encode(data);
    let mut random = Random::of(data);
    agree::check(&bytes, true, &mut random);
    let recording = taken(&bytes, &mut random);
    assert_eq!(recording.events(), events, "every event is there");
    look(&recording, &mut random);
}
