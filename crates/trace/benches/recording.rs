//! Measures the cost of a recording: bytes per event, encoding, opening, seeking.
//!
//! Run with `cargo bench -p vramscope-trace --bench recording`.

use std::hint::black_box;

use divan::Bencher;
use divan::counter::ItemsCount;
use vramscope_trace::{DeviceId, Encoder, Event, Recording, RecordingInfo, Replay, Sink};

#[allow(dead_code, reason = "each test file uses a part")]
#[path = "../tests/it/common/mod.rs"]
mod common;

const EVENTS: usize = 200_000;

fn main() {
    let events = common::program(EVENTS, 1);
    println!("{:.2} bytes per event", encode(&events).len() as f64 / EVENTS as f64);
    divan::main();
}

fn encode(events: &[Event]) -> Vec<u8> {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    events.iter().for_each(|event| encoder.event(event));
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

fn open(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).expect("the encoder wrote valid chunks");
    recording
}

#[divan::bench]
fn encoding(bencher: Bencher) {
    let events = common::program(EVENTS, 1);
    bencher.counter(ItemsCount::new(EVENTS)).bench(|| encode(black_box(&events)));
}

#[divan::bench]
fn opening(bencher: Bencher) {
    let bytes = encode(&common::program(EVENTS, 1));
    bencher.counter(ItemsCount::new(EVENTS)).bench(|| open(black_box(&bytes)));
}

#[divan::bench]
fn seeking_to_any_moment(bencher: Bencher) {
    let recording = open(&encode(&common::program(EVENTS, 1)));
    let mut random = common::Random(9);
    let mut replay = Replay::new();
    bencher.bench_local(|| replay.seek(&recording, random.below(EVENTS as u64)).map(|state| state.event()));
}

#[divan::bench]
fn timeline_of_everything(bencher: Bencher) {
    let recording = open(&encode(&common::program(EVENTS, 1)));
    bencher.bench(|| recording.columns(DeviceId(0), 0, recording.end_ns(), 1600));
}

#[divan::bench]
fn timeline_close_up(bencher: Bencher) {
    let recording = open(&encode(&common::program(EVENTS, 1)));
    let end = recording.end_ns();
    bencher.bench(|| recording.columns(DeviceId(0), end / 2, end / 2 + end / 8, 1600));
}
