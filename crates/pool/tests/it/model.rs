//! Compares the pool with a simple model that keeps all blocks in one list, scans it for every
//! search and recounts every sum.

use proptest::prelude::*;
use vramscope_pool::{
    AllocateError, BlockState, Device, DeviceError, Origin, Pool, SegmentView, Settings, SimulatedDevice,
};
use vramscope_trace::{DeviceId, EventKind, MemorySink, MemoryState, PoolKind, SiteId, StreamId};

use crate::common::{Recount, check_event_counters, check_stats};

const DEVICE: DeviceId = DeviceId(3);
const MIB: u64 = 1 << 20;

/// A segment for comparison: address, size, stream, kind, and blocks as in [`ModelSegment`].
type SegmentLayout = (u64, u64, u64, PoolKind, Vec<(u64, Option<u64>)>);

/// A segment. A block is its size and, if allocated, its requested bytes.
#[derive(Clone, Debug)]
struct ModelSegment {
    address: u64,
    size: u64,
    stream: u64,
    kind: PoolKind,
    blocks: Vec<(u64, Option<u64>)>,
}

/// A simple allocator that decides as the pool must.
#[derive(Clone, Debug, Default)]
struct Model {
    segments: Vec<ModelSegment>,
}

impl Model {
    /// Returns the best-fitting free block, as the index of its segment and its index in the
    /// segment.
    fn best_fit(&self, kind: PoolKind, stream: u64, size: u64) -> Option<(usize, usize)> {
        let mut best: Option<(u64, u64, usize, usize)> = None;
        for (position, segment) in
            self.segments.iter().enumerate().filter(|(_, it)| it.kind == kind && it.stream == stream)
        {
            let mut address = segment.address;
            for (number, &(block, live)) in segment.blocks.iter().enumerate() {
                let candidate = (block, address, position, number);
                if live.is_none() && block >= size && best.is_none_or(|best| candidate < best) {
                    best = Some(candidate);
                }
                address += block;
            }
        }
        best.map(|(_, _, position, number)| (position, number))
    }

    /// Allocates the best-fitting free block, or adds a segment at `new_address` if none fits.
    /// Returns the block's address and size.
    fn allocate(&mut self, stream: u64, requested: u64, new_address: Option<u64>) -> (u64, u64) {
        let size = requested.div_ceil(512) * 512;
        let kind = if size <= MIB { PoolKind::Small } else { PoolKind::Large };
        let (position, number) = self.best_fit(kind, stream, size).unwrap_or_else(|| {
            let bytes = match size {
                0..=0x10_0000 => 2 * MIB,
                0x10_0001..0xa0_0000 => 20 * MIB,
                _ => size.div_ceil(2 * MIB) * 2 * MIB,
            };
            let address = new_address.expect("the pool allocates a segment where the model needs one");
            self.segments.push(ModelSegment { address, size: bytes, stream, kind, blocks: vec![(bytes, None)] });
            (self.segments.len() - 1, 0)
        });
        let segment = &mut self.segments[position];
        let remainder = segment.blocks[number].0 - size;
        let is_split = if kind == PoolKind::Small { remainder >= 512 } else { remainder > MIB };
        let taken_size = if is_split { size } else { size + remainder };
        segment.blocks[number] = (taken_size, Some(requested));
        if is_split {
            segment.blocks.insert(number + 1, (remainder, None));
        }
        (segment.address + segment.blocks[..number].iter().map(|block| block.0).sum::<u64>(), taken_size)
    }

    fn free(&mut self, address: u64) {
        let segment = self
            .segments
            .iter_mut()
            .find(|it| (it.address..it.address + it.size).contains(&address))
            .expect("the address is in a segment");
        let mut at = segment.address;
        for block in &mut segment.blocks {
            if at == address {
                block.1 = None;
            }
            at += block.0;
        }
        segment.blocks.dedup_by(|above, below| {
            let are_free = above.1.is_none() && below.1.is_none();
            if are_free {
                below.0 += above.0;
            }
            are_free
        });
    }

    fn empty_cache(&mut self) {
        self.segments.retain(|segment| segment.blocks.iter().any(|block| block.1.is_some()));
    }

    fn sum(&self, kind: PoolKind, of: impl Fn(&ModelSegment) -> u64) -> u64 {
        self.segments.iter().filter(|segment| segment.kind == kind).map(of).sum()
    }
}

fn model_layout(model: &Model) -> Vec<SegmentLayout> {
    let mut segments: Vec<_> =
        model.segments.iter().map(|it| (it.address, it.size, it.stream, it.kind, it.blocks.clone())).collect();
    segments.sort_by_key(|segment| segment.0);
    segments
}

fn pool_layout<D: Device>(pool: &Pool<D>) -> Vec<SegmentLayout> {
    let blocks = |it: &SegmentView| {
        it.blocks
            .iter()
            .map(|block| (block.size, (block.state != BlockState::Free).then_some(block.requested)))
            .collect()
    };
    pool.segments().iter().map(|it| (it.address, it.size, it.stream.0, it.pool.kind, blocks(it))).collect()
}

/// Counts the values that the statistics of the size class `kind` must have.
fn recount(model: &Model, kind: PoolKind) -> Recount {
    let live = |it: &ModelSegment| it.blocks.iter().filter(|block| block.1.is_some()).count() as u64;
    let live_bytes = |it: &ModelSegment| it.blocks.iter().filter(|block| block.1.is_some()).map(|block| block.0).sum();
    let requested = |it: &ModelSegment| it.blocks.iter().filter_map(|block| block.1).sum();
    let split = |it: &ModelSegment| if it.blocks.len() > 1 { it.blocks.len() as u64 - live(it) } else { 0 };
    let split_bytes = |it: &ModelSegment| if it.blocks.len() > 1 { it.size - live_bytes(it) } else { 0 };
    Recount {
        segment: model.sum(kind, |_| 1),
        reserved_bytes: model.sum(kind, |it| it.size),
        allocation: model.sum(kind, live),
        allocated_bytes: model.sum(kind, live_bytes),
        active: model.sum(kind, live),
        active_bytes: model.sum(kind, live_bytes),
        requested_bytes: model.sum(kind, requested),
        inactive_split: model.sum(kind, split),
        inactive_split_bytes: model.sum(kind, split_bytes),
    }
}

/// Checks that the events of the pool, applied from the start, give the pool's state.
fn check_events<D: Device>(state: &MemoryState, pool: &Pool<D>) {
    let Some(device) = state.device(DEVICE) else {
        assert_eq!(pool.segments().len(), 0);
        return;
    };
    check_event_counters(device, &pool.stats());
    let mut segments = device.segments();
    for view in pool.segments() {
        let recorded = segments.next().expect("the events contain every segment");
        assert_eq!(
            (recorded.address, recorded.size, recorded.stream, recorded.pool),
            (view.address, view.size, view.stream, view.pool)
        );
        let extents = device
            .extents(recorded)
            .map(|it| (it.address, it.size, it.block.map(|block| (block.requested, block.site))));
        let blocks = view
            .blocks
            .iter()
            .map(|it| (it.address, it.size, (it.state != BlockState::Free).then_some((it.requested, it.site))));
        assert_eq!(extents.collect::<Vec<_>>(), blocks.collect::<Vec<_>>());
    }
    assert!(segments.next().is_none(), "the events contain no other segment");
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate {
        bytes: u64,
        stream: u64,
    },
    /// Frees an allocated block, by its index modulo the number of allocated blocks.
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

/// Runs operations on a pool and on the model and compares both after each.
fn check(operations: &[Operation], settings: Settings, device: SimulatedDevice) {
    let mut pool = Pool::new(DEVICE, settings, device);
    let mut model = Model::default();
    let mut state = MemoryState::default();
    let mut live: Vec<u64> = Vec::new();
    let mut freed: Vec<u64> = Vec::new();
    for (number, operation) in operations.iter().enumerate() {
        let mut sink = MemorySink::default();
        let origin = Origin { site: SiteId(number as u32 + 1), time_ns: number as u64 };
        match *operation {
            Operation::Allocate { bytes, stream } => match pool.allocate(bytes, StreamId(stream), origin, &mut sink) {
                Ok(allocated) => {
                    let allocated = allocated.expect("the request is not empty");
                    let released = sink.events.iter().any(|event| matches!(event.kind, EventKind::SegmentFreed { .. }));
                    if released {
                        model.empty_cache();
                    }
                    let new_address = sink.events.iter().find_map(|event| match event.kind {
                        EventKind::SegmentAllocated { address, .. } => Some(address),
                        _ => None,
                    });
                    assert_eq!(model.allocate(stream, bytes, new_address), (allocated.address, allocated.size));
                    live.push(allocated.address);
                    freed.retain(|&address| address != allocated.address);
                }
                Err(AllocateError::OutOfMemory(_)) => model.empty_cache(),
                Err(AllocateError::Device(_)) => forget_released(&mut model, &sink),
                Err(error @ (AllocateError::TooLarge { .. } | AllocateError::Mempool(_))) => panic!("{error}"),
            },
            Operation::Free(which) if !live.is_empty() => {
                let address = live.swap_remove(which % live.len());
                pool.free(address, origin, &mut sink).expect("the block is allocated");
                model.free(address);
                freed.push(address);
            }
            Operation::FreeAgain(which) if !freed.is_empty() => {
                let address = freed[which % freed.len()];
                pool.free(address, origin, &mut sink).expect_err("the block was freed");
                pool.free(address + 1, origin, &mut sink).expect_err("no block begins at this address");
                assert!(sink.events.is_empty(), "a refused call emits no event");
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
        assert_eq!(pool_layout(&pool), model_layout(&model), "after operation {number}");
        check_stats(&pool.stats(), |kind| recount(&model, kind));
        check_events(&state, &pool);
        let memory = pool.device().memory();
        assert_eq!(memory.total_bytes - memory.free_bytes, pool.stats().reserved_bytes.all.current);
    }
}

/// Removes from the model the segments that a failed operation released, according to its events.
fn forget_released(model: &mut Model, sink: &MemorySink) {
    for event in &sink.events {
        if let EventKind::SegmentFreed { address, .. } = event.kind {
            model.segments.retain(|segment| segment.address != address);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn pool_matches_the_model(operations in operations(), capacity in prop_oneof![Just(1 << 40), 30 * MIB..300 * MIB]) {
        check(&operations, Settings::default(), SimulatedDevice::new(capacity));
    }

    #[test]
    fn pool_with_a_limit_matches_the_model(operations in operations(), limit in 0..200 * MIB) {
        let settings = Settings { limit_bytes: Some(limit), ..Settings::default() };
        check(&operations, settings, SimulatedDevice::new(1 << 40));
    }

    #[test]
    fn pool_on_a_failing_device_matches_the_model(
        operations in operations(),
        calls in prop::collection::btree_set(0..60u64, 0..12),
        full in any::<bool>(),
    ) {
        let error = if full { DeviceError::OutOfMemory } else { DeviceError::Failed("injected".to_owned()) };
        let device = SimulatedDevice::new(120 * MIB);
        let device = calls.into_iter().fold(device, |device, call| device.with_fault(call, error.clone()));
        check(&operations, Settings::default(), device);
    }
}
