//! Converts the memory events of one device to events of a recording.

use vramscope_trace::{Block, DeviceState, EventKind, PoolKey, Segment, SiteId, StreamId};

use super::segments::{Segments, pool_of_size};
use super::trace::MemoryRow;
use super::used_addresses::UsedAddresses;
use crate::limits::{LimitExceeded, MemoryBudget};

/// Alignment, in bytes, of the addresses at which memory without a known address is shown.
const ELSEWHERE_ALIGNMENT: u64 = 1 << 40;
/// The stream of all events: a trace has none.
const STREAM: StreamId = StreamId(0);

/// The events and the memory of a device.
pub(super) struct DeviceConverter {
    /// The segments, if they were rebuilt.
    segments: Option<Segments>,
    /// Index of the next change of a rebuilt segment.
    next_change: usize,
    used: UsedAddresses,
    /// The first address of memory without a known address.
    elsewhere: u64,
    /// Reserved bytes without a known address.
    elsewhere_bytes: u64,
    /// Allocated bytes of blocks that the trace does not contain.
    unknown_bytes: u64,
    /// Bytes allocated after the last event.
    allocated: u64,
    /// Number of changes by other threads than those of the profiler.
    pub(super) unseen_changes: u64,
    /// Number of events that contradict the known blocks.
    pub(super) contradictions: u64,
}

/// The memory of a device before its first event.
#[derive(Debug, Default)]
pub(super) struct StartMemory {
    /// Bytes allocated.
    pub(super) allocated: u64,
    /// Blocks that were freed during the trace: address and size.
    pub(super) blocks: Vec<(u64, u64)>,
}

impl StartMemory {
    /// Finds the memory that existed before the first of a device's events.
    pub(super) fn new(rows: &[&MemoryRow]) -> Self {
        let Some(first) = rows.first() else { return Self::default() };
        let (mut seen, mut blocks) = (std::collections::HashSet::new(), Vec::new());
        for row in rows.iter().filter(|row| row.failed_bytes == 0) {
            if seen.insert(row.address) && row.bytes < 0 {
                blocks.push((row.address, row.bytes.unsigned_abs()));
            }
        }
        let freed: u64 = blocks.iter().map(|(_, size)| size).sum();
        let allocated =
            first.allocated.map_or(freed, |after| after.saturating_add_signed(first.bytes.saturating_neg()));
        Self { allocated, blocks }
    }

    /// Returns true if no memory was allocated.
    pub(super) fn is_empty(&self) -> bool {
        self.allocated == 0 && self.blocks.is_empty()
    }
}

/// The reserved bytes after an event; at least the allocated ones: ordinary memory of the host has
/// no pool.
fn reserved_after(row: &MemoryRow, allocated: u64) -> u64 {
    row.reserved.unwrap_or(0).max(allocated)
}

impl DeviceConverter {
    /// Creates the converter of a device whose segments were rebuilt.
    pub(super) fn with_segments(segments: Segments) -> Self {
        Self { segments: Some(segments), ..Self::empty() }
    }

    fn empty() -> Self {
        Self {
            segments: None,
            next_change: 0,
            used: UsedAddresses::default(),
            elsewhere: 0,
            elsewhere_bytes: 0,
            unknown_bytes: 0,
            allocated: 0,
            unseen_changes: 0,
            contradictions: 0,
        }
    }

    /// Creates the converter of a device without known segments.
    pub(super) fn without_segments(
        rows: &[&MemoryRow],
        start: &StartMemory,
        budget: &mut MemoryBudget,
    ) -> Result<Self, LimitExceeded> {
        let mut converter = Self::empty();
        for &(address, size) in &start.blocks {
            while converter.used.evict(address, address + size).is_some() {
                converter.contradictions += 1;
            }
            converter.used.allocate((address, address + size), budget, |_, _| {})?;
        }
        let end = rows.iter().map(|row| row.address + row.bytes.unsigned_abs()).max().unwrap_or(0);
        converter.elsewhere = (end / ELSEWHERE_ALIGNMENT + 1) * ELSEWHERE_ALIGNMENT;
        converter.allocated = start.allocated.max(converter.used.live_bytes());
        converter.unknown_bytes = converter.allocated - converter.used.live_bytes();
        let reserved = rows.first().map_or(0, |row| reserved_after(row, converter.allocated));
        converter.elsewhere_bytes = reserved.saturating_sub(converter.used.bytes()).max(converter.unknown_bytes);
        Ok(converter)
    }

    /// Adds the memory before the first event to a state. `unseen` is the site of memory that only
    /// the totals show.
    pub(super) fn fill_start(&self, state: &mut DeviceState, unseen: SiteId) {
        let segment = |address, size| Segment {
            address,
            size,
            stream: STREAM,
            pool: PoolKey::default(),
            expandable: true,
            site: SiteId(0),
            since_event: 0,
        };
        let block = |address, size, site| Block {
            address,
            size,
            requested: size,
            stream: STREAM,
            pool: pool_of_size(size),
            site,
            pending_free: false,
            since_event: 0,
            since_ns: 0,
        };
        for (start, end) in self.used.ranges() {
            state.insert_segment(segment(start, end - start));
            if let Some(size) = self.used.live_block(start) {
                state.insert_block(block(start, size, SiteId(0)));
            }
        }
        if self.elsewhere_bytes > 0 {
            state.insert_segment(segment(self.elsewhere, self.elsewhere_bytes));
        }
        if self.unknown_bytes > 0 {
            state.insert_block(block(self.elsewhere, self.unknown_bytes, unseen));
        }
    }

    /// Appends the events of a memory event, the one with this index of the device, to `out`.
    /// `unseen` is the site of changes that the profiler did not follow.
    pub(super) fn convert(
        &mut self,
        (index, row): (usize, &MemoryRow),
        (site, unseen): (SiteId, SiteId),
        budget: &mut MemoryBudget,
        out: &mut Vec<EventKind>,
    ) -> Result<(), LimitExceeded> {
        if row.failed_bytes > 0 {
            // How much the driver has free is not in the trace.
            let (requested, device_free, stream) = (row.failed_bytes, 0, STREAM);
            out.push(EventKind::OutOfMemory { requested, device_free, stream, site });
            return Ok(());
        }
        let Some(segments) = &self.segments else {
            return self.convert_without_segments(row, (site, unseen), budget, out);
        };
        while let Some((_, change)) = segments.changes.get(self.next_change).filter(|(at, _)| *at <= index) {
            let mut change = *change;
            if let Some(of_change) = change.site_mut() {
                *of_change = site;
            }
            out.push(change);
            self.next_change += 1;
        }
        let pool = segments.pools.get(index).copied().unwrap_or_default();
        let (address, size, stream) = (row.address, row.bytes.unsigned_abs(), STREAM);
        out.push(match row.bytes > 0 {
            true => EventKind::BlockAllocated { address, size, requested: size, stream, pool, site },
            false => EventKind::FreeCompleted { address, site },
        });
        Ok(())
    }

    fn convert_without_segments(
        &mut self,
        row: &MemoryRow,
        (site, unseen): (SiteId, SiteId),
        budget: &mut MemoryBudget,
        out: &mut Vec<EventKind>,
    ) -> Result<(), LimitExceeded> {
        let (address, size) = (row.address, row.bytes.unsigned_abs());
        let pool = PoolKey::default();
        let segment = |address, size, site| EventKind::SegmentMapped { address, size, stream: STREAM, pool, site };
        let expected = self.allocated.saturating_add_signed(row.bytes);
        self.allocated = row.allocated.unwrap_or(expected);
        let mut mapped = Vec::new();
        if row.bytes > 0 {
            while let Some(below) = self.used.evict(address, address + size) {
                self.contradictions += 1;
                out.push(EventKind::FreeCompleted { address: below, site: unseen });
            }
            self.used.allocate((address, address + size), budget, |from, to| mapped.push((from, to - from)))?;
        } else if self.used.free(address).is_some() {
            out.push(EventKind::FreeCompleted { address, site });
        }
        let unknown_bytes = self.allocated.saturating_sub(self.used.live_bytes());
        if self.allocated != expected {
            self.unseen_changes += 1;
        }
        if self.used.live_bytes() > self.allocated {
            self.contradictions += 1;
        }
        let reserved = reserved_after(row, self.allocated);
        let mut excess = self.used.bytes().saturating_add(unknown_bytes).saturating_sub(reserved);
        let mut unmapped = Vec::new();
        while excess > 0
            && let Some((from, to)) = self.used.shrink(excess)
        {
            excess -= to - from;
            unmapped.push((from, to - from));
        }
        let elsewhere_bytes = reserved.saturating_sub(self.used.bytes()).max(unknown_bytes);
        let resize_unknown = |out: &mut Vec<EventKind>, before: u64| {
            let (address, size, pool) = (self.elsewhere, unknown_bytes, pool_of_size(unknown_bytes));
            if before > 0 {
                out.push(EventKind::FreeCompleted { address, site: unseen });
            }
            if size > 0 {
                let (requested, stream) = (size, STREAM);
                out.push(EventKind::BlockAllocated { address, size, requested, stream, pool, site: unseen });
            }
        };
        // In this order, neither allocated nor reserved bytes exceed both those before and after.
        if unknown_bytes < self.unknown_bytes {
            resize_unknown(out, self.unknown_bytes);
        }
        out.extend(unmapped.into_iter().map(|(address, size)| EventKind::SegmentUnmapped { address, size, site }));
        let (before, after) = (self.elsewhere + self.elsewhere_bytes, self.elsewhere + elsewhere_bytes);
        if after < before {
            out.push(EventKind::SegmentUnmapped { address: after, size: before - after, site });
        }
        out.extend(mapped.into_iter().map(|(address, size)| segment(address, size, site)));
        if after > before {
            out.push(segment(before, after - before, site));
        }
        if unknown_bytes > self.unknown_bytes {
            resize_unknown(out, self.unknown_bytes);
        }
        if row.bytes > 0 {
            let (requested, stream, pool) = (size, STREAM, pool_of_size(size));
            out.push(EventKind::BlockAllocated { address, size, requested, stream, pool, site });
        }
        (self.unknown_bytes, self.elsewhere_bytes) = (unknown_bytes, elsewhere_bytes);
        Ok(())
    }
}
