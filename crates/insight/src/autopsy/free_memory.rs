//! What was free when a request failed, and for whom.

use vramscope_trace::{DeviceState, MempoolId, PoolKey, StreamId};

/// Free memory at a failure, by what a request of one pool and stream can do with it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeMemory {
    /// Free in the request's pool and stream.
    pub own_bytes: u64,
    /// The largest free block of these.
    pub own_largest_bytes: u64,
    /// Free in default pools for other streams.
    pub other_stream_bytes: u64,
    /// The largest free block of these.
    pub other_stream_largest_bytes: u64,
    /// Free in private pools.
    pub private_bytes: u64,
    /// The largest free block of these.
    pub private_largest_bytes: u64,
    /// Ordinary segments of default pools that are free as a whole: the allocator releases them
    /// before it gives up.
    pub releasable_bytes: u64,
    /// Blocks that the program freed and that another stream may still use.
    pub pending_bytes: u64,
    /// The largest range of the request's pool and stream that is free or pending free, if a
    /// pending block is part of it.
    pub with_pending_largest_bytes: u64,
}

impl FreeMemory {
    /// Reads the free memory of a device for a request of the default pool `pool` on `stream`. The
    /// cost is linear in the number of segments and blocks.
    pub(super) fn read(device: &DeviceState, pool: PoolKey, stream: StreamId) -> Self {
        let mut free = Self::default();
        for segment in device.segments() {
            let is_own = (segment.pool, segment.stream) == (pool, stream);
            let is_private = segment.pool.owner != MempoolId::default();
            let is_other_size = !is_own && !is_private && segment.stream == stream;
            let (mut range_bytes, mut range_is_pending) = (0u64, false);
            for extent in device.extents(segment) {
                match extent.block {
                    None => {
                        if !is_other_size {
                            free.add(extent.size, is_own, is_private);
                        }
                        if extent.size == segment.size && !is_private && !segment.expandable {
                            free.releasable_bytes = free.releasable_bytes.saturating_add(extent.size);
                        }
                        range_bytes = range_bytes.saturating_add(extent.size);
                    }
                    Some(block) if block.pending_free => {
                        free.pending_bytes = free.pending_bytes.saturating_add(extent.size);
                        range_bytes = range_bytes.saturating_add(extent.size);
                        range_is_pending = true;
                    }
                    Some(_) => (range_bytes, range_is_pending) = (0, false),
                }
                if is_own && range_is_pending {
                    free.with_pending_largest_bytes = free.with_pending_largest_bytes.max(range_bytes);
                }
            }
        }
        free
    }

    /// Adds a free block.
    fn add(&mut self, bytes: u64, is_own: bool, is_private: bool) {
        let (sum, largest) = match (is_own, is_private) {
            (true, _) => (&mut self.own_bytes, &mut self.own_largest_bytes),
            (false, true) => (&mut self.private_bytes, &mut self.private_largest_bytes),
            (false, false) => (&mut self.other_stream_bytes, &mut self.other_stream_largest_bytes),
        };
        *sum = sum.saturating_add(bytes);
        *largest = (*largest).max(bytes);
    }
}
