//! The block or free range at an address.

use vramscope_trace::{Block, DeviceState, Segment};

/// The block or free range under a pixel or at an address, and its segment.
///
/// A selection stores [`Block::since_event`] beside the address, and so follows the allocation: a
/// later block at this address has another `since_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The segment that contains the block or free range.
    pub segment: Segment,
    /// First device address of the block or free range.
    pub address: u64,
    /// Size of the block or free range, in bytes.
    pub size: u64,
    /// The live block, or `None` for free space.
    pub block: Option<Block>,
}

impl Hit {
    /// Returns true if both are the same allocation, or free ranges with the same start.
    pub fn is_same_allocation(&self, other: &Self) -> bool {
        let since = |hit: &Self| hit.block.map(|block| block.since_event);
        self.address == other.address && since(self) == since(other)
    }
}

/// Returns the block or free range that contains `address`; `None` outside of all segments.
///
/// The cost does not depend on the number of the segment's blocks, except in a large free range.
pub(crate) fn hit_at(device: &DeviceState, address: u64) -> Option<Hit> {
    let segment = *device.segment_at(address)?;
    if let Some(&block) = device.block_at(address).filter(|block| block.address >= segment.address) {
        let size = block.end().min(segment.end()) - block.address;
        return Some(Hit { segment, address: block.address, size, block: Some(block) });
    }
    let above = Segment { address, size: segment.end() - address, ..segment };
    let end = address + device.extents(&above).next()?.size;
    let start = free_start(device, &segment, address);
    Some(Hit { segment, address: start, size: end - start, block: None })
}

/// Returns the start of the free range that contains `address`: the end of the last block of the
/// segment below `address`, or the segment's start.
fn free_start(device: &DeviceState, segment: &Segment, address: u64) -> u64 {
    let mut until = address;
    let mut distance = 1u64 << 12;
    // Searches downwards in ranges of doubling size, so that few blocks are visited.
    while until > segment.address {
        let from = address.saturating_sub(distance).max(segment.address);
        let range = Segment { address: from, size: until - from, ..*segment };
        let inside = device.extents(&range).filter_map(|extent| extent.block).last().map(|block| block.end());
        let across = device.block_at(from).filter(|block| block.address >= segment.address).map(|block| block.end());
        if let Some(end) = inside.max(across) {
            return end.clamp(segment.address, address);
        }
        until = from;
        distance = distance.saturating_mul(2);
    }
    segment.address
}
