//! The pool makes PyTorch's recorded decisions again: every block, segment, failure and counter
//! must be equal.

use vramscope_pool::rerun::{History, Verification, verify};
use vramscope_pool::{MemoryStats, Settings};

use super::fixtures::{self, Fixture};

/// The counter of emptied caches. Emptying an empty cache counts but leaves no entry, and two calls
/// in a row may look like one.
const UNDERCOUNTED_KEY: &str = "num_sync_all_streams";

fn check_stats(file: &Fixture, verification: &Verification) {
    let name = &file.name;
    let reference = file.reference["stats"].as_object().expect("the reference has statistics");
    let stats = MemoryStats::from(verification.stats);
    let mut compared = 0;
    for (key, value) in stats.entries() {
        let expected = reference.get(&key).and_then(|value| value.as_i64());
        compared += 1;
        if key == UNDERCOUNTED_KEY && Some(value) < expected {
            println!("{name}: {key} is {value} and not {expected:?}: empty caches were emptied");
            continue;
        }
        assert_eq!(Some(value), expected, "{name}: {key}");
    }
    assert_eq!(compared, reference.len(), "{name}: keys of the reference");
}

/// Checks that the pool makes all recorded decisions, and that its statistics match PyTorch's.
fn check(file: &Fixture) {
    let name = &file.name;
    for history in file.histories() {
        let verification = verify(&history, &file.settings());
        let device = history.device().0;
        println!("{name}, device {device}: {} of {} events", verification.matched, verification.events);
        assert_eq!(verification.divergence, None, "{name}, device {device}");
        assert_eq!(verification.matched, verification.events, "{name}, device {device}");
        let recorded = file.reference["events"][usize::from(device)].as_u64();
        assert_eq!(Some(verification.events), recorded, "{name}, device {device}: events in all");
        // Only the first device has reference values.
        if device == 0 && file.is_complete() {
            check_stats(file, &verification);
        }
    }
}

#[test]
fn small_recordings_are_reproduced() {
    fixtures::all_small().for_each(|file| check(&file));
}

#[test]
fn recordings_of_the_hook_are_reproduced() {
    // The first recording has a segment of the default pool at addresses that a private pool's
    // segment had before. The second has a private pool whose earlier blocks were restored, not
    // allocated by best fit.
    for (name, events) in [("hook_graphs.vram", 114), ("hook_compiled_graphs.vram", 660)] {
        let recording = fixtures::of_the_hook(name);
        let settings = Settings::parse(&recording.info().alloc_conf).expect("recorded settings are valid");
        let [history] = &History::from_recording(&recording).expect("the recording can be read")[..] else {
            panic!("{name} has one device")
        };
        let verification = verify(history, &settings);
        assert_eq!((verification.divergence, verification.matched), (None, events), "{name}");
    }
}

#[test]
fn recordings_of_the_examples_are_small_and_reproduced() {
    // Recordings do not contain the limit that a process ran under, which decides when garbage
    // collection begins and when a request fails.
    let limits = [("variable_lengths-", 2560 << 20), ("batch_search-", 512 << 20)];
    let mut count = 0;
    for (name, bytes, recording) in fixtures::of_the_examples() {
        count += 1;
        assert!(bytes <= 100_000, "{name} has {bytes} bytes");
        let settings = Settings::parse(&recording.info().alloc_conf).expect("recorded settings are valid");
        let limit = limits.iter().find(|(script, _)| name.starts_with(script));
        let settings = Settings { limit_bytes: limit.map(|&(_, bytes)| bytes), ..settings };
        for history in &History::from_recording(&recording).expect("the recording can be read") {
            assert_eq!(verify(history, &settings).divergence, None, "{name}");
        }
    }
    assert!(count > 50, "{count} recordings");
}

#[test]
fn large_recordings_are_reproduced() {
    fixtures::all_large().for_each(|file| check(&file));
}

#[test]
fn all_unnamed_private_pools_are_found() {
    for (name, pools) in
        [("graphs", 1), ("two_pools_expandable", 1), ("mempool", 2), ("mempool_expandable", 2), ("nested_pools", 2)]
    {
        let file = fixtures::small(name);
        assert_eq!(verify(&file.histories()[0], &file.settings()).assumed_private_pools, pools, "{name}");
    }
}

#[test]
fn other_settings_cause_a_divergence() {
    let file = fixtures::small("frag_a_expandable");
    for (conf, limit_bytes) in [
        ("", file.limit_bytes()),
        ("expandable_segments:True", Some(1 << 29)),
        ("expandable_segments:True,roundup_power2_divisions:8", file.limit_bytes()),
    ] {
        let settings = Settings { limit_bytes, ..Settings::parse(conf).expect("test settings are valid") };
        let verification = verify(&file.histories()[0], &settings);
        let divergence = verification.divergence.unwrap_or_else(|| panic!("{conf:?} {limit_bytes:?}: no divergence"));
        assert!(verification.matched < verification.events && verification.matched <= divergence.event, "{conf:?}");
        assert_ne!(divergence.expected, divergence.got, "{conf:?}");
    }
}
