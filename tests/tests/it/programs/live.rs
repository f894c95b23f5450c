//! Live recordings, each measurement briefly; the program `live` runs them at full length.

use std::time::Duration;

use vramscope_tests::live::chaos::{self, chaos};
use vramscope_tests::live::push::{self, push};
use vramscope_tests::live::soak::{self, soak};
use vramscope_tests::live::throughput::{self, throughput};

/// Events a second; an unoptimized build reaches fewer.
const RATE: u64 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };

#[test]
fn native_viewer_and_file_lose_no_event() {
    let plan = throughput::Plan { rate: RATE, time: Duration::from_secs(2) };
    println!("{}", throughput(plan).expect("no event is lost"));
}

#[test]
fn viewers_match_the_pool_after_a_faulty_network() {
    let (longest_stall, longest_pause) = (Duration::from_secs(2), Duration::from_millis(100));
    let plan =
        chaos::Plan { seed: 1, incidents: 60, viewers: 6, recorders: 2, rate: 20_000, longest_stall, longest_pause };
    println!("{}", chaos(plan).unwrap_or_else(|error| panic!("{plan:?}: {error}")));
}

#[test]
fn long_run_ends_with_a_complete_recording() {
    // Far too short to judge growth.
    let (time, keep_bytes) = (Duration::from_secs(5), 1 << 20);
    let plan = soak::Plan { seed: 1, time, rate: 50_000, viewers: 4, keep_bytes, table: None };
    println!("{}", soak(&plan).unwrap_or_else(|error| panic!("{plan:?}: {error}")));
}

#[test]
fn hub_matches_each_pool_after_a_faulty_network() {
    let plan = push::Plan { seed: 1, programs: 3, rate: 10_000, incidents: 40 };
    println!("{}", push(plan).unwrap_or_else(|error| panic!("{plan:?}: {error}")));
}
