//! The recordings there are, with what PyTorch's own counters said.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use vramscope_formats::{Limits, import, unpack};
use vramscope_pool::Settings;
use vramscope_pool::rerun::History;
use vramscope_trace::{Encoder, Recording};

/// How the names of recordings end, by how they were packed.
const ENDINGS: [&str; 2] = [".pickle.zst", ".pickle.gz"];

/// A recording and its ground truth.
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) recording: Recording,
    pub(crate) truth: Value,
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A recording of what `begin` is told.
pub(crate) fn recording_of(encoder: &mut Encoder) -> Recording {
    encoder.flush();
    let mut recording = Recording::new();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("what was encoded can be decoded");
    }
    recording
}

impl File {
    fn load(folder: &Path, name: &str) -> Self {
        let truth = serde_json::from_slice(&read(&folder.join(format!("{name}.json")))).expect("the truth is JSON");
        let limits = Limits::default();
        let paths = ENDINGS.map(|ending| folder.join(format!("{name}{ending}")));
        let packed = read(paths.iter().find(|path| path.exists()).unwrap_or(&paths[0]));
        let bytes = unpack(&packed, &limits).expect("a fixture is whole");
        let imported = import(&bytes, name, &limits, &mut |_, _| {}, Encoder::new);
        let (mut encoder, _) = imported.expect("a fixture can be read");
        Self { name: name.to_owned(), recording: recording_of(&mut encoder), truth }
    }

    /// The settings found in the snapshot, and the limit of the truth.
    pub(crate) fn settings(&self) -> Settings {
        let settings = Settings::parse(&self.recording.info().alloc_conf).expect("its settings are understood");
        Settings { limit_bytes: self.limit_bytes(), ..settings }
    }

    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.truth["limit_bytes"].as_u64()
    }

    /// One history for each device.
    pub(crate) fn histories(&self) -> Vec<History> {
        History::all_of(&self.recording).expect("what was taken in can be read")
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.recording.info().devices.iter().all(|device| device.history_complete)
    }
}

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names of the recordings in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let stem = |name: String| ENDINGS.iter().find_map(|&ending| name.strip_suffix(ending).map(str::to_owned));
    let mut names: Vec<String> = names.filter_map(stem).collect();
    names.sort();
    names
}

/// One that is in the repository.
pub(crate) fn small(name: &str) -> File {
    File::load(&workspace_root().join("tests/data"), name)
}

/// Every one that is in the repository.
pub(crate) fn all_small() -> impl Iterator<Item = File> {
    let folder = workspace_root().join("tests/data");
    names(&folder).into_iter().map(move |name| File::load(&folder, &name))
}

/// Those that are kept beside the checkout; none where that folder is absent, which is then said.
pub(crate) fn all_large() -> impl Iterator<Item = File> {
    let folder = workspace_root().join("../shared/snapshots");
    let there = folder.is_dir();
    if !there {
        println!("SKIPPED: {} is not there; its recordings were not checked", folder.display());
    }
    let names = if there { names(&folder) } else { Vec::new() };
    names.into_iter().map(move |name| File::load(&folder, &name))
}
