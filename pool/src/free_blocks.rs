//! Free blocks, in the order in which best fit looks at them.

use std::collections::BTreeMap;

use vramscope_trace::{Pool as PoolKey, PoolKind, StreamId};

use crate::block::{Block, BlockIndex};

/// Which set of free blocks a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPoolIndex(u8);

impl BlockPoolIndex {
    /// The default pool for blocks of `kind`.
    pub(crate) fn default_of(kind: PoolKind) -> Self {
        Self(match kind {
            PoolKind::Small => 0,
            PoolKind::Large => 1,
        })
    }

    pub(crate) fn place(self) -> usize {
        usize::from(self.0)
    }
}

/// The order of best fit: within a stream by size, then by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FitKey {
    stream: StreamId,
    size: u64,
    address: u64,
}

impl FitKey {
    fn of(block: &Block) -> Self {
        Self { stream: block.stream, size: block.size, address: block.address }
    }
}

/// The free blocks of one pool of segments.
#[derive(Clone, Debug)]
pub(crate) struct BlockPool {
    pub(crate) key: PoolKey,
    free: BTreeMap<FitKey, BlockIndex>,
}

impl BlockPool {
    pub(crate) fn new(key: PoolKey) -> Self {
        Self { key, free: BTreeMap::new() }
    }

    pub(crate) fn insert(&mut self, block: &Block, index: BlockIndex) {
        let before = self.free.insert(FitKey::of(block), index);
        debug_assert!(before.is_none(), "a block is free once");
    }

    pub(crate) fn remove(&mut self, block: &Block) {
        let before = self.free.remove(&FitKey::of(block));
        debug_assert!(before.is_some(), "a free block is in the set of its pool");
    }

    /// Takes the smallest free block of `stream` that holds `size`, of these the lowest.
    pub(crate) fn take_best_fit(&mut self, stream: StreamId, size: u64) -> Option<BlockIndex> {
        let (&key, &index) = self.free.range(FitKey { stream, size, address: 0 }..).next()?;
        if key.stream != stream {
            return None;
        }
        self.free.remove(&key);
        Some(index)
    }

    /// The free blocks by stream, size and address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockIndex> + '_ {
        self.free.values().copied()
    }

    /// The size of the largest free block of any stream.
    pub(crate) fn largest(&self) -> u64 {
        self.free.keys().map(|key| key.size).max().unwrap_or(0)
    }
}
