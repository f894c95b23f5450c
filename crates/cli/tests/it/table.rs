//! Tests of `table`.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Finished, fixture, run};

/// Runs `table` on a snapshot of the repository.
fn table(name: &str, rest: &[&str]) -> Finished {
    let path = fixture(&format!("{name}.pickle.zst"));
    let mut arguments = vec!["table".as_ref(), path.as_os_str()];
    arguments.extend(rest.iter().map(std::ffi::OsStr::new));
    run(arguments)
}

/// Runs `table --json` on a snapshot and parses its output.
#[track_caller]
fn json(name: &str, rest: &[&str]) -> Value {
    let finished = table(name, &[rest, &["--json"]].concat());
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(finished.stdout.lines().count(), 1, "one object and nothing else");
    serde_json::from_str(&finished.stdout).expect("the text is JSON")
}

/// Returns the keys of a JSON object.
fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("the value is an object").keys().map(String::as_str).collect()
}

/// Runs `table` and checks that its error line contains all texts in `expected`.
#[track_caller]
fn check_error(path: &Path, rest: &[&str], expected: &[&str]) {
    let mut arguments = vec!["table".as_ref(), path.as_os_str()];
    arguments.extend(rest.iter().map(std::ffi::OsStr::new));
    let finished = run(arguments);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{finished:?}");
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    for part in expected {
        assert!(finished.stderr.contains(part), "no {part:?} in {}", finished.stderr);
    }
}

#[test]
fn json_has_the_documented_fields_and_adds_up() {
    let figures = ["allocated_bytes", "allocations", "blocks", "bytes", "name", "peak_bytes"];
    for by in ["line", "op", "phase", "module", "category", "site"] {
        for at in ["peak", "end", "60"] {
            let report = json("mlp_train", &["--by", by, "--at", at]);
            let device = &report["devices"][0];
            let mut expected = vec![
                "allocated_bytes",
                "allocations",
                "blocks",
                "device",
                "event",
                "pending_bytes",
                "rows",
                "total_bytes",
            ];
            if by == "phase" {
                expected.extend(["phases", "spans"]);
                expected.sort_unstable();
            }
            assert_eq!(keys(device), expected);
            let rows = device["rows"].as_array().expect("the rows are a list");
            let mut expected = figures.to_vec();
            if by == "op" {
                expected.insert(5, "nested_bytes");
            }
            assert!(rows.iter().all(|row| keys(row) == expected), "{by}");
            let sum = |field: &str| rows.iter().map(|row| row[field].as_u64().expect("a number")).sum::<u64>();
            for (field, total) in
                [("bytes", "total_bytes"), ("allocations", "allocations"), ("allocated_bytes", "allocated_bytes")]
            {
                assert_eq!(sum(field), device[total].as_u64().expect("a number"), "{by} {at} {field}");
            }
        }
    }
    let info = run(["info".as_ref(), fixture("mlp_train.pickle.zst").as_os_str(), "--json".as_ref()]);
    let info: Value = serde_json::from_str(&info.stdout).expect("the text is JSON");
    let (info, table) = (&info["devices"][0], &json("mlp_train", &["--by", "line"])["devices"][0]);
    assert_eq!(table["event"], info["peak_allocated_event"]);
    assert_eq!(table["total_bytes"], info["peak_allocated_bytes"], "nothing is pending free there");
    let table = &json("mlp_train", &["--by", "line", "--at", "end"])["devices"][0];
    assert_eq!((&table["event"], &table["total_bytes"]), (&info["events"], &info["active_bytes"]));
}

#[test]
fn phases_are_a_second_table() {
    let report = json("mlp_train", &["--by", "phase"]);
    let (phases, peak) = (&report["devices"][0]["phases"], &report["devices"][0]["total_bytes"]);
    let names = ["forward", "backward", "optimizer", "other"];
    assert!(phases.as_array().is_some_and(|rows| rows.len() == names.len()), "{phases}");
    let fields = ["after_bytes", "before_bytes", "count", "from_event", "kept_bytes", "name", "peak_bytes", "to_event"];
    for (index, name) in names.into_iter().enumerate() {
        assert_eq!((&phases[index]["name"], keys(&phases[index])), (&name.into(), fields.to_vec()));
    }
    assert!((0..names.len()).any(|index| &phases[index]["peak_bytes"] == peak), "one of the phases has the peak");
    let text = table("mlp_train", &["--by", "phase", "--limit", "2"]).stdout;
    let lines: Vec<&str> = text.lines().collect();
    let head = lines.iter().position(|line| line.ends_with("count  phase with the highest peak"));
    let head = head.unwrap_or_else(|| panic!("no table of phases in {text}"));
    assert!(lines[head + 1].ends_with("forward") && lines[head + 2].ends_with("backward"), "{text}");
    assert_eq!(lines[head + 3], "2 more; --limit 0 prints all");
    let text = table("mlp_train", &["--by", "line"]).stdout;
    assert!(!text.contains("phase") && !text.contains("before"), "{text}");
}

#[test]
fn spans_are_a_third_table() {
    let report = json("mlp_train", &["--by", "phase"]);
    let span = &report["devices"][0]["spans"][0];
    assert_eq!((&span["name"], &span["count"]), (&"Optimizer.step#Adam.step".into(), &20.into()));
    assert_eq!(
        span["kept_bytes"].as_i64(),
        span["after_bytes"].as_i64().zip(span["before_bytes"].as_i64()).map(|(after, before)| after - before)
    );
    let text = table("mlp_train", &["--by", "phase"]).stdout;
    let spans = text.split_once("count  span with the highest peak").map(|(_, spans)| spans);
    assert!(spans.is_some_and(|spans| spans.contains("Optimizer.step#Adam.step")), "{text}");
}

#[test]
fn text_is_limited_and_has_the_sum() {
    let text = table("mlp_train", &["--by", "site", "--limit", "2"]).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text}");
    assert!(lines[0].starts_with("device 0") && lines[0].contains("at the peak, event 65"), "{text}");
    assert!(lines[4].ends_with("more; --limit 0 prints all") && lines[5].ends_with("total"), "{text}");
    let all = table("mlp_train", &["--by", "site", "--limit", "0"]).stdout;
    assert!(all.lines().count() > 6 && !all.contains("more;"), "{all}");
}

#[test]
fn lines_are_shown_without_a_grouping() {
    assert_eq!(table("mlp_train", &[]).stdout, table("mlp_train", &["--by", "line"]).stdout);
}

#[test]
fn unusable_arguments_and_files_are_errors() {
    let path = fixture("mlp_train.pickle.zst");
    check_error(&path, &["--by", "color"], &["color", "(try vramscope table --help)"]);
    check_error(&path, &["--by", "line", "--at", "noon"], &["noon", "peak, end or the number of an event"]);
    check_error(&path, &["--by", "line", "--limit", "few"], &["few", "expected a whole number"]);
    check_error(&path, &["--by", "line", "--at", "99999999"], &["mlp_train", "at 99999999", "the moments 0 to"]);
    check_error(Path::new("missing.vram"), &["--by", "line"], &["missing.vram", "check the path"]);
    let folder = TempDir::new().expect("a temporary folder");
    let half = folder.path().join("half.pickle.zst");
    let bytes = fs::read(&path).expect("the test file exists");
    fs::write(&half, &bytes[..bytes.len() / 2]).expect("the folder is writable");
    check_error(&half, &["--by", "line"], &["half.pickle.zst", "byte "]);
}

#[test]
fn device_without_allocations_has_no_rows() {
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().join("idle.json");
    let entry = |action: &str, addr: u64, size: u64| {
        let [stream, time_us] = [0, 1];
        let mut entry = serde_json::json!({"action": action, "addr": addr, "size": size, "frames": []});
        (entry["stream"], entry["time_us"]) = (stream.into(), time_us.into());
        entry
    };
    let traces = [
        vec![entry("segment_alloc", 4096, 2 << 20), entry("alloc", 4096, 512)],
        // Like the recording of a program with a GPU that it does not use.
        vec![entry("snapshot", 0, 0)],
    ];
    let snapshot = serde_json::json!({"segments": [], "device_traces": traces});
    fs::write(&path, snapshot.to_string()).expect("a temporary file is written");
    let finished = run(["table".as_ref(), path.as_os_str(), "--by".as_ref(), "phase".as_ref(), "--json".as_ref()]);
    let table: Value = serde_json::from_str(&finished.stdout).expect("the text is JSON");
    let [used, idle] = &table["devices"].as_array().expect("devices")[..] else { panic!("two devices: {table}") };
    assert_eq!(used["phases"].as_array().map(Vec::len), Some(1), "{table}");
    for rows in ["rows", "phases", "spans"] {
        assert_eq!(idle[rows], Value::Array(Vec::new()), "{rows}: {table}");
    }
}
