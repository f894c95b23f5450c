//! Reclaim: releases cached segments to the device, because they are old, large enough for a
//! request, or all of them.

use vramscope_trace::{EventKind, MempoolId, PoolKind, Sink};

use crate::block::Block;
use crate::device::{Device, DeviceError, DeviceResult};
use crate::free_blocks::{Fit, FitKey};
use crate::index::{BlockIndex, BlockPoolIndex};
use crate::pool::{Origin, Pool};
use crate::request::Request;

impl<D: Device> Pool<D> {
    /// Waits for all pending frees, then releases every segment without allocated blocks and every
    /// free page of expandable segments, as `torch.cuda.empty_cache` does.
    ///
    /// Large segments are released first, in best-fit order, then small ones, then the segments of
    /// private pools without users; private pools with users keep their segments. While a private
    /// pool is selected, only segments of private pools without users are released, and nothing is
    /// waited for.
    ///
    /// # Errors
    /// [`DeviceError`] if the device fails. Memory that has not been released by then stays cached.
    pub fn empty_cache(&mut self, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> Result<(), DeviceError> {
        if !self.private_pools.is_capturing() {
            self.wait_for_events(None, origin, sink)?;
            for kind in [PoolKind::Large, PoolKind::Small] {
                self.release_free(BlockPoolIndex::default_of(kind), origin, sink)?;
            }
        }
        for (_, block_pools) in self.private_pools.unused() {
            for block_pool in block_pools {
                self.release_free(block_pool, origin, sink)?;
            }
        }
        self.remove_empty_private_pools();
        Ok(())
    }

    /// Releases the free segments of one private pool, as PyTorch does when a `torch.cuda.MemPool`
    /// is destroyed. Does nothing while the pool has users.
    ///
    /// Waits for the pool's pending frees first, unless a private pool is selected.
    ///
    /// # Errors
    /// As [`empty_cache`](Self::empty_cache).
    pub fn empty_private_pool(
        &mut self,
        mempool: MempoolId,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<(), DeviceError> {
        let mut unused = self.private_pools.unused().into_iter();
        let Some((_, block_pools)) = unused.find(|&(unused, _)| unused == mempool) else {
            return Ok(());
        };
        if !self.private_pools.is_capturing() {
            self.wait_for_events(Some(mempool), origin, sink)?;
        }
        block_pools.into_iter().try_for_each(|block_pool| self.release_free(block_pool, origin, sink))?;
        self.remove_empty_private_pools();
        Ok(())
    }

    /// Returns the free memory of one block pool to the device: ordinary segments that consist of
    /// one free block, then the whole pages of free blocks in expandable segments.
    fn release_free(
        &mut self,
        block_pool: BlockPoolIndex,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> DeviceResult {
        let free = self.pools.free_blocks(block_pool).filter(|&index| {
            let block = &self.blocks[index];
            block.expandable || !block.is_split()
        });
        let (expandable, whole): (Vec<_>, Vec<_>) = free.partition(|&index| self.blocks[index].expandable);
        whole.into_iter().try_for_each(|index| self.release_segment(index, origin, sink))?;
        expandable.into_iter().try_for_each(|index| self.unmap(index, origin, sink))
    }

    /// Releases old cached segments if the pool holds more bytes than
    /// `garbage_collection_threshold` times its limit. Does nothing without a limit or threshold.
    ///
    /// Candidates are the free blocks of the large default pool that span their segment. A block's
    /// age is the number of searches in its pool since it became free. Each round releases the
    /// candidates whose age is at least the average, until the bytes above the threshold are
    /// released or none is left.
    pub(crate) fn collect_garbage(&mut self, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> DeviceResult {
        let threshold = self.settings.garbage_collection_threshold;
        let Some(limit) = self.limit_bytes.filter(|_| threshold > 0.0) else { return Ok(()) };
        let Some(excess_bytes) = self.reserved_bytes().checked_sub((threshold * limit as f64) as u64) else {
            return Ok(());
        };
        let block_pool = BlockPoolIndex::default_of(PoolKind::Large);
        let lookups = self.pools.block_pool(block_pool).lookups;
        let age = |block: &Block| lookups - block.free_since;
        let whole = self.pools.free_blocks(block_pool).filter(|&index| !self.blocks[index].is_split());
        let mut whole: Vec<BlockIndex> = whole.collect();
        let mut total_age: u64 = whole.iter().map(|&index| age(&self.blocks[index])).sum();
        let mut released_bytes = 0;
        while released_bytes < excess_bytes && !whole.is_empty() {
            let average = total_age as f64 / whole.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) = whole.into_iter().partition(|&index| {
                let block = &self.blocks[index];
                !block.expandable && age(block) as f64 >= average
            });
            if old.is_empty() {
                break;
            }
            for index in old {
                released_bytes += self.blocks[index].size;
                total_age -= age(&self.blocks[index]);
                self.release_segment(index, origin, sink)?;
            }
            whole = young;
        }
        Ok(())
    }

    /// Releases cached blocks that `max_split_size` keeps `request` from using: the smallest block
    /// that is large enough for the request or, without one, as many blocks as needed, largest
    /// first. Returns true if enough bytes were released; false if not, or if `max_split_size` is
    /// not set.
    pub(crate) fn release_oversize(
        &mut self,
        request: &Request,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> DeviceResult<bool> {
        let Some(max) = self.settings.max_split_size_bytes else { return Ok(false) };
        let key = FitKey { size: request.size.max(max), address: 0 };
        let free = &self.pools[request.stream_pool].free;
        let is_ordinary = |fit: &Fit| !self.blocks[fit.index].expandable;
        let large_enough = free.at_or_after(key);
        if let Some(fit) = large_enough.filter(is_ordinary) {
            self.release_unsplit(fit.index, origin, sink)?;
            return Ok(true);
        }
        let mut released_bytes = 0;
        let mut next = free.before(large_enough.map_or(FitKey { size: u64::MAX, address: u64::MAX }, |fit| fit.key));
        let mut chosen = Vec::new();
        while let Some(fit) = next.filter(|fit| released_bytes < key.size && fit.key.size >= max) {
            if is_ordinary(&fit) {
                released_bytes += fit.key.size;
                chosen.push(fit.index);
            }
            next = free.before(fit.key);
        }
        chosen.into_iter().try_for_each(|index| self.release_unsplit(index, origin, sink))?;
        Ok(released_bytes >= key.size)
    }

    /// Releases the segment of the oversize free block `index` if the block spans it; otherwise
    /// does nothing. An oversize block spans its segment unless it was split under earlier
    /// settings.
    fn release_unsplit(&mut self, index: BlockIndex, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> DeviceResult {
        if self.blocks[index].is_split() { Ok(()) } else { self.release_segment(index, origin, sink) }
    }

    /// Returns an ordinary (not expandable) segment to the device. The free block `index` must span
    /// it.
    fn release_segment(&mut self, index: BlockIndex, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> DeviceResult {
        let block = self.blocks[index];
        let Block { address, size, stream_pool, .. } = block;
        self.device.release(address, size)?;
        self.pools[stream_pool].remove(&block, index);
        self.blocks.remove(index);
        self.segments.remove(&address);
        let key = self.key_of(&block);
        self.private_pools.remove_segment(key.owner);
        self.counters.segment.decrease(key.kind, 1);
        self.counters.reserved_bytes.decrease(key.kind, size);
        if self.settings.max_split_size_bytes.is_some_and(|max| size >= max) {
            self.counters.oversize_segments.decrease_by_one();
        }
        self.counters.num_device_free += 1;
        self.emit(origin, EventKind::SegmentFreed { address, size, site: origin.site }, sink);
        Ok(())
    }
}
