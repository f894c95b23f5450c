//! Counts the host memory allocations of a thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::thread_table::thread_pointer;

/// A global allocator that forwards to the system's and counts the allocations of one thread.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Pointer of the thread whose allocations are counted; 0 for none.
static THREAD: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Locked while allocations are counted, because only one thread can be counted at a time.
static COUNTING: Mutex<()> = Mutex::new(());

// SAFETY: Passes every call on to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if THREAD.load(Ordering::Relaxed) == thread_pointer() {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: The caller's guarantees are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: As above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Calls `f`; returns its result and the number of allocations in it.
pub(crate) fn count_allocations<R>(f: impl FnOnce() -> R) -> (R, usize) {
    let _guard = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    COUNT.store(0, Ordering::Relaxed);
    THREAD.store(thread_pointer(), Ordering::Relaxed);
    let result = f();
    THREAD.store(0, Ordering::Relaxed);
    (result, COUNT.load(Ordering::Relaxed))
}
