//! The rows of tables add up to the counters and to a count of all events.

use std::collections::BTreeMap;

use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::history::History;
use vramscope_insight::sites::groups_at;
use vramscope_insight::tables::{GroupTableScan, TableRow, group_table};
use vramscope_trace::{DeviceId, EventKind, Recording, Replay};

use crate::recordings::{recorded_in, recordings_in, snapshots};
use crate::sites::random_moment;

/// Number and bytes of the allocations of each device, from single events.
fn allocations(recording: &Recording) -> BTreeMap<DeviceId, (u64, u64)> {
    let mut replay = Replay::new();
    let mut sums: BTreeMap<DeviceId, (u64, u64)> = BTreeMap::new();
    for index in recording.first_event()..recording.end_event() {
        let event = replay.event(recording, index).expect("the recording is complete");
        if let Some((device, EventKind::BlockAllocated { size, .. })) = event.map(|event| (event.device, event.kind)) {
            let (count, bytes) = sums.entry(device).or_default();
            (*count, *bytes) = (*count + 1, *bytes + size);
        }
    }
    sums
}

/// Checks the tables of a recording at the peak, at the end and at 20 random moments.
fn check(name: &str, recording: &Recording) {
    let mut random = fastrand::Rng::with_seed(13);
    let mut history = History::new();
    while !history.extend(recording, 100_000).expect("the recording is complete").is_complete {}
    let bounds = (recording.first_event(), recording.end_event());
    let made = allocations(recording);
    let mut replay = Replay::new();
    for (id, lifetimes) in history.all_lifetimes().devices() {
        let peak = recording.series(id).map_or(0, |series| series.peak_allocated().event);
        let moments = [peak.clamp(bounds.0, bounds.1), bounds.1];
        let moments = moments.into_iter().chain((0..20).map(|_| random_moment(&mut random, recording)));
        for (index, moment) in moments.enumerate() {
            // Every grouping at the peak and at the end, then one after the other.
            let all = &GroupBy::ALL;
            let groupings = if index < 2 { &all[..] } else { std::slice::from_ref(&all[index % all.len()]) };
            let state = replay.seek(recording, moment).expect("the recording is complete");
            let (counters, blocks) =
                state.device(id).map(|device| (device.counters(), device.blocks().len())).unwrap_or_default();
            for &by in groupings {
                let mut grouping = Grouping::of(by, recording);
                let table = group_table(lifetimes, recording.definitions(), &mut grouping, moment, bounds);
                let table = table.expect("the changes are kept");
                let sum = |of: fn(&TableRow) -> u64| table.rows.iter().map(of).sum::<u64>();
                let context = format!("{name} {id} {by:?} {moment}");
                assert_eq!((sum(|row| row.bytes), table.total_bytes), (counters.active, counters.active), "{context}");
                assert_eq!(table.total_bytes - table.pending_bytes, counters.allocated, "{context}");
                assert_eq!((sum(|row| row.blocks), table.blocks), (blocks as u64, blocks as u64), "{context}");
                let expected = made.get(&id).copied().unwrap_or_default();
                assert_eq!((sum(|row| row.allocations), sum(|row| row.allocated_bytes)), expected, "{context}");
                assert_eq!((table.allocations, table.allocated_bytes), expected, "{context}");
                assert!(table.rows.iter().all(|row| row.peak_bytes >= row.bytes && !row.name.is_empty()), "{context}");
                assert!(table.rows.is_sorted_by(|a, b| a.bytes >= b.bytes), "{context}");
                let nested = sum(|row| row.nested_bytes);
                assert!(by == GroupBy::Operation || nested == 0, "{context}");
            }
        }
    }
}

#[test]
fn rows_add_up_in_the_snapshots_of_the_repository() {
    for (name, recording) in snapshots() {
        check(&name, &recording);
    }
}

#[test]
fn rows_add_up_in_the_larger_snapshots() {
    for (name, recording) in recorded_in("../../../shared/snapshots") {
        check(&name, &recording);
    }
}

#[test]
fn rows_add_up_in_the_recordings_of_the_repository() {
    for folder in ["../../tests/data", "../../tests/data/tour", "../../examples/pytorch/recordings"] {
        let mut count = 0;
        for (name, recording) in recordings_in(folder) {
            check(&name, &recording);
            count += 1;
        }
        assert!(count > 0, "{folder} has no recording");
    }
}

#[test]
fn small_steps_give_the_whole_table() {
    for (name, recording) in snapshots().take(4) {
        let mut history = History::new();
        while !history.extend(&recording, 100_000).expect("the recording is complete").is_complete {}
        let (definitions, bounds) = (recording.definitions(), (recording.first_event(), recording.end_event()));
        let middle = bounds.0.midpoint(bounds.1);
        for (_, lifetimes) in history.all_lifetimes().devices() {
            for by in GroupBy::ALL {
                let mut grouping = Grouping::of(by, &recording);
                let whole = group_table(lifetimes, definitions, &mut grouping, middle, bounds);
                let mut scan = GroupTableScan::new(bounds.0, bounds.1);
                while !scan.step(lifetimes, &mut grouping, 7).expect("the changes are kept") {}
                let live = groups_at(lifetimes, middle, definitions, &mut grouping);
                let mut sites = lifetimes.live_at(middle).map(|one| (one.site, one.size));
                let stepped = scan.table(definitions, &mut grouping, &live, &mut sites);
                assert_eq!(Some(stepped), whole, "{name} by {}", by.name());
            }
        }
    }
}
