//! Imported snapshots give exactly the counters that PyTorch reported.

use super::common::{LARGE, Recorded, SMALL, import_all, moments, recorded};
use serde_json::Value;
use vramscope_trace::{Annotation, AnnotationStage, Counters, Definitions, DeviceId, EventKind, MemorySink};

fn number(value: &Value) -> u64 {
    value.as_u64().expect("the value is an integer")
}

/// Returns a step's value for one device; programs with several GPUs recorded a list.
fn of_device(value: &Value, device: usize) -> u64 {
    value.get(device).map_or_else(|| number(value), number)
}

/// Returns `[allocated, reserved]` after each recorded step.
fn steps(truth: &Value, device: usize) -> Vec<[u64; 2]> {
    let steps = truth["steps"].as_array().expect("the steps are a list");
    steps.iter().map(|step| ["allocated", "reserved"].map(|field| of_device(&step[field], device))).collect()
}

/// Returns how many of the steps occur in order among the moments.
fn count_matching_steps(steps: &[[u64; 2]], moments: &[Counters]) -> usize {
    let mut left = steps.iter().peekable();
    for moment in moments {
        left.next_if_eq(&&[moment.allocated, moment.reserved]);
    }
    steps.len() - left.len()
}

/// Returns how many of the recorded steps are in an incomplete history: the number of optimizer
/// steps that end in it, but at least one.
fn steps_within(memory: &MemorySink, steps: usize) -> usize {
    let mut definitions = Definitions::default();
    memory.definitions.iter().cloned().for_each(|definition| definitions.define(definition));
    let is_step = |annotation: &&Annotation| {
        annotation.stage == AnnotationStage::End
            && annotation.at_event > 0
            && definitions.string(annotation.name).starts_with("Optimizer.step")
    };
    memory.annotations.iter().filter(is_step).count().clamp(1, steps)
}

fn check(recorded: &Recorded) {
    let Recorded { name, pickle, truth } = recorded;
    let (memory, imported) = import_all(pickle, name);
    println!("{name}: {} events, notes {:?}", imported.events, imported.info.import_notes);
    assert_eq!(imported.contradictions, 0, "{name}");
    assert_eq!(imported.info.source, *name);
    for note in &imported.info.import_notes {
        let is_expected = ["began after memory", "were rebuilt", "up to 1 MiB", "from before the history"]
            .iter()
            .any(|part| note.contains(part));
        assert!(is_expected, "{name}: {note}");
    }
    let events = truth["events"].as_array().expect("the event counts are a list");
    for (device, of_device) in events.iter().enumerate() {
        let id = DeviceId(device as u16);
        let (moments, end) = moments(&memory, id);
        assert_eq!(moments.len() as u64 - 1, number(of_device), "{name}: events of device {device}");
        let info = imported.info.devices.iter().find(|info| usize::from(info.device) == device);
        let info = info.unwrap_or_else(|| panic!("{name}: device {device} is left out"));
        if end.device(id).is_none() {
            assert_eq!(number(of_device), 0, "{name}: device {device} did nothing");
            continue;
        }
        assert_eq!(end.device(id).map(|device| device.inconsistencies()), Some(0), "{name}: device {device}");
        check_end(name, truth, device, &moments, info.history_complete);
        let steps = steps(truth, device);
        let within = if info.history_complete { steps.len() } else { steps_within(&memory, steps.len()) };
        println!("{name}: device {device} has the last {within} of {} steps", steps.len());
        assert_eq!(
            count_matching_steps(&steps[steps.len() - within..], &moments),
            within,
            "{name}: steps of device {device} met"
        );
    }
}

/// Checks the counters at the end, and the peaks if the history is complete.
fn check_end(name: &str, truth: &Value, device: usize, moments: &[Counters], is_complete: bool) {
    let end = moments.last().copied().unwrap_or_default();
    if device > 0 {
        // The counters were recorded for device 0 only; other devices have the steps.
        assert_eq!(steps(truth, device).last(), Some(&[end.allocated, end.reserved]), "{name}: device {device}");
        return;
    }
    type Field = (&'static str, fn(&Counters) -> u64);
    let fields: [Field; 4] = [
        ("allocated_bytes", |counters| counters.allocated),
        ("active_bytes", |counters| counters.active),
        ("reserved_bytes", |counters| counters.reserved),
        ("requested_bytes", |counters| counters.requested),
    ];
    for (field, of) in fields {
        let stat = |which: &str| number(&truth["stats"][format!("{field}.all.{which}")]);
        assert_eq!(of(&end), stat("current"), "{name}: {field} at the end");
        if is_complete {
            assert_eq!(moments.iter().map(of).max(), Some(stat("peak")), "{name}: peak of {field}");
        }
    }
}

#[test]
fn small_recordings_match_pytorch() {
    for name in SMALL {
        check(&recorded(name).expect("the repository contains this snapshot"));
    }
}

#[test]
fn large_recordings_match_pytorch() {
    for name in LARGE {
        if let Some(recorded) = recorded(name) {
            check(&recorded);
        }
    }
}

/// A snapshot of 4 million events; run it with `cargo test --release -p vramscope-formats --
/// --ignored`.
#[test]
#[ignore = "takes minutes without optimization"]
fn snapshot_big_matches_pytorch() {
    if let Some(recorded) = recorded("big") {
        check(&recorded);
    }
}

#[test]
fn only_complete_histories_are_marked_complete() {
    for name in SMALL {
        let recorded = recorded(name).expect("the repository contains this snapshot");
        let (memory, imported) = import_all(&recorded.pickle, name);
        let is_complete = name != "ring";
        assert_eq!(imported.info.devices[0].history_complete, is_complete, "{name}");
        assert_eq!(memory.states.len(), usize::from(!is_complete), "{name}");
    }
}

#[test]
fn private_pools_own_their_segments() {
    let recorded = recorded("graphs").expect("the repository contains this snapshot");
    let (memory, _) = import_all(&recorded.pickle, "graphs");
    let (_, end) = moments(&memory, DeviceId(0));
    let segments = end.device(DeviceId(0)).expect("the recording has device 0").segments();
    let owned = segments.filter(|segment| segment.pool.owner.0 > 0).count();
    assert_eq!(owned, 8);
    // The pool of a block is the pool of its segment.
    let in_private = |kind: &EventKind| matches!(kind, EventKind::BlockAllocated { pool, .. } if pool.owner.0 > 0);
    assert!(memory.events.iter().any(|event| in_private(&event.kind)));
}
