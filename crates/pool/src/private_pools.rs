//! The table of private pools: who uses them, and which requests are directed to them.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::{MempoolId, PoolKind, StreamId};

use crate::error::MempoolError;
use crate::index::BlockPoolIndex;

/// Which requests are served from a selected private pool.
///
/// See [`Pool::begin_allocate_to_pool`](crate::Pool::begin_allocate_to_pool). PyTorch passes a
/// function from stream to `bool` instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureFilter {
    /// Requests for any stream.
    AllStreams,
    /// Requests for one stream, the one that is being captured into a CUDA graph.
    Stream(StreamId),
}

impl CaptureFilter {
    /// Returns true if requests on `stream` are served from the selected pool.
    fn accepts(self, stream: StreamId) -> bool {
        match self {
            Self::AllStreams => true,
            Self::Stream(captured) => captured == stream,
        }
    }
}

/// A private pool that exists: its users, its segments and its two block pools.
#[derive(Clone, Debug)]
struct PrivatePool {
    /// How many graphs or parts of the program hold the pool.
    use_count: u64,
    /// The number of segments, including expandable ones.
    segments: u64,
    /// Indexed by [`PoolKind`].
    block_pools: [BlockPoolIndex; 2],
}

/// All private pools.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrivatePools {
    by_id: BTreeMap<MempoolId, PrivatePool>,
    /// The selected pools, oldest first. If several filters accept a stream, the newest applies.
    captures: Vec<(MempoolId, CaptureFilter)>,
    /// Pools without users, in the order in which they lost their last one. Their segments may be
    /// released.
    unused: Vec<MempoolId>,
    no_split: BTreeSet<MempoolId>,
    use_on_oom: BTreeSet<MempoolId>,
}

impl PrivatePools {
    /// Returns true while any private pool is selected.
    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        !self.captures.is_empty()
    }

    /// Returns the private block pool that serves requests of size class `kind` on `stream` at the
    /// moment; `None` if the default pool does.
    pub(crate) fn selected_block_pool(&self, stream: StreamId, kind: PoolKind) -> Option<BlockPoolIndex> {
        let (mempool, _) = self.captures.iter().rev().find(|(_, filter)| filter.accepts(stream))?;
        self.by_id.get(mempool).map(|pool| pool.block_pools[kind as usize])
    }

    /// Returns the block pool of size class `kind` of a private pool; an error if the pool does not
    /// exist.
    pub(crate) fn block_pool(&self, mempool: MempoolId, kind: PoolKind) -> Result<BlockPoolIndex, MempoolError> {
        match self.by_id.get(&mempool) {
            None => Err(MempoolError::Unknown(mempool)),
            Some(pool) if pool.use_count == 0 => Err(MempoolError::Released(mempool)),
            Some(pool) => Ok(pool.block_pools[kind as usize]),
        }
    }

    /// Returns false for pools whose blocks are never split.
    #[inline]
    pub(crate) fn may_split(&self, owner: MempoolId) -> bool {
        self.no_split.is_empty() || !self.no_split.contains(&owner)
    }

    /// Iterates over both block pools of every private pool.
    pub(crate) fn block_pools(&self) -> impl Iterator<Item = BlockPoolIndex> + '_ {
        self.by_id.values().flat_map(|pool| pool.block_pools)
    }

    /// Returns the block pools of one size class that may serve requests of the default pool when
    /// the device is out of memory.
    pub(crate) fn use_on_oom_pools(&self, kind: PoolKind) -> Vec<BlockPoolIndex> {
        let pools = self.use_on_oom.iter().filter_map(|mempool| self.by_id.get(mempool));
        pools.map(|pool| pool.block_pools[kind as usize]).collect()
    }

    /// Returns the pools without users, each with its small and its large block pool.
    pub(crate) fn unused(&self) -> Vec<(MempoolId, [BlockPoolIndex; 2])> {
        self.unused.iter().filter_map(|id| self.by_id.get(id).map(|pool| (*id, pool.block_pools))).collect()
    }

    /// Counts a new segment. Does nothing for the default pool.
    pub(crate) fn add_segment(&mut self, owner: MempoolId) {
        if let Some(pool) = self.by_id.get_mut(&owner) {
            pool.segments += 1;
        }
    }

    /// Counts a released segment. Does nothing for the default pool.
    pub(crate) fn remove_segment(&mut self, owner: MempoolId) {
        if let Some(pool) = self.by_id.get_mut(&owner) {
            pool.segments -= 1;
        }
    }

    /// Adds a user to a pool if the pool exists. Returns whether it does.
    pub(crate) fn add_user(&mut self, mempool: MempoolId) -> Result<bool, MempoolError> {
        if mempool == MempoolId::default() {
            return Err(MempoolError::DefaultPool);
        }
        let Some(pool) = self.by_id.get_mut(&mempool) else { return Ok(false) };
        if pool.use_count == 0 {
            return Err(MempoolError::Released(mempool));
        }
        pool.use_count += 1;
        Ok(true)
    }

    /// Adds a new pool with one user.
    pub(crate) fn insert(&mut self, mempool: MempoolId, block_pools: [BlockPoolIndex; 2]) {
        self.by_id.insert(mempool, PrivatePool { use_count: 1, segments: 0, block_pools });
    }

    /// Removes a user from a pool; an error if the pool does not exist or has no user.
    pub(crate) fn remove_user(&mut self, mempool: MempoolId) -> Result<(), MempoolError> {
        let pool = self.by_id.get_mut(&mempool).ok_or(MempoolError::Unknown(mempool))?;
        pool.use_count = pool.use_count.checked_sub(1).ok_or(MempoolError::Released(mempool))?;
        if pool.use_count == 0 {
            self.unused.push(mempool);
        }
        Ok(())
    }

    /// Removes a pool if it has no segments, and returns whether it did. The pool must be unused.
    pub(crate) fn remove_if_empty(&mut self, mempool: MempoolId) -> bool {
        let is_empty = self.by_id[&mempool].segments == 0;
        if is_empty {
            self.by_id.remove(&mempool);
            self.unused.retain(|&unused| unused != mempool);
        }
        is_empty
    }

    /// Returns true if the pool is selected, by any filter.
    pub(crate) fn is_selected(&self, mempool: MempoolId) -> bool {
        self.captures.iter().any(|&(selected, _)| selected == mempool)
    }

    /// Selects a pool: requests that `filter` accepts are served from it until
    /// [`deselect`](Self::deselect).
    pub(crate) fn select(&mut self, mempool: MempoolId, filter: CaptureFilter) {
        self.captures.push((mempool, filter));
    }

    /// Ends the oldest selection of a pool; an error if it is not selected.
    pub(crate) fn deselect(&mut self, mempool: MempoolId) -> Result<(), MempoolError> {
        let position = self.captures.iter().position(|&(selected, _)| selected == mempool);
        self.captures.remove(position.ok_or(MempoolError::NotSelected(mempool))?);
        Ok(())
    }

    /// Marks a private pool, existing or not, so that its blocks are never split.
    pub(crate) fn set_no_split(&mut self, mempool: MempoolId) {
        self.no_split.insert(mempool);
    }

    /// Marks a private pool, existing or not, or unmarks it: free blocks of a marked pool may serve
    /// requests of the default pool when the device is out of memory.
    pub(crate) fn set_use_on_oom(&mut self, mempool: MempoolId, use_on_oom: bool) {
        if use_on_oom {
            self.use_on_oom.insert(mempool);
        } else {
            self.use_on_oom.remove(&mempool);
        }
    }
}
