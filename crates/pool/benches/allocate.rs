//! What an allocation and its free cost, beside the system's `malloc`. One iteration of a benchmark is one pair.

#![allow(missing_docs)]

use divan::{Bencher, black_box};
use vramscope_pool::{Allocated, Origin, Pool, Settings, SimulatedDevice};
use vramscope_trace::{DeviceId, Event, Null, Sink, StreamId};

/// 256 B to 20 MB, as in the table of what others take (`ARCHITECTURE.md`).
const SIZES: [u64; 7] = [256, 4 << 10, 64 << 10, 512 << 10, 2 << 20, 8 << 20, 20_000_000];
const LIVE: usize = 512;
/// Enough pairs for a sample that the clock can measure, with the caches warm.
const SAMPLE: u32 = 10_000;

fn main() {
    divan::main();
}

/// Keeps events as a recorder's queue does, forgetting them when it is full.
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

/// The same sequence of numbers for everyone.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

struct Program<S> {
    pool: Pool<SimulatedDevice>,
    sink: S,
    live: Vec<u64>,
    numbers: Numbers,
}

impl<S: Sink> Program<S> {
    /// A program with `live` blocks of all sizes.
    fn new(live: usize, sink: S) -> Self {
        let pool = Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(u64::MAX));
        let mut program = Self { pool, sink, live: Vec::new(), numbers: Numbers(1) };
        for _ in 0..live {
            let size = SIZES[program.numbers.below(SIZES.len())];
            let address = program.allocate(size).address;
            program.live.push(address);
        }
        program
    }

    fn allocate(&mut self, bytes: u64) -> Allocated {
        let allocated = self.pool.allocate(bytes, StreamId(0), Origin::default(), &mut self.sink);
        allocated.expect("the simulated device is large").expect("more than 0 bytes were asked for")
    }

    fn free(&mut self, address: u64) {
        self.pool.free(address, Origin::default(), &mut self.sink).expect("the block is live");
    }

    /// Replaces one of the live blocks by one of another size.
    fn churn(&mut self) {
        let which = self.numbers.below(self.live.len());
        self.free(self.live[which]);
        let size = SIZES[self.numbers.below(SIZES.len())];
        self.live[which] = self.allocate(size).address;
    }
}

#[divan::bench(sample_size = SAMPLE)]
fn hit(bencher: Bencher) {
    let mut program = Program::new(1, Null);
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
    let mut program = Program::new(live, Null);
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
    let mut numbers = Numbers(1);
    let mut live: Vec<Vec<u8>> =
        (0..LIVE).map(|_| Vec::with_capacity(SIZES[numbers.below(SIZES.len())] as usize)).collect();
    bencher.bench_local(|| {
        let which = numbers.below(LIVE);
        live[which] = Vec::new();
        live[which] = Vec::with_capacity(SIZES[numbers.below(SIZES.len())] as usize);
    });
}
