//! The memory summary against `torch.cuda.memory_stats()` and PyTorch's own table.

use std::fs;
use std::path::PathBuf;

use vramscope_insight::memory_summary::MemorySummaryScan;
use vramscope_trace::{DeviceId, Recording};

use crate::recordings::snapshot;

/// Returns the folder of the recordings beside the checkout.
fn shared() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/snapshots")
}

/// Returns the recordings beside the checkout for which `select` returns true, with their names and
/// ground truth; none, with a message, if the folder is missing.
pub(crate) fn shared_snapshots(select: impl Fn(&str) -> bool) -> Vec<(String, Recording, String)> {
    let Ok(files) = fs::read_dir(shared()) else {
        println!("SKIPPED: {} does not exist", shared().display());
        return Vec::new();
    };
    let names = files.map(|file| file.expect("the folder can be listed").file_name().to_string_lossy().into_owned());
    let selected = names.filter(|name| name.contains(".pickle") && select(name));
    selected
        .map(|name| {
            let recording = snapshot(&format!("../../../shared/snapshots/{name}"));
            let truth = fs::read_to_string(shared().join(name.replace(".pickle.zst", ".json")));
            (name, recording, truth.expect("each recording has a ground truth"))
        })
        .collect()
}

/// Returns the ground truth of a recording of `tests/data`.
pub(crate) fn truth_file(name: &str) -> String {
    let name = name.split(".pickle").next().unwrap_or(name);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(format!("{name}.json"));
    fs::read_to_string(path).expect("each recording has a ground truth")
}

/// Returns a number of the ground truth: a key of the device's `memory_stats`, or of the file
/// itself.
pub(crate) fn truth(text: &str, device: DeviceId, key: &str) -> Option<u64> {
    let (text, index) = match text.find("\"device_stats\"") {
        Some(at) => (&text[at..], usize::from(device.0)),
        None if device == DeviceId(0) => (text, 0),
        None => return None,
    };
    let key = format!("\"{key}\":");
    let (at, _) = text.match_indices(&key).nth(index)?;
    let number = text[at + key.len()..].trim_start();
    number[..number.find(|char: char| !char.is_ascii_digit())?].parse().ok()
}

/// Compares the summary at the end of a recording with PyTorch's counters. Returns true if the
/// history was complete, so that peaks and sums were compared, too.
fn check(name: &str, recording: &Recording, text: &str, device: DeviceId) -> bool {
    let mut scan = MemorySummaryScan::new(recording, device, recording.end_event()).expect("it is loaded");
    while !scan.step(recording, 1000).expect("it is loaded") {}
    let summary = scan.summary();
    let mut compared = 0;
    for row in summary.rows() {
        let [small, large] = row.by_class.map_or([None, None], |classes| classes.map(Some));
        let by_class = row.by_class.is_some();
        let prefix = |class: &str| if by_class { format!("{}.{class}", row.key) } else { row.key.to_owned() };
        for (class, values) in [("all", Some(row.all)), ("small_pool", small), ("large_pool", large)] {
            let Some(values) = values else { continue };
            let prefix = prefix(class);
            let parts = [
                ("current", Some(values.current)),
                ("peak", values.peak),
                ("allocated", values.allocated_total),
                ("freed", values.freed_total),
            ];
            for (part, value) in parts {
                let expected = truth(text, device, &format!("{prefix}.{part}"));
                if let Some(value) = value {
                    assert_eq!(Some(value), expected, "{name}, {device}: {prefix}.{part}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared >= 29, "{name}");
    for (value, key) in [(summary.ooms(), "num_ooms"), (summary.retries(), "num_alloc_retries")] {
        if value.is_some() {
            assert_eq!(value, truth(text, device, key), "{name}, {device}: {key}");
        }
    }
    summary.is_complete
}

#[test]
fn summary_equals_pytorchs_counters() {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let files = fs::read_dir(data).expect("the folder exists");
    let names = files.map(|file| file.expect("the folder can be listed").file_name().to_string_lossy().into_owned());
    let mut recordings: Vec<_> =
        names.filter(|name| name.contains(".pickle")).map(|name| (snapshot(&name), truth_file(&name), name)).collect();
    let shared = shared_snapshots(|name| !name.starts_with("big"));
    recordings.extend(shared.into_iter().map(|(name, recording, text)| (recording, text, name)));
    let (mut complete, mut incomplete) = (Vec::new(), Vec::new());
    for (recording, text, name) in &recordings {
        for device in recording.devices().filter(|&device| truth(text, device, "num_ooms").is_some()) {
            let is_complete = check(name, recording, text, device);
            if is_complete { &mut complete } else { &mut incomplete }.push((name.as_str(), device));
        }
    }
    assert!(complete.len() >= 10, "incomplete: {incomplete:?}");
    for name in ["ring.pickle.zst", "late.pickle.gz", "state_only.pickle.gz"] {
        assert!(incomplete.iter().any(|&(other, _)| other == name), "{name}: {complete:?}");
    }
}

#[test]
fn table_equals_pytorchs() {
    for name in ["mlp_train.pickle.zst", "frag_a_expandable.pickle.zst"] {
        let recording = snapshot(name);
        let mut scan = MemorySummaryScan::new(&recording, DeviceId(0), u64::MAX).expect("it is loaded");
        while !scan.step(&recording, 100).expect("it is loaded") {}
        let table = scan.summary().pytorch_table().expect("the history is complete");
        let text = truth_file(name);
        let at = text.find("\"summary\": \"").expect("the ground truth has a table") + "\"summary\": \"".len();
        let expected = text[at..].split('"').next().unwrap_or_default().replace("\\n", "\n");
        assert_eq!(table.trim_end(), expected.trim_end(), "{name}");
    }
}

#[test]
fn summary_continues_forward_and_equals_a_new_one() {
    let recording = snapshot("frag_a_expandable.pickle.zst");
    let scan = |moment| {
        let mut scan = MemorySummaryScan::new(&recording, DeviceId(0), moment).expect("it is loaded");
        while !scan.step(&recording, u64::MAX).expect("it is loaded") {}
        scan
    };
    let mut first = scan(700);
    assert_eq!((first.moment(), first.summary().event), (700, 700));
    assert!(!first.continue_to(&recording, 600));
    assert!(first.continue_to(&recording, 1500));
    while !first.step(&recording, 7).expect("it is loaded") {}
    assert_eq!(first.summary(), scan(1500).summary());
}
