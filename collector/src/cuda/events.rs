//! Stream events, which are reused after they have passed.

use std::ptr;

use cudarc::driver::{DriverError, sys};
use vramscope_pool::{DeviceError, StreamEvent};
use vramscope_trace::StreamId;

use super::error::{device_error, of_call};

/// The CUDA events of one context, with which the pool learns that the work queued on a stream has
/// finished. Every method needs that context to be current.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// A [`StreamEvent`] is an index into this list.
    slots: Vec<EventSlot>,
    /// Indices of unused slots.
    free: Vec<usize>,
}

/// A CUDA event, and whether it is in use: recorded on a stream and not yet known to have passed.
#[derive(Debug)]
struct EventSlot {
    event: sys::CUevent,
    recorded: bool,
}

// SAFETY: The driver guarantees that CUDA events may be used on any thread.
unsafe impl Send for EventSlot {}

impl Events {
    /// Records an event behind the work queued on `stream` so far. The event passes when that work
    /// has finished.
    pub(super) fn record(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.create()?,
        };
        let stream = stream.0 as sys::CUstream;
        // SAFETY: `CudaDevice::keep` keeps the streams that are given as objects. The caller of
        // `DevicePool::caching_allocator_alloc` guarantees that a stream given by number exists
        // until the pool is dropped. The event belongs to this object, and the caller has made the
        // context current.
        let recorded = unsafe { sys::cuEventRecord(self.slots[index].event, stream) }.result();
        if let Err(error) = recorded {
            self.free.push(index);
            return Err(device_error("cuEventRecord", error));
        }
        self.slots[index].recorded = true;
        Ok(StreamEvent(index as u64))
    }

    /// Creates an unused event in a new slot and returns the slot's index.
    fn create(&mut self) -> Result<usize, DeviceError> {
        let mut event: sys::CUevent = ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: The driver writes to a valid variable; the caller has made the context current.
        of_call("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) }.result())?;
        self.slots.push(EventSlot { event, recorded: false });
        Ok(self.slots.len() - 1)
    }

    /// Returns true if the work before `event` has finished, false if it still runs. After true,
    /// the event is reused for other work and must not be passed again.
    pub(super) fn has_passed(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        let (index, driver_event) = self.find(event)?;
        // SAFETY: `find` returns only events of this object that have not been destroyed; the
        // caller has made the context current.
        match unsafe { sys::cuEventQuery(driver_event) }.result() {
            Ok(()) => {
                self.recycle(index);
                Ok(true)
            }
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(device_error("cuEventQuery", error)),
        }
    }

    /// Blocks until the work before `event` has finished. The event is then reused for other work
    /// and must not be passed again.
    pub(super) fn wait_for(&mut self, event: StreamEvent) -> Result<(), DeviceError> {
        let (index, driver_event) = self.find(event)?;
        // SAFETY: `find` returns only events of this object that have not been destroyed; the
        // caller has made the context current.
        of_call("cuEventSynchronize", unsafe { sys::cuEventSynchronize(driver_event) }.result())?;
        self.recycle(index);
        Ok(())
    }

    /// Returns the slot index and the driver's handle of `event`, or an error if it is not in use.
    fn find(&self, event: StreamEvent) -> Result<(usize, sys::CUevent), DeviceError> {
        let index = event.0 as usize;
        let slot = self.slots.get(index).filter(|slot| slot.recorded);
        let slot = slot.ok_or_else(|| DeviceError::Failed(format!("stream event {} does not exist", event.0)))?;
        Ok((index, slot.event))
    }

    /// Makes the slot at `index` available to [`record`](Self::record) again.
    fn recycle(&mut self, index: usize) {
        self.slots[index].recorded = false;
        self.free.push(index);
    }

    /// Destroys all events, including those in use.
    pub(super) fn destroy(&mut self) {
        self.free.clear();
        for slot in self.slots.drain(..) {
            // SAFETY: The event belongs to this object and is not used again; the driver frees a
            // pending one when it passes. If this fails, the driver has shut down.
            let _ = unsafe { sys::cuEventDestroy_v2(slot.event) };
        }
    }
}
