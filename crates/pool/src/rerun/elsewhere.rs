//! The device of a simulation.

use vramscope_trace::{EventKind, StreamId};

use super::history::History;
use crate::device::{Device, DeviceError, DeviceMemory, StreamEvent};
use crate::settings::Settings;

/// Memory given or taken back in the recording, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Reserved { address: u64, bytes: u64 },
    Released { address: u64 },
    Mapped { address: u64, bytes: u64 },
    Unmapped { address: u64, bytes: u64 },
}

/// A device with so much memory and endless addresses.
///
/// Of two free blocks of one size the lower is taken, so where memory lies can make a difference. As long as the device is asked for what
/// the recorded one was asked for, it places memory where that one did; from then on at fresh addresses.
#[derive(Clone, Debug)]
pub(super) struct ElsewhereDevice {
    capacity_bytes: u64,
    used_bytes: u64,
    recorded: std::vec::IntoIter<Traffic>,
    next_address: u64,
    address_bytes: u64,
    /// Events up to this one have passed.
    passed: Option<StreamEvent>,
}

impl ElsewhereDevice {
    const ADDRESS_STEP: u64 = 2 << 20;

    pub(super) fn new(history: &History, settings: &Settings, capacity_bytes: Option<u64>) -> Self {
        let address_bytes = history.address_bytes(settings.large_segment_size);
        // Nothing was there before the simulation begins.
        let entries = if history.starts_empty() { history.entries.as_slice() } else { &[] };
        let recorded: Vec<Traffic> = entries.iter().filter_map(|entry| traffic(&entry.kind)).collect();
        let ends = recorded.iter().map(|traffic| match *traffic {
            Traffic::Reserved { address, bytes } => address.saturating_add(bytes),
            Traffic::Mapped { address, .. } => address.saturating_add(address_bytes),
            Traffic::Released { .. } | Traffic::Unmapped { .. } => 0,
        });
        let end = ends.max().unwrap_or(0).saturating_add(1);
        let next_address = end.checked_next_multiple_of(Self::ADDRESS_STEP).unwrap_or(u64::MAX);
        Self {
            capacity_bytes: capacity_bytes.unwrap_or(u64::MAX),
            used_bytes: 0,
            recorded: recorded.into_iter(),
            next_address,
            address_bytes,
            passed: None,
        }
    }

    /// What other streams did with blocks is done, up to the uses that this stream stands for.
    pub(super) fn pass(&mut self, stream: StreamId) {
        self.passed = Some(StreamEvent(stream.0));
    }

    /// Goes on with the recorded traffic, if it goes on like this.
    fn follow(&mut self, is_same: impl Fn(&Traffic) -> bool) -> Option<Traffic> {
        match self.recorded.next() {
            Some(traffic) if is_same(&traffic) => Some(traffic),
            _ => {
                self.recorded = Vec::new().into_iter();
                None
            }
        }
    }

    fn give(&mut self, bytes: u64) -> Result<(), DeviceError> {
        let used = self.used_bytes.checked_add(bytes).filter(|&used| used <= self.capacity_bytes);
        self.used_bytes = used.ok_or(DeviceError::OutOfMemory)?;
        Ok(())
    }

    fn take(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
    }

    fn fresh(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        let address = self.next_address;
        let end = address.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(Self::ADDRESS_STEP));
        self.next_address = end.ok_or(DeviceError::OutOfMemory)?;
        Ok(address)
    }
}

fn traffic(kind: &EventKind) -> Option<Traffic> {
    match *kind {
        EventKind::SegmentAllocated { address, size, .. } => Some(Traffic::Reserved { address, bytes: size }),
        EventKind::SegmentFreed { address, .. } => Some(Traffic::Released { address }),
        EventKind::SegmentMapped { address, size, .. } => Some(Traffic::Mapped { address, bytes: size }),
        EventKind::SegmentUnmapped { address, size, .. } => Some(Traffic::Unmapped { address, bytes: size }),
        _ => None,
    }
}

impl Device for ElsewhereDevice {
    fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.give(bytes)?;
        match self.follow(|traffic| matches!(traffic, Traffic::Reserved { bytes: recorded, .. } if *recorded == bytes))
        {
            Some(Traffic::Reserved { address, .. }) => Ok(address),
            _ => self.fresh(bytes),
        }
    }

    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.take(bytes);
        self.follow(|traffic| *traffic == Traffic::Released { address });
        Ok(())
    }

    /// All of it counts as free, and as much as there were addresses for where it was recorded.
    fn memory(&self) -> DeviceMemory {
        let total_bytes = self.address_bytes / 9 * 8;
        DeviceMemory { free_bytes: self.capacity_bytes.saturating_sub(self.used_bytes), total_bytes }
    }

    fn reserve_addresses(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        match self.recorded.as_slice().first() {
            Some(&Traffic::Mapped { address, .. }) => Ok(address),
            _ => self.fresh(bytes),
        }
    }

    fn release_addresses(&mut self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn map(&mut self, address: u64, bytes: u64, _: u64) -> Result<(), DeviceError> {
        self.give(bytes)?;
        self.follow(|traffic| *traffic == Traffic::Mapped { address, bytes });
        Ok(())
    }

    fn unmap(&mut self, address: u64, bytes: u64, _: u64, _: StreamId) -> Result<(), DeviceError> {
        self.take(bytes);
        self.follow(|traffic| *traffic == Traffic::Unmapped { address, bytes });
        Ok(())
    }

    fn record_event(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError> {
        Ok(StreamEvent(stream.0))
    }

    fn has_passed(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        Ok(self.passed.is_some_and(|passed| event <= passed))
    }

    fn wait_for(&mut self, _: StreamEvent) -> Result<(), DeviceError> {
        Ok(())
    }
}
