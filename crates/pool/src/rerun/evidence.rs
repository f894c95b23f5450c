//! What a history says of which segments are of different pools, where it does not name them.
//!
//! A request is given the best fit of all free blocks of its pool, so one that fits better than the block that was given, or fits at all
//! where a new segment was made, is of another pool. A pool is emptied as a whole and in order, so a segment in which nothing was live and
//! that was not given back when others were, or not in their order, is of another pool than they.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use vramscope_trace::{EventKind, MempoolId, PoolKind, StreamId};

use super::areas::{AreaIndex, Areas};
use super::history::History;
use crate::settings::Settings;
use crate::size;

/// Two segments cannot both be of the default pool.
pub(super) const NOT_BOTH_DEFAULT: u8 = 1;
/// They cannot be of one private pool.
pub(super) const NOT_ONE_PRIVATE: u8 = 2;
const DIFFERENT: u8 = NOT_BOTH_DEFAULT | NOT_ONE_PRIVATE;

/// What is known of one segment.
#[derive(Clone, Debug, Default)]
pub(super) struct Fact {
    /// Its pool, where the recording says it.
    pub(super) owner: Option<MempoolId>,
    /// The segments that the requests of its stream got their blocks from, before it was made and behind the block that it was made for.
    pub(super) before: Option<AreaIndex>,
    pub(super) behind: Option<AreaIndex>,
    /// Segments of other pools, with how they can differ.
    pub(super) others: Vec<(AreaIndex, u8)>,
    /// The runs that it is part of.
    pub(super) runs: Vec<usize>,
}

/// What is known of all segments.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    /// By segment.
    pub(super) facts: Vec<Fact>,
    /// Segments that were given back one after the other with nothing in between. Those of one pool follow each other.
    pub(super) runs: Vec<Vec<AreaIndex>>,
}

/// A free block of an ordinary segment.
#[derive(Clone, Copy, Debug)]
struct Free {
    size: u64,
    area: AreaIndex,
    /// The place of the entry since which it is as it is.
    since: usize,
}

/// A range of memory given back.
#[derive(Clone, Copy, Debug)]
struct GivenBack {
    area: AreaIndex,
    address: u64,
    size: u64,
}

/// Follows a history's memory and gathers.
struct Gatherer<'h> {
    settings: &'h Settings,
    areas: Areas,
    /// By address.
    free: BTreeMap<u64, Free>,
    by_fit: HashMap<(StreamId, PoolKind), BTreeSet<(u64, u64)>>,
    /// Free blocks that are the whole of their segment.
    whole: BTreeSet<u64>,
    /// Sizes of blocks of ordinary segments.
    live: HashMap<u64, u64>,
    facts: Vec<Fact>,
    pairs: HashSet<(AreaIndex, AreaIndex, u8)>,
    runs: Vec<Vec<AreaIndex>>,
    last: HashMap<StreamId, AreaIndex>,
    /// New segments by stream, until it is known what the next request on it got.
    fresh: HashMap<StreamId, AreaIndex>,
}

impl Evidence {
    /// What `history` says.
    pub(super) fn of(history: &History, settings: &Settings) -> Self {
        let known = history.areas.all.iter().map(|area| {
            let is_named = area.pool.owner != MempoolId::default() || area.is_there || area.made.is_none();
            Fact { owner: is_named.then_some(area.pool.owner), ..Fact::default() }
        });
        let mut gatherer = Gatherer {
            settings,
            areas: Areas::new(&history.start),
            free: BTreeMap::new(),
            by_fit: HashMap::new(),
            whole: BTreeSet::new(),
            live: HashMap::new(),
            facts: known.collect(),
            pairs: HashSet::new(),
            runs: Vec::new(),
            last: HashMap::new(),
            fresh: HashMap::new(),
        };
        gatherer.begin(history);
        gatherer.follow(history);
        Self { facts: gatherer.facts, runs: gatherer.runs }
    }
}

/// Bounds on what one entry is compared with; what is left out is evidence less.
const MOST_BETTER: usize = 64;
const MOST_GIVEN_BACK: usize = 256;

impl Gatherer<'_> {
    fn begin(&mut self, history: &History) {
        for segment in history.start.segments().filter(|segment| !segment.expandable) {
            let Some(area) = self.areas.at(segment.address) else { continue };
            for extent in history.start.extents(segment) {
                match extent.block {
                    Some(_) => drop(self.live.insert(extent.address, extent.size)),
                    None => self.insert(extent.address, Free { size: extent.size, area, since: 0 }),
                }
            }
        }
    }

    fn follow(&mut self, history: &History) {
        // Where the calls before the present one ended, and whether blocks came free since.
        let (mut call, mut waited) = (0, false);
        let mut run: Vec<GivenBack> = Vec::new();
        for (place, entry) in history.entries.iter().enumerate() {
            let given_back = matches!(entry.kind, EventKind::SegmentFreed { .. } | EventKind::SegmentUnmapped { .. });
            if !given_back && !run.is_empty() {
                self.end_run(&std::mem::take(&mut run));
            }
            let area = self.areas.follow(place, &entry.kind);
            match entry.kind {
                EventKind::SegmentAllocated { address, .. } => {
                    if let Some(area) = area {
                        // As far as there are addresses.
                        let size = self.areas.all[area].bytes();
                        self.insert(address, Free { size, area, since: place });
                        self.make(area);
                    }
                }
                EventKind::SegmentMapped { .. } => {
                    if let Some(area) = area.filter(|&area| self.areas.all[area].made == Some(place)) {
                        self.make(area);
                        self.compare_expandable(area);
                    }
                }
                EventKind::SegmentFreed { address, size, .. } | EventKind::SegmentUnmapped { address, size, .. } => {
                    waited = true;
                    // What is given back at once is in the list until the run is over.
                    run.extend(area.map(|area| GivenBack { area, address, size }));
                }
                EventKind::BlockAllocated { address, size, requested, stream, .. } => {
                    self.allocate(address, size, requested, stream, call, waited);
                    (call, waited) = (place + 1, false);
                }
                EventKind::FreeCompleted { address, .. } => {
                    let before = place.checked_sub(1).map(|before| history.entries[before].kind);
                    let requested =
                        |kind| matches!(kind, EventKind::FreeRequested { address: at, .. } if at == address);
                    self.complete(address, place);
                    if !history.has_free_requests || before.is_some_and(requested) {
                        call = place + 1;
                    } else {
                        waited = true;
                    }
                }
                _ => (call, waited) = (place + 1, false),
            }
        }
        self.end_run(&run);
    }

    fn make(&mut self, area: AreaIndex) {
        let stream = self.areas.all[area].stream;
        self.facts[area].before = self.last.get(&stream).copied();
    }

    fn insert(&mut self, address: u64, free: Free) {
        let area = &self.areas.all[free.area];
        self.by_fit.entry((area.stream, area.pool.kind)).or_default().insert((free.size, address));
        if area.bytes() == free.size {
            self.whole.insert(address);
        }
        self.free.insert(address, free);
    }

    fn remove(&mut self, address: u64) -> Option<Free> {
        let free = self.free.remove(&address)?;
        self.whole.remove(&address);
        let area = &self.areas.all[free.area];
        if let Some(sizes) = self.by_fit.get_mut(&(area.stream, area.pool.kind)) {
            sizes.remove(&(free.size, address));
        }
        Some(free)
    }

    /// A block was taken. `call` is where its request can have begun at the earliest.
    fn allocate(&mut self, address: u64, size: u64, requested: u64, stream: StreamId, call: usize, waited: bool) {
        let Some(at) = self.areas.at(address) else { return };
        if let Some(fresh) = self.fresh.remove(&stream) {
            self.facts[fresh].behind = Some(at);
        }
        let made = self.areas.all[at].made;
        if made.is_some_and(|made| made >= call) {
            self.fresh.insert(stream, at);
        }
        self.last.insert(stream, at);
        let Some(&chosen) = self.free.get(&address) else { return };
        let is_new = made.is_some_and(|made| made >= call);
        // While it waited, what was free may have become more, which it did not see when it looked.
        let seen_until = if waited { call.saturating_sub(1) } else { usize::MAX };
        let wanted = size::recorded_block_size(self.settings, requested);
        self.compare_better(at, (chosen.size, address), is_new, wanted, seen_until);
        self.remove(address);
        // A history that contradicts itself may have more allocated than was free.
        let size = size.min(chosen.size);
        if size < chosen.size {
            self.insert(address + size, Free { size: chosen.size - size, ..chosen });
        }
        self.live.insert(address, size);
    }

    /// Free blocks that the request would rather have been given are of other pools.
    fn compare_better(&mut self, at: AreaIndex, chosen: (u64, u64), is_new: bool, size: u64, seen_until: usize) {
        let area = &self.areas.all[at];
        let Some(sizes) = self.by_fit.get(&(area.stream, area.pool.kind)) else { return };
        let bound = if is_new { (u64::MAX, u64::MAX) } else { chosen };
        if (size, 0) > bound {
            return;
        }
        let slack = self.settings.max_non_split_rounding.unwrap_or(self.settings.large_segment_size);
        let is_refused = |found: u64| {
            let too_large = |max| (size < max && found >= max) || (size >= max && found >= size.saturating_add(slack));
            is_new && self.settings.max_split_size.is_some_and(too_large)
        };
        let better = sizes.range((size, 0)..bound).take(MOST_BETTER).filter_map(|&(found, address)| {
            let free = self.free.get(&address)?;
            (free.area != at && free.since < seen_until && !is_refused(found)).then_some(free.area)
        });
        let better: Vec<AreaIndex> = better.collect();
        better.into_iter().for_each(|other| self.differ(at, other, DIFFERENT));
    }

    /// A pool has one expandable segment for each stream and size class, as long as there are addresses in it.
    fn compare_expandable(&mut self, at: AreaIndex) {
        let area = self.areas.all[at];
        let is_same = |other: &&AreaIndex| {
            let other = &self.areas.all[**other];
            other.is_expandable && (other.stream, other.pool.kind) == (area.stream, area.pool.kind)
        };
        let others: Vec<AreaIndex> = self.areas.there().filter(|other| other != &at).collect();
        let others: Vec<AreaIndex> = others.iter().filter(is_same).copied().collect();
        others.into_iter().for_each(|other| self.differ(at, other, DIFFERENT));
    }

    fn differ(&mut self, one: AreaIndex, other: AreaIndex, how: u8) {
        let is_known = |at: AreaIndex| self.facts[at].owner.is_some();
        if one == other || (is_known(one) && is_known(other)) {
            return;
        }
        if self.pairs.insert((one.min(other), one.max(other), how)) {
            self.facts[one].others.push((other, how));
            self.facts[other].others.push((one, how));
        }
    }

    fn complete(&mut self, address: u64, place: usize) {
        let Some(mut size) = self.live.remove(&address) else { return };
        let Some(area) = self.areas.at(address) else { return };
        let mut begin = address;
        let is_same = |free: &Free| free.area == area;
        if let Some((&below, &free)) = self.free.range(..address).next_back()
            && is_same(&free)
            && below + free.size == address
        {
            self.remove(below);
            (begin, size) = (below, size + free.size);
        }
        if let Some(free) = self.free.get(&(begin + size)).copied().filter(is_same) {
            self.remove(begin + size);
            size += free.size;
        }
        self.insert(begin, Free { size, area, since: place });
    }

    /// Segments were given back and something else comes now.
    fn end_run(&mut self, run: &[GivenBack]) {
        for given in run {
            self.remove(given.address);
        }
        // For its age, or as just large enough, only a part of what a pool has free is given back.
        if self.settings.max_split_size.is_some() || self.settings.garbage_collection_threshold > 0.0 {
            return;
        }
        let mut order: Vec<AreaIndex> = run.iter().map(|given| given.area).collect();
        order.dedup();
        for (place, one) in run.iter().enumerate().take(MOST_GIVEN_BACK) {
            for other in &run[place + 1..run.len().min(place + MOST_GIVEN_BACK)] {
                let (default, private) = (self.is_in_order(one, other, true), self.is_in_order(one, other, false));
                let how = (u8::from(!default) * NOT_BOTH_DEFAULT) | (u8::from(!private) * NOT_ONE_PRIVATE);
                if how != 0 {
                    self.differ(one.area, other.area, how);
                }
            }
        }
        let kept: Vec<AreaIndex> = self.whole.iter().take(MOST_GIVEN_BACK).map(|it| self.free[it].area).collect();
        for &one in order.iter().take(MOST_GIVEN_BACK) {
            kept.iter().for_each(|&other| self.differ(one, other, DIFFERENT));
        }
        for &area in &order {
            self.facts[area].runs.push(self.runs.len());
        }
        self.runs.push(order);
    }

    /// Whether a pool with both would give `one` back before `other`.
    fn is_in_order(&self, one: &GivenBack, other: &GivenBack, is_default: bool) -> bool {
        let key = |given: &GivenBack| {
            let area = &self.areas.all[given.area];
            let is_second = (area.pool.kind == PoolKind::Small) == is_default;
            (is_second, area.is_expandable, area.stream, given.size, given.address)
        };
        // What an expandable segment gives back is a part of its free block, and the block is what counts.
        let [one, other] = [one, other].map(key);
        if one.1 && other.1 { (one.0, one.2) <= (other.0, other.2) } else { one < other }
    }
}
