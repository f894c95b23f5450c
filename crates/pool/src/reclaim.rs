//! Giving memory back to the device: what is old, what is large enough, or everything that can be.

use vramscope_trace::{EventKind, MempoolId, PoolKind, Sink};

use crate::block::{Block, BlockIndex};
use crate::device::{Device, DeviceError};
use crate::free_blocks::{Fit, FitKey};
use crate::home::BlockPoolIndex;
use crate::pool::{Origin, Pool, Request};

impl<D: Device> Pool<D> {
    /// Gives back every segment in which no block is in use and every page of expandable ones, once what other streams still use is
    /// done: large ones first, in the order of best fit; then those of private pools that nobody uses. While requests are diverted to a
    /// private pool, only the last of these.
    ///
    /// # Errors
    /// When the device fails to take something; that and what comes after it is kept.
    pub fn empty_cache(&mut self, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> Result<(), DeviceError> {
        if !self.mempools.is_capturing() {
            self.wait_for_events(None, origin, sink)?;
            for kind in [PoolKind::Large, PoolKind::Small] {
                self.release_free(BlockPoolIndex::default_of(kind), origin, sink)?;
            }
        }
        for (_, pools) in self.mempools.unused() {
            for pool in pools {
                self.release_free(pool, origin, sink)?;
            }
        }
        self.forget_empty_pools();
        Ok(())
    }

    /// The same for one private pool, if nobody uses it anymore: what PyTorch does when the program lets go of a memory pool. While
    /// requests are diverted to a private pool, without waiting for other streams.
    ///
    /// # Errors
    /// As [`empty_cache`](Self::empty_cache).
    pub fn empty_private_pool(
        &mut self,
        mempool: MempoolId,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<(), DeviceError> {
        let Some((_, pools)) = self.mempools.unused().into_iter().find(|&(unused, _)| unused == mempool) else {
            return Ok(());
        };
        if !self.mempools.is_capturing() {
            self.wait_for_events(Some(mempool), origin, sink)?;
        }
        pools.into_iter().try_for_each(|pool| self.release_free(pool, origin, sink))?;
        self.forget_empty_pools();
        Ok(())
    }

    /// Gives back what is free of one pool: whole segments, then pages.
    fn release_free(
        &mut self,
        pool: BlockPoolIndex,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<(), DeviceError> {
        let free = self.homes.free_blocks(pool).filter(|&index| {
            let block = &self.blocks[index];
            block.expandable || !block.is_split()
        });
        let (expandable, whole): (Vec<_>, Vec<_>) = free.partition(|&index| self.blocks[index].expandable);
        whole.into_iter().try_for_each(|index| self.release_segment(index, origin, sink))?;
        expandable.into_iter().try_for_each(|index| self.unmap(index, origin, sink))
    }

    /// Above the threshold of its limit, the pool gives old segments back before it asks for more: large ones of which no block is in
    /// use, in rounds, each time those of at least average age, until the bytes above the threshold are back or none is left.
    pub(crate) fn collect_garbage(
        &mut self,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<(), DeviceError> {
        let share = self.settings.garbage_collection_threshold;
        let Some(limit) = self.limit.filter(|_| share > 0.0) else { return Ok(()) };
        let Some(target) = self.reserved_bytes().checked_sub((share * limit as f64) as u64) else { return Ok(()) };
        let pool = BlockPoolIndex::default_of(PoolKind::Large);
        let lookups = self.homes.pool(pool).lookups;
        let age = |block: &Block| lookups - block.free_since;
        let whole = self.homes.free_blocks(pool).filter(|&index| !self.blocks[index].is_split());
        let mut whole: Vec<BlockIndex> = whole.collect();
        let mut total_age: u64 = whole.iter().map(|&index| age(&self.blocks[index])).sum();
        let mut reclaimed = 0;
        while reclaimed < target && !whole.is_empty() {
            let average = total_age as f64 / whole.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) = whole.into_iter().partition(|&index| {
                let block = &self.blocks[index];
                !block.expandable && age(block) as f64 >= average
            });
            if old.is_empty() {
                break;
            }
            for index in old {
                reclaimed += self.blocks[index].size;
                total_age -= age(&self.blocks[index]);
                self.release_segment(index, origin, sink)?;
            }
            whole = young;
        }
        Ok(())
    }

    /// Gives back blocks that `max_split_size` keeps from being handed out: one that is large enough for the request, or else as many
    /// as it takes, the largest first. Says whether that is enough.
    pub(crate) fn release_oversize(
        &mut self,
        request: &Request,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<bool, DeviceError> {
        let Some(max) = self.settings.max_split_size else { return Ok(false) };
        let key = FitKey { size: request.size.max(max), address: 0 };
        let free = &self.homes[request.home].free;
        let is_ordinary = |fit: &Fit| !self.blocks[fit.index].expandable;
        let enough = free.at_or_after(key);
        if let Some(fit) = enough.filter(is_ordinary) {
            self.release_whole(fit.index, origin, sink)?;
            return Ok(true);
        }
        let mut released = 0;
        let mut next = free.before(enough.map_or(FitKey { size: u64::MAX, address: u64::MAX }, |fit| fit.key));
        let mut chosen = Vec::new();
        while let Some(fit) = next.filter(|fit| released < key.size && fit.key.size >= max) {
            if is_ordinary(&fit) {
                released += fit.key.size;
                chosen.push(fit.index);
            }
            next = free.before(fit.key);
        }
        chosen.into_iter().try_for_each(|index| self.release_whole(index, origin, sink))?;
        Ok(released >= key.size)
    }

    /// Releases the segment of a block that is the whole of it. Under `max_split_size` a block of that size always is, unless the
    /// setting changed while it was split; such a block is kept.
    fn release_whole(
        &mut self,
        index: BlockIndex,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<(), DeviceError> {
        if self.blocks[index].is_split() { Ok(()) } else { self.release_segment(index, origin, sink) }
    }

    /// Gives the segment that a free block is the whole of back to the device.
    fn release_segment(
        &mut self,
        index: BlockIndex,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<(), DeviceError> {
        let block = self.blocks[index];
        let Block { address, size, home, .. } = block;
        self.device.release(address, size)?;
        self.homes[home].remove(&block, index);
        self.blocks.remove(index);
        self.segments.remove(&address);
        let key = self.key_of(&block);
        self.mempools.count_segment(key.owner, false);
        self.counters.segment.decrease(key.kind, 1);
        self.counters.reserved_bytes.decrease(key.kind, size);
        if self.settings.max_split_size.is_some_and(|max| size >= max) {
            self.counters.oversize_segments.decrease_one();
        }
        self.counters.num_device_free += 1;
        self.tell(origin, EventKind::SegmentFreed { address, size, site: origin.site }, sink);
        Ok(())
    }
}
