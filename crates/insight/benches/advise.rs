//! The cost of advice: all simulated runs of about 20 settings and the bisections, one at a time.
//! The rate is in calls of one run.

#![allow(missing_docs)]

use std::fs;
use std::path::Path;

use divan::Bencher;
use divan::counter::ItemsCount;
use vramscope_insight::advice::Advisor;
use vramscope_pool::Settings;
use vramscope_pool::rerun::{History, Workload};
use vramscope_trace::Recording;

fn main() {
    divan::main();
}

/// Reads the requests of a recording of `examples/pytorch`.
fn workload(name: &str) -> Workload {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pytorch/recordings");
    let mut recording = Recording::new();
    recording.push(&fs::read(folder.join(name)).expect("the recording exists")).expect("it is valid");
    let history = History::from_recording(&recording).expect("accepted recordings can be read").remove(0);
    Workload::new(history, &Settings::default()).expect("the start state is valid")
}

#[divan::bench(args = ["variable_lengths-default.vram", "kv_cache-with.vram"])]
fn advise(bencher: Bencher, name: &str) {
    let workload = workload(name);
    bencher.counter(ItemsCount::new(workload.calls())).bench_local(|| {
        let mut advisor = Advisor::new(&workload, &Settings::default(), None);
        while let Some(run) = advisor.next_run() {
            let summary = run.simulate(&workload);
            advisor.finish(&run, summary);
        }
        advisor.into_advice()
    });
}
