//! Changes of a recorded program, so that their effect can be simulated.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::MempoolId;

use super::repeats::Repeats;

/// The id of the private pool of [`Edits::from_private_pool`]. No recording has it: recordings
/// count pools from 0 or 1.
pub(super) const PRIVATE_POOL: MempoolId = MempoolId(u64::MAX, u64::MAX);

/// An early free: the event before which a block is freed, although the program freed it later, and
/// whether it is requested again.
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
/// requests that repeat it. Blocks that existed before the history cannot be changed, and event
/// numbers that belong to no request are ignored.
///
/// ```
/// use vramscope_pool::rerun::{Edits, Workload};
/// use vramscope_pool::Settings;
///
/// /// Returns true if the request that led to event `failed` succeeds after an emptied cache.
/// fn helps(workload: &Workload, settings: &Settings, capacity: Option<u64>, failed: u64) -> bool {
///     let mut edits = Edits::default();
///     edits.emptied_before.insert(failed);
///     !workload.edited(&edits).failed_requests(settings, capacity).contains(&failed)
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Number of parts by which the size of each changed request is divided, by event number.
    pub(super) divided: BTreeMap<u64, u64>,
    /// Early frees, by event number of the request.
    pub(super) freed_early: BTreeMap<u64, EarlyFree>,
    /// The event before which each early request is made, by event number of the request.
    pub(super) requested_early: BTreeMap<u64, u64>,
    /// Requests whose blocks' frees complete at once, as if no other stream used them.
    pub freed_at_once: BTreeSet<u64>,
    /// Events before which the cache is emptied (`torch.cuda.empty_cache()`).
    pub emptied_before: BTreeSet<u64>,
    /// Events before which the program waits for all streams (`torch.cuda.synchronize()`), and the
    /// frees that were pending complete.
    pub synchronized_before: BTreeSet<u64>,
    /// Events before which the users of all private pools (CUDA graphs, `MemPool`s) are deleted,
    /// and the cache is emptied.
    pub pools_released_before: BTreeSet<u64>,
    /// Requests that are made for a private pool of their own (`torch.cuda.use_mem_pool`). No
    /// recording contains the pool of a request that failed.
    pub from_private_pool: BTreeSet<u64>,
    /// Requests that are made for the default pool instead of a private one.
    pub from_default_pool: BTreeSet<u64>,
    /// Leaves out the program's own calls of `torch.cuda.empty_cache()`.
    pub keeps_cache: bool,
    /// Serves the requests of all private pools from one, as CUDA graphs that are captured with
    /// `pool=`. The pool is kept until the end.
    pub shares_private_pools: bool,
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

    /// Frees the block of a request before event `from` and requests it again before event `to`, as
    /// activation checkpointing does. The program's own free stays where it is.
    pub fn free_between(&mut self, request: u64, from: u64, to: u64) {
        self.freed_early.insert(request, EarlyFree { before: from, again_before: Some(to) });
    }

    /// Makes a request before `event` instead of where the program makes it. The block's free stays
    /// where it is. A repetition of the request is not changed.
    pub fn request_before(&mut self, request: u64, event: u64) {
        self.requested_early.insert(request, event);
    }

    /// Returns true if there are no changes of the recorded program.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the number of parts by which the size of a request is divided, because of a change
    /// of the request or of the request that it repeats; `None` if it keeps its size.
    pub(super) fn parts(&self, request: u64, repeats: &Repeats) -> Option<u64> {
        let repeated = || repeats.references.get(&request).and_then(|(earlier, _)| self.divided.get(earlier));
        self.divided.get(&request).or_else(repeated).copied()
    }

    /// Returns when a request's block is freed early, because of a change of the request or of the
    /// request that it repeats; `None` if it is not.
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
