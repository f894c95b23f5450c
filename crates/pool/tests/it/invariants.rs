//! Invariants of the pool under random calls, for various settings, several streams, private pools,
//! expandable segments, late stream events and a device that fails at any call: allocated blocks do
//! not overlap, every byte of a segment belongs to exactly one block, free neighbors are merged,
//! every counter equals a recount, and the events describe the same state.
//!
//! `VRAMSCOPE_TEST_OPERATIONS` sets the number of operations.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::num::NonZero;
use std::thread;

use vramscope_pool::{
    AllocateError, BlockState, CaptureFilter, Device, DeviceError, Origin, Pool, SegmentView, Settings, SimulatedDevice,
};
use vramscope_trace::{DeviceId, EventKind, MemorySink, MemoryState, MempoolId, PoolKind, SiteId, StreamId};

use crate::common::{Recount, check_event_counters, check_stats};

const DEVICE: DeviceId = DeviceId(1);
const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 600 * MIB;

type SimulatedPool = Pool<SimulatedDevice>;

/// A generator of random numbers that are equal in each run.
struct Random(fastrand::Rng);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0.u64(..end)
    }

    fn bytes(&mut self) -> u64 {
        match self.below(10) {
            0..=3 => 1 + self.below(4096),
            4..=6 => 1 + self.below(MIB),
            7..=8 => MIB + self.below(11 * MIB),
            _ => 9 * MIB + self.below(60 * MIB),
        }
    }
}

/// What the program knows of an allocated block.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Live {
    size: u64,
    requested: u64,
}

/// A program that makes random calls to a pool and checks the pool's invariants.
struct Program {
    pool: SimulatedPool,
    random: Random,
    live: BTreeMap<u64, Live>,
    freed: Vec<u64>,
    state: MemoryState,
    steps: u64,
}

fn settings(number: u64) -> Settings {
    let default = Settings::default();
    let expandable = Settings { expandable_segments: true, ..default.clone() };
    let limited = Settings { limit_bytes: Some(400 * MIB), ..default.clone() };
    match number % 8 {
        0 => default,
        1 => Settings { max_split_size_bytes: Some(32 * MIB), ..default },
        2 => Settings { roundup_power2_divisions: [8; 16], ..default },
        3 => Settings { garbage_collection_threshold: 0.5, ..limited },
        4 => expandable,
        5 => Settings { limit_bytes: Some(300 * MIB), large_segment_size_bytes: 32 * MIB, ..expandable },
        6 => Settings { max_split_size_bytes: Some(64 * MIB), max_non_split_rounding_bytes: Some(24 * MIB), ..limited },
        _ => Settings { per_process_memory_fraction: 0.7, garbage_collection_threshold: 0.3, ..default },
    }
}

impl Program {
    fn new(seed: u64, settings: Settings, device: SimulatedDevice) -> Self {
        Self {
            pool: Pool::new(DEVICE, settings, device),
            random: Random(fastrand::Rng::with_seed(seed)),
            live: BTreeMap::new(),
            freed: Vec::new(),
            state: MemoryState::default(),
            steps: 0,
        }
    }

    fn origin(&self) -> Origin {
        Origin { site: SiteId(self.steps as u32 + 1), time_ns: self.steps }
    }

    fn pick(&mut self) -> Option<u64> {
        let which = self.random.below(1 << 20) as usize % self.live.len().max(1);
        self.live.keys().nth(which).copied()
    }

    /// Makes one random call.
    fn step(&mut self) {
        self.steps += 1;
        let mut sink = MemorySink::default();
        match self.random.below(100) {
            0..=49 if self.live.len() < 400 => self.allocate(&mut sink),
            0..=79 => self.free(&mut sink),
            80..=87 => {
                let stream = StreamId(self.random.below(4));
                if let Some(address) = self.pick() {
                    self.pool.record_stream(address, stream).expect("the block is allocated");
                    self.pool.record_stream(address + 1, stream).expect_err("no block begins at this address");
                }
            }
            88..=92 => {
                let count = self.random.below(6);
                self.pool.device_mut().complete_events(count);
            }
            93..=94 => drop(self.pool.process_events(self.origin(), &mut sink)),
            95 => drop(self.pool.empty_cache(self.origin(), &mut sink)),
            96..=98 => self.use_private_pools(),
            _ => {
                let number = self.random.below(64);
                // Settings change rarely, as in real programs.
                if number < 16 && self.steps > 50 {
                    self.pool.set_settings(settings(number));
                }
            }
        }
        sink.events.iter().for_each(|event| self.state.apply(event));
    }

    fn allocate(&mut self, sink: &mut MemorySink) {
        let (bytes, stream) = (self.random.bytes(), StreamId(self.random.below(3)));
        let origin = self.origin();
        let spare = self.live.first_key_value().map(|(&address, _)| address);
        let result = if self.random.below(20) == 0 {
            let mut callback = || spare.map(|address| vec![address, address + 7]);
            let mempool = (self.random.below(4) == 0).then_some(MempoolId(0, 1));
            self.pool.allocate_with_callback(mempool, bytes, stream, origin, sink, &mut callback)
        } else if self.random.below(20) == 0 {
            let mempool = MempoolId(0, 1 + self.random.below(3));
            self.pool.allocate_in(mempool, bytes, stream, origin, sink)
        } else {
            self.pool.allocate(bytes, stream, origin, sink)
        };
        for event in &sink.events {
            if let EventKind::FreeRequested { address, .. } = event.kind {
                assert_eq!(Some(address), spare, "only the offered block is freed");
                self.live.remove(&address);
                self.freed.push(address);
            }
        }
        match result {
            Ok(allocated) => {
                let allocated = allocated.expect("the request is not empty");
                assert!(allocated.size >= bytes);
                let live = Live { size: allocated.size, requested: bytes };
                assert_eq!(self.live.insert(allocated.address, live), None, "the address is allocated twice");
                self.freed.retain(|&address| address != allocated.address);
            }
            Err(AllocateError::OutOfMemory(_) | AllocateError::Device(_) | AllocateError::Mempool(_)) => {}
            Err(error @ AllocateError::TooLarge { .. }) => panic!("{error}"),
        }
    }

    fn free(&mut self, sink: &mut MemorySink) {
        let origin = self.origin();
        if self.random.below(10) == 0 {
            let before = self.pool.segments();
            for address in self.freed.iter().copied().chain([0, 1, u64::MAX]) {
                self.pool.free(address, origin, sink).expect_err("the block was freed");
                self.pool.record_stream(address, StreamId(9)).expect_err("the block was freed");
            }
            assert!(sink.events.is_empty(), "a refused call emits no event");
            assert_eq!(self.pool.segments(), before);
        } else if let Some(address) = self.pick()
            && self.pool.free(address, origin, sink).is_ok()
        {
            self.live.remove(&address);
            self.freed.push(address);
            self.freed.truncate(50);
        }
    }

    /// Creates, selects, deselects and releases private pools in random order. Invalid calls are
    /// errors and change nothing.
    fn use_private_pools(&mut self) {
        let mempool = MempoolId(0, 1 + self.random.below(3));
        let stream = StreamId(self.random.below(3));
        match self.random.below(7) {
            0 => drop(self.pool.create_pool(mempool)),
            1 => drop(self.pool.begin_allocate_to_pool(mempool, CaptureFilter::Stream(stream))),
            2 => drop(self.pool.begin_allocate_to_pool(mempool, CaptureFilter::AllStreams)),
            3..=4 => drop(self.pool.end_allocate_to_pool(mempool)),
            5 => drop(self.pool.release_pool(mempool)),
            _ => {
                let use_on_oom = self.random.below(2) == 0;
                self.pool.set_use_on_oom(mempool, use_on_oom);
                if self.random.below(40) == 0 {
                    self.pool.set_no_split(MempoolId(0, 3));
                }
            }
        }
    }

    /// Checks all invariants.
    fn check(&self) {
        let segments = self.pool.segments();
        self.check_layout(&segments);
        check_stats(&self.pool.stats(), |kind| recount(&segments, kind));
        self.check_events(&segments);
        let memory = self.pool.device().memory();
        assert_eq!(memory.total_bytes - memory.free_bytes, self.pool.stats().reserved_bytes.all.current);
    }

    fn check_layout(&self, segments: &[SegmentView]) {
        let mut live = BTreeMap::new();
        let mut end = 0;
        for segment in segments {
            assert!(segment.address >= end, "segments do not overlap and are in order");
            end = segment.address + segment.size;
            let mut at = segment.address;
            for block in &segment.blocks {
                assert_eq!(block.address, at, "every byte belongs to exactly one block");
                assert!(block.size > 0);
                at += block.size;
                if block.state == BlockState::Allocated {
                    live.insert(block.address, Live { size: block.size, requested: block.requested });
                }
            }
            assert_eq!(at, end);
            let free = |block: &vramscope_pool::BlockView| block.state == BlockState::Free;
            assert!(
                segment.blocks.windows(2).all(|pair| !(free(&pair[0]) && free(&pair[1]))),
                "free neighbors are merged"
            );
        }
        assert!(live == self.live, "the pool has the program's blocks");
    }

    fn check_events(&self, segments: &[SegmentView]) {
        let Some(device) = self.state.device(DEVICE) else {
            assert!(segments.is_empty());
            return;
        };
        check_event_counters(device, &self.pool.stats());
        let recorded: BTreeSet<(u64, u64, bool)> =
            device.blocks().map(|block| (block.address, block.size, block.pending_free)).collect();
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let actual: BTreeSet<_> = blocks
            .filter(|block| block.state != BlockState::Free)
            .map(|block| (block.address, block.size, block.state == BlockState::PendingFree))
            .collect();
        assert!(recorded == actual, "the events contain the pool's blocks");
    }
}

/// Counts the values that the statistics of the size class `kind` must have.
fn recount(segments: &[SegmentView], kind: PoolKind) -> Recount {
    let of_kind = || segments.iter().filter(|segment| segment.pool.kind == kind);
    let ordinary = || of_kind().filter(|segment| !segment.expandable);
    let active = || of_kind().flat_map(|it| &it.blocks).filter(|block| block.state != BlockState::Free);
    let allocated = || active().filter(|block| block.state == BlockState::Allocated);
    let split = || {
        let shared = ordinary().filter(|segment| segment.blocks.len() > 1).flat_map(|segment| &segment.blocks);
        shared.filter(|block| block.state == BlockState::Free)
    };
    Recount {
        segment: ordinary().count() as u64,
        reserved_bytes: of_kind().map(|it| it.size).sum(),
        allocation: allocated().count() as u64,
        allocated_bytes: allocated().map(|it| it.size).sum(),
        active: active().count() as u64,
        active_bytes: active().map(|it| it.size).sum(),
        requested_bytes: active().map(|it| it.requested).sum(),
        inactive_split: split().count() as u64,
        inactive_split_bytes: split().map(|it| it.size).sum(),
    }
}

/// Returns the total number of operations of a test.
fn operations(default: u64) -> u64 {
    let set = env::var("VRAMSCOPE_TEST_OPERATIONS").ok();
    set.map_or(default, |number| number.parse().expect("VRAMSCOPE_TEST_OPERATIONS is a number"))
}

/// Runs programs of `steps` operations each, divided among the processors, and checks all
/// invariants every `interval` operations.
fn run(default: u64, steps: u64, interval: u64, device: impl Fn(u64) -> SimulatedDevice + Sync) {
    let programs = operations(default).div_ceil(steps);
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let run_program = |seed| {
        let mut program = Program::new(seed, settings(seed), device(seed));
        for step in 1..=steps {
            program.step();
            if step % interval == 0 {
                program.check();
            }
        }
    };
    thread::scope(|scope| {
        for first in 0..threads as u64 {
            scope.spawn(move || (first..programs).step_by(threads).for_each(run_program));
        }
    });
}

#[test]
fn invariants_hold_after_every_operation() {
    run(120_000, 400, 1, |_| SimulatedDevice::new(CAPACITY));
}

#[test]
fn invariants_hold_with_late_stream_events() {
    run(120_000, 400, 1, |_| SimulatedDevice::new(CAPACITY).with_manual_events());
}

#[test]
fn invariants_hold_in_a_long_run() {
    run(2_000_000, 30_000, 64, |_| SimulatedDevice::new(CAPACITY).with_manual_events());
}

#[test]
fn invariants_hold_when_the_device_fails() {
    // Fail each of the first calls in turn, then calls at regular intervals.
    run(120_000, 300, 1, |seed| {
        let error = match seed % 3 {
            0 => DeviceError::OutOfMemory,
            _ => DeviceError::Failed("injected".to_owned()),
        };
        let calls = (seed % 97..4000).step_by(5 + (seed % 31) as usize);
        let device = SimulatedDevice::new(CAPACITY).with_manual_events();
        calls.fold(device, |device, call| device.with_fault(call, error.clone()))
    });
}
