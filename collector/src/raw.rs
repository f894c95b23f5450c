//! Memory by its address alone, for programs that keep their own account of it.

use std::panic::Location;

use vramscope_pool::{AllocateError, FreeError};
use vramscope_trace::StreamId;

use crate::memory::MemoryDevice;
use crate::pool::{DevicePool, Request};

/// What PyTorch calls `torch.cuda.caching_allocator_alloc` and `caching_allocator_delete`. Streams are named by their numbers, which
/// on a GPU are the driver's handles; a stream that is named so must be there as long as memory for it is.
impl<D: MemoryDevice> DevicePool<D> {
    /// The address of `bytes` of memory, aligned to 512 bytes, for work on `stream`; `None` where no byte was asked for.
    ///
    /// # Errors
    /// When there is no room.
    #[track_caller]
    pub fn caching_allocator_alloc(&self, bytes: u64, stream: StreamId) -> Result<Option<u64>, AllocateError> {
        let request = Request { bytes, mempool: None, location: Location::caller() };
        let block = self.allocate_by_id(stream, request)?;
        Ok(block.map(|block| block.address))
    }

    /// Takes back memory that [`caching_allocator_alloc`](Self::caching_allocator_alloc) handed out, for later work on its stream.
    ///
    /// # Errors
    /// When the address is not the first of memory that was handed out and is not free yet. The pool is then as it was.
    ///
    /// # Safety
    /// The memory is not that of a [`PoolSlice`](crate::PoolSlice), and nothing but work that is queued on its stream already uses it
    /// after this.
    #[track_caller]
    pub unsafe fn caching_allocator_delete(&self, address: u64) -> Result<(), FreeError> {
        self.free_address(address, Location::caller())
    }

    /// Says that work on `stream` uses the memory at `address`, as `torch.Tensor.record_stream` does. Once it is given back it is handed
    /// out again only when the work that was queued on `stream` by then is done. Of its own stream this need not be said.
    ///
    /// # Errors
    /// When the address is not the first of memory that was handed out and is not free yet.
    pub fn caching_allocator_record_stream(&self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        self.record_stream_by_id(address, stream)
    }
}
