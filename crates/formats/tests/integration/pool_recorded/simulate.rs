//! Simulated runs against recorded ones: under the recorded settings, and under the settings of
//! another recording of the same program.

use vramscope_pool::Settings;
use vramscope_pool::rerun::{History, Workload};

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
