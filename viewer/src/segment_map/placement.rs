//! Computes the positions of all segments on the heatmap, for both kinds of scaling.

use std::ops::Range;

use vramscope_draw::Rect;
use vramscope_trace::sort::sort_by;

use super::regions::Regions;
use super::view::View;

/// Minimum height of a row with the gap below it, in units (pixels at scale 1). If not all rows fit
/// at this height, the map scrolls.
const MIN_ROW: f32 = 3.0;
/// Height of a row with room for its label, in units (pixels at scale 1). Rows are at least this
/// high if all of them fit at this height.
const LABELLED_ROW: f32 = 14.0;
/// Maximum height of a row at zoom 1, in units (pixels at scale 1).
const MAX_ROW: f32 = 56.0;

/// Height of a line, in units (pixels at scale 1), that limits the number of lines into which large
/// segments are divided: all lines fit at this height.
const CONTINUED_ROW: f32 = 22.0;
/// Minimum number of bytes per line of a segment with several lines; a smaller segment has one
/// line.
const LINE_BYTES: u64 = 32 << 20;

/// Possible heights of a line with the common scale, in units (pixels at scale 1). The first one is
/// used at which all segments fit without a much coarser scale than the finest possible one.
const COMMON_ROWS: [f32; 3] = [18.0, 10.0, 6.0];
/// Space between segments that share a line, in units (pixels at scale 1).
const SEGMENT_GAP: f32 = 4.0;
/// Minimum width of a segment with the common scale, in units (pixels at scale 1).
const MIN_WIDTH: f32 = 2.0;
/// Minimum number of bytes per pixel column with the common scale, which limits zooming in; the
/// allocator's blocks are multiples of 512 bytes.
const MIN_BYTES_PER_PIXEL: f64 = 8.0;

/// Maximum height of all rows together, in pixels; rows further down cannot be reached.
pub(super) const MAX_HEIGHT: f64 = 1e8;

/// The position of a region, a segment with its holes, on the heatmap.
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
    /// Bytes that a line as wide as the map stands for.
    pub(super) line_bytes: u64,
    /// Left edge of the first line, in pixels from the map's left edge.
    pub(super) x: i32,
    /// Number of pixel columns of all lines together.
    pub(super) columns: i64,
}

impl Placement {
    /// Returns the lower edge of the last line in pixels, from the first row's upper edge.
    pub(super) fn end(&self) -> f64 {
        self.y + f64::from(self.lines) * self.line_height
    }
}

/// The positions of all regions on the heatmap.
pub(super) struct Placements {
    /// Positions of the regions, in the order of the rows.
    pub(super) placements: Vec<Placement>,
    /// Height of all rows together, in pixels.
    pub(super) height: f64,
    /// Bytes per pixel column with the common scale; `None` if each segment has its own scale.
    pub(super) common_bytes_per_pixel: Option<f64>,
}

/// Computes the positions of regions that each have their own scale: every line is as wide as the
/// map, and large regions have several lines if there is room. `order` has the indexes of the
/// regions in the order of the rows; `zoom` is the factor for the height of rows.
pub(super) fn each_segment(regions: &Regions, order: &[u32], map: Rect, scale: f32, zoom: f32) -> Placements {
    let available = f64::from(map.height());
    let max_line_bytes = max_line_bytes(regions, (available / f64::from(CONTINUED_ROW * scale)) as u64);
    // Returns a region's bytes per line and its number of lines.
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

/// Returns the smallest number of bytes per line, a multiple of [`LINE_BYTES`], at which all
/// regions fit on `max_lines` lines; if they never do, a number that gives each region one line.
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

/// Returns a function from the bytes of a line to its height in pixels, including the gap below it.
/// `counts` has pairs of bytes per line and the number of lines with that many bytes, ascending.
///
/// Heights grow with the square root of a line's bytes, between [`MIN_ROW`] and [`MAX_ROW`] times
/// `zoom` units. They add up to `available` pixels times `zoom`; to less if all lines have the
/// maximum height, to more if the lines do not fit at the minimum height.
fn row_height(counts: &[(u64, u64)], available: f64, scale: f32, zoom: f32) -> impl Fn(u64) -> f64 {
    let max = f64::from(MAX_ROW * scale * zoom);
    let rows = counts.iter().map(|&(_, count)| count).sum::<u64>().max(1) as f64;
    let weight = |bytes: u64| (bytes as f64).sqrt();
    let (least, labelled) = (f64::from((MIN_ROW * scale).round()), f64::from(LABELLED_ROW * scale));
    // Minimum heights use 70% of the available height; the rest shows which segments are larger.
    let min = (available * 0.7 / rows).clamp(least, labelled.max(least));
    let min_total = min * rows;
    // If the rows do not fit at the minimum height, the map scrolls, so there is room for higher
    // rows, which show the segments' sizes.
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

/// Places segments one after the other on lines of one scale, as words are placed in text.
#[derive(Clone, Copy)]
struct Flow {
    /// Width of a line in pixels.
    width: i32,
    /// Pixels between two segments on a line.
    gap: i32,
    /// Minimum width of a segment in pixels.
    min_width: i32,
    /// Whether several segments may share a line.
    is_shared: bool,
}

impl Flow {
    /// Places segments of the given sizes in bytes, and returns the number of lines. Calls `place`
    /// for each segment with its first line (from 0), its left edge in pixels from the line's, and
    /// its number of pixel columns. `line_bytes` is the number of bytes that a line stands for.
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

/// Computes the positions of regions with the common scale: every pixel stands for equally many
/// bytes. `order` has the indexes of the regions in the order of the rows.
///
/// The scale is about the finest one at which all regions fit, if they do. Each region begins on a
/// line of its own if the scale with that has at most 1.5 times as many bytes per pixel; else small
/// regions share lines.
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
    // At a finer scale, all lines together would exceed the maximum height.
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

/// Returns the smallest number of bytes per line in `range` for which `fits` returns true, to
/// within a few percent; `None` if `fits` returns false at the range's end. Assumes that more bytes
/// per line fit if fewer do.
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
/// stays constant over many moments.
fn round_bytes(bytes: u64) -> u64 {
    let step = 1u64 << bytes.max(1).ilog2().saturating_sub(5);
    bytes.max(1).checked_next_multiple_of(step).unwrap_or(bytes)
}
