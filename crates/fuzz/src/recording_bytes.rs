//! Functions that several targets use to write, read and split recordings.

use std::iter;

use vramscope_trace::{Encoder, FormatError, Recording};

use crate::random::Random;

/// Returns all bytes that an encoder writes, up to the last event.
pub(crate) fn encoded(mut encoder: Encoder) -> Vec<u8> {
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

/// Returns the bytes of a recording's index.
pub(crate) fn index_of(recording: &Recording) -> Vec<u8> {
    recording.index().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

/// Reads a recording; fails if it is damaged.
pub(crate) fn read(bytes: &[u8]) -> Result<Recording, FormatError> {
    let mut recording = Recording::new();
    recording.push(bytes).map(|()| recording)
}

/// Reads a recording that an encoder wrote.
pub(crate) fn read_encoded(bytes: &[u8]) -> Recording {
    read(bytes).expect("an encoded recording is sound")
}

/// Splits bytes into pieces of random lengths.
pub(crate) fn pieces<'a>(mut bytes: &'a [u8], random: &mut Random) -> impl Iterator<Item = &'a [u8]> {
    iter::from_fn(move || {
        let len = (!bytes.is_empty()).then(|| 1 + random.index(bytes.len()))?;
        bytes.split_off(..len)
    })
}
