//! Recordings for tests, read from the repository's snapshots.

use std::path::PathBuf;

use vramscope_formats::{Limits, ignore_progress, import, unpack};
use vramscope_trace::{Encoder, Recording};

/// Reads a snapshot of `tests/data`, for example `mlp_train.pickle.zst`.
pub(crate) fn snapshot(name: &str) -> Recording {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name);
    let file = std::fs::read(&path).expect("the repository contains the snapshot");
    let limits = Limits::default();
    let bytes = unpack(&file, &limits).expect("the snapshot can be decompressed");
    let (mut encoder, _) =
        import(&bytes, name, &limits, &mut ignore_progress, Encoder::new).expect("it can be imported");
    encoder.flush();
    let mut recording = Recording::new();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("the encoder writes valid chunks");
    }
    recording
}
