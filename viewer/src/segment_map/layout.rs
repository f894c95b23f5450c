//! Positions of the heatmap's rows, and the object under a pixel.

use std::ops::Range;

use vramscope_draw::{Bitmap, Rect};
use vramscope_trace::{Block, DeviceState, Segment};

use super::placement::{self, Placement};
use super::regions::Regions;
use super::row::Row;
use super::slices::{Slice, fill_slices, main_address};
use super::view::{Scaling, View};

/// Width of the picture in units (pixels at scale 1) below which rows show no address. The details
/// panel still shows addresses.
const NARROW_WIDTH: f32 = 460.0;

/// The positions at which the heatmap draws a device's segments.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The rows in view, from the top; rows on one line from the left.
    pub rows: Vec<Row>,
    /// The map: the part of the picture with the blocks.
    pub map: Rect,
    /// Maximum scroll position, in pixels.
    pub max_scroll: i32,
    /// Scroll position in pixels: the view's, clamped to [`max_scroll`](Self::max_scroll).
    pub scroll: i32,
    /// The view, with zooms and scroll position clamped to their bounds.
    pub view: View,
    /// Pixels per unit of length.
    pub scale: f32,
    /// Whether the picture is too narrow for addresses.
    pub is_narrow: bool,
    /// Bytes per pixel column with the common scale; `None` if each segment has its own scale.
    pub common_bytes_per_pixel: Option<f64>,
    /// Width and height of the picture in pixels.
    size: (u32, u32),
    /// All segments of the device; the mapped parts of an expandable segment are one region.
    regions: Regions,
    /// Positions of all regions, in the order of the rows.
    placements: Vec<Placement>,
}

/// The block or free range under a pixel or at an address, and its segment.
///
/// A selection stores [`Block::since_event`] beside the address, and so follows the allocation: a
/// later block at this address has another `since_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The segment that contains the block or free range.
    pub segment: Segment,
    /// First device address of the block or free range.
    pub address: u64,
    /// Size of the block or free range, in bytes.
    pub size: u64,
    /// The live block, or `None` for free space.
    pub block: Option<Block>,
}

impl Hit {
    /// Returns true if both are the same allocation, or free ranges with the same start.
    pub fn is_same_allocation(&self, other: &Self) -> bool {
        let since = |hit: &Self| hit.block.map(|block| block.since_event);
        self.address == other.address && since(self) == since(other)
    }
}

impl Layout {
    /// Computes the layout for a picture of `size` pixels (width, height) with `scale` pixels per
    /// unit of length.
    ///
    /// The cost is linear in the number of segments, and with [`SortBy::FreeShare`] in the number
    /// of blocks.
    ///
    /// [`SortBy::FreeShare`]: super::SortBy::FreeShare
    pub fn new(device: &DeviceState, size: (u32, u32), scale: f32, view: View) -> Self {
        let view = view.clamped();
        let px = |units: f32| (units * scale).round() as i32;
        let (width, height) = (size.0.min(Bitmap::MAX_SIDE) as i32, size.1.min(Bitmap::MAX_SIDE) as i32);
        let is_narrow = width < px(NARROW_WIDTH);
        let x0 = px(if is_narrow { Self::NARROW_GUTTER } else { Self::GUTTER }).min(width - 1);
        let y0 = px(Self::HEADER).min(height - 1);
        let map = Rect::new(x0, y0, (width - px(Self::MARGIN)).max(x0 + 1), (height - px(2.0)).max(y0 + 1));
        let regions = Regions::new(device);
        let order = regions.sorted(device, view.sort);
        let placed = match view.scaling {
            Scaling::EachSegment => placement::each_segment(&regions, &order, map, scale, view.zoom),
            Scaling::Common => placement::common_scale(&regions, &order, map, scale, view),
        };
        let max_scroll = (placed.height.ceil().min(placement::MAX_HEIGHT) as i32 - map.height()).max(0);
        let scroll = view.scroll.clamp(0, max_scroll);
        let mut layout = Self {
            rows: Vec::new(),
            map,
            max_scroll,
            scroll,
            view: View { scroll, ..view },
            scale,
            is_narrow,
            common_bytes_per_pixel: placed.common_bytes_per_pixel,
            size,
            regions,
            placements: placed.placements,
        };
        layout.rows = layout.rows_in_view();
        layout
    }

    /// Width left of the map for addresses and sizes, in units (pixels at scale 1).
    const GUTTER: f32 = 164.0;
    /// Width left of the map in a narrow picture, for sizes only, in units (pixels at scale 1).
    const NARROW_GUTTER: f32 = 66.0;
    /// Width right of the map, for fragmentation and percentages, in units (pixels at scale 1).
    pub(super) const MARGIN: f32 = 78.0;
    /// Height above the map, for its captions, in units (pixels at scale 1).
    pub const HEADER: f32 = 18.0;

    /// Computes the rows that are at least partly in view.
    fn rows_in_view(&self) -> Vec<Row> {
        let (top, bottom) = (f64::from(self.scroll), f64::from(self.scroll + self.map.height()));
        let first = self.placements.partition_point(|placement| placement.end() <= top);
        let mut rows = Vec::new();
        for placement in self.placements[first..].iter().take_while(|placement| placement.y < bottom) {
            let line = ((top - placement.y) / placement.line_height).floor().max(0.0) as u32;
            for line in line..placement.lines {
                let row = self.row(placement, line);
                if row.y0 >= self.map.y1 {
                    break;
                }
                if row.y1 > self.map.y0 {
                    rows.push(row);
                }
            }
        }
        rows
    }

    /// Computes the row for one line of a region; `line` counts from 0.
    fn row(&self, placement: &Placement, line: u32) -> Row {
        let region = &self.regions.list()[placement.region as usize];
        let view = &self.view;
        let y = f64::from(self.map.y0 - self.scroll) + placement.y + f64::from(line) * placement.line_height;
        let gap = ((self.scale).round() as i32).max(1);
        let y0 = y.round() as i32;
        let y1 = ((y + placement.line_height).round() as i32 - gap).max(y0 + 1);
        let line_bytes = placement.line_bytes as f64;
        let x0 = self.map.x0 + placement.x;
        let (x1, bytes_per_pixel, start) = match view.scaling {
            Scaling::EachSegment => {
                let bytes_per_pixel = line_bytes / f64::from(self.map.width()) / view.column_zoom;
                (self.map.x1, bytes_per_pixel, view.column_start)
            }
            Scaling::Common => {
                let left = placement.columns - i64::from(line) * i64::from(self.map.width());
                let columns = left.clamp(1, i64::from(self.map.width() - placement.x)) as i32;
                (x0 + columns, line_bytes / f64::from(self.map.width()), 0.0)
            }
        };
        Row {
            segment: region.segment,
            mapped_bytes: region.mapped_bytes,
            line,
            lines: placement.lines,
            x0,
            x1,
            y0,
            y1,
            offset: (f64::from(line) + start) * line_bytes,
            bytes_per_pixel,
            region: placement.region,
        }
    }

    /// Returns the number of segments of the device; the mapped parts of an expandable segment
    /// count as one.
    pub fn segment_count(&self) -> usize {
        self.placements.len()
    }

    /// Returns the row at pixel (`x`, `y`). Left of the map it returns the first row of the line at
    /// this height, right of the map the last one. `None` where no row is.
    pub fn row_at(&self, x: i32, y: i32) -> Option<&Row> {
        if y < self.map.y0 || y >= self.map.y1 {
            return None;
        }
        // The gap below a row counts as part of the row.
        let after = self.rows.partition_point(|row| row.y0 <= y);
        let last = self.rows.get(after.checked_sub(1)?)?;
        if y >= self.rows.get(after).map_or(last.y1, |next| next.y0) {
            return None;
        }
        let line = &self.rows[self.rows.partition_point(|row| row.y0 < last.y0)..after];
        let row = line.iter().rfind(|row| row.x0 <= x).or(line.first())?;
        (x < row.x1 || x >= self.map.x1).then_some(row)
    }

    /// Returns the rows in view of the segment that contains `address`.
    pub fn rows_of(&self, address: u64) -> impl Iterator<Item = &Row> + '_ {
        let contains = move |row: &&Row| row.segment.address <= address && address < row.segment.end();
        self.rows.iter().filter(contains)
    }

    /// Returns the mapped address ranges of a row's segment.
    pub(super) fn parts(&self, row: &Row) -> &[Range<u64>] {
        self.regions.list().get(row.region as usize).map_or(&[], |region| self.regions.parts(region))
    }

    /// Fills `slices` with the content of a row's pixel columns, and returns the number of blocks
    /// and free ranges visited.
    pub(super) fn fill_slices<'a>(&self, device: &'a DeviceState, row: &Row, slices: &mut Vec<Slice<'a>>) -> u64 {
        fill_slices(device, row, self.parts(row), slices)
    }

    /// Returns the block or free range drawn at pixel (`x`, `y`). Left of the map it returns the
    /// first one of the row, right of the map the last one. `None` where no row is, and in the
    /// holes of expandable segments.
    pub fn hit(&self, device: &DeviceState, x: i32, y: i32) -> Option<Hit> {
        let row = self.row_at(x, y)?;
        let column = usize::try_from(x - row.x0).unwrap_or(0).min(row.inside().checked_sub(1)?);
        hit_at(device, main_address(device, row, self.parts(row), column)?)
    }

    /// Returns the pixel columns in which a row shows the `size` bytes at device address `address`:
    /// the first column, and the first one to the right, counted from the picture's left edge.
    ///
    /// The result has at least one column; `None` if the row shows none of the bytes.
    pub fn columns(&self, row: &Row, address: u64, size: u64) -> Option<(i32, i32)> {
        let width = row.x1 - row.x0;
        let from_row = |address: u64| {
            let offset = i128::from(address) - i128::from(row.segment.address);
            (offset as f64 - row.offset) / row.bytes_per_pixel
        };
        let (start, end) = (from_row(address), from_row(address.saturating_add(size)));
        if end <= 0.0 || start >= f64::from(width) {
            return None;
        }
        let first = (start.round().max(0.0) as i32).min(width - 1);
        let last = (end.round().min(f64::from(width)) as i32).max(first + 1);
        Some((row.x0 + first, row.x0 + last))
    }

    /// Returns the view that brings device address `address` into view, by scrolling and panning as
    /// little as possible; `None` if no segment contains the address.
    pub fn reveal(&self, address: u64) -> Option<View> {
        let (placement, offset) = self.position(address)?;
        let line = (offset / placement.line_bytes.max(1) as f64).floor().min(f64::from(placement.lines - 1));
        let top = placement.y + line * placement.line_height;
        let bottom = top + placement.line_height;
        let lowest = bottom.ceil() as i32 - self.map.height();
        let scroll = self.scroll.max(lowest).min(top.floor() as i32).clamp(0, self.max_scroll);
        let mut view = View { scroll, ..self.view };
        if view.scaling == Scaling::EachSegment {
            let part = offset / placement.line_bytes.max(1) as f64 - line;
            let shown = 1.0 / view.column_zoom;
            if part < view.column_start || part >= view.column_start + shown {
                view.column_start = part - shown / 2.0;
            }
        }
        Some(view.clamped())
    }

    /// Returns the placement of the region that contains `address`, and the distance in bytes from
    /// the region's start to the address; `None` if no region contains it.
    fn position(&self, address: u64) -> Option<(&Placement, f64)> {
        let region = self.regions.index_at(address)?;
        let placement = self.placements.iter().find(|placement| placement.region as usize == region)?;
        Some((placement, (address - self.regions.list()[region].segment.address) as f64))
    }

    /// Returns the view in which each byte is drawn `factor` times as wide. The address at pixel
    /// (`x`, `y`) stays at this pixel. If all segments have one scale, a line then holds another
    /// number of bytes, and the address keeps only its height `y`.
    pub fn zoom_columns(&self, device: &DeviceState, factor: f64, (x, y): (i32, i32)) -> View {
        let view = View { column_zoom: self.view.column_zoom * factor, ..self.view }.clamped();
        if view.scaling == Scaling::EachSegment {
            let part = f64::from((x - self.map.x0).clamp(0, self.map.width())) / f64::from(self.map.width());
            let pointed = self.view.column_start + part / self.view.column_zoom;
            return View { column_start: pointed - part / view.column_zoom, ..view }.clamped();
        }
        let Some(row) = self.row_at(x, y) else {
            let ratio = view.column_zoom / self.view.column_zoom;
            let above = f64::from(y - self.map.y0);
            let scroll = (f64::from(self.scroll) + above) * ratio - above;
            return View { scroll: scroll.max(0.0) as i32, ..view };
        };
        let offset = row.offset + f64::from((x - row.x0).clamp(0, row.x1 - row.x0 - 1)) * row.bytes_per_pixel;
        let address = row.segment.address.saturating_add(offset as u64).min(row.segment.end() - 1);
        let zoomed = Self::new(device, self.size, self.scale, view);
        let Some((placement, offset)) = zoomed.position(address) else { return view };
        let line = (offset / placement.line_bytes.max(1) as f64).floor().min(f64::from(placement.lines - 1));
        let top = placement.y + line * placement.line_height;
        let scroll = (top - f64::from(row.y0 - self.map.y0)).clamp(0.0, f64::from(zoomed.max_scroll)) as i32;
        View { scroll, ..view }
    }

    /// Returns the view with rows `factor` times as high, scrolled so that the row at `y` pixels
    /// from the picture's top stays there.
    pub fn zoom_rows(&self, factor: f32, y: i32) -> View {
        let view = View { zoom: self.view.zoom * factor, ..self.view }.clamped();
        let above = f64::from(y - self.map.y0);
        let scroll = (f64::from(self.scroll) + above) * f64::from(view.zoom / self.view.zoom) - above;
        View { scroll: scroll.max(0.0) as i32, ..view }
    }

    /// Returns the view moved by (`x`, `y`) pixels. For positive numbers the map's content moves
    /// left and up. The result is clamped to the content's edges.
    pub fn pan(&self, x: i32, y: i32) -> View {
        let part = f64::from(x) / f64::from(self.map.width()) / self.view.column_zoom;
        let scroll = self.scroll.saturating_add(y).clamp(0, self.max_scroll);
        View { scroll, column_start: self.view.column_start + part, ..self.view }.clamped()
    }
}

/// Returns the block or free range that contains `address`; `None` outside of all segments.
///
/// The cost does not depend on the number of the segment's blocks, except in a large free range.
pub(crate) fn hit_at(device: &DeviceState, address: u64) -> Option<Hit> {
    let segment = *device.segment_at(address)?;
    if let Some(&block) = device.block_at(address).filter(|block| block.address >= segment.address) {
        let size = block.end().min(segment.end()) - block.address;
        return Some(Hit { segment, address: block.address, size, block: Some(block) });
    }
    let above = Segment { address, size: segment.end() - address, ..segment };
    let end = address + device.extents(&above).next()?.size;
    let start = free_start(device, &segment, address);
    Some(Hit { segment, address: start, size: end - start, block: None })
}

/// Returns the start of the free range that contains `address`: the end of the last block of the
/// segment below `address`, or the segment's start.
fn free_start(device: &DeviceState, segment: &Segment, address: u64) -> u64 {
    let mut until = address;
    let mut distance = 1u64 << 12;
    // Searches downwards in ranges of doubling size, so that few blocks are visited.
    while until > segment.address {
        let from = address.saturating_sub(distance).max(segment.address);
        let range = Segment { address: from, size: until - from, ..*segment };
        let inside = device.extents(&range).filter_map(|extent| extent.block).last().map(|block| block.end());
        let across = device.block_at(from).filter(|block| block.address >= segment.address).map(|block| block.end());
        if let Some(end) = inside.max(across) {
            return end.clamp(segment.address, address);
        }
        until = from;
        distance = distance.saturating_mul(2);
    }
    segment.address
}
