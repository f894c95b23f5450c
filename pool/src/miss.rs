//! What happens when no free block fits: a new segment, or room made for one, or an error.

use vramscope_trace::{EventKind, PoolKind, Sink};

use crate::block::{Block, BlockIndex};
use crate::device::{Device, DeviceError};
use crate::error::{AllocateError, OutOfMemory};
use crate::free_blocks::BlockPoolIndex;
use crate::pool::{Origin, Pool, Request, Segment};
use crate::size;

impl<D: Device> Pool<D> {
    /// A new block that holds `request`, the whole of a new segment.
    pub(crate) fn reserve(
        &mut self,
        request: &Request,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<BlockIndex, AllocateError> {
        if let Some(index) = self.new_segment(request, origin, sink)? {
            return Ok(index);
        }
        self.empty_cache(origin, sink)?;
        self.stats.num_alloc_retries += 1;
        if let Some(index) = self.new_segment(request, origin, sink)? {
            return Ok(index);
        }
        Err(AllocateError::OutOfMemory(self.out_of_memory(request, origin, sink)))
    }

    /// Asks the device for a segment; `None` where there is no room.
    fn new_segment(
        &mut self,
        request: &Request,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<Option<BlockIndex>, DeviceError> {
        let bytes = size::segment_size(&self.settings, request.size);
        let reserved = self.stats.reserved_bytes.all.current;
        if self.settings.limit_bytes.is_some_and(|limit| reserved.saturating_add(bytes) > limit) {
            return Ok(None);
        }
        let address = match self.device.reserve(bytes) {
            Ok(address) => address,
            Err(DeviceError::OutOfMemory) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.check_range(address, bytes)?;
        let &Request { stream, pool, .. } = request;
        let site = origin.site;
        let block =
            Block { address, size: bytes, requested: 0, stream, site, pool, allocated: false, prev: None, next: None };
        let first = self.blocks.insert(block);
        self.segments.insert(address, Segment { size: bytes, stream, pool, site, first });
        let key = self.block_pools[pool.place()].key;
        self.stats.segment.increase(key.kind, 1);
        self.stats.reserved_bytes.increase(key.kind, bytes);
        self.stats.num_device_alloc += 1;
        self.tell(origin, EventKind::SegmentAllocated { address, size: bytes, stream, pool: key, site }, sink);
        Ok(Some(first))
    }

    /// Everything here rests on segments that do not overlap, and addresses may be read from a file, so they are looked at once.
    fn check_range(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let end = address.checked_add(bytes).filter(|_| address != 0);
        let Some(end) = end else {
            return Err(DeviceError::Failed(format!(
                "it gave {bytes} bytes at {address:#x}, which is no range of memory"
            )));
        };
        match self.segments.range(..end).next_back() {
            Some((&below, segment)) if below + segment.size > address => Err(DeviceError::Failed(format!(
                "it gave {bytes} bytes at {address:#x}, over the segment at {below:#x}"
            ))),
            _ => Ok(()),
        }
    }

    /// Gives every segment in which no block is live back to the device: large ones first, the smallest of each kind first.
    ///
    /// # Errors
    /// When the device fails to take one; that one and those after it are kept.
    pub fn empty_cache(&mut self, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> Result<(), DeviceError> {
        self.stats.num_sync_all_streams += 1;
        for kind in [PoolKind::Large, PoolKind::Small] {
            let pool = BlockPoolIndex::default_of(kind);
            let whole = self.block_pools[pool.place()].iter().filter(|&index| !self.blocks[index].is_split());
            for index in whole.collect::<Vec<_>>() {
                self.release_segment(index, origin, sink)?;
            }
        }
        Ok(())
    }

    /// Gives the segment that a free block is the whole of back to the device.
    fn release_segment(
        &mut self,
        index: BlockIndex,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<(), DeviceError> {
        let Block { address, size, pool, .. } = self.blocks[index];
        self.device.release(address, size)?;
        let block_pool = &mut self.block_pools[pool.place()];
        let kind = block_pool.key.kind;
        block_pool.remove(&self.blocks[index]);
        self.blocks.remove(index);
        self.segments.remove(&address);
        self.stats.segment.decrease(kind, 1);
        self.stats.reserved_bytes.decrease(kind, size);
        self.stats.num_device_free += 1;
        self.tell(origin, EventKind::SegmentFreed { address, size, site: origin.site }, sink);
        Ok(())
    }

    /// Tells the sink that there is no room, and collects what the program should know about it.
    fn out_of_memory(&mut self, request: &Request, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> OutOfMemory {
        self.stats.num_ooms += 1;
        let memory = self.device.memory();
        let &Request { requested, size, stream, .. } = request;
        let kind =
            EventKind::OutOfMemory { requested: size, device_free: memory.free_bytes, stream, site: origin.site };
        self.tell(origin, kind, sink);
        OutOfMemory {
            requested,
            segment_bytes: size::segment_size(&self.settings, size),
            stream,
            device_free_bytes: memory.free_bytes,
            device_total_bytes: memory.total_bytes,
            limit_bytes: self.settings.limit_bytes,
            allocated_bytes: self.stats.allocated_bytes.all.current,
            reserved_bytes: self.stats.reserved_bytes.all.current,
            largest_free_bytes: self.block_pools.iter().map(|pool| pool.largest()).max().unwrap_or(0),
        }
    }
}
