//! A short run of every target, so that hostile input is tried at every test: all seeds, and some thousand changes of them, the same ones each
//! time. `cargo xtask fuzz` runs them for longer, and finds more, for libFuzzer sees which changes lead somewhere new.

use std::time::{Duration, Instant};

use vramscope_fuzz::{Random, TARGETS, mutate};

/// Changed inputs of each target, unless time is up before.
const INPUTS: usize = 3000;
/// Time for a target. On a slow machine fewer inputs are tried.
const TIME: Duration = Duration::from_secs(4);
/// No input may take longer, unoptimized and beside other tests.
const LONGEST: Duration = Duration::from_secs(10);
/// Memory of the whole process at its worst, all targets side by side.
const MEMORY_BYTES: u64 = 2 << 30;

/// Runs a target on an input, and says which where it took too long; a panic is printed with the bytes it came of.
fn run(name: &str, target: fn(&[u8]), input: &[u8]) {
    let started = Instant::now();
    if std::panic::catch_unwind(|| target(input)).is_err() {
        panic!("{name}, given {} bytes: {}", input.len(), input.escape_ascii());
    }
    let took = started.elapsed();
    assert!(took < LONGEST, "{name}, given {} bytes, took {took:?}: {}", input.len(), input.escape_ascii());
}

fn check(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of that name");
    let started = Instant::now();
    let seeds = (target.seeds)();
    seeds.iter().for_each(|seed| run(name, target.run, seed));
    let mut random = Random::new(1);
    let mut tried = 0;
    while tried < INPUTS && started.elapsed() < TIME {
        let mut input = seeds[random.index(seeds.len())].clone();
        // Short inputs are tried faster, and break as much.
        input.truncate(random.index(input.len().max(1)).max(200));
        let other = &seeds[random.index(seeds.len())];
        mutate(&mut input, other, target.words, &mut random);
        run(name, target.run, &input);
        tried += 1;
    }
    println!("{name}: {} seeds and {tried} changed inputs", seeds.len());
    let most = most_memory_bytes().unwrap_or(0);
    assert!(most < MEMORY_BYTES, "{name}: the process took {most} bytes");
}

/// The most memory that this process had so far, where the system says.
fn most_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test] fn $name() { check(stringify!($name)); })*

        #[test]
        fn every_target_is_tried() {
            assert_eq!(TARGETS.map(|target| target.name), [$(stringify!($name)),*]);
        }
    };
}

targets!(recording chunks growing index agreement encoder analyses reruns pickle json rmm unpacking round_trip settings link);
