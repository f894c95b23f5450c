//! What requests recorded under some settings would have come to under others, against what they did come to there.

use vramscope_pool::Settings;
use vramscope_pool::rerun::{History, Requests};

use crate::files::{self, File};

fn requests(file: &File, history: History) -> Requests {
    Requests::of(history, &file.settings()).expect("a pool can be in the state that it begins with")
}

/// Under its own settings a recording comes to what it came to.
fn check_own(file: &File) {
    for history in file.histories().into_iter().filter(History::starts_empty) {
        let requests = requests(file, history);
        assert_eq!(requests.unverified_from, None, "{}", file.name);
        // Where the recorded program had no limit, the most that it can have had is no more than it is known to have had.
        let capacity_bytes = requests.recorded_capacity_bytes;
        assert_eq!(capacity_bytes, file.limit_bytes(), "{}", file.name);
        let simulated = requests.simulate(&file.settings(), capacity_bytes);
        assert_eq!(simulated, requests.recorded, "{}", file.name);
    }
}

/// The same program under two settings, up to the first request that failed under either; there they part.
fn check_pair(from: &File, to: &File) {
    let (from_history, to_history) = (from.histories().remove(0), to.histories().remove(0));
    let count = from_history.allocations_before_oom().min(to_history.allocations_before_oom());
    let recorded = requests(to, to_history.first_allocations(count)).recorded;
    let settings = Settings { limit_bytes: None, ..to.settings() };
    let simulated = requests(from, from_history.first_allocations(count)).simulate(&settings, to.limit_bytes());
    let ratio = simulated.peak_reserved_bytes as f64 / recorded.peak_reserved_bytes as f64;
    println!(
        "{} as {}: {count} allocations, {} bytes reserved at the peak and {} simulated ({:+.2} %)",
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
fn under_its_own_settings_a_recording_comes_to_what_it_came_to() {
    files::all_small().for_each(|file| check_own(&file));
}

#[test]
fn larger_recordings_come_to_what_they_came_to() {
    files::all_large().for_each(|file| check_own(&file));
}

#[test]
fn peaks_under_other_settings_are_foretold() {
    let files: Vec<File> = files::all_large().collect();
    for one in &files {
        // The others that ran the same program have its name and what was different in theirs.
        let is_variant = |other: &&File| other.name.strip_prefix(&one.name).is_some_and(|rest| rest.starts_with('_'));
        for other in files.iter().filter(is_variant) {
            check_pair(one, other);
            check_pair(other, one);
        }
    }
}
