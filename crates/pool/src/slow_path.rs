//! The slow path: the attempts to serve a request when no free block fits, in PyTorch's order.
//!
//! 1. The program's callback, then a second search for a free block.
//! 2. Garbage collection of old cached segments.
//! 3. New memory from the device.
//! 4. Free blocks of private pools that are marked for use on out-of-memory.
//! 5. Release of cached blocks that `max_split_size` keeps from being used, then the device again.
//! 6. Release of everything cached, then the device again (a retry).
//! 7. Out of memory.

use vramscope_trace::{EventKind, MempoolId, Sink};

use crate::block::Block;
use crate::device::{Device, DeviceError, DeviceResult};
use crate::error::{AllocateError, OutOfMemory};
use crate::index::{BlockIndex, StreamPoolIndex};
use crate::pool::{Origin, Pool, Segment};
use crate::request::{FreeMemoryCallback, Request};
use crate::size;

impl<D: Device> Pool<D> {
    /// Returns a free block for `request`, which no free block of its stream pool fits, by
    /// releasing and obtaining memory. The block is in no stream pool. If a private pool marked for
    /// use on out-of-memory provides it, changes the pool in `request` to that pool.
    #[cold]
    #[inline(never)]
    pub(crate) fn slow_path(
        &mut self,
        request: &mut Request,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
        callback: Option<FreeMemoryCallback<'_>>,
    ) -> Result<BlockIndex, AllocateError> {
        if let Some(addresses) = callback.and_then(|callback| callback()) {
            for address in addresses {
                // A bad address must not fail the request, so errors are ignored.
                let _ = self.free(address, origin, sink);
            }
            if let Some(index) = self.take_best_fit(request) {
                return Ok(index);
            }
        }
        self.collect_garbage(origin, sink)?;
        if let Some(index) = self.obtain_memory(request, origin, sink)? {
            return Ok(index);
        }
        if let Some(index) = self.take_from_use_on_oom_pool(request) {
            return Ok(index);
        }
        if self.release_oversize(request, origin, sink)?
            && let Some(index) = self.obtain_memory(request, origin, sink)?
        {
            return Ok(index);
        }
        if !self.private_pools.is_capturing() {
            self.empty_cache(origin, sink)?;
            self.counters.num_alloc_retries += 1;
            if let Some(index) = self.obtain_memory(request, origin, sink)? {
                return Ok(index);
            }
        }
        Err(AllocateError::OutOfMemory(Box::new(self.out_of_memory(request, origin, sink))))
    }

    /// Obtains memory for a request from the device: a new segment, or more pages of an expandable
    /// one. Returns `None` if the pool's limit or the device's free memory is too small.
    fn obtain_memory(
        &mut self,
        request: &Request,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> DeviceResult<Option<BlockIndex>> {
        let bytes = size::segment_size(&self.settings, request.size);
        // As in PyTorch, the limit is compared with the size of a whole segment even if an
        // expandable segment would map less.
        let wanted_bytes = self.reserved_bytes().saturating_add(bytes);
        if self.limit_bytes.is_some_and(|limit| wanted_bytes > limit) {
            return Ok(None);
        }
        let block = if request.expandable {
            self.expand(request, origin, sink)
        } else {
            self.new_segment(request, bytes, origin, sink).map(Some)
        };
        match block {
            Err(DeviceError::OutOfMemory) => Ok(None),
            block => {
                self.counters.note_granted(wanted_bytes);
                block
            }
        }
    }

    /// Reserves a segment of `bytes` on the device for `request`. Returns the free block that spans
    /// it.
    fn new_segment(
        &mut self,
        request: &Request,
        bytes: u64,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> DeviceResult<BlockIndex> {
        let address = self.device.reserve(bytes)?;
        if let Err(error) = self.check_range(address, bytes) {
            // The pool cannot use the range. Report why, not an error of its release.
            let _ = self.device.release(address, bytes);
            return Err(error);
        }
        let first = self.insert_segment(address, bytes, None, request.stream_pool, origin);
        let key = self.pools[request.stream_pool].key;
        self.counters.segment.increase(key.kind, 1);
        self.counters.reserved_bytes.increase(key.kind, bytes);
        if self.settings.max_split_size_bytes.is_some_and(|max| bytes >= max) {
            self.counters.oversize_segments.increase(1);
        }
        self.counters.num_device_alloc += 1;
        let (stream, site) = (request.stream, origin.site);
        self.emit(origin, EventKind::SegmentAllocated { address, size: bytes, stream, pool: key, site }, sink);
        Ok(first)
    }

    /// Inserts a segment that the device provided, and returns the block that spans it. The block
    /// is in no stream pool. It is unmapped if the segment is expandable (`page_bytes` is given).
    pub(crate) fn insert_segment(
        &mut self,
        address: u64,
        size: u64,
        page_bytes: Option<u64>,
        stream_pool: StreamPoolIndex,
        origin: Origin,
    ) -> BlockIndex {
        let (expandable, site) = (page_bytes.is_some(), origin.site);
        let first = self.blocks.insert(Block {
            address,
            size,
            stream_pool,
            site,
            mapped: !expandable,
            expandable,
            ..Block::default()
        });
        self.segments.insert(address, Segment { size, page_bytes, stream_pool, site, first });
        self.private_pools.add_segment(self.pools[stream_pool].key.owner);
        first
    }

    /// Returns an error if a range from the device is no valid address range or overlaps a segment.
    /// A device's addresses may come from a file, so they are checked.
    pub(crate) fn check_range(&self, address: u64, bytes: u64) -> DeviceResult {
        let end = address.checked_add(bytes).filter(|_| address != 0);
        let Some(end) = end else {
            return Err(DeviceError::Failed(format!(
                "it returned {bytes} bytes at {address:#x}, which is not a valid address range"
            )));
        };
        match self.segments.range(..end).next_back() {
            Some((&below, segment)) if below + segment.size > address => Err(DeviceError::Failed(format!(
                "it returned {bytes} bytes at {address:#x}, which overlap the segment at {below:#x}"
            ))),
            _ => Ok(()),
        }
    }

    /// Takes a free block for a request of the default pool from a private pool that is marked for
    /// use on out-of-memory, and changes the pool in `request` to that pool; `None`, changing
    /// nothing, if no block fits. As in PyTorch, blocks of expandable segments are skipped, and the
    /// block is split by the rule for ordinary segments.
    fn take_from_use_on_oom_pool(&mut self, request: &mut Request) -> Option<BlockIndex> {
        let key = self.pools.block_pool(request.block_pool).key;
        if key.owner != MempoolId::default() {
            return None;
        }
        self.private_pools.use_on_oom_pools(key.kind).into_iter().find_map(|block_pool| {
            let stream_pool = self.pools.stream_pool(block_pool, request.stream);
            let redirected = Request { block_pool, stream_pool, expandable: false, ..*request };
            let index = self.take_best_fit(&redirected)?;
            *request = redirected;
            Some(index)
        })
    }

    /// Counts the failed request, emits its out-of-memory event, and returns the error with the
    /// pool's state.
    fn out_of_memory(&mut self, request: &Request, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> OutOfMemory {
        self.counters.num_ooms += 1;
        let memory = self.device.memory();
        let &Request { requested, size, stream, .. } = request;
        let kind =
            EventKind::OutOfMemory { requested: size, device_free: memory.free_bytes, stream, site: origin.site };
        self.emit(origin, kind, sink);
        let private = self.private_pools.block_pools().flat_map(|pool| self.pools.free_blocks(pool));
        OutOfMemory {
            device: self.id,
            requested,
            segment_bytes: size::segment_size(&self.settings, size),
            stream,
            device_free_bytes: memory.free_bytes,
            device_total_bytes: memory.total_bytes,
            limit_bytes: self.limit_bytes,
            allocated_bytes: self.counters.allocated_bytes(),
            reserved_bytes: self.reserved_bytes(),
            private_pool_bytes: private.map(|index| self.blocks[index].size).sum(),
            largest_free_bytes: self.pools.largest_free_bytes(),
            process_bytes: None,
            other_processes_bytes: None,
            settings: self.settings.clone(),
        }
    }
}
