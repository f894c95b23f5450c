//! `diff`.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Finished, fixture, run};

fn snapshot(name: &str) -> PathBuf {
    fixture(&format!("{name}.pickle.zst"))
}

#[track_caller]
fn diff(a: &Path, b: &Path, rest: &[&str]) -> Finished {
    let mut arguments = vec!["diff".as_ref(), a.as_os_str(), b.as_os_str()];
    arguments.extend(rest.iter().map(std::ffi::OsStr::new));
    let finished = run(arguments);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    finished
}

#[track_caller]
fn json(a: &Path, b: &Path) -> Value {
    let finished = diff(a, b, &["--json"]);
    assert_eq!(finished.stdout.lines().count(), 1, "one object and nothing else");
    serde_json::from_str(&finished.stdout).expect("the text is JSON")
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("the value is an object").keys().map(String::as_str).collect()
}

fn sites(report: &Value) -> &[Value] {
    report["sites"].as_array().expect("the sites are a list")
}

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
    let report = json(&snapshot("mlp_train"), &snapshot("tiny_inference"));
    assert_eq!(keys(&report), ["devices", "files", "sites", "unusable_request_bytes"]);
    assert_eq!(report["unusable_request_bytes"], 16 << 20);
    assert_eq!(keys(&report["devices"][0]), ["a", "b", "device"]);
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
        "b_allocated_bytes_total",
        "b_allocations",
        "b_blocks",
        "b_bytes",
        "b_end_blocks",
        "b_end_bytes",
        "category",
        "delta_allocated_bytes_total",
        "delta_allocations",
        "delta_bytes",
        "delta_end_bytes",
        "device",
        "scope",
        "site",
        "stack",
    ];
    assert_eq!(keys(&report["sites"][0]), site);
}

#[test]
fn sites_are_ordered_by_growth() {
    let report = json(&snapshot("tiny_inference"), &snapshot("mlp_train"));
    check_sums(&report);
    let deltas: Vec<i64> = sites(&report).iter().map(|site| number(site, "delta_bytes")).collect();
    assert!(deltas.is_sorted_by(|a, b| a >= b), "{deltas:?}");
    assert!(deltas[0] > 0 && deltas[deltas.len() - 1] < 0, "{deltas:?}");
    let grown = sites(&report).iter().filter(|site| number(site, "delta_bytes") > 0);
    let optimizer = grown.filter(|site| site["site"].as_str().is_some_and(|name| name.contains("adam.py:178")));
    assert_eq!(
        optimizer.map(|site| number(site, "a_bytes")).collect::<Vec<_>>(),
        [0],
        "the optimizer exists only in the second recording"
    );
}

/// The second run was started from another file and by another program.
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
    let finished = diff(&snapshot("mlp_train"), &snapshot("frag_a_expandable"), &[]);
    for line in ["device 0", "peak allocated", "change", "fragmentation at peak", "site, at the peak", "frag"] {
        assert!(finished.stdout.contains(line), "no {line:?} in\n{}", finished.stdout);
    }
    assert!(finished.stdout.lines().all(|line| line == line.trim_end()), "{}", finished.stdout);
    assert!(finished.stdout.contains(" points\n"), "{}", finished.stdout);
    let report = json(&snapshot("mlp_train"), &snapshot("frag_a_expandable"));
    let is_complete = |line: &&str| {
        sites(&report).iter().any(|site| line.ends_with(site["site"].as_str().expect("the site has a name")))
    };
    let growing = finished.stdout.lines().filter(|line| line.trim_start().starts_with('+') && line.contains("iB  "));
    let names: Vec<&str> = growing.filter(|line| line.contains(".py:")).collect();
    assert!(!names.is_empty() && names.iter().all(is_complete), "{}", finished.stdout);
    assert!(!finished.stdout.contains('…'), "{}", finished.stdout);
    let same = diff(&snapshot("mlp_train"), &snapshot("mlp_train"), &[]).stdout;
    assert!(same.contains("the same amount in both") && !same.contains("site, a"), "{same}");
    assert!(same.contains("the same number of allocations in both"), "{same}");
}

/// The events of an export to CSV are an independent count.
#[test]
fn allocations_are_those_of_the_events() {
    let folder = TempDir::new().expect("a temporary folder");
    let (report, csv) = (json(&snapshot("ring"), &snapshot("mlp_train")), folder.path().join("events.csv"));
    for (side, name) in [("a", "ring"), ("b", "mlp_train")] {
        let input = snapshot(name);
        let export = ["export".as_ref(), input.as_os_str(), "--to".as_ref(), "csv".as_ref(), "-o".as_ref()];
        assert_eq!(run(export.into_iter().chain([csv.as_os_str()])).code, Some(0));
        let events = std::fs::read_to_string(&csv).expect("the file was written");
        let allocated = events.lines().filter(|line| line.split(',').any(|cell| cell == "alloc")).count();
        assert!(allocated > 100, "{events}");
        assert_eq!(number(&report["devices"][0][side], "allocations"), allocated as i64, "{name}");
    }
    let text = diff(&snapshot("ring"), &snapshot("mlp_train"), &[]).stdout;
    for line in ["site, allocations in the whole recording", "  allocations ", "  bytes of all allocations "] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
}
