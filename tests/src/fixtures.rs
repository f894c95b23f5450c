//! Real recordings with what PyTorch's own counters said of them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The recordings under `tests/data`.
pub const SMALL: [&str; 5] = ["tiny_inference", "mlp_train", "frag_a_expandable", "ring", "graphs"];

/// Those under `tests/data` with what PyTorch said of each device, and whether their history begins with the program.
pub const OF_EACH_DEVICE: [(&str, bool); 11] = [
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

/// The larger recordings, kept beside the checkout, but for `big`.
pub const LARGE: [&str; 10] = [
    "cppstacks",
    "frag_a",
    "frag_a_gc",
    "frag_a_maxsplit",
    "frag_a_roundup",
    "gpt_varlen",
    "gpt_varlen_expandable",
    "oom_frag",
    "resnet50_train",
    "two_gpus",
];

/// A recording and its ground truth.
#[derive(Clone, Debug)]
pub struct Fixture {
    /// The snapshot, a `.pickle.zst` or `.pickle.gz`.
    pub path: PathBuf,
    truth: Value,
}

impl Fixture {
    /// One of those under `tests/data`.
    #[must_use]
    pub fn small(name: &str) -> Self {
        Self::load(&workspace_root().join("tests").join("data"), name)
    }

    /// One of the larger recordings kept beside the checkout, or none where that folder is absent; that is then said on stderr.
    #[must_use]
    pub fn large(name: &str) -> Option<Self> {
        let folder = workspace_root().join("..").join("shared").join("snapshots");
        if folder.join(format!("{name}.pickle.zst")).is_file() {
            return Some(Self::load(&folder, name));
        }
        eprintln!("SKIPPED: {name} is not there ({} has the larger recordings)", folder.display());
        None
    }

    /// Every recording in a folder, in order of name.
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
        let packed = ["zst", "gz"].map(|end| folder.join(format!("{name}.pickle.{end}")));
        let path = packed.into_iter().find(|path| path.is_file());
        let path = path.unwrap_or_else(|| panic!("{} has no snapshot {name}", folder.display()));
        Self { path, truth }
    }

    /// The snapshot's bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap_or_else(|error| panic!("{}: {error}", self.path.display()))
    }

    /// The file's name.
    #[must_use]
    pub fn file_name(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// All that is known of it.
    #[must_use]
    pub fn truth(&self) -> &Value {
        &self.truth
    }

    /// How many entries its history has, on all devices.
    #[must_use]
    pub fn events(&self) -> u64 {
        match &self.truth["events"] {
            Value::Array(devices) => devices.iter().filter_map(Value::as_u64).sum(),
            other => other.as_u64().unwrap_or_else(|| panic!("{} names no number of events", self.path.display())),
        }
    }

    /// What `torch.cuda.memory_stats()` said at the end of a recording of one device, `allocated_bytes.all.current` for example.
    #[must_use]
    pub fn stat(&self, key: &str) -> u64 {
        self.truth["stats"][key].as_u64().unwrap_or_else(|| panic!("{} has no statistic {key}", self.path.display()))
    }
}

/// The root of the checkout.
#[must_use]
pub fn workspace_root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}
