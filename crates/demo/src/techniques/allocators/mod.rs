//! Allocators other than the pool, which implement [`Memory`]. They have counters, but their
//! events are not recorded: a recorded pool next to them records marks and spans only.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::Location;

use memmap2::{MmapOptions, MmapRaw};
use vramscope_collector::{AllocateError, DeviceError, HostPool, Stats, StreamId};

#[cfg(feature = "cuda")]
pub(super) mod cuda;

use crate::backend::host::HostBackend;
use crate::device::Device;
use crate::error::Result;
use crate::memory::{Memory, SpanGuard};

/// The counters of an allocator without a cache: reserved bytes are allocated bytes.
#[derive(Debug, Default)]
struct Counters {
    allocated_bytes: Cell<u64>,
    peak_bytes: Cell<u64>,
    allocations: Cell<u64>,
    frees: Cell<u64>,
}

impl Counters {
    /// Counts an allocation.
    fn add_allocation(&self, bytes: u64) {
        self.allocated_bytes.update(|allocated| allocated + bytes);
        self.peak_bytes.update(|peak| peak.max(self.allocated_bytes.get()));
        self.allocations.update(|count| count + 1);
    }

    /// Counts a free.
    fn add_free(&self, bytes: u64) {
        self.allocated_bytes.update(|allocated| allocated - bytes);
        self.frees.update(|count| count + 1);
    }

    fn reset_peaks(&self) {
        self.peak_bytes.set(self.allocated_bytes.get());
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        let counters = [
            &mut stats.allocated_bytes.all,
            &mut stats.active_bytes.all,
            &mut stats.requested_bytes.all,
            &mut stats.reserved_bytes.all,
        ];
        for counter in counters {
            (counter.current, counter.peak) = (self.allocated_bytes.get(), self.peak_bytes.get());
        }
        (stats.num_device_alloc, stats.num_device_free) = (self.allocations.get(), self.frees.get());
        stats
    }
}

/// An allocator that maps memory for each request, and unmaps it at the free.
struct HostMaps {
    maps: RefCell<BTreeMap<u64, MmapRaw>>,
    counters: Counters,
    capacity_bytes: u64,
    /// The recorded pool, which only records marks and spans.
    recorded: HostPool,
}

// SAFETY: Each map is new memory of this process, aligned to a page, until `free` removes it.
unsafe impl Memory for HostMaps {
    fn allocate(
        &self,
        bytes: u64,
        _stream: StreamId,
        _location: &'static Location<'static>,
    ) -> Result<u64, AllocateError> {
        if bytes > self.capacity_bytes.saturating_sub(self.counters.allocated_bytes.get()) {
            return Err(DeviceError::OutOfMemory.into());
        }
        let len = usize::try_from(bytes).map_err(|_| DeviceError::OutOfMemory)?;
        let map = MmapOptions::new().len(len).map_anon();
        let map = MmapRaw::from(map.map_err(|error| DeviceError::Failed(error.to_string()))?);
        // Tensors are created from addresses, so the pointer's provenance must be exposed.
        let address = map.as_mut_ptr().expose_provenance() as u64;
        self.maps.borrow_mut().insert(address, map);
        self.counters.add_allocation(bytes);
        Ok(address)
    }

    // SAFETY: Only a map of this allocator is unmapped, and the caller guarantees that nothing uses
    // its memory.
    unsafe fn free(&self, address: u64, _location: &'static Location<'static>) {
        if let Some(map) = self.maps.borrow_mut().remove(&address) {
            self.counters.add_free(map.len() as u64);
        }
    }

    fn record_stream(&self, _address: u64, _stream: StreamId) -> Result {
        Ok(())
    }

    fn empty_cache(&self) -> Result {
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.counters.stats()
    }

    fn reset_peaks(&self) {
        self.counters.reset_peaks();
    }

    fn mark(&self, name: &str) {
        self.recorded.mark(name);
    }

    fn span(&self, name: &str) -> Box<dyn SpanGuard> {
        Box::new(self.recorded.span(name))
    }
}

/// Creates a host device that maps memory for each request, up to `capacity_bytes` in total.
/// `recorded` records marks and spans.
pub(super) fn host(recorded: HostPool, capacity_bytes: u64) -> Result<Device> {
    let (maps, counters) = (RefCell::default(), Counters::default());
    let memory = HostMaps { maps, counters, capacity_bytes, recorded };
    Device::new(Box::new(memory), Box::new(HostBackend::new()))
}
