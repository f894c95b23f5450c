//! Walks a device's history from its beginning, and says of each entry what it did to memory.
//!
//! An entry says the address and the requested size of a block. Its real size follows from the state: PyTorch takes the low part of
//! the free space that begins at that address, rounds the request, and leaves the rest free where it is worth it.

use std::collections::BTreeMap;
use std::ops::Range;

use vramscope_pool::size;
use vramscope_trace::{
    Block, DeviceState, EventKind, MempoolId, Pool, Segment as StateSegment, SiteId, Stage, StreamId, StringId,
};

use super::backward::Survivor;
use super::segments::{PoolGuess, Segment, Segments};
use super::size::Rules;
use super::start::{Start, StartBlock, known_pool, likely_pool};
use crate::torch::snapshot::{Action, Context, Entry, Origin};

/// A live block.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveBlock {
    pub(super) end: u64,
    pub(super) requested: u64,
    pub(super) pending_free: bool,
}

/// The state of one device after some of its entries.
#[derive(Debug)]
pub(super) struct Forward {
    pub(super) segments: Segments,
    pub(super) blocks: BTreeMap<u64, LiveBlock>,
    rules: Rules,
    /// What the way back has learned of the pools of segments yet to be made; the next one last.
    pools: Vec<PoolGuess>,
    /// The blocks yet to be made that are still there at the end; the next one last.
    survivors: Vec<Survivor>,
    /// Entries so far.
    place: u64,
    /// Entries that contradicted the state.
    pub(super) misfits: u64,
    /// Blocks whose size the snapshot says and the rules do not give.
    pub(super) irregular: u64,
}

impl Forward {
    pub(super) fn new(start: &Start, pools: Vec<PoolGuess>, survivors: Vec<Survivor>, rules: Rules) -> Self {
        let live = |block: &StartBlock| LiveBlock {
            end: block.address.saturating_add(block.size),
            requested: block.requested,
            pending_free: block.pending_free,
        };
        Self {
            segments: start.segments.clone(),
            blocks: start.blocks.iter().map(|block| (block.address, live(block))).collect(),
            rules,
            pools,
            survivors,
            place: 0,
            misfits: 0,
            irregular: 0,
        }
    }

    /// Where the next entry came from. Of a block that is still there at the end, the snapshot may say it where the entry does not:
    /// there are settings under which PyTorch keeps call stacks of live blocks only.
    pub(super) fn origin(&self, entry: &Entry, context: &Context) -> Origin {
        let said = Origin { stack: entry.stack, scope: context.scope, compiled: context.compiled };
        match self.survivors.last() {
            Some(survivor) if survivor.place == self.place && said == Origin::default() => survivor.origin,
            _ => said,
        }
    }

    /// Takes the next entry and says what happened.
    pub(super) fn apply(&mut self, entry: &Entry, context: &Context, site: SiteId) -> EventKind {
        let address = entry.address;
        let size = entry.size;
        let stream = StreamId(context.stream);
        let kind = match entry.action() {
            Action::Allocated => {
                let (block_size, pool) = self.allocate(entry, context);
                EventKind::BlockAllocated { address, size: block_size, requested: size, stream, pool, site }
            }
            Action::FreeRequested => {
                match self.blocks.get_mut(&address) {
                    Some(block) if !block.pending_free => block.pending_free = true,
                    _ => self.misfits += 1,
                }
                EventKind::FreeRequested { address, site }
            }
            Action::FreeCompleted => {
                if self.blocks.remove(&address).is_none() {
                    self.misfits += 1;
                }
                EventKind::FreeCompleted { address, site }
            }
            Action::SegmentAllocated => {
                let pool = self.make_segment(entry, context, false);
                EventKind::SegmentAllocated { address, size, stream, pool, site }
            }
            Action::SegmentMapped => {
                let pool = self.make_segment(entry, context, true);
                EventKind::SegmentMapped { address, size, stream, pool, site }
            }
            Action::SegmentFreed => {
                self.free_segment(entry);
                EventKind::SegmentFreed { address, size, site }
            }
            Action::SegmentUnmapped => {
                let range = address..address.saturating_add(size);
                let is_whole = self.segments.cut(range.clone()).0 == size;
                let is_empty = self.evict_blocks(range) == 0;
                self.misfits += u64::from(!is_whole || !is_empty);
                EventKind::SegmentUnmapped { address, size, site }
            }
            Action::OutOfMemory => EventKind::OutOfMemory { requested: size, device_free: address, stream, site },
            Action::Other => {
                // A note goes by its words; of other marks, those that the program had set just then say less than the action.
                let is_note = context.is_note && context.scope != StringId(0);
                let name = if is_note { context.scope } else { context.mark };
                EventKind::Mark { stage: Stage::Instant, name, address, site }
            }
        };
        self.place += 1;
        kind
    }

    /// The size and the pool of the block that an entry allocates.
    fn allocate(&mut self, entry: &Entry, context: &Context) -> (u64, Pool) {
        let address = entry.address;
        let rounded = self.rules.rounded(entry.size);
        let (mut size, pool, mut fits) = match self.segments.containing(address) {
            None => {
                let owner = context.owner.unwrap_or(MempoolId(0, 0));
                (rounded, Pool { kind: size::pool_kind(rounded), owner }, false)
            }
            Some((start, segment)) => {
                let pool = likely_pool(segment.pool, segment.end - start);
                let above = self.blocks.range(address..).next().map_or(segment.end, |(&above, _)| above);
                let below = self.blocks.range(..address).next_back().map_or(start, |(_, below)| below.end.max(start));
                let room = above.min(segment.end) - address;
                match self.rules.taken(pool.kind, segment.expandable, entry.size, room) {
                    None => (rounded, pool, false),
                    Some(size) => (size, pool, below == address),
                }
            }
        };
        if let Some(survivor) = self.survivors.pop_if(|survivor| survivor.place == self.place)
            && survivor.size != size
        {
            self.irregular += 1;
            size = survivor.size;
            fits = false;
        }
        let end = address.saturating_add(size);
        if !fits {
            self.misfits += 1;
            self.evict_blocks(address..end);
        }
        self.blocks.insert(address, LiveBlock { end, requested: entry.size, pending_free: false });
        (size, pool)
    }

    fn make_segment(&mut self, entry: &Entry, context: &Context, expandable: bool) -> Pool {
        let learned = self.pools.pop().unwrap_or_default();
        let range = entry.address..entry.address.saturating_add(entry.size);
        let said = PoolGuess { kind: None, owner: context.owner };
        let beside = if expandable { self.segments.pool_beside(&range, context.stream) } else { PoolGuess::default() };
        let pool = likely_pool(learned.or(said).or(beside), entry.size);
        if !entry.is_range() {
            self.misfits += 1;
            return pool;
        }
        let segment = Segment {
            end: range.end,
            stream: context.stream,
            pool: known_pool(pool),
            expandable,
            origin: Origin::default(),
        };
        let fits = self.segments.insert(range.start, segment);
        let is_empty = self.evict_blocks(range) == 0;
        self.misfits += u64::from(!fits || !is_empty);
        pool
    }

    fn free_segment(&mut self, entry: &Entry) {
        let Some(segment) = self.segments.remove(entry.address) else {
            self.misfits += 1;
            return;
        };
        let is_whole = segment.end - entry.address == entry.size;
        let is_empty = self.evict_blocks(entry.address..segment.end) == 0;
        self.misfits += u64::from(!is_whole || !is_empty);
    }

    /// Forgets the blocks that reach into `range` and says how many they were.
    fn evict_blocks(&mut self, range: Range<u64>) -> u64 {
        let mut evicted = 0;
        while let Some((&address, block)) = self.blocks.range(..range.end).next_back()
            && block.end > range.start
        {
            self.blocks.remove(&address);
            evicted += 1;
        }
        evicted
    }
}

/// Puts the state before the first entry into a recording's state.
pub(super) fn fill_state(start: &Start, state: &mut DeviceState, mut site_of: impl FnMut(Origin) -> SiteId) {
    for (address, segment) in start.segments.iter() {
        let size = segment.end - address;
        state.insert_segment(StateSegment {
            address,
            size,
            stream: StreamId(segment.stream),
            pool: likely_pool(segment.pool, size),
            expandable: segment.expandable,
            site: site_of(segment.origin),
            since_event: 0,
        });
    }
    for block in &start.blocks {
        state.insert_block(Block {
            address: block.address,
            size: block.size,
            requested: block.requested,
            stream: StreamId(block.stream),
            pool: block.pool,
            site: site_of(block.origin),
            pending_free: block.pending_free,
            since_event: 0,
            since_ns: 0,
        });
    }
}
