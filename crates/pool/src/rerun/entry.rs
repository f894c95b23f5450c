//! One recorded decision of an allocator.

use vramscope_trace::{EventKind, SiteId};

/// A recorded event of the allocator (segment, block, free or out of memory) with its event number
/// and time. PyTorch calls it a trace entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The event's number in the recording.
    pub(super) number: u64,
    /// The event's time in the recording, in nanoseconds.
    pub(super) time_ns: u64,
    pub(super) kind: EventKind,
}

/// Returns the address of the block that a requested or completed free is about; `None` for all
/// other events.
pub(super) fn freed_address(kind: &EventKind) -> Option<u64> {
    match *kind {
        EventKind::FreeRequested { address, .. } | EventKind::FreeCompleted { address, .. } => Some(address),
        _ => None,
    }
}

/// Returns the site of an event; `SiteId(0)` if it has none.
pub(super) fn site_of(kind: &EventKind) -> SiteId {
    match *kind {
        EventKind::SegmentAllocated { site, .. }
        | EventKind::SegmentFreed { site, .. }
        | EventKind::SegmentMapped { site, .. }
        | EventKind::SegmentUnmapped { site, .. }
        | EventKind::BlockAllocated { site, .. }
        | EventKind::FreeRequested { site, .. }
        | EventKind::FreeCompleted { site, .. }
        | EventKind::OutOfMemory { site, .. } => site,
        EventKind::MemorySample { .. } | EventKind::Mark { .. } | EventKind::Gap { .. } => SiteId(0),
    }
}

/// Returns true if the event returns memory to the driver: a segment is freed or a range unmapped.
/// False for all other events.
pub(super) fn is_release(kind: &EventKind) -> bool {
    matches!(kind, EventKind::SegmentFreed { .. } | EventKind::SegmentUnmapped { .. })
}

/// Returns true if the event makes a freed block reusable; false for all other events, including
/// the request of a free.
pub(super) fn is_completed_free(kind: &EventKind) -> bool {
    matches!(kind, EventKind::FreeCompleted { .. })
}

/// Returns true if the event allocated a segment or mapped a range that contains the address `at`.
pub(super) fn provides_memory(kind: &EventKind, at: u64) -> bool {
    match *kind {
        EventKind::SegmentAllocated { address, size, .. } | EventKind::SegmentMapped { address, size, .. } => {
            at.checked_sub(address).is_some_and(|offset| offset < size)
        }
        _ => false,
    }
}

/// Returns the sizes in bytes of the first blocks that `entries` allocate, if these blocks are
/// adjacent, in address order, equal in size to their requests, and together `segment_bytes` large;
/// `None` otherwise.
pub(super) fn blocks_that_fill(segment_bytes: u64, entries: &[Entry]) -> Option<Vec<u64>> {
    let (mut left_bytes, mut next_address, mut sizes) = (segment_bytes, None, Vec::new());
    for entry in entries {
        let EventKind::BlockAllocated { address, size, requested, .. } = entry.kind else { return None };
        if next_address.is_some_and(|next| next != address) || size != requested || size == 0 {
            return None;
        }
        left_bytes = left_bytes.checked_sub(size)?;
        next_address = address.checked_add(size);
        sizes.push(size);
        if left_bytes == 0 {
            return Some(sizes);
        }
    }
    None
}
