//! What the pool costs a program, recorded and not, beside general allocators and a plain lock, and what its parts cost: lines of a
//! name, the fastest of many short turns, and their median.
//!
//! `cargo bench -p vramscope-collector --bench speed`, or the program that it builds, with `--bench`. Nothing else is needed, so it
//! can be carried to another machine. Without `--bench` everything runs once, to show that it runs.
//!
//! What is compared is measured in turns. A turn of a recorded program is a burst of some hundred blocks, as in a training step, after which
//! the recorder is let do its work: what the next burst writes, the recorder has just read on another core, where there is one to be
//! had. The line "while the recorder is at work" is of bursts so long that the recorder reads the burst while it is written. A program
//! that does nothing else waits for the recorder; `record.rs` shows how fast that is.

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

const HIT_BYTES: u64 = 64 << 10;
/// 256 B to 20 MB, as in the table of what others take.
const SIZES: [u64; 7] = [256, 4 << 10, 64 << 10, 512 << 10, 2 << 20, 8 << 20, 20_000_000];
const LIVE: usize = 512;
const THREADS: usize = 8;
/// Pairs of a turn. They make a fortieth of a queue of events, and a quarter of it wakes the recorder, so that few turns see it.
const PAIRS: usize = 512;
/// Pairs of a turn that the recorder is awake for. They make less than half a queue of events, so that nobody waits.
const LONG_PAIRS: usize = 8 << 10;

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

/// The fastest turn and the median of all.
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

/// One thing of several that are compared: does so many pairs of an allocation and a free.
struct Case<'a> {
    name: &'static str,
    /// To let the recorder do its work.
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

/// Nanoseconds a pair of each case, in turns taken by one after the other.
fn compare<const N: usize>(plan: Plan, mut cases: [Case<'_>; N]) -> [Times; N] {
    let mut times = [const { Vec::new() }; N];
    for _ in 0..plan.turns {
        for (case, times) in cases.iter_mut().zip(&mut times) {
            // The first pairs of a turn find cold caches, where they follow a turn of something else.
            (case.run)(plan.pairs / 8);
            let since = Instant::now();
            (case.run)(plan.pairs);
            times.push(since.elapsed().as_secs_f64() * 1e9 / plan.pairs as f64);
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
    Recorder::start(RecordingInfo::default(), outputs).expect("a thread")
}

fn unrecorded_pool() -> HostPool {
    HostPool::new(HostDevice::new(u64::MAX), Settings::default(), NullSink, || 0)
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

/// What recording adds to an event; a pair is three.
fn added(recorded: f64, plain: f64) -> f64 {
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
            Case::new("hit, the C library", |pairs| hit_of(&System, pairs)),
        ],
    );
    of_recorded.with(of_plain, added).print("hit, what recording adds an event (there are three)");
    of_plain.with(of_mimalloc, |plain, mimalloc| plain / mimalloc).print("hit, not recorded, times mimalloc");
    let long = Plan { pairs: plan.long_pairs, ..plan };
    let case = Case::new("hit, recorded, while the recorder is at work", |pairs| hit(&recorded, pairs));
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
            Case::new("churn, the C library", churn_of(&System)),
        ],
    );
    of_recorded.with(of_plain, added).print("churn, what recording adds an event (there are three)");
    println!("{:<58} {:>19}", "how often a recorded program waited (0 unless too fast)", recorder.stop().waits);
}

/// Recording that is paused, and recording that looks at the call stack.
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

/// What a pair is made of, each alone: together they take more or less than the sum, since a processor does several things at once.
fn parts(plan: Plan) {
    let (_recorder, handle) = record();
    println!("The parts of an allocation with its free");
    let core = || Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(u64::MAX));
    let (mut core_alone, mut core_told, mut blocks) = (core(), core(), LiveBlocks::new(LIVE));
    let (mut told, mut sink, mutex) = (handle.clone(), handle.clone(), Mutex::new(0));
    compare(
        plan,
        [
            Case::new("hit, decisions alone", |pairs| hit_core(&mut core_alone, &mut NullSink, pairs)),
            Case::new("hit, decisions, told to the recorder at a given time", |pairs| {
                hit_core(&mut core_told, &mut told, pairs);
            })
            .recorded(&handle),
            Case::new("churn, decisions alone", |pairs| blocks.replace(pairs, LIVE)),
            Case::new("the recorder told of a pair's three events", |pairs| tell_pairs(&mut sink, pairs))
                .recorded(&handle),
            Case::new("a mutex taken twice", |pairs| {
                (0..2 * pairs).for_each(|_| *mutex.lock().expect("no panic") += 1);
            }),
            Case::new("the clock read twice, in nanoseconds", |pairs| {
                (0..2 * pairs).for_each(|_| _ = black_box(handle.now_ns()));
            }),
            #[cfg(target_arch = "x86_64")]
            Case::new("the processor's counter read twice", |pairs| {
                // SAFETY: Every processor of this kind has the instruction, and it changes nothing.
                (0..2 * pairs).for_each(|_| _ = black_box(unsafe { core::arch::x86_64::_rdtsc() }));
            }),
        ],
    );
}

fn hit_core(pool: &mut Pool<SimulatedDevice>, sink: &mut impl Sink, pairs: usize) {
    for _ in 0..pairs {
        let block = pool.allocate(HIT_BYTES, StreamId(0), Origin::default(), sink);
        let block = black_box(block.expect("the device is large").expect("more than 0 bytes were asked for"));
        pool.free(block.address, Origin::default(), sink).expect("the block is live");
    }
}

/// What a hit and its free tell.
fn tell_pairs(sink: &mut impl Sink, pairs: usize) {
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
    println!("{THREADS} threads, an allocation with its free, of all threads together");
    let (recorder, handle) = record();
    let (plain, recorded) = (unrecorded_pool(), recorded_pool(&handle));
    // The pool's decisions alone, with a lock around each.
    let core = Mutex::new(Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(u64::MAX)));
    let hit_core = |pairs| {
        for _ in 0..pairs {
            let lock = || core.lock().expect("no panic");
            let block = lock().allocate(HIT_BYTES, StreamId(0), Origin::default(), &mut NullSink);
            let block = black_box(block.expect("the device is large").expect("more than 0 bytes were asked for"));
            lock().free(block.address, Origin::default(), &mut NullSink).expect("the block is live");
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
            handle.flush();
            together.push(at_once(THREADS, pairs, run));
            handle.flush();
        }
    }
    for ((name, _), (alone, together)) in cases.iter().zip(times) {
        let (alone, together) = (Times::of(alone), Times::of(together));
        alone.print(&format!("{name}, 1 thread"));
        together.print(&format!("{name}, {THREADS} threads"));
        together.with(alone, |together, alone| together / alone).print(&format!("{name}, times 1 thread"));
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
        let block = self.pool.allocate(self.numbers.size(), StreamId(0), Origin::default(), &mut NullSink);
        block.expect("the device is large").expect("more than 0 bytes were asked for").address
    }

    /// Replaces blocks, any of the first `among`, by others of other sizes.
    fn replace(&mut self, pairs: usize, among: usize) {
        for _ in 0..pairs {
            let which = self.numbers.below(among);
            self.pool.free(self.live[which], Origin::default(), &mut NullSink).expect("the block is live");
            self.live[which] = self.allocate();
        }
    }
}

/// Both what the pool's own search costs, where the blocks that come and go are few, and what the memory costs as well, where any of
/// all blocks may go and the next is in no cache.
fn live_blocks(plan: Plan) {
    println!("Decisions alone, to replace a block by one of {} sizes", SIZES.len());
    let counts: &[usize] = if plan.turns > 1 { &[1_000, 10_000, 100_000, 1_000_000] } else { &[LIVE] };
    for &count in counts {
        let mut blocks = LiveBlocks::new(count);
        for (among, name) in [(LIVE, "512 of"), (count, "any of")] {
            // Until the blocks lie as they come to lie, and not as they were first put down.
            blocks.replace(2 * among.min(plan.pairs * plan.turns), among);
            let turn = |_| {
                let since = Instant::now();
                blocks.replace(plan.pairs, among);
                since.elapsed().as_secs_f64() * 1e9 / plan.pairs as f64
            };
            Times::of((0..plan.turns).map(turn).collect()).print(&format!("{name} {count} live blocks"));
        }
    }
}
