//! The memory of a device on one line: every byte once, in the order in which the map shows it.

use std::cmp::Reverse;

use vramscope_insight::pools::{DeviceOwners, PartKind, UnfitShares, free_parts};
use vramscope_pool::Settings;
use vramscope_trace::sort::{sort_by, sort_by_key};
use vramscope_trace::{DeviceState, Extent, MempoolId, PoolKind, Segment};

use super::block_colors::MapContent;
use super::memory_kind::{KindBytes, KindId, MemoryKind, STUCK_LEVELS};
use super::view::SortBy;

/// Adjacent bytes of one kind. A span begins where the one before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Position on the line after the span's last byte.
    pub(super) end: u64,
    pub(super) kind: KindId,
    /// Whether a block or free block begins with the span. The rounding of a block does not begin
    /// one.
    pub(super) begins: bool,
    /// Whether the span is not highlighted, while others are.
    pub(super) is_dimmed: bool,
}

/// A part of the line: a segment, or all memory of an owner other than the pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinePart {
    /// The segment; `None` for other owners.
    pub segment: Option<Segment>,
    /// Position of the first byte.
    pub start: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Index of the first span.
    pub(super) first_span: u32,
}

impl LinePart {
    /// Returns the position after the last byte.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// The memory of a device on one line: the pool's segments by address or in another order, then
/// the memory of other owners.
///
/// Unmapped parts of expandable segments are no memory, and not on the line.
#[derive(Clone, Debug, Default)]
pub struct MemoryLine {
    pub(super) spans: Vec<Span>,
    pub(super) parts: Vec<LinePart>,
    /// The bytes of each kind.
    bytes: KindBytes,
    /// Bytes of the pool, with which the line begins.
    pool_bytes: u64,
    /// Largest number of bytes of the pool in the recording.
    largest_pool_bytes: u64,
    /// Fewest bytes of a row at zoom 1; 0 if they do not matter.
    pub(super) least_row_bytes: f64,
    /// Indexes of the parts that are segments, by ascending address.
    by_address: Vec<u32>,
}

/// The inputs of a [`MemoryLine`] beside the blocks and their colors.
pub struct LineContent<'a> {
    /// Who holds the device's memory.
    pub owners: DeviceOwners,
    /// The largest number of bytes that the pool has in the recording; 0 if it does not matter.
    pub largest_pool_bytes: u64,
    /// How much of the requested memory does not fit into a free block of a size.
    pub unfit: &'a UnfitShares,
    /// The allocator's settings, for the pages of expandable segments.
    pub settings: &'a Settings,
    /// The order of the segments.
    pub sort: SortBy,
}

impl MemoryLine {
    /// Puts the memory of a device on a line. Visits every block once.
    #[must_use]
    pub fn new(content: &mut MapContent<'_>, line: &LineContent<'_>) -> Self {
        let device = content.device;
        let mut new = Self::default();
        new.spans.reserve(device.blocks().len() * 2);
        for segment in sorted_segments(device, line.sort) {
            new.add_segment(segment, content, line);
        }
        new.pool_bytes = new.end();
        let mut by_address: Vec<u32> = (0..new.parts.len() as u32).collect();
        sort_by_key(&mut by_address, |&part| new.parts[part as usize].segment.map(|segment| segment.address));
        new.by_address = by_address;
        new.largest_pool_bytes = line.largest_pool_bytes.max(new.pool_bytes);
        let DeviceOwners { outside_bytes, others_bytes, free_bytes, .. } = line.owners;
        let others = [
            (MemoryKind::Outside, PartKind::Outside, outside_bytes),
            (MemoryKind::Others, PartKind::OtherProcesses, others_bytes),
            (MemoryKind::Unknown, PartKind::Unknown, Some(line.owners.unknown_bytes())),
            (MemoryKind::DriverFree, PartKind::Free, free_bytes),
        ];
        for (kind, part, bytes) in others {
            if let Some(bytes) = bytes.filter(|&bytes| bytes > 0) {
                new.begin_part(None, bytes);
                new.add(kind, bytes, true, content.is_dimmed(&[part, PartKind::Device, PartKind::Recorded]));
            }
        }
        new
    }

    /// Returns the number of bytes on the line.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.spans.last().map_or(0, |span| span.end)
    }

    /// Returns the bytes of the pool, with which the line begins.
    #[must_use]
    pub const fn pool_bytes(&self) -> u64 {
        self.pool_bytes
    }

    /// Returns the largest number of bytes that the pool has in the recording: the scale of the
    /// map does not change with the moment.
    #[must_use]
    pub const fn largest_pool_bytes(&self) -> u64 {
        self.largest_pool_bytes
    }

    /// Returns the bytes of each kind.
    #[must_use]
    pub const fn bytes(&self) -> &KindBytes {
        &self.bytes
    }

    /// Begins a part of the line at its end.
    fn begin_part(&mut self, segment: Option<Segment>, bytes: u64) {
        let (start, first_span) = (self.end(), self.spans.len() as u32);
        self.parts.push(LinePart { segment, start, bytes, first_span });
    }

    /// Adds bytes at the line's end.
    fn add(&mut self, kind: MemoryKind, bytes: u64, begins: bool, is_dimmed: bool) {
        if bytes > 0 {
            let kind = KindId::of(kind);
            self.bytes.add(kind, bytes);
            self.spans.push(Span { end: self.end() + bytes, kind, begins, is_dimmed });
        }
    }

    /// Adds the memory of a segment.
    fn add_segment(&mut self, segment: &Segment, content: &mut MapContent<'_>, line: &LineContent<'_>) {
        self.begin_part(Some(*segment), segment.size);
        let whole = [PartKind::Reserved, PartKind::Device, PartKind::Recorded];
        let dimmed =
            [PartKind::Stuck, PartKind::Releasable].map(|part| content.is_dimmed(&[part]) && content.is_dimmed(&whole));
        for Extent { address, size, block } in content.device.extents(segment) {
            let Some(block) = block else {
                let [is_stuck_dimmed, is_releasable_dimmed] = dimmed;
                let [head, whole, tail] = free_parts(line.settings, segment, address, size);
                let share = line.unfit.of(segment.pool.kind, size);
                let level = (share * f32::from(STUCK_LEVELS)).min(f32::from(STUCK_LEVELS - 1)) as u8;
                self.add(MemoryKind::Stuck(level), head, true, is_stuck_dimmed);
                self.add(MemoryKind::Releasable, whole, true, is_releasable_dimmed);
                self.add(MemoryKind::Stuck(level), tail, true, is_stuck_dimmed);
                continue;
            };
            let fill = content.fill_of(block);
            let is_dimmed = content.highlight.is_some_and(|highlight| !highlight(block));
            let requested = block.requested.min(size);
            self.add(MemoryKind::Live(fill), requested, true, is_dimmed);
            self.add(MemoryKind::Rounding(fill), size - requested, requested == 0, is_dimmed);
        }
    }

    /// Returns the position on the line of a device address in the pool; `None` outside of all
    /// segments.
    #[must_use]
    pub fn position_of(&self, address: u64) -> Option<u64> {
        let start = |&part: &u32| self.parts[part as usize].segment.map_or(u64::MAX, |segment| segment.address);
        let after = self.by_address.partition_point(|part| start(part) <= address);
        let part = &self.parts[*self.by_address.get(after.checked_sub(1)?)? as usize];
        let offset = address - part.segment?.address;
        (offset < part.bytes).then_some(part.start + offset)
    }

    /// Returns the index of the part that contains a position; the last part beyond the line's end.
    #[must_use]
    pub fn part_at(&self, position: u64) -> Option<usize> {
        self.parts.partition_point(|part| part.start <= position).checked_sub(1)
    }

    /// Returns the device address at a position; `None` outside of the pool.
    #[must_use]
    pub fn address_at(&self, position: u64) -> Option<u64> {
        let part = self.parts[self.part_at(position)?];
        Some(part.segment?.address + (position - part.start).min(part.bytes - 1))
    }

    /// Returns the kind of memory at a position outside of the pool, and the bytes of its owner.
    #[must_use]
    pub fn kind_at(&self, position: u64) -> Option<(MemoryKind, u64)> {
        let part = self.parts.get(self.part_at(position)?).filter(|part| part.segment.is_none())?;
        Some((self.spans.get(part.first_span as usize)?.kind.kind(), part.bytes))
    }

    /// Returns the index of the span that contains a position.
    pub(super) fn span_at(&self, position: u64) -> usize {
        self.spans.partition_point(|span| span.end <= position)
    }
}

/// Returns the segments of a device in an order.
fn sorted_segments(device: &DeviceState, sort: SortBy) -> Vec<&Segment> {
    let mut segments: Vec<&Segment> = device.segments().collect();
    match sort {
        SortBy::Address => {}
        SortBy::Size => sort_by_key(&mut segments, |segment| Reverse(segment.size)),
        SortBy::Pool => sort_by_key(&mut segments, |segment| {
            let MempoolId(a, b) = segment.pool.owner;
            (a, b, segment.pool.kind == PoolKind::Large, segment.stream)
        }),
        SortBy::FreeShare => {
            let free = |segment: &&Segment| {
                let free = device.extents(segment).filter(|extent| extent.block.is_none()).map(|extent| extent.size);
                free.sum::<u64>() as f64 / segment.size.max(1) as f64
            };
            let mut shares: Vec<(f64, &Segment)> = segments.iter().map(|segment| (free(segment), *segment)).collect();
            sort_by(&mut shares, |(a, _), (b, _)| b.total_cmp(a));
            segments = shares.into_iter().map(|(_, segment)| segment).collect();
        }
    }
    segments
}
