//! The cost of advice: all simulated runs of about 20 settings and the bisections, one at a time.
//! The rate is in calls of one run. With `VRAMSCOPE_RECORDING`, a path, also prints the longest
//! step of one run.

#![allow(missing_docs)]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use divan::Bencher;
use divan::counter::ItemsCount;
use vramscope_insight::advice::Advisor;
use vramscope_pool::Settings;
use vramscope_pool::rerun::{History, Simulation, Workload};
use vramscope_trace::{NullSink, Recording};

/// Number of calls in one step, which takes some 10 ms.
const CALLS_PER_STEP: usize = 100_000;

fn main() {
    if let Some(path) = std::env::var_os("VRAMSCOPE_RECORDING") {
        print_longest_step(&workload(Path::new(&path)));
    }
    divan::main();
}

/// Prints how long one run takes, and its longest step as the page makes them.
fn print_longest_step(workload: &Workload) {
    let start = Instant::now();
    let mut simulation = Simulation::new(workload, &Settings::default(), None, NullSink);
    let mut longest = Duration::ZERO;
    loop {
        let step = Instant::now();
        let has_more = simulation.advance(CALLS_PER_STEP);
        longest = longest.max(step.elapsed());
        if !has_more {
            break;
        }
    }
    println!("one run of {} calls: {:.1?}, longest step {longest:.1?}", workload.calls(), start.elapsed());
}

/// Reads the requests of a recording.
fn workload(path: &Path) -> Workload {
    let mut recording = Recording::new();
    recording.push(&fs::read(path).expect("the recording exists")).expect("it is valid");
    let history = History::from_recording(&recording).expect("accepted recordings can be read").remove(0);
    Workload::new(history, &Settings::default()).expect("the start state is valid")
}

#[divan::bench(args = ["variable_lengths-default.vram", "kv_cache-with.vram"])]
fn advise(bencher: Bencher, name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pytorch/recordings");
    let workload = workload(&folder.join(name));
    bencher.counter(ItemsCount::new(workload.calls())).bench_local(|| {
        let mut advisor = Advisor::new(&workload, &Settings::default(), None);
        while let Some(run) = advisor.next_run() {
            let summary = run.simulate(&workload);
            advisor.finish(&run, summary);
        }
        advisor.into_advice()
    });
}
