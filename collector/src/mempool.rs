//! Private pools: memory that belongs to a graph, or to a part of the program, and that no other request is served from.

use std::sync::atomic::{AtomicU64, Ordering};

use vramscope_pool::{AllocateError, CaptureFilter, MempoolError};
use vramscope_trace::MempoolId;

use crate::memory::MemoryDevice;
use crate::pool::DevicePool;

/// Numbers for private pools, unique in the process, as PyTorch's are.
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(1);

/// A name for a private pool that nothing else in the process has, as `torch.cuda.graph_pool_handle()` gives.
#[must_use]
pub fn graph_pool_handle() -> MempoolId {
    MempoolId(0, NEXT_HANDLE.fetch_add(1, Ordering::Relaxed))
}

/// Private pools, by the names that they have in PyTorch's allocator.
impl<D: MemoryDevice> DevicePool<D> {
    /// Makes a private pool, or counts one use more of the one that there is.
    ///
    /// # Errors
    /// When it is the default pool's name, or that of a pool that was released by everyone who used it.
    pub fn create_pool(&self, mempool: MempoolId) -> Result<(), MempoolError> {
        self.lock().pool.create_pool(mempool)
    }

    /// From now on requests that are `diverted` are served from the private pool, which is made where there is none; counts a use of it.
    ///
    /// # Errors
    /// When requests are diverted to it already.
    pub fn begin_allocate_to_pool(&self, mempool: MempoolId, diverted: CaptureFilter) -> Result<(), MempoolError> {
        self.lock().pool.begin_allocate_to_pool(mempool, diverted)
    }

    /// The same for requests on one stream, as the capture of a graph begins with.
    ///
    /// # Errors
    /// As for [`begin_allocate_to_pool`](Self::begin_allocate_to_pool), and when it is no stream for the device's memory.
    pub fn begin_allocate_stream_to_pool(&self, mempool: MempoolId, stream: &D::Stream) -> Result<(), AllocateError> {
        let mut inner = self.lock();
        let stream = inner.pool.device_mut().stream_id(stream)?;
        Ok(inner.pool.begin_allocate_to_pool(mempool, CaptureFilter::Stream(stream))?)
    }

    /// Ends what [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) began.
    ///
    /// # Errors
    /// When no requests are diverted to the private pool.
    pub fn end_allocate_to_pool(&self, mempool: MempoolId) -> Result<(), MempoolError> {
        self.lock().pool.end_allocate_to_pool(mempool)
    }

    /// Counts one use less of a private pool. When none is left, its free segments may be given back.
    ///
    /// # Errors
    /// When there is no such pool or it has no use left.
    pub fn release_pool(&self, mempool: MempoolId) -> Result<(), MempoolError> {
        self.lock().pool.release_pool(mempool)
    }

    /// Blocks of a private pool are never split from now on.
    pub fn set_no_split(&self, mempool: MempoolId) {
        self.lock().pool.set_no_split(mempool);
    }

    /// Whether free blocks of a private pool may serve a request that the device has no room for.
    pub fn set_use_on_oom(&self, mempool: MempoolId, use_on_oom: bool) {
        self.lock().pool.set_use_on_oom(mempool, use_on_oom);
    }
}
