//! What one device's allocator decided, in order, as a recording has it.

use std::collections::{BTreeMap, HashMap};

use vramscope_trace::{
    DeviceId, DeviceState, EventKind, FormatError, MempoolId, Pool as PoolKey, Recording, Replay, SiteId, StreamId,
};

use super::areas::{AreaIndex, Areas, name_owners};

/// The decisions of one device's allocator, and the memory state that they begin with.
#[derive(Clone, Debug)]
pub struct History {
    pub(super) device: DeviceId,
    /// Nothing where the recording began with an empty allocator.
    pub(super) start: DeviceState,
    pub(super) entries: Vec<Entry>,
    /// Frees that were completed later than at once: the place of the request, and of the completion.
    pub(super) late_frees: HashMap<usize, usize>,
    /// Places of the entries that made or mapped a segment of which nothing is left at the end.
    pub(super) short_lived: Vec<usize>,
    /// The segments.
    pub(super) areas: Areas,
    /// Bytes of memory of the device; 0 where the recording does not say.
    pub(super) total_bytes: u64,
    /// Whether frees were recorded when they were requested, which the oldest versions of PyTorch did not.
    pub(super) has_free_requests: bool,
    /// Whether a private pool is named anywhere.
    pub(super) has_private_pools: bool,
    /// The private pools that are named in blocks allocated: up to which place, on which stream.
    named_pools: Vec<(usize, StreamId, MempoolId)>,
    /// Whether the private pools of segments that are gone at the end are named too, and not only those that the end still shows.
    pub(super) names_lost_pools: bool,
    /// How many private pools have the names that `assumed_pool` gives, because the recording names none.
    pub(super) assumed_pools: usize,
    /// Where the state that it begins with is not certain: the place from which on it is, and the state there.
    pub(super) certain: Option<(usize, Box<DeviceState>)>,
    /// How often a block of the beginning was made larger.
    pub(super) tails: usize,
}

/// One decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The event's number in the recording.
    pub(super) number: u64,
    pub(super) kind: EventKind,
}

/// What becomes of one device's events: a history, or several where events are known to be missing between them.
struct Collector {
    device: DeviceId,
    total_bytes: u64,
    parts: Vec<(DeviceState, Vec<Entry>)>,
    /// How many more of the device's events come before its state is certain.
    uncertain_events: u64,
    /// The event and the place from which on the state is certain, where it was not from the beginning.
    certain_from: Option<(u64, usize)>,
}

impl History {
    /// The histories of a recording: one of each device, or several where events are missing in between; each of those begins with
    /// the first state known again.
    /// Pinned memory of the host has other rules than this pool's, and none is given for it.
    ///
    /// # Errors
    /// If a chunk cannot be read, which a [`Recording`] that took it in rules out.
    pub fn all_of(recording: &Recording) -> Result<Vec<Self>, FormatError> {
        let mut replay = Replay::new();
        let mut collectors = BTreeMap::new();
        let (first, end) = (recording.first_event(), recording.end_event());
        let begin = replay.seek(recording, first)?.clone();
        for device in recording.devices().filter(|&device| device != DeviceId::HOST) {
            let info = recording.info().devices.iter().find(|info| info.device == device.0);
            let start = begin.device(device).cloned().unwrap_or_default();
            let total_bytes = info.map_or(0, |info| info.total_bytes);
            let uncertain_events = info.map_or(0, |info| info.uncertain_events);
            let parts = vec![(start, Vec::new())];
            collectors.insert(device, Collector { device, total_bytes, parts, uncertain_events, certain_from: None });
        }
        let mut number = first;
        while number < end {
            match replay.event(recording, number)? {
                Some(event) if matches!(event.kind, EventKind::Gap { .. }) => {
                    let after = replay.seek(recording, number + 1)?.clone();
                    for (device, collector) in &mut collectors {
                        collector.parts.push((after.device(*device).cloned().unwrap_or_default(), Vec::new()));
                    }
                }
                Some(event) => {
                    if let Some(collector) = collectors.get_mut(&event.device) {
                        collector.take(Entry { number, kind: event.kind });
                    }
                }
                None => break,
            }
            number += 1;
        }
        let mut histories = Vec::new();
        for (device, collector) in collectors {
            let certain = match collector.certain_from {
                Some((event, place)) => {
                    let state = replay.seek(recording, event)?.device(device).cloned().unwrap_or_default();
                    Some((place, Box::new(state)))
                }
                None => None,
            };
            let first = histories.len();
            histories.extend(collector.histories());
            if let Some(history) = histories.get_mut(first) {
                history.certain = certain;
            }
        }
        Ok(histories)
    }

    /// The device's number.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// How many decisions there are.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Whether it begins with an empty allocator.
    #[must_use]
    pub fn starts_empty(&self) -> bool {
        self.start.segments().len() == 0
    }

    /// The same from where on the state is certain, where that is behind the place `at`.
    pub(super) fn where_certain(&self, at: usize) -> Option<Self> {
        let (place, state) = self.certain.as_ref().filter(|&&(place, _)| at < place)?;
        Some(Self::new(self.device, self.total_bytes, (**state).clone(), self.entries[*place..].to_vec()))
    }

    /// The same up to and with the `count`th block allocated, or all of it where there are fewer.
    #[must_use]
    pub fn first_allocations(&self, count: usize) -> Self {
        let is_allocation = |entry: &Entry| matches!(entry.kind, EventKind::BlockAllocated { .. });
        let places = self.entries.iter().enumerate().filter(|(_, entry)| is_allocation(entry));
        let end = places.take(count).last().map_or(0, |(place, _)| place + 1);
        let all = self.entries.iter().filter(|entry| is_allocation(entry)).count() < count;
        let entries = if all { self.entries.clone() } else { self.entries[..end].to_vec() };
        Self::new(self.device, self.total_bytes, self.start.clone(), entries)
    }

    /// How many blocks are allocated before the first request that fails.
    #[must_use]
    pub fn allocations_before_oom(&self) -> usize {
        let before = self.entries.iter().take_while(|entry| !matches!(entry.kind, EventKind::OutOfMemory { .. }));
        before.filter(|entry| matches!(entry.kind, EventKind::BlockAllocated { .. })).count()
    }

    fn new(device: DeviceId, total_bytes: u64, start: DeviceState, mut entries: Vec<Entry>) -> Self {
        let private = |pool: &PoolKey| pool.owner != MempoolId::default();
        let (areas, short_lived) = Areas::of(&start, &entries);
        let names_lost_pools = areas.all.iter().any(|area| !area.is_there && private(&area.pool));
        // Of an expandable segment the end may name some ranges, and not those that are gone; they are of the same pool.
        let expandable = areas.all.iter().enumerate().filter(|(_, area)| area.is_expandable && private(&area.pool));
        let owners: HashMap<AreaIndex, MempoolId> = expandable.map(|(at, area)| (at, area.pool.owner)).collect();
        if !owners.is_empty() {
            name_owners(&start, &mut entries, &owners);
        }
        let has_private_pools = start.segments().any(|segment| private(&segment.pool))
            || entries.iter().any(|entry| match &entry.kind {
                EventKind::SegmentAllocated { pool, .. }
                | EventKind::SegmentMapped { pool, .. }
                | EventKind::BlockAllocated { pool, .. } => private(pool),
                _ => false,
            });
        Self {
            device,
            late_frees: late_frees(&entries),
            short_lived,
            areas,
            assumed_pools: 0,
            certain: None,
            tails: 0,
            total_bytes,
            has_free_requests: entries.iter().any(|entry| matches!(entry.kind, EventKind::FreeRequested { .. })),
            has_private_pools,
            named_pools: named_pools(&entries),
            names_lost_pools,
            start,
            entries,
        }
    }
}

impl Collector {
    fn take(&mut self, entry: Entry) {
        let is_decision = !matches!(entry.kind, EventKind::MemorySample { .. } | EventKind::Mark { .. });
        if let (true, Some((_, entries))) = (is_decision, self.parts.last_mut()) {
            entries.push(entry);
        }
        if self.uncertain_events > 0 {
            self.uncertain_events -= 1;
            if let (0, [(_, entries)]) = (self.uncertain_events, self.parts.as_slice()) {
                self.certain_from = Some((entry.number + 1, entries.len()));
            }
        }
    }

    fn histories(self) -> impl Iterator<Item = History> {
        let Self { device, total_bytes, mut parts, .. } = self;
        if parts.len() > 1 {
            parts.retain(|(_, entries)| !entries.is_empty());
        }
        parts.into_iter().map(move |(start, entries)| History::new(device, total_bytes, start, entries))
    }
}

/// The address of a free that the entry tells of.
pub(super) fn freed_address(kind: &EventKind) -> Option<u64> {
    match *kind {
        EventKind::FreeRequested { address, .. } | EventKind::FreeCompleted { address, .. } => Some(address),
        _ => None,
    }
}

/// Where an entry came from.
pub(super) fn site_of(kind: &EventKind) -> SiteId {
    match *kind {
        EventKind::SegmentAllocated { site, .. }
        | EventKind::SegmentFreed { site, .. }
        | EventKind::SegmentMapped { site, .. }
        | EventKind::SegmentUnmapped { site, .. }
        | EventKind::BlockAllocated { site, .. }
        | EventKind::FreeRequested { site, .. }
        | EventKind::FreeCompleted { site, .. }
        | EventKind::OutOfMemory { site, .. } => site,
        EventKind::MemorySample { .. } | EventKind::Mark { .. } | EventKind::Gap { .. } => SiteId(0),
    }
}

fn late_frees(entries: &[Entry]) -> HashMap<usize, usize> {
    let mut pending: HashMap<u64, usize> = HashMap::new();
    let mut late = HashMap::new();
    for (place, entry) in entries.iter().enumerate() {
        match entry.kind {
            EventKind::FreeRequested { address, .. } => {
                let next = entries.get(place + 1).map(|next| next.kind);
                let at_once = matches!(next, Some(EventKind::FreeCompleted { address: freed, .. }) if freed == address);
                if !at_once {
                    pending.insert(address, place);
                    // Until it is seen to be completed it never is; each has a place of its own all the same.
                    late.insert(place, entries.len() + place);
                }
            }
            EventKind::FreeCompleted { address, .. } => {
                if let Some(request) = pending.remove(&address) {
                    late.insert(request, place);
                }
            }
            _ => {}
        }
    }
    late
}

fn named_pools(entries: &[Entry]) -> Vec<(usize, StreamId, MempoolId)> {
    let mut named: Vec<(usize, StreamId, MempoolId)> = Vec::new();
    for (place, entry) in entries.iter().enumerate() {
        if let EventKind::BlockAllocated { stream, pool, .. } = entry.kind
            && pool.owner != MempoolId::default()
        {
            // One after the other from the same pool follow from the first; the last is what is looked for.
            if let Some(last) = named.last_mut().filter(|last| (last.1, last.2) == (stream, pool.owner)) {
                last.0 = place;
            } else {
                named.push((place, stream, pool.owner));
            }
        }
    }
    named
}

impl History {
    /// The same with private pools for segments whose pool the recording does not name, `assumed_pools` of them.
    pub(super) fn with_owners(&self, owners: &HashMap<AreaIndex, MempoolId>, assumed_pools: usize) -> Self {
        let mut entries = self.entries.clone();
        name_owners(&self.start, &mut entries, owners);
        let named = Self::new(self.device, self.total_bytes, self.start.clone(), entries);
        Self { assumed_pools, names_lost_pools: true, ..named }
    }

    /// The private pool that requests on `stream` behind `place` ask next, of those that are named.
    pub(super) fn next_named_pool(&self, place: usize, stream: StreamId) -> Option<MempoolId> {
        let from = self.named_pools.partition_point(|&(last, ..)| last <= place);
        let next = self.named_pools[from..].iter().find(|&&(_, named_on, _)| named_on == stream);
        next.map(|&(_, _, owner)| owner)
    }

    /// How many addresses an expandable segment has whose pages are of `page_bytes`: no more than lie between two of them, and no fewer
    /// than one was seen to use. How many are left above the highest page decides which of two free blocks can grow further, so they
    /// should be as many as there were.
    pub(super) fn address_bytes(&self, page_bytes: u64) -> u64 {
        const UNLIMITED: u64 = 1 << 40;
        let &Areas { apart, widest, .. } = &self.areas;
        let room = apart.unwrap_or(UNLIMITED).min(UNLIMITED);
        (room / page_bytes.max(1) * page_bytes).max(widest)
    }
}
