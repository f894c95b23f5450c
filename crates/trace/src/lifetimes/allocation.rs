//! One allocation with its start and end.

use crate::event::{PoolKey, StreamId};
use crate::site::SiteId;

/// One allocation of a recording, from its request to its free.
///
/// Moments are numbers of events: an allocation made by the event with index b and freed by the
/// event with index f exists at the moments b + 1 to f.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Address of the first byte.
    pub address: u64,
    /// Size of the block in bytes, after rounding.
    pub size: u64,
    /// Size that the program requested, in bytes; at most `size`.
    pub requested: u64,
    /// The stream on which it was allocated.
    pub stream: StreamId,
    /// The pool that served the request.
    pub pool: PoolKey,
    /// Where the request was made, or the site of its last relabel.
    pub site: SiteId,
    /// The first moment at which it is known to exist.
    pub first_moment: u64,
    /// Whether its allocating event was recorded. False if it is older than the recording, or was
    /// allocated where events are missing.
    pub start_observed: bool,
    /// The first moment after the program freed it; `None` if it was not freed by the end.
    pub allocated_until: Option<u64>,
    /// The first moment at which its memory can be reused; `None` if that is after the end.
    pub active_until: Option<u64>,
    /// Whether its end was recorded; meaningless if it has no end. False if a full state after a
    /// gap lacked it, or a later event contradicted that it still existed.
    pub end_observed: bool,
}

impl Allocation {
    /// Returns the index (from 0) of the event that allocated it, or `None` if
    /// [`start_observed`](Self::start_observed) is false.
    #[must_use]
    pub fn allocating_event(&self) -> Option<u64> {
        self.first_moment.checked_sub(1).filter(|_| self.start_observed)
    }

    /// Returns the index (from 0) of the event with which the program freed the block, or `None` if
    /// no such event was recorded.
    ///
    /// For sources that record only completed frees, this is the event of the completed free.
    #[must_use]
    pub fn free_requested_event(&self) -> Option<u64> {
        let observed = self.end_observed || self.allocated_until != self.active_until;
        self.allocated_until.filter(|_| observed).map(|moment| moment.saturating_sub(1))
    }

    /// Returns the index (from 0) of the event that completed the free, or `None` if no such event
    /// was recorded.
    #[must_use]
    pub fn free_completed_event(&self) -> Option<u64> {
        self.active_until.filter(|_| self.end_observed).map(|moment| moment.saturating_sub(1))
    }

    /// Returns true if the block is active at a moment: allocated or pending free. False before its
    /// allocation and once the free is completed.
    #[must_use]
    pub fn is_active_at(&self, moment: u64) -> bool {
        self.first_moment <= moment && self.active_until.is_none_or(|until| until > moment)
    }

    /// Returns true if the block is allocated at a moment: allocated by then, and not freed by the
    /// program.
    #[must_use]
    pub fn is_allocated_at(&self, moment: u64) -> bool {
        self.first_moment <= moment && self.allocated_until.is_none_or(|until| until > moment)
    }
}

/// The origin of an allocation's request: site, stream and pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AllocationOrigin {
    /// Where the request was made.
    pub site: SiteId,
    /// The stream on which it was allocated.
    pub stream: StreamId,
    /// The pool that served the request.
    pub pool: PoolKey,
}

/// The times, size and origin of an [`Allocation`]. Scans over all allocations use it, because it
/// is faster to read than a whole `Allocation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationRow {
    /// The row number, which identifies the allocation within its device's lifetimes.
    pub row: u32,
    /// The number of its origin, see [`DeviceLifetimes::origins`](crate::DeviceLifetimes::origins).
    pub origin: u32,
    /// Size of the block in bytes, after rounding.
    pub size: u64,
    /// Size that the program requested, in bytes; at most `size`.
    pub requested: u64,
    /// The first moment at which it is known to exist.
    pub first_moment: u64,
    /// Whether its allocating event was recorded.
    pub start_observed: bool,
    /// The first moment after the program freed it; `None` if it was not freed by the end.
    pub allocated_until: Option<u64>,
    /// The first moment at which its memory can be reused; `None` if that is after the end.
    pub active_until: Option<u64>,
}

/// The start or the end of an allocation, or half of a relabel, see
/// [`DeviceLifetimes::changes`](crate::DeviceLifetimes::changes).
///
/// A relabel is an end with the old origin, directly followed by a start with the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowChange {
    /// The first moment after the change: the number of the event that made it.
    pub moment: u64,
    /// The row number of the allocation.
    pub row: u32,
    /// True if the block became active (was allocated); false if its memory can be reused from now
    /// on.
    pub is_start: bool,
    /// True for both halves of a relabel: the allocation goes on, only its origin changes.
    pub is_relabel: bool,
    /// Size of the block in bytes, after rounding.
    pub size: u64,
    /// The number of its origin, see [`DeviceLifetimes::origins`](crate::DeviceLifetimes::origins).
    pub origin: u32,
}
