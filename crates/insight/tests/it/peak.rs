//! What a peak consists of, and the next-highest plateaus.

use vramscope_insight::peak::{Plateau, PlateauSearch, Plateaus, explain_peak};
use vramscope_insight::steps::Steps;
use vramscope_trace::{DeviceLifetimes, EventKind, Peak, Replay, live_bytes_by_site, site_name};

use crate::recordings::snapshot;
use crate::steps::{Analysed, DEVICE, Program, by_site};

/// Finds the plateaus of a whole recording.
fn plateaus(lifetimes: &DeviceLifetimes, from_event: u64, to_event: u64, dip_bytes: u64) -> Plateaus {
    let mut search = PlateauSearch::new(from_event, to_event, dip_bytes, None);
    loop {
        if let Some(found) = search.step(lifetimes) {
            return found;
        }
    }
}

#[test]
fn peak_has_its_composition_step_and_next_plateau() {
    let mut program = Program::new();
    program.allocate("weights", 10_000);
    let mut forward_moments = Vec::new();
    for size in [3_000, 5_000, 4_000, 4_990] {
        program.begin("step");
        let activation = program.allocate("forward", size);
        forward_moments.push(program.events());
        program.free(activation);
        let gradient = program.allocate("backward", 2_500);
        program.free(gradient);
        program.end("step");
    }
    let analysed = Analysed::new(program.finish());
    let (steps, lifetimes, end) = (analysed.steps(None), analysed.device(DEVICE), analysed.recording.end_event());
    let peak = analysed.recording.series(DEVICE).expect("it has events").peak_allocated();
    assert_eq!(peak, Peak { event: forward_moments[1], bytes: 15_000 });
    let composition = explain_peak(lifetimes, peak, (0, end), &steps, by_site);
    assert_eq!((composition.allocated_bytes, composition.pending_bytes, composition.blocks), (15_000, 0, 2));
    assert_eq!((composition.lasting_bytes, composition.before_steps_bytes), (10_000, Some(10_000)));
    assert_eq!(composition.step, Some((1, steps.as_slice()[1])));
    let definitions = analysed.recording.definitions();
    let names: Vec<(String, u64, u64)> = (composition.groups.iter())
        .map(|one| (site_name(definitions, vramscope_trace::SiteId(one.group)), one.bytes, one.before_steps_bytes))
        .collect();
    let expected = [("train.py:1 weights", 10_000, 10_000), ("train.py:1 forward", 5_000, 0)];
    assert_eq!(names, expected.map(|(name, bytes, before)| (name.to_owned(), bytes, before)));
    assert_eq!(composition.dip_bytes(), 500);
    let found = plateaus(lifetimes, 0, end, composition.dip_bytes());
    let next = found.next.expect("there are four steps");
    assert_eq!((next.event, next.bytes), (forward_moments[3], 14_990));
    assert_eq!(found.recurrences, 1, "only the last step nearly reaches the peak again");
    let other = found.next_of_other_site.expect("the backward pass");
    assert_eq!((other.event, other.bytes), (forward_moments[0] + 3, 12_500));
}

#[test]
fn search_from_a_known_or_wrong_peak_finds_equal_plateaus() {
    let analysed = Analysed::new(snapshot("mlp_train.pickle.zst"));
    let (lifetimes, end) = (analysed.device(DEVICE), analysed.recording.end_event());
    let expected = plateaus(lifetimes, 0, end, 64 << 20);
    let peak = expected.peak.expect("memory was allocated");
    for known in [peak, Plateau { bytes: peak.bytes - 1, ..peak }, Plateau { site: None, ..peak }] {
        let mut search = PlateauSearch::new(0, end, 64 << 20, Some(known));
        let found = std::iter::repeat_with(|| search.step(lifetimes)).flatten().next();
        assert_eq!(found, Some(expected));
    }
}

/// Finds plateaus from the allocated bytes at all moments: for each pair of a plateau's highest
/// moment and the next there is a dip.
fn brute_force(points: &[(u64, u64)], dip_bytes: u64) -> Vec<(u64, u64)> {
    // A moment is the highest of a plateau if, in both directions, the bytes fall by the dip (or
    // the recording ends) before they exceed it; of equal ones the first counts.
    let is_highest = |index: usize| {
        let bytes = points[index].1;
        let left = points[..index].iter().rev().find(|one| one.1 >= bytes || one.1 + dip_bytes <= bytes);
        let right = points[index..].iter().find(|one| one.1 > bytes || one.1 + dip_bytes <= bytes);
        left.is_none_or(|one| one.1 < bytes) && right.is_none_or(|one| one.1 < bytes)
    };
    (0..points.len()).filter(|&index| is_highest(index)).map(|index| points[index]).collect()
}

/// Compares the peak of a snapshot with its states.
fn check_peak(name: &str) {
    let analysed = Analysed::new(snapshot(name));
    let recording = &analysed.recording;
    let (first, end) = (recording.first_event(), recording.end_event());
    let lifetimes = analysed.device(DEVICE);
    let peak = recording.series(DEVICE).expect("it has events").peak_allocated();
    let mut replay = Replay::new();
    let composition = explain_peak(lifetimes, peak, (first, end), &analysed.steps(None), by_site);
    let state = replay.seek(recording, peak.event).expect("it can be read");
    let device = state.device(DEVICE).expect("it has events");
    assert_eq!(composition.allocated_bytes, peak.bytes, "{name}");
    assert_eq!(composition.allocated_bytes + composition.pending_bytes, device.counters().active, "{name}");
    let mut expected: Vec<(u32, u64)> = live_bytes_by_site(device).iter().map(|one| (one.site.0, one.bytes)).collect();
    let allocated = |bytes, pending| bytes - pending;
    let mut groups: Vec<(u32, u64)> = (composition.groups.iter())
        .map(|one| (one.group, allocated(one.bytes, one.pending_bytes)))
        .filter(|one| one.1 > 0)
        .collect();
    expected.sort_unstable();
    groups.sort_unstable();
    assert_eq!(groups, expected, "{name}");

    let points: Vec<(u64, u64)> = (first..=end)
        .map(|event| {
            let state = replay.seek(recording, event).expect("it can be read");
            (event, state.device(DEVICE).map_or(0, |device| device.counters().allocated))
        })
        .collect();
    for dip_bytes in [1, composition.dip_bytes(), peak.bytes / 3] {
        let found = plateaus(lifetimes, first, end, dip_bytes);
        let highest = found.peak.expect("memory was allocated");
        assert_eq!((highest.event, highest.bytes), (peak.event, peak.bytes), "{name}");
        let mut others = brute_force(&points, found.dip_bytes);
        others.retain(|one| one.0 != peak.event && one.1 > 0);
        // The first of the highest.
        others.sort_by_key(|one| (std::cmp::Reverse(one.1), one.0));
        let next = found.next.map(|next| (next.event, next.bytes));
        assert_eq!(next, others.first().copied(), "{name}, dips of {dip_bytes}");
        let site = |plateau: Plateau| {
            let event = plateau
                .event
                .checked_sub(1)
                .and_then(|index| Replay::new().event(recording, index).expect("it can be read"));
            match event.map(|event| event.kind) {
                Some(EventKind::BlockAllocated { site, .. }) => Some(site),
                _ => None,
            }
        };
        assert_eq!(found.peak.map(site), found.peak.map(|one| one.site), "{name}");
        assert_eq!(found.next_of_other_site.map(site), found.next_of_other_site.map(|one| one.site), "{name}");
    }
}

#[test]
fn peaks_equal_the_replay() {
    ["mlp_train.pickle.zst", "tiny_inference.pickle.zst", "streams.pickle.gz", "graphs.pickle.zst"]
        .iter()
        .for_each(|name| check_peak(name));
}

#[test]
fn range_without_allocations_has_no_peak() {
    let mut program = Program::new();
    program.allocate("weights", 512);
    let analysed = Analysed::new(program.finish());
    let lifetimes = analysed.device(DEVICE);
    let found = plateaus(lifetimes, 0, 1, 0);
    assert_eq!((found.peak, found.next, found.recurrences), (None, None, 0));
    let composition = explain_peak(lifetimes, Peak::default(), (0, 1), &Steps::default(), by_site);
    assert_eq!((composition.allocated_bytes, composition.groups.len(), composition.step), (0, 0, None));
}

#[test]
fn peaks_of_the_shared_recordings_are_explained() {
    for name in ["gpt_varlen", "resnet50_train", "mlp_train"] {
        let Some(analysed) = Analysed::shared(&format!("snapshots/{name}.pickle.zst")) else { continue };
        let (steps, lifetimes) = (analysed.steps(None), analysed.device(DEVICE));
        let (first, end) = (analysed.recording.first_event(), analysed.recording.end_event());
        let peak = analysed.recording.series(DEVICE).expect("it has events").peak_allocated();
        let composition = explain_peak(lifetimes, peak, (first, end), &steps, by_site);
        assert_eq!(composition.allocated_bytes, peak.bytes);
        let found = plateaus(lifetimes, first, end, composition.dip_bytes());
        let step = composition.step.map(|(_, step)| step.number);
        println!("{name}: {peak:?} in step {step:?} of {}, lasting {} B", steps.len(), composition.lasting_bytes);
        println!("  {found:?}");
        assert!(found.next.is_some_and(|next| next.bytes <= peak.bytes));
    }
}
