//! A sink that tests can look into, and a pool that tells it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vramscope_collector::{FreeError, HostDevice, HostPool, Settings};
use vramscope_trace::{Definition, Definitions, Event, EventKind, MemorySink, MemoryState, Sink, SiteId, StringId};

/// Keeps what a pool says; clones keep it in the same place.
#[derive(Clone, Default)]
pub(crate) struct Kept {
    pub(crate) memory: Arc<Mutex<MemorySink>>,
    pub(crate) defined: Arc<Mutex<Definitions>>,
}

impl Sink for Kept {
    fn event(&mut self, event: &Event) {
        let site = match event.kind {
            EventKind::SegmentAllocated { site, .. }
            | EventKind::BlockAllocated { site, .. }
            | EventKind::FreeRequested { site, .. }
            | EventKind::FreeCompleted { site, .. } => site,
            _ => SiteId(0),
        };
        assert!(site.0 as usize <= self.defined.lock().unwrap().site_count(), "a site is defined before it is used");
        if let EventKind::Mark { name, .. } = event.kind {
            assert_ne!(self.defined.lock().unwrap().string(name), "", "a name is defined before it is used");
        }
        self.memory.lock().unwrap().event(event);
    }

    fn define(&mut self, definition: &Definition) {
        self.defined.lock().unwrap().define(definition.clone());
    }
}

impl Kept {
    pub(crate) fn events(&self) -> Vec<Event> {
        self.memory.lock().unwrap().events.clone()
    }

    pub(crate) fn state(&self) -> MemoryState {
        let mut state = MemoryState::default();
        self.events().iter().for_each(|event| state.apply(event));
        state
    }

    pub(crate) fn string(&self, id: StringId) -> String {
        self.defined.lock().unwrap().string(id).to_owned()
    }
}

/// A pool over `capacity_bytes` of this machine's memory whose clock ticks with every event.
pub(crate) fn recorded_pool(capacity_bytes: u64) -> (HostPool, Kept) {
    let kept = Kept::default();
    let ticks = AtomicU64::new(0);
    let pool = HostPool::new(HostDevice::new(capacity_bytes), Settings::default(), kept.clone(), move || {
        ticks.fetch_add(1, Ordering::Relaxed)
    });
    (pool, kept)
}

/// Gives back memory that was asked for by its address alone.
pub(crate) fn delete(pool: &HostPool, address: u64) -> Result<(), FreeError> {
    // SAFETY: No test uses such memory, or names that of a slice to a pool that would take it.
    unsafe { pool.caching_allocator_delete(address) }
}
