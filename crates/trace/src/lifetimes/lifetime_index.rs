//! The lifetimes of all devices.

use super::device_trackers::DeviceTrackers;
use super::indexed_allocations::IndexedAllocations;
use super::queries::DeviceLifetimes;
use crate::event::{Annotation, DeviceId};

/// The lifetimes of all allocations of a recording, by device.
///
/// They can be queried while a [`LifetimesBuilder`](crate::LifetimesBuilder) adds events; they then
/// cover the events added so far.
///
/// ```
/// use vramscope_trace::{
///     DeviceId, Event, EventKind, LifetimesBuilder, PoolKey, SiteId, StreamId,
/// };
///
/// let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
/// let mut builder = LifetimesBuilder::new();
/// for (index, kind) in [
///     EventKind::BlockAllocated { address: 0, size: 512, requested: 400, stream, pool, site },
///     EventKind::BlockAllocated { address: 512, size: 512, requested: 512, stream, pool, site },
///     EventKind::FreeCompleted { address: 0, site },
/// ].into_iter().enumerate() {
///     builder.event(index as u64, &Event { device: DeviceId(0), time_ns: 0, kind });
/// }
/// let lifetimes = builder.finish();
/// let device = lifetimes.device(DeviceId(0)).expect("it has events");
/// assert_eq!(device.live_at(2).count(), 2);
/// let leak = device.survivors(0..3, u64::MAX).next().expect("the second block is not freed");
/// assert_eq!((leak.address, leak.allocating_event()), (512, Some(1)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Lifetimes {
    pub(super) devices: DeviceTrackers<IndexedAllocations>,
    /// Marks that were read from a recording whose annotations lack them.
    pub(super) marks: Vec<Annotation>,
}

impl Lifetimes {
    /// Returns the devices with events, in the order of their ids.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = (DeviceId, &DeviceLifetimes)> + '_ {
        self.devices.iter().map(|(id, device)| (id, device.lifetimes()))
    }

    /// Returns the lifetimes of one device, or `None` if it has had no event.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> Option<&DeviceLifetimes> {
        self.devices.device(id).map(IndexedAllocations::lifetimes)
    }

    /// Returns the marks among the events that a [`LifetimesReader`](crate::LifetimesReader) has
    /// read from a recording that was opened by its index, whose annotations lack marks; empty for
    /// other recordings. [`Recording::add_marks`](crate::Recording::add_marks) adds them.
    #[must_use]
    pub fn marks(&self) -> &[Annotation] {
        &self.marks
    }

    /// Returns the memory that all lifetimes occupy, in bytes, approximately.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let devices: usize = self.devices.iter().map(|(_, device)| device.memory_bytes()).sum();
        devices + size_of_val(self.marks())
    }
}
