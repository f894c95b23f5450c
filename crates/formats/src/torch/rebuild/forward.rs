//! Walks a device's history from its beginning and derives an event from each entry.
//!
//! An entry has the address and the requested size of a block. The block size follows from the
//! state: PyTorch takes the low end of the free range at that address, rounds the request up, and
//! splits off the rest if it is large enough.

use std::collections::BTreeMap;
use std::ops::Range;

use vramscope_pool::size;
use vramscope_trace::{
    AnnotationStage, Block, DeviceState, EventKind, MempoolId, PoolKey, Segment as StateSegment, SiteId, StreamId,
    StringId,
};

use super::backward::SurvivingBlock;
use super::initial::{InitialBlock, InitialState};
use super::segments::{PartialPool, Segment, Segments, known_pool, likely_pool};
use super::size::SizeRules;
use crate::torch::snapshot::{Context, Entry, Origin, TraceAction};

/// A block that is allocated or pending free. The map that holds the block has its address as key.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveBlock {
    /// End address, exclusive.
    pub(super) end: u64,
    /// Requested bytes.
    pub(super) requested: u64,
    pub(super) pending_free: bool,
}

/// Walks a device's history from its beginning to its end and derives an event from each entry;
/// holds the segments and blocks after the entries so far.
#[derive(Debug)]
pub(crate) struct ForwardWalk {
    pub(super) segments: Segments,
    /// Blocks by address.
    pub(super) blocks: BTreeMap<u64, LiveBlock>,
    rules: SizeRules,
    /// Pools of the segments that the remaining entries create, as found by the backward walk; the
    /// next one is last.
    pools: Vec<PartialPool>,
    /// Blocks that the remaining entries allocate and that exist at the end; the next one is last.
    surviving_blocks: Vec<SurvivingBlock>,
    /// The segment of the last allocation, with its start address; `None` once segments change.
    last_segment: Option<(u64, Segment)>,
    /// Number of processed entries.
    entry_index: u64,
    /// Entries that contradict the state.
    pub(crate) contradictions: u64,
    /// Blocks whose size in the snapshot differs from the size that the rules give.
    pub(super) irregular_sizes: u64,
}

impl ForwardWalk {
    /// Starts with the state before the first entry. `pools` and `surviving_blocks` come from the
    /// backward walk, the next one last.
    pub(super) fn new(
        initial: &InitialState,
        pools: Vec<PartialPool>,
        surviving_blocks: Vec<SurvivingBlock>,
        rules: SizeRules,
    ) -> Self {
        let live = |block: &InitialBlock| LiveBlock {
            end: block.address.saturating_add(block.size),
            requested: block.requested,
            pending_free: block.pending_free,
        };
        Self {
            segments: initial.segments.clone(),
            blocks: initial.blocks.iter().map(|block| (block.address, live(block))).collect(),
            rules,
            pools,
            surviving_blocks,
            last_segment: None,
            entry_index: 0,
            contradictions: 0,
            irregular_sizes: 0,
        }
    }

    /// Creates a walk that starts with a device without segments.
    pub(crate) fn empty(rules: SizeRules) -> Self {
        Self::new(&InitialState::default(), Vec::new(), Vec::new(), rules)
    }

    /// Returns the origin of the next entry's request. If the entry lacks it, but its block still
    /// exists at the history's end, the origin comes from the snapshot's list of blocks.
    pub(super) fn origin(&self, entry: &Entry, context: &Context) -> Origin {
        let recorded = Origin { stack: entry.stack, scope: context.scope, compile_context: context.compile_context };
        match self.surviving_blocks.last() {
            Some(survivor) if survivor.entry_index == self.entry_index && recorded == Origin::default() => {
                survivor.origin
            }
            _ => recorded,
        }
    }

    /// Applies the next entry to the segments and blocks and returns the event that it becomes.
    /// `site` is the number of the entry's site.
    pub(crate) fn apply(&mut self, entry: &Entry, context: &Context, site: SiteId) -> EventKind {
        let address = entry.address;
        let size = entry.size;
        let stream = StreamId(context.stream);
        let kind = match entry.action() {
            TraceAction::Allocated => {
                let (block_size, pool) = self.allocate(entry, context);
                EventKind::BlockAllocated { address, size: block_size, requested: size, stream, pool, site }
            }
            TraceAction::FreeRequested => {
                match self.blocks.get_mut(&address) {
                    Some(block) if !block.pending_free => block.pending_free = true,
                    _ => self.contradictions += 1,
                }
                EventKind::FreeRequested { address, site }
            }
            TraceAction::FreeCompleted => {
                if self.blocks.remove(&address).is_none() {
                    self.contradictions += 1;
                }
                EventKind::FreeCompleted { address, site }
            }
            TraceAction::SegmentAllocated => {
                let pool = self.make_segment(entry, context, false);
                EventKind::SegmentAllocated { address, size, stream, pool, site }
            }
            TraceAction::SegmentMapped => {
                let pool = self.make_segment(entry, context, true);
                EventKind::SegmentMapped { address, size, stream, pool, site }
            }
            TraceAction::SegmentFreed => {
                self.free_segment(entry);
                EventKind::SegmentFreed { address, size, site }
            }
            TraceAction::SegmentUnmapped => {
                self.last_segment = None;
                let range = address..address.saturating_add(size);
                let is_whole = self.segments.cut(range.clone()).0 == size;
                let is_empty = self.remove_blocks(range) == 0;
                self.contradictions += u64::from(!is_whole || !is_empty);
                EventKind::SegmentUnmapped { address, size, site }
            }
            TraceAction::OutOfMemory => EventKind::OutOfMemory { requested: size, device_free: address, stream, site },
            TraceAction::Other => {
                // The name of a note is its text. The name of another mark is its action; its text
                // is only the user metadata set at that time.
                let is_note = context.is_note && context.scope != StringId(0);
                let name = if is_note { context.scope } else { context.mark };
                EventKind::Mark { stage: AnnotationStage::Instant, name, address, site }
            }
        };
        self.entry_index += 1;
        kind
    }

    /// Adds the block that an entry allocates; returns its size in bytes and its pool. A block that
    /// does not fit replaces the blocks that it overlaps and counts as a contradiction.
    fn allocate(&mut self, entry: &Entry, context: &Context) -> (u64, PoolKey) {
        let address = entry.address;
        let rounded = self.rules.rounded(entry.size);
        let (mut size, pool, mut fits) = match self.segment_containing(address) {
            None => {
                let owner = context.mempool.unwrap_or(MempoolId(0, 0));
                (rounded, PoolKey { kind: size::pool_kind(rounded), owner }, false)
            }
            Some((start, segment)) => {
                let pool = likely_pool(segment.pool, segment.end - start);
                let (size, below) = if self.rules.may_keep_tail(pool, segment.expandable) {
                    let above = self.blocks.range(address..).next().map_or(segment.end, |(&above, _)| above);
                    let below = self.blocks.range(..address).next_back().map(|(_, below)| below.end);
                    let free = above.min(segment.end) - address;
                    (self.rules.block_size(pool, segment.expandable, entry.size, free), below)
                } else {
                    // The block has the rounded size. If it fits, the last existing block that
                    // begins before its end is the block below it.
                    let end = address.saturating_add(rounded);
                    let last = self.blocks.range(..end).next_back();
                    let is_free = end <= segment.end && last.is_none_or(|(&last, _)| last < address);
                    (is_free.then_some(rounded), last.map(|(_, last)| last.end))
                };
                match size {
                    None => (rounded, pool, false),
                    Some(size) => (size, pool, below.unwrap_or(start).max(start) == address),
                }
            }
        };
        if let Some(survivor) = self.surviving_blocks.pop_if(|survivor| survivor.entry_index == self.entry_index)
            && survivor.size != size
        {
            self.irregular_sizes += 1;
            size = survivor.size;
            fits = false;
        }
        let end = address.saturating_add(size);
        if !fits {
            self.contradictions += 1;
            self.remove_blocks(address..end);
        }
        self.blocks.insert(address, LiveBlock { end, requested: entry.size, pending_free: false });
        (size, pool)
    }

    /// Returns the segment that contains `address`, with the segment's start address. The next
    /// request is often served from this segment, too.
    fn segment_containing(&mut self, address: u64) -> Option<(u64, Segment)> {
        let is_last = self.last_segment.is_some_and(|(start, segment)| (start..segment.end).contains(&address));
        if !is_last {
            self.last_segment = self.segments.containing(address).map(|(start, segment)| (start, *segment));
        }
        self.last_segment
    }

    /// Adds the segment that an entry allocates or maps, and returns its pool. Removes blocks and
    /// segments that overlap it, which counts as a contradiction.
    fn make_segment(&mut self, entry: &Entry, context: &Context, expandable: bool) -> PoolKey {
        self.last_segment = None;
        let learned = self.pools.pop().unwrap_or_default();
        let range = entry.address..entry.address.saturating_add(entry.size);
        let recorded = PartialPool { kind: None, mempool: context.mempool };
        let adjacent =
            if expandable { self.segments.pool_of_adjacent(&range, context.stream) } else { PartialPool::default() };
        let pool = likely_pool(learned.or(recorded).or(adjacent), entry.size);
        if !entry.is_range() {
            self.contradictions += 1;
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
        let is_empty = self.remove_blocks(range) == 0;
        self.contradictions += u64::from(!fits || !is_empty);
        pool
    }

    /// Removes the segment that an entry frees, and the blocks in it. Counts a contradiction if the
    /// segment is unknown, has another size, or still has blocks.
    fn free_segment(&mut self, entry: &Entry) {
        self.last_segment = None;
        let Some(segment) = self.segments.remove(entry.address) else {
            self.contradictions += 1;
            return;
        };
        let is_whole = segment.end - entry.address == entry.size;
        let is_empty = self.remove_blocks(entry.address..segment.end) == 0;
        self.contradictions += u64::from(!is_whole || !is_empty);
    }

    /// Removes the blocks that overlap an address range and returns their number.
    fn remove_blocks(&mut self, range: Range<u64>) -> u64 {
        let mut removed = 0;
        while let Some((&address, block)) = self.blocks.range(..range.end).next_back()
            && block.end > range.start
        {
            self.blocks.remove(&address);
            removed += 1;
        }
        removed
    }
}

/// Adds the segments and blocks from before the first entry to `state`, the beginning of a
/// recording. `site_of` returns the number of the site for an origin.
pub(super) fn fill_state(initial: &InitialState, state: &mut DeviceState, mut site_of: impl FnMut(Origin) -> SiteId) {
    for (address, segment) in initial.segments.iter() {
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
    for block in &initial.blocks {
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
