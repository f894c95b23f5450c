//! Which row stands where, and what lies under a pixel.

use std::ops::Range;

use vramscope_trace::{Block, DeviceState, Segment};

use super::slices::{Slice, slices};
use crate::frame::{Frame, Rect};

/// The lowest a row gets, with the line between it and the next, in units.
const LOWEST: f32 = 3.0;
/// Where there is room for it no row is lower than this, so that each can carry its label.
const LABELLED: f32 = 14.0;
/// The highest a row gets.
const HIGHEST: f32 = 56.0;

/// The least height of a row for a segment to be continued on a second one.
const CONTINUED: f32 = 22.0;
/// The least that a line of a segment that is continued stands for, in bytes: what is shorter has room on one.
const LINE_BYTES: u64 = 32 << 20;

/// Units of width below which addresses would leave the map too little; a click tells them.
const NARROW: f32 = 460.0;

/// How much of the map is looked at, and from where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Rows are this many times as high as they would be to fit; at least 1.
    pub zoom: f32,
    /// Pixels of rows above the upper edge.
    pub scroll: i32,
}

impl Default for View {
    fn default() -> Self {
        Self { zoom: 1.0, scroll: 0 }
    }
}

/// A segment's row, or a line of one that is continued over several. `y0..y1` are pixels of the picture, and may lie outside of the
/// map where it is scrolled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The segment.
    pub segment: Segment,
    /// Which of its lines it is.
    pub line: u32,
    /// How many lines it has.
    pub lines: u32,
    /// How many bytes a line stands for; the last one of several may end before the map does.
    pub line_bytes: u64,
    /// The first pixel row.
    pub y0: i32,
    /// The first pixel row below.
    pub y1: i32,
}

impl Row {
    /// The first address that it shows.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.segment.address.saturating_add(u64::from(self.line).saturating_mul(self.line_bytes))
    }
}

/// Where everything stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The rows, from the lowest address.
    pub rows: Vec<Row>,
    /// Where the blocks are drawn.
    pub map: Rect,
    /// How far the map can be scrolled, in pixels.
    pub scroll_end: i32,
    /// How far it is.
    pub scroll: i32,
    /// Pixels to the unit.
    pub scale: f32,
    /// Whether there is no room for addresses.
    pub is_narrow: bool,
}

/// What lies under a pixel: a segment, and the stretch of it that most of the pixel's column shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The segment.
    pub segment: Segment,
    /// First byte of the stretch.
    pub address: u64,
    /// Bytes of it.
    pub size: u64,
    /// The live block, or `None` for free space.
    pub block: Option<Block>,
}

impl Layout {
    /// The layout of a device's segments in a picture of `width` by `height` pixels at `scale` pixels to the unit.
    #[must_use]
    pub fn new(device: &DeviceState, (width, height): (u32, u32), scale: f32, view: View) -> Self {
        let px = |units: f32| (units * scale).round() as i32;
        let (width, height) = (width.min(Frame::MAX_SIDE) as i32, height.min(Frame::MAX_SIDE) as i32);
        let is_narrow = width < px(NARROW);
        let x0 = px(if is_narrow { Self::NARROW_GUTTER } else { Self::GUTTER }).min(width - 1);
        let y0 = px(Self::HEADER).min(height - 1);
        let map = Rect::new(x0, y0, (width - px(Self::MARGIN)).max(x0 + 1), (height - px(2.0)).max(y0 + 1));
        let room = f64::from(map.height());
        let longest = line_bytes(device, (room / f64::from(CONTINUED * scale)) as u64);
        let mut rows: Vec<Row> = device
            .segments()
            .flat_map(|&segment| {
                let lines = segment.size.div_ceil(longest).max(1) as u32;
                let line_bytes = if lines == 1 { segment.size.max(1) } else { longest };
                (0..lines).map(move |line| Row { segment, line, lines, line_bytes, y0: 0, y1: 0 })
            })
            .collect();
        let pitches = pitches(&rows, room, scale, view.zoom.max(1.0));
        let total = pitches.iter().sum::<f64>().ceil().min(1e8) as i32;
        let scroll_end = (total - map.height()).max(0);
        let scroll = view.scroll.clamp(0, scroll_end);
        let gap = px(1.0).max(1);
        let mut at = f64::from(map.y0 - scroll);
        for (row, pitch) in rows.iter_mut().zip(pitches) {
            row.y0 = at.round() as i32;
            at += pitch;
            row.y1 = (at.round() as i32 - gap).max(row.y0 + 1);
        }
        Self { rows, map, scroll_end, scroll, scale, is_narrow }
    }

    /// Units left of the map: for addresses and sizes, and for sizes alone.
    const GUTTER: f32 = 164.0;
    const NARROW_GUTTER: f32 = 66.0;
    /// Units right of the map.
    pub(super) const MARGIN: f32 = 78.0;
    /// Units above the map.
    pub(crate) const HEADER: f32 = 18.0;

    /// The rows that can be seen.
    pub fn visible(&self) -> impl Iterator<Item = &Row> + '_ {
        let first = self.rows.partition_point(|row| row.y1 <= self.map.y0);
        self.rows[first..].iter().take_while(|row| row.y0 < self.map.y1)
    }

    /// The row at a pixel's height.
    #[must_use]
    pub fn row_at(&self, y: i32) -> Option<&Row> {
        if y < self.map.y0 || y >= self.map.y1 {
            return None;
        }
        // The line below a row belongs to it, so that there is no height at which nothing is hit.
        let after = self.rows.partition_point(|row| row.y0 <= y);
        let row = self.rows.get(after.checked_sub(1)?)?;
        let next = self.rows.get(after).map_or(row.y1, |next| next.y0);
        (y < next).then_some(row)
    }

    /// The rows of the segment that holds `address`.
    #[must_use]
    pub fn rows_of(&self, address: u64) -> &[Row] {
        let after = self.rows.partition_point(|row| row.segment.address <= address);
        let Some(last) = after.checked_sub(1).map(|last| self.rows[last]).filter(|row| address < row.segment.end())
        else {
            return &[];
        };
        &self.rows[after - last.lines as usize..after]
    }

    /// The columns of all lines of a row's segment, one after the other.
    pub(super) fn slices<'a>(&self, device: &'a DeviceState, row: &Row) -> Vec<Slice<'a>> {
        slices(device, &row.segment, self.map.width() as usize, row.line_bytes)
    }

    /// Which of a segment's columns a line shows.
    pub(super) fn line_columns(&self, row: &Row) -> Range<usize> {
        let width = self.map.width() as usize;
        row.line as usize * width..(row.line as usize + 1) * width
    }

    /// What is drawn at a pixel. Left and right of the map it is what the row begins and ends with.
    #[must_use]
    pub fn hit(&self, device: &DeviceState, x: i32, y: i32) -> Option<Hit> {
        let row = self.row_at(y)?;
        let column = (x - self.map.x0).clamp(0, self.map.width() - 1) as usize;
        let slices = self.slices(device, row);
        let line = slices.get(self.line_columns(row))?;
        let slice = line[..=column].iter().rfind(|slice| !slice.is_outside())?;
        hit_at(device, slice.most)
    }

    /// The pixel columns that a range of a segment covers on one of its lines, at least one if it is on that line at all.
    #[must_use]
    pub fn columns(&self, row: &Row, address: u64, size: u64) -> Option<(i32, i32)> {
        let width = i64::from(self.map.width());
        let all = width * i64::from(row.lines);
        let per_byte = width as f64 / row.line_bytes as f64;
        let begin = address.saturating_sub(row.segment.address) as f64 * per_byte;
        let end = begin + size as f64 * per_byte;
        let begin = (begin.round() as i64).min(all - 1);
        let end = (end.round() as i64).clamp(begin + 1, all);
        let left = width * i64::from(row.line);
        let (from, to) = ((begin - left).max(0), (end - left).min(width));
        (from < to).then(|| (self.map.x0 + from as i32, self.map.x0 + to as i32))
    }

    /// How far to scroll so that the row of `address` is in view; `None` if it is, or has no row.
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

/// The stretch of a segment that holds `address`.
pub(crate) fn hit_at(device: &DeviceState, address: u64) -> Option<Hit> {
    let segment = *device.segment_at(address)?;
    let extent = device.extents(&segment).find(|extent| address - extent.address < extent.size)?;
    Some(Hit { segment, address: extent.address, size: extent.size, block: extent.block.copied() })
}

/// The least number of bytes that a line stands for where there is room for `most` lines; a longer segment is continued on the next.
fn line_bytes(device: &DeviceState, most: u64) -> u64 {
    let lines =
        |bytes: u64| device.segments().map(|segment| segment.size.div_ceil(bytes).max(1)).fold(0, u64::saturating_add);
    let longest = device.segments().map(|segment| segment.size).fold(LINE_BYTES, u64::max);
    // In whole units, so that the addresses at which lines begin can be read.
    let (mut low, mut high) = (1, longest.div_ceil(LINE_BYTES));
    while low < high {
        let middle = low + (high - low) / 2;
        if lines(middle.saturating_mul(LINE_BYTES)) > most {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low.saturating_mul(LINE_BYTES)
}

/// The height of every row with the line below it.
fn pitches(rows: &[Row], room: f64, scale: f32, zoom: f32) -> Vec<f64> {
    if rows.is_empty() {
        return Vec::new();
    }
    let highest = f64::from(HIGHEST * scale * zoom);
    let weights: Vec<f64> = rows.iter().map(|row| (row.line_bytes as f64).sqrt()).collect();
    let (least, labelled) = (f64::from((LOWEST * scale).round()), f64::from(LABELLED * scale));
    // Of the room, a part is kept for showing which segments are larger.
    let lowest = (room * 0.7 / weights.len() as f64).clamp(least, labelled);
    let least = lowest * weights.len() as f64;
    // Where not even the lowest rows fit, the map scrolls, and a larger segment may look larger again.
    let goal = if least > room { least * 1.5 } else { room } * f64::from(zoom);
    let at = |factor: f64| weights.iter().map(move |weight| (weight * factor).clamp(lowest, highest));
    let (mut low, mut high) = (0.0, highest / weights.iter().copied().fold(f64::INFINITY, f64::min).max(1.0));
    for _ in 0..48 {
        let middle = (low + high) / 2.0;
        if at(middle).sum::<f64>() > goal {
            high = middle;
        } else {
            low = middle;
        }
    }
    at(low).collect()
}
