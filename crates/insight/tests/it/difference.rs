//! Differences by group, against the devices' counters and blocks.

use std::collections::HashMap;

use vramscope_insight::difference::{DifferenceKind, MatchingNames, MomentFigures, differences};
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::matching::MatchedSites;
use vramscope_insight::placement::recorded_settings;
use vramscope_insight::pools::device_usage;
use vramscope_insight::sites::live_groups;
use vramscope_trace::{DeviceState, Recording, Replay};

use crate::recordings::snapshot;
use crate::sites::random_moment;

/// A recording and a random moment of one of its devices.
struct Side {
    recording: Recording,
    device: DeviceState,
}

impl Side {
    /// Goes to a random moment of a recording.
    fn new(name: &str, random: &mut fastrand::Rng) -> Self {
        let recording = snapshot(name);
        let moment = random_moment(random, &recording);
        let mut replay = Replay::new();
        let state = replay.seek(&recording, moment).expect("the recording is complete");
        let device = random.choice(state.devices()).map(|(_, device)| device.clone()).unwrap_or_default();
        Self { recording, device }
    }

    /// Returns the bytes and number of live blocks by name of their group.
    fn by_name(&self, grouping: &mut Grouping) -> HashMap<String, (u64, u64)> {
        let mut sums: HashMap<String, (u64, u64)> = HashMap::new();
        for block in self.device.blocks() {
            let group = grouping.group_of(block);
            let sum = sums.entry(grouping.group_name(self.recording.definitions(), group)).or_default();
            *sum = (sum.0 + block.size, sum.1 + 1);
        }
        sums
    }
}

#[test]
fn changes_add_up_to_the_difference_of_the_counters() {
    let mut random = fastrand::Rng::with_seed(17);
    for (a, b) in [
        ("mlp_train.pickle.zst", "mlp_train.pickle.zst"),
        ("mlp_train.pickle.zst", "alloc_stacks.pickle.gz"),
        ("two_devices.pickle.gz", "two_devices.pickle.gz"),
        ("late.pickle.gz", "graphs.pickle.zst"),
        ("streams.pickle.gz", "frag_a_expandable.pickle.zst"),
    ] {
        for by in GroupBy::ALL {
            let sides = [Side::new(a, &mut random), Side::new(b, &mut random)];
            let mut groupings = sides.each_ref().map(|side| Grouping::of(by, &side.recording));
            let [rows_a, rows_b] = [0, 1].map(|index: usize| {
                let side = &sides[index];
                live_groups(&side.device, side.recording.definitions(), &mut groupings[index])
            });
            let rows = differences(&rows_a, &rows_b, &MatchingNames::default());
            let [active_a, active_b] = sides.each_ref().map(|side| i128::from(side.device.counters().active));
            assert_eq!(rows.iter().map(|row| row.change_bytes).sum::<i128>(), active_b - active_a, "{a} {b} {by:?}");
            let [mut names_a, mut names_b] = [0, 1].map(|index: usize| sides[index].by_name(&mut groupings[index]));
            for row in &rows {
                let expected_a = names_a.remove(&*row.name).unwrap_or_default();
                let expected_b = names_b.remove(&*row.name).unwrap_or_default();
                assert_eq!((row.a_bytes, row.a_blocks), expected_a, "{a} {by:?} {}", row.name);
                assert_eq!((row.b_bytes, row.b_blocks), expected_b, "{b} {by:?} {}", row.name);
                assert_eq!(row.kind == DifferenceKind::New, row.a_group.is_none());
                assert_eq!(row.kind == DifferenceKind::Gone, row.b_group.is_none());
            }
            assert!(names_a.is_empty() && names_b.is_empty(), "{a} {b} {by:?}");
            assert!(rows.is_sorted_by(|one, next| one.change_bytes.abs() >= next.change_bytes.abs()));
        }
    }
}

#[test]
fn equal_moments_have_no_difference() {
    let recording = snapshot("mlp_train.pickle.zst");
    let side = Side::new("mlp_train.pickle.zst", &mut fastrand::Rng::with_seed(3));
    let mut grouping = Grouping::of(GroupBy::Line, &recording);
    let rows = live_groups(&side.device, recording.definitions(), &mut grouping);
    let definitions = recording.definitions();
    let sites = MatchedSites::of_one_recording(definitions);
    let names = MatchingNames::new(&sites, (definitions, &mut grouping.clone()), (definitions, &mut grouping));
    assert_eq!(names, MatchingNames::default());
    let differences = differences(&rows, &rows, &names);
    assert!(differences.iter().all(|row| row.kind == DifferenceKind::Same && row.a_bytes == row.b_bytes));
}

#[test]
fn figures_equal_those_of_the_memory_state() {
    let recording = snapshot("frag_a_expandable.pickle.zst");
    let mut replay = Replay::new();
    let moment = recording.end_event() / 2;
    let state = replay.seek(&recording, moment).expect("the recording is complete");
    let (_, device) = state.devices().next().expect("the recording has a device");
    let settings = recorded_settings(recording.info());
    let figures = MomentFigures::of(device, &settings);
    assert_eq!(figures.counters, device.counters());
    assert_eq!(figures.free.total, device.counters().reserved - device.counters().active);
    assert_eq!((figures.segments, figures.blocks), (device.segments().len() as u64, device.blocks().len() as u64));
    assert!(figures.expandable_segments > 0 && figures.expandable_segments <= figures.segments);
    let usage = device_usage(device, &settings);
    assert_eq!((figures.releasable_bytes(), figures.stuck_bytes), (usage.releasable_bytes, usage.stuck_bytes));
    assert!(figures.releasable_bytes() > 0 && figures.stuck_bytes > 0, "{figures:?}");
    assert_eq!(figures.pending_bytes() + figures.counters.allocated, figures.counters.active);
}
