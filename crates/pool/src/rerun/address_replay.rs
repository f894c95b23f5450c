//! The device of a simulation. It reuses recorded addresses as long as possible.

use std::sync::Arc;

use vramscope_trace::{EventKind, StreamId};

use super::history::{AddressSpacing, History};
use crate::device::{Device, DeviceError, DeviceMemory, StreamEvent};
use crate::settings::Settings;

/// A recorded driver call that provided or took back memory: its first address and, where needed,
/// its size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DriverCall {
    Reserved { address: u64, bytes: u64 },
    Released { address: u64 },
    Mapped { address: u64, bytes: u64 },
    Unmapped { address: u64, bytes: u64 },
}

/// The driver calls of a history, and the spacing of its expandable segments.
#[derive(Clone, Debug)]
pub(super) struct RecordedDriverCalls {
    /// Empty for a history with blocks at the start: simulated calls then differ from the recorded
    /// ones from the first on.
    calls: Arc<[DriverCall]>,
    /// The distance between recorded expandable segments, from which the size of address ranges is
    /// estimated.
    spacing: AddressSpacing,
}

impl RecordedDriverCalls {
    /// Collects the driver calls of a history.
    pub(super) fn new(history: &History) -> Self {
        let entries = if history.starts_empty() { history.entries.as_slice() } else { &[] };
        let calls = entries.iter().filter_map(|entry| driver_call(&entry.kind)).collect();
        Self { calls, spacing: history.address_spacing() }
    }
}

/// The device of a simulation, with a given capacity and unlimited addresses.
///
/// As long as the simulated allocator makes the recorded driver calls, memory gets the recorded
/// addresses; after the first difference it gets unused addresses. Addresses affect which block is
/// used, because best fit chooses the lower of two free blocks of equal size.
#[derive(Clone, Debug)]
pub(super) struct AddressReplayDevice {
    capacity_bytes: u64,
    used_bytes: u64,
    recorded_calls: Arc<[DriverCall]>,
    /// The index of the next recorded call; past the end once the calls differ.
    next_call: usize,
    /// The first address that neither the recording nor this device has used.
    next_address: u64,
    /// Size of an expandable segment's address range, in bytes.
    address_bytes: u64,
    /// Events up to this one have passed.
    passed_up_to: Option<StreamEvent>,
}

impl AddressReplayDevice {
    /// Alignment, in bytes, of the addresses that the device assigns once its calls differ from the
    /// recorded ones; as on a GPU.
    const ADDRESS_STEP: u64 = 2 << 20;

    pub(super) fn new(recorded: &RecordedDriverCalls, settings: &Settings, capacity_bytes: Option<u64>) -> Self {
        let address_bytes = recorded.spacing.address_bytes(settings.large_segment_size_bytes);
        let ends = recorded.calls.iter().map(|call| match *call {
            DriverCall::Reserved { address, bytes } => address.saturating_add(bytes),
            DriverCall::Mapped { address, .. } => address.saturating_add(address_bytes),
            DriverCall::Released { .. } | DriverCall::Unmapped { .. } => 0,
        });
        let end = ends.max().unwrap_or(0).saturating_add(1);
        let next_address = end.checked_next_multiple_of(Self::ADDRESS_STEP).unwrap_or(u64::MAX);
        Self {
            capacity_bytes: capacity_bytes.unwrap_or(u64::MAX),
            used_bytes: 0,
            recorded_calls: Arc::clone(&recorded.calls),
            next_call: 0,
            next_address,
            address_bytes,
            passed_up_to: None,
        }
    }

    /// Marks the stream events of `stream`, and of all streams with lower ids, as passed. Each
    /// stream has only one event here.
    pub(super) fn pass_events_up_to(&mut self, stream: StreamId) {
        self.passed_up_to = Some(StreamEvent(stream.0));
    }

    /// Returns the next recorded driver call, and moves past it, if `is_same` returns true for it.
    /// Otherwise returns `None` and moves past all recorded calls, so that no more recorded
    /// addresses are used.
    fn next_if(&mut self, is_same: impl Fn(&DriverCall) -> bool) -> Option<DriverCall> {
        match self.recorded_calls.get(self.next_call) {
            Some(call) if is_same(call) => {
                self.next_call += 1;
                Some(*call)
            }
            _ => {
                self.next_call = self.recorded_calls.len();
                None
            }
        }
    }

    /// Adds `bytes` to the used memory; out of memory, changing nothing, if the capacity would be
    /// exceeded.
    fn use_bytes(&mut self, bytes: u64) -> Result<(), DeviceError> {
        let used = self.used_bytes.checked_add(bytes).filter(|&used| used <= self.capacity_bytes);
        self.used_bytes = used.ok_or(DeviceError::OutOfMemory)?;
        Ok(())
    }

    /// Subtracts `bytes` from the used memory, down to 0 at most.
    fn release_bytes(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
    }

    /// Returns the first address of a range of `bytes` that neither the recording nor this device
    /// has used; out of memory if no addresses are left.
    fn fresh_range(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        let address = self.next_address;
        let end = address.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(Self::ADDRESS_STEP));
        self.next_address = end.ok_or(DeviceError::OutOfMemory)?;
        Ok(address)
    }
}

/// Returns the driver call that an event records; `None` if the event records no driver call, such
/// as an allocated block.
fn driver_call(kind: &EventKind) -> Option<DriverCall> {
    match *kind {
        EventKind::SegmentAllocated { address, size, .. } => Some(DriverCall::Reserved { address, bytes: size }),
        EventKind::SegmentFreed { address, .. } => Some(DriverCall::Released { address }),
        EventKind::SegmentMapped { address, size, .. } => Some(DriverCall::Mapped { address, bytes: size }),
        EventKind::SegmentUnmapped { address, size, .. } => Some(DriverCall::Unmapped { address, bytes: size }),
        _ => None,
    }
}

impl Device for AddressReplayDevice {
    fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.use_bytes(bytes)?;
        match self.next_if(|call| matches!(call, DriverCall::Reserved { bytes: recorded, .. } if *recorded == bytes)) {
            Some(DriverCall::Reserved { address, .. }) => Ok(address),
            _ => self.fresh_range(bytes),
        }
    }

    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        self.release_bytes(bytes);
        self.next_if(|call| *call == DriverCall::Released { address });
        Ok(())
    }

    /// Reports all unused memory as free. The total is not the capacity: it is chosen so that the
    /// pool reserves address ranges of the size that recorded expandable segments had.
    fn memory(&self) -> DeviceMemory {
        let total_bytes = self.address_bytes / 9 * 8;
        DeviceMemory { free_bytes: self.capacity_bytes.saturating_sub(self.used_bytes), total_bytes }
    }

    fn reserve_addresses(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        match self.recorded_calls.get(self.next_call) {
            Some(&DriverCall::Mapped { address, .. }) => Ok(address),
            _ => self.fresh_range(bytes),
        }
    }

    fn release_addresses(&mut self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn map(&mut self, address: u64, bytes: u64, _: u64) -> Result<(), DeviceError> {
        self.use_bytes(bytes)?;
        self.next_if(|call| *call == DriverCall::Mapped { address, bytes });
        Ok(())
    }

    fn unmap(&mut self, address: u64, bytes: u64, _: u64, _: StreamId) -> Result<(), DeviceError> {
        self.release_bytes(bytes);
        self.next_if(|call| *call == DriverCall::Unmapped { address, bytes });
        Ok(())
    }

    fn record_event(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError> {
        Ok(StreamEvent(stream.0))
    }

    fn has_passed(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        Ok(self.passed_up_to.is_some_and(|passed| event <= passed))
    }

    fn wait_for(&mut self, _: StreamEvent) -> Result<(), DeviceError> {
        Ok(())
    }
}
