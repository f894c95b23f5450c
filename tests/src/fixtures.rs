//! PyTorch snapshots with the values of PyTorch's own counters (the ground truth).

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub use crate::snapshot_names::{LARGE, SMALL};

/// Recordings under `tests/data` whose ground truth covers every device, and whether their
/// history begins with the program.
pub const WITH_DEVICE_STATS: [(&str, bool); 11] = [
    ("alloc_stacks", true),
    ("annotated", true),
    ("compiled_graphs", true),
    ("cudnn_benchmark_all", true),
    ("late", false),
    ("ring_graphs_expandable", false),
    ("ring_threads", false),
    ("second_device", true),
    ("state_only", false),
    ("stopped", false),
    ("two_devices", true),
];

/// A recording and its ground truth.
#[derive(Clone, Debug)]
pub struct Fixture {
    /// The snapshot, a `.pickle.zst` or `.pickle.gz`.
    pub path: PathBuf,
    truth: Value,
}

impl Fixture {
    /// Reads a recording under `tests/data`.
    #[must_use]
    pub fn small(name: &str) -> Self {
        Self::load(&workspace_root().join("tests").join("data"), name)
    }

    /// Reads one of the larger recordings beside the checkout. Returns none if it is missing, with
    /// a message on stderr.
    #[must_use]
    pub fn large(name: &str) -> Option<Self> {
        let folder = workspace_root().join("..").join("shared").join("snapshots");
        if folder.join(format!("{name}.pickle.zst")).is_file() {
            return Some(Self::load(&folder, name));
        }
        eprintln!("SKIPPED: {} has no {name}", folder.display());
        None
    }

    /// Reads every recording in a folder, in order of name.
    #[must_use]
    pub fn all_in(folder: &Path) -> Vec<Self> {
        let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> =
            names.filter_map(|name| name.strip_suffix(".pickle.zst").map(str::to_owned)).collect();
        names.sort();
        names.iter().map(|name| Self::load(folder, name)).collect()
    }

    fn load(folder: &Path, name: &str) -> Self {
        let truth = folder.join(format!("{name}.json"));
        let text = fs::read_to_string(&truth).unwrap_or_else(|error| panic!("{}: {error}", truth.display()));
        let truth = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", truth.display()));
        let compressed = ["zst", "gz"].map(|end| folder.join(format!("{name}.pickle.{end}")));
        let path = compressed.into_iter().find(|path| path.is_file());
        let path = path.unwrap_or_else(|| panic!("{} has no snapshot {name}", folder.display()));
        Self { path, truth }
    }

    /// Returns the file's bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap_or_else(|error| panic!("{}: {error}", self.path.display()))
    }

    /// Returns the file's name.
    #[must_use]
    pub fn file_name(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Returns the ground truth as JSON; `tests/data/README.md` lists its keys.
    #[must_use]
    pub fn truth(&self) -> &Value {
        &self.truth
    }

    /// Returns the number of history entries of all devices.
    #[must_use]
    pub fn events(&self) -> u64 {
        match &self.truth["events"] {
            Value::Array(devices) => devices.iter().filter_map(Value::as_u64).sum(),
            other => other
                .as_u64()
                .unwrap_or_else(|| panic!("the ground truth of {} has no number of events", self.path.display())),
        }
    }

    /// Returns a value of `torch.cuda.memory_stats()` at the end of a recording of one device, for
    /// example `allocated_bytes.all.current`.
    #[must_use]
    pub fn stat(&self, key: &str) -> u64 {
        self.truth["stats"][key].as_u64().unwrap_or_else(|| panic!("{} has no statistic {key}", self.path.display()))
    }
}

/// Returns the path of a recording of the tour, in `tests/data/tour`.
#[must_use]
pub fn tour_recording(name: &str) -> PathBuf {
    workspace_root().join("tests").join("data").join("tour").join(format!("{name}.vram"))
}

/// Returns the root of the checkout.
#[must_use]
pub fn workspace_root() -> &'static Path {
    let this_crate = Path::new(env!("CARGO_MANIFEST_DIR"));
    this_crate.parent().unwrap_or(this_crate)
}
