//! Blocks that were there before a history that began late, and of which nothing says whether they had kept a tail.
//!
//! The reader gives such a block the size that its request is rounded up to. Where it had more, the free block behind it is smaller than
//! it looks, and the pool takes it for a request that the recorded allocator served elsewhere:
//!
//! ```text
//! |-- there before --|------ free? ------|      the pool takes it
//! |-- there before --.tail.|--- free ----|      too small for the request by 512 bytes at least
//! ```

use vramscope_trace::{Block, EventKind, PoolKind};

use super::history::History;
use crate::settings::Settings;
use crate::size::{self, MIN_BLOCK_BYTES, SMALL_REQUEST_BYTES};

/// How often a block is made larger before the history is given up. Each time it is run anew up to there.
const MAX_TAILS: usize = 64;

/// The same history with the smallest tail under which the pool could not have made this decision; `None` where none explains it.
pub(super) fn with_tail(history: &History, settings: &Settings, got: &EventKind) -> Option<History> {
    let &EventKind::BlockAllocated { address, size: found, requested, pool, .. } = got else { return None };
    if history.certain.is_none() || history.tails >= MAX_TAILS || pool.kind != PoolKind::Large {
        return None;
    }
    let below = *history.start.block_at(address.checked_sub(1)?)?;
    let segment = history.start.segment_at(below.address)?;
    if below.end() != address || segment.expandable || segment.end() <= address {
        return None;
    }
    // What does not hold the request is smaller by a step of sizes at least.
    let left = size::recorded_block_size(settings, requested).checked_sub(MIN_BLOCK_BYTES)?;
    let grown = below.size + found.checked_sub(left)?;
    if grown.saturating_sub(size::recorded_block_size(settings, below.requested)) > SMALL_REQUEST_BYTES {
        return None;
    }
    let mut history = history.clone();
    history.start.insert_block(Block { size: grown, ..below });
    history.tails += 1;
    Some(history)
}
