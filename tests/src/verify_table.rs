//! Results of `vramscope verify` as rows of the table in `docs/verify.md`.

use serde_json::Value;

use crate::fixtures::Fixture;
use crate::program::vramscope;

/// The table's header.
pub const TABLE_HEAD: &str = "\
| recording | device | limit in bytes | requests | events | matched | divergence |
| --- | --- | ---: | ---: | ---: | ---: | --- |";

/// Runs `vramscope verify` with the limit that the ground truth names. Returns a row for each
/// device, and true if all matched.
#[must_use]
pub fn verify(fixture: &Fixture) -> (Vec<String>, bool) {
    let limit = fixture.truth()["limit_bytes"].as_u64();
    let mut command = vramscope();
    command.arg("verify").arg(&fixture.path).arg("--json");
    command.args(limit.map(|limit| format!("--limit-bytes={limit}")));
    let output = command.output().expect("vramscope starts");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{}: {error}: {}", fixture.path.display(), String::from_utf8_lossy(&output.stderr))
    });
    let file_name = fixture.file_name();
    let name = file_name.trim_end_matches(".pickle.zst");
    let limit = limit.map_or("-".to_owned(), |limit| limit.to_string());
    let row = |device: &Value| {
        let divergence = match &device["divergence"] {
            Value::Null => "none".to_owned(),
            first => format!("event {}", first["event"]),
        };
        let [number, requests, events, matched] =
            ["device", "requests", "events", "matched"].map(|key| device[key].to_string());
        format!("| {name} | {number} | {limit} | {requests} | {events} | {matched} | {divergence} |")
    };
    let devices = report["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    (devices.iter().map(row).collect(), output.status.success())
}
