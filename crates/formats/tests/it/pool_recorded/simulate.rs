//! Simulated runs against recorded ones: under the recorded settings, and under the settings of
//! another recording of the same program.

use vramscope_pool::Settings;
use vramscope_pool::rerun::{History, Simulation, Workload};
use vramscope_trace::{EventKind, MemorySink, Replay, SiteId};

use super::fixtures::{self, Fixture};

fn workload(file: &Fixture, history: History) -> Workload {
    Workload::new(history, &file.settings()).expect("the start state is valid")
}

/// Simulates a recording under its own settings; the result must equal the recorded run.
fn check_same_settings(file: &Fixture) {
    for history in file.histories().into_iter().filter(History::starts_empty) {
        let workload = workload(file, history);
        assert_eq!(workload.unverified_from, None, "{}", file.name);
        // Without a limit in the recording, none must be inferred beyond what is known.
        let capacity_bytes = workload.recorded_capacity_bytes;
        assert_eq!(capacity_bytes, file.limit_bytes(), "{}", file.name);
        let simulated = workload.simulate(&file.settings(), capacity_bytes);
        assert_eq!(simulated, workload.recorded, "{}", file.name);
    }
}

/// Compares the same program under two settings, up to the first failed request under either. After
/// a failure the programs differ.
fn check_pair(from: &Fixture, to: &Fixture) {
    let (from_history, to_history) = (from.histories().remove(0), to.histories().remove(0));
    let count = from_history.allocations_before_oom().min(to_history.allocations_before_oom());
    let recorded = workload(to, to_history.up_to_allocation(count)).recorded;
    let settings = Settings { limit_bytes: None, ..to.settings() };
    let simulated = workload(from, from_history.up_to_allocation(count)).simulate(&settings, to.limit_bytes());
    let ratio = simulated.peak_reserved_bytes as f64 / recorded.peak_reserved_bytes as f64;
    println!(
        "{} as {}: {count} allocations, peak of {} bytes reserved, {} bytes simulated ({:+.2}%)",
        from.name,
        to.name,
        recorded.peak_reserved_bytes,
        simulated.peak_reserved_bytes,
        (ratio - 1.0) * 100.0
    );
    assert!((0.98..=1.02).contains(&ratio), "{} as {}: {simulated:?}, recorded {recorded:?}", from.name, to.name);
    let allocated = simulated.peak_allocated_bytes as f64 / recorded.peak_allocated_bytes as f64;
    assert!((0.98..=1.02).contains(&allocated), "{} as {}: {simulated:?}, recorded {recorded:?}", from.name, to.name);
}

#[test]
fn simulation_under_recorded_settings_matches_small_recordings() {
    fixtures::all_small().for_each(|file| check_same_settings(&file));
}

#[test]
fn simulation_under_recorded_settings_matches_large_recordings() {
    fixtures::all_large().for_each(|file| check_same_settings(&file));
}

/// Simulates a recording under its own settings in steps of `max_steps`; the events must equal the
/// recorded ones, with times and allocation sites.
fn check_events(file: &Fixture, max_steps: usize) {
    let history = file.histories().remove(0);
    if file.recording.devices().count() > 1 || !history.starts_empty() {
        return;
    }
    let workload = workload(file, history);
    let mut simulation = Simulation::new(&workload, &file.settings(), file.limit_bytes(), MemorySink::default());
    let mut calls = 0;
    while simulation.advance(max_steps) {
        let (made, all) = simulation.progress();
        calls += max_steps;
        assert!(made == calls && made < all, "{}: {made} of {all} steps after {calls}", file.name);
    }
    assert_eq!(simulation.summary(), workload.simulate(&file.settings(), file.limit_bytes()), "{}", file.name);
    let mut replay = Replay::new();
    let numbers = file.recording.first_event()..file.recording.end_event();
    let recorded = numbers.filter_map(|number| replay.event(&file.recording, number).expect("the chunk is readable"));
    let recorded: Vec<_> = recorded.filter(|event| !matches!(event.kind, EventKind::Mark { .. })).collect();
    let simulated = &simulation.sink().events;
    assert_eq!(simulated.len(), recorded.len(), "{}", file.name);
    let mut last_ns = 0;
    for (one, other) in simulated.iter().zip(&recorded) {
        assert_eq!(call(&one.kind), call(&other.kind), "{}", file.name);
        assert!(one.time_ns >= last_ns && one.time_ns <= recorded[recorded.len() - 1].time_ns, "{}", file.name);
        last_ns = one.time_ns;
    }
}

/// Returns the address, bytes and site of a request or a free; `None` for other events, which have
/// the site of the call that they belong to. The ids of private pools are not compared, because
/// some are missing in recordings.
fn call(kind: &EventKind) -> Option<(u64, u64, SiteId)> {
    match *kind {
        EventKind::BlockAllocated { address, requested, site, .. } => Some((address, requested, site)),
        EventKind::FreeRequested { address, site } => Some((address, 0, site)),
        _ => None,
    }
}

#[test]
fn simulated_events_have_recorded_times_and_sites() {
    for file in fixtures::all_small() {
        check_events(&file, 1);
        check_events(&file, 1000);
    }
}

#[test]
fn simulation_stops_at_the_first_oom() {
    let file = fixtures::small("frag_a_expandable");
    let workload = workload(&file, file.histories().remove(0));
    let all = workload.simulate(&file.settings(), file.limit_bytes());
    let first = workload.simulate_to_first_oom(&file.settings(), file.limit_bytes());
    assert!(all.ooms > 1 && first.ooms == 1 && first.device_allocations < all.device_allocations, "{all:?}, {first:?}");
    let unlimited = Settings { limit_bytes: None, ..file.settings() };
    assert_eq!(workload.simulate_to_first_oom(&unlimited, None), workload.simulate(&unlimited, None));
}

#[test]
fn simulated_peaks_match_recordings_under_other_settings() {
    let files: Vec<Fixture> = fixtures::all_large().collect();
    for one in &files {
        // Variants of a program have its name plus a suffix.
        let is_variant =
            |other: &&Fixture| other.name.strip_prefix(&one.name).is_some_and(|rest| rest.starts_with('_'));
        for other in files.iter().filter(is_variant) {
            check_pair(one, other);
            check_pair(other, one);
        }
    }
}
