//! Writes `device_traces`: a device's events as PyTorch's history lists them.
//!
//! An entry contains more fields than an event: the entry of a free has the size and stream of its
//! block, which come from the memory state.

use std::collections::HashMap;
use std::io;

use vramscope_trace::{
    AnnotationStage, Category, Definitions, DeviceId, DeviceState, Event, EventKind, MempoolId, PoolKey, SiteId,
    StackId, StreamId, StringId,
};

use super::snapshot_writer::SnapshotWriter;

/// The name of the mark, and of the history entry, that PyTorch records when a snapshot is taken.
const SNAPSHOT_MARK: &str = "snapshot";

/// Converts events to entries of PyTorch's history and writes them; one writer serves all devices.
pub(super) struct TraceWriter<'a> {
    pub(super) definitions: &'a Definitions,
    /// Time 0 in microseconds since 1970, or 0 if unknown.
    pub(super) epoch_us: u64,
    /// True if any site has a category. The memory_viz page then expects one in every entry.
    pub(super) has_categories: bool,
    /// The site of the last relabel of each relabeled allocation, by device and index of its event
    /// (from 0). The page shows one category for each allocation.
    pub(super) labels: HashMap<(DeviceId, u64), SiteId>,
}

/// One entry of PyTorch's history before it is written.
#[derive(Default)]
struct TraceEntry {
    action: &'static str,
    /// The address; the free bytes of the device for an out-of-memory entry.
    address: u64,
    size: u64,
    stream: StreamId,
    mempool: Option<MempoolId>,
    site: SiteId,
    /// The text of a note, which is written in place of the site's scope.
    note: Option<StringId>,
}

impl TraceEntry {
    /// Creates the entry for a free of the block at `address`. Its requested size, stream and pool
    /// come from `before`, the device's state before the event; they are 0 if the block is unknown.
    fn of_block(action: &'static str, address: u64, site: SiteId, before: Option<&DeviceState>) -> Self {
        let block = before.and_then(|device| device.block_at(address)).filter(|block| block.address == address);
        let (size, stream) = block.map_or_else(Default::default, |block| (block.requested, block.stream));
        Self { action, address, size, stream, mempool: block.map(|block| block.pool.owner), site, note: None }
    }

    /// Creates the entry for freeing or unmapping `size` bytes of a segment at `address`. Stream
    /// and pool come from `before`, the device's state before the event; they are 0 if the segment
    /// is unknown.
    fn of_segment(action: &'static str, address: u64, size: u64, site: SiteId, before: Option<&DeviceState>) -> Self {
        let segment = before.and_then(|device| device.segment_at(address));
        let stream = segment.map_or_else(Default::default, |segment| segment.stream);
        Self { action, address, size, stream, mempool: segment.map(|segment| segment.pool.owner), site, note: None }
    }
}

/// Returns a stream handle as the signed number that PyTorch writes.
pub(super) fn stream_number(stream: StreamId) -> i64 {
    stream.0.cast_signed()
}

impl TraceWriter<'_> {
    /// Returns the history entry for an event; `before` is the state of its device before it.
    /// `None` for begin and end marks, memory samples and gaps, which PyTorch's history does not
    /// have.
    fn entry(&self, kind: &EventKind, before: Option<&DeviceState>) -> Option<TraceEntry> {
        let note = None;
        let entry = |action, address, size, stream, pool: PoolKey, site| TraceEntry {
            action,
            address,
            size,
            stream,
            mempool: Some(pool.owner),
            site,
            note,
        };
        Some(match *kind {
            EventKind::BlockAllocated { address, requested, stream, pool, site, .. } => {
                entry("alloc", address, requested, stream, pool, site)
            }
            EventKind::SegmentAllocated { address, size, stream, pool, site } => {
                entry("segment_alloc", address, size, stream, pool, site)
            }
            EventKind::SegmentMapped { address, size, stream, pool, site } => {
                entry("segment_map", address, size, stream, pool, site)
            }
            EventKind::FreeRequested { address, site } => TraceEntry::of_block("free_requested", address, site, before),
            EventKind::FreeCompleted { address, site } => TraceEntry::of_block("free_completed", address, site, before),
            EventKind::SegmentFreed { address, size, site } => {
                TraceEntry::of_segment("segment_free", address, size, site, before)
            }
            EventKind::SegmentUnmapped { address, size, site } => {
                TraceEntry::of_segment("segment_unmap", address, size, site, before)
            }
            EventKind::OutOfMemory { requested, device_free, stream, site } => {
                TraceEntry { action: "oom", address: device_free, size: requested, stream, mempool: None, site, note }
            }
            EventKind::Mark { stage: AnnotationStage::Instant, name, address, site } => self.mark(name, address, site),
            EventKind::Mark { .. } | EventKind::MemorySample { .. } | EventKind::Gap { .. } => return None,
        })
    }

    /// Returns the history entry for a mark: `snapshot` if that is its name, otherwise a note
    /// (`annotate`, since PyTorch 2.13) about the block at `address`.
    fn mark(&self, name: StringId, address: u64, site: SiteId) -> TraceEntry {
        if self.definitions.string(name) == SNAPSHOT_MARK {
            TraceEntry { action: SNAPSHOT_MARK, address, site, ..TraceEntry::default() }
        } else {
            TraceEntry { action: "annotate", address, site, note: Some(name), ..TraceEntry::default() }
        }
    }

    /// Converts an event's time to microseconds since 1970, or since the recording's time 0 if its
    /// date is unknown.
    pub(super) fn time_us(&self, time_ns: u64) -> u64 {
        self.epoch_us.saturating_add(time_ns / 1000)
    }

    /// Writes the history entry for the event with index `index` (from 0); writes nothing for kinds
    /// of events that PyTorch's history does not have. `before` is the state of the event's device
    /// before it.
    pub(super) fn write(
        &self,
        out: &mut impl SnapshotWriter,
        event: &Event,
        index: u64,
        before: Option<&DeviceState>,
    ) -> io::Result<()> {
        let Some(entry) = self.entry(&event.kind, before) else { return Ok(()) };
        out.begin_dict()?;
        out.constant_field("action", entry.action)?;
        let is_oom = matches!(event.kind, EventKind::OutOfMemory { .. });
        out.number_field(if is_oom { "device_free" } else { "addr" }, entry.address)?;
        out.number_field("size", entry.size)?;
        out.number_field("stream", stream_number(entry.stream))?;
        out.number_field("time_us", self.time_us(event.time_ns))?;
        let site = self.definitions.site(entry.site);
        out.key("compile_context")?;
        if site.compile_context == StringId(0) {
            out.constant("N/A")?;
        } else {
            out.string(self.definitions, site.compile_context)?;
        }
        out.key("user_metadata")?;
        out.string(self.definitions, entry.note.unwrap_or(site.scope))?;
        if let Some(MempoolId(first, second)) = entry.mempool {
            out.key("pool_id")?;
            out.pair(first, second)?;
        }
        if self.has_categories {
            let is_block = matches!(event.kind, EventKind::BlockAllocated { .. });
            let label = self.labels.get(&(event.device, index)).map(|&label| self.definitions.site(label));
            let category = if is_block { label.unwrap_or(site).category } else { Category::Unknown };
            out.constant_field("category", category.name())?;
        }
        if site.stack != StackId(0) {
            out.key("frames")?;
            out.frames(self.definitions, site.stack)?;
        }
        out.end_dict()
    }
}
