//! `autopsy`.

use serde_json::Value;

use crate::process::{fixture, run};

#[test]
fn failure_is_a_finding_with_cause_holders_and_checked_remedies() {
    let path = fixture("../labelled/development/oom_fragmentation_1.pickle.gz");
    let finished = run(["autopsy".as_ref(), path.as_os_str(), "--json".as_ref()]);
    assert_eq!(finished.code, Some(1), "{}", finished.stderr);
    assert_eq!(finished.stdout.lines().count(), 1, "stdout has one JSON object");
    let report: Value = serde_json::from_str(&finished.stdout).expect("the text is JSON");
    let oom = &report["ooms"][0];
    for key in ["device", "event", "requested_bytes"] {
        assert!(oom[key].is_u64(), "{key} in {oom}");
    }
    assert_eq!(oom["cause"], "fragmentation", "{oom}");
    assert!(oom["summary"].as_str().is_some_and(|summary| summary.ends_with('.')), "{oom}");
    let holders = oom["holders"].as_array().expect("an array");
    assert!(holders.iter().all(|one| one["site"].is_string() && one["category"].is_string() && one["bytes"].is_u64()));
    let remedies = oom["remedies"].as_array().expect("an array");
    assert!(!remedies.is_empty(), "{oom}");
    for remedy in remedies {
        assert_eq!(remedy["checked"], true, "{remedy}");
        assert!(remedy["kind"].is_string() && remedy["detail"].is_string() && remedy["saves_bytes"].is_u64());
    }

    let text = run(["autopsy".as_ref(), path.as_os_str()]);
    assert_eq!(text.code, Some(1), "{}", text.stderr);
    assert!(text.stdout.starts_with("OUT OF MEMORY on device 0"), "{}", text.stdout);
    assert!(text.stdout.contains(oom["summary"].as_str().expect("text")), "{}", text.stdout);
}

#[test]
fn recording_without_failure_is_a_success() {
    let path = fixture("mlp_train.pickle.zst");
    let finished = run(["autopsy".as_ref(), path.as_os_str()]);
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{}", finished.stdout);
    assert!(finished.stdout.starts_with("No out-of-memory error"), "{}", finished.stdout);
    let json = run(["autopsy".as_ref(), path.as_os_str(), "--json".as_ref()]);
    assert_eq!(
        (json.code, json.stdout.as_str()),
        (Some(0), "{\"ooms\":[],\"omitted\":0,\"defects\":[]}\n"),
        "{}",
        json.stderr
    );
}
