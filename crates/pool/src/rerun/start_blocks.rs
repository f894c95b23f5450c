//! Corrects the size of blocks that existed before a recording began.
//!
//! A reader does not know whether an older block was larger than its rounded request, and assumes
//! that it was not. If it was, the free block after it is smaller than it appears, and the pool
//! uses it for a request that the recorded allocator served from another block:
//!
//! ```text
//! |- older block -|---------- free? ---------|   the pool uses this
//! |- older block -.- tail -|------ free -----|   at least 512 bytes too small for the request
//! ```

use vramscope_trace::{Block, EventKind, PoolKind};

use super::history::History;
use crate::settings::Settings;
use crate::size::{self, MIN_BLOCK_BYTES, SMALL_REQUEST_BYTES};

/// Maximum number of times that a block of a history's first memory state is enlarged to explain a
/// mismatch; after that, the mismatch stays. Each time, the history is read again from its start.
const MAX_CORRECTIONS: usize = 64;

/// Returns the history with one block of its first memory state enlarged, just enough that the pool
/// cannot make `decision`, which the recorded allocator did not make. `None` if no enlargement
/// achieves that.
pub(super) fn with_larger_start_block(history: &History, settings: &Settings, decision: &EventKind) -> Option<History> {
    let &EventKind::BlockAllocated { address, size: found, requested, pool, .. } = decision else { return None };
    if history.certain_start.is_none() || history.start_corrections >= MAX_CORRECTIONS || pool.kind != PoolKind::Large {
        return None;
    }
    let below = *history.start.block_at(address.checked_sub(1)?)?;
    let segment = history.start.segment_at(below.address)?;
    if below.end() != address || segment.expandable || segment.end() <= address {
        return None;
    }
    // A free block that is too small is too small by at least one size step.
    let max_free = size::recorded_block_size(settings, requested).checked_sub(MIN_BLOCK_BYTES)?;
    let larger_size = below.size + found.checked_sub(max_free)?;
    if larger_size.saturating_sub(size::recorded_block_size(settings, below.requested)) > SMALL_REQUEST_BYTES {
        return None;
    }
    let mut history = history.clone();
    history.start.insert_block(Block { size: larger_size, ..below });
    history.start_corrections += 1;
    Some(history)
}
