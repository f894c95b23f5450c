//! Runs every fuzz target briefly, so that each test run covers hostile input: all seeds and some
//! thousand mutations, equal in each run. `cargo xtask fuzz` runs longer and finds more, because
//! libFuzzer is guided by coverage.

use std::time::{Duration, Instant};

use vramscope_fuzz::{Random, TARGETS, mutate};

/// Number of mutated inputs for each target, unless [`TARGET_TIME`] ends first.
const INPUTS: usize = 3000;
/// Time limit for each target. Slow machines try fewer inputs.
const TARGET_TIME: Duration = Duration::from_secs(4);
/// Maximum time of one input, without optimization and in parallel with other tests.
const MAX_INPUT_TIME: Duration = Duration::from_secs(10);
/// Maximum memory of the whole process with all targets in parallel, in bytes.
const MAX_MEMORY_BYTES: u64 = 2 << 30;

/// Runs a target on an input. Reports the input if the target panics or takes too long.
fn run(name: &str, target: fn(&[u8]), input: &[u8]) {
    let started = Instant::now();
    if std::panic::catch_unwind(|| target(input)).is_err() {
        panic!("{name}, given {} bytes: {}", input.len(), input.escape_ascii());
    }
    let took = started.elapsed();
    assert!(took < MAX_INPUT_TIME, "{name}, given {} bytes, took {took:?}: {}", input.len(), input.escape_ascii());
}

/// Runs the target `name` on its seeds and on mutations of them.
fn check(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("the target exists");
    let started = Instant::now();
    let seeds = (target.seeds)();
    seeds.iter().for_each(|seed| run(name, target.run, seed));
    let mut random = Random::new(1);
    let mut tried = 0;
    while tried < INPUTS && started.elapsed() < TARGET_TIME {
        let mut input = seeds[random.index(seeds.len())].clone();
        // Short inputs run faster and find as much.
        input.truncate(random.index(input.len().max(1)).max(200));
        let other = &seeds[random.index(seeds.len())];
        mutate(&mut input, other, target.words, &mut random);
        run(name, target.run, &input);
        tried += 1;
    }
    println!("{name}: {} seeds and {tried} changed inputs", seeds.len());
    let peak = peak_memory_bytes().unwrap_or(0);
    assert!(peak < MAX_MEMORY_BYTES, "{name}: the process took {peak} bytes");
}

/// Returns the peak memory of this process, if the system reports it.
fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(stringify!($name)); })*

        #[test]
        fn every_target_has_a_test() {
            assert_eq!(TARGETS.map(|target| target.name), [$(stringify!($name)),*]);
        }
    };
}

targets!(
    recording chunks live_recording index consistency encoder analyses pool_rerun
    autopsy pickle json kineto rmm buffers unpack round_trip settings page_link
);
