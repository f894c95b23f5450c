//! Streams, private pools and threads: which requests may reuse which memory, and when.

use std::thread;

use half::{bf16, f16};
use vramscope_collector::{
    AllocateError, CaptureFilter, FreeError, HostPool, MempoolError, PoolSlice, graph_pool_handle,
};
use vramscope_trace::{Event, EventKind, MempoolId, StreamId};

use crate::host_pool::MIB;
use crate::host_pool::test_sink::{delete, recorded_pool};

#[test]
fn buffers_are_written_and_read_with_cudarcs_names() {
    let (pool, _) = recorded_pool(64 * MIB);
    let stream = pool.on(&StreamId(3));
    let mut a = stream.clone_htod(&[1.0f32, 2.0, 3.0]).unwrap();
    let mut b = stream.alloc_zeros::<f32>(3).unwrap();
    stream.memcpy_dtod(&a, &mut b).unwrap();
    stream.memcpy_htod(&[9.0], &mut a).unwrap();
    assert_eq!((stream.clone_dtoh(&a), stream.clone_dtoh(&b)), (Ok(vec![9.0, 2.0, 3.0]), Ok(vec![1.0, 2.0, 3.0])));
    let c = stream.clone_dtod(&a).unwrap();
    stream.memset_zeros(&mut a[1..]).unwrap();
    let mut out = [0.0; 3];
    stream.memcpy_dtoh(&a, &mut out).unwrap();
    stream.synchronize().unwrap();
    assert_eq!((out, c.read()), ([9.0, 0.0, 0.0], Ok(vec![9.0, 2.0, 3.0])));
    // SAFETY: The buffer is written before it is read.
    let mut buffer = unsafe { stream.alloc::<u16>(2) }.unwrap();
    buffer.write(&[7, 8]).unwrap();
    assert_eq!(buffer.read(), Ok(vec![7, 8]));
    buffer.set_zero().unwrap();
    assert_eq!(
        (buffer.read(), *buffer.stream(), buffer.pool().memory_allocated()),
        (Ok(vec![0, 0]), StreamId(3), 2048)
    );
}

#[test]
fn half_precision_numbers_are_supported() {
    let (pool, _) = recorded_pool(64 * MIB);
    let values = [1.5, -2.0].map(bf16::from_f32);
    assert_eq!(pool.clone_htod(&values).unwrap().read(), Ok(values.to_vec()));
    assert_eq!(pool.alloc_zeros::<f16>(300).unwrap().read(), Ok(vec![f16::ZERO; 300]));
}

/// Doubles numbers in a buffer of any device.
fn doubled<D: vramscope_collector::MemoryDevice>(
    pool: &vramscope_collector::DevicePool<D>,
    values: &[f32],
) -> Result<Vec<f32>, AllocateError> {
    let mut buffer: PoolSlice<f32, D> = pool.alloc_zeros(values.len())?;
    buffer.write(&values.iter().map(|value| value * 2.0).collect::<Vec<_>>())?;
    Ok(buffer.read()?)
}

#[test]
fn generic_code_works_with_any_device() {
    let (pool, _) = recorded_pool(64 * MIB);
    assert_eq!(doubled(&pool, &[1.0, 2.5]), Ok(vec![2.0, 5.0]));
}

#[test]
fn blocks_belong_to_their_stream() {
    let (pool, sink) = recorded_pool(64 * MIB);
    let on_one = pool.on(&StreamId(1)).alloc_zeros::<u8>(1000).unwrap();
    let address = on_one.address();
    drop(on_one);
    assert_ne!(pool.on(&StreamId(2)).alloc_zeros::<u8>(1000).unwrap().address(), address);
    assert_eq!(pool.on(&StreamId(1)).alloc_zeros::<u8>(1000).unwrap().address(), address);
    let streams: Vec<u64> = sink.events().iter().filter_map(allocated_on).collect();
    assert_eq!(streams, [1, 2, 1]);
}

fn allocated_on(event: &Event) -> Option<u64> {
    if let EventKind::BlockAllocated { stream, .. } = event.kind { Some(stream.0) } else { None }
}

#[test]
fn stream_use_delays_the_free() {
    let (pool, sink) = recorded_pool(64 * MIB);
    let buffer = pool.alloc_zeros::<u8>(1000).unwrap();
    let address = buffer.address();
    buffer.record_stream(&StreamId(5)).unwrap();
    pool.alloc_zeros::<u8>(0).unwrap().record_stream(&StreamId(5)).unwrap();
    drop(buffer);
    let last = sink.events().pop().unwrap().kind;
    assert!(matches!(last, EventKind::FreeRequested { address: freed, .. } if freed == address));
    // Host streams complete their work at once, so the next request completes the free.
    let again = pool.alloc_zeros::<u8>(1000).unwrap();
    assert_eq!(again.address(), address);
    let count = |is: fn(&EventKind) -> bool| sink.events().iter().filter(|event| is(&event.kind)).count();
    assert_eq!(count(|kind| matches!(kind, EventKind::FreeCompleted { .. })), 1);
}

#[test]
fn stream_uses_can_be_recorded_by_address() {
    let (pool, _) = recorded_pool(64 * MIB);
    let address = pool.caching_allocator_alloc(1000, StreamId(1)).unwrap().unwrap();
    pool.caching_allocator_record_stream(address, StreamId(2)).unwrap();
    delete(&pool, address).unwrap();
    assert_eq!(pool.memory_allocated(), 0);
    assert_eq!(pool.memory_snapshot()[0].active_size, 1024);
    assert_eq!(pool.caching_allocator_record_stream(address, StreamId(2)), Err(FreeError::NotAllocated { address }));
}

#[test]
fn buffers_may_be_dropped_by_another_thread() {
    let (pool, sink) = recorded_pool(64 * MIB);
    let buffer = pool.full(1000, 7u32).unwrap();
    thread::spawn(move || assert!(buffer.iter().all(|&value| value == 7))).join().unwrap();
    assert_eq!((pool.memory_allocated(), sink.events().len()), (0, 4));
}

#[test]
fn empty_buffers_support_all_operations() {
    let (pool, sink) = recorded_pool(64 * MIB);
    let stream = pool.on(&StreamId(1));
    let mut empty = stream.alloc_zeros::<f64>(0).unwrap();
    empty.write(&[]).unwrap();
    empty.set_zero().unwrap();
    assert_eq!((empty.read(), empty.len(), empty.is_empty(), empty.address()), (Ok(vec![]), 0, true, 0));
    drop((stream.clone_dtod(&empty).unwrap(), stream.clone_htod::<u8>(&[]).unwrap(), empty));
    assert!(sink.events().is_empty());
}

fn segment_pool_ids(pool: &HostPool) -> Vec<(u64, u64)> {
    let mut ids: Vec<_> = pool.memory_snapshot().iter().map(|segment| segment.segment_pool_id).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn private_pool_serves_redirected_requests() {
    let (pool, _) = recorded_pool(64 * MIB);
    assert_eq!(pool.create_pool(MempoolId(0, 0)), Err(MempoolError::DefaultPool), "the default pool has this id");
    let graph = graph_pool_handle();
    assert_ne!(graph, graph_pool_handle());
    pool.begin_allocate_stream_to_pool(graph, &StreamId(1)).unwrap();
    assert_eq!(
        pool.begin_allocate_to_pool(graph, CaptureFilter::AllStreams),
        Err(MempoolError::AlreadySelected(graph))
    );
    let captured = pool.on(&StreamId(1)).alloc_zeros::<u8>(1000).unwrap();
    let other = pool.alloc_zeros::<u8>(1000).unwrap();
    pool.end_allocate_to_pool(graph).unwrap();
    assert_eq!(pool.end_allocate_to_pool(graph), Err(MempoolError::NotSelected(graph)));
    assert_eq!(segment_pool_ids(&pool), [(0, 0), (graph.0, graph.1)]);
    let address = captured.address();
    drop((captured, other));
    // The private pool keeps its memory until it is released.
    assert_ne!(pool.on(&StreamId(1)).alloc_zeros::<u8>(1000).unwrap().address(), address);
    pool.empty_cache().unwrap();
    assert_eq!(segment_pool_ids(&pool), [(graph.0, graph.1)]);
    pool.release_pool(graph).unwrap();
    assert_eq!(pool.release_pool(graph), Err(MempoolError::Released(graph)));
    pool.empty_cache().unwrap();
    assert_eq!(segment_pool_ids(&pool), []);
    assert_eq!(pool.release_pool(graph), Err(MempoolError::Unknown(graph)));
}

#[test]
fn program_can_allocate_from_a_private_pool() {
    let (pool, _) = recorded_pool(64 * MIB);
    let mempool = MempoolId(1, 1);
    let stream = pool.on(&StreamId(0)).with_mempool(mempool);
    let unknown = stream.alloc_zeros::<u8>(1);
    assert!(matches!(unknown, Err(AllocateError::Mempool(MempoolError::Unknown(unknown))) if unknown == mempool));
    pool.create_pool(mempool).expect("the id is unused");
    pool.set_no_split(mempool);
    let whole = stream.clone().alloc_zeros::<u8>(1000).unwrap();
    assert_eq!((segment_pool_ids(&pool), pool.memory_allocated()), (vec![(1, 1)], 2 * MIB));
    drop(whole);
    pool.set_use_on_oom(mempool, true);
    pool.release_pool(mempool).unwrap();
}
