//! The rules by which allocations begin and end, independent of how allocations are stored.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::lifetime::EventTime;
use crate::device_state::DeviceState;
use crate::event::{DeviceId, Event, EventKind, PoolKey, Relabel, StreamId};
use crate::memory_state::MemoryState;
use crate::segment::{Block, is_range};
use crate::site::SiteId;

/// The evidence that an allocation began or ended: its own event, or a full state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// Its own event.
    Event,
    /// The full state at the recording's beginning.
    FirstState,
    /// A full state after missing events, or the state that a contradictory event led to.
    State,
}

/// The moment and time at which an allocation began, was freed or ended, and the evidence for that.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChangeTime {
    /// The first moment after the change.
    pub(super) moment: u64,
    /// The event of the change; for a full state, the event that follows it.
    pub(super) time: EventTime,
    pub(super) evidence: Evidence,
}

/// An allocation that has not ended (is open), for comparison with the block at its address in a
/// full state.
#[derive(Clone, Debug)]
pub(super) struct OpenAllocation {
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) stream: StreamId,
    pub(super) pool: PoolKey,
    /// Where it was allocated.
    pub(super) allocation_site: SiteId,
    /// Whether the program has freed it.
    pub(super) is_freed: bool,
    /// Range of the possible indexes of its allocating event.
    pub(super) since_event: RangeInclusive<u64>,
}

impl OpenAllocation {
    /// Returns true if `block`, which a full state has at the same address, is this allocation;
    /// false if it is a later one. `allocation_site` is where the block was allocated.
    fn is_same(&self, block: &Block, allocation_site: SiteId) -> bool {
        (self.size, self.requested, self.stream, self.pool, self.allocation_site)
            == (block.size, block.requested, block.stream, block.pool, allocation_site)
            && (!self.is_freed || block.pending_free)
            && self.since_event.contains(&block.since_event)
    }
}

/// The allocations of one device that have not ended (are open). Calls the visitor `V` when an
/// allocation begins or ends.
///
/// The two implementations differ in the data that they store, and in one rule: see
/// [`start`](Self::start).
pub(super) trait AllocationStore<V> {
    /// The error that a call of the visitor `V` may return, which ends the walk.
    type Error;

    /// Returns the open allocation that begins at exactly `address`, or `None`.
    fn open_at(&self, address: u64) -> Option<OpenAllocation>;

    /// Returns the addresses of all allocations that have not ended.
    fn addresses(&self) -> impl Iterator<Item = u64>;

    /// Adds an allocation of `block` that begins at `at`. An open allocation at its address ends,
    /// without a recorded end.
    ///
    /// A store ordered by address also ends allocations that overlap the block without beginning at
    /// its address. In a hash table they stay open until the next full state, because finding them
    /// would take a search for every allocation, and only contradictory histories have any.
    fn start(&mut self, device: DeviceId, block: &Block, at: ChangeTime, visit: &mut V) -> Result<(), Self::Error>;

    /// Gives the open allocation at `address` the site `site` from `at` on; does nothing if it has
    /// that site, or no allocation is open there.
    fn relabel(&mut self, address: u64, site: SiteId, at: ChangeTime, visit: &mut V) -> Result<(), Self::Error>;

    /// Records that the program freed the open allocation at `address`, with `at` as the time; does
    /// nothing if no allocation is open there or it was freed before.
    fn free(&mut self, address: u64, at: ChangeTime);

    /// Ends the open allocation at `address`, with `at` as the time; does nothing if no allocation
    /// is open there.
    fn end(&mut self, address: u64, at: ChangeTime, visit: &mut V) -> Result<(), Self::Error>;
}

/// Follows the allocations of all devices by their events; the allocations of each device are in a
/// store `S`.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceTrackers<S> {
    /// The store that a new device begins with.
    empty: S,
    stores: Vec<S>,
    /// Index in `stores`.
    by_id: BTreeMap<DeviceId, usize>,
    /// The device of the last event and its index in `stores`.
    last: Option<(DeviceId, usize)>,
}

impl<S> DeviceTrackers<S> {
    /// Returns the store with the allocations of a device, or `None` if the device has had no
    /// event.
    pub(super) fn device(&self, id: DeviceId) -> Option<&S> {
        Some(&self.stores[*self.by_id.get(&id)?])
    }

    /// Returns the devices' ids, in ascending order, with the stores of their allocations.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (DeviceId, &S)> + '_ {
        self.by_id.iter().map(|(&id, &index)| (id, &self.stores[index]))
    }

    /// Returns the stores with the devices' allocations, in no particular order.
    pub(super) fn stores_mut(&mut self) -> &mut [S] {
        &mut self.stores
    }

    /// Returns the devices' ids, in ascending order, with the stores of their allocations, which it
    /// consumes.
    pub(super) fn into_devices(self) -> impl Iterator<Item = (DeviceId, S)> {
        let mut stores: Vec<Option<S>> = self.stores.into_iter().map(Some).collect();
        self.by_id.into_iter().filter_map(move |(id, index)| Some((id, stores[index].take()?)))
    }
}

impl<S: Clone> DeviceTrackers<S> {
    /// Creates trackers without a device; each device begins with a copy of `empty`.
    pub(super) fn new(empty: S) -> Self {
        Self { empty, stores: Vec::new(), by_id: BTreeMap::new(), last: None }
    }

    /// Returns the store with the allocations of a device, adding an empty one if the device is
    /// new.
    #[inline]
    fn device_mut(&mut self, id: DeviceId) -> &mut S {
        let index = match self.last {
            Some((last, index)) if last == id => index,
            _ => self.find_or_add(id),
        };
        &mut self.stores[index]
    }

    /// Returns the index of a device's store in `stores`, adding the store if needed.
    fn find_or_add(&mut self, id: DeviceId) -> usize {
        let next = self.stores.len();
        let index = *self.by_id.entry(id).or_insert(next);
        if index == next {
            self.stores.push(self.empty.clone());
        }
        self.last = Some((id, index));
        index
    }

    /// Applies `event`, whose index and time are `time`, to the allocations of its device.
    #[inline]
    pub(super) fn event<V>(&mut self, time: EventTime, event: &Event, visit: &mut V) -> Result<(), S::Error>
    where
        S: AllocationStore<V>,
    {
        let at = ChangeTime { moment: time.event.saturating_add(1), time, evidence: Evidence::Event };
        match event.kind {
            EventKind::BlockAllocated { address, size, requested, stream, pool, site } => {
                if !is_range(address, size) {
                    return Ok(());
                }
                let block = Block {
                    address,
                    size,
                    requested: requested.min(size),
                    stream,
                    pool,
                    site,
                    pending_free: false,
                    since_event: time.event,
                    since_ns: event.time_ns,
                };
                self.device_mut(event.device).start(event.device, &block, at, visit)
            }
            EventKind::FreeRequested { address, .. } => {
                self.device_mut(event.device).free(address, at);
                Ok(())
            }
            EventKind::FreeCompleted { address, .. } => self.device_mut(event.device).end(address, at, visit),
            _ => Ok(()),
        }
    }

    /// Gives an open allocation the site of `relabel`. `time` has the index of the event that
    /// follows, with which it takes effect, and the time of the relabel.
    pub(super) fn relabel<V>(&mut self, time: EventTime, relabel: &Relabel, visit: &mut V) -> Result<(), S::Error>
    where
        S: AllocationStore<V>,
    {
        let at = ChangeTime { moment: time.event.saturating_add(1), time, evidence: Evidence::Event };
        self.device_mut(relabel.device).relabel(relabel.address, relabel.site, at, visit)
    }

    /// Adopts a full state of all devices: ends the open allocations whose blocks it lacks, and
    /// begins one for each block without an open allocation. A device that it lacks has no blocks.
    pub(super) fn replace_state<V>(
        &mut self,
        state: &MemoryState,
        evidence: Evidence,
        visit: &mut V,
    ) -> Result<(), S::Error>
    where
        S: AllocationStore<V>,
    {
        let time = EventTime { event: state.event(), time_ns: state.time_ns() };
        let at = ChangeTime { moment: state.event(), time, evidence };
        let empty = DeviceState::default();
        let absent: Vec<DeviceId> = self.by_id.keys().copied().filter(|&id| state.device(id).is_none()).collect();
        absent.into_iter().try_for_each(|id| self.device_state(id, &empty, at, visit))?;
        state.devices().try_for_each(|(id, device)| self.device_state(id, device, at, visit))
    }

    /// Adopts the state of one device: ends the open allocations whose blocks it lacks, and begins
    /// one for each block without an open allocation.
    pub(super) fn device_state<V>(
        &mut self,
        id: DeviceId,
        state: &DeviceState,
        at: ChangeTime,
        visit: &mut V,
    ) -> Result<(), S::Error>
    where
        S: AllocationStore<V>,
    {
        let store = self.device_mut(id);
        let is_open = |address: u64| {
            let block = state.block_at(address).filter(|block| block.address == address);
            block.is_some_and(|block| {
                store.open_at(address).is_some_and(|open| open.is_same(block, state.allocation_site(block)))
            })
        };
        let absent: Vec<u64> = store.addresses().filter(|&address| !is_open(address)).collect();
        absent.into_iter().try_for_each(|address| store.end(address, at, visit))?;
        for block in state.blocks() {
            if store.open_at(block.address).is_none() {
                let allocated = Block { site: state.allocation_site(block), ..*block };
                store.start(id, &allocated, at, visit)?;
            } else if block.pending_free {
                store.free(block.address, at);
            }
            store.relabel(block.address, block.site, at, visit)?;
        }
        Ok(())
    }
}
