//! From events to lifetimes.

use std::collections::BTreeMap;

use super::Lifetimes;
use super::open::OpenAllocations;
use super::queries::{DeviceLifetimes, LiveSets};
use super::rows::{NewRow, Rows};
use crate::device_state::DeviceState;
use crate::event::{DeviceId, Event, EventKind};
use crate::state::{Block, MemoryState, is_range};

/// Rows after which the live set is noted again, at least.
const LIVE_SET_ROWS: usize = 4096;

/// Takes the events of a recording in order and makes [`Lifetimes`] of them, at 20 million events a second and more.
///
/// What is there before the first event, and after events that are missing, comes as a full state. Every other full state may be
/// given too, and settles what contradictory events left open.
#[derive(Clone, Debug, Default)]
pub struct LifetimesBuilder {
    devices: Vec<DeviceBuilder>,
    /// The place in `devices`.
    by_id: BTreeMap<DeviceId, usize>,
    /// The device of the last event and its place.
    last: Option<(DeviceId, usize)>,
}

#[derive(Clone, Debug, Default)]
struct DeviceBuilder {
    rows: Rows,
    open: OpenAllocations,
    live_sets: LiveSets,
    /// The moment after the last event; never goes back.
    moment: u64,
    left_out: u64,
}

impl LifetimesBuilder {
    /// Before the first event.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn place(&mut self, id: DeviceId) -> usize {
        let next = self.devices.len();
        let place = *self.by_id.entry(id).or_insert(next);
        if place == next {
            self.devices.push(DeviceBuilder::default());
        }
        self.last = Some((id, place));
        place
    }

    /// Takes event number `number`; numbers must not go back.
    #[inline]
    pub fn event(&mut self, number: u64, event: &Event) {
        // Devices that have no blocks need no lifetimes.
        if !matches!(
            event.kind,
            EventKind::BlockAllocated { .. } | EventKind::FreeRequested { .. } | EventKind::FreeCompleted { .. }
        ) {
            return;
        }
        let place = match self.last {
            Some((id, place)) if id == event.device => place,
            _ => self.place(event.device),
        };
        self.devices[place].event(number, event);
    }

    /// Takes the state of all devices at the moment [`MemoryState::event`]. What is there and was not seen to come has no birth; what is
    /// not there and was not seen to go is over, its end unseen. It costs the number of blocks.
    pub fn full_state(&mut self, state: &MemoryState) {
        for (id, device) in state.devices() {
            let place = self.place(id);
            self.devices[place].reconcile(state.event(), device);
        }
        let nothing = DeviceState::default();
        for (&id, &place) in &self.by_id {
            if state.device(id).is_none() {
                self.devices[place].reconcile(state.event(), &nothing);
            }
        }
    }

    /// All lifetimes.
    #[must_use]
    pub fn finish(self) -> Lifetimes {
        let mut builders: Vec<Option<DeviceBuilder>> = self.devices.into_iter().map(Some).collect();
        let devices = self.by_id.into_iter().filter_map(|(id, place)| {
            let DeviceBuilder { mut rows, mut live_sets, left_out, open, .. } = builders[place].take()?;
            drop(open);
            rows.finish();
            live_sets.finish();
            Some((id, DeviceLifetimes::new(rows, live_sets, left_out)))
        });
        Lifetimes { devices: devices.collect() }
    }
}

impl DeviceBuilder {
    #[inline]
    fn event(&mut self, number: u64, event: &Event) {
        self.moment = self.moment.max(number.saturating_add(1));
        match event.kind {
            EventKind::BlockAllocated { address, size, requested, stream, pool, site } => {
                let requested = requested.min(size);
                let first_moment = self.moment;
                self.allocate(NewRow { first_moment, unseen: false, address, size, requested, stream, pool, site });
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
            self.left_out += 1;
            return None;
        };
        if let Some(contradicted) = self.open.insert(new.address, row) {
            self.rows.end(contradicted, self.moment, true);
        }
        // So far apart that all of them take no more memory than a column does.
        if self.rows.len() - self.live_sets.rows() >= LIVE_SET_ROWS.max(2 * self.open.places()) {
            self.live_sets.note(self.moment, &self.rows, self.open.iter().map(|(_, row)| row));
        }
        Some(row)
    }

    fn reconcile(&mut self, moment: u64, state: &DeviceState) {
        let seen_until = self.moment;
        self.moment = self.moment.max(moment);
        let gone: Vec<(u64, u32)> = self
            .open
            .iter()
            .filter(|&(address, row)| {
                let block = state.block_at(address).filter(|block| block.address == address);
                !block.is_some_and(|block| self.is_same(row, block, seen_until))
            })
            .collect();
        for (address, row) in gone {
            self.open.remove(address);
            self.rows.end(row, self.moment, true);
        }
        for block in state.blocks() {
            let Block { address, size, requested, stream, pool, site, pending_free, .. } = *block;
            let row = self.open.get(address).or_else(|| {
                let first_moment = self.moment;
                self.allocate(NewRow { first_moment, unseen: true, address, size, requested, stream, pool, site })
            });
            if let Some(row) = row.filter(|_| pending_free) {
                self.rows.free(row, self.moment);
            }
        }
    }

    /// Whether a block may be the allocation of a row that was last heard of at the moment `seen_until`.
    fn is_same(&self, row: u32, block: &Block, seen_until: u64) -> bool {
        let (number, index) = Rows::place(row);
        let known = self.rows.get(number, index);
        let attributes = (block.size, block.requested, block.stream, block.pool, block.site);
        (known.size, known.requested, known.stream, known.pool, known.site) == attributes
            && (known.allocated_until.is_none() || block.pending_free)
            && block.since_event <= seen_until
    }
}
