//! Block pools and stream pools: which free blocks a request may be served from.
//!
//! A block pool is a set of segments of one size class, default or private. It has a stream pool
//! for each stream, with that stream's free blocks. A block never moves to another stream pool.

use std::collections::BTreeMap;

use vramscope_trace::{PoolKey, PoolKind, StreamId};

use crate::block::Block;
use crate::free_blocks::FreeBlocks;
use crate::index::{BlockIndex, BlockPoolIndex, StreamPoolIndex};

/// The free blocks, and the unmapped blocks, of one stream in one block pool (a size class of the
/// default pool or of a private pool). A request searches one stream pool.
#[derive(Clone, Debug)]
pub(crate) struct StreamPool {
    pub(crate) key: PoolKey,
    pub(crate) stream: StreamId,
    pub(crate) block_pool: BlockPoolIndex,
    pub(crate) free: FreeBlocks,
    /// Unmapped blocks of expandable segments, by address.
    pub(crate) unmapped: BTreeMap<u64, BlockIndex>,
}

impl StreamPool {
    /// Adds the free block `block`, whose index is `index`, to the stream pool's free blocks.
    #[inline]
    pub(crate) fn insert(&mut self, block: &Block, index: BlockIndex) {
        self.free.insert(block.size, block.address, index);
    }

    /// Removes the free block `block`, whose index is `index`, from the stream pool's free blocks;
    /// it must be one of them.
    #[inline]
    pub(crate) fn remove(&mut self, block: &Block, index: BlockIndex) {
        self.free.remove(block.size, block.address, index);
    }
}

/// One size class of the default pool or of a private pool: its stream pools, one for each stream.
#[derive(Clone, Debug)]
pub(crate) struct BlockPool {
    pub(crate) key: PoolKey,
    /// The number of searches for a free block so far; only counted while ages are needed.
    pub(crate) lookups: u64,
    /// Sorted by stream.
    stream_pools: Vec<(StreamId, StreamPoolIndex)>,
}

impl BlockPool {
    /// Iterates over the block pool's stream pools in the order of their streams' ids.
    pub(crate) fn stream_pools(&self) -> impl DoubleEndedIterator<Item = StreamPoolIndex> + '_ {
        self.stream_pools.iter().map(|&(_, stream_pool)| stream_pool)
    }
}

/// All block pools (a size class of the default pool or of a private pool each) and their stream
/// pools. The first two block pools are the small and large default ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockPools {
    block_pools: Vec<BlockPool>,
    /// Indices of removed block pools, for new ones to use.
    vacant_block_pools: Vec<BlockPoolIndex>,
    stream_pools: Vec<StreamPool>,
    /// Indices of the stream pools of removed block pools, for new ones to use.
    vacant_stream_pools: Vec<StreamPoolIndex>,
}

impl BlockPools {
    pub(crate) fn new() -> Self {
        let mut pools = Self::default();
        for kind in [PoolKind::Small, PoolKind::Large] {
            pools.insert_block_pool(PoolKey::default_of(kind));
        }
        pools
    }

    /// Adds an empty block pool and returns its index, which may be that of a block pool removed
    /// before.
    pub(crate) fn insert_block_pool(&mut self, key: PoolKey) -> BlockPoolIndex {
        let block_pool = BlockPool { key, lookups: 0, stream_pools: Vec::new() };
        if let Some(index) = self.vacant_block_pools.pop() {
            self.block_pools[index.get()] = block_pool;
            return index;
        }
        self.block_pools.push(block_pool);
        BlockPoolIndex::new(self.block_pools.len() - 1)
    }

    /// Removes a block pool that has no blocks. New block pools may get its index.
    pub(crate) fn remove_block_pool(&mut self, pool: BlockPoolIndex) {
        for (_, stream_pool) in std::mem::take(&mut self.block_pools[pool.get()].stream_pools) {
            self[stream_pool].free = FreeBlocks::default();
            self[stream_pool].unmapped = BTreeMap::new();
            self.vacant_stream_pools.push(stream_pool);
        }
        self.vacant_block_pools.push(pool);
    }

    /// Returns the block pool (a size class of the default pool or of a private pool) with this
    /// index.
    #[inline]
    pub(crate) fn block_pool(&self, pool: BlockPoolIndex) -> &BlockPool {
        &self.block_pools[pool.get()]
    }

    /// Returns the block pool with this index mutably.
    #[inline]
    pub(crate) fn block_pool_mut(&mut self, pool: BlockPoolIndex) -> &mut BlockPool {
        &mut self.block_pools[pool.get()]
    }

    /// Returns the index of the stream pool of `stream` in the block pool `pool`, creating the
    /// stream pool if necessary.
    #[inline]
    pub(crate) fn stream_pool(&mut self, pool: BlockPoolIndex, stream: StreamId) -> StreamPoolIndex {
        match self.block_pools[pool.get()].stream_pools.first() {
            // Most programs use one stream.
            Some(&(first, stream_pool)) if first == stream => stream_pool,
            _ => self.find_or_create(pool, stream),
        }
    }

    /// Returns the index of the stream pool of `stream` in the block pool `pool`, creating it if
    /// necessary. [`stream_pool`](Self::stream_pool) calls this unless `stream` is the block pool's
    /// first one.
    fn find_or_create(&mut self, pool: BlockPoolIndex, stream: StreamId) -> StreamPoolIndex {
        let stream_pools = &self.block_pools[pool.get()].stream_pools;
        match stream_pools.binary_search_by_key(&stream, |&(stream, _)| stream) {
            Ok(position) => stream_pools[position].1,
            Err(position) => self.create(pool, position, stream),
        }
    }

    /// Adds an empty stream pool for `stream` to the block pool `pool` and returns its index.
    /// `position` is where it belongs in the block pool's list, which is sorted by stream.
    #[cold]
    #[inline(never)]
    fn create(&mut self, pool: BlockPoolIndex, position: usize, stream: StreamId) -> StreamPoolIndex {
        let key = self.block_pools[pool.get()].key;
        let stream_pool =
            StreamPool { key, stream, block_pool: pool, free: FreeBlocks::default(), unmapped: BTreeMap::new() };
        let index = match self.vacant_stream_pools.pop() {
            Some(index) => {
                self[index] = stream_pool;
                index
            }
            None => {
                self.stream_pools.push(stream_pool);
                StreamPoolIndex::new(self.stream_pools.len() - 1)
            }
        };
        self.block_pools[pool.get()].stream_pools.insert(position, (stream, index));
        index
    }

    /// Iterates over the free blocks of a block pool by stream, then size, then address.
    pub(crate) fn free_blocks(&self, pool: BlockPoolIndex) -> impl Iterator<Item = BlockIndex> + '_ {
        let stream_pools = self.block_pool(pool).stream_pools();
        stream_pools.flat_map(|stream_pool| self[stream_pool].free.iter()).map(|fit| fit.index)
    }

    /// Returns the size in bytes of the largest free block of any pool and stream; 0 if nothing is
    /// free.
    pub(crate) fn largest_free_bytes(&self) -> u64 {
        self.largest_free().map_or(0, |(_, bytes)| bytes)
    }

    /// Returns the stream pool with the largest free block, and the block's size in bytes; `None`
    /// if nothing is free.
    pub(crate) fn largest_free(&self) -> Option<(StreamPoolIndex, u64)> {
        let stream_pools = self.stream_pools.iter().enumerate();
        let largest = stream_pools
            .filter_map(|(index, stream_pool)| Some((StreamPoolIndex::new(index), stream_pool.free.last()?.key.size)));
        largest.max_by_key(|&(_, bytes)| bytes)
    }
}

impl std::ops::Index<StreamPoolIndex> for BlockPools {
    type Output = StreamPool;
    #[inline]
    fn index(&self, index: StreamPoolIndex) -> &StreamPool {
        &self.stream_pools[index.get()]
    }
}

impl std::ops::IndexMut<StreamPoolIndex> for BlockPools {
    #[inline]
    fn index_mut(&mut self, index: StreamPoolIndex) -> &mut StreamPool {
        &mut self.stream_pools[index.get()]
    }
}
