//! Private pools: who is served from where, and when their memory goes.

#![allow(missing_docs)]

use vramscope_pool::{AllocateError, BlockState, Diverted, MempoolError, Origin, Pool, Settings, SimulatedDevice};
use vramscope_trace::{DeviceId, MempoolId, Null, StreamId};

const MIB: u64 = 1 << 20;
const GRAPH: MempoolId = MempoolId(0, 7);

fn pool(capacity: u64) -> Pool<SimulatedDevice> {
    Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(capacity))
}

fn allocate(pool: &mut Pool<SimulatedDevice>, bytes: u64, stream: u64) -> u64 {
    let allocated = pool.allocate(bytes, StreamId(stream), Origin::default(), &mut Null).expect("room");
    allocated.expect("more than 0 bytes").address
}

fn free(pool: &mut Pool<SimulatedDevice>, address: u64) {
    pool.free(address, Origin::default(), &mut Null).expect("a live block");
}

fn owner_of(pool: &Pool<SimulatedDevice>, address: u64) -> MempoolId {
    let segments = pool.segments();
    let holds = |address: u64| segments.iter().find(|it| (it.address..it.address + it.size).contains(&address));
    holds(address).expect("in a segment").pool.owner
}

#[test]
fn a_capture_of_one_stream_leaves_the_others_alone() {
    let mut pool = pool(1 << 30);
    pool.begin_allocate_to_pool(GRAPH, Diverted::Stream(StreamId(2))).expect("a new pool");
    let (captured, other) = (allocate(&mut pool, MIB, 2), allocate(&mut pool, MIB, 1));
    assert_eq!((owner_of(&pool, captured), owner_of(&pool, other)), (GRAPH, MempoolId::default()));
    pool.end_allocate_to_pool(GRAPH).expect("diverted until now");
    let afterwards = allocate(&mut pool, MIB, 2);
    assert_eq!(owner_of(&pool, afterwards), MempoolId::default());
    free(&mut pool, captured);
    // Freed or not, a graph may be launched again: its memory stays until the pool has no user.
    pool.empty_cache(Origin::default(), &mut Null).expect("the device takes everything");
    assert_eq!(owner_of(&pool, captured), GRAPH);
    pool.release_pool(GRAPH).expect("one user");
    pool.empty_cache(Origin::default(), &mut Null).expect("the device takes everything");
    assert!(pool.segments().iter().all(|segment| segment.pool.owner != GRAPH));
    // It is gone with its last segment, and its name is free.
    assert_eq!(pool.create_pool(GRAPH), Ok(()));
}

#[test]
fn what_does_not_fit_is_an_error() {
    let mut pool = pool(1 << 30);
    assert_eq!(pool.create_pool(MempoolId::default()), Err(MempoolError::Default));
    assert_eq!(pool.release_pool(GRAPH), Err(MempoolError::Unknown(GRAPH)));
    assert_eq!(pool.end_allocate_to_pool(GRAPH), Err(MempoolError::NotDiverted(GRAPH)));
    let refused = pool.allocate_in(GRAPH, 1, StreamId(0), Origin::default(), &mut Null);
    assert_eq!(refused, Err(AllocateError::Mempool(MempoolError::Unknown(GRAPH))));
    pool.begin_allocate_to_pool(GRAPH, Diverted::Everything).expect("a new pool");
    let again = pool.begin_allocate_to_pool(GRAPH, Diverted::Everything);
    assert_eq!(again, Err(MempoolError::AlreadyDiverted(GRAPH)));
    let kept = allocate(&mut pool, MIB, 0);
    pool.end_allocate_to_pool(GRAPH).expect("diverted until now");
    pool.release_pool(GRAPH).expect("one user");
    // Its memory is still in use, and nobody may begin to use the pool again.
    for result in [pool.create_pool(GRAPH), pool.begin_allocate_to_pool(GRAPH, Diverted::Everything)] {
        assert_eq!(result, Err(MempoolError::InUseNoMore(GRAPH)));
    }
    assert_eq!(pool.release_pool(GRAPH), Err(MempoolError::InUseNoMore(GRAPH)));
    free(&mut pool, kept);
}

#[test]
fn a_pool_may_help_out_before_the_device_gives_up() {
    let mut pool = pool(40 * MIB);
    pool.create_pool(GRAPH).expect("a new pool");
    let spare = pool.allocate_in(GRAPH, 20 * MIB, StreamId(0), Origin::default(), &mut Null);
    free(&mut pool, spare.expect("room").expect("more than 0 bytes").address);
    pool.set_use_on_oom(GRAPH, true);
    let settings = Settings { expandable_segments: true, ..Settings::default() };
    pool.set_settings(settings);
    allocate(&mut pool, 20 * MIB, 0);
    let helped = allocate(&mut pool, 19 * MIB, 0);
    assert_eq!(owner_of(&pool, helped), GRAPH);
    // Split by the rule for ordinary segments: what only the small pool could use stays with the block.
    let segments = pool.segments();
    let graph = segments.iter().find(|segment| segment.pool.owner == GRAPH).expect("it is still there");
    assert_eq!(
        graph.blocks.iter().map(|block| (block.size, block.state)).collect::<Vec<_>>(),
        [(20 * MIB, BlockState::Active)]
    );
}
