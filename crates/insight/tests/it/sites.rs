//! Live bytes and allocations by group, against memory states and single events.

use std::collections::{BTreeMap, HashMap};

use vramscope_insight::group::{GroupBy, Grouping, Phase};
use vramscope_insight::history::History;
use vramscope_insight::sites::{
    GroupPeak, GroupPeaks, GroupRow, RangeGroups, common_category, group_peaks, groups_at, groups_in_range, live_groups,
};
use vramscope_trace::{
    Category, DeviceId, DeviceState, EventKind, Lifetimes, LifetimesReader, MemoryState, Recording, Replay,
};

use crate::recordings::{recorded_in, snapshot};

/// Recordings with stacks, without, with blocks from before the recording, several streams, pools
/// and devices.
const RECORDINGS: [&str; 9] = [
    "mlp_train.pickle.zst",
    "alloc_stacks.pickle.gz",
    "annotated.pickle.gz",
    "frag_a_expandable.pickle.zst",
    "graphs.pickle.zst",
    "late.pickle.gz",
    "ring_threads.pickle.gz",
    "streams.pickle.gz",
    "two_devices.pickle.gz",
];

/// Returns the lifetimes of a recording, with the list of changes.
pub(crate) fn lifetimes_of(recording: &Recording) -> Lifetimes {
    let mut reader = LifetimesReader::with_changes();
    while !reader.is_at_end(recording) {
        reader.step(recording, 100_000, |_, _, _| {}).expect("the recording is complete");
    }
    reader.finish()
}

/// Returns a random moment of a recording.
pub(crate) fn random_moment(random: &mut fastrand::Rng, recording: &Recording) -> u64 {
    random.u64(recording.first_event()..=recording.end_event())
}

#[test]
fn live_groups_add_up_to_the_counters_and_equal_those_from_lifetimes() {
    let mut random = fastrand::Rng::with_seed(11);
    for name in RECORDINGS {
        let recording = snapshot(name);
        let definitions = recording.definitions();
        let history = History::of(&recording).expect("the recording is complete");
        let lifetimes = history.all_lifetimes();
        let mut replay = Replay::new();
        for by in GroupBy::ALL {
            let mut grouping = Grouping::of(by, &recording);
            for _ in 0..5 {
                let moment = random_moment(&mut random, &recording);
                let state = replay.seek(&recording, moment).expect("the recording is complete");
                for (id, device) in state.devices() {
                    grouping.set_categories(&history.categories(id));
                    let rows = live_groups(device, definitions, &mut grouping);
                    let counters = device.counters();
                    let sum = |of: fn(&GroupRow) -> u64| rows.iter().map(of).sum::<u64>();
                    assert_eq!(sum(|row| row.bytes), counters.active, "{name} {by:?} {moment}");
                    assert_eq!(sum(|row| row.bytes - row.pending_bytes), counters.allocated, "{name} {by:?} {moment}");
                    assert_eq!(sum(|row| row.requested_bytes), counters.requested, "{name} {by:?} {moment}");
                    assert_eq!(sum(|row| row.blocks), device.blocks().len() as u64, "{name} {by:?} {moment}");
                    assert!(rows.is_sorted_by(|a, b| a.bytes >= b.bytes));
                    assert!(rows.iter().all(|row| !row.name.is_empty()), "{name} {by:?} {moment}");
                    if let Some(device) = lifetimes.device(id) {
                        let from_lifetimes = groups_at(device, moment, definitions, &mut grouping);
                        assert_eq!(from_lifetimes, rows, "{name} {by:?} {moment}");
                    }
                }
            }
        }
    }
}

/// The sums over a group in a range, computed from single events.
#[derive(Debug, Default, PartialEq)]
struct Observed {
    allocations: u64,
    bytes: u64,
    peak: GroupPeak,
}

/// Adds the live bytes of a device's groups to their peaks.
fn observe_peaks(device: &DeviceState, moment: u64, grouping: &mut Grouping, observed: &mut HashMap<u32, Observed>) {
    let mut live: HashMap<u32, u64> = HashMap::new();
    for block in device.blocks() {
        *live.entry(grouping.group_of(block)).or_default() += block.size;
    }
    for (group, bytes) in live {
        let peak = &mut observed.entry(group).or_default().peak;
        if bytes > peak.bytes {
            *peak = GroupPeak { bytes, moment };
        }
    }
}

#[test]
fn ranges_equal_a_count_of_single_events() {
    let mut random = fastrand::Rng::with_seed(12);
    for name in RECORDINGS {
        let recording = snapshot(name);
        let definitions = recording.definitions();
        let lifetimes = lifetimes_of(&recording);
        let mut replay = Replay::new();
        for by in GroupBy::ALL {
            let mut grouping = Grouping::of(by, &recording);
            let from = random_moment(&mut random, &recording);
            let to = recording.end_event().min(from + random.u64(0..150));
            let mut observed: BTreeMap<DeviceId, HashMap<u32, Observed>> = BTreeMap::new();
            for moment in from..=to {
                let event = (moment > from).then(|| replay.event(&recording, moment - 1));
                let event = event.transpose().expect("the recording is complete").flatten();
                let state: &MemoryState = replay.seek(&recording, moment).expect("the recording is complete");
                for (id, device) in state.devices() {
                    observe_peaks(device, moment, &mut grouping, observed.entry(id).or_default());
                }
                let Some(event) = event else { continue };
                if let EventKind::BlockAllocated { address, size, .. } = event.kind {
                    let block = state.device(event.device).and_then(|device| device.block(address));
                    let group = grouping.group_of(block.expect("the event allocated it"));
                    let one = observed.entry(event.device).or_default().entry(group).or_default();
                    one.allocations += 1;
                    one.bytes += size;
                }
            }
            let end = replay.seek(&recording, to).expect("the recording is complete").clone();
            for (id, device) in lifetimes.devices() {
                let mut observed = observed.remove(&id).unwrap_or_default();
                let rows = groups_in_range(device, definitions, &mut grouping, |moment| 10 * moment, (from, to), None);
                for row in &rows {
                    let one = observed.get(&row.group).expect("an event allocated a block of the group");
                    assert_eq!(
                        (row.allocations, row.bytes),
                        (one.allocations, one.bytes),
                        "{name} {by:?} {from}..{to}"
                    );
                    let mean_difference_ns = row.mean_lifetime_ns - 10.0 * row.mean_lifetime_events;
                    assert!(mean_difference_ns.abs() <= 1e-12 * row.mean_lifetime_ns, "{mean_difference_ns}");
                    assert_eq!(row.max_lifetime_ns, 10 * row.max_lifetime_events);
                    assert!(row.mean_lifetime_events <= row.max_lifetime_events as f64);
                    let survivors = end.device(id).into_iter().flat_map(|device| device.blocks());
                    let survivors = survivors.filter(|block| block.since_event >= from && block.since_event < to);
                    let live: u64 =
                        survivors.filter(|block| grouping.group_of(block) == row.group).map(|block| block.size).sum();
                    assert_eq!(row.live_bytes_at_end, live, "{name} {by:?} {from}..{to}");
                }
                let allocating = observed.values().filter(|one| one.allocations > 0).count();
                assert_eq!(rows.len(), allocating, "{name} {by:?} {from}..{to}");
                let peaks = group_peaks(device, &mut grouping, from, to).expect("the changes are kept");
                for (group, peak) in (0..).zip(peaks) {
                    let expected = observed.remove(&group).unwrap_or_default().peak;
                    assert_eq!(peak, expected, "{name} {by:?} {from}..{to} {group}");
                }
                assert!(observed.values().all(|one| one.peak.bytes == 0), "{name} {by:?} {from}..{to}");
            }
        }
    }
}

#[test]
fn range_in_small_steps_equals_one_step() {
    let recording = snapshot("mlp_train.pickle.zst");
    let lifetimes = lifetimes_of(&recording);
    let (_, device) = lifetimes.devices().next().expect("the recording has a device");
    let mut grouping = Grouping::of(GroupBy::Line, &recording);
    let (from, to) = (100, recording.end_event() - 50);
    let at_once = groups_in_range(device, recording.definitions(), &mut grouping, |moment| moment, (from, to), None);
    let mut range = RangeGroups::new(from, to);
    let mut progress = 0.0;
    while !range.step(device, &mut grouping, |moment| moment, None, 7) {
        assert!(range.progress() > progress && range.progress() < 1.0);
        progress = range.progress();
    }
    assert_eq!(range.progress(), 1.0);
    assert_eq!(range.rows(recording.definitions(), &mut grouping), at_once);
    assert!(
        groups_in_range(device, recording.definitions(), &mut grouping, |moment| moment, (to, from), None).is_empty()
    );

    let mut peaks = GroupPeaks::new(from, to);
    while !peaks.step(device, &mut grouping, 7).expect("the changes are kept") {}
    assert_eq!(Some(peaks.peaks()), group_peaks(device, &mut grouping, from, to));
}

#[test]
fn optimizer_state_of_mlp_train_is_inferred() {
    let recording = snapshot("mlp_train.pickle.zst");
    // The program releases everything at its end.
    let mut replay = Replay::new();
    let state = replay.seek(&recording, recording.end_event() * 9 / 10).expect("the recording is complete");
    let (_, device) = state.devices().next().expect("the recording has a device");
    let history = History::of(&recording).expect("the recording is complete");
    let mut by_category = Grouping::of(GroupBy::Category, &recording).with_categories(&history.categories(DeviceId(0)));
    let rows = live_groups(device, recording.definitions(), &mut by_category);
    let optimizer = rows.iter().find(|row| &*row.name == "optimizer state (inferred)").expect("Adam has state");
    // Adam keeps two averages (its "moments") for each parameter.
    assert_eq!(optimizer.requested_bytes, 2 * 8_088_040);
    assert_eq!(common_category(&optimizer.categories).map(|one| one.category), Some(Category::OptimizerState));
    let parameters = rows.iter().find(|row| &*row.name == "parameter (inferred)").expect("the model has parameters");
    assert_eq!(parameters.requested_bytes, 8_088_040);
    // The first matrix products keep workspaces of cuBLAS.
    let workspaces = rows.iter().find(|row| &*row.name == "workspace (inferred)");
    assert_eq!(workspaces.map(|row| row.requested_bytes), Some(65 << 20));
    let mut by_phase = Grouping::of(GroupBy::Phase, &recording);
    let rows = live_groups(device, recording.definitions(), &mut by_phase);
    let optimizer = rows.iter().find(|row| &*row.name == Phase::Optimizer.name()).expect("Adam has state");
    assert_eq!(optimizer.requested_bytes, 2 * 8_088_040);

    // At this moment, the step has cleared its gradients; some of them live at the peak.
    let peak = recording.series(DeviceId(0)).expect("the recording has counters").peak_allocated().event;
    let state = replay.seek(&recording, peak).expect("the recording is complete");
    let (_, device) = state.devices().next().expect("the recording has a device");
    let at_peak = live_groups(device, recording.definitions(), &mut by_category);
    let gradients = at_peak.iter().find(|row| &*row.name == "gradient (inferred)");
    assert!(gradients.is_some_and(|row| row.requested_bytes >= 8_088_040), "{at_peak:?}");
}

#[test]
fn blocks_from_before_the_recording_say_so() {
    let recording = snapshot("late.pickle.gz");
    let mut replay = Replay::new();
    let first = replay.seek(&recording, recording.first_event()).expect("the recording is complete");
    let (_, device) = first.devices().next().expect("the recording begins with blocks");
    for by in [GroupBy::Site, GroupBy::Line, GroupBy::Category, GroupBy::Phase] {
        let mut grouping = Grouping::of(by, &recording);
        let rows = live_groups(device, recording.definitions(), &mut grouping);
        assert_eq!(&*rows[0].name, "allocated before recording began", "{by:?}: {rows:?}");
        let details = grouping.group_details(recording.definitions(), rows[0].group);
        assert!(details.why_no_stack.is_some_and(|why| why.sentence().ends_with('.')), "{details:?}");
    }
}

#[test]
fn nearly_all_bytes_have_a_line_of_the_program_or_an_operation() {
    // Real programs, then small ones, of which some pass a gradient to the backward pass: nothing
    // says where they call it.
    let programs = recorded_in("../../tests/data/categories").map(|(name, recording)| (name, recording, true));
    let small = recorded_in("../../tests/data").map(|(name, recording)| (name, recording, false));
    let (mut named, mut known, mut first_rows) = (0u64, 0u64, 0u64);
    for (name, recording, is_program) in programs.chain(small) {
        let grouping = Grouping::of(GroupBy::Line, &recording);
        if !grouping.recorded_stacks().has_stacks() {
            continue;
        }
        let mut replay = Replay::new();
        for device in recording.devices() {
            let mut grouping = grouping.clone();
            let Some(series) = recording.series(device) else { continue };
            let state = replay.seek(&recording, series.peak_allocated().event).expect("the recording is complete");
            let Some(memory) = state.device(device) else { continue };
            let mut rows = live_groups(memory, recording.definitions(), &mut grouping);
            rows.retain(|row| &*row.name != "allocated before recording began");
            let is_named = |row: &&GroupRow| !row.name.contains("no line recorded");
            let bytes = |rows: &mut dyn Iterator<Item = &GroupRow>| rows.map(|row| row.bytes).sum::<u64>();
            let [of_all, of_named] = [bytes(&mut rows.iter()), bytes(&mut rows.iter().filter(is_named))];
            if of_named < of_all / 20 * 19 {
                println!("{name}: {of_named} of {of_all} B");
            }
            (named, known) = (named + of_named, known + of_all);
            first_rows += u64::from(is_program && rows.first().is_some_and(|row| !is_named(&row)));
        }
    }
    println!("{named} of {known} B have a line or an operation; {first_rows} first rows have none");
    assert!(named >= known / 100 * 95 && first_rows == 0, "{named} of {known} B, {first_rows} first rows");
}
