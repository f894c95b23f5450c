//! The host pool as a program uses it: real memory, freed on drop, recorded with sites.

mod recording;
mod shortage;
mod test_sink;
mod torch;
mod uses;

use test_sink::{TestSink, delete, recorded_pool};
use vramscope_collector::{AllocateError, FreeError};
use vramscope_trace::{AnnotationStage, Category, DeviceId, EventKind, Site, StreamId};

pub(crate) const MIB: u64 = 1 << 20;

/// Returns the scope path, category and source line of each live block, in order of allocation.
fn live_sites(sink: &TestSink) -> Vec<(String, Category, u32)> {
    let state = sink.state();
    let mut blocks: Vec<_> = state.device(DeviceId(0)).expect("the device has events").blocks().copied().collect();
    blocks.sort_by_key(|block| block.since_event);
    let definitions = sink.definitions.lock().unwrap();
    let line = |site: Site| {
        let frame = definitions.stack(site.stack).next().expect("the site has a location");
        assert!(definitions.string(frame.file).ends_with("mod.rs"));
        frame.line
    };
    let sites = blocks.iter().map(|block| definitions.site(block.site));
    sites.map(|site| (definitions.string(site.scope).to_owned(), site.category, line(site))).collect()
}

#[test]
fn buffers_are_exclusive_and_freed_when_dropped() {
    let (pool, sink) = recorded_pool(64 * MIB);
    let zeros = pool.alloc_zeros::<f32>(1000).unwrap();
    let mut counted = pool.clone_htod(&(0..300_000).collect::<Vec<u32>>()).unwrap();
    let full = pool.full(77, 0xa5u8).unwrap();
    counted[5] = 99;
    assert!(zeros.iter().all(|&value| value == 0.0) && zeros.len() == 1000);
    assert!(full.iter().all(|&value| value == 0xa5) && full.len() == 77);
    assert!(counted.iter().enumerate().all(|(index, &value)| value == if index == 5 { 99 } else { index as u32 }));
    let state = sink.state();
    let addresses: Vec<u64> = state.device(DeviceId(0)).unwrap().blocks().map(|block| block.address).collect();
    for address in [zeros.address(), counted.address(), full.address()] {
        assert!(addresses.contains(&address), "the events contain the real address");
    }
    drop((zeros, counted, full));
    assert_eq!(pool.stats().allocated_bytes.all.current, 0);
    assert_eq!(sink.state().device(DeviceId(0)).unwrap().counters().active, 0);
    pool.empty_cache().unwrap();
    assert_eq!(pool.stats().reserved_bytes.all.current, 0);
}

#[test]
fn reused_memory_is_zeroed() {
    let (pool, _) = recorded_pool(64 * MIB);
    let first = pool.full(4096, 1.0f64).unwrap();
    let address = first.address();
    drop(first);
    let second = pool.alloc_zeros::<f64>(4096).unwrap();
    assert_eq!(second.address(), address);
    assert!(second.iter().all(|&value| value == 0.0));
}

#[test]
fn empty_buffer_takes_no_memory() {
    let (pool, sink) = recorded_pool(64 * MIB);
    let mut empty = pool.alloc_zeros::<u64>(0).unwrap();
    assert!(empty.is_empty() && empty.iter_mut().next().is_none());
    drop(empty);
    assert!(sink.events().is_empty());
}

#[test]
fn buffer_outlives_its_pool_handle() {
    let (pool, _) = recorded_pool(64 * MIB);
    let buffer = pool.full(1000, 7i32).unwrap();
    drop(pool);
    assert_eq!(buffer.iter().sum::<i32>(), 7000);
}

#[test]
fn scopes_set_path_and_category_of_sites() {
    let (pool, sink) = recorded_pool(64 * MIB);
    let before = pool.alloc_zeros::<u8>(1).unwrap();
    let line = line!() - 1;
    let step = pool.scope("step");
    let forward = pool.scope_with("forward", Category::Activation);
    let layer = pool.scope("layer3");
    let inner = pool.alloc_zeros::<u8>(1).unwrap();
    drop(layer);
    let temporary = pool.category(Category::Temporary);
    let scratch = pool.alloc_zeros::<u8>(1).unwrap();
    drop(temporary);
    // The scope inside `step` stays open.
    drop(step);
    let still = pool.alloc_zeros::<u8>(1).unwrap();
    drop(forward);
    let after = pool.alloc_zeros::<u8>(1).unwrap();
    assert_eq!(
        live_sites(&sink),
        [
            (String::new(), Category::Unknown, line),
            ("step/forward/layer3".to_owned(), Category::Activation, line + 5),
            ("step/forward".to_owned(), Category::Temporary, line + 8),
            ("step/forward".to_owned(), Category::Activation, line + 12),
            (String::new(), Category::Unknown, line + 14),
        ]
    );
    drop((before, inner, scratch, still, after));
}

#[test]
fn same_line_in_same_scope_is_one_site() {
    let (pool, sink) = recorded_pool(64 * MIB);
    for step in 0..3 {
        let _span = pool.span(format!("step {step}"));
        let _scope = pool.scope("step");
        let _buffer = pool.alloc_zeros::<u8>(1).unwrap();
    }
    assert_eq!(sink.definitions.lock().unwrap().site_count(), 1);
}

#[test]
fn scopes_are_per_thread_and_apply_to_all_pools() {
    let ((pool, sink), (other, other_sink)) = (recorded_pool(64 * MIB), recorded_pool(64 * MIB));
    let _scope = pool.scope_with("load", Category::Input);
    let a = std::thread::spawn({
        let pool = pool.clone();
        move || pool.alloc_zeros::<u8>(1).unwrap()
    });
    let (a, b) = (a.join().unwrap(), other.alloc_zeros::<u8>(1).unwrap());
    let scopes = |sink: &TestSink| {
        live_sites(sink).into_iter().map(|(scope, category, _)| (scope, category)).collect::<Vec<_>>()
    };
    assert_eq!(scopes(&sink), [(String::new(), Category::Unknown)]);
    assert_eq!(scopes(&other_sink), [("load".to_owned(), Category::Input)]);
    drop((a, b));
}

#[test]
fn spans_record_begin_and_end() {
    let (pool, sink) = recorded_pool(64 * MIB);
    let span = pool.span("step 1");
    pool.mark("evaluated");
    drop(span);
    let marks: Vec<_> = sink
        .events()
        .iter()
        .map(|event| match event.kind {
            EventKind::Mark { stage, name, .. } => (event.time_ns, stage, sink.string(name)),
            _ => panic!("{event:?}"),
        })
        .collect();
    let expected = [
        (0, AnnotationStage::Begin, "step 1"),
        (1, AnnotationStage::Instant, "evaluated"),
        (2, AnnotationStage::End, "step 1"),
    ];
    assert_eq!(marks, expected.map(|(time, stage, name)| (time, stage, name.to_owned())));
}

#[test]
fn out_of_memory_is_an_error_and_the_pool_continues() {
    let (pool, sink) = recorded_pool(8 * MIB);
    let held = pool.alloc_zeros::<u8>(1000).unwrap();
    assert!(matches!(pool.alloc_zeros::<f32>(4 << 20), Err(AllocateError::OutOfMemory(_))));
    assert!(matches!(pool.alloc_zeros::<f64>(usize::MAX), Err(AllocateError::TooLarge { .. })));
    assert_eq!(sink.state().device(DeviceId(0)).unwrap().ooms(), 1);
    assert!(pool.alloc_zeros::<u8>(1000).is_ok());
    drop(held);
}

#[test]
fn threads_share_a_pool_but_no_memory() {
    let (pool, sink) = recorded_pool(512 * MIB);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let pool = pool.clone();
            scope.spawn(move || {
                let _scope = pool.scope("thread");
                let mut random = fastrand::Rng::with_seed(thread.into());
                let mut held = Vec::new();
                for step in 0..2000u32 {
                    let tag = thread << 24 | step;
                    held.push((tag, pool.full(random.usize(1..=1 << 16), tag).unwrap()));
                    if held.len() > 20 {
                        let (tag, buffer) = held.swap_remove(random.usize(..held.len()));
                        assert!(buffer.iter().all(|&value| value == tag), "another thread wrote to this buffer");
                    }
                }
            });
        }
    });
    let state = sink.state();
    assert_eq!(state.device(DeviceId(0)).unwrap().inconsistencies(), 0);
    assert_eq!(state.device(DeviceId(0)).unwrap().counters().active, 0);
    assert!(sink.events().is_sorted_by_key(|event| event.time_ns));
}

#[test]
fn memory_can_be_allocated_by_address() {
    let (pool, sink) = recorded_pool(64 * MIB);
    let address =
        pool.caching_allocator_alloc(1000, StreamId(3)).unwrap().expect("the request is for more than 0 bytes");
    assert_eq!(address % 512, 0);
    let allocated = sink.events().into_iter().find_map(|event| match event.kind {
        EventKind::BlockAllocated { address, size, stream, .. } => Some((address, size, stream)),
        _ => None,
    });
    assert_eq!(allocated, Some((address, 1024, StreamId(3))));
    assert_eq!(delete(&pool, address + 512), Err(FreeError::InsideBlock { address: address + 512, block: address }));
    assert_eq!(delete(&pool, address), Ok(()));
    assert_eq!(delete(&pool, address), Err(FreeError::NotAllocated { address }));
    assert_eq!(delete(&pool, 8), Err(FreeError::UnknownAddress { address: 8 }));
    assert_eq!(pool.caching_allocator_alloc(0, StreamId(0)), Ok(None));
    assert_eq!(pool.stats().allocated_bytes.all.current, 0);
}
