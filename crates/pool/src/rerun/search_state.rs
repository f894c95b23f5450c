//! States that the reconstruction of a history can return to.

use vramscope_trace::{MempoolId, StreamId};

use super::cursor::{DecisionChecker, capture_of_another_stream};
use super::entry_group::{EntryGroup, Interpretation};
use super::fragmentation::FragmentationPeak;
use super::private_pool_tracker::PrivatePoolTracker;
use super::recorded_device::RecordedDevice;
use crate::error::AllocateError;
use crate::pool::{Origin, Pool};
use crate::private_pools::CaptureFilter;

/// The fixed part of the cost of copying a pool, as a number of blocks; each block of the pool adds
/// to it.
pub(super) const COPY_COST: u64 = 2_000;

/// The pool after some entry of a history, with everything else needed to continue reading there.
#[derive(Clone, Debug)]
pub(super) struct SearchState<'h> {
    pub(super) pool: Pool<RecordedDevice<'h>>,
    pub(super) private_pools: PrivatePoolTracker,
    /// Number of calls made to the pool so far.
    pub(super) calls: u64,
    /// The length of the call log at this point.
    pub(super) logged_calls: usize,
    /// The largest fragmentation after any logged call.
    pub(super) peak_fragmentation: FragmentationPeak,
}

impl SearchState<'_> {
    /// Returns the cost of copying this state, as a number of blocks: a fixed part and two for each
    /// active block.
    pub(super) fn copy_cost(&self) -> u64 {
        2 * self.pool.counters.active() + COPY_COST
    }

    /// Makes a request for `bytes` on `stream` from the pool `owner`. With `other_capture`, does so
    /// while another stream seems to be captured, so that no cached memory is released.
    pub(super) fn allocate(
        &mut self,
        bytes: u64,
        stream: StreamId,
        owner: MempoolId,
        other_capture: bool,
        sink: &mut DecisionChecker<'_>,
    ) -> Result<(), AllocateError> {
        let Self { pool, private_pools, .. } = self;
        if owner == MempoolId::default() && !other_capture {
            return pool.allocate(bytes, stream, Origin::default(), sink).map(drop);
        }
        let (selected, filter) =
            if other_capture { capture_of_another_stream() } else { (owner, CaptureFilter::AllStreams) };
        if other_capture || private_pools.created.insert(owner) {
            pool.create_pool(selected)?;
        }
        pool.begin_allocate_to_pool(selected, filter)?;
        let allocated = pool.allocate(bytes, stream, Origin::default(), sink);
        // Remove the user that the selection added; the pool keeps its first user.
        pool.end_allocate_to_pool(selected)?;
        pool.release_pool(selected)?;
        if other_capture {
            pool.release_pool(selected)?;
        }
        allocated.map(drop)
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
