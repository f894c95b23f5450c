//! The memory of a device by pool and stream at one moment.

use std::collections::BTreeMap;

use vramscope_pool::Settings;
use vramscope_pool::size::SMALL_SEGMENT_BYTES;
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{
    DeviceId, DeviceState, FreeSpace, MemoryState, Metrics, PoolKey, PoolKind, Segment, StreamId, metrics_by_group,
};

/// The memory of one or more pools and streams of a device at one moment.
///
/// `reserved_bytes` = `allocated_bytes` + `pending_bytes` + `free.total` for a consistent history,
/// and `free.total` = `releasable_bytes` + `stuck_bytes` always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Number of segments; each contiguous mapped range of an expandable segment counts as one.
    pub segments: u64,
    /// Bytes of all segments.
    pub reserved_bytes: u64,
    /// Bytes of allocated blocks.
    pub allocated_bytes: u64,
    /// Bytes of blocks that are pending free.
    pub pending_bytes: u64,
    /// Bytes that the program requested for the live blocks.
    pub requested_bytes: u64,
    /// Number of live blocks: allocated or pending free.
    pub blocks: u64,
    /// Free blocks: number, bytes, and the largest.
    pub free: FreeSpace,
    /// Free bytes in whole free segments and in whole free pages of expandable segments.
    pub releasable_bytes: u64,
    /// Free bytes that share a segment, or a page of an expandable segment, with a live block.
    pub stuck_bytes: u64,
}

impl PoolUsage {
    /// Returns the external fragmentation of these pools, from 0 to 1.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        self.free.fragmentation()
    }

    /// Adds the memory of other pools and streams of the device.
    fn add(&mut self, other: &Self) {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.segments, other.segments);
        add(&mut self.reserved_bytes, other.reserved_bytes);
        add(&mut self.allocated_bytes, other.allocated_bytes);
        add(&mut self.pending_bytes, other.pending_bytes);
        add(&mut self.requested_bytes, other.requested_bytes);
        add(&mut self.blocks, other.blocks);
        add(&mut self.free.total, other.free.total);
        add(&mut self.free.blocks, other.free.blocks);
        self.free.largest = self.free.largest.max(other.free.largest);
        add(&mut self.releasable_bytes, other.releasable_bytes);
        add(&mut self.stuck_bytes, other.stuck_bytes);
    }

    /// Creates the usage of pools with these metrics and number of live blocks.
    /// `partial_page_bytes` are the free bytes in pages of expandable segments that also contain
    /// live blocks.
    fn new(metrics: &Metrics, blocks: u64, partial_page_bytes: u64) -> Self {
        let stuck_bytes = metrics.inactive_split_bytes.saturating_add(partial_page_bytes).min(metrics.free.total);
        let counters = metrics.counters;
        Self {
            segments: metrics.segments,
            reserved_bytes: counters.reserved,
            allocated_bytes: counters.allocated,
            pending_bytes: counters.active.saturating_sub(counters.allocated),
            requested_bytes: counters.requested,
            blocks,
            free: metrics.free,
            releasable_bytes: metrics.free.total - stuck_bytes,
            stuck_bytes,
        }
    }
}

impl<'a> std::iter::Sum<&'a PoolUsage> for PoolUsage {
    fn sum<I: Iterator<Item = &'a PoolUsage>>(usages: I) -> Self {
        usages.fold(Self::default(), |mut sum, usage| {
            sum.add(usage);
            sum
        })
    }
}

/// The memory of one pool and stream of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRow {
    /// Size class and owner of the pool.
    pub pool: PoolKey,
    /// The stream whose requests it serves.
    pub stream: StreamId,
    /// Its memory.
    pub usage: PoolUsage,
}

/// Returns the bytes of a free range of a segment that are in pages with live blocks, if the
/// segment is or were expandable.
///
/// The mapped range `segment` begins at a page, because memory is mapped in whole pages. If its
/// size is no whole number of the settings' pages, the pages are assumed to be 2 MiB.
pub(crate) fn partial_page_bytes(settings: &Settings, segment: &Segment, address: u64, size: u64) -> u64 {
    let [head, _, tail] = page_parts(settings, segment, address, size);
    head + tail
}

/// Returns the sizes of the stuck, releasable and again stuck part of a free range of a segment, in
/// this order of addresses. They add up to `size`.
#[must_use]
pub fn free_parts(settings: &Settings, segment: &Segment, address: u64, size: u64) -> [u64; 3] {
    match segment.expandable {
        true => page_parts(settings, segment, address, size),
        false if size < segment.size => [size, 0, 0],
        false => [0, size, 0],
    }
}

/// Returns the bytes of a free range before its first whole page, in whole pages, and after them.
fn page_parts(settings: &Settings, segment: &Segment, address: u64, size: u64) -> [u64; 3] {
    let page_bytes = match segment.pool.kind {
        PoolKind::Small => SMALL_SEGMENT_BYTES,
        PoolKind::Large => settings.large_segment_size_bytes.max(1),
    };
    let page_bytes = if segment.size.is_multiple_of(page_bytes) { page_bytes } else { SMALL_SEGMENT_BYTES };
    let (start, end) = (address - segment.address, address - segment.address + size);
    let (first, last) = (start.next_multiple_of(page_bytes), end - end % page_bytes);
    if first >= last { [size, 0, 0] } else { [first - start, last - first, end - last] }
}

/// Returns the memory of a device by pool and stream, in the order of their keys.
///
/// The rows add up exactly to the device's counters. `settings` are the allocator's, for the page
/// size of expandable segments. The cost is linear in the number of segments and blocks.
#[must_use]
pub fn pool_rows(device: &DeviceState, settings: &Settings) -> Vec<PoolRow> {
    let mut partial: BTreeMap<(PoolKey, StreamId), u64> = BTreeMap::new();
    for segment in device.segments().filter(|segment| segment.expandable) {
        let sum = partial.entry((segment.pool, segment.stream)).or_default();
        for extent in device.extents(segment).filter(|extent| extent.block.is_none()) {
            *sum = sum.saturating_add(partial_page_bytes(settings, segment, extent.address, extent.size));
        }
    }
    let mut blocks: BTreeMap<(PoolKey, StreamId), u64> = BTreeMap::new();
    for block in device.blocks() {
        *blocks.entry((block.pool, block.stream)).or_default() += 1;
    }
    let of = |map: &BTreeMap<(PoolKey, StreamId), u64>, key| map.get(&key).copied().unwrap_or(0);
    metrics_by_group(device)
        .into_iter()
        .map(|(key, metrics)| {
            let usage = PoolUsage::new(&metrics, of(&blocks, key), of(&partial, key));
            PoolRow { pool: key.0, stream: key.1, usage }
        })
        .collect()
}

/// The free blocks of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeMemory {
    /// Number of the free blocks, their bytes, and the largest size.
    pub space: FreeSpace,
    /// Free bytes that the allocator cannot release, because blocks in use share a segment or a
    /// page with them.
    pub stuck_bytes: u64,
}

/// Returns the free blocks of a device: the fields of [`device_usage`] about free memory, in a
/// third of the time. `settings` are the allocator's, as for [`pool_rows`].
#[must_use]
pub fn free_memory(device: &DeviceState, settings: &Settings) -> FreeMemory {
    let (mut free, mut stuck_bytes) = (FreeSpace::default(), 0u64);
    for segment in device.segments() {
        for extent in device.extents(segment).filter(|extent| extent.block.is_none()) {
            free.total = free.total.saturating_add(extent.size);
            free.largest = free.largest.max(extent.size);
            free.blocks += 1;
            let [head, _, tail] = free_parts(settings, segment, extent.address, extent.size);
            stuck_bytes = stuck_bytes.saturating_add(head + tail);
        }
    }
    FreeMemory { space: free, stuck_bytes }
}

/// Returns the memory of all pools and streams of a device together.
#[must_use]
pub fn device_usage(device: &DeviceState, settings: &Settings) -> PoolUsage {
    pool_rows(device, settings).iter().map(|row| &row.usage).sum()
}

/// Returns the bytes that each device could return to the driver, most first.
///
/// Private pools count too, although `empty_cache` keeps private pools that are in use.
#[must_use]
pub fn releasable_by_device(state: &MemoryState, settings: &Settings) -> Vec<(DeviceId, u64)> {
    let devices = state.devices().map(|(id, device)| (id, device_usage(device, settings).releasable_bytes));
    let mut devices: Vec<_> = devices.collect();
    sort_by_key(&mut devices, |&(id, bytes)| (std::cmp::Reverse(bytes), id));
    devices
}
