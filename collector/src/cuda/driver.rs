//! Being in a context, and in none.

use std::marker::PhantomData;
use std::ptr;

use cudarc::driver::{CudaContext, sys};
use vramscope_pool::DeviceError;

use super::error::refused;

/// While it is there, a context is current on this thread, and the thread may ask for memory although some stream is being captured
/// into a graph. Dropping it leaves the thread as it was, since the program may have another device's context current.
pub(super) struct Entered {
    /// What was current before, where that was another; null for none.
    previous: Option<sys::CUcontext>,
    capture_mode: sys::CUstreamCaptureMode,
    /// What is current belongs to a thread.
    of_this_thread: PhantomData<*const ()>,
}

impl Entered {
    /// The program's own use of `CudaContext::bind_to_thread` would hand us errors that other calls left behind in the context, so
    /// this asks the driver itself.
    pub(super) fn new(context: &CudaContext) -> Result<Self, DeviceError> {
        let ours = context.cu_ctx();
        let mut current: sys::CUcontext = ptr::null_mut();
        // SAFETY: The driver is loaded and initialized, as there is a context; it writes to a variable that is there.
        unsafe { sys::cuCtxGetCurrent(&mut current) }.result().map_err(|error| refused("cuCtxGetCurrent", error))?;
        let previous = (current != ours).then_some(current);
        if previous.is_some() {
            // SAFETY: `context` keeps what it names alive.
            unsafe { sys::cuCtxSetCurrent(ours) }.result().map_err(|error| refused("cuCtxSetCurrent", error))?;
        }
        let mut entered = Self {
            previous,
            capture_mode: sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
            of_this_thread: PhantomData,
        };
        entered.exchange_capture_mode();
        Ok(entered)
    }

    /// Sets the thread's mode to the one kept here, and keeps the one that it had.
    fn exchange_capture_mode(&mut self) {
        // SAFETY: The driver reads and writes a variable that is there and holds one of the modes. It fails only where it has shut
        // down, and leaves the variable alone then.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.capture_mode) };
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.exchange_capture_mode();
        if let Some(previous) = self.previous {
            // SAFETY: The context was current on this thread, which thus holds it alive; null leaves the thread without one. It
            // fails only where the driver has shut down.
            let _ = unsafe { sys::cuCtxSetCurrent(previous) };
        }
    }
}

/// Does something with no context current on this thread, and makes current what was before.
///
/// A context that was current when it was destroyed stays the thread's, and whoever asks for it then may get an error.
pub(super) fn outside<R>(work: impl FnOnce() -> R) -> R {
    let mut current: sys::CUcontext = ptr::null_mut();
    // SAFETY: The caller has initialized the driver; it writes to a variable that is there. Where it fails there is no context.
    let _ = unsafe { sys::cuCtxGetCurrent(&mut current) };
    // SAFETY: Null is always a context to be set: none.
    let _ = unsafe { sys::cuCtxSetCurrent(ptr::null_mut()) };
    let done = work();
    // SAFETY: It was this thread's context before. Where it is no more, the driver refuses and the thread keeps what it has.
    let _ = unsafe { sys::cuCtxSetCurrent(current) };
    done
}
