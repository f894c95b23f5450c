//! Every PyTorch snapshot there is, imported by the real binary, says what PyTorch's own counters said.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use vramscope_tests::fixtures::{self, Fixture};
use vramscope_tests::vramscope;
use vramscope_trace::{DeviceId, MemoryState, Recording, Replay};

/// What `info --json` says of a device's last moment, and what `torch.cuda.memory_stats()` calls it.
const AT_THE_END: [(&str, &str); 6] = [
    ("allocated_bytes", "allocated_bytes.all.current"),
    ("reserved_bytes", "reserved_bytes.all.current"),
    ("active_bytes", "active_bytes.all.current"),
    ("requested_bytes", "requested_bytes.all.current"),
    ("blocks", "active.all.current"),
    ("ooms", "num_ooms"),
];
/// The same of the most that there was.
const AT_THE_PEAK: [(&str, &str); 2] =
    [("peak_allocated_bytes", "allocated_bytes.all.peak"), ("peak_reserved_bytes", "reserved_bytes.all.peak")];

/// Imports a snapshot and returns what `info --json` says of the result, and the result.
fn import(fixture: &Fixture, folder: &Path) -> (Value, Recording) {
    let name = fixture.file_name();
    let out = folder.join("out.vram");
    let imported = vramscope().arg("import").arg(&fixture.path).arg("-o").arg(&out).output().expect("the binary runs");
    assert!(imported.status.success(), "{name}: {}", String::from_utf8_lossy(&imported.stderr));
    let info = vramscope().arg("info").arg(&out).arg("--json").output().expect("the binary runs");
    assert!(info.status.success(), "{name}: {}", String::from_utf8_lossy(&info.stderr));
    let mut recording = Recording::new();
    recording.push(&fs::read(&out).expect("the import wrote it")).expect("the import wrote a recording");
    recording.finish().expect("the import wrote a whole recording");
    (serde_json::from_slice(&info.stdout).expect("--json prints JSON"), recording)
}

/// The pairs of allocated and reserved bytes that PyTorch reported after each step of `device`.
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

/// How many of the steps, counted from the last, are met one after the other in the replay.
fn steps_met(recording: &Recording, device: u16, steps: &[(u64, u64)]) -> usize {
    let mut replay = Replay::new();
    let moments: Vec<(u64, u64)> = (recording.first_event()..=recording.end_event())
        .map(|event| counters(replay.seek(recording, event).expect("what was taken in can be read"), device))
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
    let folder = TempDir::new().expect("a temporary folder");
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
        let owed = if complete { steps.len() } else { 1 };
        assert!(met >= owed, "{name}: only the last {met} of {} steps of device {number} are met", steps.len());
        let misfits = recording.end_state().device(DeviceId(number)).map_or(0, |device| device.misfits());
        assert_eq!(misfits, 0, "{name}: entries that contradict each other");
    }
}

/// The same of a recording whose truth was read on every device.
fn check_each_device(name: &str, is_whole: bool) {
    let fixture = Fixture::small(name);
    let folder = TempDir::new().expect("a temporary folder");
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
        assert_eq!(device["history_complete"].as_bool(), Some(is_whole), "{name}: complete");
        if is_whole {
            AT_THE_PEAK.iter().for_each(|(key, stat)| equals(key, stat));
        }
        let misfits = recording.end_state().device(DeviceId(index as u16)).map_or(0, |device| device.misfits());
        assert_eq!(misfits, 0, "{name}: entries that contradict each other");
    }
}

#[test]
fn those_with_a_truth_of_each_device() {
    fixtures::OF_EACH_DEVICE.iter().for_each(|&(name, is_whole)| check_each_device(name, is_whole));
}

#[test]
fn the_small_ones() {
    for name in fixtures::SMALL {
        check(&Fixture::small(name));
    }
}

#[test]
fn the_large_ones() {
    for name in fixtures::LARGE {
        if let Some(fixture) = Fixture::large(name) {
            check(&fixture);
        }
    }
}
