//! Out of memory: errors, observers, and callbacks that free memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use vramscope_collector::{AllocateError, DeviceError, FreeError, HostPool, PoolSlice};
use vramscope_trace::{EventKind, StreamId};

use crate::host_pool::MIB;
use crate::host_pool::test_sink::{delete, recorded_pool};

const LARGE: usize = 30 << 20;

#[test]
fn error_contains_limit_and_free_bytes() {
    let (pool, _) = recorded_pool(64 * MIB);
    let _held = pool.alloc_zeros::<u8>(LARGE).unwrap();
    let error = pool.alloc_zeros::<u8>(40 << 20).unwrap_err();
    let message = error.to_string();
    for part in ["Tried to allocate 40.00 MiB", "64.00 MiB", "34.00 MiB is free", "30.00 MiB is allocated"] {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
    let AllocateError::OutOfMemory(details) = error else { panic!("{message}") };
    assert_eq!((details.process_bytes, details.other_processes_bytes), (None, None));
}

#[test]
fn observers_run_in_order_and_may_use_the_pool() {
    let (pool, _) = recorded_pool(64 * MIB);
    let calls = Arc::new(Mutex::new(Vec::new()));
    for number in 0..2 {
        let (observer_calls, observed) = (Arc::clone(&calls), pool.clone());
        pool.attach_out_of_memory_observer(move |details| {
            // The pool's lock is not held, and an observer's own failing request does not call
            // the observers.
            assert!(observed.alloc_zeros::<u8>(1 << 30).is_err());
            observer_calls.lock().unwrap().push((number, details.requested, observed.memory_snapshot().len()));
        });
    }
    assert!(pool.alloc_zeros::<u8>(1 << 30).is_err());
    assert_eq!(*calls.lock().unwrap(), [(0, 1 << 30, 0), (1, 1 << 30, 0)]);
    assert!(pool.alloc_zeros::<u8>(1 << 30).is_err());
    assert_eq!(calls.lock().unwrap().len(), 4);
}

/// Buffers that a program can spare.
type Cache = Arc<Mutex<Vec<PoolSlice<u8>>>>;

/// Registers a callback that empties a cache of buffers. Returns the cache and the number of calls.
fn with_cache(pool: &HostPool) -> (Cache, Arc<AtomicUsize>) {
    let (cache, calls) = (Cache::default(), Arc::new(AtomicUsize::new(0)));
    let (callback_cache, callback_calls) = (Arc::clone(&cache), Arc::clone(&calls));
    pool.register_free_memory_callback(move || {
        callback_calls.fetch_add(1, Ordering::Relaxed);
        callback_cache.lock().unwrap().clear();
    });
    (cache, calls)
}

#[test]
fn callback_frees_buffers_when_no_block_fits() {
    let (pool, sink) = recorded_pool(64 * MIB);
    let (cache, calls) = with_cache(&pool);
    let spare = pool.full(LARGE, 1u8).unwrap();
    let address = spare.address();
    let other_thread = pool.clone();
    cache.lock().unwrap().push(spare);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let again = pool.alloc_zeros::<u8>(LARGE).unwrap();
    assert_eq!((again.address(), calls.load(Ordering::Relaxed)), (address, 2));
    assert_eq!(sink.state().device(vramscope_trace::DeviceId(0)).unwrap().inconsistencies(), 0);
    // A hit calls no callback, and other threads can use the pool.
    drop(again);
    let on_other = std::thread::spawn(move || other_thread.alloc_zeros::<u8>(LARGE).unwrap().address());
    assert_eq!((on_other.join().unwrap(), calls.load(Ordering::Relaxed)), (address, 2));
}

#[test]
fn callback_may_free_addresses() {
    let (pool, _) = recorded_pool(64 * MIB);
    let address = pool.caching_allocator_alloc(LARGE as u64, StreamId(0)).unwrap().unwrap();
    let callback_pool = pool.clone();
    pool.register_free_memory_callback(move || {
        let _ = delete(&callback_pool, address);
        // Freeing twice, and freeing an unknown address, are errors without effect.
        let _ = delete(&callback_pool, address);
        let _ = delete(&callback_pool, 12345);
    });
    assert_eq!(pool.caching_allocator_alloc(LARGE as u64, StreamId(0)), Ok(Some(address)));
    assert_eq!(pool.memory_allocated(), LARGE as u64);
}

#[test]
fn callback_that_allocates_gets_an_error_instead_of_a_deadlock() {
    let (pool, _) = recorded_pool(64 * MIB);
    let (callback_pool, results) = (pool.clone(), Arc::new(Mutex::new(Vec::new())));
    let callback_results = Arc::clone(&results);
    let mut span = Some(pool.span("step"));
    pool.register_free_memory_callback(move || {
        let mut is_error = callback_results.lock().unwrap();
        is_error.push(callback_pool.alloc_zeros::<u8>(1).map(drop).is_err());
        // The end of this span is not recorded.
        drop(span.take());
        is_error.push(matches!(callback_pool.empty_cache(), Err(DeviceError::Failed(_))));
        is_error
            .push(matches!(callback_pool.caching_allocator_record_stream(1, StreamId(0)), Err(FreeError::Device(_))));
    });
    assert!(pool.alloc_zeros::<u8>(1).is_ok());
    assert_eq!(*results.lock().unwrap(), [true; 3]);
}

#[test]
fn callback_may_use_another_pool() {
    let ((pool, _), (other, _)) = (recorded_pool(64 * MIB), recorded_pool(64 * MIB));
    let (cache, calls) = with_cache(&other);
    let spare = other.alloc_zeros(LARGE).unwrap();
    cache.lock().unwrap().push(spare);
    let callback_pool = other.clone();
    pool.register_free_memory_callback(move || drop(callback_pool.alloc_zeros::<u8>(LARGE).unwrap()));
    assert!(pool.alloc_zeros::<u8>(LARGE).is_ok());
    assert_eq!((calls.load(Ordering::Relaxed), other.memory_allocated()), (2, 0));
}

#[test]
fn panicking_callback_leaves_the_pool_consistent() {
    let (pool, sink) = recorded_pool(64 * MIB);
    let remaining_panics = AtomicUsize::new(1);
    let spare = Mutex::new(Some(pool.alloc_zeros::<u8>(LARGE).unwrap()));
    pool.register_free_memory_callback(move || {
        spare.lock().unwrap().take();
        if remaining_panics.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok() {
            panic!("error in the callback");
        }
    });
    let panic = catch_unwind(AssertUnwindSafe(|| pool.alloc_zeros::<u8>(LARGE))).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"error in the callback"));
    assert_eq!(pool.memory_allocated(), 0);
    assert!(pool.alloc_zeros::<u8>(LARGE).is_ok());
    assert_eq!(sink.state().device(vramscope_trace::DeviceId(0)).unwrap().inconsistencies(), 0);
}

#[test]
fn poisoned_pool_returns_errors() {
    struct PanickingSink(bool);
    impl vramscope_trace::Sink for PanickingSink {
        fn event(&mut self, event: &vramscope_trace::Event) {
            if self.0 && matches!(event.kind, EventKind::BlockAllocated { requested: 13, .. }) {
                self.0 = false;
                panic!("error in the sink");
            }
        }
    }
    let device = vramscope_collector::HostDevice::new(64 << 20);
    let pool = HostPool::new(device, vramscope_collector::Settings::default(), PanickingSink(true), || 0);
    let before = pool.alloc_zeros::<u8>(12).unwrap();
    let span = pool.span("step");
    assert!(catch_unwind(AssertUnwindSafe(|| pool.alloc_zeros::<u8>(13))).is_err());
    let error = pool.alloc_zeros::<u8>(12).unwrap_err();
    assert!(
        matches!(&error, AllocateError::Device(DeviceError::Failed(reason)) if reason.contains("panicked")),
        "{error}"
    );
    assert!(matches!(delete(&pool, before.address()), Err(FreeError::Device(_))));
    assert!(pool.empty_cache().is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| pool.memory_allocated())).is_err());
    // Buffers stay readable; dropping them leaks their memory without a panic.
    assert!(before.iter().all(|&value| value == 0));
    drop((before, span));
}
