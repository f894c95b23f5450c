//! Measures the cost of simulating and verifying a recording. The rate is in calls: requests, frees
//! and emptied caches.

#![allow(missing_docs)]

use std::fs;
use std::path::Path;

use divan::Bencher;
use divan::counter::ItemsCount;
use vramscope_formats::{Limits, ignore_progress, import, unpack};
use vramscope_pool::Settings;
use vramscope_pool::rerun::{History, Workload, verify};
use vramscope_trace::{Encoder, Recording};

fn main() {
    divan::main();
}

/// Loads a recording of this repository.
fn recording(name: &str) -> Recording {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(format!("{name}.pickle.zst"));
    let limits = Limits::default();
    let packed = fs::read(&path).expect("the fixture exists");
    let bytes = unpack(&packed, &limits).expect("the fixture decompresses");
    let (mut encoder, _) =
        import(&bytes, name, &limits, &mut ignore_progress, Encoder::new).expect("the fixture is a valid snapshot");
    encoder.flush();
    let mut recording = Recording::new();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("encoded chunks decode");
    }
    recording
}

fn history(name: &str) -> (History, Settings) {
    let recording = recording(name);
    let settings = Settings::parse(&recording.info().alloc_conf).expect("recorded settings are valid");
    let limit_bytes = (name == "frag_a_expandable").then_some(1 << 30);
    let history = History::from_recording(&recording).expect("accepted recordings can be read").remove(0);
    (history, Settings { limit_bytes, ..settings })
}

#[divan::bench(args = ["mlp_train", "frag_a_expandable", "ring"])]
fn simulate(bencher: Bencher, name: &str) {
    let (history, settings) = history(name);
    let requests = Workload::new(history, &settings).expect("the start state is valid");
    let other = Settings { expandable_segments: !settings.expandable_segments, ..Settings::default() };
    bencher.counter(ItemsCount::new(requests.calls())).bench_local(|| requests.simulate(&other, None));
}

#[divan::bench(args = ["mlp_train", "frag_a_expandable", "ring"])]
fn verification(bencher: Bencher, name: &str) {
    let (history, settings) = history(name);
    bencher.counter(ItemsCount::new(history.events())).bench_local(|| verify(&history, &settings));
}
