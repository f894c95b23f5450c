//! Restores a pool from the memory state of a recording.

use vramscope_trace::{DeviceId, DeviceState, Extent, Segment as RecordedSegment};

use crate::block::BlockState;
use crate::device::{Device, DeviceError, DeviceResult, StreamEvent};
use crate::index::{BlockIndex, BlockPoolIndex, StreamPoolIndex};
use crate::pool::{Origin, Pool};
use crate::settings::Settings;

impl<D: Device> Pool<D> {
    /// Creates a pool with the segments and blocks of `state`, on a device that already counts
    /// their memory as reserved.
    ///
    /// Peaks start at the current values and sums at 0. Free blocks count as just freed, because a
    /// recording does not contain their age. Each private pool gets one user.
    ///
    /// A recording contains only the mapped ranges of expandable segments: ranges of one stream and
    /// pool without another segment in between become one segment, which begins at the lowest
    /// range. A pending free waits for a stream event on a stream of its own; the block's address
    /// is the number of the event and the id of the stream.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if no pool can have this state: overlapping segments, blocks outside
    /// of segments, or expandable ranges that are not whole pages.
    pub fn restore(id: DeviceId, settings: Settings, device: D, state: &DeviceState) -> Result<Self, DeviceError> {
        let mut pool = Self::new(id, settings, device);
        let mut recorded = state.segments().peekable();
        while let Some(segment) = recorded.next() {
            let origin = Origin { site: segment.site, time_ns: 0 };
            let stream_pool = pool.restore_stream_pool(segment);
            if !segment.expandable {
                pool.check_range(segment.address, segment.size)?;
                let first = pool.insert_segment(segment.address, segment.size, None, stream_pool, origin);
                pool.counters.segment.increase(segment.pool.kind, 1);
                if pool.settings.max_split_size_bytes.is_some_and(|max| segment.size >= max) {
                    pool.counters.oversize_segments.increase(1);
                }
                pool.restore_blocks(state, segment, first);
                continue;
            }
            let continues_segment = |other: &RecordedSegment| {
                other.expandable && other.stream == segment.stream && other.pool == segment.pool
            };
            let mut ranges = vec![segment];
            while let Some(range) = recorded.next_if(|other| continues_segment(other)) {
                ranges.push(range);
            }
            let end = recorded.peek().map(|other| other.address);
            pool.restore_expandable(state, &ranges, end, stream_pool)?;
        }
        pool.counters.start_at_current();
        Ok(pool)
    }

    /// Returns the stream pool that a recorded segment belongs to, creating its private pool if it
    /// does not exist.
    fn restore_stream_pool(&mut self, segment: &RecordedSegment) -> StreamPoolIndex {
        let owner = segment.pool.owner;
        if owner != Default::default() && self.private_pools.block_pool(owner, segment.pool.kind).is_err() {
            let created = self.create_pool(owner);
            debug_assert!(created.is_ok(), "a private pool that does not exist can be created");
        }
        let block_pool = self.private_pools.block_pool(owner, segment.pool.kind);
        self.pools.stream_pool(block_pool.unwrap_or(BlockPoolIndex::default_of(segment.pool.kind)), segment.stream)
    }

    /// Restores one expandable segment from its recorded mapped `ranges`. Its address range ends at
    /// the latest at `end`, the address of the next segment; `None` if there is no next segment.
    fn restore_expandable(
        &mut self,
        state: &DeviceState,
        ranges: &[&RecordedSegment],
        end: Option<u64>,
        stream_pool: StreamPoolIndex,
    ) -> DeviceResult {
        let (first, last) = (ranges[0], ranges[ranges.len() - 1]);
        let start = first.address;
        let (wanted_bytes, page_bytes) = self.expandable_range(first.pool.kind, last.end() - start);
        let is_paged = |range: &&RecordedSegment| {
            (range.address - start).is_multiple_of(page_bytes) && range.size.is_multiple_of(page_bytes)
        };
        if let Some(range) = ranges.iter().find(|range| !is_paged(range)) {
            return Err(DeviceError::Failed(format!(
                "the expandable segment at {:#x} of {} bytes is not a whole number of pages of {page_bytes} bytes",
                range.address, range.size
            )));
        }
        // The address range must end before the next segment.
        let max_bytes = end.map_or(wanted_bytes, |end| (end - start) / page_bytes * page_bytes);
        let bytes = wanted_bytes.min(max_bytes);
        self.check_range(start, bytes)?;
        let origin = Origin { site: first.site, time_ns: 0 };
        let mut index = self.insert_segment(start, bytes, Some(page_bytes), stream_pool, origin);
        for range in ranges {
            let block = self.blocks[index];
            if block.address < range.address {
                let next = self.blocks.split(index, range.address - block.address);
                self.pools[stream_pool].unmapped.insert(block.address, index);
                index = next;
            }
            let rest = (range.size < self.blocks[index].size).then(|| self.blocks.split(index, range.size));
            self.blocks[index].mapped = true;
            self.restore_blocks(state, range, index);
            let Some(rest) = rest else { return Ok(()) };
            index = rest;
        }
        self.pools[stream_pool].unmapped.insert(self.blocks[index].address, index);
        Ok(())
    }

    /// Splits the mapped block `first`, which spans the recorded `segment`, into the blocks that
    /// the segment has in `state`.
    fn restore_blocks(&mut self, state: &DeviceState, segment: &RecordedSegment, first: BlockIndex) {
        self.counters.reserved_bytes.increase(segment.pool.kind, segment.size);
        let mut index = first;
        let mut extents = state.extents(segment).peekable();
        while let Some(extent) = extents.next() {
            let rest = extents.peek().map(|_| self.blocks.split(index, extent.size));
            self.restore_block(&extent, index);
            index = rest.unwrap_or(index);
        }
        // Whether a block is split is known only after all blocks exist.
        let kind = segment.pool.kind;
        let free: Vec<BlockIndex> =
            self.blocks.iter_from(first).take_while(|&index| self.blocks[index].mapped).collect();
        for index in free {
            let block = &self.blocks[index];
            if block.is_free() && block.is_split() && !block.expandable {
                self.counters.inactive_split.increase(kind, 1);
                self.counters.inactive_split_bytes.increase(kind, block.size);
            }
        }
    }

    /// Gives the block `index` the state of the recorded block or free range `extent`: allocated,
    /// pending free, or free.
    fn restore_block(&mut self, extent: &Extent<'_>, index: BlockIndex) {
        let stream_pool = self.blocks[index].stream_pool;
        let Some(recorded) = extent.block else {
            self.pools[stream_pool].insert(&self.blocks[index], index);
            return;
        };
        let kind = self.pools[stream_pool].key.kind;
        let block = &mut self.blocks[index];
        (block.requested, block.site) = (recorded.requested, recorded.site);
        block.state = if recorded.pending_free { BlockState::PendingFree } else { BlockState::Allocated };
        let (address, size) = (block.address, block.size);
        self.counters.block_allocated(kind, size, recorded.requested);
        if recorded.pending_free {
            self.counters.track_active_separately();
            self.counters.free_requested(kind, size);
            self.restore_pending(index, vramscope_trace::StreamId(address), StreamEvent(address));
            return;
        }
        self.live.insert(address, index);
        if self.settings.max_split_size_bytes.is_some_and(|max| size >= max) {
            self.counters.oversize_allocations.increase(1);
        }
    }
}
