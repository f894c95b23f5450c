//! Imported PyTorch snapshots agree with PyTorch's own counters.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use vramscope_tests::fixtures::{self, Fixture};
use vramscope_tests::vramscope;
use vramscope_trace::{DeviceId, MemoryState, Recording, Replay};

/// Keys of `info --json` at the end of a recording, and of `torch.cuda.memory_stats()`.
const AT_THE_END: [(&str, &str); 6] = [
    ("allocated_bytes", "allocated_bytes.all.current"),
    ("reserved_bytes", "reserved_bytes.all.current"),
    ("active_bytes", "active_bytes.all.current"),
    ("requested_bytes", "requested_bytes.all.current"),
    ("blocks", "active.all.current"),
    ("ooms", "num_ooms"),
];
/// Keys of the peaks.
const AT_THE_PEAK: [(&str, &str); 2] =
    [("peak_allocated_bytes", "allocated_bytes.all.peak"), ("peak_reserved_bytes", "reserved_bytes.all.peak")];

/// Imports a snapshot and returns `info --json` of the recording, and the recording.
fn import(fixture: &Fixture, folder: &Path) -> (Value, Recording) {
    let name = fixture.file_name();
    let out = folder.join("out.vram");
    let imported = vramscope().arg("import").arg(&fixture.path).arg("-o").arg(&out).output().expect("vramscope starts");
    assert!(imported.status.success(), "{name}: {}", String::from_utf8_lossy(&imported.stderr));
    let info = vramscope().arg("info").arg(&out).arg("--json").output().expect("vramscope starts");
    assert!(info.status.success(), "{name}: {}", String::from_utf8_lossy(&info.stderr));
    let mut recording = Recording::new();
    recording
        .push(&fs::read(&out).expect("the import has written the file"))
        .expect("the import has written a valid recording");
    recording.finish().expect("the recording is complete");
    (serde_json::from_slice(&info.stdout).expect("--json prints JSON"), recording)
}

/// Returns the allocated and reserved bytes that PyTorch reported after each step of `device`.
fn steps(fixture: &Fixture, device: usize) -> Vec<(u64, u64)> {
    let truth = fixture.truth();
    let of = |step: &Value, key: &str| {
        let value = &step[key];
        value.as_u64().or_else(|| value[device].as_u64())
    };
    let steps = truth["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    steps.iter().filter_map(|step| Some((of(step, "allocated")?, of(step, "reserved")?))).collect()
}

fn counters(state: &MemoryState, device: u16) -> (u64, u64) {
    let counters = state.device(DeviceId(device)).map(|device| device.counters()).unwrap_or_default();
    (counters.allocated, counters.reserved)
}

/// Returns how many steps, counted from the last, occur in this order in the replay.
fn steps_met(recording: &Recording, device: u16, steps: &[(u64, u64)]) -> usize {
    let mut replay = Replay::new();
    let moments: Vec<(u64, u64)> = (recording.first_event()..=recording.end_event())
        .map(|event| {
            counters(replay.seek(recording, event).expect("every moment of the recording can be read"), device)
        })
        .collect();
    let mut left = steps;
    for moment in moments.iter().rev() {
        while let Some((last, before)) = left.split_last()
            && last == moment
        {
            left = before;
        }
    }
    steps.len() - left.len()
}

fn check(fixture: &Fixture) {
    let name = fixture.file_name();
    let folder = TempDir::new().expect("a temporary folder can be created");
    let (info, recording) = import(fixture, folder.path());
    let expected_events: Vec<u64> =
        fixture.truth()["events"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    assert_eq!(info["events"].as_u64(), Some(expected_events.iter().sum()), "{name}: entries in all");
    assert_eq!(info["format"]["name"], "vramscope", "{name}");
    for device in info["devices"].as_array().expect("devices") {
        let number = device["device"].as_u64().expect("a device number") as u16;
        let index = usize::from(number);
        let of = |key: &str| device[key].as_u64().unwrap_or_else(|| panic!("{name}: no {key}"));
        assert_eq!(of("events"), expected_events[index], "{name}: entries of device {number}");
        let truth = |key: &str| match number {
            0 => Some(fixture.stat(key)),
            _ => None,
        };
        for (key, stat) in AT_THE_END {
            if let Some(expected) = truth(stat) {
                assert_eq!(of(key), expected, "{name}: {key} of device {number}");
            }
        }
        let complete = device["history_complete"].as_bool().expect("history_complete");
        assert_eq!(complete, !matches!(name.as_str(), "ring.pickle.zst" | "big.pickle.zst"), "{name}: complete");
        if complete {
            for (key, stat) in AT_THE_PEAK {
                if let Some(expected) = truth(stat) {
                    assert_eq!(of(key), expected, "{name}: {key} of device {number}");
                }
            }
        }
        let steps = steps(fixture, index);
        let met = steps_met(&recording, number, &steps);
        println!("{name}: device {number}: {met} of {} steps met", steps.len());
        let required = if complete { steps.len() } else { 1 };
        assert!(met >= required, "{name}: only the last {met} of {} steps of device {number} are met", steps.len());
        let contradictions =
            recording.end_state().device(DeviceId(number)).map_or(0, |device| device.inconsistencies());
        assert_eq!(contradictions, 0, "{name}: contradictory entries");
    }
}

/// Checks a recording whose ground truth covers every device.
fn check_each_device(name: &str, is_complete: bool) {
    let fixture = Fixture::small(name);
    let folder = TempDir::new().expect("a temporary folder can be created");
    let (info, recording) = import(&fixture, folder.path());
    assert_eq!(info["events"].as_u64(), Some(fixture.events()), "{name}: entries in all");
    for device in info["devices"].as_array().expect("devices") {
        let index = device["device"].as_u64().expect("a device number") as usize;
        let stats = &fixture.truth()["device_stats"][index];
        let equals = |key: &str, stat: &str| {
            let (found, expected) = (device[key].as_u64(), stats[stat].as_u64());
            assert!(found.is_some() && found == expected, "{name}: {key} of device {index}: {found:?}, {expected:?}");
        };
        AT_THE_END.iter().for_each(|(key, stat)| equals(key, stat));
        assert_eq!(device["history_complete"].as_bool(), Some(is_complete), "{name}: complete");
        if is_complete {
            AT_THE_PEAK.iter().for_each(|(key, stat)| equals(key, stat));
        }
        let contradictions =
            recording.end_state().device(DeviceId(index as u16)).map_or(0, |device| device.inconsistencies());
        assert_eq!(contradictions, 0, "{name}: contradictory entries");
    }
}

#[test]
fn snapshots_match_pytorchs_counters_on_each_device() {
    fixtures::WITH_DEVICE_STATS.iter().for_each(|&(name, is_complete)| check_each_device(name, is_complete));
}

#[test]
fn small_snapshots_match_pytorchs_counters() {
    for name in fixtures::SMALL {
        check(&Fixture::small(name));
    }
}

#[test]
fn large_snapshots_match_pytorchs_counters() {
    for name in fixtures::LARGE {
        if let Some(fixture) = Fixture::large(name) {
            check(&fixture);
        }
    }
}
