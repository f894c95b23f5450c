//! Tests of `diff`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Finished, fixture, run, vramscope};

/// Returns the path of a snapshot in `tests/data`.
fn snapshot(name: &str) -> PathBuf {
    fixture(&format!("{name}.pickle.zst"))
}

/// Returns an operand: a snapshot at a moment.
fn at(name: &str, moment: &str) -> OsString {
    let mut operand = snapshot(name).into_os_string();
    operand.push(format!("@{moment}"));
    operand
}

/// Runs `diff` on two operands; it must succeed.
#[track_caller]
fn diff(a: impl AsRef<OsStr>, b: impl AsRef<OsStr>, rest: &[&str]) -> Finished {
    diff_with_code(0, a, b, rest)
}

/// Runs `diff` on two operands; it must end with the exit code `code`.
#[track_caller]
fn diff_with_code(code: i32, a: impl AsRef<OsStr>, b: impl AsRef<OsStr>, rest: &[&str]) -> Finished {
    let mut arguments = vec!["diff".as_ref(), a.as_ref(), b.as_ref()];
    arguments.extend(rest.iter().map(OsStr::new));
    let finished = run(arguments);
    assert_eq!(finished.code, Some(code), "{}", finished.stderr);
    finished
}

/// Runs `diff --json` on two operands and parses its output.
#[track_caller]
fn json(a: impl AsRef<OsStr>, b: impl AsRef<OsStr>) -> Value {
    let finished = diff(a, b, &["--json"]);
    assert_eq!(finished.stdout.lines().count(), 1, "one object and nothing else");
    serde_json::from_str(&finished.stdout).expect("the text is JSON")
}

/// Returns the keys of a JSON object.
fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("the value is an object").keys().map(String::as_str).collect()
}

/// Returns the sites in a report.
fn sites(report: &Value) -> &[Value] {
    report["sites"].as_array().expect("the sites are a list")
}

/// Returns the number in a field of a JSON object.
fn number(value: &Value, field: &str) -> i64 {
    value[field].as_i64().unwrap_or_else(|| panic!("no {field} in {value}"))
}

/// Checks that the bytes and allocations of all sites add up to the totals.
#[track_caller]
fn check_sums(report: &Value) {
    for device in report["devices"].as_array().expect("the devices are a list") {
        for (side, peak, end) in [("a", "a_bytes", "a_end_bytes"), ("b", "b_bytes", "b_end_bytes")] {
            let sum = |field: &str| {
                let of_device = sites(report).iter().filter(|site| site["device"] == device["device"]);
                of_device.map(|site| number(site, field)).sum::<i64>()
            };
            assert_eq!(sum(peak), number(&device[side], "peak_allocated_bytes"), "{side} {device}");
            assert_eq!(sum(end), number(&device[side], "allocated_bytes"), "{side} {device}");
            for total in ["allocations", "allocated_bytes_total"] {
                assert_eq!(sum(&format!("{side}_{total}")), number(&device[side], total), "{side} {device}");
            }
        }
    }
}

#[test]
fn recording_equals_its_import() {
    let folder = TempDir::new().expect("a temporary folder");
    let imported = folder.path().join("same.vram");
    for name in ["mlp_train", "graphs", "ring", "tiny_inference"] {
        let snapshot = snapshot(name);
        let finished = run(["import".as_ref(), snapshot.as_os_str(), "-o".as_ref(), imported.as_os_str()]);
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let report = json(&snapshot, &imported);
        check_sums(&report);
        assert_eq!(report["devices"][0]["a"], report["devices"][0]["b"], "{name}");
        assert!(!sites(&report).is_empty(), "{name}");
        let same = |site: &Value| number(site, "delta_bytes") == 0 && number(site, "delta_end_bytes") == 0;
        assert!(sites(&report).iter().all(same), "{name}");
    }
}

#[test]
fn json_has_the_documented_fields() {
    let report = json(snapshot("mlp_train"), snapshot("tiny_inference"));
    let all = [
        "categories",
        "conditions",
        "devices",
        "failed",
        "files",
        "matching_limited",
        "moments",
        "sites",
        "unusable_request_bytes",
    ];
    assert_eq!(keys(&report), all);
    assert_eq!(report["moments"], serde_json::json!({ "a": "peak", "b": "peak" }));
    assert_eq!(report["unusable_request_bytes"], 16 << 20);
    let device = ["a", "b", "b_device", "delta_live_bytes", "device", "first_difference", "less_memory"];
    assert_eq!(keys(&report["devices"][0]), device);
    let totals = [
        "allocated_bytes",
        "allocated_bytes_total",
        "allocations",
        "events",
        "fragmentation",
        "highest_fragmentation",
        "highest_fragmentation_event",
        "highest_unusable_share",
        "highest_unusable_share_event",
        "mean_fragmentation",
        "mean_unusable_share",
        "moment_allocated_bytes",
        "moment_blocks",
        "moment_event",
        "moment_fragmentation",
        "moment_live_bytes",
        "moment_requested_bytes",
        "moment_reserved_bytes",
        "moment_segments",
        "ooms",
        "peak_allocated_bytes",
        "peak_fragmentation",
        "peak_reserved_bytes",
        "reserved_bytes",
    ];
    assert_eq!(keys(&report["devices"][0]["a"]), totals);
    let site = [
        "a_allocated_bytes_total",
        "a_allocations",
        "a_blocks",
        "a_bytes",
        "a_end_blocks",
        "a_end_bytes",
        "a_live_bytes",
        "b_allocated_bytes_total",
        "b_allocations",
        "b_blocks",
        "b_bytes",
        "b_device",
        "b_end_blocks",
        "b_end_bytes",
        "b_live_bytes",
        "category",
        "delta_allocated_bytes_total",
        "delta_allocations",
        "delta_bytes",
        "delta_end_bytes",
        "delta_live_bytes",
        "device",
        "inferred_category",
        "is_first_difference",
        "scope",
        "site",
        "stack",
    ];
    assert_eq!(keys(&report["sites"][0]), site);
}

#[test]
fn sites_are_ordered_by_change() {
    let report = json(snapshot("tiny_inference"), snapshot("mlp_train"));
    check_sums(&report);
    let changes: Vec<u64> = sites(&report).iter().map(|site| number(site, "delta_live_bytes").unsigned_abs()).collect();
    assert!(changes.is_sorted_by(|a, b| a >= b), "{changes:?}");
    assert!(changes[0] > 0, "{changes:?}");
    let grown = sites(&report).iter().filter(|site| number(site, "delta_bytes") > 0);
    let optimizer = grown.filter(|site| site["site"].as_str().is_some_and(|name| name.contains("adam.py:178")));
    assert_eq!(
        optimizer.map(|site| number(site, "a_bytes")).collect::<Vec<_>>(),
        [0],
        "the optimizer exists only in the second recording"
    );
}

/// Compares two runs of which the second was started from another file and by another program.
#[test]
fn sites_of_two_runs_are_matched() {
    let snapshots = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/snapshots");
    let [plain, expandable] =
        ["gpt_varlen", "gpt_varlen_expandable"].map(|name| snapshots.join(format!("{name}.pickle.zst")));
    if !plain.exists() {
        println!("SKIPPED: {} does not exist", plain.display());
        return;
    }
    let report = json(&plain, &expandable);
    check_sums(&report);
    let largest = sites(&report).iter().max_by_key(|site| number(site, "a_bytes")).expect("the report has sites");
    assert!(largest["stack"][0].as_str().is_some_and(|frame| frame.ends_with(":47 forward")), "{largest}");
    assert_eq!(largest["a_blocks"], largest["b_blocks"], "{largest}");
    let both = sites(&report).iter().filter(|site| number(site, "a_bytes") > 0 && number(site, "b_bytes") > 0).count();
    assert_eq!(
        both,
        sites(&report).iter().filter(|site| number(site, "a_bytes") > 0).count(),
        "every site of the first run is matched"
    );
    let [frag, gc] = ["frag_a", "frag_a_gc"].map(|name| snapshots.join(format!("{name}.pickle.zst")));
    let report = json(&frag, &gc);
    check_sums(&report);
    assert_eq!(sites(&report).len(), 1, "one site makes all the requests");
}

#[test]
fn text_has_tables_with_complete_site_names() {
    let finished = diff(snapshot("mlp_train"), snapshot("frag_a_expandable"), &[]);
    for line in ["device 0", "peak allocated", "change", "fragmentation at peak", "site, at the peak", "frag"] {
        assert!(finished.stdout.contains(line), "no {line:?} in\n{}", finished.stdout);
    }
    assert!(finished.stdout.lines().all(|line| line == line.trim_end()), "{}", finished.stdout);
    assert!(finished.stdout.contains(" points\n"), "{}", finished.stdout);
    let report = json(snapshot("mlp_train"), snapshot("frag_a_expandable"));
    let is_complete = |line: &&str| {
        sites(&report).iter().any(|site| line.ends_with(site["site"].as_str().expect("the site has a name")))
    };
    let growing = finished.stdout.lines().filter(|line| line.trim_start().starts_with('+') && line.contains("iB  "));
    let names: Vec<&str> = growing.filter(|line| line.contains(".py:")).collect();
    assert!(!names.is_empty() && names.iter().all(is_complete), "{}", finished.stdout);
    assert!(!finished.stdout.contains('…'), "{}", finished.stdout);
    let same = diff(snapshot("mlp_train"), snapshot("mlp_train"), &[]).stdout;
    assert!(same.contains("the same amount in both") && !same.contains("site, a"), "{same}");
    assert!(same.contains("the same number of allocations in both"), "{same}");
}

/// Counts allocations independently, from the events of an export to CSV.
#[test]
fn allocations_of_sites_match_exported_events() {
    let folder = TempDir::new().expect("a temporary folder");
    let (report, csv) = (json(snapshot("ring"), snapshot("mlp_train")), folder.path().join("events.csv"));
    for (side, name) in [("a", "ring"), ("b", "mlp_train")] {
        let input = snapshot(name);
        let export = ["export".as_ref(), input.as_os_str(), "--to".as_ref(), "csv".as_ref(), "-o".as_ref()];
        assert_eq!(run(export.into_iter().chain([csv.as_os_str()])).code, Some(0));
        let events = std::fs::read_to_string(&csv).expect("the file was written");
        let allocated = events.lines().filter(|line| line.split(',').any(|cell| cell == "alloc")).count();
        assert!(allocated > 100, "{events}");
        assert_eq!(number(&report["devices"][0][side], "allocations"), allocated as i64, "{name}");
    }
    let text = diff(snapshot("ring"), snapshot("mlp_train"), &[]).stdout;
    for line in ["site, allocations in the whole recording", "  allocations ", "  bytes of all allocations "] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
}

#[test]
fn moments_of_one_recording_are_compared() {
    let report = json(at("mlp_train", "100"), at("mlp_train", "end"));
    assert_eq!(report["moments"], serde_json::json!({ "a": "100", "b": "end" }));
    let device = &report["devices"][0];
    assert_eq!((number(&device["a"], "moment_event"), number(&device["b"], "moment_event")), (100, 1306));
    let live = |side: &str| number(&device[side], "moment_live_bytes");
    let sum = |field: &str| sites(&report).iter().map(|site| number(site, field)).sum::<i64>();
    assert_eq!((sum("a_live_bytes"), sum("b_live_bytes")), (live("a"), live("b")));
    assert_eq!(sum("delta_live_bytes"), live("b") - live("a"));
    assert_eq!(number(device, "delta_live_bytes"), live("b") - live("a"));
    let categories = report["categories"].as_array().expect("the categories are a list");
    let by_category: i64 = categories.iter().map(|row| number(row, "delta_live_bytes")).sum();
    assert_eq!(by_category, live("b") - live("a"));
    assert!(device["first_difference"].is_null());
    let text = diff(at("mlp_train", "100"), at("mlp_train", "step:9"), &[]).stdout;
    for part in ["  live at the moment ", "site, at event ", " in b\n", "total of all sites"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(!text.contains("allocations in the whole recording"), "{text}");
}

#[test]
fn unknown_moments_and_devices_are_errors() {
    let check = |a: OsString, rest: &[&str], parts: &[&str]| {
        let finished = diff_with_code(2, a, snapshot("mlp_train"), rest);
        assert_eq!((finished.stdout.as_str(), finished.stderr.lines().count()), ("", 1), "{}", finished.stderr);
        for part in parts {
            assert!(finished.stderr.contains(part), "no {part:?} in {}", finished.stderr);
        }
    };
    let too_late = ["mlp_train.pickle.zst: no event 1307: the recording has 1,306 events, use 0 to 1306"];
    check(at("mlp_train", "1307"), &[], &too_late);
    check(at("mlp_train", "step:99"), &[], &["no step 99: device 0 has 20 steps, use 1 to 20"]);
    check(at("mlp_train", "span:nothing"), &[], &["no span or mark is named \"nothing\""]);
    check(at("mlp_train", "noon"), &[], &["\"noon\" is not a moment: use an event number, peak, end"]);
    let mlp = || snapshot("mlp_train").into_os_string();
    check(mlp(), &["--device", "7"], &["has no device 7"]);
    check(mlp(), &["--device", "0:x"], &["expected a whole number, or two as in 0:1"]);
    check(mlp(), &["--fail-if", "peak > +2%"], &["--fail-if", "unknown metric \"peak\"", "(at character 1)"]);
    check(mlp(), &["--fail-if", "ooms > many"], &["cannot compare ooms with \"many\"", "(at character 8)"]);
    check(mlp(), &["--json", "--markdown"], &["--markdown"]);
}

#[test]
fn devices_of_one_recording_are_compared() {
    let recording = fixture("two_devices.pickle.gz");
    let finished = diff(&recording, &recording, &["--device", "0:1", "--json"]);
    let report: Value = serde_json::from_str(&finished.stdout).expect("the text is JSON");
    let [device] = report["devices"].as_array().expect("a list").as_slice() else { panic!("{report}") };
    assert_eq!((number(device, "device"), number(device, "b_device")), (0, 1));
    let live = |side: &str| number(&device[side], "moment_live_bytes");
    let sum: i64 = sites(&report).iter().map(|site| number(site, "delta_live_bytes")).sum();
    assert_eq!(sum, live("b") - live("a"));
    assert!(diff(&recording, &recording, &["--device", "0:1"]).stdout.contains("device 0 and device 1"));
    assert_eq!(json(&recording, &recording)["devices"].as_array().map(Vec::len), Some(2));
}

#[test]
fn conditions_decide_the_exit_status() {
    let [a, b] = ["tiny_inference", "mlp_train"].map(snapshot);
    let holds = ["--fail-if", "peak_allocated > +2%"];
    let text = diff_with_code(1, &a, &b, &holds).stdout;
    assert!(text.lines().any(|line| line.starts_with("FAIL") && line.ends_with("peak_allocated > +2%")), "{text}");
    let text = diff(&a, &b, &["--fail-if", "ooms > 0", "--fail-if", "peak_allocated>1TiB"]).stdout;
    assert_eq!(text.lines().filter(|line| line.starts_with("pass")).count(), 2, "{text}");
    diff(&b, &a, &holds);
    diff_with_code(1, &a, &b, &["--fail-if", "ooms > 0", "--fail-if", "allocations >= +1"]);
    let finished = diff_with_code(1, &a, &b, &["--json", "--fail-if", "ooms > 0", "--fail-if", "peak_allocated > +2%"]);
    let report: Value = serde_json::from_str(&finished.stdout).expect("the text is JSON");
    assert_eq!(report["failed"], true);
    let [ooms, peak] = report["conditions"].as_array().expect("a list").as_slice() else { panic!("{report}") };
    assert_eq!((&ooms["holds"], &peak["holds"]), (&Value::Bool(false), &Value::Bool(true)));
    assert_eq!(peak["condition"], "peak_allocated > +2%");
    assert_eq!((&peak["metric"], &peak["comparator"]), (&Value::from("peak_allocated"), &Value::from(">")));
    assert_eq!(peak["devices"][0]["b"], report["devices"][0]["b"]["peak_allocated_bytes"]);
    assert_eq!(json(&a, &b)["failed"], false);
}

/// The summary of two snapshots is compared with a stored one.
#[test]
fn markdown_is_a_summary() {
    let folder = TempDir::new().expect("a temporary folder");
    let copy = |from: &str, to: &str| {
        let path = folder.path().join(to);
        std::fs::copy(snapshot(from), &path).expect("the file can be copied");
    };
    copy("tiny_inference", "before_1.pickle.zst");
    copy("mlp_train", "after|<b>@2.pickle.zst");
    let conditions = ["--fail-if", "peak_allocated > +2%", "--fail-if", "ooms > 0"];
    let arguments =
        ["diff", "before_1.pickle.zst", "after|<b>@2.pickle.zst", "--markdown"].into_iter().chain(conditions);
    let output = vramscope(arguments).current_dir(folder.path()).output().expect("the binary runs");
    let finished = Finished::from(output);
    assert_eq!(finished.code, Some(1), "{}", finished.stderr);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/diff_summary.md");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &finished.stdout).expect("the file is writable");
    }
    assert_eq!(finished.stdout, std::fs::read_to_string(&golden).expect("the golden file exists"));
    let rows = finished.stdout.lines().filter(|line| line.starts_with("| ")).count();
    assert!(rows < 60, "{rows} rows");
}
