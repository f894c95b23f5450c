//! Tests of `export` and `--redact`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use vramscope_trace::{
    AnnotationStage, Chunk, ChunkKind, Definition, DeviceId, Encoder, Event, EventKind, MemoryState, PoolKey, PoolKind,
    Recording, RecordingInfo, Replay, Segment, Sink, SiteId, StreamId, StringId,
};

use crate::process::{Finished, fixture, run};

/// Returns the path of the exported snapshot.
fn snapshot() -> PathBuf {
    fixture("mlp_train.pickle.zst")
}

/// Runs `export` with further arguments `more`.
fn export(input: &Path, to: &str, output: &Path, more: &[&str]) -> Finished {
    let start = [OsStr::new("export"), input.as_os_str(), OsStr::new("--to"), OsStr::new(to), OsStr::new("-o")];
    run(start.into_iter().chain([output.as_os_str()]).chain(more.iter().map(OsStr::new)))
}

/// Returns the output of `info --json`, without the fields that an export changes.
#[track_caller]
fn info(path: &Path) -> Value {
    let finished = run(["info".as_ref(), path.as_os_str(), "--json".as_ref()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let mut info: Value = serde_json::from_str(&finished.stdout).expect("the text is JSON");
    // These fields differ between a file and its export.
    info["file"].take();
    info["format"].take();
    info["program"].take();
    info
}

/// Returns true if the bytes contain `text`.
fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn exported_snapshot_has_the_same_summary() {
    let folder = TempDir::new().expect("a temporary folder");
    for ending in ["pickle", "pkl", "json", "JSON"] {
        let out = folder.path().join(format!("out.{ending}"));
        let finished = export(&snapshot(), "memory-viz", &out, &[]);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), ""), "{}", finished.stderr);
        assert!(finished.stderr.contains(" events, "), "{}", finished.stderr);
        assert_eq!(info(&out), info(&snapshot()), "{ending}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("the folder can be read").count(), 4, "no other file is left");
}

#[test]
fn intact_part_of_a_damaged_recording_is_exported() {
    let folder = TempDir::new().expect("a temporary folder");
    let [recording, out] = ["damaged.vram", "out.csv"].map(|name| folder.path().join(name));
    let finished = run(["import".as_ref(), snapshot().as_os_str(), "-o".as_ref(), recording.as_os_str()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let mut bytes = fs::read(&recording).expect("the recording exists");
    let mut at = 0;
    while let Some(chunk) = Chunk::read(&bytes[at..], at as u64).expect("a valid recording") {
        at += chunk.bytes.len();
        if chunk.kind == ChunkKind::Events {
            bytes[at - 1] ^= 1;
            break;
        }
    }
    fs::write(&recording, bytes).expect("the file is writable");
    let finished = export(&recording, "csv", &out, &[]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(finished.stderr.contains("; 1,306 events are lost"), "{}", finished.stderr);
    assert!(finished.stderr.contains("checksum"), "{}", finished.stderr);
    assert!(!fs::read(&out).expect("the table exists").is_empty());
}

#[test]
fn failed_export_leaves_and_overwrites_no_file() {
    let folder = TempDir::new().expect("a temporary folder");
    let check = |input: &Path, output: &str, expected: &str| {
        let finished = export(input, "memory-viz", &folder.path().join(output), &[]);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{finished:?}");
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        assert!(finished.stderr.contains(expected), "no {expected:?} in {}", finished.stderr);
    };
    check(&snapshot(), "out.svg", ".pickle");
    check(&snapshot(), "out", ".pickle");
    check(&fixture("mlp_train.json"), "out.json", "at byte");
    check(Path::new("nowhere.pickle"), "out.json", "nowhere.pickle");
    check(&snapshot(), "no/such/folder.json", "there is no folder");
    assert_eq!(fs::read_dir(folder.path()).expect("the folder can be read").count(), 0);

    let input = folder.path().join("run.json");
    assert_eq!(export(&snapshot(), "memory-viz", &input, &[]).code, Some(0));
    let before = fs::read(&input).expect("the export exists");
    check(&input, "run.json", "is the input");
    assert_eq!(fs::read(&input).expect("the input exists"), before);
}

/// Texts in the snapshot: names of files, functions and annotations, and the snapshot's own name.
const NAMES: [&str; 6] = ["train.py", "site-packages", "_apply", "adam", "Optimizer.step", "mlp_train"];

#[test]
fn redacted_exports_contain_no_name() {
    let folder = TempDir::new().expect("a temporary folder");
    let formats = ["memory-viz", "memory-viz", "perfetto", "tensorboard", "csv", "parquet"];
    let endings = ["pickle", "json", "pftrace", "events", "csv", "parquet"];
    for (to, ending) in formats.into_iter().zip(endings) {
        for (redact, folder) in
            [(&["--redact"][..], folder.path().join("redacted")), (&[], folder.path().join("plain"))]
        {
            fs::create_dir_all(&folder).expect("a temporary folder");
            let out = folder.join(format!("out.{ending}"));
            let finished = export(&snapshot(), to, &out, redact);
            assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        }
    }
    let redacted = files_in(&folder.path().join("redacted"));
    assert_eq!(redacted.len(), 8, "two of the formats consist of two files");
    for (path, bytes) in &redacted {
        for name in NAMES {
            assert!(!contains(bytes, name), "{name} in {}", path.display());
        }
    }
    let plain = files_in(&folder.path().join("plain"));
    for name in NAMES.iter().filter(|name| **name != "mlp_train") {
        assert!(plain.iter().any(|(_, bytes)| contains(bytes, name)), "{name} is in no unredacted export");
    }
}

/// Returns every file below a folder with its content.
fn files_in(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries =
        fs::read_dir(folder).expect("the folder can be read").map(|entry| entry.expect("the entry can be read").path());
    let each = |path: PathBuf| {
        if path.is_dir() {
            files_in(&path)
        } else {
            vec![(path.clone(), fs::read(&path).expect("the file is writable"))]
        }
    };
    entries.flat_map(each).collect()
}

#[test]
fn redacted_recording_has_the_same_summary() {
    let folder = TempDir::new().expect("a temporary folder");
    let import = |input: &Path, output: &Path, more: &[&str]| {
        let start = [OsStr::new("import"), input.as_os_str(), OsStr::new("-o"), output.as_os_str()];
        let finished = run(start.into_iter().chain(more.iter().map(OsStr::new)));
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    };
    let [plain, one, other] = ["plain.vram", "one.vram", "other.vram"].map(|name| folder.path().join(name));
    import(&snapshot(), &plain, &[]);
    import(&snapshot(), &one, &["--redact"]);
    import(&plain, &other, &["--redact"]);
    assert_eq!(info(&one), info(&plain));
    assert_eq!(info(&other), info(&plain));

    let json = folder.path().join("out.json");
    for redacted in [one, other] {
        assert_eq!(export(&redacted, "memory-viz", &json, &[]).code, Some(0));
        let text = fs::read_to_string(&json).expect("the export exists");
        for name in NAMES {
            assert!(!text.contains(name), "{name} in {}", redacted.display());
        }
        assert!(["function_1", "file_1", "mark_1"].iter().all(|placeholder| text.contains(placeholder)));
    }

    // Redacting in place would lose the names.
    let finished =
        run([OsStr::new("import"), plain.as_os_str(), "-o".as_ref(), plain.as_os_str(), "--redact".as_ref()]);
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
}

/// Returns a recording that begins at event 1000 and has a gap.
fn late_recording() -> Vec<u8> {
    let mut encoder = Encoder::new(&RecordingInfo { source: "late_program".to_owned(), ..RecordingInfo::default() });
    let mut state = MemoryState::default();
    let (pool, site) = (PoolKey::default_of(PoolKind::Small), SiteId(0));
    let (address, size, stream, expandable, since_event) = (1 << 20, 2 << 20, StreamId(0), false, 0);
    let segment = Segment { address, size, stream, pool, expandable, site, since_event };
    state.device_mut(DeviceId(0)).insert_segment(segment);
    encoder.define(&Definition::String("late_step".to_owned()));
    for begin in [1000, 5000] {
        encoder.skip_to(begin);
        encoder.replace_state(&state);
        for number in 0..10 {
            let kind = EventKind::Mark { stage: AnnotationStage::Instant, name: StringId(1), address: 0, site };
            encoder.event(&Event { device: DeviceId(0), time_ns: (begin + number) * 1000, kind });
        }
    }
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

#[test]
fn redacting_keeps_event_numbers() {
    let folder = TempDir::new().expect("a temporary folder");
    let [late, redacted] = ["late.vram", "redacted.vram"].map(|name| folder.path().join(name));
    fs::write(&late, late_recording()).expect("the file is writable");
    let finished =
        run([OsStr::new("import"), late.as_os_str(), "-o".as_ref(), redacted.as_os_str(), "--redact".as_ref()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let [before, after] = [late, redacted].map(|path| {
        let bytes = fs::read(path).expect("a valid recording");
        let mut recording = Recording::new();
        recording.push(&bytes).expect("a valid recording");
        let mut replay = Replay::new();
        let event =
            |number| replay.event(&recording, number).expect("the chunk is readable").map(|event| event.time_ns);
        let times: Vec<_> = (0..5100).map(event).collect();
        (recording.first_event(), recording.end_event(), recording.lost_events(), times)
    });
    assert_eq!(before.0, 1000);
    assert_eq!(after, before);
}
