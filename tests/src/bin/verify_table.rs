//! Runs `vramscope verify` on every snapshot in a folder, with the limit that its ground truth names, and prints the table of
//! `docs/verify.md`.
#![forbid(unsafe_code)]

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;
use vramscope_tests::fixtures::{self, Fixture};
use vramscope_tests::vramscope;

/// One line for each device that did something.
fn rows(fixture: &Fixture) -> (Vec<String>, bool) {
    let truth = fixture.truth();
    let limit = truth["limit_bytes"].as_u64();
    let mut command = vramscope();
    command.arg("verify").arg(&fixture.path).arg("--json");
    command.args(limit.map(|limit| format!("--limit-bytes={limit}")));
    let output = command.output().expect("the binary runs");
    let all_matched = output.status.success();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{}: {error}: {}", fixture.path.display(), String::from_utf8_lossy(&output.stderr))
    });
    let name = fixture.file_name();
    let name = name.trim_end_matches(".pickle.zst");
    let limit = limit.map_or("-".to_owned(), |limit| limit.to_string());
    let devices = report["devices"].as_array().cloned().unwrap_or_default();
    let row = |device: &Value| {
        let divergence = match &device["divergence"] {
            Value::Null => "none".to_owned(),
            first => format!("event {}", first["event"]),
        };
        let [number, requests, events, matched] =
            ["device", "requests", "events", "matched"].map(|key| device[key].to_string());
        format!("| {name} | {number} | {limit} | {requests} | {events} | {matched} | {divergence} |")
    };
    (devices.iter().map(row).collect(), all_matched)
}

fn main() -> ExitCode {
    let folder = env::args_os().nth(1).map_or_else(|| fixtures::workspace_root().join("tests/data"), PathBuf::from);
    println!("| recording | device | limit in bytes | requests | events | matched | divergence |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let mut all_matched = true;
    for fixture in Fixture::all_in(Path::new(&folder)) {
        let (rows, matched) = rows(&fixture);
        rows.iter().for_each(|row| println!("{row}"));
        all_matched &= matched;
    }
    if all_matched { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
