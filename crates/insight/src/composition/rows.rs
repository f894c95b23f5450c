//! Read access to the allocations of one device and to their starts and ends in order.

/// The start or the end of an allocation, or half of a relabel: an end with the old group, directly
/// followed by a start with the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The first moment after the change: the number of the event that made it.
    pub moment: u64,
    /// The row number of the allocation.
    pub row: u32,
    /// True if the block became live; false if it no longer is from this moment on.
    pub is_start: bool,
    /// True for both halves of a relabel: the allocation goes on, only its group changes.
    pub is_relabel: bool,
    /// Size of the block in bytes, after rounding.
    pub bytes: u64,
    /// The number of the allocation's group at this change, see [`AllocationSpan::group`].
    pub group: u32,
}

/// The moments at which an allocation is live, its size and its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationSpan {
    /// The first moment at which it is live.
    pub first_moment: u64,
    /// The first moment at which it is no longer live; `u64::MAX` if it is live at the end.
    pub end: u64,
    /// Size of its block in bytes, after rounding.
    pub size: u64,
    /// The number of its group, after its last relabel. Numbers are dense: a grouping with n groups
    /// uses 0 to n − 1.
    pub group: u32,
}

/// The allocations of one device with a grouping, and their starts and ends in the order of events.
///
/// An allocation is identified by its row number; row numbers increase in the order of the starts,
/// and not every number is used. A live recording adds changes at the end; earlier changes stay.
/// Methods that take a row expect the number of an allocation whose start is among the changes.
pub trait AllocationRows {
    /// Returns the number of changes known so far.
    fn change_count(&self) -> usize;

    /// Returns the change at `position`, which is below [`change_count`](Self::change_count).
    /// Moments never decrease from one position to the next.
    fn change(&self, position: usize) -> Change;

    /// Returns the moments, the size and the group of an allocation.
    fn span(&self, row: u32) -> AllocationSpan;

    /// Returns the device address of an allocation's first byte.
    fn address(&self, row: u32) -> u64;
}
