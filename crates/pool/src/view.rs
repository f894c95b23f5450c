//! A view of the pool: its segments and blocks in address order.

use vramscope_trace::{PoolKey, SiteId, StreamId};

use crate::block::BlockState;
use crate::device::Device;
use crate::index::BlockIndex;
use crate::pool::Pool;

/// A segment of the pool, or a mapped range of an expandable one, and its blocks, as
/// [`Pool::segments`] returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// First address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// The stream whose requests its blocks serve.
    pub stream: StreamId,
    /// The size class and owner of the pool that it belongs to.
    pub pool: PoolKey,
    /// True for a mapped range of an expandable segment. Each contiguous mapped range is a
    /// `SegmentView` of its own.
    pub expandable: bool,
    /// The site of the request that the segment was obtained for.
    pub site: SiteId,
    /// The blocks in address order. Together they cover the segment.
    pub blocks: Vec<BlockView>,
}

/// A block of a [`SegmentView`]: its address, size, state, request and site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockView {
    /// First address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Free, allocated or pending free.
    pub state: BlockState,
    /// Bytes that the program requested; 0 for a free block.
    pub requested: u64,
    /// The site of the request; `SiteId(0)` for a free block.
    pub site: SiteId,
}

impl<D: Device> Pool<D> {
    /// Returns a copy of all segments with their blocks, in address order; of expandable segments,
    /// each contiguous mapped range by itself.
    pub fn segments(&self) -> Vec<SegmentView> {
        let mut views: Vec<SegmentView> = Vec::with_capacity(self.segments.len());
        for segment in self.segments.values() {
            let stream_pool = &self.pools[segment.stream_pool];
            let mut after_gap = true;
            for index in self.blocks.iter_from(segment.first) {
                let block = &self.blocks[index];
                if !block.mapped {
                    after_gap = true;
                    continue;
                }
                if after_gap {
                    views.push(SegmentView {
                        address: block.address,
                        size: 0,
                        stream: stream_pool.stream,
                        pool: stream_pool.key,
                        expandable: segment.page_bytes.is_some(),
                        site: segment.site,
                        blocks: Vec::new(),
                    });
                    after_gap = false;
                }
                if let Some(range) = views.last_mut() {
                    range.size += block.size;
                    range.blocks.push(self.block_view(index));
                }
            }
        }
        views
    }

    /// Returns a copy of a block's public data; a free block has no requested size and no site.
    fn block_view(&self, index: BlockIndex) -> BlockView {
        let block = &self.blocks[index];
        let (requested, site) = match block.state {
            BlockState::Free => (0, SiteId(0)),
            BlockState::Allocated | BlockState::PendingFree => (block.requested, block.site),
        };
        BlockView { address: block.address, size: block.size, state: block.state, requested, site }
    }
}
