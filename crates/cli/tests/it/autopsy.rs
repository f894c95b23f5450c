//! Tests of `autopsy`.

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
    assert_eq!((&oom["reproduced"], &oom["follows"]), (&Value::Bool(true), &Value::from("failure")), "{oom}");
    // The recording has neither the cap, of which only bounds are known, nor the device's size.
    assert!(oom["cap_bytes"].is_null() && oom["device_bytes"].is_null() && oom["outside_bytes"].is_null(), "{oom}");
    let bounds = [&oom["cap_at_least_bytes"], &oom["cap_below_bytes"]].map(|bytes| bytes.as_u64().expect("bytes"));
    assert!((bounds[0]..bounds[1]).contains(&(1260 << 20)), "{bounds:?}");
    let largest = oom["pinning"]["largest"].as_array().expect("an array");
    assert_eq!(largest.len() as u64, oom["pinning"]["blocks"].as_u64().expect("a number"));
    assert!(largest.iter().all(|pin| pin["site"].is_string() && pin["address"].is_string() && pin["bytes"].is_u64()));
    for remedy in remedies {
        assert_eq!(remedy["checked"], true, "{remedy}");
        assert!(remedy["kind"].is_string() && remedy["detail"].is_string() && remedy["saves_bytes"].is_u64());
    }

    let text = run(["autopsy".as_ref(), path.as_os_str()]);
    assert_eq!(text.code, Some(1), "{}", text.stderr);
    let verdict = report["verdict"]["summary"].as_str().expect("text");
    assert!(text.stdout.starts_with(&format!("{verdict}\n\nOUT OF MEMORY on device 0")), "{}", text.stdout);
    assert!(text.stdout.contains(oom["summary"].as_str().expect("text")), "{}", text.stdout);
}

#[test]
fn known_cap_is_reported_as_one_number() {
    let path = fixture("../labelled/development/oom_never_fits_2.pickle.gz");
    let options = ["--json", "--limit-bytes", "1716MiB"].map(std::ffi::OsStr::new);
    let finished = run(["autopsy".as_ref(), path.as_os_str()].into_iter().chain(options));
    let report: Value = serde_json::from_str(&finished.stdout).expect("the text is JSON");
    let oom = &report["ooms"][0];
    assert_eq!((oom["cap_bytes"].as_u64(), &oom["cause"]), (Some(1716 << 20), &Value::from("never_fits")), "{oom}");
    assert!(oom["cap_at_least_bytes"].is_null() && oom["cap_below_bytes"].is_null(), "{oom}");
}

#[test]
fn remedies_that_are_not_known_to_suffice_are_listed_apart() {
    let path = fixture("../labelled/development/oom_parameters_1.pickle.gz");
    let text = run(["autopsy".as_ref(), path.as_os_str()]).stdout;
    let (checked, unchecked) = text.split_once("does not show whether the program then needs more").expect("a list");
    assert!(checked.contains("No remedy that was simulated is known to be enough."), "{text}");
    assert!(unchecked.contains("parameters in 16 bits") && unchecked.contains("a cap of at least"), "{text}");
}

#[test]
fn defect_without_a_failure_is_reported_with_the_savings_of_its_remedy() {
    let path = fixture("../labelled/development/defect_deferred_frees_1.pickle.gz");
    let finished = run(["autopsy".as_ref(), path.as_os_str(), "--json".as_ref()]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).expect("the text is JSON");
    let defect = &report["defects"][0];
    assert_eq!(defect["pytorch_issue"], 175_015, "{report}");
    // On a GPU, the remedy reduced the memory from 514 MiB to 66 MiB.
    let saved = defect["saves_bytes"].as_u64().expect("bytes") >> 20;
    assert!((440..=456).contains(&saved), "{saved} MiB");
}

#[test]
fn recording_without_failure_is_a_success() {
    let path = fixture("mlp_train.pickle.zst");
    let finished = run(["autopsy".as_ref(), path.as_os_str()]);
    assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{}", finished.stdout);
    assert!(finished.stdout.starts_with("No out-of-memory error"), "{}", finished.stdout);
    let json = run(["autopsy".as_ref(), path.as_os_str(), "--json".as_ref()]);
    let report: Value = serde_json::from_str(&json.stdout).expect("the text is JSON");
    assert_eq!((json.code, &report["status"]), (Some(0), &Value::from("nothing")), "{}", json.stderr);
    assert_eq!((&report["ooms"], &report["defects"]), (&Value::from([0; 0]), &Value::from([0; 0])), "{report}");
}

#[test]
fn state_without_history_cannot_tell() {
    let path = fixture("../labelled/first_answers/state_only.pickle.zst");
    for command in ["autopsy", "diagnose"] {
        let text = run([command.as_ref(), path.as_os_str()]);
        assert_eq!(text.code, Some(3), "{}", text.stderr);
        assert!(text.stdout.contains("No history: leaks, steps and failures cannot be seen."), "{}", text.stdout);
        assert!(text.stdout.contains("vramscope run train.py"), "{}", text.stdout);
        let json = run([command.as_ref(), path.as_os_str(), "--json".as_ref()]);
        let report: Value = serde_json::from_str(&json.stdout).expect("the text is JSON");
        assert_eq!((json.code, &report["status"]), (Some(3), &Value::from("cannot_tell")), "{report}");
        assert_eq!(report["verdict"]["cause"], "no_history", "{report}");
    }
}
