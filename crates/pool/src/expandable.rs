//! Expandable segments: an address range of 9/8 of the device's memory, into which physical memory
//! is mapped page by page.
//!
//! Blocks cover the range as in any segment. Unmapped blocks consist of whole pages and are kept by
//! address in their stream pool.

use vramscope_trace::{EventKind, PoolKind, Sink};

use crate::block::{Block, BlockState};
use crate::device::{Device, DeviceResult};
use crate::free_blocks::{Fit, FitKey};
use crate::index::BlockIndex;
use crate::pool::{Origin, Pool};
use crate::request::Request;
use crate::size::SMALL_SEGMENT_BYTES;

/// Maximum memory, in bytes, that the pool assumes a device to have; a device that reports more
/// counts as having this much. The limit ensures that 9/8 of the memory, the size of an expandable
/// segment's address range, fits in 64 bits.
const MAX_DEVICE_BYTES: u64 = 1 << 50;

impl<D: Device> Pool<D> {
    /// Returns the free block to use for `request`; `None` if none may be used. `fit` is the
    /// smallest block that is large enough, and belongs to an expandable segment.
    ///
    /// With `expandable_segments` on, moves from block to next larger block as long as that block
    /// can grow to fewer bytes (its own size plus the unmapped bytes after it). Blocks that can
    /// grow the most are thus kept for larger requests. With it off, blocks of expandable segments
    /// may not be used.
    pub(crate) fn expandable_fit(&self, mut fit: Fit, request: &Request) -> Option<Fit> {
        let free = &self.pools[request.stream_pool].free;
        let after = |fit: Fit| free.at_or_after(FitKey { address: fit.key.address + 1, ..fit.key });
        if !request.expandable {
            while self.blocks[fit.index].expandable {
                fit = after(fit)?;
            }
            return Some(fit);
        }
        while self.blocks[fit.index].expandable
            && let Some(next) = after(fit)
            && self.growable_size(next.index) < self.growable_size(fit.index)
        {
            fit = next;
        }
        Some(fit)
    }

    /// Returns the size in bytes to which a free block can grow: its own size plus that of the
    /// unmapped block directly above it, if there is one.
    fn growable_size(&self, index: BlockIndex) -> u64 {
        let block = &self.blocks[index];
        let above = block.next.map(|next| &self.blocks[next]).filter(|next| !next.mapped);
        block.size + above.map_or(0, |next| next.size)
    }

    /// Returns a block for `request` from an expandable segment, mapping the pages that are
    /// missing. The block is removed from its stream pool's free blocks. `None` if the segment's
    /// address range ends before the request fits.
    ///
    /// # Errors
    /// If the device is out of memory. Pages that were already mapped stay mapped, as free memory.
    pub(crate) fn expand(
        &mut self,
        request: &Request,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> DeviceResult<Option<BlockIndex>> {
        let size = request.size;
        let mut candidate = match self.find_growable_block(request) {
            Some(index) => index,
            None => self.reserve_addresses(request, origin)?,
        };
        if !self.blocks[candidate].mapped {
            candidate = self.map_block(candidate, size, origin, sink)?;
        }
        while self.blocks[candidate].size < size {
            let missing_bytes = size - self.blocks[candidate].size;
            let Some(next) = self.blocks[candidate].next else { return Ok(None) };
            candidate = self.map_block(next, missing_bytes, origin, sink)?;
        }
        let block = &self.blocks[candidate];
        self.pools[block.stream_pool].remove(block, candidate);
        Ok(Some(candidate))
    }

    /// Returns the lowest block of the request's stream pool at which a series of adjacent free and
    /// unmapped blocks begins that is large enough for the request and has at least one unmapped
    /// block; `None` if no series is.
    fn find_growable_block(&self, request: &Request) -> Option<BlockIndex> {
        let is_free = |&index: &BlockIndex| self.blocks[index].state == BlockState::Free;
        self.pools[request.stream_pool].unmapped.values().find_map(|&unmapped| {
            // A free block below is extended first.
            let first = self.blocks[unmapped].prev.filter(is_free).unwrap_or(unmapped);
            let mut growable_bytes = 0;
            for index in self.blocks.iter_from(first).take_while(is_free) {
                growable_bytes += self.blocks[index].size;
                if growable_bytes >= request.size {
                    return Some(first);
                }
            }
            None
        })
    }

    /// Reserves the address range of a new expandable segment for the request's stream pool, and
    /// returns the unmapped block that spans it.
    fn reserve_addresses(&mut self, request: &Request, origin: Origin) -> DeviceResult<BlockIndex> {
        let (bytes, page_bytes) = self.expandable_range(self.kind_of(request.block_pool), request.size);
        let address = self.device.reserve_addresses(bytes)?;
        if let Err(error) = self.check_range(address, bytes) {
            let _ = self.device.release_addresses(address, bytes);
            return Err(error);
        }
        let first = self.insert_segment(address, bytes, Some(page_bytes), request.stream_pool, origin);
        self.pools[request.stream_pool].unmapped.insert(address, first);
        Ok(first)
    }

    /// Returns the size of the address range of a new expandable segment of size class `kind`, at
    /// least `min_bytes`, and the segment's page size, both in bytes.
    pub(crate) fn expandable_range(&self, kind: PoolKind, min_bytes: u64) -> (u64, u64) {
        let page_bytes = match kind {
            PoolKind::Small => SMALL_SEGMENT_BYTES,
            PoolKind::Large => self.settings.large_segment_size_bytes,
        };
        let total = self.device.memory().total_bytes.min(MAX_DEVICE_BYTES);
        let bytes = (total + total / 8).max(min_bytes);
        // Sizes from a recording may be near `u64::MAX`; the range is then cut to whole pages.
        (bytes.checked_next_multiple_of(page_bytes).unwrap_or(u64::MAX / page_bytes * page_bytes), page_bytes)
    }

    /// Returns the first address of the expandable segment that contains `block`, and the segment's
    /// page size in bytes.
    fn segment_start_and_page_bytes(&self, block: &Block) -> (u64, u64) {
        let segment = self.segment_containing(block.address);
        let (start, page_bytes) = segment.and_then(|(start, segment)| Some((start, segment.page_bytes?))).unzip();
        (start.unwrap_or(block.address), page_bytes.unwrap_or(SMALL_SEGMENT_BYTES))
    }

    /// Maps memory to the first `bytes` of the unmapped block `index`, rounded up to whole pages
    /// but at most to the whole block. Returns the free block that contains them, merged with its
    /// free neighbors and inserted in its stream pool.
    fn map_block(
        &mut self,
        index: BlockIndex,
        bytes: u64,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> DeviceResult<BlockIndex> {
        let Block { address, size, stream_pool, .. } = self.blocks[index];
        let (_, page_bytes) = self.segment_start_and_page_bytes(&self.blocks[index]);
        let bytes = bytes.min(size).next_multiple_of(page_bytes).min(size);
        self.device.map(address, bytes, page_bytes)?;
        self.pools[stream_pool].unmapped.remove(&address);
        if bytes < size {
            let rest = self.blocks.split(index, bytes);
            self.pools[stream_pool].unmapped.insert(address + bytes, rest);
        }
        self.blocks[index].mapped = true;
        let (index, ..) = self.merge_free(index);
        self.insert_free(stream_pool, index);
        let (stream, key) = (self.pools[stream_pool].stream, self.pools[stream_pool].key);
        self.counters.reserved_bytes.increase(key.kind, bytes);
        self.counters.num_device_alloc += 1;
        let site = origin.site;
        self.emit(origin, EventKind::SegmentMapped { address, size: bytes, stream, pool: key, site }, sink);
        Ok(index)
    }

    /// Unmaps the whole pages of the free block `index`, which is in its stream pool; the rest of
    /// the block stays free. Does nothing if the block has no whole page. Releases the address
    /// range if nothing in the segment is mapped any more.
    pub(crate) fn unmap(&mut self, index: BlockIndex, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> DeviceResult {
        let block = self.blocks[index];
        let (start, page_bytes) = self.segment_start_and_page_bytes(&block);
        let start_page = start + (block.address - start).next_multiple_of(page_bytes);
        let end_page = start + (block.end() - start) / page_bytes * page_bytes;
        if start_page >= end_page {
            return Ok(());
        }
        let (bytes, stream) = (end_page - start_page, self.pools[block.stream_pool].stream);
        self.device.unmap(start_page, bytes, page_bytes, stream)?;
        let stream_pool = block.stream_pool;
        self.pools[stream_pool].remove(&block, index);
        let mut middle = index;
        if block.address < start_page {
            middle = self.blocks.split(index, start_page - block.address);
            self.insert_free(stream_pool, index);
        }
        if end_page < block.end() {
            let rest = self.blocks.split(middle, bytes);
            self.insert_free(stream_pool, rest);
        }
        self.blocks[middle].mapped = false;
        let unmapped = self.merge_unmapped(middle);
        self.pools[stream_pool].unmapped.insert(self.blocks[unmapped].address, unmapped);
        let kind = self.pools[stream_pool].key.kind;
        self.counters.reserved_bytes.decrease(kind, bytes);
        self.counters.num_device_free += 1;
        self.emit(origin, EventKind::SegmentUnmapped { address: start_page, size: bytes, site: origin.site }, sink);
        if self.blocks[unmapped].is_split() { Ok(()) } else { self.release_addresses(unmapped) }
    }

    /// Merges an unmapped block with the unmapped blocks directly below and above, which are
    /// removed from the stream pool's table of unmapped blocks. Returns the merged block, not yet
    /// in the table.
    fn merge_unmapped(&mut self, index: BlockIndex) -> BlockIndex {
        let Block { stream_pool, prev, next, .. } = self.blocks[index];
        if let Some(next) = next.filter(|&next| !self.blocks[next].mapped) {
            self.pools[stream_pool].unmapped.remove(&self.blocks[next].address);
            self.blocks.merge_next(index);
        }
        if let Some(prev) = prev.filter(|&prev| !self.blocks[prev].mapped) {
            self.pools[stream_pool].unmapped.remove(&self.blocks[prev].address);
            self.blocks.merge_next(prev);
            return prev;
        }
        index
    }

    /// Returns the address range of an expandable segment to the device. The unmapped block `index`
    /// must span the segment.
    fn release_addresses(&mut self, index: BlockIndex) -> DeviceResult {
        let Block { address, size, stream_pool, .. } = self.blocks[index];
        self.device.release_addresses(address, size)?;
        self.pools[stream_pool].unmapped.remove(&address);
        self.blocks.remove(index);
        self.segments.remove(&address);
        self.private_pools.remove_segment(self.pools[stream_pool].key.owner);
        Ok(())
    }
}
