//! Free: takes a block back from the program and merges it with its free neighbors.

use vramscope_trace::{EventKind, Sink};

use crate::block::{Block, BlockState};
use crate::device::{Device, DeviceResult};
use crate::error::FreeError;
use crate::index::{BlockIndex, StreamPoolIndex};
use crate::pool::{Origin, Pool};

impl<D: Device> Pool<D> {
    /// Frees the block at `address`. If other streams have used it
    /// ([`record_stream`](Self::record_stream)), its memory becomes reusable only when they have
    /// finished.
    ///
    /// # Errors
    /// [`FreeError`] if no allocated block begins at `address`, or if the device cannot record the
    /// events that mark the end of other streams' use. The pool is then unchanged.
    #[inline]
    pub fn free(&mut self, address: u64, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> Result<(), FreeError> {
        let Some(index) = self.live.remove(address) else { return Err(self.invalid_address_error(address)) };
        let freed = self.free_block(index, origin, sink);
        if freed.is_err() {
            self.live.insert(address, index);
        }
        freed.map_err(FreeError::Device)
    }

    /// Frees an allocated block by its index, as [`free`](Self::free) does by its address. The
    /// block must not be in [`live`](Self::live), the table of allocated blocks by address.
    ///
    /// # Errors
    /// If the device cannot record the events that mark the end of other streams' use. The pool is
    /// then unchanged.
    #[inline]
    pub(crate) fn free_block(
        &mut self,
        index: BlockIndex,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> DeviceResult {
        let &Block { address, size, stream_pool, has_stream_uses, .. } = &self.blocks[index];
        if has_stream_uses {
            self.defer_free(index, origin.site)?;
        }
        let kind = self.pools[stream_pool].key.kind;
        self.counters.free_requested(kind, size);
        if self.settings.max_split_size_bytes.is_some_and(|max| size >= max) {
            self.counters.oversize_allocations.decrease_by_one();
        }
        self.emit(origin, EventKind::FreeRequested { address, site: origin.site }, sink);
        if !has_stream_uses {
            self.complete_free(index, origin, sink);
        }
        Ok(())
    }

    /// Makes a freed block that no stream uses any more reusable: merges it with its free neighbors
    /// and inserts it in its stream pool.
    #[inline]
    pub(crate) fn complete_free(&mut self, index: BlockIndex, origin: Origin, sink: &mut (impl Sink + ?Sized)) {
        let &Block { address, size, requested, stream_pool, expandable, .. } = &self.blocks[index];
        self.emit(origin, EventKind::FreeCompleted { address, site: origin.site }, sink);
        let kind = self.pools[stream_pool].key.kind;
        let (index, merged, merged_bytes) = self.merge_free(index);
        let free = &mut self.blocks[index];
        free.state = BlockState::Free;
        free.has_stream_uses = false;
        self.insert_free(stream_pool, index);
        let (free, counters) = (&self.blocks[index], &mut self.counters);
        if !expandable {
            let (split, split_bytes) = if free.is_split() { (1, free.size) } else { (0, 0) };
            counters.inactive_split.replace(kind, merged, split);
            counters.inactive_split_bytes.replace(kind, merged_bytes, split_bytes);
        }
        counters.free_completed(kind, size, requested);
    }

    /// Merges a block with the free blocks directly below and above, which are removed from their
    /// stream pool; the block itself is not in it. Returns the merged block, how many neighbors it
    /// absorbed (0 to 2), and their bytes.
    // Always inlined, because every free runs it.
    #[inline(always)]
    pub(crate) fn merge_free(&mut self, mut index: BlockIndex) -> (BlockIndex, u64, u64) {
        let &Block { prev, next, stream_pool, .. } = &self.blocks[index];
        let stream_pool = &mut self.pools[stream_pool];
        let (mut merged, mut merged_bytes) = (0, 0);
        if let Some(prev) = prev.filter(|&prev| self.blocks[prev].is_free()) {
            stream_pool.remove(&self.blocks[prev], prev);
            (merged, merged_bytes) = (1, self.blocks[prev].size);
            self.blocks.merge_next(prev);
            index = prev;
        }
        if let Some(next) = next.filter(|&next| self.blocks[next].is_free()) {
            stream_pool.remove(&self.blocks[next], next);
            merged += 1;
            merged_bytes += self.blocks[next].size;
            self.blocks.merge_next(index);
        }
        (index, merged, merged_bytes)
    }

    /// Inserts a free block into `stream_pool`, the one that it belongs to, and stores since when
    /// it is free if ages are tracked.
    #[inline]
    pub(crate) fn insert_free(&mut self, stream_pool: StreamPoolIndex, index: BlockIndex) {
        let block = &mut self.blocks[index];
        if self.tracks_ages {
            block.free_since = self.pools.block_pool(self.pools[stream_pool].block_pool).lookups;
        }
        self.pools[stream_pool].insert(block, index);
    }

    /// Returns the error for `address`, which is not the first address of an allocated block: it is
    /// inside a block, in free memory, or outside of the pool.
    #[cold]
    pub(crate) fn invalid_address_error(&self, address: u64) -> FreeError {
        let Some((_, segment)) = self.segment_containing(address) else {
            return FreeError::UnknownAddress { address };
        };
        let blocks = self.blocks.iter_from(segment.first).map(|index| &self.blocks[index]);
        match blocks.take_while(|block| block.address <= address).last() {
            Some(block) if block.state == BlockState::Allocated => {
                FreeError::InsideBlock { address, block: block.address }
            }
            Some(block) if !block.mapped => FreeError::UnknownAddress { address },
            _ => FreeError::NotAllocated { address },
        }
    }
}
