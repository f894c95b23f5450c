//! Blocks: every byte of a segment belongs to exactly one block, and the blocks of a segment form a
//! linked list in address order.

use std::ops::{Index, IndexMut};

use vramscope_trace::SiteId;

use crate::index::{BlockIndex, StreamPoolIndex};

/// The state of a block (a contiguous part of a segment): free, held by the program, or freed while
/// another stream still uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockState {
    /// Free: a request may be served from it. PyTorch calls this state `inactive`.
    #[default]
    Free,
    /// Held by the program. PyTorch calls this state `active_allocated`.
    Allocated,
    /// Freed by the program, but another stream may still use it. PyTorch calls this state
    /// `active_pending_free`.
    PendingFree,
}

/// A contiguous part of a segment: allocated, pending free, free, or without physical memory
/// (unmapped).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// Bytes that the program requested; meaningless for a free block.
    pub(crate) requested: u64,
    /// The number of searches that its block pool had counted when the block became free. Its age,
    /// for garbage collection, is the number of searches since then.
    pub(crate) free_since: u64,
    /// The block directly below it in its segment; `None` for the lowest.
    pub(crate) prev: Option<BlockIndex>,
    /// The block directly above it in its segment; `None` for the highest.
    pub(crate) next: Option<BlockIndex>,
    /// The stream pool whose requests it serves.
    pub(crate) stream_pool: StreamPoolIndex,
    pub(crate) site: SiteId,
    pub(crate) state: BlockState,
    /// Whether physical memory is mapped; always true outside of expandable segments.
    pub(crate) mapped: bool,
    /// Whether its segment is expandable.
    pub(crate) expandable: bool,
    /// Whether streams other than its own have used it since it was allocated.
    pub(crate) has_stream_uses: bool,
}

impl Block {
    /// Returns true if the block's segment also has other blocks; false if the block spans its
    /// segment.
    #[inline]
    pub(crate) fn is_split(&self) -> bool {
        self.prev.is_some() || self.next.is_some()
    }

    /// Returns the first address after the block.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.address + self.size
    }

    /// Returns true if the block can be allocated or released; false if it is allocated, pending
    /// free, or has no physical memory (unmapped).
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.mapped && self.state == BlockState::Free
    }
}

/// The arena of all blocks of a pool, with every block linked to its neighbors in the segment. A
/// new block may get the index of a removed one.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// Element 0 is unused, because a [`BlockIndex`] is never 0.
    arena: Vec<Block>,
    /// Indices of removed blocks, for new blocks to use.
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
        &self.arena[index.get()]
    }
}

impl IndexMut<BlockIndex> for Blocks {
    #[inline]
    fn index_mut(&mut self, index: BlockIndex) -> &mut Block {
        &mut self.arena[index.get()]
    }
}

impl Blocks {
    /// Adds a block to the arena and returns its index; does not link it to other blocks.
    #[inline]
    pub(crate) fn insert(&mut self, block: Block) -> BlockIndex {
        if let Some(index) = self.vacant.pop() {
            self[index] = block;
            return index;
        }
        let index = BlockIndex::new(self.arena.len());
        self.arena.push(block);
        index.expect("2^32 blocks of 64 bytes do not fit in a process's memory")
    }

    /// Removes the block at `index`, which the next inserted block may get. Does not change the
    /// links of the removed block's neighbors.
    #[inline]
    pub(crate) fn remove(&mut self, index: BlockIndex) {
        self.vacant.push(index);
    }

    /// Splits a block after its first `size` bytes, fewer than it has, and returns the index of the
    /// upper part. The lower part keeps the index, so that the index of a segment's first block
    /// never changes.
    #[inline]
    pub(crate) fn split(&mut self, index: BlockIndex, size: u64) -> BlockIndex {
        // Fields are copied one by one: copying a whole block right after its fields were written
        // takes ten times as long, because the wide load waits for the narrow stores to reach the
        // cache.
        let &Block { address, size: whole, next, stream_pool, site, state, mapped, expandable, free_since, .. } =
            &self[index];
        debug_assert!(size < whole, "a split leaves bytes in both parts");
        let rest_index = self.insert(Block {
            address: address + size,
            size: whole - size,
            requested: 0,
            free_since,
            prev: Some(index),
            next,
            stream_pool,
            site,
            state,
            mapped,
            expandable,
            has_stream_uses: false,
        });
        if let Some(next) = next {
            self[next].prev = Some(rest_index);
        }
        let low = &mut self[index];
        low.size = size;
        low.next = Some(rest_index);
        rest_index
    }

    /// Merges a block with the block above it, whose index becomes vacant.
    ///
    /// # Panics
    /// Panics if there is no block above it.
    #[inline]
    pub(crate) fn merge_next(&mut self, index: BlockIndex) {
        let next_index = self[index].next.expect("only a block with a neighbor above is merged upward");
        let &Block { address, size, next: after, .. } = &self[next_index];
        debug_assert_eq!(self[index].end(), address, "neighbors are adjacent");
        self.remove(next_index);
        if let Some(after) = after {
            self[after].prev = Some(index);
        }
        let block = &mut self[index];
        block.size += size;
        block.next = after;
    }

    /// Iterates over the indices of the block `first` and of all blocks above it in its segment, in
    /// address order.
    pub(crate) fn iter_from(&self, first: BlockIndex) -> impl Iterator<Item = BlockIndex> + '_ {
        std::iter::successors(Some(first), |&index| self[index].next)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the index of the `n`th block.
    pub(crate) fn block_index(n: usize) -> BlockIndex {
        BlockIndex::new(n + 1).expect("tests use few blocks")
    }

    #[test]
    fn block_fits_in_a_cache_line() {
        assert!(size_of::<Block>() <= 64);
    }
}
