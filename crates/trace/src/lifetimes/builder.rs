//! Builds lifetimes from events.

use std::collections::BTreeMap;

use super::allocation_table::{AllocationTable, NewRow};
use super::live_sets::LiveSets;
use super::open_allocations::OpenAllocations;
use super::queries::{DeviceLifetimes, Lifetimes};
use crate::device_state::DeviceState;
use crate::event::{DeviceId, Event, EventKind};
use crate::memory_state::MemoryState;
use crate::segment::{Block, is_range};

/// Least number of rows between two stored live sets.
const LIVE_SET_ROWS: usize = 4096;

/// Builds [`Lifetimes`] from the events of a recording in order, at 20 million events a second and
/// more.
///
/// Memory that was in use before the first event, or where events are missing, comes as a full
/// state ([`full_state`](Self::full_state)). Other full states may be added, too; they end
/// allocations that an inconsistent history left open. [`Lifetimes`] shows an example.
#[derive(Clone, Debug, Default)]
pub struct LifetimesBuilder {
    devices: Vec<DeviceBuilder>,
    /// Index in `devices`.
    by_id: BTreeMap<DeviceId, usize>,
    /// The device of the last event and its index in `devices`.
    last: Option<(DeviceId, usize)>,
}

#[derive(Clone, Debug, Default)]
struct DeviceBuilder {
    rows: AllocationTable,
    open: OpenAllocations,
    live_sets: LiveSets,
    /// The moment after the last event; never decreases.
    moment: u64,
    omitted_allocations: u64,
}

impl LifetimesBuilder {
    /// Creates a builder that expects the first event.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the index of a device in `devices`, adding it if needed.
    fn device_index(&mut self, id: DeviceId) -> usize {
        let next = self.devices.len();
        let position = *self.by_id.entry(id).or_insert(next);
        if position == next {
            self.devices.push(DeviceBuilder::default());
        }
        self.last = Some((id, position));
        position
    }

    /// Adds the event with index `index` (from 0). Indexes must not decrease.
    #[inline]
    pub fn event(&mut self, index: u64, event: &Event) {
        // Devices without blocks are not listed.
        if !matches!(
            event.kind,
            EventKind::BlockAllocated { .. } | EventKind::FreeRequested { .. } | EventKind::FreeCompleted { .. }
        ) {
            return;
        }
        let position = match self.last {
            Some((id, position)) if id == event.device => position,
            _ => self.device_index(event.device),
        };
        self.devices[position].event(index, event);
    }

    /// Adds a full state of all devices.
    ///
    /// Blocks without a recorded allocating event start here with
    /// [`start_observed`](crate::Allocation::start_observed) false; allocations that the state
    /// lacks end here with [`end_observed`](crate::Allocation::end_observed) false. The cost is
    /// linear in the number of blocks.
    pub fn full_state(&mut self, state: &MemoryState) {
        for (id, device) in state.devices() {
            let position = self.device_index(id);
            self.devices[position].reconcile(state.event(), device);
        }
        let nothing = DeviceState::default();
        for (&id, &position) in &self.by_id {
            if state.device(id).is_none() {
                self.devices[position].reconcile(state.event(), &nothing);
            }
        }
    }

    /// Returns all lifetimes.
    #[must_use]
    pub fn finish(self) -> Lifetimes {
        let mut builders: Vec<Option<DeviceBuilder>> = self.devices.into_iter().map(Some).collect();
        let devices = self.by_id.into_iter().filter_map(|(id, position)| {
            let DeviceBuilder { mut rows, mut live_sets, omitted_allocations, open, .. } = builders[position].take()?;
            drop(open);
            rows.finish();
            live_sets.finish();
            Some((id, DeviceLifetimes::new(rows, live_sets, omitted_allocations)))
        });
        Lifetimes::new(devices.collect())
    }
}

impl DeviceBuilder {
    #[inline]
    fn event(&mut self, index: u64, event: &Event) {
        self.moment = self.moment.max(index.saturating_add(1));
        match event.kind {
            EventKind::BlockAllocated { address, size, requested, stream, pool, site } => {
                let requested = requested.min(size);
                let first_moment = self.moment;
                self.allocate(NewRow {
                    first_moment,
                    start_unobserved: false,
                    address,
                    size,
                    requested,
                    stream,
                    pool,
                    site,
                });
            }
            EventKind::FreeRequested { address, .. } => {
                if let Some(row) = self.open.get(address) {
                    self.rows.free(row, self.moment);
                }
            }
            EventKind::FreeCompleted { address, .. } => {
                if let Some(row) = self.open.remove(address) {
                    self.rows.end(row, self.moment, false);
                }
            }
            _ => {}
        }
    }

    #[inline]
    fn allocate(&mut self, new: NewRow) -> Option<u32> {
        if !is_range(new.address, new.size) {
            return None;
        }
        let Some(row) = self.rows.push(new) else {
            self.omitted_allocations += 1;
            return None;
        };
        if let Some(contradicted) = self.open.insert(new.address, row) {
            self.rows.end(contradicted, self.moment, true);
        }
        // Sets are stored so rarely that all of them take no more memory than one column.
        if self.rows.len() - self.live_sets.rows() >= LIVE_SET_ROWS.max(2 * self.open.slot_count()) {
            self.live_sets.store(self.moment, &self.rows, self.open.iter().map(|(_, row)| row));
        }
        Some(row)
    }

    /// Ends the open allocations that `state` lacks and starts those that only `state` has.
    fn reconcile(&mut self, moment: u64, state: &DeviceState) {
        let observed_until = self.moment;
        self.moment = self.moment.max(moment);
        let ended: Vec<(u64, u32)> = self
            .open
            .iter()
            .filter(|&(address, row)| {
                let block = state.block_at(address).filter(|block| block.address == address);
                !block.is_some_and(|block| self.is_same(row, block, observed_until))
            })
            .collect();
        for (address, row) in ended {
            self.open.remove(address);
            self.rows.end(row, self.moment, true);
        }
        for block in state.blocks() {
            let Block { address, size, requested, stream, pool, site, pending_free, .. } = *block;
            let row = self.open.get(address).or_else(|| {
                let first_moment = self.moment;
                self.allocate(NewRow {
                    first_moment,
                    start_unobserved: true,
                    address,
                    size,
                    requested,
                    stream,
                    pool,
                    site,
                })
            });
            if let Some(row) = row.filter(|_| pending_free) {
                self.rows.free(row, self.moment);
            }
        }
    }

    /// Returns true if `block` can be the allocation of `row`, whose last known moment is
    /// `observed_until`.
    fn is_same(&self, row: u32, block: &Block, observed_until: u64) -> bool {
        let (group, index) = AllocationTable::position(row);
        let known = self.rows.get(group, index);
        let attributes = (block.size, block.requested, block.stream, block.pool, block.site);
        (known.size, known.requested, known.stream, known.pool, known.site) == attributes
            && (known.allocated_until.is_none() || block.pending_free)
            && block.since_event <= observed_until
    }
}
