//! Which row stands where, and what lies under a pixel.

use vramscope_trace::{Block, DeviceState, Segment};

use super::slices::slices;
use crate::frame::{Frame, Rect};

/// The lowest a row gets, with the line between it and the next, in units.
const LOWEST: f32 = 3.0;
/// Where there is room for it no row is lower than this, so that each can carry its label.
const LABELLED: f32 = 14.0;
/// The highest a row gets.
const HIGHEST: f32 = 56.0;

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

/// A segment's row. `y0..y1` are pixels of the picture, and may lie outside of the map where it is scrolled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The segment.
    pub segment: Segment,
    /// The first pixel row.
    pub y0: i32,
    /// The first pixel row below.
    pub y1: i32,
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
        let x0 = px(Self::GUTTER).min(width - 1);
        let y0 = px(Self::HEADER).min(height - 1);
        let map = Rect::new(x0, y0, (width - px(Self::MARGIN)).max(x0 + 1), (height - px(2.0)).max(y0 + 1));
        let pitches = pitches(device, f64::from(map.height()), scale, view.zoom.max(1.0));
        let total = pitches.iter().sum::<f64>().ceil().min(1e8) as i32;
        let scroll_end = (total - map.height()).max(0);
        let scroll = view.scroll.clamp(0, scroll_end);
        let gap = px(1.0).max(1);
        let mut at = f64::from(map.y0 - scroll);
        let rows = device.segments().zip(pitches).map(|(&segment, pitch)| {
            let top = at;
            at += pitch;
            Row { segment, y0: top.round() as i32, y1: (at.round() as i32 - gap).max(top.round() as i32 + 1) }
        });
        Self { rows: rows.collect(), map, scroll_end, scroll, scale }
    }

    /// Units left of the map.
    pub(super) const GUTTER: f32 = 164.0;
    /// Units right of the map.
    pub(super) const MARGIN: f32 = 78.0;
    /// Units above the map.
    pub(super) const HEADER: f32 = 18.0;

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

    /// The row of the segment that holds `address`.
    #[must_use]
    pub fn row_of(&self, address: u64) -> Option<&Row> {
        let after = self.rows.partition_point(|row| row.segment.address <= address);
        self.rows.get(after.checked_sub(1)?).filter(|row| address < row.segment.end())
    }

    /// What is drawn at a pixel. Left and right of the map it is what the row begins and ends with.
    #[must_use]
    pub fn hit(&self, device: &DeviceState, x: i32, y: i32) -> Option<Hit> {
        let segment = self.row_at(y)?.segment;
        let column = (x - self.map.x0).clamp(0, self.map.width() - 1) as usize;
        let slice = *slices(device, &segment, self.map.width() as usize).get(column)?;
        hit_at(device, slice.most)
    }

    /// The pixel columns that a range of a segment covers, at least one.
    #[must_use]
    pub fn columns(&self, segment: &Segment, address: u64, size: u64) -> (i32, i32) {
        let per_byte = f64::from(self.map.width()) / segment.size.max(1) as f64;
        let begin = address.saturating_sub(segment.address) as f64 * per_byte;
        let end = begin + size as f64 * per_byte;
        let x0 = (self.map.x0 + begin.round() as i32).min(self.map.x1 - 1);
        (x0, (self.map.x0 + end.round() as i32).clamp(x0 + 1, self.map.x1))
    }

    /// How far to scroll so that the row of `address` is in view; `None` if it is, or has no row.
    #[must_use]
    pub fn scroll_to(&self, address: u64) -> Option<i32> {
        let row = self.row_of(address)?;
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

/// The height of every row with the line below it.
fn pitches(device: &DeviceState, room: f64, scale: f32, zoom: f32) -> Vec<f64> {
    let highest = f64::from(HIGHEST * scale * zoom);
    let weights: Vec<f64> = device.segments().map(|segment| (segment.size as f64).sqrt()).collect();
    let (least, labelled) = (f64::from((LOWEST * scale).round()), f64::from(LABELLED * scale));
    // Of the room, a part is kept for showing which segments are larger.
    let lowest = (room * 0.7 / weights.len().max(1) as f64).clamp(least, labelled);
    let least = lowest * weights.len() as f64;
    // Where not even the lowest rows fit, the map scrolls, and a larger segment may look larger again.
    let goal = if least > room { least * 1.5 } else { room } * f64::from(zoom);
    let at = |factor: f64| weights.iter().map(move |weight| (weight * factor).clamp(lowest, highest));
    let (mut low, mut high) = (0.0, highest / weights.iter().copied().fold(f64::INFINITY, f64::min).max(1.0));
    if weights.is_empty() {
        return Vec::new();
    }
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
