//! Tests of `import` and `info`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use vramscope_trace::{Recording, digest};

use crate::process::{Finished, fixture, run};

/// Names of snapshots in `tests/data`.
const FIXTURES: [&str; 5] = ["tiny_inference", "mlp_train", "frag_a_expandable", "ring", "graphs"];

/// Returns the path of a snapshot in `tests/data`.
fn snapshot(name: &str) -> std::path::PathBuf {
    fixture(&format!("{name}.pickle.zst"))
}

/// Runs `import`.
#[track_caller]
fn import(input: &Path, output: &Path) -> Finished {
    let finished = run(["import".as_ref(), input.as_os_str(), "-o".as_ref(), output.as_os_str()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(finished.stdout, "");
    finished
}

/// Returns the output of `info --json`.
#[track_caller]
fn info(path: &Path) -> Value {
    let finished = run(["info".as_ref(), path.as_os_str(), "--json".as_ref()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(finished.stdout.lines().count(), 1, "stdout has one JSON object");
    serde_json::from_str(&finished.stdout).expect("the text is JSON")
}

/// Reads the recording at `path`.
fn recording(path: &Path) -> Recording {
    let mut recording = Recording::new();
    recording.push(&fs::read(path).expect("the file exists")).expect("a valid recording");
    recording.finish().expect("the recording is complete");
    recording
}

#[test]
fn imported_snapshot_has_the_same_summary_as_the_snapshot() {
    let folder = TempDir::new().expect("a temporary folder");
    for name in FIXTURES {
        let out = folder.path().join("out.vram");
        import(&snapshot(name), &out);
        let (mut before, mut after) = (info(&snapshot(name)), info(&out));
        assert_eq!(before["program"]["alloc_conf"], after["program"]["alloc_conf"]);
        let files = [&mut before, &mut after].map(|info| info["file"].take());
        assert_eq!(files, [&snapshot(name), &out].map(|path| path.to_str().expect("the path is Unicode")));
        let formats = [&mut before, &mut after].map(|info| info["format"].take());
        assert_eq!(formats[0]["name"], "pytorch-pickle");
        assert_eq!(formats[1], serde_json::json!({"name": "vramscope", "version": 1}));
        assert_eq!(before, after, "{name}");

        let reference: Value =
            serde_json::from_slice(&fs::read(fixture(&format!("{name}.json"))).expect("the reference file exists"))
                .expect("the text is JSON");
        let device = &after["devices"][0];
        assert_eq!(device["allocated_bytes"], reference["stats"]["allocated_bytes.all.current"], "{name}");
        assert_eq!(device["reserved_bytes"], reference["stats"]["reserved_bytes.all.current"], "{name}");
        assert_eq!(device["events"], reference["events"][0], "{name}");
        assert_eq!(device["history_complete"], name != "ring", "{name}");
        if name != "ring" {
            assert_eq!(device["peak_allocated_bytes"], reference["stats"]["allocated_bytes.all.peak"], "{name}");
            assert_eq!(device["peak_reserved_bytes"], reference["stats"]["reserved_bytes.all.peak"], "{name}");
        }
    }
}

#[test]
fn info_json_has_the_documented_fields() {
    let info = info(&snapshot("mlp_train"));
    let keys = |value: &Value| value.as_object().expect("the value is an object").keys().cloned().collect::<Vec<_>>();
    // Sorted, like the keys of this map.
    let expected = [
        "damage",
        "devices",
        "duration_ns",
        "events",
        "file",
        "format",
        "lacks_times",
        "lost_events",
        "notes",
        "program",
    ];
    assert_eq!(keys(&info), expected);
    assert_eq!(info["damage"], Value::Null);
    let expected = [
        "active_bytes",
        "allocated_bytes",
        "blocks",
        "device",
        "events",
        "fragmentation",
        "free_blocks",
        "free_bytes",
        "history_complete",
        "lacks_requested",
        "lacks_streams",
        "largest_free_bytes",
        "name",
        "ooms",
        "peak_active_bytes",
        "peak_active_event",
        "peak_allocated_bytes",
        "peak_allocated_event",
        "peak_reserved_bytes",
        "peak_reserved_event",
        "rank",
        "requested_bytes",
        "reserved_bytes",
        "segment_source",
        "segments",
        "total_bytes",
    ];
    assert_eq!(keys(&info["devices"][0]), expected);
}

#[test]
fn info_text_is_a_table() {
    let finished = run(["info".as_ref(), snapshot("frag_a_expandable").as_os_str()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    for line in ["at the end", "allocated", "reserved", "MiB", "expandable_segments:True", "device 0", "complete"] {
        assert!(finished.stdout.contains(line), "no {line:?} in\n{}", finished.stdout);
    }
    let (verdict, table) = finished.stdout.split_once('\n').expect("lines");
    assert!(verdict.contains("failed by fragmentation"), "{verdict}");
    assert!(table.lines().all(|line| line.len() <= 120 && line == line.trim_end()), "{table}");
}

#[test]
fn info_reads_its_input_once() {
    let finished = run(["info".as_ref(), fixture("late.pickle.gz").as_os_str()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let notes: Vec<&str> = finished.stderr.lines().collect();
    let distinct: BTreeSet<&str> = notes.iter().copied().collect();
    assert!(!notes.is_empty() && notes.len() == distinct.len(), "{}", finished.stderr);
}

#[test]
fn importing_a_recording_copies_it() {
    let folder = TempDir::new().expect("a temporary folder");
    let (first, second) = (folder.path().join("first.vram"), folder.path().join("second.vram"));
    import(&snapshot("mlp_train"), &first);
    import(&first, &second);
    assert!(fs::read(&first).expect("the file was written") == fs::read(&second).expect("the file was written"));
    // The output may be the input.
    import(&second, &second);
    assert_eq!(digest(recording(&first).end_state()), digest(recording(&second).end_state()));
    assert_eq!(fs::read_dir(folder.path()).expect("the folder can be read").count(), 2, "no other file is left");
}

#[test]
fn truncated_recording_is_read_up_to_the_last_complete_chunk() {
    let folder = TempDir::new().expect("a temporary folder");
    let (whole, cut, repaired) =
        (folder.path().join("whole.vram"), folder.path().join("cut.vram"), folder.path().join("repaired.vram"));
    import(&snapshot("mlp_train"), &whole);
    let bytes = fs::read(&whole).expect("the file was written");
    let all = recording(&whole).end_event();
    let mut usable = 0;
    for length in [0, 1, 11, 12, 20, bytes.len() / 4, bytes.len() / 2, bytes.len() * 9 / 10, bytes.len() - 1] {
        fs::write(&cut, &bytes[..length]).expect("the file is writable");
        let finished = run(["info".as_ref(), cut.as_os_str(), "--json".as_ref()]);
        assert_eq!(finished.stderr.lines().count(), 1, "{length}: {}", finished.stderr);
        if finished.code == Some(2) {
            assert_eq!(finished.stdout, "");
            assert!(finished.stderr.contains("cut.vram: at byte "), "{length}: {}", finished.stderr);
            continue;
        }
        assert_eq!(finished.code, Some(0));
        usable += 1;
        assert!(finished.stderr.contains("ends inside a chunk"), "{}", finished.stderr);
        let info: Value = serde_json::from_str(&finished.stdout).expect("the text is JSON");
        assert!(info["events"].as_u64().is_some_and(|events| events <= all));
        let damage = info["damage"].as_str().expect("the file is cut off");
        assert!(damage.starts_with("at byte ") && finished.stderr.contains(damage), "{damage}: {}", finished.stderr);
        import(&cut, &repaired);
        assert_eq!(Some(recording(&repaired).end_event()), info["events"].as_u64());
    }
    assert!(usable >= 4, "{usable} of the truncated files were usable");
}
