//! Measures the cost of analyses: events per second, bytes per allocation, time per query.
//!
//! Run with `cargo bench -p vramscope-trace --bench analyses`.

use std::hint::black_box;

use divan::Bencher;
use divan::counter::ItemsCount;
use vramscope_trace::{DeviceId, Event, EventKind, Lifetimes, LifetimesBuilder, MemoryState, Metrics, MetricsSeries};

#[allow(dead_code, reason = "each test file uses a part")]
#[path = "../tests/it/common/mod.rs"]
mod common;

const EVENTS: usize = 1_000_000;
const DEVICE: DeviceId = DeviceId(0);

fn main() {
    let index = lifetimes(&common::program(EVENTS, 1));
    let allocations: usize = index.devices().map(|(_, device)| device.len()).sum();
    println!("{:.2} bytes per allocation in the lifetime index", index.memory_bytes() as f64 / allocations as f64);
    divan::main();
}

fn lifetimes(events: &[Event]) -> Lifetimes {
    let mut builder = LifetimesBuilder::new();
    for (number, event) in (0..).zip(events) {
        builder.event(number, event);
    }
    builder.finish()
}

#[divan::bench(sample_count = 10)]
fn building_lifetimes(bencher: Bencher) {
    let events = common::program(EVENTS, 1);
    bencher.counter(ItemsCount::new(EVENTS)).bench(|| lifetimes(black_box(&events)));
}

#[divan::bench]
fn live_set_at_a_moment(bencher: Bencher) {
    let index = lifetimes(&common::program(EVENTS, 1));
    let device = index.device(DEVICE).expect("the device has events");
    let mut random = common::Random(9);
    bencher.bench_local(|| device.live_at(random.below(EVENTS as u64)).count());
}

#[divan::bench]
fn sums_by_site_at_a_moment(bencher: Bencher) {
    let index = lifetimes(&common::program(EVENTS, 1));
    let device = index.device(DEVICE).expect("the device has events");
    let mut random = common::Random(9);
    bencher.bench_local(|| device.sums_at(random.below(EVENTS as u64), |one| one.site));
}

#[divan::bench]
fn history_of_an_address(bencher: Bencher) {
    let events = common::program(EVENTS, 1);
    let index = lifetimes(&events);
    let device = index.device(DEVICE).expect("the device has events");
    let address = events.iter().rev().find_map(|event| match event.kind {
        EventKind::BlockAllocated { address, .. } => Some(address),
        _ => None,
    });
    bencher.counter(ItemsCount::new(device.len())).bench(|| device.history_of(address.unwrap_or(0)).count());
}

#[divan::bench]
fn all_temporaries(bencher: Bencher) {
    let index = lifetimes(&common::program(EVENTS, 1));
    let device = index.device(DEVICE).expect("the device has events");
    bencher.counter(ItemsCount::new(device.len())).bench(|| device.temporaries(0..u64::MAX, 100).count());
}

fn state() -> MemoryState {
    let mut state = MemoryState::default();
    common::program(20_000, 1).iter().for_each(|event| state.apply(event));
    state
}

#[divan::bench]
fn metrics_at_one_moment(bencher: Bencher) {
    let state = state();
    let device = state.device(DEVICE).expect("the device has events");
    let scanned = device.blocks().len() + device.segments().len();
    bencher.counter(ItemsCount::new(scanned)).bench(|| Metrics::at(black_box(device), |_, _| true));
}

/// Measures the cost per event of metrics over time in a long recording, with a constant memory
/// state.
#[divan::bench(sample_count = 20)]
fn metrics_over_time(bencher: Bencher) {
    let state = state();
    let device = state.device(DEVICE).expect("the device has events");
    let events = common::program(EVENTS, 1);
    bencher.counter(ItemsCount::new(4 * EVENTS)).bench(|| {
        let mut series = MetricsSeries::new();
        let all = (0..4).flat_map(|_| &events);
        for (moment, event) in (1..).zip(all) {
            series.event(moment, event, black_box(device));
        }
        series.len()
    });
}
