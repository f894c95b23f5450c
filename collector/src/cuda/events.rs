//! Stream events, which are reused after they have passed.

use std::ptr;

use cudarc::driver::{DriverError, sys};
use vramscope_pool::{DeviceError, StreamEvent};
use vramscope_trace::StreamId;

use super::error::refused;

/// The events of one context. Every method needs that context to be current.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// A [`StreamEvent`] is an index into this list.
    slots: Vec<Slot>,
    /// Indices of unused slots.
    free: Vec<usize>,
}

#[derive(Debug)]
struct Slot {
    event: sys::CUevent,
    recorded: bool,
}

// SAFETY: Events may be used on any thread; the driver synchronizes access.
unsafe impl Send for Slot {}

impl Events {
    pub(super) fn record(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => self.create()?,
        };
        let stream = stream.0 as sys::CUstream;
        // SAFETY: The event belongs to this object and the context is current. The caller of the
        // pool guarantees that the number means an existing stream.
        let recorded = unsafe { sys::cuEventRecord(self.slots[place].event, stream) }.result();
        if let Err(error) = recorded {
            self.free.push(place);
            return Err(refused("cuEventRecord", error));
        }
        self.slots[place].recorded = true;
        Ok(StreamEvent(place as u64))
    }

    fn create(&mut self) -> Result<usize, DeviceError> {
        let mut event: sys::CUevent = ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: The driver writes to a valid variable.
        unsafe { sys::cuEventCreate(&mut event, flags) }.result().map_err(|error| refused("cuEventCreate", error))?;
        self.slots.push(Slot { event, recorded: false });
        Ok(self.slots.len() - 1)
    }

    pub(super) fn has_passed(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        let (place, driver_event) = self.find(event)?;
        // SAFETY: The event belongs to this object, and the context is current.
        match unsafe { sys::cuEventQuery(driver_event) }.result() {
            Ok(()) => {
                self.recycle(place);
                Ok(true)
            }
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(refused("cuEventQuery", error)),
        }
    }

    pub(super) fn wait_for(&mut self, event: StreamEvent) -> Result<(), DeviceError> {
        let (place, driver_event) = self.find(event)?;
        // SAFETY: The event belongs to this object, and the context is current.
        let waited = unsafe { sys::cuEventSynchronize(driver_event) }.result();
        waited.map_err(|error| refused("cuEventSynchronize", error))?;
        self.recycle(place);
        Ok(())
    }

    fn find(&self, event: StreamEvent) -> Result<(usize, sys::CUevent), DeviceError> {
        let place = event.0 as usize;
        let slot = self.slots.get(place).filter(|slot| slot.recorded);
        let slot = slot.ok_or_else(|| DeviceError::Failed(format!("stream event {} does not exist", event.0)))?;
        Ok((place, slot.event))
    }

    fn recycle(&mut self, place: usize) {
        self.slots[place].recorded = false;
        self.free.push(place);
    }

    /// Destroys all events.
    pub(super) fn destroy(&mut self) {
        self.free.clear();
        for slot in self.slots.drain(..) {
            // SAFETY: The event belongs to this object and is not used again; the driver frees a
            // pending one when it passes. If this fails, the driver has shut down.
            let _ = unsafe { sys::cuEventDestroy_v2(slot.event) };
        }
    }
}
