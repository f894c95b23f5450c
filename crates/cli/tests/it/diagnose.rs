//! Tests of `diagnose`.

use std::fs;

use serde_json::Value;

use crate::process::{fixture, run};

/// Maximum difference between the simulated and the measured saving of a remedy, in percent.
const MAX_DIFFERENCE_PERCENT: u64 = 10;

/// Returns the findings of a labelled recording.
fn findings(name: &str) -> Vec<Value> {
    let path = fixture(&format!("../labelled/development/{name}.pickle.gz"));
    let finished = run(["diagnose".as_ref(), path.as_os_str(), "--json".as_ref()]);
    assert_eq!(finished.code, Some(1), "{name}: {}", finished.stderr);
    assert_eq!(finished.stdout.lines().count(), 1, "stdout has one JSON object");
    let report: Value = serde_json::from_str(&finished.stdout).expect("the text is JSON");
    report["findings"].as_array().expect("an array").clone()
}

#[test]
fn finding_has_evidence_and_a_remedy() {
    let found = findings("growth_hooks_1");
    let growth = &found[0];
    assert_eq!((&growth["id"], &growth["device"]), (&"growth.hooks".into(), &0.into()), "{growth}");
    assert!(growth["bytes"].as_u64() > Some(50 << 20), "{growth}");
    let events = growth["events"].as_array().expect("an array");
    assert!(events.len() == 2 && events[0].as_u64() < events[1].as_u64(), "{growth}");
    for key in ["severity", "site", "summary", "remedy"] {
        assert!(growth[key].is_string(), "{key} in {growth}");
    }
    assert_eq!(growth["checked"], true, "{growth}");

    let path = fixture("../labelled/development/growth_hooks_1.pickle.gz");
    let text = run(["diagnose".as_ref(), path.as_os_str()]);
    assert_eq!(text.code, Some(1), "{}", text.stderr);
    assert!(text.stdout.contains("\nLOW: growth.hooks on device 0, events "), "{}", text.stdout);
    assert!(text.stdout.contains(growth["summary"].as_str().expect("text")), "{}", text.stdout);
}

#[test]
fn recording_without_a_problem_is_a_success() {
    let path = fixture("mlp_train.pickle.zst");
    let finished = run(["diagnose".as_ref(), path.as_os_str()]);
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{}", finished.stdout);
    assert!(finished.stdout.starts_with("No problem found: 104 MiB at the peak."), "{}", finished.stdout);
    let json = run(["diagnose".as_ref(), path.as_os_str(), "--json".as_ref()]);
    let report: Value = serde_json::from_str(&json.stdout).expect("the text is JSON");
    assert_eq!((json.code, &report["status"]), (Some(0), &Value::from("nothing")), "{}", json.stderr);
    assert_eq!((&report["verdict"]["cause"], &report["findings"]), (&"healthy".into(), &Value::from([0; 0])));
    // PyTorch's snapshots have no samples of the device's free memory.
    assert_eq!(report["unknown"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!(report["unknown"][0]["rule"], "outside.growth", "{report}");
}

/// The labels have the peaks of runs on an H200 in which the remedy was applied.
#[test]
fn checked_remedies_save_what_was_measured_on_a_gpu() {
    let remedies = [
        ("defect_deferred_frees_1", "streams.pending"),
        ("defect_oversize_1", "fragmentation.oversize"),
        ("growth_hooks_1", "growth.hooks"),
        ("growth_hooks_2", "growth.hooks"),
        ("growth_outputs_1", "growth.outputs"),
        ("growth_outputs_2", "growth.outputs"),
        ("growth_summed_loss_1", "growth.summed_loss"),
        ("growth_summed_loss_2", "growth.summed_loss"),
        ("near_failure_1", "fragmentation.near_failure"),
        ("near_failure_2", "fragmentation.near_failure"),
        ("recreated_2", "segments.recreated"),
        ("rounding_1", "waste.rounding"),
        ("rounding_2", "waste.rounding"),
        ("rounding_4", "waste.rounding"),
    ];
    for (name, id) in remedies {
        let label = fs::read(fixture(&format!("../labelled/development/{name}.json"))).expect("a label");
        let label: Value = serde_json::from_slice(&label).expect("the label is JSON");
        let found = findings(name);
        let finding = found.iter().find(|one| one["id"] == id).expect("the labelled problem");
        let (saves, peak) = (&finding["saves_bytes"], &finding["peak_reserved_bytes"]);
        let (Some(saves), Some(peak)) = (saves.as_u64(), peak.as_u64()) else { panic!("{name}: {finding}") };
        let measured = label["with_remedy"]["peak_reserved"].as_u64().expect("a run with the remedy");
        let measured_saving = (saves + peak).checked_sub(measured).expect("the remedy saves memory");
        let difference = saves.abs_diff(measured_saving);
        assert!(difference * 100 <= measured_saving * MAX_DIFFERENCE_PERCENT, "{name}: {saves}, not {measured_saving}");
    }
}

#[test]
fn failure_has_the_smallest_checked_remedy_of_autopsy() {
    let name = "oom_activations_1";
    let path = fixture(&format!("../labelled/development/{name}.pickle.gz"));
    let finished = run(["autopsy".as_ref(), path.as_os_str(), "--json".as_ref()]);
    let report: Value = serde_json::from_str(&finished.stdout).expect("the text is JSON");
    let remedies = report["ooms"][0]["remedies"].as_array().expect("an array");
    let smallest = remedies.iter().find(|remedy| remedy["checked"] == true).expect("a checked remedy");
    let found = findings(name);
    let failure = found.iter().find(|one| one["severity"] == "critical").expect("a failure");
    assert_eq!(failure["checked"], true, "{failure}");
    for key in ["saves_bytes", "peak_reserved_bytes"] {
        assert_eq!(failure[key], smallest[key], "{key} of {failure}");
    }
    let (remedy, detail) = (failure["remedy"].as_str().expect("text"), smallest["detail"].as_str().expect("text"));
    assert_eq!(remedy.to_lowercase(), format!("{}.", detail.to_lowercase()));
}
