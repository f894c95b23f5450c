//! The pixel columns of a segment's row: how much of each is free, and what the rest is.

use vramscope_trace::{Block, DeviceState, Segment};

/// What a range of a segment holds: the requested part of a live block, a live block's rounding, or
/// free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// The requested part of a live block.
    Live(&'a Block),
    /// The end of a live block beyond the requested size.
    Rounding(&'a Block),
    /// Free space.
    Free,
}

/// What one pixel column of a segment's row shows: which part is free, and the largest live part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slice<'a> {
    /// The free part, 0 to 1.
    pub(super) free: f32,
    /// The kind of the largest live part, if any part is live.
    pub(super) live: Option<Kind<'a>>,
    largest_live: f32,
    /// Address of the extent that covers most of the column.
    pub(super) main_extent: u64,
    main_extent_part: f32,
    /// Whether an extent begins at the column's left edge, to within a pixel.
    pub(super) begins: bool,
}

impl<'a> Slice<'a> {
    /// Returns true if the column is beyond the segment's end.
    pub(super) fn is_outside(&self) -> bool {
        self.main_extent_part == 0.0
    }

    /// Adds a range that covers `part` (0 to 1) of the column and belongs to the block or free
    /// range at address `extent`.
    fn add(&mut self, kind: Kind<'a>, extent: u64, part: f32) {
        if part > self.main_extent_part {
            self.main_extent_part = part;
            self.main_extent = extent;
        }
        match kind {
            Kind::Free => self.free += part,
            live if part > self.largest_live => {
                self.largest_live = part;
                self.live = Some(live);
            }
            _ => {}
        }
    }
}

/// Adds a range of `kind` to the columns that it touches, from index `from` to index `to` of
/// `columns`, both fractional. The range belongs to the block or free range at address `extent`.
fn add_range<'a>(columns: &mut [Slice<'a>], kind: Kind<'a>, extent: u64, from: f64, to: f64) {
    let first = (from.max(0.0) as usize).min(columns.len() - 1);
    let last = (to.ceil() as usize).clamp(first + 1, columns.len());
    for (column, slice) in columns[first..last].iter_mut().enumerate() {
        let left = (first + column) as f64;
        // At least 1e-9, so that a range too thin for floating point does not vanish.
        let part = (to.min(left + 1.0) - from.max(left)).max(1e-9);
        slice.add(kind, extent, part as f32);
    }
}

/// Returns the pixel columns of a segment, `width` for each line of `line_bytes`, one line after
/// the other. Columns beyond the segment's end are empty.
pub(super) fn slices<'a>(device: &'a DeviceState, segment: &Segment, width: usize, line_bytes: u64) -> Vec<Slice<'a>> {
    let lines = segment.size.div_ceil(line_bytes.max(1)).max(1) as usize;
    let mut columns = vec![Slice { main_extent: segment.address, ..Slice::default() }; width.max(1) * lines];
    let per_byte = width.max(1) as f64 / line_bytes.max(1) as f64;
    for extent in device.extents(segment) {
        let start = (extent.address - segment.address) as f64 * per_byte;
        let end = start + extent.size as f64 * per_byte;
        match extent.block {
            None => add_range(&mut columns, Kind::Free, extent.address, start, end),
            Some(block) => {
                let requested_end = start + block.requested.min(extent.size) as f64 * per_byte;
                // Rounding of less than a pixel would only blur the block's edge.
                let split = if end - requested_end >= 1.0 { requested_end } else { end };
                add_range(&mut columns, Kind::Live(block), extent.address, start, split);
                if split < end {
                    add_range(&mut columns, Kind::Rounding(block), extent.address, split, end);
                }
            }
        }
        let is_wide = end - start >= 3.0;
        if is_wide && let Some(slice) = columns.get_mut(start.round() as usize) {
            slice.begins = true;
        }
    }
    columns
}
