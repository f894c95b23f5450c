//! PyTorch's statistics, followed event by event.

use std::collections::HashMap;

use vramscope_pool::{Stat, StatBySize, Stats};
use vramscope_trace::{DeviceState, EventKind, Metrics, PoolKind};

use super::free_tracker::{FreeTracker, SplitChange};

/// A live block.
#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    size: u64,
    requested: u64,
    kind: PoolKind,
    /// Whether the program has freed it.
    is_freed: bool,
}

/// The statistics of a device from its first allocation on.
#[derive(Clone, Debug)]
pub(super) struct Totals {
    pub(super) stats: Stats,
    blocks: HashMap<u64, LiveBlock>,
    free: FreeTracker,
}

/// Adds `amount` to a value and to its sum of increases.
fn increase_stat(stat: &mut Stat, amount: u64) {
    stat.current = stat.current.saturating_add(amount);
    stat.allocated = stat.allocated.saturating_add(amount);
    stat.peak = stat.peak.max(stat.current);
}

/// Subtracts `amount` from a value and adds it to its sum of decreases.
fn decrease_stat(stat: &mut Stat, amount: u64) {
    stat.current = stat.current.saturating_sub(amount);
    stat.freed = stat.freed.saturating_add(amount);
}

/// Returns the part of `stat` for a size class.
fn of_class(stat: &mut StatBySize, kind: PoolKind) -> &mut Stat {
    match kind {
        PoolKind::Small => &mut stat.small_pool,
        PoolKind::Large => &mut stat.large_pool,
    }
}

/// Adds `amount` to a statistic, in its size class and in all.
fn increase(stat: &mut StatBySize, kind: PoolKind, amount: u64) {
    increase_stat(&mut stat.all, amount);
    increase_stat(of_class(stat, kind), amount);
}

/// Subtracts `amount` from a statistic, in its size class and in all.
fn decrease(stat: &mut StatBySize, kind: PoolKind, amount: u64) {
    decrease_stat(&mut stat.all, amount);
    decrease_stat(of_class(stat, kind), amount);
}

/// Changes a statistic by `added` − `removed` in one step, as PyTorch does, in its size class and
/// in all.
fn replace(stat: &mut StatBySize, kind: PoolKind, removed: u64, added: u64) {
    if added > removed {
        increase(stat, kind, added - removed);
    } else {
        decrease(stat, kind, removed - added);
    }
}

impl Totals {
    /// Creates the statistics of a device without memory. `max_split_bytes` is the setting
    /// `max_split_size`; blocks and segments of that size are oversize.
    pub(super) fn new(max_split_bytes: Option<u64>) -> Self {
        let stats = Stats { max_split_size: max_split_bytes, ..Stats::default() };
        Self { stats, blocks: HashMap::new(), free: FreeTracker::default() }
    }

    /// Returns true if blocks or segments of `size` bytes are oversize.
    fn is_oversize(&self, size: u64) -> bool {
        self.stats.max_split_size.is_some_and(|max| size >= max)
    }

    /// Counts the change of inactive split blocks.
    fn count_splits(&mut self, kind: PoolKind, change: SplitChange) {
        replace(&mut self.stats.inactive_split, kind, change.removed, change.added);
        replace(&mut self.stats.inactive_split_bytes, kind, change.removed_bytes, change.added_bytes);
    }

    /// Counts that the program freed a block.
    fn count_free_request(&mut self, block: LiveBlock) {
        decrease(&mut self.stats.allocation, block.kind, 1);
        decrease(&mut self.stats.allocated_bytes, block.kind, block.size);
        if self.is_oversize(block.size) {
            decrease_stat(&mut self.stats.oversize_allocations, 1);
        }
    }

    /// Counts the device's next event. Returns `None` if it contradicts the events before it; the
    /// statistics are then no longer valid.
    pub(super) fn event(&mut self, event: &EventKind) -> Option<()> {
        match *event {
            EventKind::SegmentAllocated { address, size, pool, .. } => {
                self.free.insert_segment(address, size, pool.kind, false)?;
                increase(&mut self.stats.segment, pool.kind, 1);
                increase(&mut self.stats.reserved_bytes, pool.kind, size);
                if self.is_oversize(size) {
                    increase_stat(&mut self.stats.oversize_segments, 1);
                }
                self.stats.num_device_alloc += 1;
            }
            EventKind::SegmentMapped { address, size, pool, .. } => {
                self.free.insert_segment(address, size, pool.kind, true)?;
                increase(&mut self.stats.reserved_bytes, pool.kind, size);
                self.stats.num_device_alloc += 1;
            }
            EventKind::SegmentFreed { address, size, .. } => {
                let kind = self.free.remove_segment(address, size)?;
                decrease(&mut self.stats.segment, kind, 1);
                decrease(&mut self.stats.reserved_bytes, kind, size);
                if self.is_oversize(size) {
                    decrease_stat(&mut self.stats.oversize_segments, 1);
                }
                self.stats.num_device_free += 1;
            }
            EventKind::SegmentUnmapped { address, size, .. } => {
                let kind = self.free.unmap(address, size)?;
                decrease(&mut self.stats.reserved_bytes, kind, size);
                self.stats.num_device_free += 1;
            }
            EventKind::BlockAllocated { address, size, requested, pool, .. } => {
                let change = self.free.allocate(address, size)?;
                let kind = pool.kind;
                self.count_splits(kind, change);
                let block = LiveBlock { size, requested, kind, is_freed: false };
                if self.blocks.insert(address, block).is_some() {
                    return None;
                }
                increase(&mut self.stats.allocation, kind, 1);
                increase(&mut self.stats.active, kind, 1);
                increase(&mut self.stats.allocated_bytes, kind, size);
                increase(&mut self.stats.active_bytes, kind, size);
                increase(&mut self.stats.requested_bytes, kind, requested);
                if self.is_oversize(size) {
                    increase_stat(&mut self.stats.oversize_allocations, 1);
                }
            }
            EventKind::FreeRequested { address, .. } => {
                let block = self.blocks.get_mut(&address).filter(|block| !block.is_freed)?;
                block.is_freed = true;
                let block = *block;
                self.count_free_request(block);
            }
            EventKind::FreeCompleted { address, .. } => {
                let block = self.blocks.remove(&address)?;
                if !block.is_freed {
                    self.count_free_request(block);
                }
                let change = self.free.release(address, block.size)?;
                self.count_splits(block.kind, change);
                decrease(&mut self.stats.active, block.kind, 1);
                decrease(&mut self.stats.active_bytes, block.kind, block.size);
                decrease(&mut self.stats.requested_bytes, block.kind, block.requested);
            }
            EventKind::OutOfMemory { .. } => self.stats.num_ooms += 1,
            EventKind::Gap { .. } => return None,
            EventKind::MemorySample { .. } | EventKind::Mark { .. } => {}
        }
        Some(())
    }
}

/// Returns the statistics of a memory state: current values from the state, peaks and sums of 0.
pub(super) fn current_stats(device: &DeviceState, max_split_bytes: Option<u64>) -> Stats {
    let mut stats = Stats { max_split_size: max_split_bytes, ..Stats::default() };
    let current = |stat: &mut StatBySize, kind: PoolKind, amount: u64| {
        stat.all.current = stat.all.current.saturating_add(amount);
        let class = of_class(stat, kind);
        class.current = class.current.saturating_add(amount);
    };
    let is_oversize = |size: u64| max_split_bytes.is_some_and(|max| size >= max);
    for kind in [PoolKind::Small, PoolKind::Large] {
        let metrics = Metrics::at(device, |pool, _| pool.kind == kind);
        current(&mut stats.allocated_bytes, kind, metrics.counters.allocated);
        current(&mut stats.active_bytes, kind, metrics.counters.active);
        current(&mut stats.reserved_bytes, kind, metrics.counters.reserved);
        current(&mut stats.requested_bytes, kind, metrics.counters.requested);
        current(&mut stats.inactive_split, kind, metrics.inactive_split);
        current(&mut stats.inactive_split_bytes, kind, metrics.inactive_split_bytes);
    }
    for block in device.blocks() {
        current(&mut stats.active, block.pool.kind, 1);
        if !block.pending_free {
            current(&mut stats.allocation, block.pool.kind, 1);
            stats.oversize_allocations.current += u64::from(is_oversize(block.size));
        }
    }
    for segment in device.segments().filter(|segment| !segment.expandable) {
        current(&mut stats.segment, segment.pool.kind, 1);
        stats.oversize_segments.current += u64::from(is_oversize(segment.size));
    }
    stats.num_ooms = device.ooms();
    stats
}

/// Returns true if two sets of statistics have equal current values.
pub(super) fn have_same_current(one: &Stats, other: &Stats) -> bool {
    let by_size = |stats: &Stats| {
        [
            stats.allocation,
            stats.segment,
            stats.active,
            stats.inactive_split,
            stats.allocated_bytes,
            stats.reserved_bytes,
            stats.active_bytes,
            stats.inactive_split_bytes,
            stats.requested_bytes,
        ]
        .map(|stat| [stat.all.current, stat.small_pool.current, stat.large_pool.current])
    };
    by_size(one) == by_size(other)
}
