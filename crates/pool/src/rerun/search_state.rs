//! States that the reconstruction of a history can return to.

use super::entry_group::{EntryGroup, Interpretation};
use super::private_pool_tracker::PrivatePoolTracker;
use super::recorded_device::RecordedDevice;
use crate::pool::Pool;

/// The fixed part of the cost of copying a pool, as a number of blocks; each block of the pool adds
/// to it.
pub(super) const COPY_COST: u64 = 2_000;

/// The pool after some entry of a history, with everything else needed to continue reading there.
#[derive(Clone, Debug)]
pub(super) struct SearchState<'h> {
    pub(super) pool: Pool<RecordedDevice<'h>>,
    pub(super) private_pools: PrivatePoolTracker,
    pub(super) calls: u64,
    /// The length of the log, and the largest fragmentation after any of its calls.
    pub(super) logged_calls: usize,
    pub(super) peak_fragmentation: f64,
}

impl SearchState<'_> {
    /// Returns the cost of copying this state, as a number of blocks: a fixed part and two for each
    /// active block.
    pub(super) fn copy_cost(&self) -> u64 {
        2 * self.pool.counters.active() + COPY_COST
    }
}

/// A saved state to return to if the present interpretation of recorded events fails, with the
/// interpretations of the next entry group that are still untried.
#[derive(Debug)]
pub(super) struct BranchPoint<'h> {
    pub(super) state: SearchState<'h>,
    pub(super) group: EntryGroup,
    /// The untried interpretations, the next one last.
    pub(super) interpretations: Vec<Interpretation>,
}
