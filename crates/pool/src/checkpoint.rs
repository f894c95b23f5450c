//! Checkpoint: gives a private pool back the blocks that it had at an earlier moment.
//!
//! `torch.compile` does so before it records a graph that follows another one. PyTorch first frees
//! the pool's blocks, then fills each segment with blocks in address order, not by best fit, and
//! frees the blocks that were free at the earlier moment. Here the caller makes these frees.

use vramscope_trace::{MempoolId, Sink};

use crate::device::Device;
use crate::pool::{Origin, Pool};
use crate::request::Request;

impl<D: Device> Pool<D> {
    /// Returns the size of the segment that begins at `address` in bytes, if it is a private pool's
    /// and has no block in use; `None` for others, and for an expandable segment with unmapped
    /// pages.
    pub(crate) fn unused_private_segment_bytes(&self, address: u64) -> Option<u64> {
        let (start, segment) = self.segment_containing(address)?;
        let is_private = self.pools[segment.stream_pool].key.owner != MempoolId::default();
        let first = &self.blocks[segment.first];
        (is_private && start == address && first.is_free() && !first.is_split()).then_some(first.size)
    }

    /// Fills an unused segment of a private pool, which begins at `address`, with blocks of
    /// `sizes`, in bytes, from its first address on.
    ///
    /// # Panics
    /// Panics if there is no such segment, or if the sizes do not add up to its size.
    pub(crate) fn fill_segment(
        &mut self,
        address: u64,
        sizes: &[u64],
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) {
        let free_bytes = self.unused_private_segment_bytes(address);
        assert_eq!(free_bytes, Some(sizes.iter().sum()), "the blocks fill the segment");
        let Some((_, segment)) = self.segment_containing(address) else { return };
        let (stream_pool, mut index) = (segment.stream_pool, segment.first);
        let (block_pool, stream) = (self.pools[stream_pool].block_pool, self.pools[stream_pool].stream);
        for &size in sizes {
            let block = &self.blocks[index];
            let (free_size, block_address, expandable) = (block.size, block.address, block.expandable);
            self.pools[stream_pool].free.remove(free_size, block_address, index);
            let request = Request { requested: size, size, stream, block_pool, stream_pool, expandable };
            self.allocate_or_split(index, &request, |_, _, rest| rest > 0, origin, sink);
            self.live.insert(block_address, index);
            if let Some(next) = self.blocks[index].next {
                index = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{DeviceId, EventKind, MemorySink, StreamId};

    use super::*;
    use crate::{CaptureFilter, Settings, SimulatedDevice};

    const MIB: u64 = 1 << 20;

    /// Returns a pool whose private pool has free segments of 2 MiB, and of 20 MiB; and the
    /// addresses of both.
    fn pool_with_free_segments() -> (Pool<SimulatedDevice>, [u64; 2]) {
        let mut pool = Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(1 << 30));
        let (origin, sink, id) = (Origin::default(), &mut MemorySink::default(), MempoolId(0, 1));
        pool.create_pool(id).expect("the pool is new");
        pool.begin_allocate_to_pool(id, CaptureFilter::AllStreams).expect("the pool is not selected");
        let addresses = [1000, 5 * MIB].map(|bytes| {
            let block = pool.allocate(bytes, StreamId(0), origin, sink).expect("the device has memory");
            block.expect("the request is not empty").address
        });
        pool.end_allocate_to_pool(id).expect("the pool is selected");
        for address in addresses {
            pool.free(address, origin, sink).expect("the block is allocated");
        }
        (pool, addresses)
    }

    #[test]
    fn segment_is_filled_with_blocks_in_order() {
        // A large request would not split off less than 1 MiB.
        for (segment, sizes) in [(0, &[512, MIB, MIB - 512][..]), (1, &[19 * MIB, MIB - 512, 512]), (1, &[20 * MIB])] {
            let (mut pool, addresses) = pool_with_free_segments();
            let (before, mut sink) = (pool.stats(), MemorySink::default());
            assert_eq!(pool.unused_private_segment_bytes(addresses[segment] + 512), None);
            pool.fill_segment(addresses[segment], sizes, Origin::default(), &mut sink);
            let mut next_address = addresses[segment];
            for (event, &bytes) in sink.events.iter().zip(sizes) {
                let EventKind::BlockAllocated { address, size, requested, .. } = event.kind else {
                    panic!("{event:?}")
                };
                assert_eq!((address, size, requested), (next_address, bytes, bytes));
                next_address += bytes;
            }
            assert_eq!(sink.events.len(), sizes.len());
            assert_eq!(pool.unused_private_segment_bytes(addresses[segment]), None);
            for event in sink.events.clone() {
                let EventKind::BlockAllocated { address, .. } = event.kind else { continue };
                pool.free(address, Origin::default(), &mut sink).expect("the block is allocated");
            }
            assert_eq!(pool.unused_private_segment_bytes(addresses[segment]), Some(sizes.iter().sum()));
            assert_eq!(pool.stats().inactive_split.all.current, before.inactive_split.all.current);
            assert_eq!(pool.stats().active_bytes.all.current, before.active_bytes.all.current);
        }
    }
}
