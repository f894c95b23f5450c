//! Walks a device's history from its end to its beginning, undoing each entry, to learn what was there before the first one.
//!
//! A snapshot's `segments` are the state at the end, whole and exact, whatever the history has lost. On the way back each segment's
//! pool comes to light too: entries do not say it, but the blocks that are taken from a segment do, by their size.

use std::collections::HashMap;

use vramscope_pool::size;

use super::segments::{PoolGuess, Segment, Segments, of_row};
use super::size::Rules;
use super::trace::Trace;
use crate::torch::snapshot::{Action, BlockState, Entry, NO_TIME, Origin, SegmentRow, Snapshot};

/// A live block, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct PastBlock {
    /// Known where the block is still there at the end.
    pub(super) size: Option<u64>,
    pub(super) requested: u64,
    pub(super) pending_free: bool,
    pub(super) origin: Origin,
}

/// A block that the history makes and that is still there at its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Survivor {
    /// The place of the entry that makes it.
    pub(super) place: u64,
    pub(super) size: u64,
    pub(super) origin: Origin,
}

/// What was there before the history, and what the walk has learned for the way forward.
#[derive(Debug, Default)]
pub(super) struct Past {
    pub(super) segments: Segments,
    pub(super) blocks: HashMap<u64, PastBlock>,
    /// The pools of the segments that the history makes, the last one first.
    pub(super) pools: Vec<PoolGuess>,
    /// The last one first.
    pub(super) survivors: Vec<Survivor>,
    /// When the earliest of the entries was, where they have times.
    pub(super) earliest_us: Option<i64>,
    /// Segments and blocks of the snapshot that contradict others, or that there cannot be.
    pub(super) misfits: u64,
    /// There may be segments whose pool is not known yet.
    has_unknown_pools: bool,
    /// Blocks looked at for the sake of those since the segments were last gone through.
    looked_at: usize,
    /// A free was once requested and not only completed; the oldest versions do not tell the two apart.
    knows_requests: bool,
}

impl Past {
    /// Walks the history of `device` back from the snapshot's segments.
    pub(super) fn walk(snapshot: &Snapshot, device: u16, trace: &Trace<'_>, rules: &Rules) -> Self {
        let mut past = Self::default();
        let mut earliest_us = i64::MAX;
        for row in snapshot.segments_of(device) {
            past.put_row(snapshot, row);
        }
        let mut place = trace.len();
        for entry in trace.entries_reversed() {
            place -= 1;
            if entry.time_us != NO_TIME {
                earliest_us = earliest_us.min(entry.time_us);
            }
            past.undo(snapshot, entry, place, rules);
        }
        past.earliest_us = (earliest_us != i64::MAX).then_some(earliest_us);
        if !past.knows_requests {
            past.blocks.values_mut().filter(|block| block.size.is_none()).for_each(|block| block.pending_free = false);
        }
        past
    }

    /// Nothing was there before the first entry.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.iter().len() == 0 && self.blocks.is_empty()
    }

    fn put_row(&mut self, snapshot: &Snapshot, row: &SegmentRow) {
        let is_new = row.is_range() && self.segments.insert(row.address, of_row(row));
        self.misfits += u64::from(!is_new);
        // Blocks lie one behind the other, whatever becomes of those that do not.
        let mut next = row.address;
        for block in &snapshot.blocks[row.blocks.clone()] {
            let fits = block.address.is_some_and(|address| address >= next);
            next = block.address.unwrap_or(next).saturating_add(block.size);
            self.misfits += u64::from(!fits || next > row.end());
            if block.state == BlockState::Free {
                continue;
            }
            let Some(address) = block.place() else { continue };
            let past = PastBlock {
                size: Some(block.size),
                requested: block.requested.unwrap_or(block.size),
                pending_free: block.state == BlockState::PendingFree,
                origin: block.origin,
            };
            self.blocks.insert(address, past);
        }
    }

    fn undo(&mut self, snapshot: &Snapshot, entry: &Entry, place: u64, rules: &Rules) {
        let address = entry.address;
        match entry.action() {
            Action::Allocated => {
                if let Some(PastBlock { size: Some(size), origin, .. }) = self.blocks.remove(&address) {
                    self.survivors.push(Survivor { place, size, origin });
                }
                if self.has_unknown_pools {
                    self.learn_pool(snapshot, entry, rules);
                }
            }
            Action::FreeCompleted => {
                // A block that is there already when it comes to be freed contradicts this; the way forward counts it.
                self.blocks.entry(address).or_insert(PastBlock {
                    size: None,
                    requested: entry.size,
                    pending_free: true,
                    origin: Origin::default(),
                });
            }
            Action::FreeRequested => {
                self.knows_requests = true;
                self.blocks.entry(address).and_modify(|block| block.pending_free = false).or_insert(PastBlock {
                    size: None,
                    requested: entry.size,
                    pending_free: false,
                    origin: Origin::default(),
                });
            }
            Action::SegmentAllocated => {
                let pool = self.segments.remove(address).map(|segment| segment.pool).unwrap_or_default();
                self.pools.push(pool);
            }
            Action::SegmentMapped => {
                let (_, pool) = self.segments.cut(address..address.saturating_add(entry.size));
                self.pools.push(pool);
            }
            Action::SegmentFreed => self.lost(snapshot, entry, false),
            Action::SegmentUnmapped => self.lost(snapshot, entry, true),
            Action::OutOfMemory | Action::Other => {}
        }
    }

    /// A segment is there, further back than where it was lost.
    fn lost(&mut self, snapshot: &Snapshot, entry: &Entry, expandable: bool) {
        if !entry.is_range() {
            return;
        }
        let range = entry.address..entry.address.saturating_add(entry.size);
        let context = snapshot.context(entry);
        let said = PoolGuess { kind: None, owner: context.owner };
        let beside = if expandable { self.segments.pool_beside(&range, context.stream) } else { PoolGuess::default() };
        let pool = said.or(beside);
        let segment = Segment { end: range.end, stream: context.stream, pool, expandable, origin: Origin::default() };
        self.segments.insert(range.start, segment);
        self.has_unknown_pools |= pool.kind.is_none();
    }

    /// A block that is taken from a segment tells the segment's pool.
    fn learn_pool(&mut self, snapshot: &Snapshot, entry: &Entry, rules: &Rules) {
        let rounded = rules.rounded(entry.size);
        let said = PoolGuess { kind: Some(size::pool_kind(rounded)), owner: snapshot.context(entry).owner };
        let range = entry.address..entry.address.saturating_add(rounded);
        for segment in self.segments.overlapping_mut(range) {
            segment.pool = segment.pool.or(said);
        }
        // Once in as many blocks as there are segments, to see whether there is still something to learn.
        self.looked_at += 1;
        if self.looked_at >= self.segments.iter().len() {
            self.looked_at = 0;
            self.has_unknown_pools = self.segments.iter().any(|(_, segment)| segment.pool.kind.is_none());
        }
    }
}
