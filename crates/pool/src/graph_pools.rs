//! Graph pools: creating private pools, selecting them for requests, and releasing them.
//!
//! A CUDA graph needs its memory at unchanged addresses whenever it is launched, so its requests
//! are served from a private pool while the graph is captured. `torch.cuda.MemPool` uses this
//! mechanism without a graph.

use vramscope_trace::{MempoolId, PoolKey, PoolKind};

use crate::device::Device;
use crate::error::MempoolError;
use crate::pool::Pool;
use crate::private_pools::CaptureFilter;

impl<D: Device> Pool<D> {
    /// Creates a private pool with one user (a graph or a part of the program that holds the pool),
    /// or adds a user to the private pool if it exists.
    ///
    /// # Errors
    /// [`MempoolError::DefaultPool`] for the default pool's id, and [`MempoolError::Released`] if
    /// the pool has lost its last user and still holds memory.
    pub fn create_pool(&mut self, mempool: MempoolId) -> Result<(), MempoolError> {
        if self.private_pools.add_user(mempool)? {
            return Ok(());
        }
        let block_pools = [PoolKind::Small, PoolKind::Large]
            .map(|kind| self.pools.insert_block_pool(PoolKey { kind, owner: mempool }));
        self.private_pools.insert(mempool, block_pools);
        Ok(())
    }

    /// Selects a private pool: until [`end_allocate_to_pool`](Self::end_allocate_to_pool), requests
    /// that `filter` accepts are served from it. The pool is created if it does not exist, and gets
    /// one more user, as from [`create_pool`](Self::create_pool).
    ///
    /// While any pool is selected, frees that wait for other streams are not completed and the
    /// default pool's cache is not released, because a graph capture permits neither.
    ///
    /// # Errors
    /// [`MempoolError::AlreadySelected`] if the pool is selected, and the errors of
    /// [`create_pool`](Self::create_pool).
    pub fn begin_allocate_to_pool(&mut self, mempool: MempoolId, filter: CaptureFilter) -> Result<(), MempoolError> {
        if self.private_pools.is_selected(mempool) {
            return Err(MempoolError::AlreadySelected(mempool));
        }
        self.create_pool(mempool)?;
        self.private_pools.select(mempool, filter);
        Ok(())
    }

    /// Deselects a private pool that [`begin_allocate_to_pool`](Self::begin_allocate_to_pool)
    /// selected. The user that the selection added to the pool stays until
    /// [`release_pool`](Self::release_pool).
    ///
    /// # Errors
    /// [`MempoolError::NotSelected`] if the pool is not selected.
    pub fn end_allocate_to_pool(&mut self, mempool: MempoolId) -> Result<(), MempoolError> {
        self.private_pools.deselect(mempool)
    }

    /// Removes one user from a private pool. Once it has none, the next
    /// [`empty_cache`](Self::empty_cache) releases its segments without allocated blocks, and the
    /// pool is removed together with its last segment.
    ///
    /// # Errors
    /// [`MempoolError::Unknown`] if there is no such pool, and [`MempoolError::Released`] if it has
    /// no user.
    pub fn release_pool(&mut self, mempool: MempoolId) -> Result<(), MempoolError> {
        self.private_pools.remove_user(mempool)
    }

    /// Returns how many graphs or parts of the program hold a private pool; 0 if it does not exist.
    pub fn pool_users(&self, mempool: MempoolId) -> u64 {
        self.private_pools.users(mempool)
    }

    /// Disables splitting for a private pool, existing or not, permanently: each request gets a
    /// whole free block.
    pub fn set_no_split(&mut self, mempool: MempoolId) {
        self.private_pools.set_no_split(mempool);
    }

    /// Sets whether free blocks of a private pool, existing or not, may serve requests of the
    /// default pool when the device is out of memory. They may not unless this is set.
    pub fn set_use_on_oom(&mut self, mempool: MempoolId, use_on_oom: bool) {
        self.private_pools.set_use_on_oom(mempool, use_on_oom);
    }

    /// Removes the private pools that have neither users nor segments from the table of private
    /// pools.
    pub(crate) fn remove_empty_private_pools(&mut self) {
        for (id, block_pools) in self.private_pools.unused() {
            if self.private_pools.remove_if_empty(id) {
                block_pools.into_iter().for_each(|pool| self.pools.remove_block_pool(pool));
            }
        }
    }
}
