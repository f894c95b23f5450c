//! Request: rounds the size, chooses the pool, and asks for a block: from the free blocks (a hit)
//! or by the slow path.

use vramscope_trace::{MempoolId, Sink, StreamId};

use crate::block::Block;
use crate::device::Device;
use crate::error::AllocateError;
use crate::index::{BlockIndex, BlockPoolIndex, StreamPoolIndex};
use crate::pool::{Origin, Pool};
use crate::size::{self, MAX_REQUEST_BYTES};

/// The address and size of a block that the pool handed to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatedBlock {
    /// First address; [`Pool::free`] takes it.
    pub address: u64,
    /// Size of the block in bytes: the requested bytes rounded up, or more if the free block that
    /// served the request was not worth splitting.
    pub size: u64,
}

/// A callback that asks the program for memory it can spare: it returns the addresses of blocks
/// that the pool then frees, or `None` if the program needs all of its blocks.
///
/// See [`Pool::allocate_with_callback`]. PyTorch calls its counterparts `FreeMemoryCallback`.
pub type FreeMemoryCallback<'a> = &'a mut dyn FnMut() -> Option<Vec<u64>>;

/// A request for memory with its rounded size and the pool that serves it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Bytes that the program requested.
    pub(crate) requested: u64,
    /// Size of the block that it needs, in bytes.
    pub(crate) size: u64,
    pub(crate) stream: StreamId,
    /// The block pool (size class of the default pool or of a private pool) that serves it.
    pub(crate) block_pool: BlockPoolIndex,
    /// The part of the block pool for the request's stream.
    pub(crate) stream_pool: StreamPoolIndex,
    /// Whether expandable segments may serve it.
    pub(crate) expandable: bool,
}

impl<D: Device> Pool<D> {
    /// Allocates a block of at least `bytes` for work on `stream`. Returns `None` if `bytes` is 0.
    ///
    /// The block comes from the default pool, or from the private pool that is selected for
    /// `stream`.
    ///
    /// # Errors
    /// [`AllocateError::OutOfMemory`] if there is not enough memory even after all cached segments
    /// are released, [`AllocateError::TooLarge`] from [`MAX_REQUEST_BYTES`] on, and
    /// [`AllocateError::Device`] if the device fails in another way.
    #[inline]
    pub fn allocate(
        &mut self,
        bytes: u64,
        stream: StreamId,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<Option<AllocatedBlock>, AllocateError> {
        let index = self.allocate_from(None, bytes, stream, origin, sink, None)?;
        Ok(self.add_live(index))
    }

    /// Allocates a block as [`allocate`](Self::allocate) does, but returns its index, to be freed
    /// with [`free_block`](Self::free_block). The block is not in the table of allocated blocks by
    /// address, so [`free`](Self::free) does not find it.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    #[inline]
    pub(crate) fn allocate_without_address(
        &mut self,
        bytes: u64,
        stream: StreamId,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<Option<BlockIndex>, AllocateError> {
        self.allocate_from(None, bytes, stream, origin, sink, None)
    }

    /// Allocates a block as [`allocate`](Self::allocate) does, but from the private pool `mempool`,
    /// whichever pool is selected.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), and [`AllocateError::Mempool`] if the private pool does not
    /// exist or has no users.
    pub fn allocate_in(
        &mut self,
        mempool: MempoolId,
        bytes: u64,
        stream: StreamId,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<Option<AllocatedBlock>, AllocateError> {
        let index = self.allocate_from(Some(mempool), bytes, stream, origin, sink, None)?;
        Ok(self.add_live(index))
    }

    /// Allocates a block as [`allocate`](Self::allocate) or, with a `mempool`, as
    /// [`allocate_in`](Self::allocate_in) does, and may ask the program to free memory.
    ///
    /// If no free block fits, `callback` is called once, before memory is obtained from the device.
    /// The pool frees the blocks whose addresses it returns and ignores other addresses.
    ///
    /// # Errors
    /// As [`allocate_in`](Self::allocate_in).
    pub fn allocate_with_callback(
        &mut self,
        mempool: Option<MempoolId>,
        bytes: u64,
        stream: StreamId,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
        callback: FreeMemoryCallback<'_>,
    ) -> Result<Option<AllocatedBlock>, AllocateError> {
        let index = self.allocate_from(mempool, bytes, stream, origin, sink, Some(callback))?;
        Ok(self.add_live(index))
    }

    /// Adds a newly allocated block to the blocks that [`free`](Self::free) finds by address.
    #[inline]
    fn add_live(&mut self, index: Option<BlockIndex>) -> Option<AllocatedBlock> {
        let index = index?;
        let &Block { address, size, .. } = &self.blocks[index];
        self.live.insert(address, index);
        Some(AllocatedBlock { address, size })
    }

    /// Allocates a block of at least `bytes` for work on `stream`: the common part of the public
    /// methods that allocate. `mempool` is the private pool to use; `None` for the one that is
    /// selected for `stream`, or the default pool if none is selected. The caller adds the block to
    /// [`live`](Self::live).
    #[inline]
    fn allocate_from(
        &mut self,
        mempool: Option<MempoolId>,
        bytes: u64,
        stream: StreamId,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
        callback: Option<FreeMemoryCallback<'_>>,
    ) -> Result<Option<BlockIndex>, AllocateError> {
        if bytes == 0 {
            return Ok(None);
        }
        if bytes >= MAX_REQUEST_BYTES {
            return Err(AllocateError::TooLarge { requested: bytes });
        }
        if self.stream_uses.any_pending() {
            self.process_events(origin, sink)?;
        }
        let size = size::block_size(&self.settings, bytes);
        let kind = size::pool_kind(size);
        let block_pool = match mempool {
            Some(mempool) => self.private_pools.block_pool(mempool, kind)?,
            None if self.private_pools.is_capturing() => {
                self.private_pools.selected_block_pool(stream, kind).unwrap_or(BlockPoolIndex::default_of(kind))
            }
            None => BlockPoolIndex::default_of(kind),
        };
        let stream_pool = self.pools.stream_pool(block_pool, stream);
        let expandable = self.settings.expandable_segments;
        let mut request = Request { requested: bytes, size, stream, block_pool, stream_pool, expandable };
        let index = match self.take_best_fit(&request) {
            Some(index) => index,
            None => self.slow_path(&mut request, origin, sink, callback)?,
        };
        self.allocate_block(index, &request, origin, sink);
        Ok(Some(index))
    }
}
