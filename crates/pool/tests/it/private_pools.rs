//! Private pools: which requests they serve, and when their memory is released.

use vramscope_pool::{AllocateError, BlockState, CaptureFilter, MempoolError, Origin, Pool, Settings, SimulatedDevice};
use vramscope_trace::{DeviceId, MempoolId, NullSink, StreamId};

const MIB: u64 = 1 << 20;
const GRAPH: MempoolId = MempoolId(0, 7);

fn pool(capacity: u64) -> Pool<SimulatedDevice> {
    Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(capacity))
}

fn allocate(pool: &mut Pool<SimulatedDevice>, bytes: u64, stream: u64) -> u64 {
    let allocated = pool.allocate(bytes, StreamId(stream), Origin::default(), &mut NullSink).expect("enough memory");
    allocated.expect("the request is not empty").address
}

fn free(pool: &mut Pool<SimulatedDevice>, address: u64) {
    pool.free(address, Origin::default(), &mut NullSink).expect("the block is allocated");
}

fn owner_of(pool: &Pool<SimulatedDevice>, address: u64) -> MempoolId {
    let segments = pool.segments();
    let holds = |address: u64| segments.iter().find(|it| (it.address..it.address + it.size).contains(&address));
    holds(address).expect("the address is in a segment").pool.owner
}

#[test]
fn capture_of_one_stream_does_not_affect_other_streams() {
    let mut pool = pool(1 << 30);
    pool.begin_allocate_to_pool(GRAPH, CaptureFilter::Stream(StreamId(2))).expect("the pool is new");
    let (captured, other) = (allocate(&mut pool, MIB, 2), allocate(&mut pool, MIB, 1));
    assert_eq!((owner_of(&pool, captured), owner_of(&pool, other)), (GRAPH, MempoolId::default()));
    pool.end_allocate_to_pool(GRAPH).expect("the pool is selected");
    let afterwards = allocate(&mut pool, MIB, 2);
    assert_eq!(owner_of(&pool, afterwards), MempoolId::default());
    free(&mut pool, captured);
    // A graph may be launched again, so its memory stays even if it is free, until the pool has no
    // user.
    pool.empty_cache(Origin::default(), &mut NullSink).expect("the device releases segments");
    assert_eq!(owner_of(&pool, captured), GRAPH);
    pool.release_pool(GRAPH).expect("the pool has one user");
    pool.empty_cache(Origin::default(), &mut NullSink).expect("the device releases segments");
    assert!(pool.segments().iter().all(|segment| segment.pool.owner != GRAPH));
    // The pool is removed with its last segment, and its id can be used again.
    assert_eq!(pool.pool_users(GRAPH), 0);
    assert_eq!(pool.create_pool(GRAPH), Ok(()));
    assert_eq!(pool.pool_users(GRAPH), 1);
}

#[test]
fn invalid_private_pool_operations_are_errors() {
    let mut pool = pool(1 << 30);
    assert_eq!(pool.create_pool(MempoolId::default()), Err(MempoolError::DefaultPool));
    assert_eq!(pool.release_pool(GRAPH), Err(MempoolError::Unknown(GRAPH)));
    assert_eq!(pool.end_allocate_to_pool(GRAPH), Err(MempoolError::NotSelected(GRAPH)));
    let refused = pool.allocate_in(GRAPH, 1, StreamId(0), Origin::default(), &mut NullSink);
    assert_eq!(refused, Err(AllocateError::Mempool(MempoolError::Unknown(GRAPH))));
    pool.begin_allocate_to_pool(GRAPH, CaptureFilter::AllStreams).expect("the pool is new");
    let again = pool.begin_allocate_to_pool(GRAPH, CaptureFilter::AllStreams);
    assert_eq!(again, Err(MempoolError::AlreadySelected(GRAPH)));
    let kept = allocate(&mut pool, MIB, 0);
    pool.end_allocate_to_pool(GRAPH).expect("the pool is selected");
    pool.release_pool(GRAPH).expect("the pool has one user");
    // The pool's memory is still in use, so the pool cannot get new users.
    for result in [pool.create_pool(GRAPH), pool.begin_allocate_to_pool(GRAPH, CaptureFilter::AllStreams)] {
        assert_eq!(result, Err(MempoolError::Released(GRAPH)));
    }
    assert_eq!(pool.release_pool(GRAPH), Err(MempoolError::Released(GRAPH)));
    free(&mut pool, kept);
}

#[test]
fn use_on_oom_pool_serves_requests_of_the_default_pool() {
    let mut pool = pool(40 * MIB);
    pool.create_pool(GRAPH).expect("the pool is new");
    let spare = pool.allocate_in(GRAPH, 20 * MIB, StreamId(0), Origin::default(), &mut NullSink);
    free(&mut pool, spare.expect("enough memory").expect("the request is not empty").address);
    pool.set_use_on_oom(GRAPH, true);
    let settings = Settings { expandable_segments: true, ..Settings::default() };
    pool.set_settings(settings);
    allocate(&mut pool, 20 * MIB, 0);
    let redirected = allocate(&mut pool, 19 * MIB, 0);
    assert_eq!(owner_of(&pool, redirected), GRAPH);
    // The block is split by the rule for ordinary segments: a remainder that only the small pool
    // could use stays with the block.
    let segments = pool.segments();
    let graph = segments.iter().find(|segment| segment.pool.owner == GRAPH).expect("the segment is cached");
    assert_eq!(
        graph.blocks.iter().map(|block| (block.size, block.state)).collect::<Vec<_>>(),
        [(20 * MIB, BlockState::Allocated)]
    );
}
