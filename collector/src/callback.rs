//! What a program does when memory runs short: callbacks that give memory up, and observers that are told when there was none.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use vramscope_pool::OutOfMemory;

/// Gives up memory that the program can spare.
pub(crate) type FreeMemoryCallback = Box<dyn FnMut() + Send>;

thread_local! {
    /// How many callbacks are running on this thread, one inside the other. Looked at by every free, and so apart from the list.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// The pools whose callbacks are running on this thread, with the addresses that were given up to each.
    static ASKING: RefCell<Vec<(u64, Vec<u64>)>> = const { RefCell::new(Vec::new()) };
    /// Whether an observer is running on this thread.
    static OBSERVING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is running a callback of the pool with that number, whose lock it therefore holds.
#[inline]
pub(crate) fn is_asking(pool: u64) -> bool {
    DEPTH.get() > 0 && is_among_asking(pool)
}

#[cold]
fn is_among_asking(pool: u64) -> bool {
    ASKING.with_borrow(|asking| asking.iter().any(|(asked, _)| *asked == pool))
}

/// Keeps `address` for the pool with that number if this thread is running a callback of it; says whether it is.
#[inline]
pub(crate) fn give_up(pool: u64, address: u64) -> bool {
    DEPTH.get() > 0
        && ASKING.with_borrow_mut(|asking| {
            let asked = asking.iter_mut().find(|(asked, _)| *asked == pool);
            asked.map(|(_, addresses)| addresses.push(address)).is_some()
        })
}

/// The callbacks of a pool. They run under its lock, so that no other thread takes what they give up; what they drop on their own thread
/// is therefore collected here and handed to the pool.
#[derive(Default)]
pub(crate) struct FreeMemoryCallbacks {
    callbacks: Vec<FreeMemoryCallback>,
    /// With what a callback panicked.
    panic: Option<Box<dyn Any + Send>>,
}

impl FreeMemoryCallbacks {
    pub(crate) fn push(&mut self, callback: FreeMemoryCallback) {
        self.callbacks.push(callback);
    }

    /// Runs the callbacks of the pool with that number; what they gave up, if anything. A panic ends the round and is kept, for the pool
    /// is in the middle of a request.
    pub(crate) fn ask(&mut self, pool: u64) -> Option<Vec<u64>> {
        if self.callbacks.is_empty() {
            return None;
        }
        ASKING.with_borrow_mut(|asking| asking.push((pool, Vec::new())));
        DEPTH.set(DEPTH.get() + 1);
        let run = || self.callbacks.iter_mut().for_each(|callback| callback());
        self.panic = catch_unwind(AssertUnwindSafe(run)).err();
        DEPTH.set(DEPTH.get() - 1);
        let (_, addresses) = ASKING.with_borrow_mut(|asking| asking.pop().expect("it was pushed above"));
        (!addresses.is_empty()).then_some(addresses)
    }

    /// The panic of a callback, to go on with once the pool is whole again.
    pub(crate) fn take_panic(&mut self) -> Option<Box<dyn Any + Send>> {
        self.panic.take()
    }
}

/// Is told of a request that there was no room for.
type Observer = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;

/// Those who are told of requests that there was no room for.
#[derive(Default)]
pub(crate) struct Observers(Mutex<Vec<Observer>>);

impl Observers {
    pub(crate) fn push(&self, observer: impl Fn(&OutOfMemory) + Send + Sync + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(observer));
    }

    /// Tells all of them, in the order in which they came, with no lock held. What an observer itself asks for in vain is not told.
    pub(crate) fn tell(&self, details: &OutOfMemory) {
        if OBSERVING.get() {
            return;
        }
        let observers = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let _observing = Observing::begin();
        observers.iter().for_each(|observer| observer(details));
    }
}

/// Ends with the observers, also where one panics.
struct Observing;

impl Observing {
    fn begin() -> Self {
        OBSERVING.set(true);
        Self
    }
}

impl Drop for Observing {
    fn drop(&mut self) {
        OBSERVING.set(false);
    }
}
