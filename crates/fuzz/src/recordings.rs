//! Fuzz targets for the recording format.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use vramscope_trace::{ReadAt, Recording, RecordingOpener, Replay};

use crate::inspect::inspect;
use crate::random::Random;
use crate::recording_bytes::{index_of, pieces, read_encoded};
use crate::{consistency_check, history_input, seeds, structured_input};

/// Pushes bytes into a recording in random pieces, up to the first error.
fn push_pieces(bytes: &[u8], random: &mut Random) -> Recording {
    let mut recording = Recording::new();
    for piece in pieces(bytes, random) {
        if let Err(error) = recording.push(piece) {
            assert!(error.offset <= bytes.len() as u64, "the offset is inside the recording");
            assert_eq!(recording.push(b"more"), Err(error), "an error is permanent");
            break;
        }
    }
    let _ = recording.finish();
    recording
}

/// Reads the input as a file. Mutated files mostly fail at the preamble, a header or a checksum.
pub fn recording(data: &[u8]) {
    let mut random = Random::from_bytes(data);
    inspect(&push_pieces(data, &mut random), &mut random);
    open(data.to_vec(), data.len(), &mut random);
}

/// Reads a structured input, which tests the content behind the checksums in all compressions.
pub fn chunks(data: &[u8]) {
    let mut random = Random::from_bytes(data);
    let bytes = structured_input::build(data);
    let recording = push_pieces(&bytes, &mut random);
    inspect(&recording, &mut random);
    // The part before an error is a valid recording, which can get an index.
    let whole = with_index(&recording, bytes);
    let len = whole.len();
    open(whole, len, &mut random);
}

/// Appends the index of `recording` to its bytes, if the recording is complete.
fn with_index(recording: &Recording, mut bytes: Vec<u8>) -> Vec<u8> {
    if recording.finish().is_ok() {
        bytes.extend(index_of(recording));
    }
    bytes
}

/// Opens a recording by its index or by reading all of it, and inspects it.
fn open(source: impl ReadAt + 'static, len: usize, random: &mut Random) {
    if let Ok((recording, _)) = Recording::open(Arc::new(source), len as u64, |_, _| {}) {
        inspect(&recording, random);
    }
}

/// The recordings without an index to which [`index`] adds one. Each ends with the full state that
/// precedes an index.
static BASES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let without_index = |bytes: &Vec<u8>| {
        let state = read_encoded(bytes).index().swap_remove(0);
        [bytes.as_slice(), &state.bytes].concat()
    };
    seeds::recordings().iter().map(without_index).collect()
});

/// Adds an index from the input to a valid recording, and opens it. The first byte selects the
/// recording, the second the compression and whether the source is unstable; the rest is the
/// index's payload.
pub fn index(data: &[u8]) {
    let Some((&[recording, packing], input)) = data.split_first_chunk() else { return };
    let base = &BASES[usize::from(recording) % BASES.len()];
    let payload = structured_input::build_payload(input, if packing & 3 == 0 { packing >> 2 } else { 0 });
    let index = structured_input::chunk(structured_input::INDEX, packing & 3, (0, 0), &payload, 0);
    let at = (base.len() + index.len()) as u64;
    let end = [(index.len() as u64).to_le_bytes(), at.to_le_bytes()].concat();
    let end = structured_input::chunk(structured_input::INDEX + 1, 0, (0, 0), &end, 0);
    let bytes = [base.as_slice(), &index, &end].concat();
    let mut random = Random::from_bytes(data);
    let len = bytes.len();
    match packing >> 6 {
        0 | 1 => open(bytes, len, &mut random),
        2 => open_on_request(&bytes, &mut random),
        _ => open(UnstableFile { bytes, seed: random.next() }, len, &mut random),
    }
}

/// A file that another program changes: reads are sometimes too short and sometimes different.
struct UnstableFile {
    bytes: Vec<u8>,
    seed: u64,
}

impl ReadAt for UnstableFile {
    fn read_at(&self, range: Range<u64>) -> std::io::Result<Vec<u8>> {
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

/// Opens a recording as the browser does, which requests bytes and receives them later.
fn open_on_request(bytes: &[u8], random: &mut Random) {
    let part = |range: &Range<u64>| bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
    let mut opening = RecordingOpener::new(bytes.len() as u64);
    // Opening requests no byte twice, so it ends after at most as many requests as there are bytes.
    for _ in 0..bytes.len() {
        let Some(range) = opening.wanted_range() else { break };
        assert!(range.start <= range.end && range.end <= bytes.len() as u64, "requests are inside the file: {range:?}");
        opening.supply(range.start, part(&range));
    }
    assert!(opening.wanted_range().is_none(), "an opening ends");
    let Some(mut recording) = opening.finish() else { return };
    let span = (recording.end_event().saturating_sub(recording.first_event())).saturating_add(1).max(1);
    for _ in 0..3 {
        let moment = recording.first_event().saturating_add(random.below(span));
        for range in recording.missing(moment) {
            let _ = recording.supply(range.start, part(&range));
        }
        let _ = Replay::new().seek(&recording, moment);
    }
    inspect(&recording, random);
}

/// Checks that decoder, recording, encoder and index agree on a structured input.
pub fn consistency(data: &[u8]) {
    consistency_check::check(&structured_input::build(data), false, &mut Random::from_bytes(data));
}

/// Encodes a history made from arbitrary bytes, and checks that the recording is accepted, complete
/// and consistent.
pub fn encoder(data: &[u8]) {
    let (bytes, events) = history_input::encode(data);
    let mut random = Random::from_bytes(data);
    consistency_check::check(&bytes, true, &mut random);
    let recording = push_pieces(&bytes, &mut random);
    assert_eq!(recording.events(), events, "every event is in the recording");
    inspect(&recording, &mut random);
}
