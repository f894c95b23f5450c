//! Hit: finds the best-fitting free block, splits it, and marks it allocated.

use vramscope_trace::{EventKind, PoolKey, Sink};

use crate::block::{Block, BlockState};
use crate::device::Device;
use crate::free_blocks::{Fit, FitKey};
use crate::index::BlockIndex;
use crate::pool::{Origin, Pool};
use crate::request::Request;
use crate::size;

impl<D: Device> Pool<D> {
    /// Removes the smallest free block that is large enough for `request` from the request's stream
    /// pool and returns it; `None` if no block is large enough or the settings forbid its use.
    #[inline]
    pub(crate) fn take_best_fit(&mut self, request: &Request) -> Option<BlockIndex> {
        if self.counts_lookups {
            self.pools.block_pool_mut(request.block_pool).lookups += 1;
        }
        let (bin, index) = self.pools[request.stream_pool].free.best_fit(request.size)?;
        let &Block { size, address, expandable, .. } = &self.blocks[index];
        if expandable || self.settings.max_split_size_bytes.is_some() {
            return self.take_unless_refused(Fit { key: FitKey { size, address }, index }, request);
        }
        self.pools[request.stream_pool].free.remove_from_bin(bin, size, address, index);
        Some(index)
    }

    /// Removes and returns the free block to use for `request`; `None` if the settings forbid its
    /// use. `fit` is the smallest block that is large enough. Called if it belongs to an expandable
    /// segment, where another block may be preferred, or if `max_split_size` is set.
    #[inline(never)]
    fn take_unless_refused(&mut self, mut fit: Fit, request: &Request) -> Option<BlockIndex> {
        if self.blocks[fit.index].expandable {
            fit = self.expandable_fit(fit, request)?;
        }
        if let Some(max) = self.settings.max_split_size_bytes {
            let (size, found) = (request.size, fit.key.size);
            let slack = self.settings.max_non_split_rounding_bytes.unwrap_or(self.settings.large_segment_size_bytes);
            if (size < max && found >= max) || (size >= max && found >= size.saturating_add(slack)) {
                return None;
            }
        }
        let Fit { key, index } = fit;
        self.pools[request.stream_pool].free.remove(key.size, key.address, index);
        Some(index)
    }

    /// Marks the free block `index`, already removed from its stream pool, as allocated; the caller
    /// adds it to [`live`](Self::live). Bytes that the request does not need become a free block of
    /// the stream pool if [`should_split`](size::should_split) returns true for them and the pool
    /// permits splitting.
    #[inline]
    pub(crate) fn allocate_block(
        &mut self,
        index: BlockIndex,
        request: &Request,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) {
        let splits = |pool: &Self, key: PoolKey, rest: u64| {
            size::should_split(&pool.settings, key.kind, request.expandable, request.size, rest)
                && pool.private_pools.may_split(key.owner)
        };
        self.allocate_or_split(index, request, splits, origin, sink);
    }

    /// Marks the free block `index`, already removed from its stream pool, as allocated; the caller
    /// adds it to [`live`](Self::live). `splits` receives the block's pool and the number of bytes
    /// that the request does not need; if it returns true, these bytes become a free block of the
    /// stream pool.
    #[cfg_attr(not(target_family = "wasm"), inline)]
    // Not inlined in WebAssembly, where small code counts more than speed.
    #[cfg_attr(target_family = "wasm", inline(never))]
    pub(crate) fn allocate_or_split(
        &mut self,
        index: BlockIndex,
        request: &Request,
        splits: impl FnOnce(&Self, PoolKey, u64) -> bool,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) {
        let &Request { requested, size, stream, .. } = request;
        let &Block { stream_pool, size: free_size, expandable, .. } = &self.blocks[index];
        let was_split = self.blocks[index].is_split();
        let key = self.pools[stream_pool].key;
        let kind = key.kind;
        if splits(self, key, free_size - size) {
            let rest = self.blocks.split(index, size);
            self.insert_free(stream_pool, rest);
            if !expandable && was_split {
                self.counters.inactive_split_bytes.decrease(kind, size);
            } else if !expandable {
                self.counters.inactive_split.increase(kind, 1);
                self.counters.inactive_split_bytes.increase(kind, free_size - size);
            }
        } else if !expandable && was_split {
            self.counters.inactive_split.decrease(kind, 1);
            self.counters.inactive_split_bytes.decrease(kind, free_size);
        }
        let block = &mut self.blocks[index];
        block.state = BlockState::Allocated;
        block.requested = requested;
        block.site = origin.site;
        let &mut Block { address, size, .. } = block;
        let counters = &mut self.counters;
        counters.block_allocated(kind, size, requested);
        if self.settings.max_split_size_bytes.is_some_and(|max| size >= max) {
            counters.oversize_allocations.increase(1);
        }
        let site = origin.site;
        self.emit(origin, EventKind::BlockAllocated { address, size, requested, stream, pool: key, site }, sink);
    }
}
