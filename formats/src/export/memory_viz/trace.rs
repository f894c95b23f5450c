//! `device_traces`: a device's events as PyTorch's history lists them.
//!
//! An entry of a history says more than an event: a free repeats size and stream of its block. They come from the memory state.

use std::io;

use vramscope_trace::{
    Category, Definitions, DeviceState, Event, EventKind, MempoolId, Pool, SiteId, Stage, StreamId, StringId,
};

use super::notation::Notation;

/// The name of a mark that PyTorch makes itself, where a snapshot was taken.
const SNAPSHOT: &str = "snapshot";

/// What all entries of a trace have in common.
pub(super) struct Traces<'a> {
    pub(super) definitions: &'a Definitions,
    /// Microseconds since 1970 at time 0, or 0.
    pub(super) epoch_us: u64,
    /// Whether any site says what its memory is for. The page then expects it of every entry, `unknown` where nobody said.
    pub(super) has_categories: bool,
}

/// An entry before it is written.
struct Entry {
    action: &'static str,
    /// The address; of an out-of-memory, the bytes that the device had free.
    address: u64,
    size: u64,
    stream: StreamId,
    owner: Option<MempoolId>,
    site: SiteId,
}

impl Entry {
    /// `before` is the state that the event finds. `None` where a history has no entry for such an event.
    fn of(kind: &EventKind, before: Option<&DeviceState>) -> Option<Self> {
        let owner = |pool: Pool| Some(pool.owner);
        Some(match *kind {
            EventKind::BlockAllocated { address, requested, stream, pool, site, .. } => {
                Self { action: "alloc", address, size: requested, stream, owner: owner(pool), site }
            }
            EventKind::FreeRequested { address, site } => Self::of_block("free_requested", address, site, before),
            EventKind::FreeCompleted { address, site } => Self::of_block("free_completed", address, site, before),
            EventKind::SegmentAllocated { address, size, stream, pool, site } => {
                Self { action: "segment_alloc", address, size, stream, owner: owner(pool), site }
            }
            EventKind::SegmentMapped { address, size, stream, pool, site } => {
                Self { action: "segment_map", address, size, stream, owner: owner(pool), site }
            }
            EventKind::SegmentFreed { address, size, site } => {
                Self::of_segment("segment_free", address, size, site, before)
            }
            EventKind::SegmentUnmapped { address, size, site } => {
                Self::of_segment("segment_unmap", address, size, site, before)
            }
            EventKind::OutOfMemory { requested, device_free, stream, site } => {
                Self { action: "oom", address: device_free, size: requested, stream, owner: None, site }
            }
            EventKind::MemorySample { .. } | EventKind::Mark { .. } | EventKind::Gap { .. } => return None,
        })
    }

    fn of_block(action: &'static str, address: u64, site: SiteId, before: Option<&DeviceState>) -> Self {
        let block = before.and_then(|device| device.block_at(address)).filter(|block| block.address == address);
        Self {
            action,
            address,
            size: block.map_or(0, |block| block.requested),
            stream: block.map_or(StreamId(0), |block| block.stream),
            owner: block.map(|block| block.pool.owner),
            site,
        }
    }

    fn of_segment(action: &'static str, address: u64, size: u64, site: SiteId, before: Option<&DeviceState>) -> Self {
        let segment = before.and_then(|device| device.segment_at(address));
        let stream = segment.map_or(StreamId(0), |segment| segment.stream);
        Self { action, address, size, stream, owner: segment.map(|segment| segment.pool.owner), site }
    }
}

/// A stream as PyTorch writes it: an address, signed.
pub(super) fn stream_number(stream: StreamId) -> i64 {
    stream.0.cast_signed()
}

impl Traces<'_> {
    /// The time of an event in microseconds, since 1970 where the recording knows it.
    pub(super) fn time_us(&self, time_ns: u64) -> u64 {
        self.epoch_us.saturating_add(time_ns / 1000)
    }

    /// Writes the entry for an event, where there is one.
    pub(super) fn write(&self, out: &mut impl Notation, event: &Event, before: Option<&DeviceState>) -> io::Result<()> {
        if let EventKind::Mark { stage: Stage::Instant, name } = event.kind {
            return self.write_mark(out, event, name);
        }
        let Some(entry) = Entry::of(&event.kind, before) else { return Ok(()) };
        out.begin_dict()?;
        out.word_field("action", entry.action)?;
        let is_oom = matches!(event.kind, EventKind::OutOfMemory { .. });
        out.number_field(if is_oom { "device_free" } else { "addr" }, entry.address)?;
        out.number_field("size", entry.size)?;
        out.number_field("stream", stream_number(entry.stream))?;
        out.number_field("time_us", self.time_us(event.time_ns))?;
        let site = self.definitions.site(entry.site);
        out.word_field("compile_context", "N/A")?;
        out.key("user_metadata")?;
        out.string(self.definitions, site.scope)?;
        if let Some(MempoolId(first, second)) = entry.owner {
            out.key("pool_id")?;
            out.pair(first, second)?;
        }
        if self.has_categories {
            let is_block = matches!(event.kind, EventKind::BlockAllocated { .. });
            let category = if is_block { site.category } else { Category::Unknown };
            out.word_field("category", category.name())?;
        }
        if self.definitions.stack(site.stack).next().is_some() {
            out.key("frames")?;
            out.frames(self.definitions, site.stack)?;
        }
        out.end_dict()
    }

    /// Of the marks, a history has moments: of a snapshot, and since PyTorch 2.13 of words that the program gives an address.
    fn write_mark(&self, out: &mut impl Notation, event: &Event, name: StringId) -> io::Result<()> {
        let is_snapshot = self.definitions.string(name) == SNAPSHOT;
        out.begin_dict()?;
        out.word_field("action", if is_snapshot { SNAPSHOT } else { "annotate" })?;
        out.number_field("addr", 0)?;
        out.number_field("size", 0)?;
        out.number_field("stream", 0)?;
        out.number_field("time_us", self.time_us(event.time_ns))?;
        out.word_field("compile_context", "N/A")?;
        out.key("user_metadata")?;
        out.string(self.definitions, if is_snapshot { StringId(0) } else { name })?;
        out.end_dict()
    }
}
