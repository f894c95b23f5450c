//! Tests of `demo --list`, `--technique` and `--compare`.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;
use vramscope_trace::Recording;

use crate::process::{Server, run};

/// Runs the command with these arguments and parses its JSON output.
fn json(arguments: &[&str]) -> Value {
    let finished = run(arguments);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(finished.stdout.lines().count(), 1, "one line of JSON: {}", finished.stdout);
    serde_json::from_str(&finished.stdout).expect("the output is JSON")
}

#[test]
fn list_names_every_technique_with_a_sentence() {
    let list = json(&["demo", "--list", "--json"]);
    let techniques = list["techniques"].as_array().expect("a list");
    assert!(techniques.len() >= 35, "{}", techniques.len());
    let text = run(["demo", "--list"]).stdout;
    for technique in techniques {
        let (name, summary) =
            (technique["name"].as_str().expect("a name"), technique["summary"].as_str().expect("one"));
        assert!(summary.ends_with('.') && text.contains(name), "{name}: {summary}");
    }
}

#[test]
fn technique_prints_json_records_and_exits() {
    let folder = TempDir::new().expect("a temporary folder");
    let file = folder.path().join("run.vram");
    let path = file.to_str().expect("the path is text");
    let names = "checkpoint-layers,adam-8bit";
    let arguments = ["demo", "--technique", names, "--device", "host", "--steps", "2", "--layers", "3"];
    let output = json(&[&arguments[..], &["--record", path, "--json"]].concat());
    let report = &output["reports"][0];
    assert_eq!(report["technique"], names);
    assert_eq!(report["device"], "host");
    assert_eq!(report["losses"].as_array().map(Vec::len), Some(2));
    assert!(report["peak_allocated_bytes"].as_u64() > report["end_allocated_bytes"].as_u64());
    let bytes = fs::read(&file).expect("the recording was written");
    assert!(bytes.len() < 100_000, "{} bytes", bytes.len());
    let mut recording = Recording::new();
    recording.push(&bytes).expect("a valid recording");
    recording.finish().expect("the recording is complete");
    assert_eq!(recording.lost_events(), 0);
}

/// Returns the sum of a field over the rows of a table.
fn sum<'a>(rows: impl Iterator<Item = &'a Value>, field: &str) -> i64 {
    rows.map(|row| row[field].as_i64().expect("a whole number")).sum()
}

#[test]
fn tables_add_up_and_scalars_can_be_read() {
    let folder = TempDir::new().expect("a temporary folder");
    let scalars = folder.path().join("runs").join("demo");
    let path = scalars.to_str().expect("the path is text");
    for (technique, phases) in [("keep-outputs", 4), ("batch-search", 4), ("two-layer", 1), ("allocator-driver", 4)] {
        let arguments = ["demo", "--technique", technique, "--device", "host", "--steps", "3", "--json"];
        let output = json(&[&arguments[..], &["--tables", "--print-memory", "--tensorboard", path]].concat());
        let report = &output["reports"][0];
        let end = report["end_allocated_bytes"].as_i64().expect("a size");
        let rows = |table: &str| report["tables"][table]["rows"].as_array().expect("rows").iter();
        let steps = rows("phase").filter(|row| row["name"] == "step");
        let phase = &report["tables"]["phase"];
        assert_eq!(phase["pool_allocated_bytes"].as_i64(), Some(end), "{technique}");
        let outside = phase["outside_bytes"].as_i64().expect("a size");
        assert_eq!(sum(steps, "kept_in_all_bytes") + outside, end, "{technique}");
        assert_eq!(sum(rows("line"), "live_bytes"), end, "{technique}");
        assert_eq!(sum(rows("op"), "own_allocated_bytes"), end, "{technique}");
        let memory = report["memory"].as_array().expect("lines");
        let steps = memory.iter().filter(|line| line["phase"] == "step").count();
        assert!(steps >= 3 && memory.len() >= steps * phases, "{technique}: {memory:?}");
        let last = memory.last().expect("there are lines");
        assert!(last["allocated_bytes"].as_u64() <= last["peak_allocated_bytes"].as_u64(), "{last}");
        check_scalars(report["tensorboard"].as_str().expect("a path"), steps);
    }
    let plain = json(&["demo", "--technique", "two-layer", "--device", "host", "--steps", "1", "--json"]);
    let report = plain["reports"][0].as_object().expect("an object");
    assert!(["tables", "memory", "tensorboard"].iter().all(|name| !report.contains_key(*name)));
}

/// Checks that an event file consists of whole records, and has each tag once for each step.
fn check_scalars(path: &str, steps: usize) {
    let bytes = fs::read(path).expect("the file was written");
    let mut rest = &bytes[..];
    while let Some((length, _)) = rest.split_first_chunk::<8>() {
        // The length and its checksum, the record and its checksum.
        let length = usize::try_from(u64::from_le_bytes(*length)).expect("a record fits in memory");
        rest = rest.get(12 + length + 4..).expect("the record is complete");
    }
    assert!(rest.is_empty());
    let count = |tag: &str| bytes.windows(tag.len()).filter(|part| *part == tag.as_bytes()).count();
    for tag in ["memory/allocated", "memory/reserved", "memory/peak", "step_time_ms"] {
        assert_eq!(count(tag), steps, "{tag}");
    }
    assert_eq!(count("loss"), 3, "the steps of a batch search have no loss");
}

#[test]
fn default_demo_writes_scalars_while_it_trains() {
    let folder = TempDir::new().expect("a temporary folder");
    let mut command = crate::process::vramscope(["demo", "--device", "host", "--steps", "2", "--tables=phase"]);
    command.args(["--print-memory", "--tensorboard"]).arg(folder.path());
    let mut server = Server::start_command(command);
    crate::process::wait_until("the file has both steps", || {
        let files = fs::read_dir(folder.path()).expect("the folder can be read").filter_map(|entry| entry.ok());
        files
            .filter_map(|entry| fs::read(entry.path()).ok())
            .any(|bytes| bytes.windows(11).filter(|part| part == b"memory/peak").count() == 2)
    });
    assert!(server.interrupt().0.success());
}

#[test]
fn comparison_runs_both_and_opens_them_on_one_page() {
    let output = json(&["demo", "--compare", "two-layer,in-place", "--device", "host", "--steps", "2", "--json"]);
    let peak = |index: usize| output["reports"][index]["peak_allocated_bytes"].as_u64().expect("a size");
    assert!(peak(1) < peak(0));
    let folder = TempDir::new().expect("a temporary folder");
    let prefix = folder.path().join("pair.vram");
    let prefix = prefix.to_str().expect("the path is text");
    let mut command = crate::process::vramscope(["demo", "--compare", "two-layer,in-place", "--device", "host"]);
    command.args(["--steps", "2", "--record", prefix, "--listen", "127.0.0.1:0"]);
    let mut server = Server::start_listening(command);
    assert!(server.url.contains("?trace=files/0/pair-1-two-layer.vram&compare=files/1/pair-2-in-place.vram"));
    assert!(folder.path().join("pair-1-two-layer.vram").is_file());
    assert!(server.interrupt().0.success());
}

#[test]
fn live_technique_serves_the_page_afterwards() {
    let mut server = Server::start(["demo", "--technique", "kv-cache", "--device", "host", "--steps", "2"]);
    assert!(server.get("/healthz").0.contains(" 200 "));
    let (status, stderr) = server.interrupt();
    assert!(status.success(), "{status}: {stderr}");
}

#[test]
fn wrong_techniques_are_one_line_that_says_what_to_do() {
    let check = |arguments: &[&str], parts: &[&str]| {
        let finished = run([&["demo"], arguments].concat());
        assert_eq!(finished.code, Some(2), "{}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        assert!(parts.iter().all(|part| finished.stderr.contains(part)), "{}", finished.stderr);
    };
    check(&["--technique", "nonsense"], &["nonsense", "--list"]);
    check(&["--technique", "train,kv-cache", "--json"], &["train", "kv-cache", "one program"]);
    check(&["--compare", "train"], &["--compare", "two techniques"]);
    check(&["--compare", "train,inference"], &["train", "inference", "work in one program"]);
    check(&["--json"], &["--json", "--technique"]);
    check(&["--layers", "2"], &["--layers", "--technique"]);
    check(&["--technique", "train", "--width", "65", "--device", "host"], &["65", "heads"]);
    check(&["--list", "--tables"], &["--list", "--tables"]);
    check(&["--tables=color"], &["color", "phase, line, op"]);
    check(&["--print-memory", "0"], &["--print-memory", "at least 1"]);
    check(&["--steps", "1", "--tensorboard", "/dev/null/runs"], &["--tensorboard", "/dev/null/runs"]);
    check(&["--technique", "train", "--json", "--listen", "127.0.0.1:0"], &["--json", "page"]);
}
