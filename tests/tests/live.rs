//! What live recordings promise, shown in a moment each; the program `live` shows it at full length.

use std::time::Duration;

use vramscope_tests::live::chaos::{self, chaos};
use vramscope_tests::live::push::{self, push};
use vramscope_tests::live::soak::{self, soak};
use vramscope_tests::live::throughput::{self, throughput};

/// Where nothing is optimized the machine is not what it will be.
const RATE: u64 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };

#[test]
fn a_native_viewer_and_a_file_lose_nothing() {
    let plan = throughput::Plan { rate: RATE, time: Duration::from_secs(2) };
    println!("{}", throughput(plan).expect("nothing is lost"));
}

#[test]
fn whoever_is_there_in_the_end_sees_what_the_pool_holds() {
    let (longest_stall, longest_pause) = (Duration::from_secs(2), Duration::from_millis(100));
    let plan =
        chaos::Plan { seed: 1, incidents: 60, viewers: 6, recorders: 2, rate: 20_000, longest_stall, longest_pause };
    println!("{}", chaos(plan).unwrap_or_else(|error| panic!("{plan:?}: {error}")));
}

#[test]
fn a_program_that_is_watched_for_a_while_ends_whole() {
    // Far too short to say that anything is flat.
    let (time, keep_bytes) = (Duration::from_secs(5), 1 << 20);
    let plan = soak::Plan { seed: 1, time, rate: 50_000, viewers: 4, keep_bytes, table: None };
    println!("{}", soak(&plan).unwrap_or_else(|error| panic!("{plan:?}: {error}")));
}

#[test]
fn a_hub_shows_what_each_pool_holds_whatever_the_network_did() {
    let plan = push::Plan { seed: 1, programs: 3, rate: 10_000, incidents: 40 };
    println!("{}", push(plan).unwrap_or_else(|error| panic!("{plan:?}: {error}")));
}
