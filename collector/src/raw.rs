//! Memory by address, for programs that manage buffers themselves.

use std::panic::Location;

use vramscope_pool::{AllocateError, FreeError};
use vramscope_trace::StreamId;

use crate::memory::MemoryDevice;
use crate::pool::{DevicePool, Request};

/// The functions behind `torch.cuda.caching_allocator_alloc` and `caching_allocator_delete`.
///
/// Streams are given by number. On a GPU the number is the driver's handle of a stream of the
/// pool's context, and the stream must exist until the pool is dropped.
impl<D: MemoryDevice> DevicePool<D> {
    /// Allocates `bytes` for work on `stream` and returns the address, a multiple of 512. Returns
    /// `None` for a request of 0 bytes.
    ///
    /// # Errors
    /// If the device is out of memory or fails.
    #[track_caller]
    pub fn caching_allocator_alloc(&self, bytes: u64, stream: StreamId) -> Result<Option<u64>, AllocateError> {
        self.caching_allocator_alloc_at(bytes, stream, Location::caller())
    }

    /// Allocates as [`caching_allocator_alloc`](Self::caching_allocator_alloc), with `location` as
    /// the source line of the request: for libraries that know which line of the program a request
    /// is for.
    ///
    /// # Errors
    /// If the device is out of memory or fails.
    pub fn caching_allocator_alloc_at(
        &self,
        bytes: u64,
        stream: StreamId,
        location: &'static Location<'static>,
    ) -> Result<Option<u64>, AllocateError> {
        let block = self.allocate_by_id(stream, Request { bytes, mempool: None, location })?;
        Ok(block.map(|block| block.address))
    }

    /// Frees memory that [`caching_allocator_alloc`](Self::caching_allocator_alloc) returned. It
    /// may be reused for later work on its stream.
    ///
    /// # Errors
    /// If no live block begins at the address. The pool is then unchanged.
    ///
    /// # Safety
    /// The caller guarantees that the memory at `address` came from
    /// [`caching_allocator_alloc`](Self::caching_allocator_alloc), not from a
    /// [`PoolSlice`](crate::PoolSlice), and that from now on nothing uses it except work already
    /// queued on its stream or on the streams that
    /// [`caching_allocator_record_stream`](Self::caching_allocator_record_stream) recorded.
    #[track_caller]
    pub unsafe fn caching_allocator_delete(&self, address: u64) -> Result<(), FreeError> {
        // SAFETY: The caller gives the guarantees.
        unsafe { self.caching_allocator_delete_at(address, Location::caller()) }
    }

    /// Frees memory as [`caching_allocator_delete`](Self::caching_allocator_delete), with `location`
    /// as the source line of the free.
    ///
    /// # Errors
    /// If no live block begins at the address. The pool is then unchanged.
    ///
    /// # Safety
    /// As for [`caching_allocator_delete`](Self::caching_allocator_delete).
    pub unsafe fn caching_allocator_delete_at(
        &self,
        address: u64,
        location: &'static Location<'static>,
    ) -> Result<(), FreeError> {
        // Nothing here is `unsafe`; but the pool may give the memory to a `PoolSlice`, whose safe
        // access relies on the caller's guarantee.
        self.free_address(address, location)
    }

    /// Records that work on `stream` uses the memory at `address`, as `torch.Tensor.record_stream`
    /// does. After its free, the memory is reused only when the work queued on `stream` by then has
    /// finished. Not needed for the block's own stream.
    ///
    /// # Errors
    /// If no live block begins at the address.
    pub fn caching_allocator_record_stream(&self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        self.record_stream_by_id(address, stream)
    }
}
