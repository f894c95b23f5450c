//! Finds the state before the first entry of an incomplete history: which blocks existed, and their
//! sizes.
//!
//! If a block still exists at the end, the snapshot has its size. If the history frees a block,
//! only its requested size is known, from the entry that frees it. In the small pool and in
//! expandable segments the block size is the rounded request. In other segments of the large pool a
//! block may have kept a tail of up to 1 MiB that was too small to split off. No block or free
//! range in these segments is that small, so each of these observations reveals the tail:
//!
//! ```text
//! |- rounded -|tail|- existing block -|  a live block or the segment's end within 1 MiB
//! |- rounded -|tail|- later block -|     a block allocated within 1 MiB while it lives
//! ```
//!
//! Without one of these observations, no tail is assumed.

use std::collections::BTreeMap;

use vramscope_pool::size;
use vramscope_trace::PoolKey;

use super::backward::BackwardWalk;
use super::segments::{Segment, Segments, known_pool, likely_pool};
use super::size::SizeRules;
use super::trace::DeviceTrace;
use crate::torch::snapshot::{Origin, TraceAction};

/// A block that was allocated or pending free before the first entry of the history.
#[derive(Clone, Copy, Debug)]
pub(super) struct InitialBlock {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) stream: u64,
    pub(super) pool: PoolKey,
    pub(super) pending_free: bool,
    pub(super) origin: Origin,
}

impl InitialBlock {
    /// Returns the block's end address, exclusive; 2⁶⁴ − 1 if the end would overflow.
    fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

/// A device's segments and blocks before the first entry of its history.
#[derive(Debug, Default)]
pub(super) struct InitialState {
    pub(super) segments: Segments,
    /// Sorted by address.
    pub(super) blocks: Vec<InitialBlock>,
    /// Number of blocks that may be up to 1 MiB larger than recorded here.
    pub(super) uncertain_blocks: u64,
    /// Number of entries up to and including the entry that frees the last uncertain block.
    pub(super) uncertain_entries: u64,
    /// Blocks that are invalid or contradict others.
    pub(super) contradictions: u64,
}

/// A block that may be larger than its rounded request, by a tail of up to 1 MiB that no entry or
/// block has revealed yet.
struct UnknownTail {
    /// Index of the block in [`InitialState::blocks`].
    index: usize,
    /// End address of the block without a tail.
    rounded_end: u64,
    /// End address of its segment.
    segment_end: u64,
}

impl InitialState {
    /// Derives the state from the backward walk; `trace` is searched for facts about block sizes.
    pub(super) fn new(backward: &BackwardWalk, trace: &DeviceTrace<'_>, rules: &SizeRules) -> Self {
        let mut initial = Self::default();
        for (address, segment) in backward.segments.iter() {
            let pool = known_pool(likely_pool(segment.pool, segment.end - address));
            initial.segments.insert(address, Segment { pool, ..*segment });
        }
        let mut addresses: Vec<u64> = backward.blocks.keys().copied().collect();
        addresses.sort_unstable();
        let mut unknown_tails = BTreeMap::new();
        for (index, &address) in addresses.iter().enumerate() {
            let next = addresses.get(index + 1).copied().unwrap_or(u64::MAX);
            initial.add_block(backward, rules, address, next, &mut unknown_tails);
        }
        initial.find_tails(unknown_tails, trace);
        initial
    }

    /// Adds the block at `address`; `next` is the address of the block after it. A block whose size
    /// is uncertain is also added to `unknown_tails`, by address.
    fn add_block(
        &mut self,
        backward: &BackwardWalk,
        rules: &SizeRules,
        address: u64,
        next: u64,
        unknown_tails: &mut BTreeMap<u64, UnknownTail>,
    ) {
        let Some(block) = backward.blocks.get(&address) else { return };
        let rounded = rules.rounded(block.requested);
        let segment = self.segments.containing(address).map(|(start, segment)| (start, *segment));
        let (stream, pool) = match segment {
            Some((start, segment)) => (segment.stream, likely_pool(segment.pool, segment.end - start)),
            None => (0, PoolKey::default_of(size::pool_kind(rounded))),
        };
        let mut size = block.size.unwrap_or(rounded);
        let mut tail_is_unknown = false;
        if let Some((_, segment)) = segment
            && block.size.is_none()
            && rules.may_keep_tail(pool, segment.expandable)
        {
            let free = next.min(segment.end) - address;
            let likely_size = rules.block_size(pool, segment.expandable, block.requested, free);
            size = likely_size.unwrap_or(rounded);
            tail_is_unknown = likely_size == Some(rounded) && free > rounded;
        }
        if size == 0 || address.checked_add(size).is_none() {
            self.contradictions += 1;
            return;
        }
        // If blocks overlap, the block with the higher address is kept, as in a recording's memory
        // state.
        while let Some(below) = self.blocks.pop_if(|below| below.end() > address) {
            unknown_tails.remove(&below.address);
            self.contradictions += 1;
        }
        if tail_is_unknown && let Some((_, segment)) = segment {
            let rounded_end = address.saturating_add(rounded);
            unknown_tails
                .insert(address, UnknownTail { index: self.blocks.len(), rounded_end, segment_end: segment.end });
        }
        self.blocks.push(InitialBlock {
            address,
            size,
            requested: block.requested,
            stream,
            pool,
            pending_free: block.pending_free,
            origin: block.origin,
        });
    }

    /// Corrects the sizes of blocks with an unknown tail from the history: an allocation directly
    /// after a block shows where the block ends. A block that is freed before that counts as
    /// uncertain.
    fn find_tails(&mut self, mut unknown_tails: BTreeMap<u64, UnknownTail>, trace: &DeviceTrace<'_>) {
        for (number, entry) in (1..).zip(trace.entries()) {
            if unknown_tails.is_empty() {
                break;
            }
            match entry.action() {
                TraceAction::Allocated => {
                    if let Some((&address, block)) = unknown_tails.range(..entry.address).next_back()
                        && entry.address < block.segment_end
                        && entry
                            .address
                            .checked_sub(block.rounded_end)
                            .is_some_and(|tail| tail <= size::SMALL_REQUEST_BYTES)
                    {
                        self.blocks[block.index].size = entry.address - address;
                        unknown_tails.remove(&address);
                    }
                }
                TraceAction::FreeCompleted if unknown_tails.remove(&entry.address).is_some() => {
                    self.uncertain_blocks += 1;
                    self.uncertain_entries = number;
                }
                _ => {}
            }
        }
    }
}
