//! What a memory state without history shows: who holds the memory, or blocks of which sizes do.

use std::collections::BTreeMap;

use vramscope_pool::Settings;
use vramscope_pool::size::SMALL_SEGMENT_BYTES;
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Block, ByteSize, Count, DeviceId, DeviceState, PoolKind, Recording};

use crate::group::{GroupBy, Grouping};
use crate::placement::recorded_settings;
use crate::pools::{ReservedBreakdown, device_usage};

/// Minimum number of blocks of one size that count as a family.
const MIN_FAMILY_BLOCKS: u64 = 3;
/// Maximum number of families and of holders that are listed as text.
const LISTED: usize = 5;

/// Blocks of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeFamily {
    /// Size of each block in bytes.
    pub size: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl SizeFamily {
    /// Returns the bytes of all blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.size.saturating_mul(self.blocks)
    }
}

/// The live memory of a device at the end of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldMemory {
    /// Bytes of all segments.
    pub reserved_bytes: u64,
    /// Bytes of allocated blocks.
    pub allocated_bytes: u64,
    /// Free bytes in segments.
    pub free_bytes: u64,
    /// Size of the largest free block in bytes.
    pub largest_free_bytes: u64,
    /// Size of the device's memory in bytes, if it is recorded.
    pub device_bytes: Option<u64>,
    /// What the reserved bytes consist of.
    pub parts: ReservedBreakdown,
    /// Free bytes in whole pages of segments that also have live blocks: expandable segments could
    /// release them.
    pub free_page_bytes: u64,
    /// The lines of the program that hold memory, with their bytes, most first; empty without
    /// stacks of the program.
    pub lines: Vec<(String, u64)>,
    /// Sizes of at least three blocks each, most bytes first.
    pub families: Vec<SizeFamily>,
}

impl HeldMemory {
    /// Reads the memory of a device at the end of a recording.
    #[must_use]
    pub fn at_end(recording: &Recording, device: DeviceId) -> Self {
        let Some(state) = recording.end_state().device(device) else { return Self::default() };
        let (counters, free) = (state.counters(), state.free_space());
        let blocks: Vec<&Block> = state.blocks().collect();
        let settings = recorded_settings(recording.info());
        Self {
            reserved_bytes: counters.reserved,
            allocated_bytes: counters.allocated,
            free_bytes: free.total,
            largest_free_bytes: free.largest,
            device_bytes: recording.info().device(device).map(|info| info.total_bytes).filter(|&bytes| bytes > 0),
            parts: ReservedBreakdown::from(&device_usage(state, &settings)),
            free_page_bytes: free_page_bytes(state, &settings),
            lines: lines(recording, &blocks),
            families: families(&blocks),
        }
    }

    /// Returns what the state shows, as lines of text: the parts of the reserved bytes, who holds
    /// them or blocks of which sizes do, what would fit, and what expandable segments could
    /// release.
    #[must_use]
    pub fn facts(&self) -> Vec<String> {
        let mut facts = vec![format!("reserved {}: {}", ByteSize(self.reserved_bytes), self.parts)];
        if let Some(bytes) = self.device_bytes {
            facts.push(format!("the device has {}", ByteSize(bytes)));
        }
        let lines = self.lines.iter().take(LISTED);
        facts.extend(lines.map(|(line, bytes)| format!("{line} holds {}", ByteSize(*bytes))));
        let families = self.families.iter().take(LISTED);
        facts.extend(families.map(|one| {
            let blocks = Count(one.blocks).of("block", "blocks");
            format!("{blocks} of {}: {}", ByteSize(one.size), ByteSize(one.bytes()))
        }));
        facts.push(format!("a request of up to {} fits in the largest free block", ByteSize(self.largest_free_bytes)));
        if self.free_page_bytes > 0 {
            facts.push(format!(
                "with expandable_segments:True, up to {} of the stuck bytes could be released",
                ByteSize(self.free_page_bytes)
            ));
        }
        facts
    }
}

/// Returns the lines of the program with their bytes, most first; empty if no block has one.
fn lines(recording: &Recording, blocks: &[&Block]) -> Vec<(String, u64)> {
    let mut by_line = Grouping::of(GroupBy::Line, recording);
    let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
    for block in blocks {
        let sum = sums.entry(by_line.group_of(block)).or_default();
        *sum = sum.saturating_add(block.size);
    }
    sums.retain(|&line, _| !by_line.is_unknown(line));
    let name = |(line, bytes)| (by_line.group_name(recording.definitions(), line), bytes);
    let mut lines: Vec<(String, u64)> = sums.into_iter().map(name).collect();
    sort_by_key(&mut lines, |&(_, bytes)| std::cmp::Reverse(bytes));
    lines
}

/// Returns the free bytes in whole pages of segments that also have live blocks. Expandable
/// segments have such pages; the live blocks would stay where they are.
fn free_page_bytes(device: &DeviceState, settings: &Settings) -> u64 {
    let mut bytes = 0u64;
    for segment in device.segments().filter(|segment| !segment.expandable && !device.is_free(segment)) {
        let page_bytes = match segment.pool.kind {
            PoolKind::Small => SMALL_SEGMENT_BYTES,
            PoolKind::Large => settings.large_segment_size_bytes.max(1),
        };
        for extent in device.extents(segment).filter(|extent| extent.block.is_none()) {
            let (start, end) = (extent.address - segment.address, extent.address - segment.address + extent.size);
            let pages = (end / page_bytes).saturating_sub(start.div_ceil(page_bytes));
            bytes = bytes.saturating_add(pages.saturating_mul(page_bytes));
        }
    }
    bytes
}

/// Returns the sizes of at least [`MIN_FAMILY_BLOCKS`] blocks each, most bytes first.
fn families(blocks: &[&Block]) -> Vec<SizeFamily> {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for block in blocks {
        *counts.entry(block.size).or_default() += 1;
    }
    let all = counts.into_iter().map(|(size, blocks)| SizeFamily { size, blocks });
    let mut families: Vec<SizeFamily> = all.filter(|one| one.blocks >= MIN_FAMILY_BLOCKS).collect();
    families.sort_by_key(|one| std::cmp::Reverse((one.bytes(), one.size)));
    families
}
