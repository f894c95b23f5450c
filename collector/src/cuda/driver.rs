//! Sets the CUDA context that is current on a thread.

use std::marker::PhantomData;
use std::ptr;

use cudarc::driver::{CudaContext, sys};

use super::error::{FailedCall, of_call};

/// Keeps a context current on this thread until dropped, and allows memory allocation while a
/// stream is being captured into a graph. The drop restores the thread, because the program may use
/// another device's context.
pub(super) struct CurrentContext {
    /// The context that was current before, or null for no context; `None` if it was this one.
    previous: Option<sys::CUcontext>,
    capture_mode: sys::CUstreamCaptureMode,
    /// The current context is a property of a thread.
    of_this_thread: PhantomData<*const ()>,
}

impl CurrentContext {
    /// Makes a context current. Calls the driver directly, because `CudaContext::bind_to_thread`
    /// also returns errors that other calls left in the context.
    pub(super) fn new(context: &CudaContext) -> Result<Self, FailedCall> {
        let ours = context.cu_ctx();
        let mut current: sys::CUcontext = ptr::null_mut();
        // SAFETY: `context` exists, so the driver is initialized; it writes to a valid variable.
        of_call("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut current) }.result())?;
        let previous = (current != ours).then_some(current);
        if previous.is_some() {
            // SAFETY: The borrowed `context` keeps its handle valid.
            of_call("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(ours) }.result())?;
        }
        let mut current_context = Self {
            previous,
            capture_mode: sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
            of_this_thread: PhantomData,
        };
        current_context.exchange_capture_mode();
        Ok(current_context)
    }

    /// Exchanges the thread's stream-capture mode with the stored one: the first call permits
    /// memory allocation during capture, the second restores the thread's mode.
    fn exchange_capture_mode(&mut self) {
        // SAFETY: The driver reads and writes a valid variable that holds one of the modes. It
        // fails only after it has shut down, and then leaves the variable unchanged.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.capture_mode) };
    }
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        self.exchange_capture_mode();
        if let Some(previous) = self.previous {
            // SAFETY: The context was current on this thread when this was created, and this crate
            // runs no code of the program until this drop that could destroy it; null means no
            // context. The call fails only after the driver has shut down.
            let _ = unsafe { sys::cuCtxSetCurrent(previous) };
        }
    }
}

/// Runs `work` with no CUDA context current on this thread, then restores the previous one.
///
/// The previous context may have been destroyed while it was current; driver calls in `work` could
/// otherwise return an error because of it.
pub(super) fn without_context<R>(work: impl FnOnce() -> R) -> R {
    let mut current: sys::CUcontext = ptr::null_mut();
    // SAFETY: The caller has initialized the driver, which writes to a valid variable. If the call
    // fails, no context is current.
    let _ = unsafe { sys::cuCtxGetCurrent(&mut current) };
    // SAFETY: Null is always allowed and means no context.
    let _ = unsafe { sys::cuCtxSetCurrent(ptr::null_mut()) };
    let done = work();
    // SAFETY: It was this thread's context before. If it no longer exists, the driver returns an
    // error and changes nothing.
    let _ = unsafe { sys::cuCtxSetCurrent(current) };
    done
}
