//! The lifetime index: when every allocation of a recording began and ended, how large it was and where it came from.
//!
//! It is built in one pass over the events, by [`LifetimesBuilder`], and takes 23 bytes an allocation. What each question costs stands
//! beside it; *n* allocations in all are 13 million in 40 million events, and then a pass over all of one column takes 10 ms or so.
//!
//! Moments are as everywhere: moment *m* is the one after the first *m* events. An allocation made by event *b* and freed by event *f*
//! is there at the moments *b* + 1 to *f*. Two ends matter: from the program's free on it is not *allocated*, and when the last stream is
//! done with it, it is not *active* either and its memory can be handed out again.
//!
//! For a history that fits together, the index holds at each moment the very blocks of the [`MemoryState`](crate::MemoryState). Where
//! it does not, the newer event is believed, as there: an allocation whose address is handed out again is over. One that is overlapped
//! only in part, or whose segment goes away, is over at the next full state.

mod builder;
mod dictionary;
mod open;
mod queries;
mod rows;

use std::collections::BTreeMap;

pub use builder::LifetimesBuilder;
pub use queries::{DeviceLifetimes, Sums};

use crate::event::{DeviceId, Pool, StreamId};
use crate::site::SiteId;

/// One allocation, from its beginning to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// First byte.
    pub address: u64,
    /// Bytes of the block, after rounding.
    pub size: u64,
    /// Bytes asked for; at most `size`.
    pub requested: u64,
    /// The stream it was allocated on.
    pub stream: StreamId,
    /// The pool it was taken from.
    pub pool: Pool,
    /// Where the request came from.
    pub site: SiteId,
    /// The first moment at which it is known to be there.
    pub first_moment: u64,
    /// Whether its beginning was seen; else it was there before the first event, or came where events are missing.
    pub seen_to_begin: bool,
    /// The first moment at which the program has freed it; `None` where it has not at the end.
    pub allocated_until: Option<u64>,
    /// The first moment at which its memory is free; `None` where it is not at the end.
    pub active_until: Option<u64>,
    /// Whether its end was seen, if it has one; else it was gone after a gap, or a later event contradicted that it was still there.
    pub seen_to_end: bool,
}

impl Allocation {
    /// The number of the event that allocated it; `None` where that was before the first event, or where events are missing.
    #[must_use]
    pub fn birth(&self) -> Option<u64> {
        self.first_moment.checked_sub(1).filter(|_| self.seen_to_begin)
    }

    /// The number of the event with which the program freed it; `None` where it did not, or nobody saw it. Sources without an entry for
    /// that have one for the completed free.
    #[must_use]
    pub fn free_requested(&self) -> Option<u64> {
        let seen = self.seen_to_end || self.allocated_until != self.active_until;
        self.allocated_until.filter(|_| seen).map(|moment| moment.saturating_sub(1))
    }

    /// The number of the event that made its memory free; `None` where there is none, or nobody saw it.
    #[must_use]
    pub fn free_completed(&self) -> Option<u64> {
        self.active_until.filter(|_| self.seen_to_end).map(|moment| moment.saturating_sub(1))
    }

    /// Whether it is there at a moment: allocated, or freed while a stream still uses it.
    #[must_use]
    pub fn is_active_at(&self, moment: u64) -> bool {
        self.first_moment <= moment && self.active_until.is_none_or(|until| until > moment)
    }

    /// Whether it is there at a moment and the program has not freed it.
    #[must_use]
    pub fn is_allocated_at(&self, moment: u64) -> bool {
        self.first_moment <= moment && self.allocated_until.is_none_or(|until| until > moment)
    }
}

/// The lifetimes of every device.
#[derive(Clone, Debug, Default)]
pub struct Lifetimes {
    devices: BTreeMap<DeviceId, DeviceLifetimes>,
}

impl Lifetimes {
    /// The devices that were heard of, by number.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = (DeviceId, &DeviceLifetimes)> + '_ {
        self.devices.iter().map(|(&id, device)| (id, device))
    }

    /// One device.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> Option<&DeviceLifetimes> {
        self.devices.get(&id)
    }

    /// Bytes of memory that they occupy, about.
    #[must_use]
    pub fn size_in_memory(&self) -> usize {
        self.devices.values().map(DeviceLifetimes::size_in_memory).sum()
    }
}
