//! `device_traces`: a device's events as PyTorch's history lists them.
//!
//! An entry of a history says more than an event: a free repeats size and stream of its block. They come from the memory state.

use std::io;

use vramscope_trace::{
    Category, Definitions, DeviceState, Event, EventKind, MempoolId, Pool, SiteId, StackId, Stage, StreamId, StringId,
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
#[derive(Default)]
struct Entry {
    action: &'static str,
    /// The address; of an out-of-memory, the bytes that the device had free.
    address: u64,
    size: u64,
    stream: StreamId,
    owner: Option<MempoolId>,
    site: SiteId,
    /// The words of a note, which stand where other entries have the site's scope.
    words: Option<StringId>,
}

impl Entry {
    fn of_block(action: &'static str, address: u64, site: SiteId, before: Option<&DeviceState>) -> Self {
        let block = before.and_then(|device| device.block_at(address)).filter(|block| block.address == address);
        let (size, stream) = block.map_or_else(Default::default, |block| (block.requested, block.stream));
        Self { action, address, size, stream, owner: block.map(|block| block.pool.owner), site, words: None }
    }

    fn of_segment(action: &'static str, address: u64, size: u64, site: SiteId, before: Option<&DeviceState>) -> Self {
        let segment = before.and_then(|device| device.segment_at(address));
        let stream = segment.map_or_else(Default::default, |segment| segment.stream);
        Self { action, address, size, stream, owner: segment.map(|segment| segment.pool.owner), site, words: None }
    }
}

/// A stream as PyTorch writes it: an address, signed.
pub(super) fn stream_number(stream: StreamId) -> i64 {
    stream.0.cast_signed()
}

impl Traces<'_> {
    /// The entry for an event that finds the device as `before` says. `None` where a history has none.
    fn entry(&self, kind: &EventKind, before: Option<&DeviceState>) -> Option<Entry> {
        let words = None;
        let made = |action, address, size, stream, pool: Pool, site| Entry {
            action,
            address,
            size,
            stream,
            owner: Some(pool.owner),
            site,
            words,
        };
        Some(match *kind {
            EventKind::BlockAllocated { address, requested, stream, pool, site, .. } => {
                made("alloc", address, requested, stream, pool, site)
            }
            EventKind::SegmentAllocated { address, size, stream, pool, site } => {
                made("segment_alloc", address, size, stream, pool, site)
            }
            EventKind::SegmentMapped { address, size, stream, pool, site } => {
                made("segment_map", address, size, stream, pool, site)
            }
            EventKind::FreeRequested { address, site } => Entry::of_block("free_requested", address, site, before),
            EventKind::FreeCompleted { address, site } => Entry::of_block("free_completed", address, site, before),
            EventKind::SegmentFreed { address, size, site } => {
                Entry::of_segment("segment_free", address, size, site, before)
            }
            EventKind::SegmentUnmapped { address, size, site } => {
                Entry::of_segment("segment_unmap", address, size, site, before)
            }
            EventKind::OutOfMemory { requested, device_free, stream, site } => {
                Entry { action: "oom", address: device_free, size: requested, stream, owner: None, site, words }
            }
            EventKind::Mark { stage: Stage::Instant, name, address, site } => self.mark(name, address, site),
            EventKind::Mark { .. } | EventKind::MemorySample { .. } | EventKind::Gap { .. } => return None,
        })
    }

    /// Of the marks, a history has moments: that of a snapshot, and since PyTorch 2.13 words about the block at an address.
    fn mark(&self, name: StringId, address: u64, site: SiteId) -> Entry {
        if self.definitions.string(name) == SNAPSHOT {
            Entry { action: SNAPSHOT, address, site, ..Entry::default() }
        } else {
            Entry { action: "annotate", address, site, words: Some(name), ..Entry::default() }
        }
    }

    /// The time of an event in microseconds, since 1970 where the recording knows it.
    pub(super) fn time_us(&self, time_ns: u64) -> u64 {
        self.epoch_us.saturating_add(time_ns / 1000)
    }

    /// Writes the entry for an event, where there is one.
    pub(super) fn write(&self, out: &mut impl Notation, event: &Event, before: Option<&DeviceState>) -> io::Result<()> {
        let Some(entry) = self.entry(&event.kind, before) else { return Ok(()) };
        out.begin_dict()?;
        out.word_field("action", entry.action)?;
        let is_oom = matches!(event.kind, EventKind::OutOfMemory { .. });
        out.number_field(if is_oom { "device_free" } else { "addr" }, entry.address)?;
        out.number_field("size", entry.size)?;
        out.number_field("stream", stream_number(entry.stream))?;
        out.number_field("time_us", self.time_us(event.time_ns))?;
        let site = self.definitions.site(entry.site);
        out.key("compile_context")?;
        if site.compile_context == StringId(0) {
            out.word("N/A")?;
        } else {
            out.string(self.definitions, site.compile_context)?;
        }
        out.key("user_metadata")?;
        out.string(self.definitions, entry.words.unwrap_or(site.scope))?;
        if let Some(MempoolId(first, second)) = entry.owner {
            out.key("pool_id")?;
            out.pair(first, second)?;
        }
        if self.has_categories {
            let is_block = matches!(event.kind, EventKind::BlockAllocated { .. });
            let category = if is_block { site.category } else { Category::Unknown };
            out.word_field("category", category.name())?;
        }
        if site.stack != StackId(0) {
            out.key("frames")?;
            out.frames(self.definitions, site.stack)?;
        }
        out.end_dict()
    }
}
