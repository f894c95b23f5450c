//! The allocator: a hit, a free, and the state that both work on.

use std::collections::BTreeMap;

use vramscope_trace::{DeviceId, Event, EventKind, Pool as PoolKey, PoolKind, Sink, SiteId, StreamId};

use crate::block::{BlockIndex, Blocks};
use crate::device::Device;
use crate::error::{AllocateError, FreeError};
use crate::free_blocks::{BlockPool, BlockPoolIndex};
use crate::live_blocks::LiveBlocks;
use crate::settings::Settings;
use crate::size::{self, MAX_REQUEST_BYTES};
use crate::stats::Stats;

/// Where in the program, and when, something was asked of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Where.
    pub site: SiteId,
    /// When.
    pub time_ns: u64,
}

/// A block handed to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// First byte; this is what [`Pool::free`] takes.
    pub address: u64,
    /// Bytes, at least as many as were asked for.
    pub size: u64,
}

/// A request as the pool sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// What the program asked for.
    pub(crate) requested: u64,
    /// The block that it needs.
    pub(crate) size: u64,
    pub(crate) stream: StreamId,
    pub(crate) pool: BlockPoolIndex,
}

/// A range that the device gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) size: u64,
    pub(crate) stream: StreamId,
    pub(crate) pool: BlockPoolIndex,
    pub(crate) site: SiteId,
    /// Its lowest block. Splits and merges keep the lowest block's index, so that this never changes.
    pub(crate) first: BlockIndex,
}

/// A caching allocator for the memory of one device.
#[derive(Clone, Debug)]
pub struct Pool<D> {
    pub(crate) id: DeviceId,
    pub(crate) device: D,
    pub(crate) settings: Settings,
    pub(crate) blocks: Blocks,
    pub(crate) block_pools: Vec<BlockPool>,
    pub(crate) live: LiveBlocks,
    /// By address.
    pub(crate) segments: BTreeMap<u64, Segment>,
    pub(crate) stats: Stats,
}

impl<D: Device> Pool<D> {
    /// A pool that holds nothing yet. Its events carry `id`.
    pub fn new(id: DeviceId, settings: Settings, device: D) -> Self {
        let block_pools =
            [PoolKind::Small, PoolKind::Large].map(|kind| BlockPool::new(PoolKey::default_of(kind))).into();
        Self {
            id,
            device,
            settings,
            blocks: Blocks::default(),
            block_pools,
            live: LiveBlocks::default(),
            segments: BTreeMap::new(),
            stats: Stats::default(),
        }
    }

    /// The device's number in events.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What the pool did so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Hands out a block of at least `bytes`, for work on `stream`; `None` where no byte was asked for.
    ///
    /// # Errors
    /// When the device has no room or fails.
    pub fn allocate(
        &mut self,
        bytes: u64,
        stream: StreamId,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<Option<Allocated>, AllocateError> {
        if bytes == 0 {
            return Ok(None);
        }
        if bytes > MAX_REQUEST_BYTES {
            return Err(AllocateError::TooLarge { requested: bytes });
        }
        let size = size::block_size(&self.settings, bytes);
        let pool = BlockPoolIndex::default_of(size::pool_kind(size));
        let request = Request { requested: bytes, size, stream, pool };
        let index = match self.block_pools[pool.place()].take_best_fit(stream, size) {
            Some(index) => index,
            None => self.reserve(&request, origin, sink)?,
        };
        Ok(Some(self.hand_out(index, &request, origin, sink)))
    }

    /// Turns a free block that is in no set anymore into a live one, giving back to the set what it does not need.
    fn hand_out(
        &mut self,
        index: BlockIndex,
        request: &Request,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Allocated {
        let &Request { requested, size, stream, pool } = request;
        let free = &self.blocks[index];
        let (was_split, free_size) = (free.is_split(), free.size);
        let block_pool = &mut self.block_pools[pool.place()];
        let key = block_pool.key;
        let kind = key.kind;
        if size::splits(&self.settings, kind, false, size, free_size - size) {
            let rest = self.blocks.split(index, size);
            block_pool.insert(&self.blocks[rest], rest);
            if was_split {
                self.stats.inactive_split_bytes.decrease(kind, size);
            } else {
                self.stats.inactive_split.increase(kind, 1);
                self.stats.inactive_split_bytes.increase(kind, free_size - size);
            }
        } else if was_split {
            self.stats.inactive_split.decrease(kind, 1);
            self.stats.inactive_split_bytes.decrease(kind, free_size);
        }
        let block = &mut self.blocks[index];
        block.allocated = true;
        block.requested = requested;
        block.site = origin.site;
        let allocated = Allocated { address: block.address, size: block.size };
        self.live.insert(allocated.address, index);
        let Allocated { address, size } = allocated;
        self.tell(
            origin,
            EventKind::BlockAllocated { address, size, requested, stream, pool: key, site: origin.site },
            sink,
        );
        let stats = &mut self.stats;
        stats.allocation.increase(kind, 1);
        stats.allocated_bytes.increase(kind, size);
        stats.active.increase(kind, 1);
        stats.active_bytes.increase(kind, size);
        stats.requested_bytes.increase(kind, requested);
        allocated
    }

    /// Takes back the block at `address`.
    ///
    /// # Errors
    /// When no live block begins there. Nothing has happened then.
    pub fn free(&mut self, address: u64, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> Result<(), FreeError> {
        let Some(index) = self.live.remove(&address) else { return Err(self.why_not_freed(address)) };
        let block = &mut self.blocks[index];
        block.allocated = false;
        let (size, kind) = (block.size, self.block_pools[block.pool.place()].key.kind);
        self.stats.allocation.decrease(kind, 1);
        self.stats.allocated_bytes.decrease(kind, size);
        self.tell(origin, EventKind::FreeRequested { address, site: origin.site }, sink);
        self.complete_free(index, origin, sink);
        Ok(())
    }

    /// Puts a block that nobody uses anymore back into its set, joined with its free neighbors.
    fn complete_free(&mut self, mut index: BlockIndex, origin: Origin, sink: &mut (impl Sink + ?Sized)) {
        let block = self.blocks[index];
        self.tell(origin, EventKind::FreeCompleted { address: block.address, site: origin.site }, sink);
        let block_pool = &mut self.block_pools[block.pool.place()];
        let kind = block_pool.key.kind;
        let (mut merged, mut merged_bytes) = (0, 0);
        if let Some(prev) = block.prev.filter(|&prev| !self.blocks[prev].allocated) {
            block_pool.remove(&self.blocks[prev]);
            (merged, merged_bytes) = (1, self.blocks[prev].size);
            self.blocks.merge_next(prev);
            index = prev;
        }
        if let Some(next) = block.next.filter(|&next| !self.blocks[next].allocated) {
            block_pool.remove(&self.blocks[next]);
            merged += 1;
            merged_bytes += self.blocks[next].size;
            self.blocks.merge_next(index);
        }
        let free = &self.blocks[index];
        block_pool.insert(free, index);
        let stats = &mut self.stats;
        let (split, split_bytes) = if free.is_split() { (1, free.size) } else { (0, 0) };
        stats.inactive_split.replace(kind, merged, split);
        stats.inactive_split_bytes.replace(kind, merged_bytes, split_bytes);
        stats.active.decrease(kind, 1);
        stats.active_bytes.decrease(kind, block.size);
        stats.requested_bytes.decrease(kind, block.requested);
    }

    pub(crate) fn tell(&self, origin: Origin, kind: EventKind, sink: &mut (impl Sink + ?Sized)) {
        sink.event(&Event { device: self.id, time_ns: origin.time_ns, kind });
    }
}
