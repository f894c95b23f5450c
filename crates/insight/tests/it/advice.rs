//! Advice for real recordings: the ranking against single simulations, and the capacities against
//! runs around them.

use std::collections::HashMap;

use vramscope_insight::advice::{Advice, Advisor, Run};
use vramscope_pool::Settings;
use vramscope_pool::rerun::{History, Workload};
use vramscope_trace::{EventKind, Recording, Replay};

use crate::memory_summary::shared_snapshots;
use crate::recordings::{recordings_in, snapshot, snapshots};

const MIB: u64 = 1 << 20;

/// The requests of a recording's first device, its settings and the capacity to try settings in.
struct Program {
    workload: Workload,
    settings: Settings,
    capacity_bytes: Option<u64>,
}

impl Program {
    /// Reads the recording of a program that could reserve `limit_bytes`; `None` if the recording
    /// has no requests.
    fn new(recording: &Recording, limit_bytes: Option<u64>) -> Option<Self> {
        let settings = Settings::parse(&recording.info().alloc_conf).expect("recorded settings are valid");
        let settings = Settings { limit_bytes, ..settings };
        let history = History::from_recording(recording).expect("the recording is readable").into_iter().next()?;
        let workload = Workload::new(history, &settings).expect("the start state is valid");
        let capacity_bytes = workload.recorded_capacity_bytes;
        (workload.requests() > 0).then_some(Self { workload, settings, capacity_bytes })
    }

    /// Computes the advice with `outstanding` runs at once, of which the newest finishes first.
    fn advice(&self, outstanding: usize) -> Advice {
        let mut advisor = Advisor::new(&self.workload, &self.settings, self.capacity_bytes);
        let mut runs: Vec<Run> = Vec::new();
        loop {
            while runs.len() < outstanding {
                let Some(run) = advisor.next_run() else { break };
                runs.push(run);
            }
            assert_eq!(advisor.outstanding_runs(), runs.len());
            let Some(run) = runs.pop() else { break };
            advisor.finish(&run, run.simulate(&self.workload));
            let (finished, all) = advisor.progress();
            assert!(finished <= all && all < 300, "{finished} of {all} runs");
        }
        advisor.into_advice().expect("all runs are finished")
    }
}

/// Checks everything that holds for the advice of any program.
fn check(name: &str, program: &Program) -> Advice {
    let Program { workload, settings, capacity_bytes } = program;
    let advice = program.advice(1);
    let parallel = program.advice(3);
    assert_eq!(parallel.tried, advice.tried, "{name}: the order of runs does not matter");
    assert_eq!(parallel.smallest(), advice.smallest(), "{name}");
    assert_eq!(advice.recorded, workload.recorded, "{name}");

    assert!(advice.tried.len() <= 20, "{name}: {} settings", advice.tried.len());
    let figures = |trial: usize| {
        let predicted = advice.tried[trial].predicted;
        (predicted.ooms, predicted.peak_reserved_bytes, predicted.device_allocations, predicted.retries)
    };
    assert!(
        (1..advice.tried.len()).all(|rank| figures(rank - 1) <= figures(rank)),
        "{name}: sorted from best to worst"
    );
    let mut confs: Vec<String> = advice.tried.iter().map(|trial| trial.settings.to_conf()).collect();
    confs.sort();
    assert!(confs.windows(2).all(|pair| pair[0] != pair[1]), "{name}: {confs:?}");
    for trial in &advice.tried {
        let parsed = Settings::parse(&trial.settings.to_conf()).expect("the line to paste is valid");
        assert_eq!(parsed, trial.settings, "{name}");
        let simulated = workload.simulate(&parsed, *capacity_bytes);
        assert_eq!(simulated, trial.predicted, "{name}: {}", trial.settings.to_conf());
    }
    assert_eq!(advice.tried.iter().filter(|trial| trial.is_recorded).count(), 1, "{name}");
    assert_eq!(advice.baseline().settings.to_conf(), settings.to_conf(), "{name}");

    let bounds = advice.bounds();
    assert!(bounds.floor_bytes <= workload.recorded.peak_allocated_bytes, "{name}: {bounds:?}");
    for smallest in [&advice.smallest_recorded, &advice.smallest_best].into_iter().flatten() {
        let run = |bytes| workload.simulate(&smallest.settings, Some(bytes));
        let bytes = smallest.capacity_bytes;
        assert_eq!(run(bytes).ooms, 0, "{name}: {smallest:?}");
        assert_eq!(run(bytes), smallest.predicted, "{name}");
        assert!(bytes >= advice.floor_bytes, "{name}: {smallest:?}");
        if bytes > 2 * MIB {
            assert!(run(bytes - 2 * MIB).ooms > 0, "{name}: a request fails with 2 MiB less than {smallest:?}");
        }
    }
    assert_eq!(advice.smallest_best.is_some(), advice.is_worthwhile(), "{name}");
    advice
}

/// Computes the peak of the live requests of a recording's first device from its events.
fn floor_bytes(recording: &Recording) -> u64 {
    let device = recording.devices().next().expect("the recording has a device");
    let (mut live, mut bytes, mut peak) = (HashMap::new(), 0, 0);
    let mut replay = Replay::new();
    for number in 0..recording.end_event() {
        let event = replay.event(recording, number).expect("readable").expect("no gap");
        match event.kind {
            _ if event.device != device => {}
            EventKind::BlockAllocated { address, requested, .. } => {
                let rounded = requested.next_multiple_of(512);
                live.insert(address, rounded);
                bytes += rounded;
                peak = peak.max(bytes);
            }
            EventKind::FreeRequested { address, .. } => bytes -= live.remove(&address).unwrap_or(0),
            _ => {}
        }
    }
    peak
}

#[test]
fn advice_for_snapshots_equals_single_simulations() {
    let mut checked = 0;
    for (name, recording) in snapshots() {
        let limit_bytes = name.starts_with("frag_a").then_some(1 << 30);
        let Some(program) = Program::new(&recording, limit_bytes) else { continue };
        check(&name, &program);
        checked += 1;
    }
    assert!(checked > 10, "{checked} recordings");
}

#[test]
fn advice_for_example_recordings_equals_single_simulations() {
    for (name, recording) in recordings_in("../../examples/pytorch/recordings") {
        let Some(program) = Program::new(&recording, None) else { continue };
        let advice = check(&name, &program);
        if name == "variable_lengths-default.vram" {
            let best = advice.best();
            assert!(best.settings.expandable_segments, "{best:?}");
            assert!(advice.is_worthwhile() && advice.saved_bytes() > 100 << 20, "{best:?}");
        }
        if name == "variable_lengths-expandable_segments.vram" {
            assert!(advice.best().settings.expandable_segments);
        }
    }
}

#[test]
fn expandable_segments_are_best_for_varying_lengths() {
    for (name, recording, _) in shared_snapshots(|name| name == "gpt_varlen.pickle.zst") {
        let program = Program::new(&recording, None).expect("the recording has requests");
        let advice = program.advice(2);
        assert!(advice.best().settings.expandable_segments, "{name}");
        // `gpt_varlen_expandable` is the program under these settings.
        let expandable = advice.tried.iter().find(|trial| trial.settings.to_conf() == "expandable_segments:True");
        let predicted = expandable.expect("these settings are tried").predicted;
        assert_eq!(predicted.peak_reserved_bytes, 4_385_144_832, "{name}");
    }
}

#[test]
fn floor_is_the_peak_of_the_rounded_live_requests() {
    for name in ["mlp_train.pickle.zst", "tiny_inference.pickle.zst", "streams.pickle.gz"] {
        let recording = snapshot(name);
        let program = Program::new(&recording, None).expect("the recording has requests");
        assert_eq!(program.workload.floor_bytes, floor_bytes(&recording), "{name}");
    }
}

#[test]
fn failed_requests_count_more_than_memory() {
    let recording = snapshot("frag_a_expandable.pickle.zst");
    let program = Program::new(&recording, Some(1 << 30)).expect("the recording has requests");
    let advice = program.advice(2);
    let ooms: Vec<u64> = advice.tried.iter().map(|trial| trial.predicted.ooms).collect();
    assert!(ooms.is_sorted() && ooms.first() < ooms.last(), "{ooms:?}");
    let smallest = advice.smallest().expect("without a limit, no request fails");
    assert!(smallest.capacity_bytes > 1 << 30, "requests failed within 1 GiB: {smallest:?}");
}

#[test]
fn garbage_collection_is_tried_only_near_a_known_capacity() {
    let recording = snapshot("mlp_train.pickle.zst");
    let mut program = Program::new(&recording, None).expect("the recording has requests");
    let peak_bytes = program.workload.recorded.peak_reserved_bytes;
    for (capacity_bytes, expected) in [(None, false), (Some(100 * peak_bytes), false), (Some(peak_bytes), true)] {
        program.capacity_bytes = capacity_bytes;
        let advice = program.advice(1);
        let collects = advice.tried.iter().any(|trial| trial.settings.garbage_collection_threshold > 0.0);
        assert_eq!(collects, expected, "{capacity_bytes:?}");
    }
}

#[test]
fn settings_without_effect_are_not_tried() {
    let program = Program::new(&snapshot("tiny_inference.pickle.zst"), None).expect("the recording has requests");
    let advice = program.advice(1);
    for trial in &advice.tried {
        let settings = &trial.settings;
        let conf = settings.to_conf();
        // Its requests are small, except for a workspace of 32 MiB.
        assert!(settings.max_split_size_bytes.is_none_or(|max| max <= 32 * MIB), "{conf}");
        assert!(settings.expandable_segments || !conf.contains("large_segment_size_mb"), "{conf}");
    }
}
