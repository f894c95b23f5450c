//! What happens when no free block fits: a new segment, or room made for one, or an error, in PyTorch's order.

use vramscope_trace::{EventKind, MempoolId, Sink};

use crate::block::{Block, BlockIndex, BlockState};
use crate::device::{Device, DeviceError};
use crate::error::{AllocateError, OutOfMemory};
use crate::home::HomeIndex;
use crate::pool::{AskForMemory, Origin, Pool, Request, Segment};
use crate::size;

impl<D: Device> Pool<D> {
    /// A block that holds `request` and is in no home.
    #[cold]
    #[inline(never)]
    pub(crate) fn miss(
        &mut self,
        request: &mut Request,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
        ask: Option<AskForMemory<'_>>,
    ) -> Result<BlockIndex, AllocateError> {
        if let Some(spared) = ask.and_then(|ask| ask()) {
            for address in spared {
                // Nothing that a callback names can make the request fail; what is no live block is passed over.
                let _ = self.free(address, origin, sink);
            }
            if let Some(index) = self.take_fit(request) {
                return Ok(index);
            }
        }
        self.collect_garbage(origin, sink)?;
        if let Some(index) = self.new_block(request, origin, sink)? {
            return Ok(index);
        }
        if let Some(index) = self.take_last_resort(request) {
            return Ok(index);
        }
        if self.release_oversize(request, origin, sink)?
            && let Some(index) = self.new_block(request, origin, sink)?
        {
            return Ok(index);
        }
        if !self.mempools.is_capturing() {
            self.empty_cache(origin, sink)?;
            self.counters.num_alloc_retries += 1;
            if let Some(index) = self.new_block(request, origin, sink)? {
                return Ok(index);
            }
        }
        Err(AllocateError::OutOfMemory(Box::new(self.out_of_memory(request, origin, sink))))
    }

    /// New memory for a request; `None` where there is no room.
    fn new_block(
        &mut self,
        request: &Request,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<Option<BlockIndex>, DeviceError> {
        let bytes = size::segment_size(&self.settings, request.size);
        // Under expandable segments as well, although fewer bytes may then be mapped.
        if self.limit.is_some_and(|limit| self.reserved_bytes().saturating_add(bytes) > limit) {
            return Ok(None);
        }
        let block = if request.expandable {
            self.expand(request, origin, sink)
        } else {
            self.new_segment(request, bytes, origin, sink).map(Some)
        };
        match block {
            Err(DeviceError::OutOfMemory) => Ok(None),
            block => block,
        }
    }

    /// Asks the device for a segment. Returns the block that is the whole of it.
    fn new_segment(
        &mut self,
        request: &Request,
        bytes: u64,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<BlockIndex, DeviceError> {
        let address = self.device.reserve(bytes)?;
        if let Err(error) = self.check_range(address, bytes) {
            // It would overlap what is known, and cannot be used; the error that matters is the first.
            let _ = self.device.release(address, bytes);
            return Err(error);
        }
        let first = self.insert_segment(address, bytes, None, request.home, origin);
        let key = self.homes[request.home].key;
        self.counters.segment.increase(key.kind, 1);
        self.counters.reserved_bytes.increase(key.kind, bytes);
        if self.settings.max_split_size.is_some_and(|max| bytes >= max) {
            self.counters.oversize_segments.increase(1);
        }
        self.counters.num_device_alloc += 1;
        let (stream, site) = (request.stream, origin.site);
        self.tell(origin, EventKind::SegmentAllocated { address, size: bytes, stream, pool: key, site }, sink);
        Ok(first)
    }

    /// Enters a range that the device gave. Returns the block that is the whole of it, in no home yet; where the range is to be
    /// mapped in pages, nothing of it is.
    pub(crate) fn insert_segment(
        &mut self,
        address: u64,
        size: u64,
        page_bytes: Option<u64>,
        home: HomeIndex,
        origin: Origin,
    ) -> BlockIndex {
        let (expandable, site) = (page_bytes.is_some(), origin.site);
        let first = self.blocks.insert(Block {
            address,
            size,
            requested: 0,
            free_since: 0,
            prev: None,
            next: None,
            home,
            site,
            state: BlockState::Inactive,
            mapped: !expandable,
            expandable,
            is_shared: false,
        });
        self.segments.insert(address, Segment { size, page_bytes, home, site, first });
        self.mempools.count_segment(self.homes[home].key.owner, true);
        first
    }

    /// Everything here rests on segments that do not overlap, and addresses may be read from a file, so they are looked at once.
    pub(crate) fn check_range(&self, address: u64, bytes: u64) -> Result<(), DeviceError> {
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

    /// A free block of a private pool that may help out the default one. Blocks of expandable segments do not, and one that does is split by
    /// the rule for ordinary ones, whatever is set.
    fn take_last_resort(&mut self, request: &mut Request) -> Option<BlockIndex> {
        let key = self.homes.pool(request.pool).key;
        if key.owner != MempoolId::default() {
            return None;
        }
        self.mempools.last_resorts(key.kind).into_iter().find_map(|pool| {
            let home = self.homes.of(pool, request.stream);
            let helped = Request { pool, home, expandable: false, ..*request };
            let index = self.take_fit(&helped)?;
            *request = helped;
            Some(index)
        })
    }

    /// Tells the sink that there is no room, and collects what the program should know about it.
    fn out_of_memory(&mut self, request: &Request, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> OutOfMemory {
        self.counters.num_ooms += 1;
        let memory = self.device.memory();
        let &Request { requested, size, stream, .. } = request;
        let kind =
            EventKind::OutOfMemory { requested: size, device_free: memory.free_bytes, stream, site: origin.site };
        self.tell(origin, kind, sink);
        let private = self.mempools.pools().flat_map(|pool| self.homes.free_blocks(pool));
        OutOfMemory {
            device: self.id,
            requested,
            segment_bytes: size::segment_size(&self.settings, size),
            stream,
            device_free_bytes: memory.free_bytes,
            device_total_bytes: memory.total_bytes,
            limit_bytes: self.limit,
            allocated_bytes: self.counters.allocated_bytes(),
            reserved_bytes: self.reserved_bytes(),
            private_pool_bytes: private.map(|index| self.blocks[index].size).sum(),
            largest_free_bytes: self.homes.largest(),
            process_bytes: None,
            others_bytes: None,
            settings: self.settings.clone(),
        }
    }
}
