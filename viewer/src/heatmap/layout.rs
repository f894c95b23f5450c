//! Positions of the heatmap's rows, and what is under a pixel.

use std::ops::Range;

use vramscope_trace::{Block, DeviceState, Segment};

use super::slices::{Slice, slices};
use crate::frame::{Frame, Rect};

/// Least height of a row including the line below it, in units (pixels at scale 1); if not all rows
/// fit at this height, the map scrolls.
const MIN_ROW: f32 = 3.0;
/// Height of a row with room for its label, in units (pixels at scale 1); rows are at least this
/// high if all of them then fit.
const LABELLED_ROW: f32 = 14.0;
/// Greatest height of a row at zoom 1, in units (pixels at scale 1).
const MAX_ROW: f32 = 56.0;

/// Height set aside for each line when large segments are divided into lines, in units (pixels at
/// scale 1); it limits the number of lines.
const CONTINUED_ROW: f32 = 22.0;
/// Least bytes per line of a segment that is divided into several lines; smaller segments have one
/// line.
const LINE_BYTES: u64 = 32 << 20;

/// Width of the picture in units (pixels at scale 1) below which rows have no address; the details
/// panel still shows addresses.
const NARROW_WIDTH: f32 = 460.0;

/// Zoom of the heatmap's rows (1: all rows fit, if they can) and scroll position (pixels of rows
/// above the map's upper edge).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Factor for the height of rows, relative to all rows fitting; at least 1.
    pub zoom: f32,
    /// Pixels of rows above the upper edge.
    pub scroll: i32,
}

impl Default for View {
    fn default() -> Self {
        Self { zoom: 1.0, scroll: 0 }
    }
}

/// A row of the heatmap: a whole segment, or one of several lines of a large segment.
///
/// `y0..y1` are pixel rows counted from the picture's top; rows scrolled out of view are outside of
/// the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The segment.
    pub segment: Segment,
    /// Index of the line within the segment.
    pub line: u32,
    /// Number of lines of the segment.
    pub lines: u32,
    /// Bytes per line; the last of several lines may end before the map does.
    pub line_bytes: u64,
    /// First pixel row.
    pub y0: i32,
    /// First pixel row below the line.
    pub y1: i32,
}

impl Row {
    /// Returns the first device address that the row shows.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.segment.address.saturating_add(u64::from(self.line).saturating_mul(self.line_bytes))
    }
}

/// Where the heatmap draws a device's segments: the rows, the map's area, and the scroll position.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The rows by ascending address.
    pub rows: Vec<Row>,
    /// The part of the picture with the blocks.
    pub map: Rect,
    /// Greatest scroll position, in pixels.
    pub max_scroll: i32,
    /// Scroll position: the view's, clamped.
    pub scroll: i32,
    /// Pixels per unit.
    pub scale: f32,
    /// Whether the picture is too narrow for addresses.
    pub is_narrow: bool,
}

/// A segment and the block or free range in it, found under a pixel or at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The segment.
    pub segment: Segment,
    /// Start of the block or free range.
    pub address: u64,
    /// Size of the block or free range, in bytes.
    pub size: u64,
    /// The live block, or `None` for free space.
    pub block: Option<Block>,
}

impl Layout {
    /// Computes the layout for a picture of `size` pixels with `scale` pixels per unit.
    #[must_use]
    pub fn new(device: &DeviceState, size: (u32, u32), scale: f32, view: View) -> Self {
        let px = |units: f32| (units * scale).round() as i32;
        let (width, height) = (size.0.min(Frame::MAX_SIDE) as i32, size.1.min(Frame::MAX_SIDE) as i32);
        let is_narrow = width < px(NARROW_WIDTH);
        let x0 = px(if is_narrow { Self::NARROW_GUTTER } else { Self::GUTTER }).min(width - 1);
        let y0 = px(Self::HEADER).min(height - 1);
        let map = Rect::new(x0, y0, (width - px(Self::MARGIN)).max(x0 + 1), (height - px(2.0)).max(y0 + 1));
        let available = f64::from(map.height());
        let max_line_bytes = max_line_bytes(device, (available / f64::from(CONTINUED_ROW * scale)) as u64);
        let mut rows: Vec<Row> = device
            .segments()
            .flat_map(|&segment| {
                let lines = segment.size.div_ceil(max_line_bytes).max(1) as u32;
                let line_bytes = if lines == 1 { segment.size.max(1) } else { max_line_bytes };
                (0..lines).map(move |line| Row { segment, line, lines, line_bytes, y0: 0, y1: 0 })
            })
            .collect();
        let heights = row_heights(&rows, available, scale, view.zoom.max(1.0));
        let total = heights.iter().sum::<f64>().ceil().min(1e8) as i32;
        let max_scroll = (total - map.height()).max(0);
        let scroll = view.scroll.clamp(0, max_scroll);
        let gap = px(1.0).max(1);
        let mut y = f64::from(map.y0 - scroll);
        for (row, height) in rows.iter_mut().zip(heights) {
            row.y0 = y.round() as i32;
            y += height;
            row.y1 = (y.round() as i32 - gap).max(row.y0 + 1);
        }
        Self { rows, map, max_scroll, scroll, scale, is_narrow }
    }

    /// Width left of the map for addresses and sizes, in units (pixels at scale 1).
    const GUTTER: f32 = 164.0;
    /// Width left of the map in a narrow picture, for sizes only, in units (pixels at scale 1).
    const NARROW_GUTTER: f32 = 66.0;
    /// Width right of the map, for fragmentation and percentages, in units (pixels at scale 1).
    pub(super) const MARGIN: f32 = 78.0;
    /// Height above the map, for its captions, in units (pixels at scale 1).
    pub(crate) const HEADER: f32 = 18.0;

    /// Iterates over the rows that are at least partly visible.
    pub fn visible(&self) -> impl Iterator<Item = &Row> + '_ {
        let first = self.rows.partition_point(|row| row.y1 <= self.map.y0);
        self.rows[first..].iter().take_while(|row| row.y0 < self.map.y1)
    }

    /// Returns the row at `y` pixels from the picture's top; `None` outside of the map and below
    /// the last row.
    #[must_use]
    pub fn row_at(&self, y: i32) -> Option<&Row> {
        if y < self.map.y0 || y >= self.map.y1 {
            return None;
        }
        // The gap below a row counts as the row, so that every height hits one.
        let after = self.rows.partition_point(|row| row.y0 <= y);
        let row = self.rows.get(after.checked_sub(1)?)?;
        let next = self.rows.get(after).map_or(row.y1, |next| next.y0);
        (y < next).then_some(row)
    }

    /// Returns the rows, one for each line, of the segment that contains `address`; empty outside
    /// of all segments.
    #[must_use]
    pub fn rows_of(&self, address: u64) -> &[Row] {
        let after = self.rows.partition_point(|row| row.segment.address <= address);
        let Some(last) = after.checked_sub(1).map(|last| self.rows[last]).filter(|row| address < row.segment.end())
        else {
            return &[];
        };
        &self.rows[after - last.lines as usize..after]
    }

    /// Returns the pixel columns of all lines of a row's segment, one line after the other.
    pub(super) fn slices<'a>(&self, device: &'a DeviceState, row: &Row) -> Vec<Slice<'a>> {
        slices(device, &row.segment, self.map.width() as usize, row.line_bytes)
    }

    /// Returns which of a segment's pixel columns are on `row`, as indices in the list of the
    /// columns of all the segment's rows, first row first.
    pub(super) fn line_columns(&self, row: &Row) -> Range<usize> {
        let width = self.map.width() as usize;
        row.line as usize * width..(row.line as usize + 1) * width
    }

    /// Returns the block or free range drawn at pixel (`x`, `y`); left and right of the map, the
    /// first or the last one of the row. `None` where there is no row.
    #[must_use]
    pub fn hit(&self, device: &DeviceState, x: i32, y: i32) -> Option<Hit> {
        let row = self.row_at(y)?;
        let column = (x - self.map.x0).clamp(0, self.map.width() - 1) as usize;
        let slices = self.slices(device, row);
        let line = slices.get(self.line_columns(row))?;
        let slice = line[..=column].iter().rfind(|slice| !slice.is_outside())?;
        hit_at(device, slice.main_extent)
    }

    /// Returns the pixel columns (first, end), `end` exclusive, in which a row of a segment shows
    /// the segment's `size` bytes from device address `address` on. Columns count from the
    /// picture's left edge.
    ///
    /// They are at least one pixel wide; `None` if none of the bytes are on the row.
    #[must_use]
    pub fn columns(&self, row: &Row, address: u64, size: u64) -> Option<(i32, i32)> {
        let width = i64::from(self.map.width());
        let total = width * i64::from(row.lines);
        let per_byte = width as f64 / row.line_bytes as f64;
        let start = address.saturating_sub(row.segment.address) as f64 * per_byte;
        let end = start + size as f64 * per_byte;
        let start = (start.round() as i64).min(total - 1);
        let end = (end.round() as i64).clamp(start + 1, total);
        let left = width * i64::from(row.line);
        let (from, to) = ((start - left).max(0), (end - left).min(width));
        (from < to).then(|| (self.map.x0 + from as i32, self.map.x0 + to as i32))
    }

    /// Returns the scroll position in pixels that brings the row with device address `address` into
    /// view; `None` if the row is in view or no segment contains the address.
    #[must_use]
    pub fn scroll_to(&self, address: u64) -> Option<i32> {
        let row = self.rows_of(address).iter().rfind(|row| row.address() <= address)?;
        let (above, below) = (self.map.y0 - row.y0, row.y1 - self.map.y1);
        if above > 0 {
            Some(self.scroll - above)
        } else if below > 0 {
            Some(self.scroll + below)
        } else {
            None
        }
    }
}

/// Returns the block or free range that contains `address`; `None` outside of all segments.
pub(crate) fn hit_at(device: &DeviceState, address: u64) -> Option<Hit> {
    let segment = *device.segment_at(address)?;
    let extent = device.extents(&segment).find(|extent| address - extent.address < extent.size)?;
    Some(Hit { segment, address: extent.address, size: extent.size, block: extent.block.copied() })
}

/// Returns the fewest bytes per line, a multiple of [`LINE_BYTES`], with which all segments fit on
/// `max_lines` lines; the size of the largest segment if that is impossible.
fn max_line_bytes(device: &DeviceState, max_lines: u64) -> u64 {
    let lines =
        |bytes: u64| device.segments().map(|segment| segment.size.div_ceil(bytes).max(1)).fold(0, u64::saturating_add);
    let largest = device.segments().map(|segment| segment.size).fold(LINE_BYTES, u64::max);
    // A multiple of LINE_BYTES, so that lines begin at round addresses.
    let (mut low, mut high) = (1, largest.div_ceil(LINE_BYTES));
    while low < high {
        let middle = low + (high - low) / 2;
        if lines(middle.saturating_mul(LINE_BYTES)) > max_lines {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low.saturating_mul(LINE_BYTES)
}

/// Returns the height of every row in pixels, including the line below it. The heights add up to
/// `available` pixels times `zoom`; to less if all rows have the greatest height, to more if the
/// lowest rows do not fit.
///
/// Heights grow with the square root of a row's bytes, between [`MIN_ROW`] and [`MAX_ROW`] units.
fn row_heights(rows: &[Row], available: f64, scale: f32, zoom: f32) -> Vec<f64> {
    if rows.is_empty() {
        return Vec::new();
    }
    let max = f64::from(MAX_ROW * scale * zoom);
    let weights: Vec<f64> = rows.iter().map(|row| (row.line_bytes as f64).sqrt()).collect();
    let (least, labelled) = (f64::from((MIN_ROW * scale).round()), f64::from(LABELLED_ROW * scale));
    // 30% of the height remain for showing which segments are larger.
    let min = (available * 0.7 / weights.len() as f64).clamp(least, labelled);
    let min_total = min * weights.len() as f64;
    // If not even the lowest rows fit, the map scrolls and can show sizes again.
    let goal = if min_total > available { min_total * 1.5 } else { available } * f64::from(zoom);
    let heights = |factor: f64| weights.iter().map(move |weight| (weight * factor).clamp(min, max));
    let (mut low, mut high) = (0.0, max / weights.iter().copied().fold(f64::INFINITY, f64::min).max(1.0));
    for _ in 0..48 {
        let middle = (low + high) / 2.0;
        if heights(middle).sum::<f64>() > goal {
            high = middle;
        } else {
            low = middle;
        }
    }
    heights(low).collect()
}
