//! The driver's allocators on a GPU: `cuMemAlloc`, and its stream-ordered pool.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, result, sys};
use vramscope_collector::{AllocateError, CudaPool, DeviceError, Stats, StreamId};

use super::Counters;
use crate::backend::BackendError;
use crate::error::Result;
use crate::memory::{Memory, SpanGuard};

/// An allocator that calls the driver for each request.
pub(in super::super) struct CudaMemory {
    context: Arc<CudaContext>,
    /// The driver's pool; `None` for plain calls of `cuMemAlloc`.
    pool: Option<sys::CUmemoryPool>,
    /// Size and stream of each live allocation, by address.
    live: RefCell<HashMap<u64, (u64, StreamId)>>,
    counters: Counters,
    /// The recorded pool, which only records marks and spans.
    recorded: CudaPool,
}

/// Returns the error of a failed driver call.
fn failed(call: &str, error: DriverError) -> BackendError {
    BackendError { call: call.to_owned(), reason: error.to_string() }
}

/// Returns the error of a failed request.
fn not_allocated(DriverError(code): DriverError, call: &str) -> AllocateError {
    match code {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::OutOfMemory.into(),
        code => DeviceError::Failed(format!("{call}: {}", DriverError(code))).into(),
    }
}

impl CudaMemory {
    /// Creates an allocator on the GPU of `context`. With `is_async`, it is the stream-ordered
    /// pool, set to keep freed memory until [`empty_cache`](Memory::empty_cache), as by PyTorch.
    /// Otherwise it calls `cuMemAlloc` and `cuMemFree`. `recorded` records marks and spans.
    pub(in super::super) fn new(recorded: CudaPool, context: &Arc<CudaContext>, is_async: bool) -> Result<Self> {
        context.bind_to_thread().map_err(|error| failed("cuCtxSetCurrent", error))?;
        let pool = is_async.then(|| default_pool(context)).transpose()?;
        let (live, counters) = (RefCell::default(), Counters::default());
        Ok(Self { context: Arc::clone(context), pool, live, counters, recorded })
    }

    /// Returns a counter of the driver's pool; `None` without a pool or if the driver fails.
    fn attribute(&self, attribute: sys::CUmemPool_attribute) -> Option<u64> {
        let pool = self.pool?;
        let mut value = 0u64;
        // SAFETY: The driver returned the pool, and callers only read attributes that are 64-bit
        // numbers.
        let status = unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast()) };
        status.result().ok().map(|()| value)
    }
}

/// Returns the driver's default pool, set to keep freed memory.
fn default_pool(context: &CudaContext) -> Result<sys::CUmemoryPool> {
    let mut pool = std::ptr::null_mut();
    // SAFETY: The driver writes to a valid variable, and the device is that of a live context.
    let status = unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, context.cu_device()) };
    status.result().map_err(|error| failed("cuDeviceGetDefaultMemPool", error))?;
    let mut threshold = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: The driver returned the pool; this attribute is a 64-bit number, which it reads.
    let status = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()) };
    status.result().map_err(|error| failed("cuMemPoolSetAttribute", error))?;
    Ok(pool)
}

// SAFETY: The driver returns new memory of the context's device, aligned to 256 bytes, until
// `free`.
unsafe impl Memory for CudaMemory {
    fn allocate(
        &self,
        bytes: u64,
        stream: StreamId,
        _location: &'static Location<'static>,
    ) -> Result<u64, AllocateError> {
        self.context.bind_to_thread().map_err(|error| not_allocated(error, "cuCtxSetCurrent"))?;
        let len = usize::try_from(bytes).map_err(|_| DeviceError::OutOfMemory)?;
        let address = if self.pool.is_some() {
            // SAFETY: The stream is one of the backend, which exist as long as the device.
            unsafe { result::malloc_async(stream.0 as sys::CUstream, len) }
                .map_err(|error| not_allocated(error, "cuMemAllocAsync"))?
        } else {
            // SAFETY: The context is current on this thread.
            unsafe { result::malloc_sync(len) }.map_err(|error| not_allocated(error, "cuMemAlloc"))?
        };
        self.live.borrow_mut().insert(address, (bytes, stream));
        self.counters.add_allocation(bytes);
        Ok(address)
    }

    unsafe fn free(&self, address: u64, _location: &'static Location<'static>) {
        let Some((bytes, stream)) = self.live.borrow_mut().remove(&address) else { return };
        self.counters.add_free(bytes);
        // If the driver fails, the memory leaks.
        if self.context.bind_to_thread().is_err() {
            return;
        }
        if self.pool.is_some() {
            // SAFETY: `allocate` got the address for work on this stream, and it is freed once; the
            // caller guarantees that nothing uses it but work queued on the stream before.
            let _ = unsafe { result::free_async(address, stream.0 as sys::CUstream) };
        } else {
            // SAFETY: `allocate` got the address, and it is freed once. The driver waits for queued
            // work.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    fn record_stream(&self, _address: u64, _stream: StreamId) -> Result {
        Ok(())
    }

    fn empty_cache(&self) -> Result {
        if let Some(pool) = self.pool {
            // SAFETY: The driver returned the pool.
            let status = unsafe { sys::cuMemPoolTrimTo(pool, 0) };
            status.result().map_err(|error| failed("cuMemPoolTrimTo", error))?;
        }
        Ok(())
    }

    fn stats(&self) -> Stats {
        use sys::CUmemPool_attribute as Attribute;
        let mut stats = self.counters.stats();
        if let Some(bytes) = self.attribute(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) {
            stats.reserved_bytes.all.current = bytes;
        }
        if let Some(bytes) = self.attribute(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) {
            stats.reserved_bytes.all.peak = bytes;
        }
        stats
    }

    fn reset_peaks(&self) {
        self.counters.reset_peaks();
        if let Some(pool) = self.pool {
            let mut zero = 0u64;
            let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
            // SAFETY: The driver returned the pool; this attribute is a 64-bit number, which can be
            // set to 0 only. If it fails, the peak stays.
            let _ = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut zero).cast()) };
        }
    }

    fn mark(&self, name: &str) {
        self.recorded.mark(name);
    }

    fn span(&self, name: &str) -> Box<dyn SpanGuard> {
        Box::new(self.recorded.span(name))
    }
}
