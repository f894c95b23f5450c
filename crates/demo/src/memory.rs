//! The allocator interface of tensors, and its implementation by the vramscope pool.

use std::panic::Location;

use vramscope_collector::{AllocateError, CaptureFilter, DevicePool, MemoryDevice, MempoolId, Span, Stats, StreamId};
use vramscope_trace::{FreeSpace, Metrics};

use crate::error::{Result, arguments};

/// A guard of a span (a named interval of the recording). Dropping it records the end.
pub trait SpanGuard {}

impl<D: MemoryDevice> SpanGuard for Span<D> {}
impl SpanGuard for () {}

/// An allocator of one device's memory.
///
/// # Safety
/// [`allocate`](Self::allocate) returns addresses of memory that the device can read and write, of
/// at least the requested size and aligned to 256 bytes. It overlaps no other live memory, and
/// stays allocated until [`free`](Self::free).
pub unsafe trait Memory {
    /// Allocates `bytes` (not 0) for work on `stream` and returns the address. `location` is the
    /// source line to record with the request.
    ///
    /// # Errors
    /// If the device is out of memory or fails.
    fn allocate(
        &self,
        bytes: u64,
        stream: StreamId,
        location: &'static Location<'static>,
    ) -> Result<u64, AllocateError>;

    /// Frees the memory at `address`, for later work on its stream. If the device fails, the memory
    /// leaks.
    ///
    /// # Safety
    /// The caller guarantees that [`allocate`](Self::allocate) returned the address, that it was
    /// not freed since, and that nothing uses the memory except work already queued on its stream
    /// or on streams given to [`record_stream`](Self::record_stream), if this allocator delays
    /// frees.
    unsafe fn free(&self, address: u64, location: &'static Location<'static>);

    /// Records that work on `stream` uses the memory at `address`, as `torch.Tensor.record_stream`
    /// does. Allocators that cannot delay frees ignore it.
    ///
    /// # Errors
    /// If no live memory begins at the address.
    fn record_stream(&self, address: u64, stream: StreamId) -> Result;

    /// Releases cached memory to the device, as `torch.cuda.empty_cache`.
    ///
    /// # Errors
    /// If the device fails.
    fn empty_cache(&self) -> Result;

    /// Returns the allocator's counters, as `torch.cuda.memory_stats`.
    fn stats(&self) -> Stats;

    /// Returns the allocated bytes: the sizes of all blocks that the program holds, after rounding.
    fn allocated_bytes(&self) -> u64 {
        self.stats().allocated_bytes.all.current
    }

    /// Returns the free blocks in the allocator's segments; `None` if the allocator does not know
    /// them.
    fn free_space(&self) -> Option<FreeSpace> {
        None
    }

    /// Sets the peaks of all counters to their present values, as
    /// `torch.cuda.reset_peak_memory_stats`.
    fn reset_peaks(&self);

    /// Serves later requests on `stream` from the private pool `mempool`, as during the capture of
    /// a CUDA graph. Adds a user to the private pool.
    ///
    /// # Errors
    /// If this allocator has no private pools, or requests are already redirected to this one.
    fn begin_private_pool(&self, mempool: MempoolId, stream: StreamId) -> Result {
        let (_, _) = (mempool, stream);
        Err(arguments("begin_private_pool", "this allocator has no private pools: use the pool"))
    }

    /// Serves later requests from the default pool again, after
    /// [`begin_private_pool`](Self::begin_private_pool). The private pool keeps its user.
    ///
    /// # Errors
    /// If no requests are redirected to this private pool.
    fn end_private_pool(&self, mempool: MempoolId) -> Result {
        let _ = mempool;
        Ok(())
    }

    /// Removes a user of a private pool. Without users, its memory can be released.
    ///
    /// # Errors
    /// If the private pool does not exist or has no users.
    fn release_private_pool(&self, mempool: MempoolId) -> Result {
        let _ = mempool;
        Ok(())
    }

    /// Records a mark: a named moment.
    fn mark(&self, name: &str);

    /// Begins a span: a named interval in the recording. Dropping the guard ends the span.
    fn span(&self, name: &str) -> Box<dyn SpanGuard>;
}

// SAFETY: The pool returns parts of memory that the device has allocated, aligned to 512 bytes, and
// gives no byte to two live blocks.
unsafe impl<D: MemoryDevice> Memory for DevicePool<D> {
    fn allocate(
        &self,
        bytes: u64,
        stream: StreamId,
        location: &'static Location<'static>,
    ) -> Result<u64, AllocateError> {
        let address = self.caching_allocator_alloc_at(bytes, stream, location)?;
        Ok(address.expect("the pool returns an address for a request of more than 0 bytes"))
    }

    // SAFETY: The caller guarantees what the pool's function requires.
    unsafe fn free(&self, address: u64, location: &'static Location<'static>) {
        // SAFETY: The caller gives the guarantees. An error is a failed device; the block leaks.
        let _ = unsafe { self.caching_allocator_delete_at(address, location) };
    }

    fn record_stream(&self, address: u64, stream: StreamId) -> Result {
        Ok(self.caching_allocator_record_stream(address, stream)?)
    }

    fn empty_cache(&self) -> Result {
        Ok(Self::empty_cache(self)?)
    }

    fn stats(&self) -> Stats {
        Self::stats(self)
    }

    fn free_space(&self) -> Option<FreeSpace> {
        Some(Metrics::at(&self.memory_state(), |_, _| true).free)
    }

    fn reset_peaks(&self) {
        self.reset_peak_memory_stats();
    }

    fn begin_private_pool(&self, mempool: MempoolId, stream: StreamId) -> Result {
        Ok(self.begin_allocate_to_pool(mempool, CaptureFilter::Stream(stream))?)
    }

    fn end_private_pool(&self, mempool: MempoolId) -> Result {
        Ok(self.end_allocate_to_pool(mempool)?)
    }

    fn release_private_pool(&self, mempool: MempoolId) -> Result {
        Ok(self.release_pool(mempool)?)
    }

    fn mark(&self, name: &str) {
        Self::mark(self, name);
    }

    fn span(&self, name: &str) -> Box<dyn SpanGuard> {
        Box::new(Self::span(self, name))
    }
}
