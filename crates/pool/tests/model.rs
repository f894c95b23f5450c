//! The pool against a model that is too simple to be wrong: every block in one list, every search a scan, every sum a recount.

#![allow(missing_docs)]

use proptest::prelude::*;
use vramscope_pool::{
    AllocateError, BlockState, Device, DeviceError, LaidSegment, Origin, Pool, Settings, SimulatedDevice, Stats,
};
use vramscope_trace::{DeviceId, EventKind, Memory, MemoryState, PoolKind, SiteId, StreamId};

const DEVICE: DeviceId = DeviceId(3);
const MIB: u64 = 1 << 20;

/// What a segment is, for comparison: address, size, stream, kind, and its blocks as in [`ModelSegment`].
type Laid = (u64, u64, u64, PoolKind, Vec<(u64, Option<u64>)>);

/// A segment: its size, stream, kind and blocks (size; what was asked for, where live).
#[derive(Clone, Debug)]
struct ModelSegment {
    address: u64,
    size: u64,
    stream: u64,
    kind: PoolKind,
    blocks: Vec<(u64, Option<u64>)>,
}

#[derive(Clone, Debug, Default)]
struct Model {
    segments: Vec<ModelSegment>,
}

impl Model {
    /// Where a request goes: the segment's place in the list, the block's place in it.
    fn best_fit(&self, kind: PoolKind, stream: u64, size: u64) -> Option<(usize, usize)> {
        let mut best: Option<(u64, u64, usize, usize)> = None;
        for (place, segment) in
            self.segments.iter().enumerate().filter(|(_, it)| it.kind == kind && it.stream == stream)
        {
            let mut address = segment.address;
            for (number, &(block, live)) in segment.blocks.iter().enumerate() {
                let candidate = (block, address, place, number);
                if live.is_none() && block >= size && best.is_none_or(|best| candidate < best) {
                    best = Some(candidate);
                }
                address += block;
            }
        }
        best.map(|(_, _, place, number)| (place, number))
    }

    /// Puts a request where best fit says, making a segment at `new_address` where nothing fits. Returns address and size.
    fn allocate(&mut self, stream: u64, requested: u64, new_address: Option<u64>) -> (u64, u64) {
        let size = requested.div_ceil(512) * 512;
        let kind = if size <= MIB { PoolKind::Small } else { PoolKind::Large };
        let (place, number) = self.best_fit(kind, stream, size).unwrap_or_else(|| {
            let bytes = match size {
                0..=0x10_0000 => 2 * MIB,
                0x10_0001..0xa0_0000 => 20 * MIB,
                _ => size.div_ceil(2 * MIB) * 2 * MIB,
            };
            let address = new_address.expect("the pool made no segment where the model finds no room");
            self.segments.push(ModelSegment { address, size: bytes, stream, kind, blocks: vec![(bytes, None)] });
            (self.segments.len() - 1, 0)
        });
        let segment = &mut self.segments[place];
        let rest = segment.blocks[number].0 - size;
        let cut = if kind == PoolKind::Small { rest >= 512 } else { rest > MIB };
        let taken = if cut { size } else { size + rest };
        segment.blocks[number] = (taken, Some(requested));
        if cut {
            segment.blocks.insert(number + 1, (rest, None));
        }
        (segment.address + segment.blocks[..number].iter().map(|block| block.0).sum::<u64>(), taken)
    }

    fn free(&mut self, address: u64) {
        let segment = self
            .segments
            .iter_mut()
            .find(|it| (it.address..it.address + it.size).contains(&address))
            .expect("a segment");
        let mut at = segment.address;
        for block in &mut segment.blocks {
            if at == address {
                block.1 = None;
            }
            at += block.0;
        }
        segment.blocks.dedup_by(|above, below| {
            let joins = above.1.is_none() && below.1.is_none();
            if joins {
                below.0 += above.0;
            }
            joins
        });
    }

    fn empty_cache(&mut self) {
        self.segments.retain(|segment| segment.blocks.iter().any(|block| block.1.is_some()));
    }

    fn sum(&self, kind: PoolKind, of: impl Fn(&ModelSegment) -> u64) -> u64 {
        self.segments.iter().filter(|segment| segment.kind == kind).map(of).sum()
    }
}

fn lay(model: &Model) -> Vec<Laid> {
    let mut segments: Vec<_> =
        model.segments.iter().map(|it| (it.address, it.size, it.stream, it.kind, it.blocks.clone())).collect();
    segments.sort_by_key(|segment| segment.0);
    segments
}

fn lay_pool<D: Device>(pool: &Pool<D>) -> Vec<Laid> {
    let blocks = |it: &LaidSegment| {
        it.blocks
            .iter()
            .map(|block| (block.size, (block.state != BlockState::Inactive).then_some(block.requested)))
            .collect()
    };
    pool.segments().iter().map(|it| (it.address, it.size, it.stream.0, it.pool.kind, blocks(it))).collect()
}

fn check_stats(stats: &Stats, model: &Model) {
    for kind in [PoolKind::Small, PoolKind::Large] {
        let of = |stat: &vramscope_pool::StatBySize| match kind {
            PoolKind::Small => stat.small_pool.current,
            PoolKind::Large => stat.large_pool.current,
        };
        let live = |it: &ModelSegment| it.blocks.iter().filter(|block| block.1.is_some()).count() as u64;
        let live_bytes =
            |it: &ModelSegment| it.blocks.iter().filter(|block| block.1.is_some()).map(|block| block.0).sum();
        let requested = |it: &ModelSegment| it.blocks.iter().filter_map(|block| block.1).sum();
        let split = |it: &ModelSegment| if it.blocks.len() > 1 { it.blocks.len() as u64 - live(it) } else { 0 };
        let split_bytes = |it: &ModelSegment| if it.blocks.len() > 1 { it.size - live_bytes(it) } else { 0 };
        assert_eq!(of(&stats.segment), model.sum(kind, |_| 1), "segment {kind:?}");
        assert_eq!(of(&stats.reserved_bytes), model.sum(kind, |it| it.size), "reserved_bytes {kind:?}");
        assert_eq!(of(&stats.allocation), model.sum(kind, live), "allocation {kind:?}");
        assert_eq!(of(&stats.active), model.sum(kind, live), "active {kind:?}");
        assert_eq!(of(&stats.allocated_bytes), model.sum(kind, live_bytes), "allocated_bytes {kind:?}");
        assert_eq!(of(&stats.active_bytes), model.sum(kind, live_bytes), "active_bytes {kind:?}");
        assert_eq!(of(&stats.requested_bytes), model.sum(kind, requested), "requested_bytes {kind:?}");
        assert_eq!(of(&stats.inactive_split), model.sum(kind, split), "inactive_split {kind:?}");
        assert_eq!(of(&stats.inactive_split_bytes), model.sum(kind, split_bytes), "inactive_split_bytes {kind:?}");
    }
    let every = [
        &stats.allocation,
        &stats.segment,
        &stats.active,
        &stats.inactive_split,
        &stats.allocated_bytes,
        &stats.reserved_bytes,
        &stats.active_bytes,
        &stats.inactive_split_bytes,
        &stats.requested_bytes,
    ];
    for stat in every {
        assert_eq!(stat.all.current, stat.small_pool.current + stat.large_pool.current);
        for one in [stat.all, stat.small_pool, stat.large_pool] {
            assert_eq!(one.allocated - one.freed, one.current);
            assert!(one.peak >= one.current);
        }
    }
}

/// The events that the pool emitted, applied from the start, must give what the pool says of itself.
fn check_events<D: Device>(state: &MemoryState, pool: &Pool<D>) {
    let Some(device) = state.device(DEVICE) else {
        assert_eq!(pool.segments().len(), 0);
        return;
    };
    assert_eq!(device.misfits(), 0, "no event contradicts those before");
    let mut segments = device.segments();
    for laid in pool.segments() {
        let told = segments.next().expect("the events tell of every segment");
        assert_eq!(
            (told.address, told.size, told.stream, told.pool),
            (laid.address, laid.size, laid.stream, laid.pool)
        );
        let extents =
            device.extents(told).map(|it| (it.address, it.size, it.block.map(|block| (block.requested, block.site))));
        let blocks = laid
            .blocks
            .iter()
            .map(|it| (it.address, it.size, (it.state != BlockState::Inactive).then_some((it.requested, it.site))));
        assert_eq!(extents.collect::<Vec<_>>(), blocks.collect::<Vec<_>>());
    }
    assert!(segments.next().is_none(), "the events tell of no other segment");
    let (counters, stats) = (device.counters(), pool.stats());
    assert_eq!(counters.allocated, stats.allocated_bytes.all.current);
    assert_eq!(counters.active, stats.active_bytes.all.current);
    assert_eq!(counters.reserved, stats.reserved_bytes.all.current);
    assert_eq!(counters.requested, stats.requested_bytes.all.current);
    assert_eq!(device.ooms(), stats.num_ooms);
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate {
        bytes: u64,
        stream: u64,
    },
    /// Frees one of the live blocks, by a number that is taken modulo their count.
    Free(usize),
    FreeAgain(usize),
    EmptyCache,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let bytes = prop_oneof![
        4 => 1..4096u64,
        4 => 4096..MIB + 4096,
        3 => MIB..12 * MIB,
        1 => 9 * MIB..40 * MIB,
    ];
    let operation = prop_oneof![
        8 => (bytes, 0..3u64).prop_map(|(bytes, stream)| Operation::Allocate { bytes, stream }),
        6 => any::<usize>().prop_map(Operation::Free),
        1 => any::<usize>().prop_map(Operation::FreeAgain),
        1 => Just(Operation::EmptyCache),
    ];
    prop::collection::vec(operation, 1..200)
}

/// Runs operations on a pool and on the model, comparing them after each.
fn check(operations: &[Operation], settings: Settings, device: SimulatedDevice) {
    let mut pool = Pool::new(DEVICE, settings, device);
    let mut model = Model::default();
    let mut state = MemoryState::default();
    let mut live: Vec<u64> = Vec::new();
    let mut gone: Vec<u64> = Vec::new();
    for (number, operation) in operations.iter().enumerate() {
        let mut sink = Memory::default();
        let origin = Origin { site: SiteId(number as u32 + 1), time_ns: number as u64 };
        match *operation {
            Operation::Allocate { bytes, stream } => match pool.allocate(bytes, StreamId(stream), origin, &mut sink) {
                Ok(allocated) => {
                    let allocated = allocated.expect("more than 0 bytes were asked for");
                    let released = sink.events.iter().any(|event| matches!(event.kind, EventKind::SegmentFreed { .. }));
                    if released {
                        model.empty_cache();
                    }
                    let made = sink.events.iter().find_map(|event| match event.kind {
                        EventKind::SegmentAllocated { address, .. } => Some(address),
                        _ => None,
                    });
                    assert_eq!(model.allocate(stream, bytes, made), (allocated.address, allocated.size));
                    live.push(allocated.address);
                    gone.retain(|&address| address != allocated.address);
                }
                Err(AllocateError::OutOfMemory(_)) => model.empty_cache(),
                Err(AllocateError::Device(_)) => forget_released(&mut model, &sink),
                Err(error @ (AllocateError::TooLarge { .. } | AllocateError::Mempool(_))) => panic!("{error}"),
            },
            Operation::Free(which) if !live.is_empty() => {
                let address = live.swap_remove(which % live.len());
                pool.free(address, origin, &mut sink).expect("a live block");
                model.free(address);
                gone.push(address);
            }
            Operation::FreeAgain(which) if !gone.is_empty() => {
                let address = gone[which % gone.len()];
                pool.free(address, origin, &mut sink).expect_err("a block that is gone");
                pool.free(address + 1, origin, &mut sink).expect_err("no block begins there");
                assert!(sink.events.is_empty(), "what is refused leaves no trace");
            }
            Operation::EmptyCache => {
                let result = pool.empty_cache(origin, &mut sink);
                forget_released(&mut model, &sink);
                if result.is_ok() {
                    model.empty_cache();
                }
            }
            Operation::Free(_) | Operation::FreeAgain(_) => {}
        }
        sink.events.iter().for_each(|event| state.apply(event));
        assert_eq!(lay_pool(&pool), lay(&model), "after operation {number}");
        check_stats(&pool.stats(), &model);
        check_events(&state, &pool);
        let memory = pool.device().memory();
        assert_eq!(memory.total_bytes - memory.free_bytes, pool.stats().reserved_bytes.all.current);
    }
}

/// A device that fails in between leaves some of the cache released; the events say which.
fn forget_released(model: &mut Model, sink: &Memory) {
    for event in &sink.events {
        if let EventKind::SegmentFreed { address, .. } = event.kind {
            model.segments.retain(|segment| segment.address != address);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_pool_does_what_the_model_does(operations in operations(), capacity in prop_oneof![Just(1 << 40), 30 * MIB..300 * MIB]) {
        check(&operations, Settings::default(), SimulatedDevice::new(capacity));
    }

    #[test]
    fn a_limit_holds(operations in operations(), limit in 0..200 * MIB) {
        let settings = Settings { limit_bytes: Some(limit), ..Settings::default() };
        check(&operations, settings, SimulatedDevice::new(1 << 40));
    }

    #[test]
    fn a_device_may_fail_at_every_call(operations in operations(), calls in prop::collection::btree_set(0..60u64, 0..12), full in any::<bool>()) {
        let error = if full { DeviceError::OutOfMemory } else { DeviceError::Failed("injected".to_owned()) };
        let device = calls.into_iter().fold(SimulatedDevice::new(120 * MIB), |device, call| device.with_fault(call, error.clone()));
        check(&operations, Settings::default(), device);
    }
}
