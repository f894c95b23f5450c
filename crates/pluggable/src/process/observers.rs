//! Out-of-memory observers of all devices, also of those that get a pool later.

use std::sync::Arc;

use vramscope_collector::{DevicePool, MemoryDevice};
use vramscope_pool::OutOfMemory;

/// A function that is called at out-of-memory, before the request fails.
pub(crate) type Observer = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;

/// Registers an observer with a pool.
pub(super) fn attach<D: MemoryDevice>(pool: &DevicePool<D>, observer: &Observer) {
    let observer = Arc::clone(observer);
    pool.attach_out_of_memory_observer(move |details| observer(details));
}

/// The observers so far.
#[derive(Default)]
pub(super) struct Observers(Vec<Observer>);

impl Observers {
    /// Adds an observer for pools that are created later.
    pub(super) fn push(&mut self, observer: Observer) {
        self.0.push(observer);
    }

    /// Registers all observers with a new pool.
    pub(super) fn add_pool<D: MemoryDevice>(&self, pool: &DevicePool<D>) {
        self.0.iter().for_each(|observer| attach(pool, observer));
    }
}
