//! Blocks: every byte of a segment belongs to exactly one, and a segment's blocks are linked in address order.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

use vramscope_trace::SiteId;

use crate::home::HomeIndex;

/// A block's place in the arena; it stays the same while the block exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockIndex(NonZeroU32);

impl BlockIndex {
    fn place(self) -> usize {
        self.0.get() as usize
    }
}

/// What a block is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockState {
    /// Nobody uses it.
    #[default]
    Inactive,
    /// The program has it.
    Active,
    /// The program freed it, and a stream still uses it.
    PendingFree,
}

/// A stretch of a segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// What the program asked for; meaningless while free.
    pub(crate) requested: u64,
    /// How many look-ups its pool had seen when it became free: the rest is its age.
    pub(crate) free_since: u64,
    /// The block below it in the same segment.
    pub(crate) prev: Option<BlockIndex>,
    /// The block above it.
    pub(crate) next: Option<BlockIndex>,
    /// The pool and stream whose requests it serves.
    pub(crate) home: HomeIndex,
    pub(crate) site: SiteId,
    pub(crate) state: BlockState,
    /// Whether there is memory behind its addresses; always so outside of expandable segments.
    pub(crate) mapped: bool,
    /// Whether its segment is an expandable one.
    pub(crate) expandable: bool,
    /// Whether other streams than its own have used it.
    pub(crate) is_shared: bool,
}

impl Block {
    /// Whether it shares its segment with another block.
    pub(crate) fn is_split(&self) -> bool {
        self.prev.is_some() || self.next.is_some()
    }

    /// The first address behind it.
    pub(crate) fn end(&self) -> u64 {
        self.address + self.size
    }

    /// Whether it is free memory that can be handed out or given back.
    pub(crate) fn is_free(&self) -> bool {
        self.mapped && self.state == BlockState::Inactive
    }
}

/// All blocks of a pool. Places of blocks that are gone are used again.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// The first place is nobody's, so that an index is a place as it is.
    arena: Vec<Block>,
    vacant: Vec<BlockIndex>,
}

impl Default for Blocks {
    fn default() -> Self {
        Self { arena: vec![Block::default()], vacant: Vec::new() }
    }
}

impl Index<BlockIndex> for Blocks {
    type Output = Block;
    #[inline]
    fn index(&self, index: BlockIndex) -> &Block {
        &self.arena[index.place()]
    }
}

impl IndexMut<BlockIndex> for Blocks {
    #[inline]
    fn index_mut(&mut self, index: BlockIndex) -> &mut Block {
        &mut self.arena[index.place()]
    }
}

impl Blocks {
    #[inline]
    pub(crate) fn insert(&mut self, block: Block) -> BlockIndex {
        if let Some(index) = self.vacant.pop() {
            self[index] = block;
            return index;
        }
        let place = u32::try_from(self.arena.len()).ok().and_then(NonZeroU32::new);
        self.arena.push(block);
        BlockIndex(place.expect("2^32 blocks of 64 bytes do not fit in memory that a program can have"))
    }

    #[inline]
    pub(crate) fn remove(&mut self, index: BlockIndex) {
        self.vacant.push(index);
    }

    /// Cuts a block behind its first `size` bytes. The low part keeps the index, so that a segment's first block is always the same;
    /// returns the rest.
    #[inline]
    pub(crate) fn split(&mut self, index: BlockIndex, size: u64) -> BlockIndex {
        // Field by field: to copy a block as a whole right after its fields were written takes ten times as long, since the
        // processor then has to wait until they are in the cache.
        let &Block { address, size: whole, next, home, site, state, mapped, expandable, free_since, .. } = &self[index];
        debug_assert!(size < whole, "a split leaves something on both sides");
        let rest_index = self.insert(Block {
            address: address + size,
            size: whole - size,
            requested: 0,
            free_since,
            prev: Some(index),
            next,
            home,
            site,
            state,
            mapped,
            expandable,
            is_shared: false,
        });
        if let Some(next) = next {
            self[next].prev = Some(rest_index);
        }
        let low = &mut self[index];
        low.size = size;
        low.next = Some(rest_index);
        rest_index
    }

    /// Joins a block with the one above it, which is gone afterwards.
    #[inline]
    pub(crate) fn merge_next(&mut self, index: BlockIndex) {
        let next_index = self[index].next.expect("only a block with a neighbor above is merged upward");
        let &Block { address, size, next: after, .. } = &self[next_index];
        debug_assert_eq!(self[index].end(), address, "neighbors touch");
        self.remove(next_index);
        if let Some(after) = after {
            self[after].prev = Some(index);
        }
        let block = &mut self[index];
        block.size += size;
        block.next = after;
    }

    /// A block and all those above it in its segment.
    pub(crate) fn from(&self, first: BlockIndex) -> impl Iterator<Item = BlockIndex> + '_ {
        std::iter::successors(Some(first), |&index| self[index].next)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn index_at(place: usize) -> BlockIndex {
        BlockIndex(NonZeroU32::new(place as u32 + 1).expect("few"))
    }

    #[test]
    fn a_block_fits_in_a_cache_line() {
        assert!(size_of::<Block>() <= 64);
    }
}
