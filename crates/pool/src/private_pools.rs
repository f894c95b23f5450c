//! The table of private pools: how many users they have, and which requests they serve.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::{MempoolId, PoolKind, StreamId};

use crate::error::MempoolError;
use crate::index::BlockPoolIndex;

/// The requests that are served from a selected private pool: all requests, or the requests on one
/// stream.
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
    /// Returns true if requests on `stream` are served from the private pool that is selected with
    /// this filter; false if the filter leaves them to other pools.
    fn accepts(self, stream: StreamId) -> bool {
        match self {
            Self::AllStreams => true,
            Self::Stream(captured) => captured == stream,
        }
    }
}

/// A private pool that exists: its number of users and of segments, and its block pools for small
/// and large requests.
#[derive(Clone, Debug)]
struct PrivatePool {
    /// How many graphs or parts of the program hold the pool.
    use_count: u64,
    /// The number of segments, including expandable ones.
    segments: u64,
    /// Indexed by [`PoolKind`].
    block_pools: [BlockPoolIndex; 2],
}

/// The private pools that exist, by id; which of them are selected for requests; and the options
/// that the program set for private pools.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrivatePools {
    /// The private pools that exist.
    by_id: BTreeMap<MempoolId, PrivatePool>,
    /// The selected pools, oldest first. If several filters accept a stream, the newest applies.
    captures: Vec<(MempoolId, CaptureFilter)>,
    /// Pools without users, in the order in which they lost their last one. Their segments may be
    /// released.
    unused: Vec<MempoolId>,
    /// Pools whose blocks are never split.
    no_split: BTreeSet<MempoolId>,
    /// Pools whose free blocks may serve requests of the default pool when the device is out of
    /// memory.
    use_on_oom: BTreeSet<MempoolId>,
}

impl PrivatePools {
    /// Returns true while any private pool is selected for requests, as during a graph capture.
    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        !self.captures.is_empty()
    }

    /// Returns the block pool of the private pool that is selected at the moment for requests of
    /// size class `kind` on `stream`; `None` if the default pool serves them.
    pub(crate) fn selected_block_pool(&self, stream: StreamId, kind: PoolKind) -> Option<BlockPoolIndex> {
        let (mempool, _) = self.captures.iter().rev().find(|(_, filter)| filter.accepts(stream))?;
        self.by_id.get(mempool).map(|pool| pool.block_pools[kind as usize])
    }

    /// Returns the block pool of size class `kind` of a private pool; an error if the private pool
    /// does not exist or has no users.
    pub(crate) fn block_pool(&self, mempool: MempoolId, kind: PoolKind) -> Result<BlockPoolIndex, MempoolError> {
        match self.by_id.get(&mempool) {
            None => Err(MempoolError::Unknown(mempool)),
            Some(pool) if pool.use_count == 0 => Err(MempoolError::Released(mempool)),
            Some(pool) => Ok(pool.block_pools[kind as usize]),
        }
    }

    /// Returns true if blocks of the pool `owner` may be split; false if the program disabled that
    /// with [`set_no_split`](Self::set_no_split).
    #[inline]
    pub(crate) fn may_split(&self, owner: MempoolId) -> bool {
        self.no_split.is_empty() || !self.no_split.contains(&owner)
    }

    /// Iterates over the block pools of every private pool, the small one and the large one.
    pub(crate) fn block_pools(&self) -> impl Iterator<Item = BlockPoolIndex> + '_ {
        self.by_id.values().flat_map(|pool| pool.block_pools)
    }

    /// Returns the block pools, of one size class of private pools, whose free blocks may serve
    /// requests of the default pool when the device is out of memory.
    pub(crate) fn use_on_oom_pools(&self, kind: PoolKind) -> Vec<BlockPoolIndex> {
        let pools = self.use_on_oom.iter().filter_map(|mempool| self.by_id.get(mempool));
        pools.map(|pool| pool.block_pools[kind as usize]).collect()
    }

    /// Returns the private pools without users, each with its block pools for small and large
    /// requests, in the order in which they lost their last user.
    pub(crate) fn unused(&self) -> Vec<(MempoolId, [BlockPoolIndex; 2])> {
        self.unused.iter().filter_map(|id| self.by_id.get(id).map(|pool| (*id, pool.block_pools))).collect()
    }

    /// Adds 1 to the number of segments of the private pool `owner`. Does nothing for the default
    /// pool.
    pub(crate) fn add_segment(&mut self, owner: MempoolId) {
        if let Some(pool) = self.by_id.get_mut(&owner) {
            pool.segments += 1;
        }
    }

    /// Subtracts 1 from the number of segments of the private pool `owner`. Does nothing for the
    /// default pool.
    pub(crate) fn remove_segment(&mut self, owner: MempoolId) {
        if let Some(pool) = self.by_id.get_mut(&owner) {
            pool.segments -= 1;
        }
    }

    /// Adds a user to a private pool and returns true; false, changing nothing, if the pool does
    /// not exist. An error for the default pool and for a pool that has lost its last user.
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

    /// Adds a new private pool, with one user and no segments, that consists of the two block pools
    /// for small and large requests.
    pub(crate) fn insert(&mut self, mempool: MempoolId, block_pools: [BlockPoolIndex; 2]) {
        self.by_id.insert(mempool, PrivatePool { use_count: 1, segments: 0, block_pools });
    }

    /// Returns the number of users of a private pool; 0 if it does not exist.
    pub(crate) fn users(&self, mempool: MempoolId) -> u64 {
        self.by_id.get(&mempool).map_or(0, |pool| pool.use_count)
    }

    /// Removes a user from a private pool; an error if the pool does not exist or has no user.
    pub(crate) fn remove_user(&mut self, mempool: MempoolId) -> Result<(), MempoolError> {
        let pool = self.by_id.get_mut(&mempool).ok_or(MempoolError::Unknown(mempool))?;
        pool.use_count = pool.use_count.checked_sub(1).ok_or(MempoolError::Released(mempool))?;
        if pool.use_count == 0 {
            self.unused.push(mempool);
        }
        Ok(())
    }

    /// Removes a private pool that has no users from the table and returns true; false, changing
    /// nothing, if it still has segments.
    pub(crate) fn remove_if_empty(&mut self, mempool: MempoolId) -> bool {
        let is_empty = self.by_id[&mempool].segments == 0;
        if is_empty {
            self.by_id.remove(&mempool);
            self.unused.retain(|&unused| unused != mempool);
        }
        is_empty
    }

    /// Returns true if the private pool is selected for requests at the moment, regardless of its
    /// filter.
    pub(crate) fn is_selected(&self, mempool: MempoolId) -> bool {
        self.captures.iter().any(|&(selected, _)| selected == mempool)
    }

    /// Selects a private pool: requests that `filter` accepts are served from it until
    /// [`deselect`](Self::deselect).
    pub(crate) fn select(&mut self, mempool: MempoolId, filter: CaptureFilter) {
        self.captures.push((mempool, filter));
    }

    /// Ends the selection of a private pool for requests; an error if it is not selected.
    pub(crate) fn deselect(&mut self, mempool: MempoolId) -> Result<(), MempoolError> {
        let position = self.captures.iter().position(|&(selected, _)| selected == mempool);
        self.captures.remove(position.ok_or(MempoolError::NotSelected(mempool))?);
        Ok(())
    }

    /// Marks a private pool, existing or not, so that its blocks are never split.
    pub(crate) fn set_no_split(&mut self, mempool: MempoolId) {
        self.no_split.insert(mempool);
    }

    /// Marks (true) or unmarks (false) a private pool, existing or not: free blocks of a marked
    /// pool may serve requests of the default pool when the device is out of memory.
    pub(crate) fn set_use_on_oom(&mut self, mempool: MempoolId, use_on_oom: bool) {
        if use_on_oom {
            self.use_on_oom.insert(mempool);
        } else {
            self.use_on_oom.remove(&mempool);
        }
    }
}
