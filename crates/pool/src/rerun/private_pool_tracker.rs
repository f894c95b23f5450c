//! Infers which private pool a request used.
//!
//! A PyTorch snapshot contains the private pool of each segment that exists at its end, but its
//! entries contain none. A private pool destroyed before the end is missing altogether. Requests to
//! a destroyed pool are assumed only where the pool under test would otherwise decide differently,
//! and only for segments that do not exist at the end. A destroyed pool is assumed to belong to one
//! graph capture: from its first to its last use, it serves every request on its stream.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use vramscope_trace::{EventKind, MempoolId, StreamId};

use super::cursor::{assumed_private_pool_id, is_assumed_private_pool};
use super::entry::Entry;
use super::history::History;

/// The private pools, recorded or inferred, that exist at one entry of a history, and their
/// segments.
#[derive(Clone, Debug, Default)]
pub(super) struct PrivatePoolTracker {
    /// The end and owner of the segments of private pools, by first address.
    segments: BTreeMap<u64, (u64, MempoolId)>,
    /// The pools that have a user.
    pub(super) created: BTreeSet<MempoolId>,
    /// The pool that each stream's last request used; kept only if there are private pools.
    last_by_stream: HashMap<StreamId, MempoolId>,
    /// The number of assumed private pools, whose ids the recording lacks.
    pub(super) assumed_private_pools: usize,
    /// The number of private pools that were assumed before the history was read; nothing is
    /// inferred from requests to these.
    initial_assumed_private_pools: usize,
    /// Inferred private pools whose capture has ended: their stream has used another pool since.
    finished: BTreeSet<MempoolId>,
    /// Whether there are private pools, recorded or inferred.
    has_private_pools: bool,
}

impl PrivatePoolTracker {
    pub(super) fn new(history: &History) -> Self {
        let is_private = |owner: &MempoolId| *owner != MempoolId::default();
        let segments: BTreeMap<u64, (u64, MempoolId)> = history
            .start
            .segments()
            .filter(|segment| is_private(&segment.pool.owner))
            .map(|segment| (segment.address, (segment.end(), segment.pool.owner)))
            .collect();
        let created = segments.values().map(|&(_, owner)| owner).collect();
        let (has_private_pools, assumed_private_pools) = (history.has_private_pools, history.assumed_private_pools);
        Self {
            segments,
            created,
            has_private_pools,
            assumed_private_pools,
            initial_assumed_private_pools: assumed_private_pools,
            ..Self::default()
        }
    }

    /// Returns true if a private pool was recorded or has been inferred; false if the default pool
    /// served all requests so far.
    pub(super) fn has_private_pools(&self) -> bool {
        self.has_private_pools
    }

    /// Returns the private pool that owns the segment that contains `address`; `None` if the
    /// segment is the default pool's or no segment contains the address.
    pub(super) fn owner_of_segment(&self, address: u64) -> Option<MempoolId> {
        let (_, &(end, owner)) = self.segments.range(..=address).next_back()?;
        (address < end).then_some(owner)
    }

    /// Returns the pool that owns the block at `address`: `recorded`, the pool in the block's
    /// entry, unless that is the default pool and the block's segment is known to belong to a
    /// private pool.
    pub(super) fn owner_of_block(&self, address: u64, recorded: MempoolId) -> MempoolId {
        if !self.has_private_pools || recorded != MempoolId::default() {
            return recorded;
        }
        self.owner_of_segment(address).unwrap_or(recorded)
    }

    /// Returns the pools that may have served a request on `stream` whose pool is not recorded,
    /// most likely first: the pool of the stream's last request, the default pool, a new assumed
    /// private pool, and `next`, the next private pool recorded on the stream.
    pub(super) fn candidates(&self, stream: StreamId, next: Option<MempoolId>) -> Vec<MempoolId> {
        let last = self.last_by_stream.get(&stream).copied().filter(|last| !self.finished.contains(last));
        let mut candidates = Vec::from_iter(last);
        for other in [MempoolId::default(), assumed_private_pool_id(self.assumed_private_pools)].into_iter().chain(next)
        {
            if !candidates.contains(&other) {
                candidates.push(other);
            }
        }
        candidates
    }

    /// Records that the pool `owner` serves a request on `stream`, and returns true. Returns false
    /// if it cannot: `owner` is an inferred pool, and its stream has used another pool since.
    pub(super) fn record_request(&mut self, stream: StreamId, owner: MempoolId) -> bool {
        if owner != MempoolId::default() {
            self.has_private_pools = true;
        }
        if !self.has_private_pools {
            return true;
        }
        if self.is_inferred(owner) {
            if self.finished.contains(&owner) {
                return false;
            }
            if owner == assumed_private_pool_id(self.assumed_private_pools) {
                self.assumed_private_pools += 1;
            }
        }
        if let Some(last) = self.last_by_stream.insert(stream, owner).filter(|&last| last != owner)
            && self.is_inferred(last)
        {
            self.finished.insert(last);
        }
        true
    }

    /// Returns true if `owner` is a private pool inferred while reading the entries, or the id that
    /// the next inferred one would get. False for recorded pools and pools assumed before reading.
    fn is_inferred(&self, owner: MempoolId) -> bool {
        is_assumed_private_pool(owner) && owner <= assumed_private_pool_id(self.initial_assumed_private_pools)
    }

    /// Adds the segments that `entries` allocated or mapped, as segments of the pool `owner`, and
    /// removes the segments that they released.
    pub(super) fn apply(&mut self, entries: &[Entry], owner: MempoolId) {
        if !self.has_private_pools {
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
                    self.remove_range(address, address.saturating_add(size));
                }
                _ => {}
            }
        }
    }

    /// Removes the addresses `from..until` from the segments of private pools; a segment that
    /// reaches further keeps the rest.
    fn remove_range(&mut self, from: u64, until: u64) {
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

    /// Returns the private pools, each once, that still have a user and own a segment that
    /// `entries` release.
    pub(super) fn pools_released_by(&self, entries: &[Entry]) -> Vec<MempoolId> {
        let mut released = Vec::new();
        if !self.has_private_pools {
            return released;
        }
        for entry in entries {
            if let EventKind::SegmentFreed { address, .. } | EventKind::SegmentUnmapped { address, .. } = entry.kind
                && let Some(owner) = self.owner_of_segment(address)
                && self.created.contains(&owner)
                && !released.contains(&owner)
            {
                released.push(owner);
            }
        }
        released
    }

    /// Returns the private pool that owns the first segment that `entries` release; `None` if the
    /// default pool owns it, or nothing is released.
    pub(super) fn first_released_pool(&self, entries: &[Entry]) -> Option<MempoolId> {
        if !self.has_private_pools {
            return None;
        }
        let first = entries.iter().find_map(|entry| match entry.kind {
            EventKind::SegmentFreed { address, .. } | EventKind::SegmentUnmapped { address, .. } => Some(address),
            _ => None,
        });
        self.owner_of_segment(first?)
    }

    /// Returns how many of `entries`, from the first on, a single emptying of the cache can have
    /// caused: it releases segments of the default pool first, then segments of private pools.
    pub(super) fn single_empty_cache_len(&self, entries: &[Entry]) -> usize {
        if !self.has_private_pools {
            return entries.len();
        }
        let mut is_private = false;
        let mut is_next = |entry: &&Entry| match entry.kind {
            EventKind::SegmentFreed { address, .. } | EventKind::SegmentUnmapped { address, .. } => {
                let was_private = std::mem::replace(&mut is_private, self.owner_of_segment(address).is_some());
                is_private || !was_private
            }
            _ => true,
        };
        entries.iter().take_while(|entry| is_next(entry)).count()
    }
}
