//! One recorded decision of an allocator.

use vramscope_trace::{EventKind, SiteId};

/// A recorded decision of the allocator; the trace entries of PyTorch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The event's number in the recording.
    pub(super) number: u64,
    pub(super) kind: EventKind,
}

/// Returns the address of the block that a requested or completed free is about; `None` for other
/// events.
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

/// Returns true if the event returns memory to the driver.
pub(super) fn is_release(kind: &EventKind) -> bool {
    matches!(kind, EventKind::SegmentFreed { .. } | EventKind::SegmentUnmapped { .. })
}

/// Returns true if the event completes a free.
pub(super) fn is_completed_free(kind: &EventKind) -> bool {
    matches!(kind, EventKind::FreeCompleted { .. })
}
