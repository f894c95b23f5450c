//! Private pools: memory that one CUDA graph, or a part of a program, has for itself.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::{MempoolId, Pool as PoolKey, PoolKind, StreamId};

use crate::device::Device;
use crate::error::MempoolError;
use crate::home::BlockPoolIndex;
use crate::pool::Pool;

/// Which requests go to a private pool for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diverted {
    /// All of them.
    Everything,
    /// Those for work on one stream, which is being captured.
    Stream(StreamId),
}

impl Diverted {
    fn holds(self, stream: StreamId) -> bool {
        match self {
            Self::Everything => true,
            Self::Stream(diverted) => diverted == stream,
        }
    }
}

/// A private pool.
#[derive(Clone, Debug)]
struct PrivatePool {
    /// How many graphs or parts of the program use it.
    uses: u64,
    /// Segments, expandable ones too.
    segments: u64,
    /// By [`PoolKind`].
    pools: [BlockPoolIndex; 2],
}

/// All private pools.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mempools {
    by_id: BTreeMap<MempoolId, PrivatePool>,
    /// What is diverted now; of several that hold, the last begun.
    captures: Vec<(MempoolId, Diverted)>,
    /// Those that nobody uses anymore, in the order in which that came about. Their segments may be given back.
    unused: Vec<MempoolId>,
    no_split: BTreeSet<MempoolId>,
    use_on_oom: BTreeSet<MempoolId>,
}

impl Mempools {
    #[inline]
    pub(crate) fn is_capturing(&self) -> bool {
        !self.captures.is_empty()
    }

    /// Where a request for work on `stream` goes.
    pub(crate) fn diverted(&self, stream: StreamId, kind: PoolKind) -> Option<BlockPoolIndex> {
        let (mempool, _) = self.captures.iter().rev().find(|(_, diverted)| diverted.holds(stream))?;
        self.by_id.get(mempool).map(|pool| pool.pools[kind as usize])
    }

    /// The part of a private pool that serves blocks of `kind`.
    pub(crate) fn used_pool(&self, mempool: MempoolId, kind: PoolKind) -> Result<BlockPoolIndex, MempoolError> {
        match self.by_id.get(&mempool) {
            None => Err(MempoolError::Unknown(mempool)),
            Some(pool) if pool.uses == 0 => Err(MempoolError::InUseNoMore(mempool)),
            Some(pool) => Ok(pool.pools[kind as usize]),
        }
    }

    #[inline]
    pub(crate) fn splits(&self, owner: MempoolId) -> bool {
        self.no_split.is_empty() || !self.no_split.contains(&owner)
    }

    /// Both parts of every private pool.
    pub(crate) fn pools(&self) -> impl Iterator<Item = BlockPoolIndex> + '_ {
        self.by_id.values().flat_map(|pool| pool.pools)
    }

    /// The pools to try before memory is given back, for blocks of `kind`.
    pub(crate) fn last_resorts(&self, kind: PoolKind) -> Vec<BlockPoolIndex> {
        let pools = self.use_on_oom.iter().filter_map(|mempool| self.by_id.get(mempool));
        pools.map(|pool| pool.pools[kind as usize]).collect()
    }

    /// Those that nobody uses, the small part first.
    pub(crate) fn unused(&self) -> Vec<(MempoolId, [BlockPoolIndex; 2])> {
        self.unused.iter().filter_map(|id| self.by_id.get(id).map(|pool| (*id, pool.pools))).collect()
    }

    /// A segment came or went.
    pub(crate) fn count_segment(&mut self, owner: MempoolId, came: bool) {
        if let Some(pool) = self.by_id.get_mut(&owner) {
            if came { pool.segments += 1 } else { pool.segments -= 1 }
        }
    }
}

impl<D: Device> Pool<D> {
    /// Makes a private pool with one user, or adds a user where there is one of that name.
    ///
    /// # Errors
    /// When it is the default pool's name, or that of a pool that nobody uses anymore.
    pub fn create_pool(&mut self, mempool: MempoolId) -> Result<(), MempoolError> {
        if mempool == MempoolId::default() {
            return Err(MempoolError::Default);
        }
        if let Some(pool) = self.mempools.by_id.get_mut(&mempool) {
            if pool.uses == 0 {
                return Err(MempoolError::InUseNoMore(mempool));
            }
            pool.uses += 1;
            return Ok(());
        }
        let pools =
            [PoolKind::Small, PoolKind::Large].map(|kind| self.homes.insert_pool(PoolKey { kind, owner: mempool }));
        self.mempools.by_id.insert(mempool, PrivatePool { uses: 1, segments: 0, pools });
        Ok(())
    }

    /// From now on what is `diverted` is served from a private pool, which is made where there is none and gets one user more.
    ///
    /// # Errors
    /// When something is already diverted there, or as [`create_pool`](Self::create_pool).
    pub fn begin_allocate_to_pool(&mut self, mempool: MempoolId, diverted: Diverted) -> Result<(), MempoolError> {
        if self.mempools.captures.iter().any(|&(other, _)| other == mempool) {
            return Err(MempoolError::AlreadyDiverted(mempool));
        }
        self.create_pool(mempool)?;
        self.mempools.captures.push((mempool, diverted));
        Ok(())
    }

    /// Ends what [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) began. The pool keeps its user.
    ///
    /// # Errors
    /// When nothing is diverted there.
    pub fn end_allocate_to_pool(&mut self, mempool: MempoolId) -> Result<(), MempoolError> {
        let place = self.mempools.captures.iter().position(|&(other, _)| other == mempool);
        self.mempools.captures.remove(place.ok_or(MempoolError::NotDiverted(mempool))?);
        Ok(())
    }

    /// One user less. When it was the last, the pool's segments in which no block is live are given back with the cache's, and the pool
    /// is gone with its last segment.
    ///
    /// # Errors
    /// When there is no such pool, or it has no user.
    pub fn release_pool(&mut self, mempool: MempoolId) -> Result<(), MempoolError> {
        let pool = self.mempools.by_id.get_mut(&mempool).ok_or(MempoolError::Unknown(mempool))?;
        pool.uses = pool.uses.checked_sub(1).ok_or(MempoolError::InUseNoMore(mempool))?;
        if pool.uses == 0 {
            self.mempools.unused.push(mempool);
        }
        Ok(())
    }

    /// Blocks of a private pool are never split from now on.
    pub fn set_no_split(&mut self, mempool: MempoolId) {
        self.mempools.no_split.insert(mempool);
    }

    /// Whether free blocks of a private pool may serve a request that the device has no room for.
    pub fn set_use_on_oom(&mut self, mempool: MempoolId, use_on_oom: bool) {
        if use_on_oom {
            self.mempools.use_on_oom.insert(mempool);
        } else {
            self.mempools.use_on_oom.remove(&mempool);
        }
    }

    /// Forgets private pools that nobody uses and that hold nothing.
    pub(crate) fn forget_empty_pools(&mut self) {
        for (id, pools) in self.mempools.unused() {
            if self.mempools.by_id[&id].segments == 0 {
                self.mempools.by_id.remove(&id);
                self.mempools.unused.retain(|&unused| unused != id);
                pools.into_iter().for_each(|pool| self.homes.remove_pool(pool));
            }
        }
    }
}
