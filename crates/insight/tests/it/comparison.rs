//! Comparisons of real recordings: the changes of sites and categories add up to the difference of
//! the device's live bytes.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_insight::comparison::{DeviceTotals, Moment, RecordingLabel, Side, SiteChange, compare};
use vramscope_insight::history::History;
use vramscope_trace::{Counters, DeviceId, PerRecording, Recording, Replay, live_bytes_by_site};

use crate::recordings::{recorded_in, recordings_in, snapshots};
use crate::sites::random_moment;

/// Number of pairs of recordings that are compared.
const PAIRS: usize = 30;

/// A recording with its name and history.
struct Read {
    name: String,
    recording: Recording,
    history: History,
}

/// Reads all recordings of the repository.
fn recordings() -> Vec<Read> {
    let all = snapshots().chain(recordings_in("../../tests/data"));
    let all = all.chain(recordings_in("../../examples/pytorch/recordings"));
    let with_history = |(name, recording): (String, Recording)| {
        let mut history = History::new();
        while !history.extend(&recording, u64::MAX).expect("the recording is complete").is_complete {}
        Read { name, recording, history }
    };
    all.map(with_history).collect()
}

/// Runs of one program: alone on the device, beside other processes, under a cap, and with larger
/// batches.
const PAIRS_OF_RUNS: &str = "../../tests/labelled/pairs";

#[test]
fn equal_requests_that_one_run_had_less_memory_for_are_told_from_different_programs() {
    let runs: BTreeMap<String, Read> = recorded_in(PAIRS_OF_RUNS)
        .map(|(name, recording)| {
            let mut history = History::new();
            while !history.extend(&recording, u64::MAX).expect("the recording is complete").is_complete {}
            (name.clone(), Read { name, recording, history })
        })
        .collect();
    let less = |a: &str, b: &str| {
        let side = |name: &str| {
            let read = &runs[&format!("{name}.pickle.gz")];
            Side { recording: &read.recording, history: &read.history, moment: &Moment::Peak }
        };
        let comparison = compare(PerRecording { a: side(a), b: side(b) }, None).expect("they can be compared");
        comparison.devices[0].less_memory
    };
    let beside = less("alone", "beside").expect("the other run had less memory");
    assert_eq!((beside.failed_in, beside.is_capped, beside.event), (RecordingLabel::B, false, 1895));
    assert_eq!((beside.equal_requests, beside.requested_bytes), (610, 112 << 20));
    assert!(beside.obtainable_bytes.b < beside.obtainable_bytes.a, "{beside:?}");
    let reversed = less("beside", "alone").expect("the first run had less memory");
    assert_eq!(reversed.failed_in, RecordingLabel::A);
    assert_eq!(reversed.obtainable_bytes.a, beside.obtainable_bytes.b);
    let both = less("beside", "beside_more").expect("the second run had even less");
    assert_eq!(both.failed_in, RecordingLabel::B);
    let capped = less("alone", "capped").expect("the other run had a cap");
    // The cap was 1,500 MiB.
    assert!(capped.is_capped && capped.obtainable_bytes.b.abs_diff(1500 << 20) < 64 << 20, "{capped:?}");
    assert_eq!(less("alone", "larger"), None, "the second run requests more");
    assert_eq!(less("capped", "larger"), None, "the second run requests more");
    assert_eq!(less("alone", "again"), None, "neither failed");
}

/// Returns a device's counters at an event.
fn counters(recording: &Recording, device: DeviceId, event: u64) -> Counters {
    let mut replay = Replay::new();
    let state = replay.seek(recording, event).expect("the recording is complete");
    state.device(device).map(|device| device.counters()).unwrap_or_default()
}

/// Compares two recordings and checks that everything adds up. Returns the number of devices that
/// differ.
#[track_caller]
fn check<'a>(a: &'a Read, b: &'a Read, moments: [&'a Moment; 2], devices: Option<PerRecording<DeviceId>>) -> usize {
    let side = |of: &'a Read, moment| Side { recording: &of.recording, history: &of.history, moment };
    let sides = PerRecording { a: side(a, moments[0]), b: side(b, moments[1]) };
    let case = format!("{} {} {moments:?}", a.name, b.name);
    let comparison = compare(sides, devices).unwrap_or_else(|error| panic!("{case}: {error}"));
    let mut different = 0;
    for device in &comparison.devices {
        let PerRecording { a: totals_a, b: totals_b } = device.totals;
        let live = |of: &Read, id, totals: Option<_>| {
            totals.map_or(0, |event| i128::from(counters(&of.recording, id, event).active))
        };
        let live_a = live(a, device.device.a, totals_a.map(|totals| totals.moment));
        let live_b = live(b, device.device.b, totals_b.map(|totals| totals.moment));
        assert_eq!(device.live_growth(), live_b - live_a, "{case}");
        let sum = |growth: fn(&SiteChange) -> i128| device.sites.iter().map(growth).sum::<i128>();
        assert_eq!(sum(SiteChange::live_growth), live_b - live_a, "{case}");
        assert_eq!(device.categories.iter().map(|row| row.change_bytes).sum::<i128>(), live_b - live_a, "{case}");
        let end = |totals: Option<DeviceTotals>| i128::from(totals.map_or(0, |totals| totals.allocated_bytes));
        assert_eq!(sum(|site| site.growth().1), end(totals_b) - end(totals_a), "{case}");
        let churn = |totals: Option<DeviceTotals>| i128::from(totals.map_or(0, |totals| totals.churn.bytes));
        assert_eq!(sum(SiteChange::churn_growth), churn(totals_b) - churn(totals_a), "{case}");
        let allocated_sites = |of: &Read, id, moment| {
            let mut replay = Replay::new();
            let state = replay.seek(&of.recording, moment).expect("the recording is complete");
            state.device(id).map_or(0, |device| live_bytes_by_site(device).iter().map(|site| site.blocks).sum::<u64>())
        };
        let blocks = device.sites.iter().map(|site| site.at_moment.b.blocks).sum::<u64>();
        let moment = totals_b.map_or(0, |totals| totals.moment);
        assert_eq!(blocks, if totals_b.is_some() { allocated_sites(b, device.device.b, moment) } else { 0 }, "{case}");
        different += usize::from(live_a != live_b);
    }
    different
}

#[test]
fn changes_add_up_exactly() {
    let recordings = recordings();
    let mut random = fastrand::Rng::with_seed(14);
    let (mut pairs, mut different) = (BTreeSet::new(), 0);
    while pairs.len() < PAIRS {
        let index = random.usize(..recordings.len());
        // The next one is often another version of the program.
        let other = if random.bool() { (index + 1) % recordings.len() } else { random.usize(..recordings.len()) };
        if !pairs.insert((index, other)) {
            continue;
        }
        let (a, b) = (&recordings[index], &recordings[other]);
        let events = [a, b].map(|read| Moment::Event(random_moment(&mut random, &read.recording)));
        different += check(a, b, [&Moment::Peak; 2], None);
        check(a, b, [&events[0], &events[1]], None);
    }
    assert!(different >= 20, "only {different} differ");
}

#[test]
fn moments_and_devices_of_one_recording_add_up() {
    let recordings = recordings();
    let named =
        |name: &str| recordings.iter().find(|read| read.name.starts_with(name)).expect("it is in the repository");
    let mlp = named("mlp_train");
    assert_eq!(check(mlp, mlp, [&Moment::Step(2), &Moment::Step(2)], None), 0);
    check(mlp, mlp, [&Moment::Step(2), &Moment::Step(9)], None);
    assert_eq!(check(mlp, mlp, [&Moment::Event(0), &Moment::End], None), 1);
    let two = named("two_devices");
    let devices: Vec<DeviceId> = two.recording.devices().collect();
    check(two, two, [&Moment::Peak; 2], Some(PerRecording { a: devices[0], b: devices[1] }));
    check(two, mlp, [&Moment::Peak; 2], Some(PerRecording { a: devices[1], b: DeviceId(0) }));
}
