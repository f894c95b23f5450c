//! A device that answers as the recorded driver did.

use std::rc::Rc;

use vramscope_trace::{EventKind, StreamId};

use super::cursor::{HistoryCursor, completion_stream};
use crate::device::{Device, DeviceError, DeviceMemory, StreamEvent};
use crate::settings::Settings;

/// A device that answers as the recorded driver did. It refuses memory unless the next recorded
/// event shows that the driver provided it, because a refusal leaves no event.
#[derive(Clone, Debug)]
pub(super) struct RecordedDevice<'h> {
    cursor: Rc<HistoryCursor<'h>>,
    /// Size of an expandable segment's address range.
    address_bytes: u64,
    /// Bytes that the driver has provided.
    used_bytes: u64,
    /// Exclusive upper bound of the device's memory, from its refusals: the used bytes plus the
    /// refused bytes, or plus one more than the recorded free bytes if that is less. `None` if it
    /// refused nothing.
    refused_bytes: Option<u64>,
}

impl<'h> RecordedDevice<'h> {
    pub(super) fn new(cursor: Rc<HistoryCursor<'h>>, settings: &Settings) -> Self {
        let used_bytes = cursor.history().start.counters().reserved;
        let address_bytes = cursor.history().address_spacing().address_bytes(settings.large_segment_size_bytes);
        Self { cursor, address_bytes, used_bytes, refused_bytes: None }
    }

    /// Returns the largest memory size, in bytes, at which the driver would have refused all that
    /// it refused so far; `None` if it refused nothing.
    pub(super) fn capacity_bytes(&self) -> Option<u64> {
        self.refused_bytes.map(|bytes| bytes.saturating_sub(1))
    }

    /// Adds `bytes` to the memory that the driver has provided.
    fn use_bytes(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_add(bytes);
    }

    /// Returns the error for a refusal of `bytes`, and lowers the upper bound of the device's
    /// memory accordingly.
    fn refuse(&mut self, bytes: u64) -> DeviceError {
        let least = match self.cursor.next_recorded_event() {
            // 0 may mean that the driver's free memory was not recorded.
            Some(&EventKind::OutOfMemory { device_free, .. }) if device_free > 0 => {
                bytes.min(device_free.saturating_add(1))
            }
            _ => bytes,
        };
        let total = self.used_bytes.saturating_add(least);
        self.refused_bytes = Some(self.refused_bytes.map_or(total, |before| before.min(total)));
        self.cursor.set_driver_refused();
        DeviceError::OutOfMemory
    }
}

/// Returns the only event of `stream`, which stands for all of the stream's work.
fn event_of(stream: StreamId) -> StreamEvent {
    StreamEvent(stream.0)
}

impl Device for RecordedDevice<'_> {
    fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        match self.cursor.next_recorded_event() {
            Some(&EventKind::SegmentAllocated { address, size, .. }) if size == bytes => {
                self.use_bytes(bytes);
                Ok(address)
            }
            _ => Err(self.refuse(bytes)),
        }
    }

    fn release(&mut self, _: u64, bytes: u64) -> Result<(), DeviceError> {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
        Ok(())
    }

    fn memory(&self) -> DeviceMemory {
        let free_bytes = match self.cursor.next_recorded_event() {
            Some(&EventKind::OutOfMemory { device_free, .. }) => device_free,
            _ => 0,
        };
        // The pool reserves address ranges of 9/8 of the device's memory.
        let bytes_for_addresses = self.address_bytes / 9 * 8;
        let recorded_bytes = self.cursor.history().total_bytes;
        let total_bytes = if recorded_bytes > 0 { recorded_bytes } else { bytes_for_addresses };
        DeviceMemory { free_bytes, total_bytes }
    }

    fn reserve_addresses(&mut self, _: u64) -> Result<u64, DeviceError> {
        match self.cursor.next_recorded_event() {
            Some(&EventKind::SegmentMapped { address, .. }) => Ok(address),
            // The bytes to be mapped are unknown here, so the refusal does not bound the capacity.
            _ => {
                self.cursor.set_driver_refused();
                Err(DeviceError::OutOfMemory)
            }
        }
    }

    fn release_addresses(&mut self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn map(&mut self, at: u64, bytes: u64, _: u64) -> Result<(), DeviceError> {
        match self.cursor.next_recorded_event() {
            Some(&EventKind::SegmentMapped { address, size, .. }) if (address, size) == (at, bytes) => {
                self.use_bytes(bytes);
                Ok(())
            }
            _ => Err(self.refuse(bytes)),
        }
    }

    fn unmap(&mut self, _: u64, bytes: u64, _: u64, _: StreamId) -> Result<(), DeviceError> {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
        Ok(())
    }

    fn record_event(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError> {
        Ok(event_of(stream))
    }

    fn has_passed(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        let cursor = &self.cursor;
        let is_next = match cursor.next_recorded_event() {
            // A block that was freed before the history begins has its address as its event.
            Some(&EventKind::FreeCompleted { address, .. }) => {
                event == event_of(completion_stream(cursor.position())) || event == StreamEvent(address)
            }
            _ => false,
        };
        Ok(is_next && cursor.assumptions().events_pass && !cursor.has_mismatch())
    }

    fn wait_for(&mut self, _: StreamEvent) -> Result<(), DeviceError> {
        Ok(())
    }
}
