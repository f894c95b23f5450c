//! What live recordings promise, shown in a moment each; the program `live` shows it at full length.

use std::time::Duration;

use vramscope_tests::live::throughput::{self, throughput};

/// Where nothing is optimized the machine is not what it will be.
const RATE: u64 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };

#[test]
fn a_native_viewer_and_a_file_lose_nothing() {
    let plan = throughput::Plan { rate: RATE, time: Duration::from_secs(2) };
    println!("{}", throughput(plan).expect("nothing is lost"));
}
