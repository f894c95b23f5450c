//! What the pool costs a program, recorded and not, beside general allocators and a plain lock: lines of a name and a number.
//!
//! `cargo bench -p vramscope-collector --bench speed`, or the program that it builds, with `--bench`. Nothing else is needed, so it
//! can be carried to another machine. Without `--bench` everything runs once, to show that it runs.
//!
//! What is compared is measured in turns, and every figure is the median of its turns. A turn of a recorded program is a burst of a
//! thousand blocks and then a pause, as a training step is, so that the recorder does its work in the pause. The line "while the
//! recorder is at work" is of bursts that go on while the recorder reads what the burst writes, on another core where there is one
//! to be had. A program that does nothing else waits for the recorder; `record.rs` shows how fast that is.

#![allow(missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use mimalloc::MiMalloc;
use vramscope_collector::{HostDevice, HostPool, Hub, Outputs, Recorder, RecorderHandle};
use vramscope_pool::{Origin, Pool, Settings, SimulatedDevice};
use vramscope_trace::{Category, DeviceId, Info, Null, StreamId};

const HIT_BYTES: u64 = 64 << 10;
/// 256 B to 20 MB, as in the table of what others take.
const SIZES: [u64; 7] = [256, 4 << 10, 64 << 10, 512 << 10, 2 << 20, 8 << 20, 20_000_000];
const LIVE: usize = 512;
const THREADS: usize = 8;
/// Pairs of a turn. They make a sixteenth of a queue of events, and a quarter of it wakes the recorder, so that few turns see it.
const PAIRS: usize = 1024;
/// Pairs of a turn that the recorder is awake for. They make half a queue of events, so that nobody waits.
const LONG_PAIRS: usize = 8 * PAIRS;
/// More than the recorder needs to look at its queues, empty them and go to sleep.
const PAUSE: Duration = Duration::from_millis(30);

#[derive(Clone, Copy)]
struct Plan {
    turns: usize,
    pairs: usize,
    long_pairs: usize,
    pause: Duration,
}

fn main() {
    let plan = if std::env::args().any(|argument| argument == "--bench") {
        Plan { turns: 101, pairs: PAIRS, long_pairs: LONG_PAIRS, pause: PAUSE }
    } else {
        Plan { turns: 1, pairs: 2, long_pairs: 2, pause: Duration::ZERO }
    };
    one_thread(plan);
    threads(plan);
    live_blocks(plan);
}

fn print(name: &str, value: f64) {
    println!("{name:<58} {value:>9.1}");
}

/// One thing of several that are compared: does so many pairs of an allocation and a free.
struct Case<'a> {
    name: &'static str,
    pauses: bool,
    run: Box<dyn FnMut(usize) + 'a>,
}

impl<'a> Case<'a> {
    fn new(name: &'static str, run: impl FnMut(usize) + 'a) -> Self {
        Self { name, pauses: false, run: Box::new(run) }
    }

    fn recorded(self) -> Self {
        Self { pauses: true, ..self }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds a pair of each case, the medians of turns taken by one after the other.
fn compare<const N: usize>(plan: Plan, mut cases: [Case<'_>; N]) -> [f64; N] {
    let mut times = [const { Vec::new() }; N];
    for _ in 0..plan.turns {
        for (case, times) in cases.iter_mut().zip(&mut times) {
            // The first pairs of a turn find cold caches, where they follow a turn of something else.
            (case.run)(plan.pairs / 8);
            let since = Instant::now();
            (case.run)(plan.pairs);
            times.push(since.elapsed().as_secs_f64() * 1e9 / plan.pairs as f64);
            if case.pauses {
                std::thread::sleep(plan.pause);
            }
        }
    }
    let medians = times.map(median);
    for (case, &ns) in cases.iter().zip(&medians) {
        print(case.name, ns);
    }
    medians
}

fn record() -> (Recorder, RecorderHandle) {
    let outputs = Outputs { hub: Some(Hub::default()), ..Outputs::default() };
    Recorder::start(Info::default(), outputs).expect("a thread")
}

fn unrecorded_pool() -> HostPool {
    HostPool::new(HostDevice::new(u64::MAX), Settings::default(), Null, || 0)
}

fn recorded_pool(handle: &RecorderHandle) -> HostPool {
    HostPool::recorded(HostDevice::new(u64::MAX), Settings::default(), handle)
}

fn allocate(pool: &HostPool, bytes: u64) -> u64 {
    let address = pool.caching_allocator_alloc(bytes, StreamId(0)).expect("the device is large");
    address.expect("more than 0 bytes were asked for")
}

fn free(pool: &HostPool, address: u64) {
    // SAFETY: Nobody uses what the benches allocate, and no slices are made.
    unsafe { pool.caching_allocator_delete(address) }.expect("the block is live");
}

fn hit(pool: &HostPool, pairs: usize) {
    for _ in 0..pairs {
        free(pool, black_box(allocate(pool, HIT_BYTES)));
    }
}

fn hit_of(allocator: &impl GlobalAlloc, pairs: usize) {
    let layout = Layout::from_size_align(HIT_BYTES as usize, 16).expect("a size and a power of two");
    for _ in 0..pairs {
        // SAFETY: The size is not 0, and what is freed was allocated with the same layout.
        unsafe {
            let memory = black_box(allocator.alloc(layout));
            allocator.dealloc(memory, layout);
        }
    }
}

/// The same sequence of numbers for everyone.
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

/// Live blocks of which one at a time is replaced by one of another size.
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
    let layout = |bytes: u64| Layout::from_size_align(bytes as usize, 16).expect("a size and a power of two");
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

fn one_thread(plan: Plan) {
    let (recorder, handle) = record();
    println!("One thread, nanoseconds an allocation with its free");
    let (plain, recorded) = (unrecorded_pool(), recorded_pool(&handle));
    let _step = recorded.scope("step");
    let _forward = recorded.scope_with("forward", Category::Activation);
    let [plain_ns, recorded_ns, mimalloc_ns, _] = compare(
        plan,
        [
            Case::new("hit, not recorded", |pairs| hit(&plain, pairs)),
            Case::new("hit, recorded with sites", |pairs| hit(&recorded, pairs)).recorded(),
            Case::new("hit, mimalloc", |pairs| hit_of(&MiMalloc, pairs)),
            Case::new("hit, the C library", |pairs| hit_of(&System, pairs)),
        ],
    );
    print("hit, what recording adds an event (there are three)", (recorded_ns - plain_ns) / 3.0);
    print("hit, not recorded, times mimalloc", plain_ns / mimalloc_ns);
    let long = Plan { pairs: plan.long_pairs, ..plan };
    compare(
        long,
        [Case::new("hit, recorded, while the recorder is at work", |pairs| hit(&recorded, pairs)).recorded()],
    );

    let (plain, recorded) = (unrecorded_pool(), recorded_pool(&handle));
    let _step = recorded.scope("step");
    let _forward = recorded.scope_with("forward", Category::Activation);
    let [plain_ns, recorded_ns, ..] = compare(
        plan,
        [
            Case::new("churn, not recorded", churn(&plain)),
            Case::new("churn, recorded with sites", churn(&recorded)).recorded(),
            Case::new("churn, mimalloc", churn_of(&MiMalloc)),
            Case::new("churn, the C library", churn_of(&System)),
        ],
    );
    print("churn, what recording adds an event (there are three)", (recorded_ns - plain_ns) / 3.0);
    print("how often a recorded program waited (0 unless too fast)", recorder.stop().waits as f64);
}

/// Nanoseconds a pair of all threads together, each doing its part of them at once.
fn at_once(threads: usize, pairs: usize, run: &(impl Fn(usize) + Sync + ?Sized)) -> f64 {
    let (begin, each) = (Barrier::new(threads), pairs / threads + 1);
    let turn = || {
        run(each / 8);
        begin.wait();
        let since = Instant::now();
        run(each);
        (since, Instant::now())
    };
    let times: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(turn)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    // The threads' own times, since whoever started them may be woken when they are done.
    let since = times.iter().map(|(since, _)| since).min();
    let until = times.iter().map(|(_, until)| until).max();
    let took = until.zip(since).map_or(Duration::ZERO, |(until, since)| *until - *since);
    took.as_secs_f64() * 1e9 / (each * threads) as f64
}

fn threads(plan: Plan) {
    println!("{THREADS} threads, nanoseconds an allocation with its free, of all threads together");
    let (recorder, handle) = record();
    let (plain, recorded) = (unrecorded_pool(), recorded_pool(&handle));
    // The pool's decisions alone, with a lock around each.
    let core = Mutex::new(Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(u64::MAX)));
    let hit_core = |pairs| {
        for _ in 0..pairs {
            let lock = || core.lock().expect("no panic");
            let block = lock().allocate(HIT_BYTES, StreamId(0), Origin::default(), &mut Null);
            let block = black_box(block.expect("the device is large").expect("more than 0 bytes were asked for"));
            lock().free(block.address, Origin::default(), &mut Null).expect("the block is live");
        }
    };
    let (hit_plain, hit_recorded) = (|pairs| hit(&plain, pairs), |pairs| hit(&recorded, pairs));
    let pairs = plan.long_pairs;
    let cases: [(&str, &(dyn Fn(usize) + Sync)); 3] = [
        ("the pool, not recorded", &hit_plain),
        ("the pool, recorded", &hit_recorded),
        ("the pool's decisions alone in a plain mutex", &hit_core),
    ];
    let mut times = [const { (Vec::new(), Vec::new()) }; 3];
    for _ in 0..plan.turns {
        for ((_, run), (alone, together)) in cases.iter().zip(&mut times) {
            alone.push(at_once(1, pairs, run));
            std::thread::sleep(plan.pause);
            together.push(at_once(THREADS, pairs, run));
            std::thread::sleep(plan.pause);
        }
    }
    for ((name, _), (alone, together)) in cases.iter().zip(times) {
        let (alone, together) = (median(alone), median(together));
        print(&format!("{name}, 1 thread"), alone);
        print(&format!("{name}, {THREADS} threads"), together);
        print(&format!("{name}, times 1 thread"), together / alone);
    }
    recorder.stop();
}

/// Blocks of a pool's decisions alone.
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
        let block = self.pool.allocate(self.numbers.size(), StreamId(0), Origin::default(), &mut Null);
        block.expect("the device is large").expect("more than 0 bytes were asked for").address
    }

    /// Nanoseconds that it takes to replace a block by one of another size: any of the first `among`.
    fn replace(&mut self, pairs: usize, among: usize) -> f64 {
        let since = Instant::now();
        for _ in 0..pairs {
            let which = self.numbers.below(among);
            self.pool.free(self.live[which], Origin::default(), &mut Null).expect("the block is live");
            self.live[which] = self.allocate();
        }
        since.elapsed().as_secs_f64() * 1e9 / pairs as f64
    }
}

/// Both what the pool's own search costs, where the blocks that come and go are few, and what the memory costs as well, where any of
/// all blocks may go and the next is in no cache.
fn live_blocks(plan: Plan) {
    println!("Decisions alone, nanoseconds to replace a block by one of {} sizes", SIZES.len());
    let counts: &[usize] = if plan.turns > 1 { &[1_000, 10_000, 100_000, 1_000_000] } else { &[LIVE] };
    for &count in counts {
        let mut blocks = LiveBlocks::new(count);
        for (among, name) in [(LIVE, "512 of"), (count, "any of")] {
            // Until the blocks lie as they come to lie, and not as they were first put down.
            blocks.replace(2 * among.min(plan.pairs * plan.turns), among);
            let ns = median((0..plan.turns).map(|_| blocks.replace(plan.pairs, among)).collect());
            print(&format!("{name} {count} live blocks"), ns);
        }
    }
}
