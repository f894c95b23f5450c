//! A device that tensors are on: its memory, its kernels and its current stream.

use std::cell::Cell;
use std::rc::Rc;

use vramscope_collector::{HostPool, Stats, StreamId};

#[cfg(feature = "cuda")]
use crate::backend::cuda::CudaBackend;
use crate::backend::host::HostBackend;
use crate::backend::{Backend, Kernels};
use crate::error::Result;
use crate::memory::{Memory, SpanGuard};

/// A CPU or GPU with the allocator of its tensors.
///
/// Clones refer to one device. A device is used by the thread that created it. Work runs in order
/// on the current stream. The host runs work synchronously, and its streams only exist for the
/// allocator.
#[derive(Clone)]
pub struct Device(Rc<DeviceState>);

/// The state of a device, shared by its clones.
struct DeviceState {
    // Dropped before the memory: it waits for the work that uses the memory.
    backend: Box<dyn Backend>,
    memory: Box<dyn Memory>,
    /// The stream of new work and requests: its index, and its identifier in the allocator.
    stream: Cell<(usize, StreamId)>,
}

impl Device {
    /// Creates a device that computes on the CPU, with tensors in `pool`.
    ///
    /// # Errors
    /// Returns no error today; creating a GPU's device does.
    pub fn host(pool: HostPool) -> Result<Self> {
        Self::new(Box::new(pool), Box::new(HostBackend::new()))
    }

    /// Creates a device that computes on the GPU of `context`, with tensors in `memory`, which must
    /// be memory of that GPU. Compiles the kernels, which takes some seconds.
    ///
    /// # Errors
    /// As for [`check_cuda`](Self::check_cuda), and if the driver fails.
    #[cfg(feature = "cuda")]
    pub fn cuda(memory: Box<dyn Memory>, context: &std::sync::Arc<cudarc::driver::CudaContext>) -> Result<Self> {
        Self::new(memory, Box::new(CudaBackend::new(context)?))
    }

    /// Returns an error if this machine lacks what [`cuda`](Self::cuda) needs besides a driver:
    /// NVRTC that supports the GPU of `context`, and cuBLAS. Does not compile the kernels.
    ///
    /// # Errors
    /// If NVRTC or cuBLAS is not installed, or NVRTC does not support the GPU.
    #[cfg(feature = "cuda")]
    pub fn check_cuda(context: &std::sync::Arc<cudarc::driver::CudaContext>) -> Result {
        Ok(CudaBackend::check(context)?)
    }

    /// Creates a device whose tensors are in `memory`, which must belong to the device that
    /// `backend` computes on.
    pub(crate) fn new(memory: Box<dyn Memory>, backend: Box<dyn Backend>) -> Result<Self> {
        let stream = (0, backend.stream_id(0)?);
        Ok(Self(Rc::new(DeviceState { backend, memory, stream: Cell::new(stream) })))
    }

    /// Returns the allocator of the device's tensors.
    #[must_use]
    pub fn memory(&self) -> &dyn Memory {
        &*self.0.memory
    }

    /// Returns the backend, which computes on the device.
    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    /// Returns the kernels of the device.
    pub(crate) fn kernels(&self) -> &dyn Kernels {
        self.0.backend.kernels()
    }

    /// Returns the current stream's identifier in the allocator.
    pub(crate) fn stream(&self) -> StreamId {
        self.0.stream.get().1
    }

    /// Returns the identifier of stream `index` in the allocator.
    pub(crate) fn stream_number(&self, index: usize) -> Result<StreamId> {
        Ok(self.0.backend.stream_id(index)?)
    }

    /// Runs `work` with stream `index` as the current stream, like `torch.cuda.stream`. Stream 0 is
    /// the default stream; other streams are created at their first use.
    ///
    /// # Errors
    /// If the stream cannot be used, and the errors of `work`.
    pub fn with_stream<R>(&self, index: usize, work: impl FnOnce() -> Result<R>) -> Result<R> {
        let number = self.0.backend.stream_id(index)?;
        self.0.backend.set_stream(index)?;
        let outer = self.0.stream.replace((index, number));
        let result = work();
        self.0.stream.set(outer);
        self.0.backend.set_stream(outer.0)?;
        result
    }

    /// Makes later work on stream `waiting` wait for the work queued so far on stream `done`.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn wait_stream(&self, waiting: usize, done: usize) -> Result {
        Ok(self.0.backend.wait_stream(waiting, done)?)
    }

    /// Waits until all queued work is done.
    ///
    /// # Errors
    /// If the work has failed.
    pub fn synchronize(&self) -> Result {
        Ok(self.0.backend.synchronize()?)
    }

    /// Allows or forbids TF32 in matrix products of `f32`, like
    /// `torch.backends.cuda.matmul.allow_tf32`. TF32 is faster and has 10 bits of fraction. It is
    /// forbidden at first, and has no effect on the host.
    ///
    /// # Errors
    /// If cuBLAS fails.
    pub fn allow_tf32(&self, allow: bool) -> Result {
        Ok(self.0.backend.allow_tf32(allow)?)
    }

    /// Returns the allocator's counters, as `torch.cuda.memory_stats`.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.memory.stats()
    }

    /// Begins a span: a named interval in the recording. Dropping the guard ends the span.
    #[must_use]
    pub fn span(&self, name: &str) -> Box<dyn SpanGuard> {
        self.0.memory.span(name)
    }

    /// Returns true if both handles refer to one device.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}
