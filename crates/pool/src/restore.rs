//! A pool that goes on from where a recording's memory stands.

use vramscope_trace::{DeviceId, DeviceState, Extent, Segment as RecordedSegment};

use crate::block::{BlockIndex, BlockState};
use crate::device::{Device, DeviceError, StreamEvent};
use crate::home::{BlockPoolIndex, HomeIndex};
use crate::pool::{Origin, Pool};
use crate::settings::Settings;

impl<D: Device> Pool<D> {
    /// A pool with the segments and blocks of `state`, on a device that already counts them as given. Peaks begin at what there is,
    /// sums at 0; free blocks count as just freed, since their age is not known. Private pools have one user each.
    ///
    /// Of expandable segments only the mapped ranges are known: all of one stream and pool are taken to be of one segment, which begins at the
    /// lowest. A block that was freed and is still in use counts as used by a stream of its own, by the number of its address, and waits
    /// for the event of that number.
    ///
    /// # Errors
    /// When the state is none that a pool can be in: segments that overlap, blocks outside of them, expandable ranges that are not pages.
    pub fn restore(id: DeviceId, settings: Settings, device: D, state: &DeviceState) -> Result<Self, DeviceError> {
        let mut pool = Self::new(id, settings, device);
        let mut recorded = state.segments().peekable();
        while let Some(segment) = recorded.next() {
            let origin = Origin { site: segment.site, time_ns: 0 };
            let home = pool.restore_home(segment);
            if !segment.expandable {
                pool.check_range(segment.address, segment.size)?;
                let first = pool.insert_segment(segment.address, segment.size, None, home, origin);
                pool.counters.segment.increase(segment.pool.kind, 1);
                if pool.settings.max_split_size.is_some_and(|max| segment.size >= max) {
                    pool.counters.oversize_segments.increase(1);
                }
                pool.restore_blocks(state, segment, first);
                continue;
            }
            let is_same = |other: &RecordedSegment| {
                other.expandable && other.stream == segment.stream && other.pool == segment.pool
            };
            let mut ranges = vec![segment];
            while let Some(range) = recorded.next_if(|other| is_same(other)) {
                ranges.push(range);
            }
            let end = recorded.peek().map(|other| other.address);
            pool.restore_expandable(state, &ranges, end, home)?;
        }
        pool.counters.begin_at_current();
        Ok(pool)
    }

    fn restore_home(&mut self, segment: &RecordedSegment) -> HomeIndex {
        let owner = segment.pool.owner;
        if owner != Default::default() && self.mempools.used_pool(owner, segment.pool.kind).is_err() {
            let created = self.create_pool(owner);
            debug_assert!(created.is_ok(), "a pool that is not there can be made");
        }
        let pool = self.mempools.used_pool(owner, segment.pool.kind);
        self.homes.of(pool.unwrap_or(BlockPoolIndex::default_of(segment.pool.kind)), segment.stream)
    }

    fn restore_expandable(
        &mut self,
        state: &DeviceState,
        ranges: &[&RecordedSegment],
        end: Option<u64>,
        home: HomeIndex,
    ) -> Result<(), DeviceError> {
        let (first, last) = (ranges[0], ranges[ranges.len() - 1]);
        let start = first.address;
        let (wished, page_bytes) = self.extent(first.pool.kind, last.end() - start);
        let is_paged = |range: &&RecordedSegment| {
            (range.address - start).is_multiple_of(page_bytes) && range.size.is_multiple_of(page_bytes)
        };
        if let Some(range) = ranges.iter().find(|range| !is_paged(range)) {
            return Err(DeviceError::Failed(format!(
                "the expandable segment at {:#x} of {} bytes is no number of pages of {page_bytes} bytes",
                range.address, range.size
            )));
        }
        // What follows was there first.
        let room = end.map_or(wished, |end| (end - start) / page_bytes * page_bytes);
        let bytes = wished.min(room);
        self.check_range(start, bytes)?;
        let origin = Origin { site: first.site, time_ns: 0 };
        let mut index = self.insert_segment(start, bytes, Some(page_bytes), home, origin);
        for range in ranges {
            let block = self.blocks[index];
            if block.address < range.address {
                let next = self.blocks.split(index, range.address - block.address);
                self.homes[home].unmapped.insert(block.address, index);
                index = next;
            }
            let rest = (range.size < self.blocks[index].size).then(|| self.blocks.split(index, range.size));
            self.blocks[index].mapped = true;
            self.restore_blocks(state, range, index);
            let Some(rest) = rest else { return Ok(()) };
            index = rest;
        }
        self.homes[home].unmapped.insert(self.blocks[index].address, index);
        Ok(())
    }

    /// Cuts a mapped block into the blocks of a recorded segment, which it is the whole of.
    fn restore_blocks(&mut self, state: &DeviceState, segment: &RecordedSegment, first: BlockIndex) {
        self.counters.reserved_bytes.increase(segment.pool.kind, segment.size);
        let mut index = first;
        let mut extents = state.extents(segment).peekable();
        while let Some(extent) = extents.next() {
            let rest = extents.peek().map(|_| self.blocks.split(index, extent.size));
            self.restore_block(&extent, index);
            index = rest.unwrap_or(index);
        }
        // Whether a block is split is known once all are there.
        let kind = segment.pool.kind;
        let free: Vec<BlockIndex> = self.blocks.from(first).take_while(|&index| self.blocks[index].mapped).collect();
        for index in free {
            let block = &self.blocks[index];
            if block.is_free() && block.is_split() && !block.expandable {
                self.counters.inactive_split.increase(kind, 1);
                self.counters.inactive_split_bytes.increase(kind, block.size);
            }
        }
    }

    fn restore_block(&mut self, extent: &Extent<'_>, index: BlockIndex) {
        let home = self.blocks[index].home;
        let Some(recorded) = extent.block else {
            self.homes[home].insert(&self.blocks[index], index);
            return;
        };
        let kind = self.homes[home].key.kind;
        let block = &mut self.blocks[index];
        (block.requested, block.site) = (recorded.requested, recorded.site);
        block.state = if recorded.pending_free { BlockState::PendingFree } else { BlockState::Active };
        let (address, size) = (block.address, block.size);
        self.counters.hand_out(kind, size, recorded.requested);
        if recorded.pending_free {
            self.counters.part_active();
            self.counters.take_back(kind, size);
            self.restore_pending(index, vramscope_trace::StreamId(address), StreamEvent(address));
            return;
        }
        self.live.insert(address, index);
        if self.settings.max_split_size.is_some_and(|max| size >= max) {
            self.counters.oversize_allocations.increase(1);
        }
    }
}
