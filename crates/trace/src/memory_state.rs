//! The memory of every device at one moment.
//!
//! Only segments and active blocks are stored. The allocator merges adjacent free blocks, so each
//! gap between two active blocks of a segment is exactly one free block.

use std::collections::BTreeMap;

use crate::counters::Counters;
use crate::device_state::DeviceState;
use crate::event::{DeviceId, Event, Relabel};

/// The segments and active blocks of every device at one moment: after the first
/// [`event`](Self::event) events of a recording.
///
/// ```
/// use vramscope_trace::{DeviceId, Event, EventKind, MemoryState, PoolKey, SiteId, StreamId};
///
/// let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
/// let mut state = MemoryState::default();
/// for kind in [
///     EventKind::SegmentAllocated { address: 0x1000, size: 2 << 20, stream, pool, site },
///     EventKind::BlockAllocated { address: 0x1000, size: 512, requested: 400, stream, pool, site },
/// ] {
///     state.apply(&Event { device: DeviceId(0), time_ns: 0, kind });
/// }
/// let device = state.device(DeviceId(0)).expect("the events created it");
/// assert_eq!(state.event(), 2);
/// assert_eq!(device.counters().allocated, 512);
/// assert_eq!(device.free_space().largest, (2 << 20) - 512);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryState {
    pub(crate) event: u64,
    pub(crate) time_ns: u64,
    pub(crate) devices: BTreeMap<DeviceId, DeviceState>,
}

impl MemoryState {
    /// Returns this state's moment: the number of the recording's events before it, lost ones
    /// included.
    #[must_use]
    pub fn event(&self) -> u64 {
        self.event
    }

    /// Returns the latest time of the events before this state's moment, in nanoseconds since the
    /// recording's time 0.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// Sets the time, in nanoseconds, of a state that precedes the first event.
    pub fn set_time_ns(&mut self, time_ns: u64) {
        self.time_ns = time_ns;
    }

    /// Returns the devices that have had an event or a full state, in the order of their ids.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = (DeviceId, &DeviceState)> + '_ {
        self.devices.iter().map(|(&id, device)| (id, device))
    }

    /// Returns the memory of one device, or `None` if it has had no event.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> Option<&DeviceState> {
        self.devices.get(&id)
    }

    /// Returns the byte counters of one device; zeros if it has had no event.
    #[inline]
    pub(crate) fn counters(&self, id: DeviceId) -> Counters {
        self.device(id).map(DeviceState::counters).unwrap_or_default()
    }

    /// Returns the memory of one device mutably, creating it empty if it has had no event.
    pub fn device_mut(&mut self, id: DeviceId) -> &mut DeviceState {
        self.devices.entry(id).or_default()
    }

    /// Adds `events` to the state's moment, for events that its devices already contain, and sets
    /// its time to `time_ns` if that is later.
    #[inline]
    pub(crate) fn advance(&mut self, events: u64, time_ns: u64) {
        self.event += events;
        self.time_ns = self.time_ns.max(time_ns);
    }

    /// Advances the state's moment and time past an event of a device that this state leaves out.
    pub fn pass(&mut self, event: &Event) {
        self.advance(1, event.time_ns);
    }

    /// Gives a block a new site. If the block does not exist, the device counts an
    /// [inconsistency](DeviceState::inconsistencies); a relabel on an unknown device is ignored.
    pub fn relabel(&mut self, relabel: &Relabel) {
        if let Some(device) = self.devices.get_mut(&relabel.device) {
            device.relabel(relabel.address, relabel.site);
        }
    }

    /// Applies the next event of the recording.
    ///
    /// If the event contradicts the state, contradicting segments and blocks are removed, and
    /// [`DeviceState::inconsistencies`] counts it. A time before the current one leaves the time
    /// unchanged.
    #[inline]
    pub fn apply(&mut self, event: &Event) {
        let index = self.event;
        self.device_mut(event.device).apply(index, event);
        self.event += 1;
        self.time_ns = self.time_ns.max(event.time_ns);
    }
}
