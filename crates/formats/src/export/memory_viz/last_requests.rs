//! The `requested_size` of free blocks: PyTorch lists the size of the last request that used the
//! block.
//!
//! No tool depends on this size, but every snapshot contains it and PyTorch's flame graphs show it.
//! It follows from the history:
//!
//! - a freed block keeps its size, and the size of adjacent free blocks that are merged with it is
//!   lost;
//! - if a free block is split, the rest keeps the size;
//! - mapped pages have the size that they had when they were unmapped, or 0 if they are new;
//!   adjacent free blocks are merged with them and lose their size;
//! - if pages of a free block are unmapped, the rest of the block has size 0.
//!
//! For free blocks from before the recording the size is unknown and 0.

use std::collections::BTreeMap;

use vramscope_trace::{Block, DeviceState, EventKind, Segment};

/// Address ranges that do not overlap: maps each start address to the end address (exclusive) and
/// the last requested size in bytes.
type Ranges = BTreeMap<u64, (u64, u64)>;

/// The last requested size of each free block of a device: the bytes that the last request served
/// from this memory asked for. PyTorch's snapshots list it for free blocks.
#[derive(Debug, Default)]
pub(super) struct LastRequests {
    free: Ranges,
    /// Pages of expandable segments that are unmapped.
    unmapped: Ranges,
}

/// Returns the start address and last requested size of the range that ends at `address`; `None` if
/// no range ends there.
fn range_ending_at(ranges: &Ranges, address: u64) -> Option<(u64, u64)> {
    let (&start, &(end, number)) = ranges.range(..address).next_back()?;
    (end == address).then_some((start, number))
}

/// Removes the addresses `from..to` from free or unmapped ranges. The rest of a range keeps its
/// last requested size, or gets `rest` if that is given. Returns the last requested size of the
/// lowest range that was cut or removed; 0 if none was.
fn cut(ranges: &mut Ranges, from: u64, to: u64, rest: Option<u64>) -> u64 {
    let mut last = 0;
    while let Some((&start, &(end, number))) = ranges.range(..to).next_back()
        && end > from
    {
        ranges.remove(&start);
        if start < from {
            ranges.insert(start, (from, rest.unwrap_or(number)));
        }
        if to < end {
            ranges.insert(to, (end, rest.unwrap_or(number)));
        }
        last = number;
    }
    last
}

impl LastRequests {
    /// Creates the free ranges of `device`, all with an unknown last requested size.
    pub(super) fn new(device: Option<&DeviceState>) -> Self {
        let mut requests = Self::default();
        let Some(device) = device else { return requests };
        for extent in device.segments().flat_map(|segment| device.extents(segment)) {
            if extent.block.is_none() {
                requests.free.insert(extent.address, (extent.address.saturating_add(extent.size), 0));
            }
        }
        requests
    }

    /// Returns the last requested size in bytes of the free block that begins at `address`; 0 if
    /// unknown.
    pub(super) fn size_at(&self, address: u64) -> u64 {
        self.free.get(&address).map_or(0, |&(_, number)| number)
    }

    /// Updates the free ranges and their last requested sizes for one event. `before` is the
    /// device's state before the event.
    pub(super) fn apply(&mut self, kind: &EventKind, before: Option<&DeviceState>) {
        match *kind {
            EventKind::BlockAllocated { address, size, .. } => {
                cut(&mut self.free, address, address.saturating_add(size), None);
            }
            EventKind::FreeCompleted { address, .. } => {
                let block = before.and_then(|device| device.block_at(address));
                if let Some(block) = block.filter(|block| block.address == address) {
                    self.release(block, before.and_then(|device| device.segment_at(address)));
                }
            }
            EventKind::SegmentAllocated { address, size, .. } => {
                self.free.insert(address, (address.saturating_add(size), 0));
            }
            EventKind::SegmentFreed { address, size, .. } => {
                cut(&mut self.free, address, address.saturating_add(size), None);
            }
            EventKind::SegmentMapped { address, size, .. } => {
                self.map(address, address.saturating_add(size), before);
            }
            EventKind::SegmentUnmapped { address, size, .. } => {
                self.unmap(address, address.saturating_add(size), before);
            }
            _ => {}
        }
    }

    /// Adds a freed block to the free ranges, with its requested size. `segment` is the segment
    /// that holds the block, if known; the block merges only with free ranges of that segment.
    fn release(&mut self, block: &Block, segment: Option<&Segment>) {
        // Segments may be adjacent, but blocks of different segments never merge.
        let bounds = segment.map_or(block.address..block.end(), |segment| segment.address..segment.end());
        self.merge(block.address, block.end(), block.requested, (bounds.start, bounds.end));
    }

    /// Adds the free range `start..end` with the last requested size `number` in bytes. Merges it
    /// with adjacent free ranges between `lowest` and `highest`, the start and end address of its
    /// segment.
    fn merge(&mut self, mut start: u64, mut end: u64, number: u64, (lowest, highest): (u64, u64)) {
        if let Some((neighbor, _)) = range_ending_at(&self.free, start).filter(|&(neighbor, _)| neighbor >= lowest) {
            self.free.remove(&neighbor);
            start = neighbor;
        }
        if let Some((neighbor_end, _)) = self.free.get(&end).copied().filter(|&(above, _)| above <= highest) {
            self.free.remove(&end);
            end = neighbor_end;
        }
        self.free.insert(start, (end, number));
    }

    /// Makes the range `address..end`, which was just mapped to an expandable segment, free.
    /// `before` is the device's state before mapping.
    fn map(&mut self, address: u64, end: u64, before: Option<&DeviceState>) {
        let number = cut(&mut self.unmapped, address, end, Some(0));
        let expandable = |at: Option<u64>| {
            let segment = before.zip(at).and_then(|(device, at)| device.segment_at(at));
            segment.filter(|segment| segment.expandable)
        };
        let lowest = expandable(address.checked_sub(1)).map_or(address, |segment| segment.address);
        let highest = expandable(Some(end)).map_or(end, Segment::end);
        self.merge(address, end, number, (lowest, highest));
    }

    /// Removes the range `address..end`, which was just unmapped, from the free ranges. Keeps its
    /// last requested size for when it is mapped again. `before` is the device's state before
    /// unmapping.
    fn unmap(&mut self, address: u64, end: u64, before: Option<&DeviceState>) {
        let number = cut(&mut self.free, address, end, Some(0));
        let segment = before.and_then(|device| device.segment_at(address));
        if segment.is_some_and(|segment| segment.address == address && segment.end() == end) {
            // The whole segment is gone. A later segment at these addresses starts without history.
            cut(&mut self.unmapped, address, end, None);
            return;
        }
        let start = range_ending_at(&self.unmapped, address).map_or(address, |(start, _)| start);
        let end = self.unmapped.get(&end).map_or(end, |&(above, _)| above);
        cut(&mut self.unmapped, start, end, None);
        self.unmapped.insert(start, (end, number));
    }
}
