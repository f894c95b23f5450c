//! Measures the cost of an allocation and its free, compared with the system's `malloc`. One
//! iteration is one allocation and one free.

#![allow(missing_docs)]

use divan::{Bencher, black_box};
use vramscope_pool::{AllocatedBlock, Origin, Pool, Settings, SimulatedDevice};
use vramscope_trace::{DeviceId, Event, NullSink, Sink, StreamId};

/// Requested sizes in bytes, from 256 B to 20 MB, as in the comparison in `ARCHITECTURE.md`.
const SIZES: [u64; 7] = [256, 4 << 10, 64 << 10, 512 << 10, 2 << 20, 8 << 20, 20_000_000];
const LIVE: usize = 512;
/// Number of pairs of an allocation and a free per sample: enough for the clock's resolution, with
/// warm caches.
const SAMPLE: u32 = 10_000;

fn main() {
    divan::main();
}

/// Stores events as a recorder's queue does, and discards them when it is full.
struct Queue(Vec<Event>);

impl Queue {
    fn new() -> Self {
        Self(Vec::with_capacity(1 << 16))
    }
}

impl Sink for Queue {
    fn event(&mut self, event: &Event) {
        if self.0.len() == self.0.capacity() {
            self.0.clear();
        }
        self.0.push(*event);
    }
}

/// A deterministic random number generator. Its cost is part of the measured time, so another
/// generator would change the results.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

struct Program<S> {
    pool: Pool<SimulatedDevice>,
    sink: S,
    live: Vec<u64>,
    random: Random,
}

impl<S: Sink> Program<S> {
    /// Creates a program with `live` allocated blocks of all sizes.
    fn new(live: usize, sink: S) -> Self {
        let pool = Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(u64::MAX));
        let mut program = Self { pool, sink, live: Vec::new(), random: Random(1) };
        for _ in 0..live {
            let size = SIZES[program.random.below(SIZES.len())];
            let address = program.allocate(size).address;
            program.live.push(address);
        }
        program
    }

    fn allocate(&mut self, bytes: u64) -> AllocatedBlock {
        let allocated = self.pool.allocate(bytes, StreamId(0), Origin::default(), &mut self.sink);
        allocated.expect("the simulated device is unlimited").expect("the request is not empty")
    }

    fn free(&mut self, address: u64) {
        self.pool.free(address, Origin::default(), &mut self.sink).expect("the block is allocated");
    }

    /// Replaces one of the allocated blocks by one of another size.
    fn churn(&mut self) {
        let which = self.random.below(self.live.len());
        self.free(self.live[which]);
        let size = SIZES[self.random.below(SIZES.len())];
        self.live[which] = self.allocate(size).address;
    }
}

#[divan::bench(sample_size = SAMPLE)]
fn hit(bencher: Bencher) {
    let mut program = Program::new(1, NullSink);
    bencher.bench_local(|| {
        let address = black_box(program.allocate(64 << 10)).address;
        program.free(address);
    });
}

#[divan::bench(sample_size = SAMPLE)]
fn hit_recorded(bencher: Bencher) {
    let mut program = Program::new(1, Queue::new());
    bencher.bench_local(|| {
        let address = black_box(program.allocate(64 << 10)).address;
        program.free(address);
    });
}

#[divan::bench(args = [LIVE, 10_000, 100_000], sample_size = SAMPLE)]
fn churn(bencher: Bencher, live: usize) {
    let mut program = Program::new(live, NullSink);
    bencher.bench_local(|| program.churn());
}

#[divan::bench(args = [LIVE], sample_size = SAMPLE)]
fn churn_recorded(bencher: Bencher, live: usize) {
    let mut program = Program::new(live, Queue::new());
    bencher.bench_local(|| program.churn());
}

#[divan::bench(sample_size = SAMPLE)]
fn malloc_hit(bencher: Bencher) {
    bencher.bench_local(|| drop(black_box(Vec::<u8>::with_capacity(64 << 10))));
}

#[divan::bench(sample_size = SAMPLE)]
fn malloc_churn(bencher: Bencher) {
    let mut random = Random(1);
    let mut live: Vec<Vec<u8>> =
        (0..LIVE).map(|_| Vec::with_capacity(SIZES[random.below(SIZES.len())] as usize)).collect();
    bencher.bench_local(|| {
        let which = random.below(LIVE);
        live[which] = Vec::new();
        live[which] = Vec::with_capacity(SIZES[random.below(SIZES.len())] as usize);
    });
}
