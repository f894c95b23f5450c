//! Callbacks for low memory: free-memory callbacks, which release memory before the pool requests a
//! segment, and observers of out-of-memory.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use vramscope_pool::OutOfMemory;

/// A function of the program that frees memory which it can spare, called when no free block fits a
/// request.
pub(crate) type FreeMemoryCallback = Box<dyn FnMut() + Send>;

thread_local! {
    /// Number of nested free-memory callbacks that run on this thread. Each free of a block reads
    /// this number, which is faster than a look into [`RUNNING`].
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// The pools whose free-memory callbacks run on this thread, innermost last: each pool's
    /// number, and the addresses of the blocks that its callbacks have freed so far.
    static RUNNING: RefCell<Vec<(u64, Vec<u64>)>> = const { RefCell::new(Vec::new()) };
    /// True while an out-of-memory observer runs on this thread.
    static OBSERVING: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if this thread runs a free-memory callback of the pool with number `pool`, and
/// therefore already holds that pool's lock.
#[inline]
pub(crate) fn is_running_callback(pool: u64) -> bool {
    DEPTH.get() > 0 && is_in_running(pool)
}

/// Returns true if this thread runs a free-memory callback of the pool with number `pool`, by
/// searching the list [`RUNNING`].
#[cold]
fn is_in_running(pool: u64) -> bool {
    RUNNING.with_borrow(|running| running.iter().any(|(number, _)| *number == pool))
}

/// Stores `address`, to be freed when the callbacks have run, if this thread runs a free-memory
/// callback of the pool with number `pool`. Returns false otherwise; the caller then frees the
/// block.
#[inline]
pub(crate) fn defer_free(pool: u64, address: u64) -> bool {
    DEPTH.get() > 0
        && RUNNING.with_borrow_mut(|running| {
            let entry = running.iter_mut().find(|(number, _)| *number == pool);
            entry.map(|(_, addresses)| addresses.push(address)).is_some()
        })
}

/// The free-memory callbacks of a pool.
///
/// They run under the pool's lock, so that no other thread takes the memory that they free. The
/// blocks that a callback frees on its thread are collected, and the pool frees them afterwards.
#[derive(Default)]
pub(crate) struct FreeMemoryCallbacks {
    callbacks: Vec<FreeMemoryCallback>,
    /// The payload of a callback's panic.
    panic: Option<Box<dyn Any + Send>>,
}

impl FreeMemoryCallbacks {
    /// Adds a callback, to run after the earlier ones.
    pub(crate) fn push(&mut self, callback: FreeMemoryCallback) {
        self.callbacks.push(callback);
    }

    /// Runs all callbacks of the pool with number `pool`, and returns the addresses of the blocks
    /// that they freed; `None` if they freed no block. A panic ends the run and is stored for
    /// [`take_panic`](Self::take_panic), because the pool is in the middle of a request.
    pub(crate) fn run(&mut self, pool: u64) -> Option<Vec<u64>> {
        if self.callbacks.is_empty() {
            return None;
        }
        RUNNING.with_borrow_mut(|running| running.push((pool, Vec::new())));
        DEPTH.set(DEPTH.get() + 1);
        let run_all = || self.callbacks.iter_mut().for_each(|callback| callback());
        self.panic = catch_unwind(AssertUnwindSafe(run_all)).err();
        DEPTH.set(DEPTH.get() - 1);
        let (_, addresses) = RUNNING.with_borrow_mut(|running| running.pop().expect("the entry was pushed above"));
        (!addresses.is_empty()).then_some(addresses)
    }

    /// Returns the payload of a panic in the last [`run`](Self::run), once. The caller resumes the
    /// panic when the pool is consistent again.
    pub(crate) fn take_panic(&mut self) -> Option<Box<dyn Any + Send>> {
        self.panic.take()
    }
}

/// A function that is called with details of the failed request when a pool is out of memory.
type Observer = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;

/// The out-of-memory observers of a pool.
#[derive(Default)]
pub(crate) struct Observers(Mutex<Vec<Observer>>);

impl Observers {
    /// Adds an observer, to be called after the earlier ones.
    pub(crate) fn push(&self, observer: impl Fn(&OutOfMemory) + Send + Sync + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(observer));
    }

    /// Calls all observers, in order of registration, without holding a lock. Does nothing on a
    /// thread that already runs an observer, so out-of-memory caused by an observer is not
    /// reported.
    pub(crate) fn notify(&self, details: &OutOfMemory) {
        if OBSERVING.get() {
            return;
        }
        let observers = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        OBSERVING.set(true);
        let _observing = ObservingGuard;
        observers.iter().for_each(|observer| observer(details));
    }
}

/// Clears [`OBSERVING`] when it is dropped, also by a panic.
struct ObservingGuard;

impl Drop for ObservingGuard {
    fn drop(&mut self) {
        OBSERVING.set(false);
    }
}
