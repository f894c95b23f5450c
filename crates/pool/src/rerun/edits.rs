//! Changes of a recorded program, so that their effect can be simulated.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::MempoolId;

use super::repeats::Repeats;

/// The private pool of [`Edits::request_from_private_pool`]; recordings count pools from 0 or 1.
pub(super) const PRIVATE_POOL: MempoolId = MempoolId(u64::MAX, u64::MAX);

/// When a block is freed earlier than recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EarlyFree {
    /// The block is freed before this event, if it is not free by then.
    pub(super) before: u64,
    /// It is requested again before this event, if the program had not freed it by then.
    pub(super) again_before: Option<u64>,
}

/// Changes of a recorded program's calls. A request is named by the number of the event that it led
/// to: an allocated block, or out of memory.
///
/// In a [continued](super::Workload::continued) program, a change of a request also changes the
/// requests that repeat it. Blocks that existed before the history cannot be changed, and what
/// names no request is ignored.
///
/// ```
/// use vramscope_pool::rerun::{Edits, Workload};
/// use vramscope_pool::Settings;
///
/// /// Returns true if the request that led to event `failed` succeeds after an emptied cache.
/// fn helps(workload: &Workload, settings: &Settings, capacity: Option<u64>, failed: u64) -> bool {
///     let mut edits = Edits::default();
///     edits.empty_cache_before(failed);
///     !workload.edited(&edits).failed_requests(settings, capacity).contains(&failed)
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    pub(super) divided: BTreeMap<u64, u64>,
    pub(super) freed_early: BTreeMap<u64, EarlyFree>,
    pub(super) freed_at_once: BTreeSet<u64>,
    pub(super) emptied_before: BTreeSet<u64>,
    pub(super) synchronized_before: BTreeSet<u64>,
    pub(super) pools_released_before: BTreeSet<u64>,
    pub(super) from_private_pool: BTreeSet<u64>,
    pub(super) keeps_cache: bool,
    pub(super) shares_private_pools: bool,
}

impl Edits {
    /// Divides the size of a request by `parts`, rounding up. 0 parts leave the request and its
    /// free out.
    pub fn divide(&mut self, request: u64, parts: u64) {
        self.divided.insert(request, parts);
    }

    /// Frees the block of a request before `event`, unless the program freed it earlier.
    pub fn free_before(&mut self, request: u64, event: u64) {
        self.freed_early.insert(request, EarlyFree { before: event, again_before: None });
    }

    /// Frees the block of a request before event `from` and requests it again before event `to`,
    /// as activations that are computed again. The program's own free stays where it is.
    pub fn free_between(&mut self, request: u64, from: u64, to: u64) {
        self.freed_early.insert(request, EarlyFree { before: from, again_before: Some(to) });
    }

    /// Completes the free of a request's block at once, as if no other stream used it.
    pub fn free_at_once(&mut self, request: u64) {
        self.freed_at_once.insert(request);
    }

    /// Empties the cache before an event (`torch.cuda.empty_cache()`).
    pub fn empty_cache_before(&mut self, event: u64) {
        self.emptied_before.insert(event);
    }

    /// Waits for all streams before an event (`torch.cuda.synchronize()`), and completes the frees
    /// that were pending.
    pub fn synchronize_before(&mut self, event: u64) {
        self.synchronized_before.insert(event);
    }

    /// Deletes the users of all private pools (CUDA graphs, `MemPool`s) before an event, and
    /// empties the cache.
    pub fn release_private_pools_before(&mut self, event: u64) {
        self.pools_released_before.insert(event);
    }

    /// Makes a request for a private pool of its own (`torch.cuda.use_mem_pool`). No recording
    /// contains the pool of a request that failed.
    pub fn request_from_private_pool(&mut self, request: u64) {
        self.from_private_pool.insert(request);
    }

    /// Leaves out the program's own calls of `torch.cuda.empty_cache()`.
    pub fn keep_cache(&mut self) {
        self.keeps_cache = true;
    }

    /// Serves the requests of all private pools from one, as CUDA graphs that are captured with
    /// `pool=`. The pool is kept until the end.
    pub fn share_private_pools(&mut self) {
        self.shares_private_pools = true;
    }

    /// Returns true if nothing is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the parts of a request, changed itself or as a repetition; `None` if it keeps its
    /// size.
    pub(super) fn parts(&self, request: u64, repeats: &Repeats) -> Option<u64> {
        let repeated = || repeats.references.get(&request).and_then(|(earlier, _)| self.divided.get(earlier));
        self.divided.get(&request).or_else(repeated).copied()
    }

    /// Returns when a request's block is freed early, for a change of the request or of the one
    /// that it repeats.
    pub(super) fn early_free(&self, request: u64, repeats: &Repeats) -> Option<EarlyFree> {
        let repeated = || {
            let &(earlier, later) = repeats.references.get(&request)?;
            let early = self.freed_early.get(&earlier)?;
            let again_before = early.again_before.map(|event| repeats.image(event, later));
            Some(EarlyFree { before: repeats.image(early.before, later), again_before })
        };
        self.freed_early.get(&request).copied().or_else(repeated)
    }
}
