//! The available recordings, with the values that PyTorch's own counters reported.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use vramscope_formats::{Limits, ignore_progress, import, unpack};
use vramscope_pool::Settings;
use vramscope_pool::rerun::History;
use vramscope_trace::{Encoder, Recording};

/// File name endings of recordings, by compression.
const ENDINGS: [&str; 2] = [".pickle.zst", ".pickle.gz"];

/// A recording and its reference values.
pub(crate) struct Fixture {
    pub(crate) name: String,
    pub(crate) recording: Recording,
    pub(crate) reference: Value,
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the recording that an encoder has written.
pub(crate) fn recording_of(encoder: &mut Encoder) -> Recording {
    encoder.flush();
    let mut recording = Recording::new();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("encoded chunks decode");
    }
    recording
}

impl Fixture {
    fn load(folder: &Path, name: &str) -> Self {
        let reference =
            serde_json::from_slice(&read(&folder.join(format!("{name}.json")))).expect("the reference is JSON");
        let limits = Limits::default();
        let paths = ENDINGS.map(|ending| folder.join(format!("{name}{ending}")));
        let packed = read(paths.iter().find(|path| path.exists()).unwrap_or(&paths[0]));
        let bytes = unpack(&packed, &limits).expect("the fixture decompresses");
        let imported = import(&bytes, name, &limits, &mut ignore_progress, Encoder::new);
        let (mut encoder, _) = imported.expect("the fixture is a valid snapshot");
        Self { name: name.to_owned(), recording: recording_of(&mut encoder), reference }
    }

    /// Returns the settings of the snapshot, with the limit of the reference values.
    pub(crate) fn settings(&self) -> Settings {
        let settings = Settings::parse(&self.recording.info().alloc_conf).expect("recorded settings are valid");
        Settings { limit_bytes: self.limit_bytes(), ..settings }
    }

    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.reference["limit_bytes"].as_u64()
    }

    /// Returns the histories of all devices.
    pub(crate) fn histories(&self) -> Vec<History> {
        History::from_recording(&self.recording).expect("accepted recordings can be read")
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.recording.info().devices.iter().all(|device| device.history_complete)
    }
}

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the sorted names of the recordings in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let stem = |name: String| ENDINGS.iter().find_map(|&ending| name.strip_suffix(ending).map(str::to_owned));
    let mut names: Vec<String> = names.filter_map(stem).collect();
    names.sort();
    names
}

/// Loads a recording that this repository's hook wrote, by file name.
pub(crate) fn of_the_hook(name: &str) -> Recording {
    let mut recording = Recording::new();
    let bytes = read(&workspace_root().join("tests/data").join(name));
    recording.push(&bytes).expect("the recording is complete");
    recording
}

/// Loads the recordings of the scripts in `examples/pytorch`, with their names and sizes in bytes.
pub(crate) fn of_the_examples() -> impl Iterator<Item = (String, usize, Recording)> {
    let folder = workspace_root().join("examples/pytorch/recordings");
    let files = fs::read_dir(&folder).expect("the folder of recordings can be read");
    let paths = files.map(|file| file.expect("the folder can be read").path());
    // The folder also has the figures of the scripts.
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "vram")).map(|path| {
        let mut recording = Recording::new();
        let bytes = read(&path);
        recording.push(&bytes).expect("the recording is complete");
        (path.file_name().expect("a file has a name").to_string_lossy().into_owned(), bytes.len(), recording)
    })
}

/// Loads a recording of this repository.
pub(crate) fn small(name: &str) -> Fixture {
    Fixture::load(&workspace_root().join("tests/data"), name)
}

/// Loads all recordings of this repository.
pub(crate) fn all_small() -> impl Iterator<Item = Fixture> {
    let folder = workspace_root().join("tests/data");
    names(&folder).into_iter().map(move |name| Fixture::load(&folder, &name))
}

/// Loads the large recordings next to the checkout; none, with a message, if the folder does not
/// exist.
pub(crate) fn all_large() -> impl Iterator<Item = Fixture> {
    let folder = workspace_root().join("../shared/snapshots");
    let exists = folder.is_dir();
    if !exists {
        println!("SKIPPED: {} does not exist; its recordings were not checked", folder.display());
    }
    let names = if exists { names(&folder) } else { Vec::new() };
    names.into_iter().map(move |name| Fixture::load(&folder, &name))
}
