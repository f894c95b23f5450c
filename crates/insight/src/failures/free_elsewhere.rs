//! Free memory that a failed request could not use.

use vramscope_trace::{DeviceState, FreeSpace, MempoolId, PoolKey, StreamId};

/// Free memory outside of a request's pool and stream, by what keeps the request from using it.
/// Together with the free memory of the request's pool and stream, this is all free memory in
/// segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeElsewhere {
    /// Free in the default pool of the request's size class, for other streams.
    pub other_streams: FreeSpace,
    /// Free in private pools of the request's size class.
    pub private_pools: FreeSpace,
    /// Free in pools of the other size class: small blocks for a large request, or the reverse.
    pub other_size_class: FreeSpace,
    /// Blocks that the program freed and that another stream may still use.
    pub pending: FreeSpace,
    /// Ordinary segments of default pools that are free as a whole: the allocator releases them
    /// before it gives up.
    pub releasable_bytes: u64,
    /// The largest range that is free or pending free and contains a pending block, in the
    /// request's pool and stream or in a private pool.
    pub with_pending_largest_bytes: u64,
}

impl FreeElsewhere {
    /// Reads the free memory of a device for a request of the default pool `pool` on `stream`. The
    /// cost is linear in the number of segments and blocks.
    pub(super) fn read(device: &DeviceState, pool: PoolKey, stream: StreamId) -> Self {
        let mut free = Self::default();
        for segment in device.segments() {
            let is_own = (segment.pool, segment.stream) == (pool, stream);
            let is_private = segment.pool.owner != MempoolId::default();
            let (mut range_bytes, mut range_is_pending) = (0u64, false);
            for extent in device.extents(segment) {
                match extent.block {
                    None => {
                        if !is_own {
                            let space = match (segment.pool.kind == pool.kind, is_private) {
                                (false, _) => &mut free.other_size_class,
                                (true, true) => &mut free.private_pools,
                                (true, false) => &mut free.other_streams,
                            };
                            add_free_block(space, extent.size);
                        }
                        if extent.size == segment.size && !is_private && !segment.expandable {
                            free.releasable_bytes = free.releasable_bytes.saturating_add(extent.size);
                        }
                        range_bytes = range_bytes.saturating_add(extent.size);
                    }
                    Some(block) if block.pending_free => {
                        add_free_block(&mut free.pending, extent.size);
                        range_bytes = range_bytes.saturating_add(extent.size);
                        range_is_pending = true;
                    }
                    Some(_) => (range_bytes, range_is_pending) = (0, false),
                }
                if (is_own || is_private) && range_is_pending {
                    free.with_pending_largest_bytes = free.with_pending_largest_bytes.max(range_bytes);
                }
            }
        }
        free
    }
}

/// Adds a free block of `bytes` bytes to `space`.
fn add_free_block(space: &mut FreeSpace, bytes: u64) {
    space.total = space.total.saturating_add(bytes);
    space.largest = space.largest.max(bytes);
    space.blocks += 1;
}
