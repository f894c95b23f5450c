//! Where free blocks live: a pool of segments has one home for each stream, and a block never leaves its home.

use std::collections::BTreeMap;

use vramscope_trace::{Pool as PoolKey, PoolKind, StreamId};

use crate::block::{Block, BlockIndex};
use crate::free_blocks::FreeBlocks;

/// A pool's place among all pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPoolIndex(u32);

impl BlockPoolIndex {
    /// The default pool for blocks of `kind`.
    #[inline]
    pub(crate) fn default_of(kind: PoolKind) -> Self {
        Self(kind as u32)
    }

    pub(crate) fn place(self) -> usize {
        self.0 as usize
    }
}

/// A home's place among all homes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HomeIndex(u32);

/// The blocks of one stream in one pool that nobody uses.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) key: PoolKey,
    pub(crate) stream: StreamId,
    pub(crate) pool: BlockPoolIndex,
    pub(crate) free: FreeBlocks,
    /// Stretches of expandable segments with no memory behind them, by address.
    pub(crate) unmapped: BTreeMap<u64, BlockIndex>,
}

impl Home {
    #[inline]
    pub(crate) fn insert(&mut self, block: &Block, index: BlockIndex) {
        self.free.insert(block.size, block.address, index);
    }

    #[inline]
    pub(crate) fn remove(&mut self, block: &Block, index: BlockIndex) {
        self.free.remove(block.size, block.address, index);
    }
}

/// Segments of one size class of the default pool or of a private one.
#[derive(Clone, Debug)]
pub(crate) struct BlockPool {
    pub(crate) key: PoolKey,
    /// How often a free block was looked for, where age matters.
    pub(crate) lookups: u64,
    /// In order of stream.
    homes: Vec<(StreamId, HomeIndex)>,
}

impl BlockPool {
    pub(crate) fn homes(&self) -> impl DoubleEndedIterator<Item = HomeIndex> + '_ {
        self.homes.iter().map(|&(_, home)| home)
    }
}

/// All pools and homes. The first two pools are the default ones.
#[derive(Clone, Debug)]
pub(crate) struct Homes {
    pools: Vec<BlockPool>,
    vacant_pools: Vec<BlockPoolIndex>,
    homes: Vec<Home>,
    vacant_homes: Vec<HomeIndex>,
}

impl Homes {
    pub(crate) fn new() -> Self {
        let mut homes =
            Self { pools: Vec::new(), vacant_pools: Vec::new(), homes: Vec::new(), vacant_homes: Vec::new() };
        for kind in [PoolKind::Small, PoolKind::Large] {
            homes.insert_pool(PoolKey::default_of(kind));
        }
        homes
    }

    pub(crate) fn insert_pool(&mut self, key: PoolKey) -> BlockPoolIndex {
        let pool = BlockPool { key, lookups: 0, homes: Vec::new() };
        if let Some(index) = self.vacant_pools.pop() {
            self.pools[index.place()] = pool;
            return index;
        }
        self.pools.push(pool);
        BlockPoolIndex(u32::try_from(self.pools.len() - 1).expect("a pool is larger than a byte"))
    }

    /// Forgets a pool that holds no block.
    pub(crate) fn remove_pool(&mut self, pool: BlockPoolIndex) {
        for (_, home) in std::mem::take(&mut self.pools[pool.place()].homes) {
            self[home].free = FreeBlocks::default();
            self[home].unmapped = BTreeMap::new();
            self.vacant_homes.push(home);
        }
        self.vacant_pools.push(pool);
    }

    #[inline]
    pub(crate) fn pool(&self, pool: BlockPoolIndex) -> &BlockPool {
        &self.pools[pool.place()]
    }

    #[inline]
    pub(crate) fn pool_mut(&mut self, pool: BlockPoolIndex) -> &mut BlockPool {
        &mut self.pools[pool.place()]
    }

    /// The home of a stream in a pool, made where there is none yet.
    #[inline]
    pub(crate) fn of(&mut self, pool: BlockPoolIndex, stream: StreamId) -> HomeIndex {
        match self.pools[pool.place()].homes.first() {
            // Most programs use one stream.
            Some(&(first, home)) if first == stream => home,
            _ => self.find(pool, stream),
        }
    }

    #[cold]
    #[inline(never)]
    fn make(&mut self, pool: BlockPoolIndex, place: usize, stream: StreamId) -> HomeIndex {
        let key = self.pools[pool.place()].key;
        let home = Home { key, stream, pool, free: FreeBlocks::default(), unmapped: BTreeMap::new() };
        let index = match self.vacant_homes.pop() {
            Some(index) => {
                self[index] = home;
                index
            }
            None => {
                self.homes.push(home);
                HomeIndex(u32::try_from(self.homes.len() - 1).expect("a home is larger than a byte"))
            }
        };
        self.pools[pool.place()].homes.insert(place, (stream, index));
        index
    }

    fn find(&mut self, pool: BlockPoolIndex, stream: StreamId) -> HomeIndex {
        let homes = &self.pools[pool.place()].homes;
        match homes.binary_search_by_key(&stream, |&(stream, _)| stream) {
            Ok(place) => homes[place].1,
            Err(place) => self.make(pool, place, stream),
        }
    }

    /// The free blocks of a pool by stream, size and address.
    pub(crate) fn free_blocks(&self, pool: BlockPoolIndex) -> impl Iterator<Item = BlockIndex> + '_ {
        self.pool(pool).homes().flat_map(|home| self[home].free.iter()).map(|fit| fit.index)
    }

    /// The size of the largest free block of any pool and stream.
    pub(crate) fn largest(&self) -> u64 {
        self.homes.iter().filter_map(|home| home.free.last()).map(|fit| fit.key.size).max().unwrap_or(0)
    }
}

impl std::ops::Index<HomeIndex> for Homes {
    type Output = Home;
    #[inline]
    fn index(&self, index: HomeIndex) -> &Home {
        &self.homes[index.0 as usize]
    }
}

impl std::ops::IndexMut<HomeIndex> for Homes {
    #[inline]
    fn index_mut(&mut self, index: HomeIndex) -> &mut Home {
        &mut self.homes[index.0 as usize]
    }
}
