//! Positions of the map's rows, and the memory under a pixel.
//!
//! Rows continue each other like lines of text, at one scale. Each segment begins on a row of its
//! own if that takes little more space; else segments follow each other without a gap.

use vramscope_draw::picture::px;
use vramscope_draw::{Bitmap, Rect};
use vramscope_trace::DeviceState;

use super::hit::{Hit, hit_at};
use super::memory_line::MemoryLine;
use super::view::View;

/// Height of a row with the gap below it, in units (pixels at scale 1).
const ROW: f32 = 15.0;
/// Width of the picture in units below which there is no axis left of the map.
const NARROW_WIDTH: f32 = 360.0;
/// Width left of the map, for its axis, in units.
const AXIS_WIDTH: f32 = 62.0;
/// Width right of the map, for the scroll bar, in units.
const MARGIN: f32 = 9.0;
/// Height of the captions above the map, in units.
const CAPTION: f32 = 18.0;
/// Height of the strip that shows the whole device, in units.
const STRIP: f32 = 13.0;
/// Space between the strip and the map, in units.
const STRIP_GAP: f32 = 6.0;
/// Minimum height of a picture with the strip, in units.
const LEAST_WITH_STRIP: f32 = 120.0;
/// Maximum height of all rows together, in pixels; rows further down cannot be reached.
const MAX_HEIGHT: f64 = 1e8;
/// Minimum number of bytes in a row as wide as the map, for each pixel column: the allocator's
/// blocks are multiples of 512 bytes.
const LEAST_BYTES_PER_COLUMN: f64 = 8.0;
/// How many times as many rows the map may have for each segment to begin on a row of its own.
const MOST_FOR_OWN_ROWS: f64 = 1.25;
/// Share of the device that the pool must reserve for the first view to show the whole device.
const WHOLE_DEVICE_SHARE: f64 = 0.4;

/// A row of the map that is at least partly in view. Positions are pixels from the picture's upper
/// left corner; a row may extend beyond the map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// First pixel row.
    pub y0: i32,
    /// First pixel row below the row.
    pub y1: i32,
    /// Position of the row's first byte on the memory line.
    pub start: f64,
    /// Position after the row's last byte.
    pub end: f64,
    /// Index of the part of the line with which the row begins.
    pub part: usize,
    /// Whether the part's first byte is the row's first one.
    pub begins_part: bool,
}

/// A part of the picture that moves the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapControl {
    /// The strip that shows the whole device.
    Strip,
    /// The scroll bar.
    ScrollBar,
}

/// The positions at which the map shows the memory of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The rows in view, from the top.
    pub rows: Vec<Row>,
    /// The map: the part of the picture with the rows.
    pub map: Rect,
    /// The strip above the map that shows the whole device; empty in a low picture.
    pub strip: Rect,
    /// Pixels per unit of length.
    pub scale: f32,
    /// The view, with zoom and scroll position clamped to their bounds.
    pub view: View,
    /// The factor by which bytes are wider than if the whole pool fits the map.
    pub zoom: f64,
    /// Number of bytes in a row as wide as the map.
    pub row_bytes: f64,
    /// Maximum scroll position, in pixels.
    pub max_scroll: i32,
    /// Scroll position in pixels.
    pub scroll: i32,
    /// Height of a row with the gap below it, in pixels.
    row_height: i32,
    /// The first row of each part of the line; empty if parts follow each other without a gap.
    first_rows: Vec<u64>,
    /// Number of all rows.
    row_count: u64,
    /// Number of bytes of the line that the rows show: the pool, or all.
    pub(super) bytes: u64,
    /// Smallest and largest zoom.
    zooms: (f64, f64),
}

/// Returns the number of rows for the first `bytes` of a line if each part begins on a row of its
/// own.
fn own_row_count(line: &MemoryLine, bytes: u64, row_bytes: f64) -> f64 {
    let parts = line.parts.iter().take_while(|part| part.start < bytes);
    parts.map(|part| (part.bytes as f64 / row_bytes).ceil()).sum()
}

/// Returns the fewest bytes in a row with which the first `bytes` of a line fit into `rows` rows,
/// and with which `least_bytes` would. Each part begins on a row of its own if that takes at most
/// [`MOST_FOR_OWN_ROWS`] times as many bytes in a row.
fn fitting_row_bytes(line: &MemoryLine, bytes: u64, least_bytes: u64, rows: f64) -> f64 {
    // A little more, so that rounding errors add no row.
    let dense = bytes.max(least_bytes) as f64 / rows * (1.0 + 1e-9);
    let (mut low, mut high) = (dense, dense * MOST_FOR_OWN_ROWS);
    if own_row_count(line, bytes, high) > rows {
        return dense;
    }
    for _ in 0..24 {
        let middle = f64::midpoint(low, high);
        if own_row_count(line, bytes, middle) > rows {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

impl Layout {
    /// Computes the layout for a picture of `size` pixels (width, height) with `scale` pixels per
    /// unit of length. The cost is linear in the number of segments.
    #[must_use]
    pub fn new(line: &MemoryLine, size: (u32, u32), scale: f32, view: View) -> Self {
        let px = |units| px(units, scale);
        let (width, height) = (size.0.min(Bitmap::MAX_SIDE) as i32, size.1.min(Bitmap::MAX_SIDE) as i32);
        let x0 = if width < px(NARROW_WIDTH) { px(2.0) } else { px(AXIS_WIDTH) }.min(width - 1);
        let x1 = (width - px(MARGIN)).max(x0 + 1);
        let top = px(CAPTION).min(height - 1);
        let has_strip = height >= px(LEAST_WITH_STRIP);
        let strip = Rect::new(x0, top, x1, if has_strip { top + px(STRIP) } else { top });
        let y0 = if has_strip { strip.y1 + px(STRIP_GAP) } else { top };
        let map = Rect::new(x0, y0, x1, (height - px(2.0)).max(y0 + 1));
        let row_height = px(ROW).max(2);
        let rows = f64::from((map.height() / row_height).max(1));
        let pool = match (line.pool_bytes(), line.largest_pool_bytes()) {
            (0, 0) => line.end().max(1),
            (0, largest) => largest,
            (pool, _) => pool,
        };
        let largest_pool = line.largest_pool_bytes().max(pool);
        let bytes = line.end().max(largest_pool);
        let of_pool = fitting_row_bytes(line, pool, largest_pool, rows).max(line.least_row_bytes);
        let of_device = fitting_row_bytes(line, line.end(), bytes, rows);
        // A longer line would exceed the maximum height.
        let least = (LEAST_BYTES_PER_COLUMN * f64::from(map.width()))
            .max(bytes as f64 * f64::from(row_height) / (MAX_HEIGHT * 0.5));
        let zooms = ((of_pool / of_device).min(1.0), (of_pool / least).clamp(1.0, View::MAX_ZOOM));
        // Decided by the largest pool of the recording, so that another moment changes nothing.
        let is_whole = largest_pool as f64 >= bytes as f64 * WHOLE_DEVICE_SHARE;
        let first = if is_whole { zooms.0 } else { 1.0 };
        let zoom = view.zoom.filter(|zoom| zoom.is_finite()).unwrap_or(first).clamp(zooms.0, zooms.1);
        let row_bytes = (of_pool / zoom).max(f64::MIN_POSITIVE);
        // Of a device that is almost empty, the rest is shown only if the map is zoomed out.
        let shows_all = zoom < 1.0 || is_whole || line.pool_bytes() == 0;
        let bytes = if shows_all { line.end() } else { line.pool_bytes() };
        let dense = (pool as f64 / row_bytes).ceil().max(1.0);
        let own = own_row_count(line, pool, row_bytes);
        let mut first_rows = Vec::new();
        let mut row_count = (bytes as f64 / row_bytes).ceil() as u64;
        // With room for rounding errors of the search for the fitting number of bytes.
        let all = own_row_count(line, bytes, row_bytes);
        if own <= dense * MOST_FOR_OWN_ROWS * 1.0001 && (zoom > 1.0 || all <= rows) {
            row_count = 0;
            for part in line.parts.iter().take_while(|part| part.start < bytes) {
                first_rows.push(row_count);
                row_count += (part.bytes as f64 / row_bytes).ceil() as u64;
            }
        }
        let max_scroll = (row_count as f64 * f64::from(row_height) - f64::from(map.height())).clamp(0.0, MAX_HEIGHT);
        let max_scroll = max_scroll as i32;
        let mut layout = Self {
            rows: Vec::new(),
            map,
            strip,
            scale,
            view,
            zoom,
            row_bytes,
            max_scroll,
            scroll: 0,
            row_height,
            first_rows,
            row_count,
            bytes,
            zooms,
        };
        let scroll = match view.first_byte {
            Some(position) => layout.top_of(line, position.min(bytes.saturating_sub(1))) as i32,
            None => view.scroll,
        };
        layout.scroll = scroll.clamp(0, max_scroll);
        layout.view = View { zoom: view.zoom.map(|_| zoom), scroll: layout.scroll, ..view };
        layout.rows = layout.rows_in_view(line);
        layout
    }

    /// Returns true if each segment begins on a row of its own.
    #[must_use]
    pub fn has_own_rows(&self) -> bool {
        !self.first_rows.is_empty()
    }

    /// Returns the height of a row without the gap below it, in pixels.
    #[must_use]
    pub fn row_pixels(&self) -> i32 {
        (self.row_height - self.gap()).max(1)
    }

    /// Returns the height of the gap below a row, in pixels.
    fn gap(&self) -> i32 {
        (self.scale.round() as i32).max(1)
    }

    /// Returns the number of bytes that a pixel column stands for.
    #[must_use]
    pub fn bytes_per_column(&self) -> f64 {
        self.row_bytes / f64::from(self.map.width())
    }

    /// Computes the rows that are at least partly in view.
    fn rows_in_view(&self, line: &MemoryLine) -> Vec<Row> {
        let first = (self.scroll / self.row_height).max(0) as u64;
        let last = (self.scroll + self.map.height()).div_euclid(self.row_height) as u64 + 1;
        (first..last.min(self.row_count)).filter_map(|number| self.row(line, number)).collect()
    }

    /// Computes a row by its number from the top, from 0; `None` for an empty line.
    fn row(&self, line: &MemoryLine, number: u64) -> Option<Row> {
        let y0 = self.map.y0 + (number as f64 * f64::from(self.row_height) - f64::from(self.scroll)) as i32;
        let y1 = y0 + self.row_pixels();
        if self.first_rows.is_empty() {
            let start = number as f64 * self.row_bytes;
            let end = (start + self.row_bytes).min(self.bytes as f64);
            let part = line.part_at(start as u64)?;
            return Some(Row { y0, y1, start, end, part, begins_part: line.parts[part].start as f64 == start });
        }
        let index = self.first_rows.partition_point(|&first| first <= number).checked_sub(1)?;
        let part = line.parts.get(index)?;
        let start = part.start as f64 + (number - self.first_rows[index]) as f64 * self.row_bytes;
        let end = (start + self.row_bytes).min(part.end() as f64);
        Some(Row { y0, y1, start, end, part: index, begins_part: number == self.first_rows[index] })
    }

    /// Returns the number of the row that contains a position on the line, from 0.
    fn row_of(&self, line: &MemoryLine, position: u64) -> u64 {
        let Some(part) = line.part_at(position).filter(|&part| part < self.first_rows.len()) else {
            return (position as f64 / self.row_bytes) as u64;
        };
        let within = ((position - line.parts[part].start) as f64 / self.row_bytes) as u64;
        let rows = self.first_rows.get(part + 1).copied().unwrap_or(self.row_count) - self.first_rows[part];
        self.first_rows[part] + within.min(rows.saturating_sub(1))
    }

    /// Returns the height in pixels of the rows above the one that contains a position on the line.
    fn top_of(&self, line: &MemoryLine, position: u64) -> f64 {
        self.row_of(line, position) as f64 * f64::from(self.row_height)
    }

    /// Returns the index of the row at pixel row `y`; the gap below a row counts as part of it.
    /// `None` above the map, and below the last row.
    fn row_at(&self, y: i32) -> Option<usize> {
        let index = self.rows.partition_point(|row| row.y0 <= y).checked_sub(1)?;
        let is_inside = y >= self.map.y0 && y < self.map.y1.min(self.rows[index].y0 + self.row_height);
        is_inside.then_some(index)
    }

    /// Returns the position on the line of the byte at pixel (`x`, `y`): the middle of the bytes of
    /// its column. `None` beside the rows.
    #[must_use]
    pub fn position_at(&self, x: i32, y: i32) -> Option<u64> {
        let row = self.rows[self.row_at(y)?];
        let position = row.start + (f64::from(x - self.map.x0) + 0.5) * self.bytes_per_column();
        (x >= self.map.x0 && x < self.map.x1).then_some(())?;
        // The last column of a row may show fewer bytes.
        let is_in_last = position < row.end + self.bytes_per_column() / 2.0;
        is_in_last.then(|| (position as u64).min((row.end.ceil() as u64).saturating_sub(1)))
    }

    /// Returns the block or free range with the most bytes in pixel column `x` of the row at `y`;
    /// `None` where the pool has no memory.
    #[must_use]
    pub fn hit(&self, line: &MemoryLine, device: &DeviceState, x: i32, y: i32) -> Option<Hit> {
        let middle = self.position_at(x, y)?;
        let row = self.rows[self.row_at(y)?];
        let column = row.start + f64::from(x - self.map.x0) * self.bytes_per_column();
        let from = (column.max(row.start) as u64).min(middle);
        let to = ((column + self.bytes_per_column()).min(row.end) as u64).max(middle.saturating_add(1));
        // A column at the end of the pool may show more of another owner than of any block.
        let pool = line.pool_bytes();
        let (from, to) = if middle < pool { (from, to.min(pool)) } else { (from.max(pool), to) };
        let mut start = from;
        let mut largest = (0, middle);
        for span in &line.spans[line.span_at(from)..] {
            let bytes = span.end.min(to).saturating_sub(start);
            if bytes > largest.0 {
                largest = (bytes, start);
            }
            start = span.end;
            if start >= to {
                break;
            }
        }
        hit_at(device, line.address_at(largest.1)?)
    }

    /// Returns the pixels of each row in view that show a part of the `size` bytes at a position on
    /// the line, at least a column wide.
    pub fn areas(&self, position: u64, size: u64) -> impl Iterator<Item = Rect> + '_ {
        let (from, to) = (position as f64, position.saturating_add(size) as f64);
        let rows = self.rows.iter().filter(move |row| row.start < to && from < row.end);
        rows.map(move |row| {
            let column = |position: f64| {
                let columns = (position.clamp(row.start, row.end) - row.start) / self.bytes_per_column();
                (columns.round() as i32).min(self.map.width())
            };
            let x0 = (self.map.x0 + column(from)).min(self.map.x1 - 1);
            Rect::new(x0, row.y0, (self.map.x0 + column(to)).max(x0 + 1), row.y1)
        })
    }

    /// Returns the positions on the line of the first byte in view, and after the last one.
    #[must_use]
    pub fn shown(&self) -> (f64, f64) {
        let mut rows = self.rows.iter().filter(|row| row.y1 > self.map.y0 && row.y0 < self.map.y1);
        let (first, last) = (rows.clone().next(), rows.next_back());
        first.zip(last).map_or((0.0, 0.0), |(first, last)| (first.start, last.end))
    }

    /// Returns the view that brings a device address into view, by scrolling as little as possible;
    /// `None` if no segment contains the address.
    #[must_use]
    pub fn reveal(&self, line: &MemoryLine, address: u64) -> Option<View> {
        let top = self.top_of(line, line.position_of(address)?);
        let lowest = top + f64::from(self.row_height - self.map.height());
        Some(self.scrolled_to(f64::from(self.scroll).max(lowest).min(top)))
    }

    /// Returns the view in which bytes are `factor` times as wide. The byte at pixel (`x`, `y`)
    /// stays at its height.
    #[must_use]
    pub fn zoomed(&self, line: &MemoryLine, size: (u32, u32), factor: f64, (x, y): (i32, i32)) -> View {
        let zoom = (self.zoom * factor).clamp(self.zooms.0, self.zooms.1);
        let view = View { zoom: Some(zoom), first_byte: None, ..self.view };
        let y = y.clamp(self.map.y0, self.map.y1 - 1);
        let row = self.row_at(y).or(self.rows.len().checked_sub(1));
        let Some(row) = row.map(|index| self.rows[index]) else { return view };
        let columns = f64::from((x - self.map.x0).clamp(0, self.map.width() - 1)) + 0.5;
        let position = (row.start + columns * self.bytes_per_column()).min(row.end - 1.0).max(0.0);
        let zoomed = Self::new(line, size, self.scale, view);
        zoomed.scrolled_to(zoomed.top_of(line, position as u64) - f64::from(row.y0 - self.map.y0))
    }

    /// Returns the view that shows the same memory at the same scale and height in a later or
    /// earlier picture, whose memory is on line `new`. `old` is the line of this layout.
    #[must_use]
    pub fn followed(&self, old: &MemoryLine, new: &MemoryLine, size: (u32, u32)) -> View {
        let row = self.rows.iter().find(|row| row.y1 > self.map.y0);
        let (Some(zoom), Some(row), None) = (self.view.zoom, row, self.view.first_byte) else { return self.view };
        // Zoom is relative to the number of bytes of a row at zoom 1, which is another one now.
        let of_pool = |layout: &Self| layout.row_bytes * layout.zoom;
        let unscrolled = Self::new(new, size, self.scale, self.view);
        let view = View { zoom: Some(zoom * of_pool(&unscrolled) / of_pool(self)), ..self.view };
        let position = old.address_at(row.start.ceil() as u64).and_then(|address| new.position_of(address));
        let Some(position) = position else { return view };
        let layout = Self::new(new, size, self.scale, view);
        layout.scrolled_to(layout.top_of(new, position) - f64::from(row.y0 - self.map.y0))
    }

    /// Returns the view with the byte at a position on the line in the middle of the map.
    #[must_use]
    pub fn centered(&self, line: &MemoryLine, position: u64) -> View {
        self.scrolled_to(self.top_of(line, position) - f64::from(self.map.height() / 2))
    }

    /// Returns the control at a pixel; `None` elsewhere, and where all memory is in view.
    #[must_use]
    pub fn control_at(&self, (x, y): (i32, i32)) -> Option<MapControl> {
        let is_in = |area: Rect| x >= area.x0 && x < area.x1 && y >= area.y0 && y < area.y1;
        if is_in(self.strip) && !self.shows_whole_device() {
            return Some(MapControl::Strip);
        }
        let bar = Rect { x0: self.map.x1, x1: i32::MAX, ..self.map };
        (is_in(bar) && self.max_scroll > 0).then_some(MapControl::ScrollBar)
    }

    /// Returns true if all memory of the line is in view.
    fn shows_whole_device(&self) -> bool {
        self.max_scroll == 0 && self.zoom <= self.zooms.0
    }

    /// Returns the view that a control shows with the pointer at a pixel: the pixel's memory is in
    /// the middle of the map.
    #[must_use]
    pub fn moved_to(&self, line: &MemoryLine, control: MapControl, (x, y): (i32, i32)) -> View {
        match control {
            MapControl::Strip => {
                let column = f64::from((x - self.strip.x0).clamp(0, self.strip.width() - 1)) + 0.5;
                let position = (column / f64::from(self.strip.width()) * line.end() as f64) as u64;
                if position >= self.bytes {
                    // The map shows the pool only: show the whole device.
                    return View { zoom: Some(self.zooms.0), scroll: 0, first_byte: None, ..self.view };
                }
                self.centered(line, position)
            }
            MapControl::ScrollBar => {
                let rows = f64::from(self.max_scroll) + f64::from(self.map.height());
                let share = f64::from(y - self.map.y0) / f64::from(self.map.height().max(1));
                self.scrolled_to(share * rows - f64::from(self.map.height()) / 2.0)
            }
        }
    }

    /// Returns the view moved by `y` pixels: for a positive number the rows move up.
    #[must_use]
    pub fn scrolled(&self, y: i32) -> View {
        self.scrolled_to(f64::from(self.scroll) + f64::from(y))
    }

    /// Returns the view with another scroll position, in pixels.
    fn scrolled_to(&self, scroll: f64) -> View {
        View { scroll: scroll.clamp(0.0, f64::from(self.max_scroll)) as i32, first_byte: None, ..self.view }
    }
}
