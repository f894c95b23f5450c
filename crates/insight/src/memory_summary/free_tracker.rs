//! The free blocks of ordinary segments, followed event by event, for PyTorch's `inactive_split`.

use std::collections::BTreeMap;

use vramscope_trace::PoolKind;

/// Number and bytes of the inactive split blocks (free blocks that share their segment with another
/// block) that an event removed and added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SplitChange {
    pub(super) removed: u64,
    pub(super) removed_bytes: u64,
    pub(super) added: u64,
    pub(super) added_bytes: u64,
}

/// A segment, or a mapped range of an expandable one.
#[derive(Clone, Copy, Debug)]
struct TrackedSegment {
    size: u64,
    kind: PoolKind,
    expandable: bool,
}

/// The segments of a device and the free blocks of its ordinary segments.
///
/// Methods return `None` if an event contradicts the tracked state; the tracker is then no longer
/// valid.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeTracker {
    /// By address; adjacent ranges of an expandable segment are separate.
    segments: BTreeMap<u64, TrackedSegment>,
    /// Size of each free block of an ordinary segment, by address.
    free: BTreeMap<u64, u64>,
}

impl FreeTracker {
    /// Adds an ordinary segment, which is free as a whole, or a mapped range.
    pub(super) fn insert_segment(&mut self, address: u64, size: u64, kind: PoolKind, expandable: bool) -> Option<()> {
        let end = address.checked_add(size)?;
        let overlaps = self.segments.range(..end).next_back().is_some_and(|(&at, other)| at + other.size > address);
        if overlaps || size == 0 {
            return None;
        }
        self.segments.insert(address, TrackedSegment { size, kind, expandable });
        if !expandable {
            self.free.insert(address, size);
        }
        Some(())
    }

    /// Removes an ordinary segment, which must be free as a whole, and returns its size class.
    pub(super) fn remove_segment(&mut self, address: u64, size: u64) -> Option<PoolKind> {
        let segment = self.segments.remove(&address).filter(|segment| !segment.expandable && segment.size == size)?;
        self.free.remove(&address).filter(|&free| free == size)?;
        Some(segment.kind)
    }

    /// Removes `size` bytes from the mapped ranges, all of which must be mapped and of one size
    /// class, and returns that class.
    pub(super) fn unmap(&mut self, address: u64, size: u64) -> Option<PoolKind> {
        let end = address.checked_add(size)?;
        let mut kind = None;
        let mut left = size;
        while left > 0 {
            let (&at, &range) = self.segments.range(..end).next_back()?;
            let range_end = at + range.size;
            if !range.expandable || range_end <= address || kind.is_some_and(|kind| kind != range.kind) {
                return None;
            }
            kind = Some(range.kind);
            self.segments.remove(&at);
            if at < address {
                self.segments.insert(at, TrackedSegment { size: address - at, ..range });
            }
            if end < range_end {
                self.segments.insert(end, TrackedSegment { size: range_end - end, ..range });
            }
            left = left.checked_sub(range_end.min(end) - at.max(address))?;
        }
        kind
    }

    /// Returns the segment that contains `size` bytes from `address` on.
    fn segment_of(&self, address: u64, size: u64) -> Option<(u64, TrackedSegment)> {
        let (&at, &segment) = self.segments.range(..=address).next_back()?;
        // A block of an expandable segment may span several mapped ranges.
        let is_inside = segment.expandable || address.checked_add(size)? <= at + segment.size;
        (address - at < segment.size && is_inside).then_some((at, segment))
    }

    /// Takes a block from the low end of a free block. Returns the change of the inactive split
    /// blocks.
    pub(super) fn allocate(&mut self, address: u64, size: u64) -> Option<SplitChange> {
        let (_, segment) = self.segment_of(address, size)?;
        if segment.expandable {
            return Some(SplitChange::default());
        }
        let free = self.free.remove(&address).filter(|&free| free >= size)?;
        let mut change = SplitChange::default();
        if free < segment.size {
            (change.removed, change.removed_bytes) = (1, free);
        }
        if free > size {
            self.free.insert(address + size, free - size);
            (change.added, change.added_bytes) = (1, free - size);
        }
        Some(change)
    }

    /// Frees a block, and merges it with the free blocks next to it. Returns the change of the
    /// inactive split blocks.
    pub(super) fn release(&mut self, address: u64, size: u64) -> Option<SplitChange> {
        let (segment_address, segment) = self.segment_of(address, size)?;
        if segment.expandable {
            return Some(SplitChange::default());
        }
        let mut change = SplitChange::default();
        let (mut first, mut end) = (address, address + size);
        let below = self.free.range(segment_address..address).next_back().map(|(&at, &free)| (at, free));
        if let Some((at, free)) = below.filter(|(at, free)| at + free == address) {
            self.free.remove(&at);
            first = at;
            (change.removed, change.removed_bytes) = (1, free);
        }
        if end < segment_address + segment.size
            && let Some(free) = self.free.remove(&end)
        {
            end += free;
            change.removed += 1;
            change.removed_bytes += free;
        }
        self.free.insert(first, end - first);
        if end - first < segment.size {
            (change.added, change.added_bytes) = (1, end - first);
        }
        Some(change)
    }
}
