//! Builds lifetimes from events.

use std::convert::Infallible;

use super::allocation_table::{AllocationTable, NewRow};
use super::device_trackers::{AllocationStore, ChangeTime, DeviceTrackers, Evidence, OpenAllocation};
use super::lifetime::EventTime;
use super::live_sets::LiveSets;
use super::open_allocations::OpenAllocations;
use super::queries::{DeviceLifetimes, Lifetimes};
use crate::event::{DeviceId, Event};
use crate::memory_state::MemoryState;
use crate::segment::Block;

/// Least number of new allocations between two stored sets of active allocations ([`LiveSets`]).
const LIVE_SET_ROWS: usize = 4096;

/// Builds [`Lifetimes`] from the events of a recording in order, at 20 million events a second and
/// more.
///
/// Memory that was in use before the first event, or where events are missing, comes as a full
/// state ([`full_state`](Self::full_state)). Other full states may be added, too; they end
/// allocations that an inconsistent history left open. [`Lifetimes`] shows an example.
#[derive(Clone, Debug, Default)]
pub struct LifetimesBuilder {
    devices: DeviceTrackers<IndexedAllocations>,
}

/// All allocations of one device, and which of them have not ended (are open).
#[derive(Clone, Debug, Default)]
struct IndexedAllocations {
    rows: AllocationTable,
    open: OpenAllocations,
    live_sets: LiveSets,
    /// The moment of the last change; never decreases.
    moment: u64,
    omitted_allocations: u64,
}

impl LifetimesBuilder {
    /// Creates a builder that expects the first event.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the event with index `index` (from 0) in the recording. Indexes must not decrease.
    #[inline]
    pub fn event(&mut self, index: u64, event: &Event) {
        let time = EventTime { event: index, time_ns: event.time_ns };
        let Ok(()) = self.devices.event(time, event, &mut ());
    }

    /// Adds a full state of all devices.
    ///
    /// Blocks without a recorded allocating event start here with
    /// [`start_observed`](crate::Allocation::start_observed) false; allocations that the state
    /// lacks end here with [`end_observed`](crate::Allocation::end_observed) false. The cost is
    /// linear in the number of blocks.
    pub fn full_state(&mut self, state: &MemoryState) {
        let Ok(()) = self.devices.full_state(state, Evidence::State, &mut ());
    }

    /// Returns the lifetimes of all allocations added, by device.
    #[must_use]
    pub fn finish(self) -> Lifetimes {
        let devices = self.devices.into_devices().map(|(id, device)| {
            let IndexedAllocations { mut rows, mut live_sets, omitted_allocations, open, .. } = device;
            drop(open);
            rows.finish();
            live_sets.finish();
            (id, DeviceLifetimes::new(rows, live_sets, omitted_allocations))
        });
        Lifetimes::new(devices.collect())
    }
}

impl IndexedAllocations {
    /// Returns the moment of the change `at`, or that of an earlier change if it is later: moments
    /// must not decrease.
    #[inline]
    fn advance(&mut self, at: ChangeTime) -> u64 {
        self.moment = self.moment.max(at.moment);
        self.moment
    }
}

impl AllocationStore<()> for IndexedAllocations {
    type Error = Infallible;

    fn open_at(&self, address: u64) -> Option<OpenAllocation> {
        let (group, index) = AllocationTable::position(self.open.get(address)?);
        let known = self.rows.get(group, index);
        Some(OpenAllocation {
            size: known.size,
            requested: known.requested,
            stream: known.stream,
            pool: known.pool,
            site: known.site,
            is_freed: known.allocated_until.is_some(),
            // The index does not store when an allocation began that a full state revealed.
            since_event: known.allocating_event().unwrap_or(0)..=known.allocating_event().unwrap_or(known.first_moment),
        })
    }

    fn addresses(&self) -> impl Iterator<Item = u64> {
        self.open.iter().map(|(address, _)| address)
    }

    #[inline]
    fn start(&mut self, _: DeviceId, block: &Block, at: ChangeTime, (): &mut ()) -> Result<(), Infallible> {
        let first_moment = self.advance(at);
        let &Block { address, size, requested, stream, pool, site, pending_free, .. } = block;
        let start_unobserved = at.evidence != Evidence::Event;
        let new = NewRow { first_moment, start_unobserved, address, size, requested, stream, pool, site };
        let Some(row) = self.rows.push(new) else {
            self.omitted_allocations += 1;
            return Ok(());
        };
        if let Some(contradicted) = self.open.insert(address, row) {
            self.rows.end(contradicted, first_moment, true);
        }
        if pending_free {
            self.rows.free(row, first_moment);
        }
        // Sets are stored so rarely that all of them take no more memory than one column.
        if self.rows.len() - self.live_sets.rows() >= LIVE_SET_ROWS.max(2 * self.open.slot_count()) {
            self.live_sets.store(first_moment, &self.rows, self.open.iter().map(|(_, row)| row));
        }
        Ok(())
    }

    #[inline]
    fn free(&mut self, address: u64, at: ChangeTime) {
        if let Some(row) = self.open.get(address) {
            let moment = self.advance(at);
            self.rows.free(row, moment);
        }
    }

    #[inline]
    fn end(&mut self, address: u64, at: ChangeTime, (): &mut ()) -> Result<(), Infallible> {
        if let Some(row) = self.open.remove(address) {
            let moment = self.advance(at);
            self.rows.end(row, moment, at.evidence != Evidence::Event);
        }
        Ok(())
    }
}
