//! Which segment each recorded range of memory is of.
//!
//! An ordinary segment is one entry. An expandable one is many: memory is mapped at its beginning first, then always at the lowest address
//! that has none, so that a range is of the segment that it lies in or continues, and else the beginning of another.

use std::collections::{BTreeMap, HashMap};

use vramscope_trace::{DeviceState, EventKind, MempoolId, Pool as PoolKey, StreamId};

use super::history::Entry;

/// A segment's place among all of a history, in the order in which they came.
pub(super) type AreaIndex = usize;

/// A segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) stream: StreamId,
    /// Its pool; of which private one may be known only from some of its ranges.
    pub(super) pool: PoolKey,
    pub(super) is_expandable: bool,
    /// Place of the first entry; `None` where it was there before the history.
    pub(super) made: Option<usize>,
    /// Something of it is there; at the end of the history, that it lasts.
    pub(super) is_there: bool,
    begin: u64,
    /// How far memory ever was mapped.
    end: u64,
    mapped: u64,
}

/// The segments of a history up to one place of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Areas {
    pub(super) all: Vec<Area>,
    /// Those that are there, by their first address.
    live: BTreeMap<u64, AreaIndex>,
    /// How far the beginnings of two expandable ones that were there together lay apart, at least.
    pub(super) apart: Option<u64>,
    /// How many addresses one was seen to use, at most.
    pub(super) widest: u64,
}

impl Areas {
    /// Those that are there before the first entry. What is mapped for one stream and pool with nothing else in between is one segment.
    pub(super) fn new(start: &DeviceState) -> Self {
        let mut areas = Self::default();
        let mut last: Option<AreaIndex> = None;
        for segment in start.segments() {
            let is_same = |&at: &AreaIndex| {
                let area = &areas.all[at];
                segment.expandable && area.is_expandable && (area.stream, area.pool) == (segment.stream, segment.pool)
            };
            match last.filter(is_same) {
                Some(at) => areas.grow(at, segment.address, segment.size),
                None => {
                    let key = (segment.stream, segment.pool);
                    last = Some(areas.insert(key, segment.address, segment.size, segment.expandable, None));
                }
            }
        }
        areas
    }

    /// All of a history, and the places of the entries that made or mapped one of which nothing is left.
    pub(super) fn of(start: &DeviceState, entries: &[Entry]) -> (Self, Vec<usize>) {
        let mut areas = Self::new(start);
        let mut made = Vec::new();
        for (place, entry) in entries.iter().enumerate() {
            let area = areas.follow(place, &entry.kind);
            if let EventKind::SegmentAllocated { .. } | EventKind::SegmentMapped { .. } = entry.kind {
                made.extend(area.map(|area| (place, area)));
            }
        }
        made.retain(|&(_, area)| !areas.all[area].is_there);
        (areas, made.into_iter().map(|(place, _)| place).collect())
    }

    /// Follows the entry at `place`. Returns the segment that it made, gave back, mapped or unmapped.
    pub(super) fn follow(&mut self, place: usize, kind: &EventKind) -> Option<AreaIndex> {
        match *kind {
            EventKind::SegmentAllocated { address, size, stream, pool, .. } => {
                Some(self.insert((stream, pool), address, size, false, Some(place)))
            }
            EventKind::SegmentMapped { address, size, stream, pool, .. } => {
                let known = self.continued(address).filter(|&at| self.all[at].may_be_of(stream, pool));
                if let Some(at) = known {
                    self.grow(at, address, size);
                    if self.all[at].pool.owner == MempoolId::default() {
                        self.all[at].pool = pool;
                    }
                    return known;
                }
                Some(self.insert((stream, pool), address, size, true, Some(place)))
            }
            EventKind::SegmentFreed { address, size, .. } | EventKind::SegmentUnmapped { address, size, .. } => {
                let at = self.at(address)?;
                let area = &mut self.all[at];
                area.mapped = area.mapped.saturating_sub(size);
                if area.mapped == 0 {
                    area.is_there = false;
                    self.live.remove(&area.begin);
                }
                Some(at)
            }
            _ => None,
        }
    }

    /// Those that are there.
    pub(super) fn there(&self) -> impl Iterator<Item = AreaIndex> + '_ {
        self.live.values().copied()
    }

    /// The segment that has `address`.
    pub(super) fn at(&self, address: u64) -> Option<AreaIndex> {
        self.continued(address).filter(|&at| address < self.all[at].end)
    }

    /// The same, or it ends there.
    fn continued(&self, address: u64) -> Option<AreaIndex> {
        let (_, &at) = self.live.range(..=address).next_back()?;
        (address <= self.all[at].end).then_some(at)
    }

    fn insert(
        &mut self,
        (stream, pool): (StreamId, PoolKey),
        begin: u64,
        size: u64,
        is_expandable: bool,
        made: Option<usize>,
    ) -> AreaIndex {
        let at = self.all.len();
        let end = begin.saturating_add(size);
        self.all.push(Area { stream, pool, is_expandable, made, is_there: true, begin, end, mapped: size });
        if is_expandable {
            let neighbors = [self.live.range(..begin).next_back(), self.live.range(begin..).next()];
            let expandable = neighbors.into_iter().flatten().filter(|&(_, &other)| self.all[other].is_expandable);
            let apart = expandable.map(|(&other, _)| other.abs_diff(begin));
            self.apart = apart.chain(self.apart).filter(|&apart| apart > 0).min();
            self.widest = self.widest.max(size);
        }
        if let Some(before) = self.live.insert(begin, at) {
            self.all[before].is_there = false;
        }
        at
    }

    fn grow(&mut self, at: AreaIndex, address: u64, size: u64) {
        let area = &mut self.all[at];
        area.end = area.end.max(address.saturating_add(size));
        area.mapped = area.mapped.saturating_add(size);
        self.widest = self.widest.max(area.bytes());
    }
}

impl Area {
    /// From its first address to the highest that ever was mapped.
    pub(super) fn bytes(&self) -> u64 {
        self.end - self.begin
    }

    fn may_be_of(&self, stream: StreamId, pool: PoolKey) -> bool {
        let nobody = MempoolId::default();
        let same_owner = self.pool.owner == pool.owner || self.pool.owner == nobody || pool.owner == nobody;
        self.is_expandable && self.stream == stream && self.pool.kind == pool.kind && same_owner
    }
}

/// Writes the private pools of segments into the entries that are of them and name none.
pub(super) fn name_owners(start: &DeviceState, entries: &mut [Entry], owners: &HashMap<AreaIndex, MempoolId>) {
    let mut areas = Areas::new(start);
    for (place, entry) in entries.iter_mut().enumerate() {
        let made = areas.follow(place, &entry.kind);
        let at = match entry.kind {
            EventKind::BlockAllocated { address, .. } => areas.at(address),
            _ => made,
        };
        let Some(owner) = at.and_then(|at| owners.get(&at)) else { continue };
        if let EventKind::SegmentAllocated { pool, .. }
        | EventKind::SegmentMapped { pool, .. }
        | EventKind::BlockAllocated { pool, .. } = &mut entry.kind
            && pool.owner == MempoolId::default()
        {
            pool.owner = *owner;
        }
    }
}
