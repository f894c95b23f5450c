//! Blocks: every byte of a segment belongs to exactly one, and a segment's blocks are linked in address order.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

use vramscope_trace::{SiteId, StreamId};

use crate::free_blocks::BlockPoolIndex;

/// A block's place in the arena; it stays the same while the block exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockIndex(NonZeroU32);

impl BlockIndex {
    fn place(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// A stretch of a segment, handed out or free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// What the program asked for; meaningless while free.
    pub(crate) requested: u64,
    pub(crate) stream: StreamId,
    pub(crate) site: SiteId,
    pub(crate) pool: BlockPoolIndex,
    pub(crate) allocated: bool,
    /// The block below it in the same segment.
    pub(crate) prev: Option<BlockIndex>,
    /// The block above it.
    pub(crate) next: Option<BlockIndex>,
}

impl Block {
    /// Whether it shares its segment with another block.
    pub(crate) fn is_split(&self) -> bool {
        self.prev.is_some() || self.next.is_some()
    }
}

/// All blocks of a pool. Places of blocks that are gone are used again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    arena: Vec<Block>,
    vacant: Vec<BlockIndex>,
}

impl Index<BlockIndex> for Blocks {
    type Output = Block;
    fn index(&self, index: BlockIndex) -> &Block {
        &self.arena[index.place()]
    }
}

impl IndexMut<BlockIndex> for Blocks {
    fn index_mut(&mut self, index: BlockIndex) -> &mut Block {
        &mut self.arena[index.place()]
    }
}

impl Blocks {
    pub(crate) fn insert(&mut self, block: Block) -> BlockIndex {
        if let Some(index) = self.vacant.pop() {
            self[index] = block;
            return index;
        }
        self.arena.push(block);
        let count = u32::try_from(self.arena.len()).ok().and_then(NonZeroU32::new);
        BlockIndex(count.expect("2^32 blocks of 64 bytes do not fit in memory that a program can have"))
    }

    pub(crate) fn remove(&mut self, index: BlockIndex) {
        self.vacant.push(index);
    }

    /// Cuts a block behind its first `size` bytes. The low part keeps the index, so that a segment's first block is always the same;
    /// returns the rest.
    pub(crate) fn split(&mut self, index: BlockIndex, size: u64) -> BlockIndex {
        let low = self[index];
        debug_assert!(size < low.size, "a split leaves something on both sides");
        let rest = Block { address: low.address + size, size: low.size - size, prev: Some(index), ..low };
        let rest_index = self.insert(rest);
        if let Some(next) = low.next {
            self[next].prev = Some(rest_index);
        }
        let low = &mut self[index];
        low.size = size;
        low.next = Some(rest_index);
        rest_index
    }

    /// Joins a block with the one above it, which is gone afterwards.
    pub(crate) fn merge_next(&mut self, index: BlockIndex) {
        let next_index = self[index].next.expect("only a block with a neighbor above is merged upward");
        let next = self[next_index];
        debug_assert_eq!(self[index].address + self[index].size, next.address, "neighbors touch");
        self.remove(next_index);
        if let Some(after) = next.next {
            self[after].prev = Some(index);
        }
        let block = &mut self[index];
        block.size += next.size;
        block.next = next.next;
    }
}
