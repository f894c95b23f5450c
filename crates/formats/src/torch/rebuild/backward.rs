//! Walks a device's history from its end to its beginning and undoes each entry, to find the state
//! before the first one.
//!
//! A snapshot's `segments` are the exact state at the end, even if the history has lost entries.
//! The walk also finds the pool of each segment. Entries do not contain it, but the sizes of the
//! blocks that are allocated in the segment determine it.

use foldhash::HashMap;
use vramscope_pool::size;

use super::segments::{PartialPool, Segment, Segments, segment_of_row};
use super::size::SizeRules;
use super::trace::DeviceTrace;
use crate::progress::Cancelled;
use crate::torch::snapshot::{BlockState, Entry, NO_TIME, Origin, SegmentRow, Snapshot, TraceAction};

/// A block that was live at some entry of the history, as found by walking the history backwards.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlierBlock {
    /// The size in bytes, known for blocks that still exist at the end.
    pub(super) size: Option<u64>,
    pub(super) requested: u64,
    pub(super) pending_free: bool,
    pub(super) origin: Origin,
}

/// A block that an entry of the history allocates and that still exists at the history's end, so
/// that the snapshot lists its exact size.
#[derive(Clone, Copy, Debug)]
pub(super) struct SurvivingBlock {
    /// The index of the entry that allocates it.
    pub(super) entry_index: u64,
    pub(super) size: u64,
    pub(super) origin: Origin,
}

/// Walks a device's history from its end to its beginning, undoing each entry, to find the segments
/// and blocks before the first one.
#[derive(Debug, Default)]
pub(super) struct BackwardWalk {
    pub(super) segments: Segments,
    /// Live blocks by address.
    pub(super) blocks: HashMap<u64, EarlierBlock>,
    /// The pools of the segments that the history creates, in reverse order of creation.
    pub(super) pools: Vec<PartialPool>,
    /// The blocks that the history allocates and that still exist at its end, in reverse order of
    /// allocation.
    pub(super) surviving_blocks: Vec<SurvivingBlock>,
    /// Time of the earliest entry in microseconds since 1970, if entries have times.
    pub(super) earliest_us: Option<i64>,
    /// Segments and blocks of the snapshot that are invalid or contradict others.
    pub(super) contradictions: u64,
    /// True unless the pools of all segments are known.
    has_unknown_pools: bool,
    /// Blocks examined since the segments were last checked for unknown pools.
    examined_blocks: usize,
    /// True once the history has a requested free. The oldest versions record completed frees only.
    has_free_requests: bool,
}

impl BackwardWalk {
    /// Walks the history of `device` from its end, where the snapshot's segments are the exact
    /// state, to its beginning. `progress` receives the number of entries walked so far; fails if
    /// `progress` fails.
    pub(super) fn new(
        snapshot: &Snapshot,
        device: u16,
        trace: &DeviceTrace<'_>,
        rules: &SizeRules,
        progress: &mut dyn FnMut(u64) -> Result<(), Cancelled>,
    ) -> Result<Self, Cancelled> {
        let mut walk = Self::default();
        let mut earliest_us = i64::MAX;
        for row in snapshot.segments_of(device) {
            walk.add_segment(snapshot, row);
        }
        let mut entry_index = trace.len();
        for slice in trace.slices().rev() {
            for entry in slice.iter().rev() {
                entry_index -= 1;
                if entry.time_us != NO_TIME {
                    earliest_us = earliest_us.min(entry.time_us);
                }
                walk.undo(snapshot, entry, entry_index, rules);
            }
            progress(trace.len() - entry_index)?;
        }
        walk.earliest_us = (earliest_us != i64::MAX).then_some(earliest_us);
        if !walk.has_free_requests {
            walk.blocks.values_mut().filter(|block| block.size.is_none()).for_each(|block| block.pending_free = false);
        }
        Ok(walk)
    }

    /// Returns true if no memory was in use before the first entry. Valid once the walk is
    /// complete.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.iter().len() == 0 && self.blocks.is_empty()
    }

    /// Adds a segment of the snapshot with its live blocks: the state at the end of the history,
    /// where the walk starts.
    fn add_segment(&mut self, snapshot: &Snapshot, row: &SegmentRow) {
        let is_valid = row.is_range() && self.segments.insert(row.address, segment_of_row(row));
        self.contradictions += u64::from(!is_valid);
        // Blocks are contiguous, even if some of them are invalid.
        let mut next = row.address;
        for block in &snapshot.blocks[row.blocks.clone()] {
            let fits = block.address.is_some_and(|address| address >= next);
            next = block.address.unwrap_or(next).saturating_add(block.size);
            self.contradictions += u64::from(!fits || next > row.end());
            if block.state == BlockState::Free {
                continue;
            }
            let Some(address) = block.valid_address() else { continue };
            let earlier = EarlierBlock {
                size: Some(block.size),
                requested: block.requested.unwrap_or(block.size),
                pending_free: block.state == BlockState::PendingFree,
                origin: block.origin,
            };
            self.blocks.insert(address, earlier);
        }
    }

    /// Undoes one entry: changes the state from after the entry to before it. `entry_index` is the
    /// entry's index in the device's history, from 0.
    fn undo(&mut self, snapshot: &Snapshot, entry: &Entry, entry_index: u64, rules: &SizeRules) {
        let address = entry.address;
        match entry.action() {
            TraceAction::Allocated => {
                if let Some(EarlierBlock { size: Some(size), origin, .. }) = self.blocks.remove(&address) {
                    self.surviving_blocks.push(SurvivingBlock { entry_index, size, origin });
                }
                if self.has_unknown_pools {
                    self.learn_pool(snapshot, entry, rules);
                }
            }
            TraceAction::FreeCompleted => {
                // A block that already exists here contradicts the free; the forward walk counts
                // the contradiction.
                self.blocks.entry(address).or_insert(EarlierBlock {
                    size: None,
                    requested: entry.size,
                    pending_free: true,
                    origin: Origin::default(),
                });
            }
            TraceAction::FreeRequested => {
                self.has_free_requests = true;
                self.blocks.entry(address).and_modify(|block| block.pending_free = false).or_insert(EarlierBlock {
                    size: None,
                    requested: entry.size,
                    pending_free: false,
                    origin: Origin::default(),
                });
            }
            TraceAction::SegmentAllocated => {
                let pool = self.segments.remove(address).map(|segment| segment.pool).unwrap_or_default();
                self.pools.push(pool);
            }
            TraceAction::SegmentMapped => {
                let (_, pool) = self.segments.cut(address..address.saturating_add(entry.size));
                self.pools.push(pool);
            }
            TraceAction::SegmentFreed => self.restore_segment(snapshot, entry, false),
            TraceAction::SegmentUnmapped => self.restore_segment(snapshot, entry, true),
            TraceAction::OutOfMemory | TraceAction::Other => {}
        }
    }

    /// Undoes an entry that frees or unmaps a segment: adds the segment again. Its pool comes from
    /// the entry or an adjacent segment and may stay unknown.
    fn restore_segment(&mut self, snapshot: &Snapshot, entry: &Entry, expandable: bool) {
        if !entry.is_range() {
            return;
        }
        let range = entry.address..entry.address.saturating_add(entry.size);
        let context = snapshot.context(entry);
        let recorded = PartialPool { kind: None, mempool: context.mempool };
        let adjacent =
            if expandable { self.segments.pool_of_adjacent(&range, context.stream) } else { PartialPool::default() };
        let pool = recorded.or(adjacent);
        let segment = Segment { end: range.end, stream: context.stream, pool, expandable, origin: Origin::default() };
        self.segments.insert(range.start, segment);
        self.has_unknown_pools |= pool.kind.is_none();
    }

    /// Completes the size class and private pool, where unknown, of the segment in which `entry`
    /// allocates a block: the size class follows from the size of the request.
    fn learn_pool(&mut self, snapshot: &Snapshot, entry: &Entry, rules: &SizeRules) {
        let rounded = rules.rounded(entry.size);
        let recorded = PartialPool { kind: Some(size::pool_kind(rounded)), mempool: snapshot.context(entry).mempool };
        let range = entry.address..entry.address.saturating_add(rounded);
        for segment in self.segments.overlapping_mut(range) {
            segment.pool = segment.pool.or(recorded);
        }
        // Check for segments with unknown pools only once per as many blocks as there are segments,
        // because the check visits all segments.
        self.examined_blocks += 1;
        if self.examined_blocks >= self.segments.iter().len() {
            self.examined_blocks = 0;
            self.has_unknown_pools = self.segments.iter().any(|(_, segment)| segment.pool.kind.is_none());
        }
    }
}
