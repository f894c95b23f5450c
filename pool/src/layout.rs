//! Reading the pool: its segments and blocks in address order.

use vramscope_trace::{Pool as PoolKey, SiteId, StreamId};

use crate::block::BlockIndex;
use crate::device::Device;
use crate::error::FreeError;
use crate::pool::{Pool, Segment};

/// A segment and what lies in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaidSegment {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The stream whose blocks it serves.
    pub stream: StreamId,
    /// The pool it belongs to.
    pub pool: PoolKey,
    /// Where the request that made it came from.
    pub site: SiteId,
    /// Its blocks in address order; together they are the whole segment.
    pub blocks: Vec<LaidBlock>,
}

/// A block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaidBlock {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Whether the program has it.
    pub allocated: bool,
    /// Bytes that the program asked for; 0 where it is free.
    pub requested: u64,
    /// Where the request came from; unknown where it is free.
    pub site: SiteId,
}

impl<D: Device> Pool<D> {
    /// The segments in address order.
    pub fn segments(&self) -> impl Iterator<Item = LaidSegment> + '_ {
        self.segments.iter().map(|(&address, segment)| {
            let &Segment { size, stream, pool, site, first } = segment;
            let blocks = self.blocks_from(first).map(|index| self.lay(index)).collect();
            LaidSegment { address, size, stream, pool: self.block_pools[pool.place()].key, site, blocks }
        })
    }

    fn blocks_from(&self, first: BlockIndex) -> impl Iterator<Item = BlockIndex> + '_ {
        std::iter::successors(Some(first), |&index| self.blocks[index].next)
    }

    fn lay(&self, index: BlockIndex) -> LaidBlock {
        let block = &self.blocks[index];
        let (requested, site) = if block.allocated { (block.requested, block.site) } else { (0, SiteId(0)) };
        LaidBlock { address: block.address, size: block.size, allocated: block.allocated, requested, site }
    }

    /// What is wrong with freeing `address`, which is not the first of a live block.
    pub(crate) fn why_not_freed(&self, address: u64) -> FreeError {
        let segment =
            self.segments.range(..=address).next_back().filter(|(start, segment)| address - **start < segment.size);
        let Some((_, segment)) = segment else { return FreeError::Foreign { address } };
        let holder = self
            .blocks_from(segment.first)
            .map(|index| &self.blocks[index])
            .take_while(|block| block.address <= address)
            .last();
        match holder {
            Some(block) if block.allocated => FreeError::InsideBlock { address, block: block.address },
            _ => FreeError::NotLive { address },
        }
    }
}
