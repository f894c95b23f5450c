//! Tests of `verify` and `simulate`.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use vramscope_trace::{
    DeviceId, Encoder, Event, EventKind, MemoryState, PoolKey, Recording, RecordingInfo, Replay, Sink, SiteId, StreamId,
};

use crate::process::{Finished, fixture, run};

/// The recordings of the repository, with the limits of the recorded processes.
const FIXTURES: [(&str, Option<&str>); 5] = [
    ("tiny_inference", None),
    ("mlp_train", None),
    ("frag_a_expandable", Some("1GiB")),
    ("ring", None),
    ("graphs", None),
];

/// Returns the path of a snapshot in `tests/data`.
fn snapshot(name: &str) -> String {
    fixture(&format!("{name}.pickle.zst")).to_str().expect("the path is Unicode").to_owned()
}

/// Parses the JSON output of a command.
#[track_caller]
fn json(finished: &Finished) -> Value {
    assert_eq!(finished.stdout.lines().count(), 1, "stdout has one JSON object: {}", finished.stderr);
    serde_json::from_str(&finished.stdout).expect("the text is JSON")
}

/// Returns the keys of a JSON object.
fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("the value is an object").keys().map(String::as_str).collect()
}

#[test]
fn verify_matches_every_recorded_event() {
    for (name, limit) in FIXTURES {
        let path = snapshot(name);
        let mut arguments = vec!["verify", &path, "--json"];
        arguments.extend(limit.into_iter().flat_map(|limit| ["--limit-bytes", limit]));
        let finished = run(&arguments);
        assert_eq!(finished.code, Some(0), "{name}: {} {}", finished.stdout, finished.stderr);
        let report = json(&finished);
        assert_eq!(keys(&report), ["devices"]);
        let device = &report["devices"][0];
        assert_eq!(
            keys(device),
            ["assumed_private_pools", "device", "divergence", "events", "matched", "requests"],
            "{name}"
        );
        assert_eq!(device["divergence"], Value::Null, "{name}");
        assert_eq!(device["matched"], device["events"], "{name}");
        let reference: Value =
            serde_json::from_slice(&fs::read(fixture(&format!("{name}.json"))).expect("the reference file exists"))
                .expect("the text is JSON");
        assert_eq!(device["events"], reference["events"][0], "{name}");
    }
}

/// Writes the events of a recording to `path`. `change` receives the recording's description, and
/// `change_event` each event with its number, which begins at 1.
fn write_changed(
    name: &str,
    path: &Path,
    change: impl FnOnce(&mut RecordingInfo),
    mut change_event: impl FnMut(u64, &mut Event),
) {
    let import = path.with_extension("whole.vram");
    let finished = run(["import".as_ref(), snapshot(name).as_ref(), "-o".as_ref(), import.as_os_str()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let mut recording = Recording::new();
    recording.push(&fs::read(&import).expect("import has written its file")).expect("a valid recording");
    let mut info = recording.info().clone();
    change(&mut info);
    let (mut encoder, mut replay) = (Encoder::new(&info), Replay::new());
    for number in 0..recording.end_event() {
        let mut event =
            replay.event(&recording, number).expect("the chunk is readable").expect("the recording has no gap");
        change_event(number + 1, &mut event);
        encoder.event(&event);
    }
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    fs::write(path, bytes).expect("the file is writable");
}

/// Writes a recording to `path` with its `n`th block at another address. Returns the number of the
/// event that allocates this block.
fn write_altered(name: &str, n: usize, path: &Path) -> u64 {
    let (mut blocks, mut changed) = (0, 0);
    let no_change = |_: &mut RecordingInfo| {};
    write_changed(name, path, no_change, |number, event| {
        if let EventKind::BlockAllocated { address, .. } = &mut event.kind {
            blocks += 1;
            if blocks == n {
                *address += 512;
                changed = number;
            }
        }
    });
    changed
}

#[test]
fn verify_reports_an_altered_event() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().join("altered.vram");
    let changed = write_altered("mlp_train", 100, &path);
    let path = path.to_str().expect("the path is Unicode");
    let finished = run(["verify", path, "--json"]);
    assert_eq!(finished.code, Some(1), "{}", finished.stderr);
    let device = &json(&finished)["devices"][0];
    assert_eq!(device["matched"], changed - 1);
    assert_eq!(keys(&device["divergence"]), ["event", "expected", "got"]);
    assert_eq!(device["divergence"]["event"], changed);
    let finished = run(["verify", path]);
    assert_eq!(finished.code, Some(1));
    for word in ["device 0", "recorded: a block of", "the pool: a block of"] {
        assert!(finished.stdout.contains(word), "no {word:?} in {}", finished.stdout);
    }
}

/// Settings of a later version of PyTorch are skipped in a recording, and refused from a user.
#[test]
fn unknown_recorded_settings_are_skipped_with_a_note() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().join("later.vram");
    let conf = "page_size:1g,throw_on_cudamalloc_oom:True,expandable_segments:True";
    write_changed("frag_a_expandable", &path, |info| info.alloc_conf = conf.to_owned(), |_, _| {});
    let path = path.to_str().expect("the path is Unicode");
    let notes = ["character 1: unknown setting \"page_size\"", "does not follow throw_on_cudamalloc_oom"];
    for arguments in [
        ["verify", path, "--limit-bytes", "1GiB"].as_slice(),
        &["simulate", path, "--limit-bytes", "1GiB", "--alloc-conf", "expandable_segments:False"],
        &["advise", path, "--limit-bytes", "1GiB"],
    ] {
        let finished = run(arguments);
        assert_eq!(finished.code, Some(0), "{arguments:?}: {} {}", finished.stdout, finished.stderr);
        for note in notes {
            assert!(finished.stderr.contains(note), "{arguments:?}: no {note:?} in {}", finished.stderr);
        }
    }
    let shown = json(&run(["info", path, "--json"]))["notes"].to_string().replace("\\\"", "\"");
    for note in notes {
        assert!(shown.contains(note), "no {note:?} in {shown}");
    }
    let refused = run(["simulate", path, "--limit-bytes", "1GiB", "--alloc-conf", conf]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains(notes[0]), "{}", refused.stderr);
}

#[test]
fn simulate_compares_settings() {
    let path = snapshot("frag_a_expandable");
    let finished =
        run(["simulate", &path, "--alloc-conf", "expandable_segments:True", "--limit-bytes", "1GiB", "--json"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let report = json(&finished);
    let device = &report["devices"][0];
    assert_eq!(keys(device), ["capacity_bytes", "device", "recorded", "simulated", "stops_at_gap", "unverified_from"]);
    assert_eq!(device["stops_at_gap"], false);
    assert_eq!(device["capacity_bytes"], 1 << 30);
    assert_eq!(device["unverified_from"], Value::Null);
    let figures =
        ["device_allocations", "ooms", "peak_allocated_bytes", "peak_fragmentation", "peak_reserved_bytes", "retries"];
    assert_eq!(keys(&device["recorded"]), figures);
    assert_eq!(device["recorded"], device["simulated"], "the recorded settings give the recorded figures");
    assert_eq!(device["recorded"]["retries"], 4);
    let finished = run(["simulate", &path, "--alloc-conf", "", "--capacity", "2G", "--json"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let device = &json(&finished)["devices"][0];
    assert_eq!(device["recorded"]["ooms"], 4);
    assert_eq!(device["simulated"]["ooms"], 0);
    assert!(device["simulated"]["peak_fragmentation"].as_f64().is_some_and(|value| (0.0..1.0).contains(&value)));
    let finished = run(["simulate", &path, "--alloc-conf", ""]);
    for line in ["recorded", "simulated", "peak reserved", "out of memory", "retries", "peak fragmentation"] {
        assert!(finished.stdout.contains(line), "no {line:?} in {}", finished.stdout);
    }
}

/// Tests both kinds of gaps: events that the program lost (an event reports this), and event
/// numbers that a reader missed because it received a later full state instead.
#[test]
fn simulate_and_advise_stop_at_a_gap() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().join("gap.vram");
    let (pool, stream, site) = (PoolKey::default(), StreamId(0), SiteId(0));
    let segment = EventKind::SegmentAllocated { address: 1 << 21, size: 1 << 21, stream, pool, site };
    let [first, second] = [1 << 21, (1 << 21) + 512].map(|address| EventKind::BlockAllocated {
        address,
        size: 512,
        requested: 512,
        stream,
        pool,
        site,
    });
    let gap = EventKind::Gap { lost: 7 };
    for (before, lost) in [(&[segment, first, gap][..], &[][..]), (&[segment, first], &[gap])] {
        let (mut encoder, mut state) = (Encoder::new(&RecordingInfo::default()), MemoryState::default());
        for (kinds, is_sent) in [(before, true), (lost, false), (&[second], true)] {
            for event in kinds.iter().map(|&kind| Event { device: DeviceId(0), time_ns: 5, kind }) {
                if is_sent {
                    encoder.event(&event);
                }
                state.apply(&event);
            }
            encoder.skip_to(state.event());
            encoder.replace_state(&state);
        }
        encoder.flush();
        let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
        fs::write(&path, bytes).expect("the file is writable");
        let finished = run(["simulate", path.to_str().expect("the path is Unicode"), "--alloc-conf", "", "--json"]);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let device = &json(&finished)["devices"][0];
        assert_eq!(
            (&device["stops_at_gap"], &device["simulated"]["peak_allocated_bytes"]),
            (&true.into(), &512.into())
        );
        assert!(finished.stderr.contains("events are missing; only those before are simulated"), "{}", finished.stderr);
        let finished = run(["advise", path.to_str().expect("the path is Unicode"), "--json"]);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let device = &json(&finished)["devices"][0];
        assert_eq!((&device["stops_at_gap"], &device["floor_bytes"]), (&true.into(), &512.into()));
        assert!(finished.stderr.contains("events are missing; only those before are simulated"), "{}", finished.stderr);
    }
}

#[test]
fn invalid_settings_are_errors() {
    let path = snapshot("mlp_train");
    let finished = run(["simulate", &path, "--alloc-conf", "expandable:True"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""));
    assert!(finished.stderr.contains("expandable"), "{}", finished.stderr);
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    assert_eq!(run(["verify", "nowhere.vram"]).code, Some(2));
}

#[test]
fn shares_of_the_capacity_need_a_capacity() {
    let path = snapshot("mlp_train");
    for conf in ["per_process_memory_fraction:0.5", "garbage_collection_threshold:0.5"] {
        let finished = run(["simulate", &path, "--alloc-conf", conf]);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""));
        assert!(finished.stderr.contains("needs the device's size"), "{}", finished.stderr);
        assert!(finished.stderr.contains("--capacity"), "{}", finished.stderr);
        assert_eq!(run(["simulate", &path, "--alloc-conf", conf, "--capacity", "1GB"]).code, Some(0));
    }
    let no_memory =
        ["simulate", &path, "--alloc-conf", "per_process_memory_fraction:0", "--capacity", "1000000000", "--json"];
    assert!(json(&run(no_memory))["devices"][0]["simulated"]["ooms"].as_u64() > Some(0));
}
