//! What it costs to run a recording's calls under other settings. The rate is that of calls: requests, frees and cache emptyings.

#![allow(missing_docs)]

use std::fs;
use std::path::Path;

use divan::Bencher;
use divan::counter::ItemsCount;
use vramscope_formats::{Limits, import, unpack};
use vramscope_pool::Settings;
use vramscope_pool::rerun::{History, Requests, verify};
use vramscope_trace::{Encoder, Recording};

fn main() {
    divan::main();
}

/// One of the recordings of the repository.
fn recording(name: &str) -> Recording {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(format!("{name}.pickle.zst"));
    let limits = Limits::default();
    let packed = fs::read(&path).expect("a fixture is there");
    let bytes = unpack(&packed, &limits).expect("a fixture is whole");
    let (mut encoder, _) = import(&bytes, name, &limits, &mut |_, _| {}, Encoder::new).expect("a fixture can be read");
    encoder.flush();
    let mut recording = Recording::new();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("what was encoded can be decoded");
    }
    recording
}

fn history(name: &str) -> (History, Settings) {
    let recording = recording(name);
    let settings = Settings::parse(&recording.info().alloc_conf).expect("its settings are understood");
    let limit_bytes = (name == "frag_a_expandable").then_some(1 << 30);
    let history = History::all_of(&recording).expect("what was taken in can be read").remove(0);
    (history, Settings { limit_bytes, ..settings })
}

#[divan::bench(args = ["mlp_train", "frag_a_expandable", "ring"])]
fn simulate(bencher: Bencher, name: &str) {
    let (history, settings) = history(name);
    let requests = Requests::of(history, &settings).expect("a pool can be in the state that it begins with");
    let other = Settings { expandable_segments: !settings.expandable_segments, ..Settings::default() };
    bencher.counter(ItemsCount::new(requests.calls())).bench_local(|| requests.simulate(&other, None));
}

#[divan::bench(args = ["mlp_train", "frag_a_expandable", "ring"])]
fn verified(bencher: Bencher, name: &str) {
    let (history, settings) = history(name);
    bencher.counter(ItemsCount::new(history.events())).bench_local(|| verify(&history, &settings));
}
