//! The content of a row's pixel columns: the free and the unmapped share of each, and the block in
//! its live part. What is drawn and what is hit come from one walk over the row's memory.

use std::ops::Range;

use vramscope_trace::{Block, DeviceState, Segment};

use super::row::Row;

/// The kind of memory in an address range of a segment.
#[derive(Clone, Copy, Debug)]
enum SliceKind<'a> {
    /// The requested part of a live block.
    Live(&'a Block),
    /// The rounding of a live block: its end beyond the requested size.
    Rounding(&'a Block),
    /// Free space, with its first device address in view.
    Free(u64),
    /// An unmapped part of an expandable segment.
    Hole,
}

/// The content of one pixel column of a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slice<'a> {
    /// The live block with the largest part of the column; `None` if no part is live.
    pub(super) live: Option<&'a Block>,
    /// The part of the column that this block covers, from 0 to 1.
    largest_live: f32,
    /// The free part of the column, from 0 to 1.
    pub(super) free: f32,
    /// The unmapped part of the column, from 0 to 1.
    pub(super) hole: f32,
    /// Whether the largest live part is a block's rounding.
    pub(super) is_rounding: bool,
    /// Whether a block, free range or hole at least 3 pixels wide begins at the column's left edge,
    /// to within half a pixel.
    pub(super) begins: bool,
}

/// A summary of the memory in one pixel column.
trait ColumnContent<'a> {
    /// Adds memory of a kind that covers `part` (0 to 1) of the column.
    fn add(&mut self, kind: SliceKind<'a>, part: f32);

    /// Notes that a block, free range or hole at least 3 pixels wide begins at the column.
    fn mark_begin(&mut self) {}
}

impl<'a> ColumnContent<'a> for Slice<'a> {
    #[inline]
    fn add(&mut self, kind: SliceKind<'a>, part: f32) {
        let (block, is_rounding) = match kind {
            SliceKind::Free(_) => {
                self.free += part;
                return;
            }
            SliceKind::Hole => {
                self.hole += part;
                return;
            }
            SliceKind::Live(block) => (block, false),
            SliceKind::Rounding(block) => (block, true),
        };
        if part > self.largest_live {
            (self.live, self.largest_live, self.is_rounding) = (Some(block), part, is_rounding);
        }
    }

    #[inline]
    fn mark_begin(&mut self) {
        self.begins = true;
    }
}

/// The block or free range that covers the largest part of a pixel column.
#[derive(Clone, Copy, Debug, Default)]
struct MainExtent {
    /// An address in the block or free range, and the part of the column that it covers.
    largest: Option<(u64, f32)>,
    /// The block or free range that was added last, in the same form.
    last: Option<(u64, f32)>,
}

impl<'a> ColumnContent<'a> for MainExtent {
    fn add(&mut self, kind: SliceKind<'a>, part: f32) {
        let address = match kind {
            SliceKind::Live(block) | SliceKind::Rounding(block) => block.address,
            SliceKind::Free(address) => address,
            SliceKind::Hole => return,
        };
        // A block's rounding is added right after its requested part.
        let before = self.last.filter(|&(last, _)| last == address).map_or(0.0, |(_, part)| part);
        self.last = Some((address, before + part));
        if self.largest.is_none_or(|(_, largest)| before + part > largest) {
            self.largest = self.last;
        }
    }
}

/// Consecutive pixel columns of a row, to which the memory of its segment is added range by range.
struct Columns<'b, C> {
    contents: &'b mut [C],
    /// Index in the row of the first of the columns.
    first: usize,
    /// Device address of the segment's start.
    address: u64,
    /// Bytes between the segment's start and the row's left edge.
    offset: f64,
    /// Pixel columns per byte.
    per_byte: f64,
    /// Number of blocks and free ranges visited so far.
    visited: u64,
}

/// Returns the smallest integer that is at least `value`. `value` must not be negative.
#[inline]
fn ceil(value: f64) -> usize {
    let floor = value as usize;
    floor + usize::from(floor as f64 != value)
}

impl<'a, C: ColumnContent<'a>> Columns<'_, C> {
    /// Returns the distance of a device address from the row's left edge, in pixel columns
    /// (fractional); negative left of it.
    #[inline]
    fn position(&self, address: u64) -> f64 {
        // Signed numbers are converted faster; no segment has 2^63 bytes.
        (address.wrapping_sub(self.address).cast_signed() as f64 - self.offset) * self.per_byte
    }

    /// Adds memory of a kind from position `from` to position `to`, in pixel columns from the row's
    /// left edge, to the columns that it touches. Each column gets a part of at least 1e-9, so that
    /// a range too thin for floating point does not vanish.
    #[inline]
    fn add(&mut self, kind: SliceKind<'a>, from: f64, to: f64) {
        let from = from.max(0.0);
        let first = from as usize;
        if to <= (first + 1) as f64 {
            if let Some(content) = self.contents.get_mut(first.wrapping_sub(self.first)) {
                content.add(kind, (to - from).max(1e-9) as f32);
            }
            return;
        }
        let last = ceil(to) - 1;
        let first_shown = first.max(self.first);
        let contents = self.contents.get_mut(first_shown - self.first..).unwrap_or_default();
        for (column, content) in (first_shown..=last).zip(contents) {
            let part = if column == first {
                (first + 1) as f64 - from
            } else if column == last {
                to - last as f64
            } else {
                1.0
            };
            content.add(kind, part.max(1e-9) as f32);
        }
    }

    /// Adds the addresses `range` of a live block, whose positions in pixel columns are `from` and
    /// `to`: as requested memory, and as rounding if that is at least a pixel wide.
    #[inline]
    fn add_block(&mut self, block: &'a Block, range: Range<u64>, from: f64, to: f64) {
        if to - from <= 1.0 {
            return self.add(SliceKind::Live(block), from, to);
        }
        let requested_end = self.position(block.address.saturating_add(block.requested).clamp(range.start, range.end));
        // Rounding narrower than a pixel would only blur the block's edge.
        let split = if to - requested_end >= 1.0 { requested_end } else { to };
        if split > from {
            self.add(SliceKind::Live(block), from, split);
        }
        if split < to {
            self.add(SliceKind::Rounding(block), split, to);
        }
    }

    /// Marks the column in which a block, free range or hole from position `from` to `to` begins,
    /// if it is at least 3 pixels wide.
    #[inline]
    fn mark_begin(&mut self, from: f64, to: f64) {
        if to - from < 3.0 {
            return;
        }
        let column = (from + 0.5).max(0.0) as usize;
        if from > -0.5
            && let Some(content) = self.contents.get_mut(column.wrapping_sub(self.first))
        {
            content.mark_begin();
        }
    }
}

/// Fills `slices` with the content of the row's pixel columns that show a part of its segment, and
/// returns the number of blocks and free ranges visited. `parts` are the mapped address ranges of
/// the segment.
///
/// Visits the blocks in these columns only.
pub(super) fn fill_slices<'a>(
    device: &'a DeviceState,
    row: &Row,
    parts: &[Range<u64>],
    slices: &mut Vec<Slice<'a>>,
) -> u64 {
    slices.clear();
    slices.resize(row.inside(), Slice::default());
    fill(device, row, parts, 0..row.inside(), 0, slices)
}

/// Returns an address in the block or free range that covers the largest part of a row's pixel
/// column; `None` if the column shows only a hole. `parts` are the mapped address ranges of the
/// row's segment.
pub(super) fn main_address(device: &DeviceState, row: &Row, parts: &[Range<u64>], column: usize) -> Option<u64> {
    let mut main = MainExtent::default();
    // Memory of the neighboring columns, which rounding may move into this one.
    let walked = column.saturating_sub(1)..(column + 2).min(row.inside());
    fill(device, row, parts, walked, column, std::slice::from_mut(&mut main));
    main.largest.map(|(address, _)| address)
}

/// Adds the memory of the pixel columns `walked` of a row to `contents`, which has one element for
/// each column from `first` on. Returns the number of blocks and free ranges visited.
fn fill<'a, C: ColumnContent<'a>>(
    device: &'a DeviceState,
    row: &Row,
    parts: &[Range<u64>],
    walked: Range<usize>,
    first: usize,
    contents: &mut [C],
) -> u64 {
    let segment = &row.segment;
    let mut result = Columns {
        contents,
        first,
        address: segment.address,
        offset: row.offset,
        per_byte: 1.0 / row.bytes_per_pixel,
        visited: 0,
    };
    let byte_at = |column: usize| (row.offset + column as f64 * row.bytes_per_pixel).max(0.0);
    let first = segment.address.saturating_add(byte_at(walked.start).floor() as u64);
    let end = segment.address.saturating_add(byte_at(walked.end).ceil() as u64).min(segment.end());
    let first_part = parts.partition_point(|part| part.end <= first);
    let mut mapped_until = first_part.checked_sub(1).map_or(segment.address, |before| parts[before].end);
    for part in parts[first_part..].iter().take_while(|part| part.start < end) {
        if mapped_until < part.start {
            add_hole(&mut result, mapped_until..part.start);
        }
        add_part(&mut result, device, segment, part.start.max(first)..part.end.min(end), part);
        mapped_until = part.end;
    }
    if mapped_until < end {
        add_hole(&mut result, mapped_until..end);
    }
    result.visited
}

/// Adds an unmapped range of device addresses.
fn add_hole<'a>(columns: &mut Columns<'_, impl ColumnContent<'a>>, range: Range<u64>) {
    let (from, to) = (columns.position(range.start), columns.position(range.end));
    columns.add(SliceKind::Hole, from, to);
    columns.mark_begin(from, to);
}

/// Adds the blocks and free ranges that overlap the addresses `range`, which must be inside `part`,
/// a mapped part of the segment.
fn add_part<'a>(
    columns: &mut Columns<'_, impl ColumnContent<'a>>,
    device: &'a DeviceState,
    segment: &Segment,
    range: Range<u64>,
    part: &Range<u64>,
) {
    let mut start = range.start;
    let mut from = columns.position(start);
    // A block that begins below the range is not among the range's extents.
    if let Some(block) = device.block_at(start).filter(|block| (part.start..start).contains(&block.address)) {
        let block_range = block.address..block.end().min(part.end);
        let (begin, to) = (columns.position(block_range.start), columns.position(block_range.end));
        start = block_range.end;
        columns.visited += 1;
        columns.add_block(block, block_range, begin, to);
        columns.mark_begin(begin, to);
        from = to;
    }
    if start >= range.end {
        return;
    }
    for extent in device.extents(&Segment { address: start, size: range.end - start, ..*segment }) {
        columns.visited += 1;
        // The last block may end beyond the range.
        let end = extent.block.map_or(extent.address + extent.size, |block| block.end().min(part.end));
        let to = columns.position(end);
        match extent.block {
            None => columns.add(SliceKind::Free(extent.address), from, to),
            Some(block) => columns.add_block(block, extent.address..end, from, to),
        }
        columns.mark_begin(from, to);
        from = to;
    }
}
