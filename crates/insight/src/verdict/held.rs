//! What a memory state without history shows: who holds the memory, or blocks of which sizes do.

use std::collections::BTreeMap;

use vramscope_pool::Settings;
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Block, ByteSize, Count, DeviceState, Percent, Recording};

use crate::diagnosis::ExaminedDevice;
use crate::group::{GroupBy, Grouping};
use crate::placement::recorded_settings;
use crate::pools::{ReservedBreakdown, device_usage, partial_page_bytes};

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
    /// Bytes that the pool can get, if they are known: a cap, or the device's size.
    pub capacity_bytes: Option<u64>,
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
    /// Sizes of the largest blocks in bytes, largest first.
    pub largest_blocks: Vec<u64>,
}

impl HeldMemory {
    /// Reads the memory of a device at the end of a recording.
    #[must_use]
    pub fn at_end(recording: &Recording, device: &ExaminedDevice) -> Self {
        let Some(state) = recording.end_state().device(device.device) else { return Self::default() };
        let (counters, free) = (state.counters(), state.free_space());
        let blocks: Vec<&Block> = state.blocks().collect();
        let settings = recorded_settings(recording.info());
        Self {
            reserved_bytes: counters.reserved,
            allocated_bytes: counters.allocated,
            free_bytes: free.total,
            largest_free_bytes: free.largest,
            capacity_bytes: device.capacity_bytes,
            parts: ReservedBreakdown::from(&device_usage(state, &settings)),
            free_page_bytes: free_page_bytes(state, &settings),
            lines: lines(recording, &blocks),
            families: families(&blocks),
            largest_blocks: largest_sizes(&blocks),
        }
    }

    /// Returns what the state shows, as lines of text: the parts of the reserved bytes, who holds
    /// them or blocks of which sizes do, what would fit, and what expandable segments could
    /// release.
    #[must_use]
    pub fn facts(&self) -> Vec<String> {
        let mut facts = vec![format!("reserved {}: {}", ByteSize(self.reserved_bytes), self.parts)];
        if let Some(bytes) = self.capacity_bytes {
            let share = Percent::of(self.reserved_bytes, bytes);
            facts.push(format!("the pool can get {}, of which {share} are reserved", ByteSize(bytes)));
        }
        let lines = self.lines.iter().take(LISTED);
        facts.extend(lines.map(|(line, bytes)| format!("{line} holds {}", ByteSize(*bytes))));
        let families = self.families.iter().take(LISTED);
        facts.extend(families.map(|one| {
            let blocks = Count(one.blocks).of("block", "blocks");
            format!("{blocks} of {}: {}", ByteSize(one.size), ByteSize(one.bytes()))
        }));
        let sizes: Vec<String> = self.largest_blocks.iter().map(|&size| ByteSize(size).to_string()).collect();
        facts.push(format!("largest blocks: {}", sizes.join(", ")));
        facts.push(match self.largest_free_bytes {
            0 => "no free block: each request needs memory from the driver".to_owned(),
            bytes => format!("a request of up to {} fits in the largest free block", ByteSize(bytes)),
        });
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
        for free in device.extents(segment).filter(|extent| extent.block.is_none()) {
            let partial = partial_page_bytes(settings, segment, free.address, free.size);
            bytes = bytes.saturating_add(free.size.saturating_sub(partial));
        }
    }
    bytes
}

/// Returns the sizes of the largest blocks, largest first.
fn largest_sizes(blocks: &[&Block]) -> Vec<u64> {
    let mut sizes: Vec<u64> = blocks.iter().map(|block| block.size).collect();
    sizes.sort_unstable_by_key(|&size| std::cmp::Reverse(size));
    sizes.truncate(LISTED);
    sizes
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
