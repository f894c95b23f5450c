//! What every byte of the GPU's memory is doing at one moment.
//!
//! Only segments and live blocks are kept; free space is what lies between them, and since the allocator merges free neighbours,
//! a gap between two live blocks of a segment is one free block.

use std::collections::BTreeMap;

use crate::address_map::Ranged;
use crate::device_state::DeviceState;
use crate::event::{DeviceId, Event, Pool, StreamId};
use crate::site::SiteId;

/// A contiguous range of device memory that the allocator holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The stream whose blocks it serves.
    pub stream: StreamId,
    /// The pool it belongs to.
    pub pool: Pool,
    /// Whether it grows and shrinks by mapping pages.
    pub expandable: bool,
    /// Where the request that made it came from.
    pub site: SiteId,
    /// The number of the event that made it; for one that was there before, the number of the first event known.
    pub since_event: u64,
}

impl Segment {
    /// The first address behind it.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.address + self.size
    }
}

/// A live block: handed to the program, or freed by it and still in use by a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First byte.
    pub address: u64,
    /// Bytes, after rounding.
    pub size: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// The stream it was allocated on.
    pub stream: StreamId,
    /// The pool it was taken from.
    pub pool: Pool,
    /// Where the request came from.
    pub site: SiteId,
    /// Freed by the program, but a stream still uses it.
    pub pending_free: bool,
    /// The number of the event that allocated it; for one that was there before, the number of the first event known.
    pub since_event: u64,
    /// When it was allocated, likewise.
    pub since_ns: u64,
}

impl Block {
    /// The first address behind it.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.address + self.size
    }
}

impl Ranged for Segment {
    fn address(&self) -> u64 {
        self.address
    }
    fn end(&self) -> u64 {
        self.end()
    }
}

impl Ranged for Block {
    fn address(&self) -> u64 {
        self.address
    }
    fn end(&self) -> u64 {
        self.end()
    }
}

/// A stretch of a segment: one live block, or the free space between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent<'a> {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The live block, or `None` for free space.
    pub block: Option<&'a Block>,
}

/// Whether there can be memory here: at least one byte, and the end below 2⁶⁴.
pub(crate) const fn is_range(address: u64, size: u64) -> bool {
    size > 0 && address.checked_add(size).is_some()
}

/// Sums over one device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Blocks handed to the program and not freed by it.
    pub allocated: u64,
    /// Those and the blocks freed but still in use by a stream.
    pub active: u64,
    /// Segments.
    pub reserved: u64,
    /// What the program asked for, over active blocks.
    pub requested: u64,
}

/// What the driver last said of a device, see [`EventKind::MemorySample`](crate::EventKind::MemorySample).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// Bytes held by this process outside the allocator.
    pub used_by_context: u64,
    /// Bytes held by other processes.
    pub used_by_others: u64,
    /// Bytes free.
    pub free: u64,
}

/// Free space inside segments, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes in all free blocks.
    pub total: u64,
    /// Bytes of the largest free block.
    pub largest: u64,
    /// How many free blocks there are.
    pub blocks: u64,
}

impl FreeSpace {
    /// External fragmentation: 1 - largest free block / free bytes in segments; 0 where nothing is free.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        if self.total == 0 { 0.0 } else { 1.0 - self.largest as f64 / self.total as f64 }
    }
}

/// The memory of every GPU after the first [`event`](Self::event) events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryState {
    pub(crate) event: u64,
    pub(crate) time_ns: u64,
    pub(crate) devices: BTreeMap<DeviceId, DeviceState>,
}

impl MemoryState {
    /// How many events led here.
    #[must_use]
    pub fn event(&self) -> u64 {
        self.event
    }

    /// The time of the last of them.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// Sets the time of the state before the first event.
    pub fn set_time_ns(&mut self, time_ns: u64) {
        self.time_ns = time_ns;
    }

    /// The devices that were heard of, by number.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = (DeviceId, &DeviceState)> + '_ {
        self.devices.iter().map(|(&id, device)| (id, device))
    }

    /// One device.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> Option<&DeviceState> {
        self.devices.get(&id)
    }

    /// One device, made if it was not heard of before.
    pub fn device_mut(&mut self, id: DeviceId) -> &mut DeviceState {
        self.devices.entry(id).or_default()
    }

    /// Goes on by so many events, the last of them at `time_ns`.
    #[inline]
    pub(crate) fn pass(&mut self, events: u64, time_ns: u64) {
        self.event += events;
        self.time_ns = self.time_ns.max(time_ns);
    }

    /// Takes the next event.
    #[inline]
    pub fn apply(&mut self, event: &Event) {
        let number = self.event;
        self.device_mut(event.device).apply(number, event);
        self.event += 1;
        self.time_ns = self.time_ns.max(event.time_ns);
    }
}
