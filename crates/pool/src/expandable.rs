//! Expandable segments: a stretch of addresses as long as the device's memory and an eighth, into which memory is mapped in pages.
//!
//! Its blocks tile it like any segment's; those with no memory behind them are whole pages and are kept apart, by address.

use vramscope_trace::{EventKind, PoolKind, Sink};

use crate::block::{Block, BlockIndex, BlockState};
use crate::device::{Device, DeviceError};
use crate::free_blocks::{Fit, FitKey};
use crate::pool::{Origin, Pool, Request, Segment};
use crate::size::SMALL_SEGMENT_BYTES;

/// No device has more memory; keeps the sum with an eighth of it from overflowing.
const MAX_DEVICE_BYTES: u64 = 1 << 50;

impl<D: Device> Pool<D> {
    /// Best fit begins at `fit`, the first free block that holds `request`, which is of an expandable segment.
    ///
    /// While such segments are in use, a block with room to grow counts as large as it can grow, so that the next larger ones are
    /// looked at as long as each can grow to less. While they are not, their blocks are passed over.
    pub(crate) fn expandable_fit(&self, mut fit: Fit, request: &Request) -> Option<Fit> {
        let free = &self.homes[request.home].free;
        let after = |fit: Fit| free.at_or_after(FitKey { address: fit.key.address + 1, ..fit.key });
        if !request.expandable {
            while self.blocks[fit.index].expandable {
                fit = after(fit)?;
            }
            return Some(fit);
        }
        while self.blocks[fit.index].expandable
            && let Some(next) = after(fit)
            && self.size_grown(next.index) < self.size_grown(fit.index)
        {
            fit = next;
        }
        Some(fit)
    }

    /// The size of a block with the unmapped one above it.
    fn size_grown(&self, index: BlockIndex) -> u64 {
        let block = &self.blocks[index];
        let above = block.next.map(|next| &self.blocks[next]).filter(|next| !next.mapped);
        block.size + above.map_or(0, |next| next.size)
    }

    /// A block for `request` out of an expandable segment, by mapping what it lacks. It is in no home.
    ///
    /// # Errors
    /// When the device has no room: what was mapped until then stays, as free memory.
    pub(crate) fn expand(
        &mut self,
        request: &Request,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<Option<BlockIndex>, DeviceError> {
        let size = request.size;
        let mut candidate = match self.find_room(request) {
            Some(index) => index,
            None => self.reserve_addresses(request, origin)?,
        };
        if !self.blocks[candidate].mapped {
            candidate = self.map_front(candidate, size, origin, sink)?;
        }
        while self.blocks[candidate].size < size {
            let lacking = size - self.blocks[candidate].size;
            let Some(next) = self.blocks[candidate].next else { return Ok(None) };
            candidate = self.map_front(next, lacking, origin, sink)?;
        }
        let block = &self.blocks[candidate];
        self.homes[block.home].remove(block, candidate);
        Ok(Some(candidate))
    }

    /// The lowest block from which on enough bytes are free, with or without memory behind them, one of them without.
    fn find_room(&self, request: &Request) -> Option<BlockIndex> {
        let is_unused = |&index: &BlockIndex| self.blocks[index].state == BlockState::Inactive;
        self.homes[request.home].unmapped.values().find_map(|&unmapped| {
            // The free block below, if there is one, is filled up first.
            let first = self.blocks[unmapped].prev.filter(is_unused).unwrap_or(unmapped);
            let mut room = 0;
            for index in self.blocks.from(first).take_while(is_unused) {
                room += self.blocks[index].size;
                if room >= request.size {
                    return Some(first);
                }
            }
            None
        })
    }

    /// A new expandable segment, all of it unmapped.
    fn reserve_addresses(&mut self, request: &Request, origin: Origin) -> Result<BlockIndex, DeviceError> {
        let (bytes, page_bytes) = self.extent(self.kind_of(request.pool), request.size);
        let address = self.device.reserve_addresses(bytes)?;
        if let Err(error) = self.check_range(address, bytes) {
            let _ = self.device.release_addresses(address, bytes);
            return Err(error);
        }
        let first = self.insert_segment(address, bytes, Some(page_bytes), request.home, origin);
        self.homes[request.home].unmapped.insert(address, first);
        Ok(first)
    }

    /// How many bytes of addresses a new expandable segment has that is to hold `at_least` so many, and in pages of how many.
    pub(crate) fn extent(&self, kind: PoolKind, at_least: u64) -> (u64, u64) {
        let page_bytes = match kind {
            PoolKind::Small => SMALL_SEGMENT_BYTES,
            PoolKind::Large => self.settings.large_segment_size,
        };
        let total = self.device.memory().total_bytes.min(MAX_DEVICE_BYTES);
        let bytes = (total + total / 8).max(at_least);
        // A recording may claim segments of any size; no more pages than these have addresses.
        (bytes.checked_next_multiple_of(page_bytes).unwrap_or(u64::MAX / page_bytes * page_bytes), page_bytes)
    }

    /// The segment that holds `address`, by its first address.
    pub(crate) fn segment_of(&self, address: u64) -> Option<(u64, &Segment)> {
        let (&start, segment) = self.segments.range(..=address).next_back()?;
        (address - start < segment.size).then_some((start, segment))
    }

    fn page_bytes(&self, block: &Block) -> (u64, u64) {
        let segment = self.segment_of(block.address);
        let (start, page_bytes) = segment.and_then(|(start, segment)| Some((start, segment.page_bytes?))).unzip();
        (start.unwrap_or(block.address), page_bytes.unwrap_or(SMALL_SEGMENT_BYTES))
    }

    /// Maps the first `bytes` of an unmapped block, or all of it, rounded up to whole pages. Returns the free block that they are part
    /// of now, in its home.
    fn map_front(
        &mut self,
        index: BlockIndex,
        bytes: u64,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<BlockIndex, DeviceError> {
        let Block { address, size, home, .. } = self.blocks[index];
        let (_, page_bytes) = self.page_bytes(&self.blocks[index]);
        let bytes = bytes.min(size).next_multiple_of(page_bytes).min(size);
        self.device.map(address, bytes, page_bytes)?;
        self.homes[home].unmapped.remove(&address);
        if bytes < size {
            let rest = self.blocks.split(index, bytes);
            self.homes[home].unmapped.insert(address + bytes, rest);
        }
        self.blocks[index].mapped = true;
        let (index, ..) = self.merge_free(index);
        self.insert_free(home, index);
        let (stream, key) = (self.homes[home].stream, self.homes[home].key);
        self.counters.reserved_bytes.increase(key.kind, bytes);
        self.counters.num_device_alloc += 1;
        let site = origin.site;
        self.tell(origin, EventKind::SegmentMapped { address, size: bytes, stream, pool: key, site }, sink);
        Ok(index)
    }

    /// Unmaps the whole pages of a free block; where that leaves nothing in its segment, gives back the addresses too.
    pub(crate) fn unmap(
        &mut self,
        index: BlockIndex,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<(), DeviceError> {
        let block = self.blocks[index];
        let (start, page_bytes) = self.page_bytes(&block);
        let from = start + (block.address - start).next_multiple_of(page_bytes);
        let until = start + (block.end() - start) / page_bytes * page_bytes;
        if from >= until {
            return Ok(());
        }
        let (bytes, stream) = (until - from, self.homes[block.home].stream);
        self.device.unmap(from, bytes, page_bytes, stream)?;
        let home = block.home;
        self.homes[home].remove(&block, index);
        let mut middle = index;
        if block.address < from {
            middle = self.blocks.split(index, from - block.address);
            self.insert_free(home, index);
        }
        if until < block.end() {
            let rest = self.blocks.split(middle, bytes);
            self.insert_free(home, rest);
        }
        self.blocks[middle].mapped = false;
        let unmapped = self.merge_unmapped(middle);
        self.homes[home].unmapped.insert(self.blocks[unmapped].address, unmapped);
        let kind = self.homes[home].key.kind;
        self.counters.reserved_bytes.decrease(kind, bytes);
        self.counters.num_device_free += 1;
        self.tell(origin, EventKind::SegmentUnmapped { address: from, size: bytes, site: origin.site }, sink);
        if self.blocks[unmapped].is_split() { Ok(()) } else { self.release_addresses(unmapped) }
    }

    /// Joins an unmapped block that is not in the list of such with those beside it, taking them out of the list.
    fn merge_unmapped(&mut self, index: BlockIndex) -> BlockIndex {
        let Block { home, prev, next, .. } = self.blocks[index];
        if let Some(next) = next.filter(|&next| !self.blocks[next].mapped) {
            self.homes[home].unmapped.remove(&self.blocks[next].address);
            self.blocks.merge_next(index);
        }
        if let Some(prev) = prev.filter(|&prev| !self.blocks[prev].mapped) {
            self.homes[home].unmapped.remove(&self.blocks[prev].address);
            self.blocks.merge_next(prev);
            return prev;
        }
        index
    }

    /// Gives back the addresses of a segment that an unmapped block is the whole of.
    fn release_addresses(&mut self, index: BlockIndex) -> Result<(), DeviceError> {
        let Block { address, size, home, .. } = self.blocks[index];
        self.device.release_addresses(address, size)?;
        self.homes[home].unmapped.remove(&address);
        self.blocks.remove(index);
        self.segments.remove(&address);
        self.mempools.count_segment(self.homes[home].key.owner, false);
        Ok(())
    }
}
