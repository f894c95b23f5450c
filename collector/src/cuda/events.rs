//! Events in streams, used again once they have passed.

use std::ptr;

use cudarc::driver::{DriverError, sys};
use vramscope_pool::{DeviceError, StreamEvent};
use vramscope_trace::StreamId;

use super::error::refused;

/// The events of one context. Every method is called with that context current.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// A [`StreamEvent`] is the place of one of these.
    slots: Vec<Slot>,
    /// Places of slots that stand for no event.
    free: Vec<usize>,
}

#[derive(Debug)]
struct Slot {
    event: sys::CUevent,
    recorded: bool,
}

// SAFETY: An event may be used on every thread; the driver locks what it needs.
unsafe impl Send for Slot {}

impl Events {
    pub(super) fn record(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => self.create()?,
        };
        let stream = stream.0 as sys::CUstream;
        // SAFETY: The event is ours and the context current. That a stream's number means a stream that is still there is what
        // whoever handed it to the pool guarantees.
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
        // SAFETY: The driver writes to a variable that is there.
        unsafe { sys::cuEventCreate(&mut event, flags) }.result().map_err(|error| refused("cuEventCreate", error))?;
        self.slots.push(Slot { event, recorded: false });
        Ok(self.slots.len() - 1)
    }

    pub(super) fn has_passed(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        let (place, driver_event) = self.find(event)?;
        // SAFETY: The event is ours, and the context current.
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
        // SAFETY: The event is ours, and the context current.
        let waited = unsafe { sys::cuEventSynchronize(driver_event) }.result();
        waited.map_err(|error| refused("cuEventSynchronize", error))?;
        self.recycle(place);
        Ok(())
    }

    fn find(&self, event: StreamEvent) -> Result<(usize, sys::CUevent), DeviceError> {
        let place = event.0 as usize;
        let slot = self.slots.get(place).filter(|slot| slot.recorded);
        let slot = slot.ok_or_else(|| DeviceError::Failed(format!("there is no event {} in a stream", event.0)))?;
        Ok((place, slot.event))
    }

    fn recycle(&mut self, place: usize) {
        self.slots[place].recorded = false;
        self.free.push(place);
    }

    /// Gives all of them back to the driver.
    pub(super) fn destroy(&mut self) {
        self.free.clear();
        for slot in self.slots.drain(..) {
            // SAFETY: The event is ours and forgotten with this. One that has not passed goes once it has. Where this fails the
            // driver has shut down, and the events with it.
            let _ = unsafe { sys::cuEventDestroy_v2(slot.event) };
        }
    }
}
