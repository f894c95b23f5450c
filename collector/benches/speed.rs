//! Cost of an allocation with its free: the pool with and without recording, general allocators, a
//! plain lock, and the parts of the pool. Each row has a name, the fastest of many short turns, and
//! their median.
//!
//! `cargo bench -p vramscope-collector --bench speed`, or the executable that it builds, with
//! `--bench`; it needs no files and runs on other machines. Without `--bench` every case runs once,
//! as a test.
//!
//! Cases that are compared take turns. A turn of a recorded program is a burst of some hundred
//! blocks, as in a training step; then the recorder empties the ring, on another core if there is
//! one. In the row "while the recorder reads", a burst is long enough that the recorder reads it
//! while it is written. A program that only allocates waits for the recorder; `record.rs` measures
//! that.

#![allow(missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use mimalloc::MiMalloc;
use vramscope_collector::{HostDevice, HostPool, Hub, Outputs, Recorder, RecorderHandle};
use vramscope_pool::{Origin, Pool, Settings, SimulatedDevice};
use vramscope_trace::{
    Category, DeviceId, Event, EventKind, NullSink, PoolKind, RecordingInfo, Sink, SiteId, StreamId,
};

/// Size of the blocks in the hit cases.
const HIT_BYTES: u64 = 64 << 10;
/// Sizes of blocks in the churn cases: 256 B to 20 MB.
const SIZES: [u64; 7] = [256, 4 << 10, 64 << 10, 512 << 10, 2 << 20, 8 << 20, 20_000_000];
/// Blocks that are live at a time in the churn cases.
const LIVE: usize = 512;
const THREADS: usize = 8;
/// Pairs (an allocation and its free) in a turn. They fill a fortieth of the ring. The recorder is
/// woken when a quarter is filled, so it runs during few turns.
const PAIRS: usize = 512;
/// Pairs in a turn during which the recorder reads. They fill less than half of the ring, so the
/// program never waits.
const LONG_PAIRS: usize = 8 << 10;

/// Number of turns, and of pairs in a turn.
#[derive(Clone, Copy)]
struct Plan {
    turns: usize,
    pairs: usize,
    long_pairs: usize,
}

fn main() {
    let plan = if std::env::args().any(|argument| argument == "--bench") {
        Plan { turns: 301, pairs: PAIRS, long_pairs: LONG_PAIRS }
    } else {
        Plan { turns: 1, pairs: 2, long_pairs: 2 }
    };
    println!("{:<58} {:>9} {:>9}", "nanoseconds", "fastest", "median");
    one_thread(plan);
    parts(plan);
    threads(Plan { turns: plan.turns.div_ceil(4), ..plan });
    live_blocks(Plan { turns: plan.turns.div_ceil(3), ..plan });
}

/// The time of a pair in the fastest turn and in the median turn, in nanoseconds.
#[derive(Clone, Copy)]
struct Times {
    fastest: f64,
    median: f64,
}

impl Times {
    fn of(mut turns: Vec<f64>) -> Self {
        turns.sort_by(f64::total_cmp);
        Self { fastest: turns[0], median: turns[turns.len() / 2] }
    }

    fn with(self, other: Self, both: impl Fn(f64, f64) -> f64) -> Self {
        Self { fastest: both(self.fastest, other.fastest), median: both(self.median, other.median) }
    }

    fn print(self, name: &str) {
        println!("{name:<58} {:>9.1} {:>9.1}", self.fastest, self.median);
    }
}

/// One of the compared cases. `run` makes a number of pairs of an allocation and its free.
struct Case<'a> {
    name: &'static str,
    /// The recorder, which empties the ring after each turn.
    handle: Option<&'a RecorderHandle>,
    run: Box<dyn FnMut(usize) + 'a>,
}

impl<'a> Case<'a> {
    fn new(name: &'static str, run: impl FnMut(usize) + 'a) -> Self {
        Self { name, handle: None, run: Box::new(run) }
    }

    fn recorded(self, handle: &'a RecorderHandle) -> Self {
        Self { handle: Some(handle), ..self }
    }
}

/// Measures the cases in turns and prints them. Returns nanoseconds per pair.
fn compare<const N: usize>(plan: Plan, mut cases: [Case<'_>; N]) -> [Times; N] {
    let mut times = [const { Vec::new() }; N];
    for _ in 0..plan.turns {
        for (case, times) in cases.iter_mut().zip(&mut times) {
            // Warms the caches after the turn of another case.
            (case.run)(plan.pairs / 8);
            let start = Instant::now();
            (case.run)(plan.pairs);
            times.push(start.elapsed().as_secs_f64() * 1e9 / plan.pairs as f64);
            case.handle.inspect(|handle| handle.flush());
        }
    }
    let times = times.map(Times::of);
    for (case, times) in cases.iter().zip(times) {
        times.print(case.name);
    }
    times
}

fn record() -> (Recorder, RecorderHandle) {
    let outputs = Outputs { hub: Some(Hub::default()), ..Outputs::default() };
    Recorder::start(RecordingInfo::default(), outputs).expect("the recorder starts")
}

fn unrecorded_pool() -> HostPool {
    HostPool::new(HostDevice::new(u64::MAX), Settings::default(), NullSink, || 0)
}

fn recorded_pool(handle: &RecorderHandle) -> HostPool {
    HostPool::recorded(HostDevice::new(u64::MAX), Settings::default(), handle)
}

fn allocate(pool: &HostPool, bytes: u64) -> u64 {
    let address = pool.caching_allocator_alloc(bytes, StreamId(0)).expect("the device is large");
    address.expect("the request is for more than 0 bytes")
}

fn free(pool: &HostPool, address: u64) {
    // SAFETY: The benches never access the memory and create no slices of it.
    unsafe { pool.caching_allocator_delete(address) }.expect("the block is live");
}

fn hit(pool: &HostPool, pairs: usize) {
    for _ in 0..pairs {
        free(pool, black_box(allocate(pool, HIT_BYTES)));
    }
}

fn hit_of(allocator: &impl GlobalAlloc, pairs: usize) {
    let layout = Layout::from_size_align(HIT_BYTES as usize, 16).expect("the size and alignment are valid");
    for _ in 0..pairs {
        // SAFETY: The size is not 0, and what is freed was allocated with the same layout.
        unsafe {
            let memory = black_box(allocator.alloc(layout));
            allocator.dealloc(memory, layout);
        }
    }
}

/// A pseudorandom sequence, equal for every case. Its cost is part of the measured time, so another
/// generator would change the figures in `docs/benchmarks.md`.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }

    fn size(&mut self) -> u64 {
        SIZES[self.below(SIZES.len())]
    }
}

/// Live blocks; each pair replaces a random one by a block of a random size.
struct Churn {
    live: Vec<(u64, u64)>,
    numbers: Numbers,
}

impl Churn {
    fn new(mut allocate: impl FnMut(u64) -> u64) -> Self {
        let mut numbers = Numbers(1);
        let live = (0..LIVE).map(|_| numbers.size()).map(|bytes| (allocate(bytes), bytes)).collect();
        Self { live, numbers }
    }

    fn run(&mut self, pairs: usize, allocate: impl Fn(u64) -> u64, free: impl Fn(u64, u64)) {
        for _ in 0..pairs {
            let which = self.numbers.below(LIVE);
            let (address, bytes) = self.live[which];
            free(address, bytes);
            let bytes = self.numbers.size();
            self.live[which] = (allocate(bytes), bytes);
        }
    }
}

fn churn(pool: &HostPool) -> impl FnMut(usize) + '_ {
    let mut blocks = Churn::new(|bytes| allocate(pool, bytes));
    move |pairs| blocks.run(pairs, |bytes| allocate(pool, bytes), |address, _| free(pool, address))
}

fn churn_of(allocator: &impl GlobalAlloc) -> impl FnMut(usize) + '_ {
    let layout = |bytes: u64| Layout::from_size_align(bytes as usize, 16).expect("the size and alignment are valid");
    // SAFETY: No size is 0.
    let allocate = move |bytes| unsafe { allocator.alloc(layout(bytes)) }.expose_provenance() as u64;
    let free = move |address: u64, bytes| {
        let memory = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: `Churn` frees what it allocated, once and with the size that it asked for.
        unsafe { allocator.dealloc(memory, layout(bytes)) };
    };
    let mut blocks = Churn::new(allocate);
    move |pairs| blocks.run(pairs, allocate, free)
}

/// Returns the cost that recording adds per event; a pair makes three events.
fn added_per_event(recorded: f64, plain: f64) -> f64 {
    (recorded - plain) / 3.0
}

fn one_thread(plan: Plan) {
    let (recorder, handle) = record();
    println!("One thread, an allocation with its free");
    let (plain, recorded) = (unrecorded_pool(), recorded_pool(&handle));
    let _step = recorded.scope("step");
    let _forward = recorded.scope_with("forward", Category::Activation);
    let [of_plain, of_recorded, of_mimalloc, _] = compare(
        plan,
        [
            Case::new("hit, not recorded", |pairs| hit(&plain, pairs)),
            Case::new("hit, recorded with sites", |pairs| hit(&recorded, pairs)).recorded(&handle),
            Case::new("hit, mimalloc", |pairs| hit_of(&MiMalloc, pairs)),
            Case::new("hit, C library", |pairs| hit_of(&System, pairs)),
        ],
    );
    of_recorded.with(of_plain, added_per_event).print("hit, cost of recording per event (3 per pair)");
    of_plain.with(of_mimalloc, |plain, mimalloc| plain / mimalloc).print("hit, not recorded, ratio to mimalloc");
    let long = Plan { pairs: plan.long_pairs, ..plan };
    let case = Case::new("hit, recorded, while the recorder reads", |pairs| hit(&recorded, pairs));
    compare(long, [case.recorded(&handle)]);
    stacks(plan, &handle);

    let (plain, recorded) = (unrecorded_pool(), recorded_pool(&handle));
    let _step = recorded.scope("step");
    let _forward = recorded.scope_with("forward", Category::Activation);
    let [of_plain, of_recorded, ..] = compare(
        plan,
        [
            Case::new("churn, not recorded", churn(&plain)),
            Case::new("churn, recorded with sites", churn(&recorded)).recorded(&handle),
            Case::new("churn, mimalloc", churn_of(&MiMalloc)),
            Case::new("churn, C library", churn_of(&System)),
        ],
    );
    of_recorded.with(of_plain, added_per_event).print("churn, cost of recording per event (3 per pair)");
    println!("{:<58} {:>19}", "number of waits of the recorded program", recorder.stop().waits);
}

/// Measures paused recording, and recording with call stacks.
fn stacks(plan: Plan, handle: &RecorderHandle) {
    let (paused, with_stacks) = (recorded_pool(handle), recorded_pool(handle));
    paused.set_recording(false);
    with_stacks.record_native_stacks(32);
    compare(
        Plan { turns: plan.turns.div_ceil(4), ..plan },
        [
            Case::new("hit, recording paused", |pairs| hit(&paused, pairs)),
            Case::new("hit, recorded with call stacks", |pairs| hit(&with_stacks, pairs)).recorded(handle),
        ],
    );
}

/// Measures the parts of a pair separately. A pair takes less time than the sum of its parts,
/// because the processor overlaps them.
fn parts(plan: Plan) {
    let (_recorder, handle) = record();
    println!("The parts of an allocation with its free");
    let core = || Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(u64::MAX));
    let (mut core_unrecorded, mut core_recorded, mut blocks) = (core(), core(), LiveBlocks::new(LIVE));
    let (mut core_sink, mut sink, mutex) = (handle.clone(), handle.clone(), Mutex::new(0));
    compare(
        plan,
        [
            Case::new("hit, pool core", |pairs| hit_core(&mut core_unrecorded, &mut NullSink, pairs)),
            Case::new("hit, pool core, recorded with a constant time", |pairs| {
                hit_core(&mut core_recorded, &mut core_sink, pairs);
            })
            .recorded(&handle),
            Case::new("churn, pool core", |pairs| blocks.replace(pairs, LIVE)),
            Case::new("recording the 3 events of a pair", |pairs| record_pairs(&mut sink, pairs)).recorded(&handle),
            Case::new("locking a mutex twice", |pairs| {
                (0..2 * pairs).for_each(|_| *mutex.lock().expect("no thread panics") += 1);
            }),
            Case::new("reading the clock twice, in nanoseconds", |pairs| {
                (0..2 * pairs).for_each(|_| _ = black_box(handle.now_ns()));
            }),
            #[cfg(target_arch = "x86_64")]
            Case::new("reading the processor's counter twice", |pairs| {
                // SAFETY: Every x86-64 processor has the instruction, which changes no memory.
                (0..2 * pairs).for_each(|_| _ = black_box(unsafe { core::arch::x86_64::_rdtsc() }));
            }),
        ],
    );
}

fn hit_core(pool: &mut Pool<SimulatedDevice>, sink: &mut impl Sink, pairs: usize) {
    for _ in 0..pairs {
        let block = pool.allocate(HIT_BYTES, StreamId(0), Origin::default(), sink);
        let address =
            black_box(block.expect("the device is large").expect("the request is for more than 0 bytes").address);
        pool.free(address, Origin::default(), sink).expect("the block is live");
    }
}

/// Records the events of a hit and its free.
fn record_pairs(sink: &mut impl Sink, pairs: usize) {
    let (size, requested, stream, site) = (HIT_BYTES, HIT_BYTES, StreamId(0), SiteId(0));
    let pool = vramscope_trace::PoolKey::default_of(PoolKind::Small);
    for _ in 0..pairs {
        let address = black_box(0x7f00_0000_0000);
        for kind in [
            EventKind::BlockAllocated { address, size, requested, stream, pool, site },
            EventKind::FreeRequested { address, site },
            EventKind::FreeCompleted { address, site },
        ] {
            sink.event(&Event { device: DeviceId(0), time_ns: 0, kind });
        }
    }
}

/// Runs the pairs on several threads at a time. Returns the nanoseconds per pair, over all threads.
fn concurrent(threads: usize, pairs: usize, run: &(impl Fn(usize) + Sync + ?Sized)) -> f64 {
    let (barrier, pairs_per_thread) = (Barrier::new(threads), pairs / threads + 1);
    let turn = || {
        run(pairs_per_thread / 8);
        barrier.wait();
        let start = Instant::now();
        run(pairs_per_thread);
        (start, Instant::now())
    };
    let times: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(turn)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    // Measured in the threads: the main thread may be scheduled only when they are done.
    let start = times.iter().map(|(start, _)| start).min();
    let end = times.iter().map(|(_, end)| end).max();
    let elapsed = end.zip(start).map_or(Duration::ZERO, |(end, start)| *end - *start);
    elapsed.as_secs_f64() * 1e9 / (pairs_per_thread * threads) as f64
}

fn threads(plan: Plan) {
    println!("{THREADS} threads, an allocation with its free, over all threads");
    let (recorder, handle) = record();
    let (plain, recorded) = (unrecorded_pool(), recorded_pool(&handle));
    // The pool core with a lock around each call.
    let core = Mutex::new(Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(u64::MAX)));
    let hit_core = |pairs| {
        for _ in 0..pairs {
            let lock = || core.lock().expect("no thread panics");
            let block = lock().allocate(HIT_BYTES, StreamId(0), Origin::default(), &mut NullSink);
            let address =
                black_box(block.expect("the device is large").expect("the request is for more than 0 bytes").address);
            lock().free(address, Origin::default(), &mut NullSink).expect("the block is live");
        }
    };
    let (hit_plain, hit_recorded) = (|pairs| hit(&plain, pairs), |pairs| hit(&recorded, pairs));
    let pairs = plan.long_pairs;
    let cases: [(&str, &(dyn Fn(usize) + Sync)); 3] = [
        ("pool, not recorded", &hit_plain),
        ("pool, recorded", &hit_recorded),
        ("pool core in a plain mutex", &hit_core),
    ];
    let mut times = [const { (Vec::new(), Vec::new()) }; 3];
    for _ in 0..plan.turns {
        for ((_, run), (alone, together)) in cases.iter().zip(&mut times) {
            alone.push(concurrent(1, pairs, run));
            handle.flush();
            together.push(concurrent(THREADS, pairs, run));
            handle.flush();
        }
    }
    for ((name, _), (alone, together)) in cases.iter().zip(times) {
        let (alone, together) = (Times::of(alone), Times::of(together));
        alone.print(&format!("{name}, 1 thread"));
        together.print(&format!("{name}, {THREADS} threads"));
        together.with(alone, |together, alone| together / alone).print(&format!("{name}, ratio to 1 thread"));
    }
    recorder.stop();
}

/// A pool core on a simulated device, with its live blocks.
struct LiveBlocks {
    pool: Pool<SimulatedDevice>,
    numbers: Numbers,
    live: Vec<u64>,
}

impl LiveBlocks {
    fn new(count: usize) -> Self {
        let pool = Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(u64::MAX));
        let mut blocks = Self { pool, numbers: Numbers(1), live: Vec::new() };
        for _ in 0..count {
            let address = blocks.allocate();
            blocks.live.push(address);
        }
        blocks
    }

    fn allocate(&mut self) -> u64 {
        let block = self.pool.allocate(self.numbers.size(), StreamId(0), Origin::default(), &mut NullSink);
        block.expect("the device is large").expect("the request is for more than 0 bytes").address
    }

    /// Replaces random blocks among the first `among` by blocks of random sizes.
    fn replace(&mut self, pairs: usize, among: usize) {
        for _ in 0..pairs {
            let which = self.numbers.below(among);
            self.pool.free(self.live[which], Origin::default(), &mut NullSink).expect("the block is live");
            self.live[which] = self.allocate();
        }
    }
}

/// Measures the pool core with many live blocks. Replacing only 512 of them shows the cost of the
/// pool's search; replacing any of them adds the cache misses.
fn live_blocks(plan: Plan) {
    println!("Pool core, replacing a block by one of {} sizes", SIZES.len());
    let counts: &[usize] = if plan.turns > 1 { &[1_000, 10_000, 100_000, 1_000_000] } else { &[LIVE] };
    for &count in counts {
        let mut blocks = LiveBlocks::new(count);
        for (among, name) in [(LIVE, "512 of"), (count, "any of")] {
            // Replaces blocks until their layout no longer depends on the initial one.
            blocks.replace(2 * among.min(plan.pairs * plan.turns), among);
            let turn = |_| {
                let start = Instant::now();
                blocks.replace(plan.pairs, among);
                start.elapsed().as_secs_f64() * 1e9 / plan.pairs as f64
            };
            Times::of((0..plan.turns).map(turn).collect()).print(&format!("{name} {count} live blocks"));
        }
    }
}
