//! Follows allocations while a recording is read, and keeps only the open ones.

use std::collections::BTreeMap;

use super::device_trackers::{AllocationStore, ChangeTime, DeviceTrackers, Evidence, OpenAllocation};
use super::lifetime::{EventTime, Lifetime, LifetimeChange, LifetimeEnding};
use crate::device_state::DeviceState;
use crate::event::{DeviceId, Event, Relabel};
use crate::memory_state::MemoryState;
use crate::segment::Block;
use crate::site::SiteId;

/// Follows the allocations of a recording from start to end, in the order of its events.
///
/// Keeps only the allocations that are open, at about 150 bytes each, and reports each as it begins
/// and ends. [`Lifetimes`](crate::Lifetimes) is built by the same rules and can be queried; it
/// takes 23 bytes for every allocation and stores no times.
///
/// The lifetimes add up to the counters of the [`MemoryState`] at every event, also in a history
/// that contradicts itself, if [`verify`](Self::verify) is called after every event.
///
/// ```
/// use vramscope_trace::{
///     DeviceId, Event, EventKind, EventTime, LifetimeChange, LifetimeEnding, LifetimeTracker,
///     PoolKey, SiteId, StreamId,
/// };
///
/// let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
/// let mut tracker = LifetimeTracker::new(0);
/// let mut ends = Vec::new();
/// for (index, kind) in [
///     EventKind::BlockAllocated { address: 0, size: 512, requested: 400, stream, pool, site },
///     EventKind::FreeRequested { address: 0, site },
///     EventKind::FreeCompleted { address: 0, site },
/// ].into_iter().enumerate() {
///     let time = EventTime { event: index as u64, time_ns: 10 * index as u64 };
///     let event = Event { device: DeviceId(0), time_ns: time.time_ns, kind };
///     tracker.event(time, &event, &mut |change| {
///         if let LifetimeChange::Ended(lifetime, ending) = change {
///             ends.push((lifetime.freed.map(|time| time.time_ns), ending));
///         }
///         Ok::<(), std::convert::Infallible>(())
///     })?;
/// }
/// assert_eq!(ends, [(Some(10), LifetimeEnding::Freed)]);
/// # Ok::<(), std::convert::Infallible>(())
/// ```
#[derive(Clone, Debug)]
pub struct LifetimeTracker {
    /// Index of the recording's first event.
    first_event: u64,
    devices: DeviceTrackers<OrderedAllocations>,
}

/// The allocations of one device that have not ended (are open), by address.
#[derive(Clone, Debug, Default)]
struct OrderedAllocations(BTreeMap<u64, OpenLifetime>);

/// An allocation that has not ended, and the site at which it was allocated.
#[derive(Clone, Debug)]
struct OpenLifetime {
    lifetime: Lifetime,
    allocation_site: SiteId,
}

impl LifetimeTracker {
    /// Creates a tracker for a recording whose first event has the index `first_event`. Blocks of
    /// a full state at that moment are older than the recording.
    #[must_use]
    pub fn new(first_event: u64) -> Self {
        Self { first_event, devices: DeviceTrackers::default() }
    }

    /// Returns the allocation that begins at exactly `address` and has not ended, or `None`.
    #[must_use]
    pub fn open_at(&self, device: DeviceId, address: u64) -> Option<&Lifetime> {
        self.devices.device(device)?.0.get(&address).map(|open| &open.lifetime)
    }

    /// Applies the next event, whose index and time are `time`, and calls `visit` for the
    /// allocations that it begins and ends.
    ///
    /// # Errors
    /// Any error of `visit`.
    pub fn event<E>(
        &mut self,
        time: EventTime,
        event: &Event,
        visit: &mut impl FnMut(LifetimeChange<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.devices.event(time, event, visit)
    }

    /// Gives an open allocation the site of `relabel`, and calls `visit` if it had another one.
    /// `time` has the index of the event that follows, and the time of the relabel.
    ///
    /// # Errors
    /// Any error of `visit`.
    pub fn relabel<E>(
        &mut self,
        time: EventTime,
        relabel: &Relabel,
        visit: &mut impl FnMut(LifetimeChange<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.devices.relabel(time, relabel, visit)
    }

    /// Adopts a full state at the beginning or after missing events. Open allocations whose blocks
    /// it lacks end as lost; a block without an open allocation begins one, without a recorded
    /// event.
    ///
    /// # Errors
    /// Any error of `visit`.
    pub fn replace_state<E>(
        &mut self,
        state: &MemoryState,
        visit: &mut impl FnMut(LifetimeChange<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let evidence = if state.event() == self.first_event { Evidence::FirstState } else { Evidence::State };
        self.devices.replace_state(state, evidence, visit)
    }

    /// Adopts `after`, the state of a device after the event at `time`, if its number of blocks
    /// differs from the number of open allocations: the event then contradicted the history. The
    /// numbers differ only if a segment disappeared while it had live blocks.
    ///
    /// # Errors
    /// Any error of `visit`.
    pub fn verify<E>(
        &mut self,
        time: EventTime,
        device: DeviceId,
        after: &DeviceState,
        visit: &mut impl FnMut(LifetimeChange<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.devices.device(device).map_or(0, |open| open.0.len()) == after.blocks().len() {
            return Ok(());
        }
        let at = ChangeTime { moment: time.event.saturating_add(1), time, evidence: Evidence::State };
        self.devices.device_state(device, after, at, visit)
    }

    /// Ends the allocations that are still open, because the recording has ended: `visit` receives
    /// each with [`LifetimeEnding::Pending`] or [`LifetimeEnding::Alive`].
    ///
    /// # Errors
    /// Any error of `visit`.
    pub fn finish<E>(self, visit: &mut impl FnMut(LifetimeChange<'_>) -> Result<(), E>) -> Result<(), E> {
        let open = self.devices.into_devices().flat_map(|(_, open)| open.0.into_values());
        open.into_iter().try_for_each(|OpenLifetime { lifetime, .. }| {
            let ending = if lifetime.freed.is_some() { LifetimeEnding::Pending } else { LifetimeEnding::Alive };
            visit(LifetimeChange::Ended(&lifetime, ending))
        })
    }
}

impl<E, F: FnMut(LifetimeChange<'_>) -> Result<(), E>> AllocationStore<F> for OrderedAllocations {
    type Error = E;

    fn open_at(&self, address: u64) -> Option<OpenAllocation> {
        self.0.get(&address).map(|OpenLifetime { lifetime: Lifetime { block, freed, .. }, allocation_site }| {
            OpenAllocation {
                size: block.size,
                requested: block.requested,
                stream: block.stream,
                pool: block.pool,
                allocation_site: *allocation_site,
                is_freed: freed.is_some(),
                since_event: block.since_event..=block.since_event,
            }
        })
    }

    fn addresses(&self) -> impl Iterator<Item = u64> {
        self.0.keys().copied()
    }

    fn start(&mut self, device: DeviceId, block: &Block, at: ChangeTime, visit: &mut F) -> Result<(), E> {
        let lost = ChangeTime { evidence: Evidence::State, ..at };
        while let Some((&below, overlapped)) = self.0.range(..block.end()).next_back()
            && overlapped.lifetime.block.end() > block.address
        {
            self.end(below, lost, visit)?;
        }
        let lifetime = Lifetime {
            device,
            block: *block,
            allocated: match at.evidence {
                Evidence::Event => Some(at.time),
                Evidence::FirstState => None,
                Evidence::State => Some(EventTime { event: block.since_event, time_ns: block.since_ns }),
            },
            freed: block.pending_free.then_some(at.time),
            completed: None,
            start_observed: at.evidence == Evidence::Event,
        };
        visit(LifetimeChange::Began(&lifetime))?;
        self.0.insert(block.address, OpenLifetime { lifetime, allocation_site: block.site });
        Ok(())
    }

    fn relabel(&mut self, address: u64, site: SiteId, at: ChangeTime, visit: &mut F) -> Result<(), E> {
        let Some(OpenLifetime { lifetime, .. }) = self.0.get_mut(&address) else { return Ok(()) };
        if std::mem::replace(&mut lifetime.block.site, site) == site {
            return Ok(());
        }
        visit(LifetimeChange::Relabeled(lifetime, at.time))
    }

    fn free(&mut self, address: u64, at: ChangeTime) {
        if let Some(OpenLifetime { lifetime, .. }) = self.0.get_mut(&address) {
            lifetime.freed.get_or_insert(at.time);
        }
    }

    fn end(&mut self, address: u64, at: ChangeTime, visit: &mut F) -> Result<(), E> {
        let Some(OpenLifetime { mut lifetime, .. }) = self.0.remove(&address) else { return Ok(()) };
        lifetime.freed.get_or_insert(at.time);
        lifetime.completed = Some(at.time);
        let ending = if at.evidence == Evidence::Event { LifetimeEnding::Freed } else { LifetimeEnding::Lost };
        visit(LifetimeChange::Ended(&lifetime, ending))
    }
}
