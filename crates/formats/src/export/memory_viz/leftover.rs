//! What free blocks remember of their past: PyTorch lists them with the requested size of the allocation that last had the block.
//!
//! Nothing depends on the number, but it stands in every snapshot, and PyTorch's flame graphs show it. It follows from the history:
//!
//! - a freed block keeps its number, and swallows its free neighbors with theirs;
//! - of a free block that is split, the rest keeps the number;
//! - mapped pages have the number that they were unmapped with, swallow their free neighbors, and new ones have 0;
//! - what is left beside unmapped pages has 0.
//!
//! Of free blocks from before the recording it is not known, and 0.

use std::collections::BTreeMap;

use vramscope_trace::{Block, DeviceState, EventKind, Segment};

/// Free ranges by address, with their end and their number.
type Ranges = BTreeMap<u64, (u64, u64)>;

/// The free blocks of one device.
#[derive(Debug, Default)]
pub(super) struct Leftover {
    free: Ranges,
    /// Pages of expandable segments that were unmapped and not mapped again.
    unmapped: Ranges,
}

/// The range that ends at `address`.
fn below(ranges: &Ranges, address: u64) -> Option<(u64, u64)> {
    let (&start, &(end, number)) = ranges.range(..address).next_back()?;
    (end == address).then_some((start, number))
}

/// Takes `from..to` out of the ranges: what reaches out of it stays with `rest` as its number where that is said. Gives the number of
/// the last range that was cut.
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

impl Leftover {
    /// The free blocks of `device`, of whose past nothing is known.
    pub(super) fn new(device: Option<&DeviceState>) -> Self {
        let mut leftover = Self::default();
        let Some(device) = device else { return leftover };
        for extent in device.segments().flat_map(|segment| device.extents(segment)) {
            if extent.block.is_none() {
                leftover.free.insert(extent.address, (extent.address.saturating_add(extent.size), 0));
            }
        }
        leftover
    }

    /// The number of the free block at `address`.
    pub(super) fn of(&self, address: u64) -> u64 {
        self.free.get(&address).map_or(0, |&(_, number)| number)
    }

    /// Takes an event that finds the device's memory as `before` says.
    pub(super) fn apply(&mut self, kind: &EventKind, before: Option<&DeviceState>) {
        match *kind {
            EventKind::BlockAllocated { address, size, .. } => {
                cut(&mut self.free, address, address.saturating_add(size), None);
            }
            EventKind::FreeCompleted { address, .. } => {
                let block = before.and_then(|device| device.block_at(address));
                if let Some(block) = block.filter(|block| block.address == address) {
                    self.free(block, before.and_then(|device| device.segment_at(address)));
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

    fn free(&mut self, block: &Block, segment: Option<&Segment>) {
        // Segments may touch, and blocks of two never merge.
        let bounds = segment.map_or(block.address..block.end(), |segment| segment.address..segment.end());
        self.merge(block.address, block.end(), block.requested, (bounds.start, bounds.end));
    }

    /// Adds a free range that swallows those it touches, as far as these lie within the bounds.
    fn merge(&mut self, mut start: u64, mut end: u64, number: u64, (lowest, highest): (u64, u64)) {
        if let Some((neighbor, _)) = below(&self.free, start).filter(|&(neighbor, _)| neighbor >= lowest) {
            self.free.remove(&neighbor);
            start = neighbor;
        }
        if let Some((neighbor_end, _)) = self.free.get(&end).copied().filter(|&(above, _)| above <= highest) {
            self.free.remove(&end);
            end = neighbor_end;
        }
        self.free.insert(start, (end, number));
    }

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

    fn unmap(&mut self, address: u64, end: u64, before: Option<&DeviceState>) {
        let number = cut(&mut self.free, address, end, Some(0));
        let segment = before.and_then(|device| device.segment_at(address));
        if segment.is_some_and(|segment| segment.address == address && segment.end() == end) {
            // Nothing of the range is left; its addresses are given back, and what comes there next begins anew.
            cut(&mut self.unmapped, address, end, None);
            return;
        }
        let start = below(&self.unmapped, address).map_or(address, |(start, _)| start);
        let end = self.unmapped.get(&end).map_or(end, |&(above, _)| above);
        cut(&mut self.unmapped, start, end, None);
        self.unmapped.insert(start, (end, number));
    }
}
