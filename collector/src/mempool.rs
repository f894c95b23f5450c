//! Private pools: memory for a captured graph, or for a part of the program, that serves no other
//! requests.

use std::sync::atomic::{AtomicU64, Ordering};

use vramscope_pool::{AllocateError, CaptureFilter, MempoolError};
use vramscope_trace::MempoolId;

use crate::memory::MemoryDevice;
use crate::pool::DevicePool;

/// The number of the next private pool, unique in the process as in PyTorch.
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(1);

/// Returns a new private pool id, unique in this process, as `torch.cuda.graph_pool_handle()` does.
#[must_use]
pub fn graph_pool_handle() -> MempoolId {
    MempoolId(0, NEXT_HANDLE.fetch_add(1, Ordering::Relaxed))
}

/// Private pools, with the method names of PyTorch's allocator.
impl<D: MemoryDevice> DevicePool<D> {
    /// Creates a private pool with one user, or adds a user if it exists. Its users are the graphs
    /// or parts of the program that hold it; only their number is stored, as PyTorch's `use_count`.
    ///
    /// # Errors
    /// If `mempool` is the default pool's id, or the pool has lost its last user and still holds
    /// memory.
    pub fn create_pool(&self, mempool: MempoolId) -> Result<(), MempoolError> {
        self.lock().pool.create_pool(mempool)
    }

    /// Redirects requests: from now on, each request that `filter` accepts is served from the
    /// private pool `mempool`. Creates the pool if necessary, and adds 1 to its number of users.
    ///
    /// # Errors
    /// If requests are already redirected to this pool, and the errors of
    /// [`create_pool`](Self::create_pool).
    pub fn begin_allocate_to_pool(&self, mempool: MempoolId, filter: CaptureFilter) -> Result<(), MempoolError> {
        self.lock().pool.begin_allocate_to_pool(mempool, filter)
    }

    /// Redirects requests on one stream, as during graph capture: from now on they are served from
    /// the private pool `mempool`. Creates the pool if necessary, and adds 1 to its number of
    /// users.
    ///
    /// # Errors
    /// As [`begin_allocate_to_pool`](Self::begin_allocate_to_pool), and if the stream cannot be
    /// used with the device's memory.
    pub fn begin_allocate_stream_to_pool(&self, mempool: MempoolId, stream: &D::Stream) -> Result<(), AllocateError> {
        let mut inner = self.lock();
        let stream = inner.pool.device_mut().stream_id(stream)?;
        Ok(inner.pool.begin_allocate_to_pool(mempool, CaptureFilter::Stream(stream))?)
    }

    /// Ends the redirection of requests to the private pool `mempool`. The pool's number of users,
    /// to which the beginning of the redirection added 1, stays until
    /// [`release_pool`](Self::release_pool).
    ///
    /// # Errors
    /// If no requests are redirected to this pool.
    pub fn end_allocate_to_pool(&self, mempool: MempoolId) -> Result<(), MempoolError> {
        self.lock().pool.end_allocate_to_pool(mempool)
    }

    /// Subtracts 1 from a private pool's number of users. Once it has no users,
    /// [`empty_cache`](Self::empty_cache) may release its free segments.
    ///
    /// # Errors
    /// If the pool does not exist or has no users.
    pub fn release_pool(&self, mempool: MempoolId) -> Result<(), MempoolError> {
        self.lock().pool.release_pool(mempool)
    }

    /// Returns a private pool's number of users; 0 if it does not exist.
    #[must_use]
    pub fn pool_users(&self, mempool: MempoolId) -> u64 {
        self.lock().pool.pool_users(mempool)
    }

    /// Stops splitting blocks of a private pool: each request gets a whole free block.
    pub fn set_no_split(&self, mempool: MempoolId) {
        self.lock().pool.set_no_split(mempool);
    }

    /// Sets whether free blocks of a private pool may serve requests of the default pool that would
    /// otherwise run out of memory. False is the default.
    pub fn set_use_on_oom(&self, mempool: MempoolId, use_on_oom: bool) {
        self.lock().pool.set_use_on_oom(mempool, use_on_oom);
    }
}
