//! A pool whose events and definitions the tests can read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vramscope_collector::{FreeError, HostDevice, HostPool, Settings};
use vramscope_trace::{Definition, Definitions, Event, EventKind, MemorySink, MemoryState, Sink, SiteId, StringId};

/// A sink that keeps a pool's events and definitions. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct TestSink {
    pub(crate) memory: Arc<Mutex<MemorySink>>,
    pub(crate) definitions: Arc<Mutex<Definitions>>,
}

impl Sink for TestSink {
    fn event(&mut self, event: &Event) {
        let site = match event.kind {
            EventKind::SegmentAllocated { site, .. }
            | EventKind::BlockAllocated { site, .. }
            | EventKind::FreeRequested { site, .. }
            | EventKind::FreeCompleted { site, .. } => site,
            _ => SiteId(0),
        };
        assert!(
            site.0 as usize <= self.definitions.lock().unwrap().site_count(),
            "a site is defined before it is used"
        );
        if let EventKind::Mark { name, .. } = event.kind {
            assert_ne!(self.definitions.lock().unwrap().string(name), "", "a name is defined before it is used");
        }
        self.memory.lock().unwrap().event(event);
    }

    fn define(&mut self, definition: &Definition) {
        self.definitions.lock().unwrap().define(definition.clone());
    }
}

impl TestSink {
    pub(crate) fn events(&self) -> Vec<Event> {
        self.memory.lock().unwrap().events.clone()
    }

    pub(crate) fn state(&self) -> MemoryState {
        let mut state = MemoryState::default();
        self.events().iter().for_each(|event| state.apply(event));
        state
    }

    pub(crate) fn string(&self, id: StringId) -> String {
        self.definitions.lock().unwrap().string(id).to_owned()
    }
}

/// Creates a pool over `capacity_bytes` of host memory. Its clock advances by 1 ns at each event.
pub(crate) fn recorded_pool(capacity_bytes: u64) -> (HostPool, TestSink) {
    let sink = TestSink::default();
    let ticks = AtomicU64::new(0);
    let pool = HostPool::new(HostDevice::new(capacity_bytes), Settings::default(), sink.clone(), move || {
        ticks.fetch_add(1, Ordering::Relaxed)
    });
    (pool, sink)
}

/// Frees memory by its address.
pub(crate) fn delete(pool: &HostPool, address: u64) -> Result<(), FreeError> {
    // SAFETY: No test uses memory after freeing it by address, or passes the address of a slice to
    // the slice's own pool.
    unsafe { pool.caching_allocator_delete(address) }
}
