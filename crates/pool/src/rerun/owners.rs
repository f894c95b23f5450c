//! Which private pool a request asked.
//!
//! A snapshot names the private pool of each segment that is still there at its end, but its entries do not: of a private pool that
//! was destroyed, nothing is said. That a request asked such a pool is an input that was not recorded, and it is assumed only where the
//! pool would otherwise decide differently, for segments that are gone at the end, and for one capture each: on the stream that it
//! began on, every request from its first to its last asks it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use vramscope_trace::{EventKind, MempoolId, StreamId};

use super::history::{Entry, History};
use super::script::{assumed_pool, is_assumed};

/// What is known of private pools at one place of a history.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners {
    /// End and pool of the segments of private pools, by address.
    segments: BTreeMap<u64, (u64, MempoolId)>,
    /// The pools that the program can use.
    pub(super) created: BTreeSet<MempoolId>,
    /// The pool that each stream's last request asked, once there are private ones.
    last: HashMap<StreamId, MempoolId>,
    /// How many pools were assumed.
    pub(super) assumed: usize,
    /// How many of them before the history was read; nothing is assumed of when those are asked.
    assumed_before: usize,
    /// Those whose capture is over.
    over: BTreeSet<MempoolId>,
    /// There are private pools at all.
    any: bool,
}

impl Owners {
    pub(super) fn new(history: &History) -> Self {
        let private = |owner: &MempoolId| *owner != MempoolId::default();
        let segments: BTreeMap<u64, (u64, MempoolId)> = history
            .start
            .segments()
            .filter(|segment| private(&segment.pool.owner))
            .map(|segment| (segment.address, (segment.end(), segment.pool.owner)))
            .collect();
        let created = segments.values().map(|&(_, owner)| owner).collect();
        let (any, assumed) = (history.has_private_pools, history.assumed_pools);
        Self { segments, created, any, assumed, assumed_before: assumed, ..Self::default() }
    }

    /// Whether any private pool was heard of, or assumed.
    pub(super) fn has_private_pools(&self) -> bool {
        self.any
    }

    /// The private pool of the segment at `address`.
    pub(super) fn of_segment(&self, address: u64) -> Option<MempoolId> {
        let (_, &(end, owner)) = self.segments.range(..=address).next_back()?;
        (address < end).then_some(owner)
    }

    /// The pool of the block that an entry allocates from a segment that was there before.
    pub(super) fn of_block(&self, address: u64, recorded: MempoolId) -> MempoolId {
        if !self.any || recorded != MempoolId::default() {
            return recorded;
        }
        self.of_segment(address).unwrap_or(recorded)
    }

    /// The pools that a request may have asked of which nothing is said, the likeliest first: the one that the stream's last request
    /// asked, what the recording says, one that nothing was heard of before, `next`, the one that the stream asks next by name.
    pub(super) fn candidates(&self, stream: StreamId, next: Option<MempoolId>) -> Vec<MempoolId> {
        let last = self.last.get(&stream).copied().filter(|last| !self.over.contains(last));
        let mut candidates = Vec::from_iter(last);
        for other in [MempoolId::default(), assumed_pool(self.assumed)].into_iter().chain(next) {
            if !candidates.contains(&other) {
                candidates.push(other);
            }
        }
        candidates
    }

    /// Notes that a request asks a pool. Returns whether it can.
    pub(super) fn ask(&mut self, stream: StreamId, owner: MempoolId) -> bool {
        if owner != MempoolId::default() {
            self.any = true;
        }
        if !self.any {
            return true;
        }
        if self.is_assumed_here(owner) {
            if self.over.contains(&owner) {
                return false;
            }
            if owner == assumed_pool(self.assumed) {
                self.assumed += 1;
            }
        }
        if let Some(last) = self.last.insert(stream, owner).filter(|&last| last != owner)
            && self.is_assumed_here(last)
        {
            self.over.insert(last);
        }
        true
    }

    fn is_assumed_here(&self, owner: MempoolId) -> bool {
        is_assumed(owner) && owner <= assumed_pool(self.assumed_before)
    }

    /// Follows the segments that entries made and gave back.
    pub(super) fn follow(&mut self, entries: &[Entry], owner: MempoolId) {
        if !self.any {
            return;
        }
        for entry in entries {
            match entry.kind {
                EventKind::SegmentAllocated { address, size, .. } | EventKind::SegmentMapped { address, size, .. }
                    if owner != MempoolId::default() =>
                {
                    self.segments.insert(address, (address.saturating_add(size), owner));
                }
                EventKind::SegmentFreed { address, size, .. } | EventKind::SegmentUnmapped { address, size, .. } => {
                    self.cut(address, address.saturating_add(size));
                }
                _ => {}
            }
        }
    }

    fn cut(&mut self, from: u64, until: u64) {
        while let Some((&start, &(end, owner))) = self.segments.range(..until).next_back()
            && end > from
        {
            self.segments.remove(&start);
            if start < from {
                self.segments.insert(start, (from, owner));
            }
            if end > until {
                self.segments.insert(until, (end, owner));
            }
        }
    }

    /// The private pools of segments that entries gave back and that the program has not released yet.
    pub(super) fn released_before(&self, entries: &[Entry]) -> Vec<MempoolId> {
        let mut released = Vec::new();
        if !self.any {
            return released;
        }
        for entry in entries {
            if let EventKind::SegmentFreed { address, .. } | EventKind::SegmentUnmapped { address, .. } = entry.kind
                && let Some(owner) = self.of_segment(address)
                && self.created.contains(&owner)
                && !released.contains(&owner)
            {
                released.push(owner);
            }
        }
        released
    }

    /// The private pool of the first segment that these entries gave back.
    pub(super) fn first_emptied(&self, entries: &[Entry]) -> Option<MempoolId> {
        if !self.any {
            return None;
        }
        let first = entries.iter().find_map(|entry| match entry.kind {
            EventKind::SegmentFreed { address, .. } | EventKind::SegmentUnmapped { address, .. } => Some(address),
            _ => None,
        });
        self.of_segment(first?)
    }

    /// How many of these entries one emptying can have come to: first the default pool's, then private ones'.
    pub(super) fn emptied_at_once(&self, entries: &[Entry]) -> usize {
        if !self.any {
            return entries.len();
        }
        let mut is_private = false;
        let mut is_next = |entry: &&Entry| match entry.kind {
            EventKind::SegmentFreed { address, .. } | EventKind::SegmentUnmapped { address, .. } => {
                let was_private = std::mem::replace(&mut is_private, self.of_segment(address).is_some());
                is_private || !was_private
            }
            _ => true,
        };
        entries.iter().take_while(|entry| is_next(entry)).count()
    }
}
