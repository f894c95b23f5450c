//! Evidence about which segments belong to different pools, for histories that do not name them.
//!
//! A request gets the best-fitting free block of its pool. A free block that fits better, or that
//! fits although a new segment was allocated, belongs to another pool. A pool is emptied completely
//! and in a fixed order. A segment without allocated blocks that was not released with others, or
//! not in that order, belongs to another pool than they.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use vramscope_trace::{EventKind, MempoolId, PoolKind, StreamId};

use super::history::History;
use super::segment_tracker::{SegmentIndex, SegmentTracker};
use crate::settings::Settings;
use crate::size;

/// Flag for a pair of segments that cannot both belong to the default pool.
pub(super) const NOT_BOTH_DEFAULT: u8 = 1;
/// Flag for a pair of segments that cannot both belong to one private pool.
pub(super) const NOT_ONE_PRIVATE: u8 = 2;
/// Flags for a pair of segments that cannot both belong to one pool, default or private.
const DIFFERENT: u8 = NOT_BOTH_DEFAULT | NOT_ONE_PRIVATE;

/// Evidence in the history about the pool of one segment: the recorded pool, segments of other
/// pools, and the segments that its stream used before and after it was created.
#[derive(Clone, Debug, Default)]
pub(super) struct SegmentEvidence {
    /// Its pool, if the recording names it.
    pub(super) owner: Option<MempoolId>,
    /// The segments that served the requests of its stream before it was created, and after the
    /// request that it was created for.
    pub(super) before: Option<SegmentIndex>,
    pub(super) after: Option<SegmentIndex>,
    /// Segments of other pools, each with the flags of the exclusion.
    pub(super) other_pool_segments: Vec<(SegmentIndex, u8)>,
    /// Indices of the runs that contain it.
    pub(super) runs: Vec<usize>,
}

/// Evidence in the history about the pools of all segments: for each segment, and the sets of
/// segments that were released together.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolEvidence {
    /// Indexed by segment.
    pub(super) segments: Vec<SegmentEvidence>,
    /// Segments that were released consecutively. Segments of one pool are adjacent.
    pub(super) runs: Vec<Vec<SegmentIndex>>,
}

/// A free block of an ordinary (not expandable) segment: its size in bytes, its segment, and the
/// index of the entry since which it is free.
#[derive(Clone, Copy, Debug)]
struct FreeBlock {
    size: u64,
    segment: SegmentIndex,
    /// The position of the entry that gave the block its present extent.
    since: usize,
}

/// A range of memory that returned to the driver: its segment, first address, and size in bytes.
#[derive(Clone, Copy, Debug)]
struct ReleasedRange {
    segment: SegmentIndex,
    address: u64,
    size: u64,
}

/// Follows segments and blocks through a history and collects evidence about which segments belong
/// to different pools.
struct EvidenceCollector<'h> {
    settings: &'h Settings,
    tracker: SegmentTracker,
    /// Free blocks by address.
    free: BTreeMap<u64, FreeBlock>,
    /// Size and address of the free blocks, by stream and size class.
    by_fit: HashMap<(StreamId, PoolKind), BTreeSet<(u64, u64)>>,
    /// Addresses of the free blocks that span their segment.
    spanning: BTreeSet<u64>,
    /// Sizes of the allocated blocks of ordinary segments, by address.
    live: HashMap<u64, u64>,
    segments: Vec<SegmentEvidence>,
    pairs: HashSet<(SegmentIndex, SegmentIndex, u8)>,
    runs: Vec<Vec<SegmentIndex>>,
    /// The segment that served the last request of each stream.
    last_used: HashMap<StreamId, SegmentIndex>,
    /// The newest segment of each stream, until the next request on the stream.
    new_segments: HashMap<StreamId, SegmentIndex>,
}

impl PoolEvidence {
    /// Collects the evidence in `history`.
    pub(super) fn new(history: &History, settings: &Settings) -> Self {
        let known = history.tracker.segments.iter().map(|segment| {
            let is_named =
                segment.pool.owner != MempoolId::default() || segment.is_live || segment.created_at.is_none();
            SegmentEvidence { owner: is_named.then_some(segment.pool.owner), ..SegmentEvidence::default() }
        });
        let mut collector = EvidenceCollector {
            settings,
            tracker: SegmentTracker::new(&history.start),
            free: BTreeMap::new(),
            by_fit: HashMap::new(),
            spanning: BTreeSet::new(),
            live: HashMap::new(),
            segments: known.collect(),
            pairs: HashSet::new(),
            runs: Vec::new(),
            last_used: HashMap::new(),
            new_segments: HashMap::new(),
        };
        collector.add_start_state(history);
        collector.add_entries(history);
        Self { segments: collector.segments, runs: collector.runs }
    }
}

/// Maximum number of better-fitting free blocks to compare with the block that a request got.
/// Exceeding the limit only loses evidence.
const MAX_BETTER_FITS: usize = 64;
/// Maximum number of segments, released by consecutive entries, that are compared with each other.
/// Exceeding the limit only loses evidence.
const MAX_RELEASED: usize = 256;

impl EvidenceCollector<'_> {
    /// Adds the allocated and the free blocks that ordinary (not expandable) segments have before
    /// the first entry.
    fn add_start_state(&mut self, history: &History) {
        for recorded in history.start.segments().filter(|recorded| !recorded.expandable) {
            let Some(segment) = self.tracker.containing(recorded.address) else { continue };
            for extent in history.start.extents(recorded) {
                match extent.block {
                    Some(_) => drop(self.live.insert(extent.address, extent.size)),
                    None => self.insert(extent.address, FreeBlock { size: extent.size, segment, since: 0 }),
                }
            }
        }
    }

    /// Follows segments and blocks through all entries of the history, and collects evidence about
    /// which segments belong to different pools.
    fn add_entries(&mut self, history: &History) {
        // The end of the calls before the present one, and whether blocks may have become free
        // since.
        let (mut call_start, mut waited) = (0, false);
        let mut run: Vec<ReleasedRange> = Vec::new();
        for (position, entry) in history.entries.iter().enumerate() {
            let released = matches!(entry.kind, EventKind::SegmentFreed { .. } | EventKind::SegmentUnmapped { .. });
            if !released && !run.is_empty() {
                self.end_run(&std::mem::take(&mut run));
            }
            let segment = self.tracker.apply(position, &entry.kind);
            match entry.kind {
                EventKind::SegmentAllocated { address, .. } => {
                    if let Some(segment) = segment {
                        // The recorded size may exceed the address space.
                        let size = self.tracker.segments[segment].span_bytes();
                        self.insert(address, FreeBlock { size, segment, since: position });
                        self.segment_created(segment);
                    }
                }
                EventKind::SegmentMapped { .. } => {
                    if let Some(segment) =
                        segment.filter(|&segment| self.tracker.segments[segment].created_at == Some(position))
                    {
                        self.segment_created(segment);
                        self.compare_expandable(segment);
                    }
                }
                EventKind::SegmentFreed { address, size, .. } | EventKind::SegmentUnmapped { address, size, .. } => {
                    waited = true;
                    // Released ranges stay in the free list until the run ends.
                    run.extend(segment.map(|segment| ReleasedRange { segment, address, size }));
                }
                EventKind::BlockAllocated { address, size, requested, stream, .. } => {
                    self.block_allocated(address, size, requested, stream, call_start, waited);
                    (call_start, waited) = (position + 1, false);
                }
                EventKind::FreeCompleted { address, .. } => {
                    let before = position.checked_sub(1).map(|before| history.entries[before].kind);
                    let requested =
                        |kind| matches!(kind, EventKind::FreeRequested { address: at, .. } if at == address);
                    self.free_completed(address, position);
                    if !history.has_free_requests || before.is_some_and(requested) {
                        call_start = position + 1;
                    } else {
                        waited = true;
                    }
                }
                _ => (call_start, waited) = (position + 1, false),
            }
        }
        self.end_run(&run);
    }

    /// Records which segment served the last request on the stream of `segment` before `segment`
    /// was created.
    fn segment_created(&mut self, segment: SegmentIndex) {
        let stream = self.tracker.segments[segment].stream;
        self.segments[segment].before = self.last_used.get(&stream).copied();
    }

    /// Adds a free block that begins at `address` to the known free blocks.
    fn insert(&mut self, address: u64, free: FreeBlock) {
        let segment = &self.tracker.segments[free.segment];
        self.by_fit.entry((segment.stream, segment.pool.kind)).or_default().insert((free.size, address));
        if segment.span_bytes() == free.size {
            self.spanning.insert(address);
        }
        self.free.insert(address, free);
    }

    /// Removes and returns the known free block that begins at `address`; `None` if no known one
    /// does.
    fn remove(&mut self, address: u64) -> Option<FreeBlock> {
        let free = self.free.remove(&address)?;
        self.spanning.remove(&address);
        let segment = &self.tracker.segments[free.segment];
        if let Some(sizes) = self.by_fit.get_mut(&(segment.stream, segment.pool.kind)) {
            sizes.remove(&(free.size, address));
        }
        Some(free)
    }

    /// Records that a block was allocated for a request of `requested` bytes. The request started
    /// at the entry with index `call_start` at the earliest; `waited` is true if blocks may have
    /// become free while it waited.
    fn block_allocated(
        &mut self,
        address: u64,
        size: u64,
        requested: u64,
        stream: StreamId,
        call_start: usize,
        waited: bool,
    ) {
        let Some(index) = self.tracker.containing(address) else { return };
        if let Some(new_segment) = self.new_segments.remove(&stream) {
            self.segments[new_segment].after = Some(index);
        }
        let created_at = self.tracker.segments[index].created_at;
        let is_new = created_at.is_some_and(|position| position >= call_start);
        if is_new {
            self.new_segments.insert(stream, index);
        }
        self.last_used.insert(stream, index);
        let Some(&chosen) = self.free.get(&address) else { return };
        // While the request waited, free blocks may have grown, after it had searched them.
        let seen_until = if waited { call_start.saturating_sub(1) } else { usize::MAX };
        let wanted_size = size::recorded_block_size(self.settings, requested);
        self.compare_better_fits(index, (chosen.size, address), is_new, wanted_size, seen_until);
        self.remove(address);
        // In an inconsistent history, an allocated block may be larger than the free block it came
        // from.
        let size = size.min(chosen.size);
        if size < chosen.size {
            self.insert(address + size, FreeBlock { size: chosen.size - size, ..chosen });
        }
        self.live.insert(address, size);
    }

    /// Records that segments with a free block that fits better are not in the pool of segment
    /// `index`, which served a request of `size` rounded bytes. A block fits better if it is large
    /// enough and before `chosen` (size and address of the block used) in best-fit order; any block
    /// that is large enough if `is_new`, because segment `index` was created for the request. Only
    /// blocks that became free before the history's entry with index `seen_until` count.
    fn compare_better_fits(
        &mut self,
        index: SegmentIndex,
        chosen: (u64, u64),
        is_new: bool,
        size: u64,
        seen_until: usize,
    ) {
        let segment = &self.tracker.segments[index];
        let Some(sizes) = self.by_fit.get(&(segment.stream, segment.pool.kind)) else { return };
        let bound = if is_new { (u64::MAX, u64::MAX) } else { chosen };
        if (size, 0) > bound {
            return;
        }
        let slack = self.settings.max_non_split_rounding_bytes.unwrap_or(self.settings.large_segment_size_bytes);
        let is_refused = |found: u64| {
            let too_large = |max| (size < max && found >= max) || (size >= max && found >= size.saturating_add(slack));
            is_new && self.settings.max_split_size_bytes.is_some_and(too_large)
        };
        let better = sizes.range((size, 0)..bound).take(MAX_BETTER_FITS).filter_map(|&(found, address)| {
            let free = self.free.get(&address)?;
            (free.segment != index && free.since < seen_until && !is_refused(found)).then_some(free.segment)
        });
        let better: Vec<SegmentIndex> = better.collect();
        better.into_iter().for_each(|other| self.add_difference(index, other, DIFFERENT));
    }

    /// Records that other expandable segments with the stream and size class of segment `index`
    /// belong to other pools: a pool has one such segment as long as addresses are left in it.
    fn compare_expandable(&mut self, index: SegmentIndex) {
        let segment = self.tracker.segments[index];
        let is_same_kind = |other: &&SegmentIndex| {
            let other = &self.tracker.segments[**other];
            other.is_expandable && (other.stream, other.pool.kind) == (segment.stream, segment.pool.kind)
        };
        let live: Vec<SegmentIndex> = self.tracker.live_segments().filter(|other| other != &index).collect();
        let others: Vec<SegmentIndex> = live.iter().filter(is_same_kind).copied().collect();
        others.into_iter().for_each(|other| self.add_difference(index, other, DIFFERENT));
    }

    /// Records that two segments belong to different pools; `exclusion` is one or both of the flags
    /// [`NOT_BOTH_DEFAULT`] and [`NOT_ONE_PRIVATE`]. Does nothing if the pools of both are known.
    fn add_difference(&mut self, one: SegmentIndex, other: SegmentIndex, exclusion: u8) {
        let is_known = |index: SegmentIndex| self.segments[index].owner.is_some();
        if one == other || (is_known(one) && is_known(other)) {
            return;
        }
        if self.pairs.insert((one.min(other), one.max(other), exclusion)) {
            self.segments[one].other_pool_segments.push((other, exclusion));
            self.segments[other].other_pool_segments.push((one, exclusion));
        }
    }

    /// Makes the allocated block at `address` a free block, merged with its free neighbors.
    /// `position` is the index of the entry that completes its free.
    fn free_completed(&mut self, address: u64, position: usize) {
        let Some(mut size) = self.live.remove(&address) else { return };
        let Some(segment) = self.tracker.containing(address) else { return };
        let mut start = address;
        let is_same_kind = |free: &FreeBlock| free.segment == segment;
        if let Some((&below, &free)) = self.free.range(..address).next_back()
            && is_same_kind(&free)
            && below + free.size == address
        {
            self.remove(below);
            (start, size) = (below, size + free.size);
        }
        if let Some(free) = self.free.get(&(start + size)).copied().filter(is_same_kind) {
            self.remove(start + size);
            size += free.size;
        }
        self.insert(start, FreeBlock { size, segment, since: position });
    }

    /// Collects the evidence from `run`, ranges that consecutive entries released. A pool releases
    /// all of its free segments in a fixed order: segments released in another order belong to
    /// different pools, and so do a released segment and one that stays free.
    fn end_run(&mut self, run: &[ReleasedRange]) {
        for released in run {
            self.remove(released.address);
        }
        // Under these settings, a pool may release a part of its free blocks only.
        if self.settings.max_split_size_bytes.is_some() || self.settings.garbage_collection_threshold > 0.0 {
            return;
        }
        let mut order: Vec<SegmentIndex> = run.iter().map(|released| released.segment).collect();
        order.dedup();
        for (position, one) in run.iter().enumerate().take(MAX_RELEASED) {
            for other in &run[position + 1..run.len().min(position + MAX_RELEASED)] {
                let (default, private) =
                    (self.is_release_order(one, other, true), self.is_release_order(one, other, false));
                let exclusion = (u8::from(!default) * NOT_BOTH_DEFAULT) | (u8::from(!private) * NOT_ONE_PRIVATE);
                if exclusion != 0 {
                    self.add_difference(one.segment, other.segment, exclusion);
                }
            }
        }
        let kept: Vec<SegmentIndex> = self.spanning.iter().take(MAX_RELEASED).map(|it| self.free[it].segment).collect();
        for &one in order.iter().take(MAX_RELEASED) {
            kept.iter().for_each(|&other| self.add_difference(one, other, DIFFERENT));
        }
        for &segment in &order {
            self.segments[segment].runs.push(self.runs.len());
        }
        self.runs.push(order);
    }

    /// Returns true if a pool with both ranges would release `one` before `other`, false if after
    /// it. `is_default` is true for the default pool, whose order differs from that of private
    /// pools.
    fn is_release_order(&self, one: &ReleasedRange, other: &ReleasedRange, is_default: bool) -> bool {
        let key = |released: &ReleasedRange| {
            let segment = &self.tracker.segments[released.segment];
            let is_second = (segment.pool.kind == PoolKind::Small) == is_default;
            (is_second, segment.is_expandable, segment.stream, released.size, released.address)
        };
        // An expandable segment releases a part of a free block, but the order is that of the whole
        // blocks.
        let [one, other] = [one, other].map(key);
        if one.1 && other.1 { (one.0, one.2) <= (other.0, other.2) } else { one < other }
    }
}
