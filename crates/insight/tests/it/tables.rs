//! The rows of tables add up to the counters and to a count of all events.

use std::collections::BTreeMap;

use vramscope_insight::frames::RecordedStacks;
use vramscope_insight::group::{GroupBy, Grouping, Phase, phase_of_site};
use vramscope_insight::history::History;
use vramscope_insight::sites::groups_at;
use vramscope_insight::tables::{GroupTableScan, SpanRow, TableRow, group_table, phase_table};
use vramscope_trace::{DeviceId, EventKind, MemoryState, Recording, Replay, SiteId};

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
    let history = History::of(recording).expect("the recording is complete");
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
                let mut grouping = Grouping::of(by, recording).with_categories(&history.categories(id));
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

/// Returns the rows of a device's phases, from single events and the counters at every moment.
fn phases_by_force(recording: &Recording, device: DeviceId) -> Vec<SpanRow> {
    let definitions = recording.definitions();
    let recorded = RecordedStacks::new(definitions);
    let (first, end) = (recording.first_event(), recording.end_event());
    let mut replay = Replay::new();
    let mut state = replay.seek(recording, first).expect("the recording is complete").clone();
    let allocated_in = |state: &MemoryState| state.device(device).map_or(0, |device| device.counters().allocated);
    let mut allocated = vec![allocated_in(&state)];
    let mut requests: Vec<(u64, Option<Phase>)> = Vec::new();
    let mut phase_by_site: BTreeMap<SiteId, Option<Phase>> = BTreeMap::new();
    for index in first..end {
        let event = replay.event(recording, index).expect("the recording is complete");
        match event {
            Some(event) => state.apply(&event),
            None => state = replay.seek(recording, index + 1).expect("the recording is complete").clone(),
        }
        allocated.push(allocated_in(&state));
        let event = event.filter(|event| event.device == device);
        if let Some(EventKind::BlockAllocated { site, .. }) = event.map(|event| event.kind) {
            let phase = phase_by_site.entry(site).or_insert_with(|| phase_of_site(definitions, &recorded, site, false));
            requests.push((index, *phase));
        }
    }
    // Each run begins at the moment before the event of its first request.
    requests.dedup_by_key(|request| request.1);
    let at = |moment: u64| allocated[(moment - first) as usize];
    let names =
        [Phase::Forward, Phase::Backward, Phase::Optimizer, Phase::Other].map(|phase| (Some(phase), phase.name()));
    let names = names.into_iter().chain([(None, recorded.why_missing(false).name())]);
    let rows = names.filter_map(|(phase, name)| {
        let count = requests.iter().filter(|run| run.1 == phase).count() as u64;
        let runs = requests.iter().enumerate().filter(|(_, run)| run.1 == phase).map(|(index, &(from_event, _))| {
            let to_event = requests.get(index + 1).map_or(end, |next| next.0);
            SpanRow {
                name: name.to_owned(),
                count,
                from_event,
                to_event,
                before_bytes: at(from_event),
                peak_bytes: (from_event..=to_event).map(at).max().unwrap_or(0),
                after_bytes: at(to_event),
            }
        });
        // `max_by_key` returns the last of equal runs, which in reverse order is the first.
        runs.rev().max_by_key(|run| run.peak_bytes)
    });
    rows.collect()
}

/// Checks the phases of all devices of a recording, and returns their number.
fn check_phases(name: &str, recording: &Recording) -> usize {
    let mut history = History::new();
    while !history.extend(recording, 100_000).expect("the recording is complete").is_complete {}
    let bounds = (recording.first_event(), recording.end_event());
    let mut grouping = Grouping::of(GroupBy::Phase, recording);
    let mut count = 0;
    for (id, lifetimes) in history.all_lifetimes().devices() {
        let rows = phase_table(recording.definitions(), &mut grouping, lifetimes, bounds);
        assert_eq!(rows, phases_by_force(recording, id), "{name} {id}");
        count += rows.len();
    }
    count
}

#[test]
fn phases_equal_a_count_of_all_events() {
    let mut count = 0;
    for (name, recording) in snapshots() {
        let rows = check_phases(&name, &recording);
        assert!(name != "mlp_train.pickle.zst" || rows == 4, "forward, backward, optimizer and other");
        count += rows;
    }
    for folder in ["../../tests/data", "../../tests/data/tour", "../../examples/pytorch/recordings"] {
        count += recordings_in(folder).map(|(name, recording)| check_phases(&name, &recording)).sum::<usize>();
    }
    println!("{count} rows");
}

#[test]
fn phases_equal_a_count_of_all_events_in_the_larger_snapshots() {
    for (name, recording) in recorded_in("../../../shared/snapshots") {
        println!("{name}: {} rows", check_phases(&name, &recording));
    }
}
