//! Reading the pool: its segments and blocks in address order.

use vramscope_trace::{Pool as PoolKey, SiteId, StreamId};

use crate::block::{BlockIndex, BlockState};
use crate::device::Device;
use crate::error::FreeError;
use crate::pool::Pool;

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
    /// Whether it is a mapped range of an expandable segment; each such range that touches no other is listed by itself.
    pub expandable: bool,
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
    /// What it is doing.
    pub state: BlockState,
    /// Bytes that the program asked for; 0 where nobody uses it.
    pub requested: u64,
    /// Where the request came from; unknown where nobody uses it.
    pub site: SiteId,
}

impl<D: Device> Pool<D> {
    /// The segments in address order.
    pub fn segments(&self) -> Vec<LaidSegment> {
        let mut laid: Vec<LaidSegment> = Vec::with_capacity(self.segments.len());
        for segment in self.segments.values() {
            let home = &self.homes[segment.home];
            let mut after_gap = true;
            for index in self.blocks.from(segment.first) {
                let block = &self.blocks[index];
                if !block.mapped {
                    after_gap = true;
                    continue;
                }
                if after_gap {
                    laid.push(LaidSegment {
                        address: block.address,
                        size: 0,
                        stream: home.stream,
                        pool: home.key,
                        expandable: segment.page_bytes.is_some(),
                        site: segment.site,
                        blocks: Vec::new(),
                    });
                    after_gap = false;
                }
                if let Some(range) = laid.last_mut() {
                    range.size += block.size;
                    range.blocks.push(self.lay(index));
                }
            }
        }
        laid
    }

    fn lay(&self, index: BlockIndex) -> LaidBlock {
        let block = &self.blocks[index];
        let (requested, site) = match block.state {
            BlockState::Inactive => (0, SiteId(0)),
            BlockState::Active | BlockState::PendingFree => (block.requested, block.site),
        };
        LaidBlock { address: block.address, size: block.size, state: block.state, requested, site }
    }

    /// What is wrong with freeing `address`, which is not the first of a live block.
    #[cold]
    pub(crate) fn why_not_live(&self, address: u64) -> FreeError {
        let Some((_, segment)) = self.segment_of(address) else { return FreeError::Foreign { address } };
        let below = self.blocks.from(segment.first).map(|index| &self.blocks[index]);
        match below.take_while(|block| block.address <= address).last() {
            Some(block) if block.state == BlockState::Active => {
                FreeError::InsideBlock { address, block: block.address }
            }
            Some(block) if !block.mapped => FreeError::Foreign { address },
            _ => FreeError::NotLive { address },
        }
    }
}
