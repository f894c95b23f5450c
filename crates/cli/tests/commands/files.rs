//! `import` and `info`.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use vramscope_trace::{Recording, digest};

use crate::program::{Finished, fixture, run};

const FIXTURES: [&str; 5] = ["tiny_inference", "mlp_train", "frag_a_expandable", "ring", "graphs"];

fn snapshot(name: &str) -> std::path::PathBuf {
    fixture(&format!("{name}.pickle.zst"))
}

#[track_caller]
fn import(input: &Path, output: &Path) -> Finished {
    let finished = run(["import".as_ref(), input.as_os_str(), "-o".as_ref(), output.as_os_str()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(finished.stdout, "");
    finished
}

#[track_caller]
fn info(path: &Path) -> Value {
    let finished = run(["info".as_ref(), path.as_os_str(), "--json".as_ref()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(finished.stdout.lines().count(), 1, "one object and nothing else");
    serde_json::from_str(&finished.stdout).expect("JSON")
}

fn recording(path: &Path) -> Recording {
    let mut recording = Recording::new();
    recording.push(&fs::read(path).expect("the file is there")).expect("a recording");
    recording.finish().expect("a whole one");
    recording
}

#[test]
fn a_snapshot_says_the_same_before_and_after_it_is_imported() {
    let folder = TempDir::new().expect("a folder");
    for name in FIXTURES {
        let out = folder.path().join("out.vram");
        import(&snapshot(name), &out);
        let (mut before, mut after) = (info(&snapshot(name)), info(&out));
        let formats = [&mut before, &mut after].map(|info| info["format"].take());
        assert_eq!(formats[0]["name"], "pytorch-pickle");
        assert_eq!(formats[1], serde_json::json!({"name": "vramscope", "version": 1}));
        assert_eq!(before, after, "{name}");

        let truth: Value =
            serde_json::from_slice(&fs::read(fixture(&format!("{name}.json"))).expect("the truth")).expect("JSON");
        let device = &after["devices"][0];
        assert_eq!(device["allocated_bytes"], truth["stats"]["allocated_bytes.all.current"], "{name}");
        assert_eq!(device["reserved_bytes"], truth["stats"]["reserved_bytes.all.current"], "{name}");
        assert_eq!(device["events"], truth["events"][0], "{name}");
        assert_eq!(device["history_complete"], name != "ring", "{name}");
        if name != "ring" {
            assert_eq!(device["peak_allocated_bytes"], truth["stats"]["allocated_bytes.all.peak"], "{name}");
            assert_eq!(device["peak_reserved_bytes"], truth["stats"]["reserved_bytes.all.peak"], "{name}");
        }
    }
}

#[test]
fn info_has_the_promised_fields_and_no_others() {
    let info = info(&snapshot("mlp_train"));
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    // Sorted, as this map is.
    assert_eq!(keys(&info), ["devices", "duration_ns", "events", "format", "lost_events"]);
    let expected = [
        "active_bytes",
        "allocated_bytes",
        "blocks",
        "device",
        "events",
        "history_complete",
        "name",
        "ooms",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "rank",
        "requested_bytes",
        "reserved_bytes",
        "segments",
    ];
    assert_eq!(keys(&info["devices"][0]), expected);
}

#[test]
fn info_is_a_table_for_people() {
    let finished = run(["info".as_ref(), snapshot("frag_a_expandable").as_os_str()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    for line in ["at the end", "allocated", "reserved", "MiB", "expandable_segments:True", "device 0", "complete"] {
        assert!(finished.stdout.contains(line), "no {line:?} in\n{}", finished.stdout);
    }
    assert!(finished.stdout.lines().all(|line| line.len() <= 120 && line == line.trim_end()), "{}", finished.stdout);
}

#[test]
fn an_imported_recording_imports_as_it_is() {
    let folder = TempDir::new().expect("a folder");
    let (first, second) = (folder.path().join("first.vram"), folder.path().join("second.vram"));
    import(&snapshot("mlp_train"), &first);
    import(&first, &second);
    assert!(fs::read(&first).expect("written") == fs::read(&second).expect("written"));
    // Onto itself, too.
    import(&second, &second);
    assert_eq!(digest(recording(&first).end_state()), digest(recording(&second).end_state()));
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 2, "nothing is left beside them");
}

#[test]
fn a_cut_recording_is_used_as_far_as_it_is_whole() {
    let folder = TempDir::new().expect("a folder");
    let (whole, cut, mended) =
        (folder.path().join("whole.vram"), folder.path().join("cut.vram"), folder.path().join("mended.vram"));
    import(&snapshot("mlp_train"), &whole);
    let bytes = fs::read(&whole).expect("written");
    let all = recording(&whole).end_event();
    let mut usable = 0;
    for length in [0, 1, 11, 12, 20, bytes.len() / 4, bytes.len() / 2, bytes.len() * 9 / 10, bytes.len() - 1] {
        fs::write(&cut, &bytes[..length]).expect("a small file");
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
        let info: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        assert!(info["events"].as_u64().is_some_and(|events| events <= all));
        import(&cut, &mended);
        assert_eq!(Some(recording(&mended).end_event()), info["events"].as_u64());
    }
    assert!(usable >= 4, "{usable} of the pieces were of use");
}
