//! What PyTorch recorded, decided again: every block, every segment, every failure and every counter must come out the same.

use vramscope_pool::rerun::{Verified, verify};
use vramscope_pool::{MemoryStats, Settings};

use crate::files::{self, File};

/// An emptied cache that held nothing leaves no entry, but counts here, and so does each of two that look like one.
const MAY_BE_LESS: &str = "num_sync_all_streams";

fn check_stats(file: &File, verified: &Verified) {
    let name = &file.name;
    let truth = file.truth["stats"].as_object().expect("the truth has statistics");
    let stats = MemoryStats::from(verified.stats);
    let mut compared = 0;
    for (key, value) in stats.entries() {
        let expected = truth.get(&key).and_then(|value| value.as_i64());
        compared += 1;
        if key == MAY_BE_LESS && Some(value) < expected {
            println!("{name}: {key} is {value} and not {expected:?}: caches were emptied that held nothing");
            continue;
        }
        assert_eq!(Some(value), expected, "{name}: {key}");
    }
    assert_eq!(compared, truth.len(), "{name}: keys of the truth");
}

fn check(file: &File) {
    let name = &file.name;
    for history in file.histories() {
        let verified = verify(&history, &file.settings());
        let device = history.device().0;
        println!("{name}, device {device}: {} of {} events", verified.matched, verified.events);
        assert_eq!(verified.divergence, None, "{name}, device {device}");
        assert_eq!(verified.matched, verified.events, "{name}, device {device}");
        let recorded = file.truth["events"][usize::from(device)].as_u64();
        assert_eq!(Some(verified.events), recorded, "{name}, device {device}: events in all");
        // The truth was read on the first device.
        if device == 0 && file.is_complete() {
            check_stats(file, &verified);
        }
    }
}

#[test]
fn recorded_decisions_are_made_again() {
    files::all_small().for_each(|file| check(&file));
}

#[test]
fn recorded_decisions_of_larger_programs_are_made_again() {
    files::all_large().for_each(|file| check(&file));
}

#[test]
fn as_many_private_pools_are_found_as_the_program_made_and_lost() {
    for (name, pools) in
        [("graphs", 1), ("two_pools_expandable", 1), ("mempool", 2), ("mempool_expandable", 2), ("nested_pools", 2)]
    {
        let file = files::small(name);
        assert_eq!(verify(&file.histories()[0], &file.settings()).assumed_pools, pools, "{name}");
    }
}

#[test]
fn other_settings_decide_otherwise() {
    let file = files::small("frag_a_expandable");
    for (conf, limit_bytes) in [
        ("", file.limit_bytes()),
        ("expandable_segments:True", Some(1 << 29)),
        ("expandable_segments:True,roundup_power2_divisions:8", file.limit_bytes()),
    ] {
        let settings = Settings { limit_bytes, ..Settings::parse(conf).expect("settings") };
        let verified = verify(&file.histories()[0], &settings);
        let divergence = verified.divergence.unwrap_or_else(|| panic!("{conf:?} {limit_bytes:?}: all the same"));
        assert!(verified.matched < verified.events && verified.matched <= divergence.event, "{conf:?}");
        assert_ne!(divergence.expected, divergence.got, "{conf:?}");
    }
}
