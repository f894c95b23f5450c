//! Builds lifetimes from events.

use super::device_trackers::{DeviceTrackers, Evidence};
use super::indexed_allocations::IndexedAllocations;
use super::lifetime::EventTime;
use super::lifetime_index::Lifetimes;
use crate::event::{Annotation, Event, Relabel};
use crate::memory_state::MemoryState;

/// Builds [`Lifetimes`] from the events of a recording in order, at 20 million events a second and
/// more.
///
/// Memory that was in use before the first event, or where events are missing, comes as a full
/// state ([`replace_state`](Self::replace_state)). Other full states may be added, too: they end
/// allocations that an inconsistent history left open. [`Lifetimes`] shows an example.
///
/// The lifetimes can be queried at any time ([`lifetimes`](Self::lifetimes)), at no cost for
/// building them.
#[derive(Clone, Debug, Default)]
pub struct LifetimesBuilder {
    lifetimes: Lifetimes,
}

impl LifetimesBuilder {
    /// Creates a builder that expects the first event.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a builder that expects the first event and also keeps a list of all starts and ends
    /// ([`DeviceLifetimes::changes`](crate::DeviceLifetimes::changes)), at 4 bytes each.
    #[must_use]
    pub fn with_changes() -> Self {
        let devices = DeviceTrackers::new(IndexedAllocations::new(true));
        Self { lifetimes: Lifetimes { devices, ..Lifetimes::default() } }
    }

    /// Adds the event with index `index` (from 0) in the recording. Indexes must not decrease.
    #[inline]
    pub fn event(&mut self, index: u64, event: &Event) {
        let time = EventTime { event: index, time_ns: event.time_ns };
        let Ok(()) = self.lifetimes.devices.event(time, event, &mut ());
    }

    /// Adds a relabel before the event with index `index` (from 0), with which it takes effect.
    pub fn relabel(&mut self, index: u64, relabel: &Relabel) {
        let time = EventTime { event: index, time_ns: relabel.time_ns };
        let Ok(()) = self.lifetimes.devices.relabel(time, relabel, &mut ());
    }

    /// Adds a mark (an event that names a moment) to [`Lifetimes::marks`].
    pub(super) fn mark(&mut self, mark: Annotation) {
        self.lifetimes.marks.push(mark);
    }

    /// Adds a full state of all devices.
    ///
    /// Blocks without a recorded allocating event start here with
    /// [`start_observed`](crate::Allocation::start_observed) false; allocations that the state
    /// lacks end here with [`end_observed`](crate::Allocation::end_observed) false. The cost is
    /// linear in the number of blocks.
    pub fn replace_state(&mut self, state: &MemoryState) {
        let Ok(()) = self.lifetimes.devices.replace_state(state, Evidence::State, &mut ());
    }

    /// Returns the lifetimes of all allocations added so far, by device. At this moment an
    /// allocation that ends later has no end.
    #[must_use]
    pub fn lifetimes(&self) -> &Lifetimes {
        &self.lifetimes
    }

    /// Returns the lifetimes of all allocations added, by device, and frees the memory that only
    /// building them needs.
    #[must_use]
    pub fn finish(mut self) -> Lifetimes {
        self.lifetimes.devices.stores_mut().iter_mut().for_each(IndexedAllocations::finish);
        self.lifetimes
    }
}
