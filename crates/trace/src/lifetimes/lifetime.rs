//! One allocation with the numbers and times of the events that it began and ended with.

use crate::event::DeviceId;
use crate::segment::Block;

/// The index (from 0) and the time of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventTime {
    /// Index of the event, from 0.
    pub event: u64,
    /// Time in nanoseconds; never before that of an earlier event.
    pub time_ns: u64,
}

/// An allocation and the events that began and ended it, as far as the recording has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Device of the block.
    pub device: DeviceId,
    /// The block, as it was allocated, but with the site of its last relabel.
    pub block: Block,
    /// When it was allocated; `None` if it is older than the recording.
    pub allocated: Option<EventTime>,
    /// When the program freed it; for an allocation whose end is lost, when it was found missing.
    pub freed: Option<EventTime>,
    /// When its block returned to its pool; for an allocation whose end is lost, when it was found
    /// missing.
    pub completed: Option<EventTime>,
    /// Whether its allocating event was recorded. If not, but `allocated` is set, the time of its
    /// allocation is from a full state after missing events.
    pub start_observed: bool,
}

/// The ending of an allocation: freed, still in use at the end of the recording, or without a
/// recorded end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifetimeEnding {
    /// Freed, and its block returned to its pool.
    Freed,
    /// Freed, but a stream still used its block when the recording ended.
    Pending,
    /// Live when the recording ended.
    Alive,
    /// Its end is not recorded: events are missing, or a later event contradicts it.
    Lost,
}

impl LifetimeEnding {
    /// Returns the word for this ending in tables, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Freed => "freed",
            Self::Pending => "pending",
            Self::Alive => "alive",
            Self::Lost => "lost",
        }
    }
}

/// The start or the end of an allocation or its relabel, as a
/// [`LifetimeTracker`](crate::LifetimeTracker) reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifetimeChange<'a> {
    /// An allocation began.
    Began(&'a Lifetime),
    /// An allocation, given with its new site, was relabeled at this time.
    Relabeled(&'a Lifetime, EventTime),
    /// An allocation ended, or the recording did.
    Ended(&'a Lifetime, LifetimeEnding),
}
