//! A history: the decisions of one device's allocator, in recorded order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use vramscope_trace::{DeviceId, DeviceState, EventKind, FormatError, MempoolId, PoolKey, Recording, Replay, StreamId};

use super::entry::Entry;
use super::segment_tracker::{SegmentIndex, SegmentTracker, write_owners};
use crate::device::DeviceError;
use crate::settings::Settings;
use crate::size::{self, MAX_REQUEST_BYTES};

/// The error for a history whose memory state before the first event is not one that the allocator
/// can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the recording begins with an impossible memory state: {0}")]
pub struct StartStateError(#[source] pub(super) DeviceError);

/// The recorded events of one device's allocator (segments, blocks, frees and out of memory), and
/// the memory state before the first.
///
/// [`verify`](super::verify()) checks a history; [`Workload`](super::Workload) simulates its
/// requests under other settings.
#[derive(Clone, Debug)]
pub struct History {
    pub(super) device: DeviceId,
    /// Empty if the recording began with an empty allocator.
    pub(super) start: DeviceState,
    /// Shared by the clones of the history.
    pub(super) entries: Arc<Vec<Entry>>,
    /// Frees that were not completed at once, from the position of the request to that of the
    /// completion.
    pub(super) deferred_frees: HashMap<usize, usize>,
    /// Positions of the entries that allocated or mapped memory of segments that do not exist at
    /// the end. Sorted.
    pub(super) short_lived: Vec<usize>,
    /// All segments of the history.
    pub(super) tracker: SegmentTracker,
    /// The device's memory in bytes; 0 if the recording does not contain it.
    pub(super) total_bytes: u64,
    /// Whether requests of frees were recorded. The oldest versions of PyTorch recorded only
    /// completed frees.
    pub(super) has_free_requests: bool,
    /// Whether the recording contains the id of any private pool.
    pub(super) has_private_pools: bool,
    /// The recorded private pools of allocated blocks: the last position of consecutive requests,
    /// the stream, and the pool that all of them use.
    recorded_pools: Vec<(usize, StreamId, MempoolId)>,
    /// Whether the recording also contains the private pools of segments that do not exist at the
    /// end. A snapshot contains only the private pools of existing segments.
    pub(super) has_pools_of_freed_segments: bool,
    /// The number of private pools that were assumed because the recording lacks their ids.
    pub(super) assumed_private_pools: usize,
    /// If the start state is uncertain: the position from which on the state is certain, and that
    /// state.
    pub(super) certain_start: Option<(usize, Box<DeviceState>)>,
    /// How often a block of the start state was enlarged; see `start_blocks`.
    pub(super) start_corrections: usize,
    /// The peak of the bytes of live requests, once it is known; shared by the clones.
    pub(super) known_floor_bytes: Arc<OnceLock<u64>>,
}

/// Builds the histories of one device: one, or one for each part of the recording between gaps
/// (missing events).
struct HistoryBuilder {
    device: DeviceId,
    total_bytes: u64,
    parts: Vec<(DeviceState, Vec<Entry>)>,
    /// The number of further events of the device before its state is certain.
    uncertain_events: u64,
    /// The event and the position from which on the state is certain, if it was not from the start.
    certain_from: Option<(u64, usize)>,
}

impl History {
    /// Extracts the histories of all devices. A device has one history or, if events are missing,
    /// one for each part of the recording between these gaps; each begins with the memory state
    /// after a gap.
    ///
    /// Memory of the host is skipped, because its allocator has other rules, and devices whose
    /// segments are unknown: their requests cannot be told from what was there before.
    ///
    /// # Errors
    /// [`FormatError`] if a chunk cannot be decoded. This does not happen for a [`Recording`] that
    /// accepted all of its chunks.
    pub fn from_recording(recording: &Recording) -> Result<Vec<Self>, FormatError> {
        let mut replay = Replay::new();
        let mut builders = BTreeMap::new();
        let (first, end) = (recording.first_event(), recording.end_event());
        let start_state = replay.seek(recording, first)?.clone();
        for device in recording.devices().filter(|device| device.is_gpu()) {
            let info = recording.info().device(device);
            if info.is_some_and(|info| info.segments.is_unknown()) {
                continue;
            }
            let start = start_state.device(device).cloned().unwrap_or_default();
            let total_bytes = info.map_or(0, |info| info.total_bytes);
            let uncertain_events = info.map_or(0, |info| info.uncertain_events);
            let parts = vec![(start, Vec::new())];
            builders
                .insert(device, HistoryBuilder { device, total_bytes, parts, uncertain_events, certain_from: None });
        }
        let mut number = first;
        while number < end {
            let Some((chunk_first, events)) = replay.load_events(recording, number)? else { break };
            let mut gap = None;
            for event in events.iter().skip((number - chunk_first) as usize).take((end - number) as usize) {
                number += 1;
                if matches!(event.kind, EventKind::Gap { .. }) {
                    gap = Some(number);
                    break;
                }
                if let Some(builder) = builders.get_mut(&event.device) {
                    builder.add(Entry { number: number - 1, time_ns: event.time_ns, kind: event.kind });
                }
            }
            if let Some(after) = gap {
                let after = replay.seek(recording, after)?.clone();
                for (device, builder) in &mut builders {
                    builder.parts.push((after.device(*device).cloned().unwrap_or_default(), Vec::new()));
                }
            }
        }
        let mut histories = Vec::new();
        for (device, builder) in builders {
            let certain_start = match builder.certain_from {
                Some((event, position)) => {
                    let state = replay.seek(recording, event)?.device(device).cloned().unwrap_or_default();
                    Some((position, Box::new(state)))
                }
                None => None,
            };
            let first = histories.len();
            histories.extend(builder.into_histories());
            if let Some(history) = histories.get_mut(first) {
                history.certain_start = certain_start;
            }
        }
        Ok(histories)
    }

    /// Returns the number of the device whose allocator was recorded.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Returns the number of recorded allocator events: segments, blocks, frees and out of memory,
    /// but not marks and samples of device memory.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Returns true if the allocator had no segments before the first event, false if it had some.
    #[must_use]
    pub fn starts_empty(&self) -> bool {
        self.start.segments().len() == 0
    }

    /// Returns the part of the history from which on the memory state is certain; before it, the
    /// sizes of some blocks are unknown. `None` if that part begins no later than the entry with
    /// index `at`, or the state was certain from the start.
    pub(super) fn after_uncertain_start(&self, at: usize) -> Option<Self> {
        let (position, state) = self.certain_start.as_ref().filter(|&&(position, _)| at < position)?;
        Some(Self::new(self.device, self.total_bytes, (**state).clone(), self.entries[*position..].to_vec()))
    }

    /// Returns the history up to and including its `count`th allocated block, from 1; without
    /// entries for 0; all of the history if it has fewer blocks.
    #[must_use]
    pub fn up_to_allocation(&self, count: usize) -> Self {
        let is_allocation = |entry: &Entry| matches!(entry.kind, EventKind::BlockAllocated { .. });
        let positions = self.entries.iter().enumerate().filter(|(_, entry)| is_allocation(entry));
        let end = positions.take(count).last().map_or(0, |(position, _)| position + 1);
        let all = self.entries.iter().filter(|entry| is_allocation(entry)).count() < count;
        let entries = if all { self.entries.to_vec() } else { self.entries[..end].to_vec() };
        Self::new(self.device, self.total_bytes, self.start.clone(), entries)
    }

    /// Returns the number of blocks allocated before the first out of memory; all if no request
    /// failed.
    #[must_use]
    pub fn allocations_before_oom(&self) -> usize {
        let before = self.entries.iter().take_while(|entry| !matches!(entry.kind, EventKind::OutOfMemory { .. }));
        before.filter(|entry| matches!(entry.kind, EventKind::BlockAllocated { .. })).count()
    }

    fn new(device: DeviceId, total_bytes: u64, start: DeviceState, mut entries: Vec<Entry>) -> Self {
        let is_private = |pool: &PoolKey| pool.owner != MempoolId::default();
        let (tracker, short_lived) = SegmentTracker::from_entries(&start, &entries);
        let has_pools_of_freed_segments =
            tracker.segments.iter().any(|segment| !segment.is_live && is_private(&segment.pool));
        // A snapshot names the pool of an expandable segment only for the ranges that exist at the
        // end. The other ranges belong to this pool, too.
        let expandable = tracker
            .segments
            .iter()
            .enumerate()
            .filter(|(_, segment)| segment.is_expandable && is_private(&segment.pool));
        let owners: HashMap<SegmentIndex, MempoolId> =
            expandable.map(|(index, segment)| (index, segment.pool.owner)).collect();
        if !owners.is_empty() {
            write_owners(&start, &mut entries, &owners);
        }
        let has_private_pools = start.segments().any(|segment| is_private(&segment.pool))
            || entries.iter().any(|entry| match &entry.kind {
                EventKind::SegmentAllocated { pool, .. }
                | EventKind::SegmentMapped { pool, .. }
                | EventKind::BlockAllocated { pool, .. } => is_private(pool),
                _ => false,
            });
        Self {
            device,
            deferred_frees: deferred_frees(&entries),
            short_lived,
            tracker,
            assumed_private_pools: 0,
            certain_start: None,
            start_corrections: 0,
            known_floor_bytes: Arc::default(),
            total_bytes,
            has_free_requests: entries.iter().any(|entry| matches!(entry.kind, EventKind::FreeRequested { .. })),
            has_private_pools,
            recorded_pools: recorded_pools(&entries),
            has_pools_of_freed_segments,
            start,
            entries: Arc::new(entries),
        }
    }

    /// Returns the private pools whose blocks are not split: pools with a block that is larger than
    /// its request by more than `settings` let the pool leave unsplit.
    pub(super) fn no_split_pools(&self, settings: &Settings) -> Vec<MempoolId> {
        let is_whole = |pool: PoolKey, size: u64, requested: u64| {
            if pool.owner == MempoolId::default() || requested > MAX_REQUEST_BYTES {
                return false;
            }
            let rounded = size::block_size(settings, requested);
            let rest = size.saturating_sub(rounded);
            size::should_split(settings, pool.kind, false, rounded, rest)
        };
        let at_start = self.start.blocks().map(|block| (block.pool, block.size, block.requested));
        let allocated = self.entries.iter().filter_map(|entry| match entry.kind {
            EventKind::BlockAllocated { pool, size, requested, .. } => Some((pool, size, requested)),
            _ => None,
        });
        let whole = at_start.chain(allocated).filter(|&(pool, size, requested)| is_whole(pool, size, requested));
        let pools: BTreeSet<MempoolId> = whole.map(|(pool, ..)| pool.owner).collect();
        pools.into_iter().collect()
    }
}

impl HistoryBuilder {
    /// Appends an entry to the newest part of the recording (after the last gap), unless it is a
    /// memory sample or a mark, which the allocator does not decide.
    fn add(&mut self, entry: Entry) {
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

    /// Returns a history for each part of the recording between gaps; parts without entries are
    /// left out unless there is only one.
    fn into_histories(self) -> impl Iterator<Item = History> {
        let Self { device, total_bytes, mut parts, .. } = self;
        if parts.len() > 1 {
            parts.retain(|(_, entries)| !entries.is_empty());
        }
        parts.into_iter().map(move |(start, entries)| History::new(device, total_bytes, start, entries))
    }
}

/// Returns the frees that are not completed directly after their request, as a map from the index
/// of the entry that requests the free to that of the entry that completes it. A free that is never
/// completed gets a unique index past the last entry.
fn deferred_frees(entries: &[Entry]) -> HashMap<usize, usize> {
    let mut pending: HashMap<u64, usize> = HashMap::new();
    let mut deferred = HashMap::new();
    for (position, entry) in entries.iter().enumerate() {
        match entry.kind {
            EventKind::FreeRequested { address, .. } => {
                let next = entries.get(position + 1).map(|next| next.kind);
                let is_immediate =
                    matches!(next, Some(EventKind::FreeCompleted { address: freed, .. }) if freed == address);
                if !is_immediate {
                    pending.insert(address, position);
                    // Without a completion, the free stays pending; it gets a unique number past
                    // the last entry.
                    deferred.insert(position, entries.len() + position);
                }
            }
            EventKind::FreeCompleted { address, .. } => {
                if let Some(request) = pending.remove(&address) {
                    deferred.insert(request, position);
                }
            }
            _ => {}
        }
    }
    deferred
}

/// Lists the requests whose private pool is recorded: index of the entry, stream and private pool.
/// Of listed requests in a row with equal stream and pool, only the last is kept.
fn recorded_pools(entries: &[Entry]) -> Vec<(usize, StreamId, MempoolId)> {
    let mut named: Vec<(usize, StreamId, MempoolId)> = Vec::new();
    for (position, entry) in entries.iter().enumerate() {
        if let EventKind::BlockAllocated { stream, pool, .. } = entry.kind
            && pool.owner != MempoolId::default()
        {
            // Of consecutive requests to one pool, only the last position is needed.
            if let Some(last) = named.last_mut().filter(|last| (last.1, last.2) == (stream, pool.owner)) {
                last.0 = position;
            } else {
                named.push((position, stream, pool.owner));
            }
        }
    }
    named
}

impl History {
    /// Returns the history with the private pools `owners`, by segment, written into the entries
    /// that lack them. `assumed_private_pools` is how many of these pools occur nowhere in the
    /// recording.
    pub(super) fn with_owners(&self, owners: &HashMap<SegmentIndex, MempoolId>, assumed_private_pools: usize) -> Self {
        let mut entries = self.entries.to_vec();
        write_owners(&self.start, &mut entries, owners);
        let named = Self::new(self.device, self.total_bytes, self.start.clone(), entries);
        Self { assumed_private_pools, has_pools_of_freed_segments: true, ..named }
    }

    /// Returns the private pool of the first request on `stream` after the entry with index
    /// `position` whose private pool is recorded; `None` without one.
    pub(super) fn next_recorded_pool(&self, position: usize, stream: StreamId) -> Option<MempoolId> {
        let from = self.recorded_pools.partition_point(|&(last, ..)| last <= position);
        let next = self.recorded_pools[from..].iter().find(|&&(_, named_on, _)| named_on == stream);
        next.map(|&(_, _, owner)| owner)
    }

    /// Returns the smallest distance between the recorded expandable segments, and the largest
    /// range that one of them has mapped.
    pub(super) fn address_spacing(&self) -> AddressSpacing {
        let &SegmentTracker { min_spacing_bytes, max_span_bytes, .. } = &self.tracker;
        AddressSpacing { min_spacing_bytes, max_span_bytes }
    }
}

/// The spacing of a history's expandable segments, from which the size of their address ranges is
/// estimated. In bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressSpacing {
    /// The smallest distance between the first addresses of two expandable segments that existed at
    /// one time.
    min_spacing_bytes: Option<u64>,
    /// The largest range that one of them has mapped.
    max_span_bytes: u64,
}

impl AddressSpacing {
    /// Estimates the size, in bytes, of the address range of an expandable segment with pages of
    /// `page_bytes`: at most the distance between two of these segments, at least the largest range
    /// that one of them has mapped.
    ///
    /// The address space above the highest page decides which of two free blocks can grow further,
    /// so the estimate should be close.
    pub(super) fn address_bytes(&self, page_bytes: u64) -> u64 {
        /// The size assumed for an expandable segment's address range, in bytes, if the distance to
        /// another expandable segment does not show that it is smaller.
        const DEFAULT_BYTES: u64 = 1 << 40;
        let limit = self.min_spacing_bytes.unwrap_or(DEFAULT_BYTES).min(DEFAULT_BYTES);
        (limit / page_bytes.max(1) * page_bytes).max(self.max_span_bytes)
    }
}
