//! The state before the first entry of a history that began late: which blocks were there, and how large they were.
//!
//! Of a block that is still there at the end, the snapshot says the size. Of one that the history frees, only the requested size is
//! known, from the entry that frees it. In the small pool and in expandable segments the block is the rounded request exactly. In an
//! ordinary segment of the large pool a block may have kept a tail of up to 1 MiB that was not worth splitting off, and since no
//! block or free space there is that small, each of these shows the tail:
//!
//! ```text
//! |-- rounded --|tail|-- a block that was there --|      a live block, or the segment's end, begins within 1 MiB
//! |-- rounded --|tail|-- a block allocated later --|     while this one lives, a block is allocated within 1 MiB behind it
//! ```
//!
//! Where neither is seen, no tail is assumed.

use std::collections::BTreeMap;

use vramscope_pool::size;
use vramscope_trace::{MempoolId, Pool, PoolKind};

use super::backward::Past;
use super::segments::{PoolGuess, Segment, Segments};
use super::size::Rules;
use super::trace::Trace;
use crate::torch::snapshot::{Action, Origin};

/// A live block before the first entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartBlock {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) stream: u64,
    pub(super) pool: Pool,
    pub(super) pending_free: bool,
    pub(super) origin: Origin,
}

impl StartBlock {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

/// The state before the first entry.
#[derive(Debug, Default)]
pub(super) struct Start {
    pub(super) segments: Segments,
    /// In order of address.
    pub(super) blocks: Vec<StartBlock>,
    /// How many of them may be up to 1 MiB larger than it is said here.
    pub(super) unsure: u64,
    /// How many entries there are up to and with the one that frees the last of those.
    pub(super) unsure_entries: u64,
    /// Blocks that contradict others, or that there cannot be.
    pub(super) misfits: u64,
}

/// What is known of a pool, completed by what is likely.
pub(super) fn likely_pool(guess: PoolGuess, segment_size: u64) -> Pool {
    let by_size = if segment_size <= size::SMALL_SEGMENT_BYTES { PoolKind::Small } else { PoolKind::Large };
    let kind = guess.kind.unwrap_or(by_size);
    Pool { kind, owner: guess.owner.unwrap_or(MempoolId(0, 0)) }
}

/// What is certain of a pool.
pub(super) fn known_pool(pool: Pool) -> PoolGuess {
    PoolGuess { kind: Some(pool.kind), owner: Some(pool.owner) }
}

/// A block whose tail is looked for.
struct Open {
    index: usize,
    rounded_end: u64,
    segment_end: u64,
}

impl Start {
    pub(super) fn new(past: &Past, trace: &Trace<'_>, rules: &Rules) -> Self {
        let mut start = Self::default();
        for (address, segment) in past.segments.iter() {
            let pool = known_pool(likely_pool(segment.pool, segment.end - address));
            start.segments.insert(address, Segment { pool, ..*segment });
        }
        let mut addresses: Vec<u64> = past.blocks.keys().copied().collect();
        addresses.sort_unstable();
        let mut open = BTreeMap::new();
        for (index, &address) in addresses.iter().enumerate() {
            let next = addresses.get(index + 1).copied().unwrap_or(u64::MAX);
            start.add_block(past, rules, address, next, &mut open);
        }
        start.close(open, trace);
        start
    }

    fn add_block(&mut self, past: &Past, rules: &Rules, address: u64, next: u64, open: &mut BTreeMap<u64, Open>) {
        let Some(block) = past.blocks.get(&address) else { return };
        let rounded = rules.rounded(block.requested);
        let segment = self.segments.containing(address).map(|(start, segment)| (start, *segment));
        let (stream, pool) = match segment {
            Some((start, segment)) => (segment.stream, likely_pool(segment.pool, segment.end - start)),
            None => (0, Pool::default_of(size::pool_kind(rounded))),
        };
        let mut size = block.size.unwrap_or(rounded);
        let mut tail_is_open = false;
        if let Some((_, segment)) = segment
            && block.size.is_none()
            && rules.keeps_tails(pool.kind, segment.expandable)
        {
            let room = next.min(segment.end) - address;
            let taken = rules.taken(pool.kind, segment.expandable, block.requested, room);
            size = taken.unwrap_or(rounded);
            tail_is_open = taken == Some(rounded) && room > rounded;
        }
        if size == 0 || address.checked_add(size).is_none() {
            self.misfits += 1;
            return;
        }
        // Of two that overlap, the one that begins later is believed, as in a recording's state.
        while let Some(below) = self.blocks.pop_if(|below| below.end() > address) {
            open.remove(&below.address);
            self.misfits += 1;
        }
        if tail_is_open && let Some((_, segment)) = segment {
            let rounded_end = address.saturating_add(rounded);
            open.insert(address, Open { index: self.blocks.len(), rounded_end, segment_end: segment.end });
        }
        self.blocks.push(StartBlock {
            address,
            size,
            requested: block.requested,
            stream,
            pool,
            pending_free: block.pending_free,
            origin: block.origin,
        });
    }

    /// Looks through the history for blocks allocated right behind those that are still open.
    fn close(&mut self, mut open: BTreeMap<u64, Open>, trace: &Trace<'_>) {
        for (number, entry) in (1..).zip(trace.entries()) {
            if open.is_empty() {
                break;
            }
            match entry.action() {
                Action::Allocated => {
                    if let Some((&address, block)) = open.range(..entry.address).next_back()
                        && entry.address < block.segment_end
                        && entry
                            .address
                            .checked_sub(block.rounded_end)
                            .is_some_and(|tail| tail <= size::SMALL_REQUEST_BYTES)
                    {
                        self.blocks[block.index].size = entry.address - address;
                        open.remove(&address);
                    }
                }
                Action::FreeCompleted if open.remove(&entry.address).is_some() => {
                    self.unsure += 1;
                    self.unsure_entries = number;
                }
                _ => {}
            }
        }
    }
}
