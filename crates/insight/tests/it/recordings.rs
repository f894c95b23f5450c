//! Recordings for tests, read from the repository's snapshots.

use std::path::{Path, PathBuf};

use vramscope_formats::{Limits, ignore_progress, import, unpack};
use vramscope_trace::{Encoder, Recording};

/// Reads a snapshot of `tests/data`, for example `mlp_train.pickle.zst`.
pub(crate) fn snapshot(name: &str) -> Recording {
    read(&folder("../../tests/data").join(name), name)
}

/// Returns a folder, from its path relative to this crate.
fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Reads all snapshots of `tests/data`, each with its name.
pub(crate) fn snapshots() -> impl Iterator<Item = (String, Recording)> {
    recorded_in("../../tests/data")
}

/// Reads the compressed snapshots in a folder, each with its name, except for `big`. None if the
/// folder is missing, with a message on stderr.
pub(crate) fn recorded_in(path: &str) -> impl Iterator<Item = (String, Recording)> {
    let folder = folder(path);
    let entries = std::fs::read_dir(&folder).map_err(|error| eprintln!("SKIPPED: {}: {error}", folder.display()));
    let names = entries.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| name.ends_with(".pickle.zst") || name.ends_with(".pickle.gz"))
        .filter(|name| !name.starts_with("big."))
        .collect();
    names.sort();
    names.into_iter().map(move |name| (name.clone(), read(&folder.join(&name), &name)))
}

/// Reads the recordings (`.vram`) in a folder of this repository, each with its name.
pub(crate) fn recordings_in(path: &str) -> impl Iterator<Item = (String, Recording)> {
    let entries = std::fs::read_dir(folder(path)).expect("the folder exists");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "vram"));
    paths.sort();
    paths.into_iter().map(|path| {
        let mut recording = Recording::new();
        recording.push(&std::fs::read(&path).expect("the recording exists")).expect("it is valid");
        recording.finish().expect("it is complete");
        (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), recording)
    })
}

/// Reads a snapshot.
fn read(path: &Path, name: &str) -> Recording {
    let file = std::fs::read(path).expect("the snapshot exists");
    let bytes = unpack(&file, &Limits::default()).expect("the snapshot can be decompressed");
    imported(&bytes, name)
}

/// Imports an uncompressed snapshot.
pub(crate) fn imported(snapshot: &[u8], name: &str) -> Recording {
    let limits = Limits::default();
    let (mut encoder, _) =
        import(snapshot, name, &limits, &mut ignore_progress, Encoder::new).expect("it can be imported");
    encoder.flush();
    let mut recording = Recording::new();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("the encoder writes valid chunks");
    }
    recording
}
