//! Positions of all segments on the heatmap: heights and lines of each scaling.

use std::ops::Range;

use vramscope_trace::sort::sort_by;

use super::regions::Regions;
use super::view::View;
use crate::bitmap::Rect;

/// Minimum height of a row including the line below it, in units (pixels at scale 1); if not all
/// rows fit at this height, the map scrolls.
const MIN_ROW: f32 = 3.0;
/// Height of a row with room for its label, in units (pixels at scale 1); rows are at least this
/// high if all of them then fit.
const LABELLED_ROW: f32 = 14.0;
/// Maximum height of a row at zoom 1, in units (pixels at scale 1).
const MAX_ROW: f32 = 56.0;

/// Height set aside for each line when large segments are divided into lines, in units (pixels at
/// scale 1); it limits the number of lines.
const CONTINUED_ROW: f32 = 22.0;
/// Minimum bytes per line of a segment that is divided into several lines; smaller segments have
/// one line.
const LINE_BYTES: u64 = 32 << 20;

/// Heights of a line with the common scale, in units (pixels at scale 1); the first is used with
/// which everything fits at a scale near the finest possible one.
const COMMON_ROWS: [f32; 3] = [18.0, 10.0, 6.0];
/// Space between segments that share a line, in units (pixels at scale 1).
const SEGMENT_GAP: f32 = 4.0;
/// Minimum width of a segment with the common scale, in units (pixels at scale 1).
const MIN_WIDTH: f32 = 2.0;
/// Fewest bytes that a pixel column stands for with the common scale; the allocator's blocks are
/// multiples of 512 bytes.
const MIN_BYTES_PER_PIXEL: f64 = 8.0;

/// Maximum height of all rows together, in pixels; rows further down cannot be reached.
pub(super) const MAX_HEIGHT: f64 = 1e8;

/// The position of a region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Placement {
    /// Index of the region in [`Regions::list`].
    pub(super) region: u32,
    /// Upper edge of the first line in pixels, from the first row's upper edge.
    pub(super) y: f64,
    /// Height of a line in pixels, including the gap below it.
    pub(super) line_height: f64,
    /// Number of lines, at least 1.
    pub(super) lines: u32,
    /// Bytes on a line across the whole map.
    pub(super) line_bytes: u64,
    /// Left edge in pixels from the map's left edge.
    pub(super) x: i32,
    /// Pixel columns of all lines together.
    pub(super) columns: i64,
}

impl Placement {
    /// Returns the lower edge of the last line in pixels, from the first row's upper edge.
    pub(super) fn end(&self) -> f64 {
        self.y + f64::from(self.lines) * self.line_height
    }
}

/// Positions of all regions.
pub(super) struct Placements {
    /// In the order of the rows.
    pub(super) placements: Vec<Placement>,
    /// Height of all rows in pixels.
    pub(super) height: f64,
    /// Bytes per pixel column, if all regions have one scale.
    pub(super) common_bytes_per_pixel: Option<f64>,
}

/// Places every region to its own scale: as wide as the map, a large one on several lines if there
/// is room.
pub(super) fn each_segment(regions: &Regions, order: &[u32], map: Rect, scale: f32, zoom: f32) -> Placements {
    let available = f64::from(map.height());
    let max_line_bytes = max_line_bytes(regions, (available / f64::from(CONTINUED_ROW * scale)) as u64);
    // Bytes per line and number of lines.
    let shape = |size: u64| {
        let lines = size.div_ceil(max_line_bytes).max(1);
        (if lines == 1 { size.max(1) } else { max_line_bytes }, lines.min(1 << 20) as u32)
    };
    let mut shapes: Vec<(u64, u32)> = regions.list().iter().map(|region| shape(region.segment.size)).collect();
    sort_by(&mut shapes, Ord::cmp);
    let mut counts: Vec<(u64, u64)> = Vec::new();
    for (line_bytes, lines) in shapes {
        match counts.last_mut().filter(|(bytes, _)| *bytes == line_bytes) {
            Some((_, count)) => *count += u64::from(lines),
            None => counts.push((line_bytes, u64::from(lines))),
        }
    }
    let height = row_height(&counts, available, scale, zoom.max(1.0));
    let mut y = 0.0;
    let placements = order
        .iter()
        .map(|&region| {
            let size = regions.list()[region as usize].segment.size;
            let (line_bytes, lines) = shape(size);
            let columns = i64::from(lines) * i64::from(map.width());
            let placement = Placement { region, y, line_height: height(line_bytes), lines, line_bytes, x: 0, columns };
            y = placement.end();
            placement
        })
        .collect();
    Placements { placements, height: y, common_bytes_per_pixel: None }
}

/// Returns the fewest bytes per line, a multiple of [`LINE_BYTES`], with which all regions fit on
/// `max_lines` lines; the size of the largest region if that is impossible.
fn max_line_bytes(regions: &Regions, max_lines: u64) -> u64 {
    let sizes = || regions.list().iter().map(|region| region.segment.size);
    let largest = sizes().fold(LINE_BYTES, u64::max);
    // A multiple of LINE_BYTES, so that lines begin at round addresses.
    let (mut low, mut high) = (1, largest.div_ceil(LINE_BYTES));
    if regions.list().len() as u64 > max_lines {
        low = high;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        let bytes = middle.saturating_mul(LINE_BYTES);
        if sizes().map(|size| size.div_ceil(bytes).max(1)).fold(0, u64::saturating_add) > max_lines {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low.saturating_mul(LINE_BYTES)
}

/// Returns a function from a line's bytes to its height in pixels, including the gap below it.
/// `counts` has the number of lines for each number of bytes.
///
/// The heights add up to `available` pixels times `zoom`; to less if all rows have the greatest
/// height, to more if the lowest rows do not fit. They grow with the square root of a row's bytes,
/// between [`MIN_ROW`] and [`MAX_ROW`] units.
fn row_height(counts: &[(u64, u64)], available: f64, scale: f32, zoom: f32) -> impl Fn(u64) -> f64 {
    let max = f64::from(MAX_ROW * scale * zoom);
    let rows = counts.iter().map(|&(_, count)| count).sum::<u64>().max(1) as f64;
    let weight = |bytes: u64| (bytes as f64).sqrt();
    let (least, labelled) = (f64::from((MIN_ROW * scale).round()), f64::from(LABELLED_ROW * scale));
    // 30% of the height remain for showing which segments are larger.
    let min = (available * 0.7 / rows).clamp(least, labelled.max(least));
    let min_total = min * rows;
    // If not even the lowest rows fit, the map scrolls and can show sizes again.
    let goal = if min_total > available { min_total * 1.5 } else { available } * f64::from(zoom);
    let total = |factor: f64| {
        let heights = counts.iter().map(|&(bytes, count)| (weight(bytes) * factor).clamp(min, max) * count as f64);
        heights.sum::<f64>()
    };
    let least_weight = counts.first().map_or(1.0, |&(bytes, _)| weight(bytes).max(1.0));
    let (mut low, mut high) = (0.0, max / least_weight);
    for _ in 0..48 {
        let middle = (low + high) / 2.0;
        if total(middle) > goal {
            high = middle;
        } else {
            low = middle;
        }
    }
    move |bytes| (weight(bytes) * low).clamp(min, max)
}

/// The pixel sizes that the common scale needs.
#[derive(Clone, Copy)]
struct Flow {
    /// Width of a line in pixels.
    width: i32,
    /// Pixels between segments on a line.
    gap: i32,
    /// Least width of a segment in pixels.
    min_width: i32,
    /// Whether several segments may share a line.
    is_shared: bool,
}

impl Flow {
    /// Calls `place` with the line, the left edge and the number of pixel columns of each of the
    /// sizes, placed one after the other, and returns the number of lines.
    fn place(self, sizes: impl Iterator<Item = u64>, line_bytes: u64, mut place: impl FnMut(u64, i32, i64)) -> u64 {
        let width = i64::from(self.width);
        let per_byte = width as f64 / line_bytes.max(1) as f64;
        let (mut line, mut x) = (0u64, 0i64);
        for size in sizes {
            let columns = ((size as f64 * per_byte).ceil() as i64).max(i64::from(self.min_width));
            let is_first = x == 0;
            if !is_first && (x + columns > width || !self.is_shared) {
                line += 1;
                x = 0;
            }
            place(line, x as i32, columns);
            let last_line = (columns - 1).max(0) / width;
            line = line.saturating_add(last_line as u64);
            x += columns - last_line * width + i64::from(self.gap);
        }
        line + u64::from(x > 0)
    }
}

/// Places all regions to one scale: an area of pixels stands for equally many bytes everywhere.
///
/// The scale is the finest one with which everything fits, if possible. Each region begins on a
/// line of its own if that makes the scale at most half as fine again; else small regions share
/// lines.
pub(super) fn common_scale(regions: &Regions, order: &[u32], map: Rect, scale: f32, view: View) -> Placements {
    let px = |units: f32| ((units * scale).round() as i32).max(1);
    let sizes = || order.iter().map(|&region| regions.list()[region as usize].segment.size);
    let total = sizes().fold(0, u64::saturating_add).max(1);
    let shared = Flow { width: map.width(), gap: px(SEGMENT_GAP), min_width: px(MIN_WIDTH), is_shared: true };
    let unshared = Flow { is_shared: false, ..shared };
    let mut fit = (COMMON_ROWS[COMMON_ROWS.len() - 1], shared, total);
    for height in COMMON_ROWS {
        let max_lines = (f64::from(map.height()) / f64::from(height * scale)).floor().max(1.0) as u64;
        let finest = total.div_ceil(max_lines).max(1);
        let bytes = |flow: Flow, most: f64| {
            line_bytes(finest..(finest as f64 * most) as u64, |bytes| {
                flow.place(sizes(), bytes, |_, _, _| {}) <= max_lines
            })
        };
        let Some(shared_bytes) = bytes(shared, 4.0) else { continue };
        fit = match bytes(unshared, 6.0).filter(|&bytes| bytes as f64 <= shared_bytes as f64 * 1.5) {
            Some(bytes) => (height, unshared, bytes),
            None => (height, shared, shared_bytes),
        };
        break;
    }
    let (height, flow, fit_bytes) = fit;
    let line_height = f64::from((height * scale).round() * view.zoom);
    // A scale that is too fine for the greatest height would make the end unreachable.
    let least = (MIN_BYTES_PER_PIXEL * f64::from(map.width())).max(total as f64 * line_height / (MAX_HEIGHT * 0.9));
    let zoomed = round_bytes(((fit_bytes as f64 / view.column_zoom).max(least)) as u64);
    let line_bytes = if view.column_zoom > 1.0 { zoomed } else { fit_bytes };
    let mut placements = Vec::with_capacity(order.len());
    let mut regions_in_order = order.iter();
    let lines = flow.place(sizes(), line_bytes, |line, x, columns| {
        let Some(&region) = regions_in_order.next() else { return };
        let lines = ((columns - 1).max(0) / i64::from(map.width()) + 1) as u32;
        placements.push(Placement { region, y: line as f64 * line_height, line_height, lines, line_bytes, x, columns });
    });
    let common_bytes_per_pixel = Some(line_bytes as f64 / f64::from(map.width()));
    Placements { placements, height: lines as f64 * line_height, common_bytes_per_pixel }
}

/// Returns the fewest bytes of a range with which everything fits, to within a few percent; `None`
/// if it does not fit at the range's end. A fit at some number of bytes is assumed to be one at
/// more.
fn line_bytes(range: Range<u64>, fits: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high) = (range.start, round_bytes(range.end));
    if !fits(high) {
        return None;
    }
    for _ in 0..7 {
        let middle = round_bytes(((low as f64) * (high as f64)).sqrt() as u64);
        if middle >= high {
            break;
        }
        if fits(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high)
}

/// Rounds a number of bytes up by at most 3%, so that lines begin at round addresses, and the scale
/// seldom changes from moment to moment.
fn round_bytes(bytes: u64) -> u64 {
    let step = 1u64 << bytes.max(1).ilog2().saturating_sub(5);
    bytes.max(1).checked_next_multiple_of(step).unwrap_or(bytes)
}
