//! Names inside bands and rectangles that have room for them, and the labels of the vertical axis.

use std::ops::Range;

use vramscope_draw::axis_labels::binary_step;
use vramscope_draw::{Axis, Rect, Typesetter};
use vramscope_insight::address_map::AddressMap;
use vramscope_insight::bands::{BandHit, BandLayout};
use vramscope_trace::sort::sort_by_key;

use super::geometry::Geometry;

/// Font size of all labels, in units (pixels at scale 1).
pub(super) const TEXT: f32 = 11.0;
/// Minimum height of a band that gets a name, in units (pixels at scale 1).
const MIN_HEIGHT: f32 = 13.0;
/// Minimum width of a band that gets a name, in units (pixels at scale 1).
const MIN_WIDTH: f32 = 48.0;
/// Space left and right of a name, in units (pixels at scale 1).
const PADDING: f32 = 5.0;
/// Minimum distance between labels of the vertical axis, in units (pixels at scale 1).
const AXIS_DISTANCE: f32 = 26.0;
/// Smallest distance between evenly spaced addresses on the vertical axis, in units (pixels at
/// scale 1).
const ADDRESS_DISTANCE: f32 = 40.0;
/// Number of bytes on an address axis below which its labels show the last 7 hexadecimal digits of
/// an address instead of the first ones.
const SHORT_AXIS_BYTES: u64 = 1 << 28;

/// A name inside a band or rectangle, shortened to fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BandLabel {
    pub(super) text: String,
    /// Pixels for the text, all of them inside the band.
    pub(super) area: Rect,
    /// The layer that gives the band its color.
    pub(super) layer: u8,
    /// Whether the band has the second shade of its color.
    pub(super) is_alternate: bool,
}

/// The largest common rectangle of a band in consecutive columns of a stacked layout, which may
/// hold the band's name.
#[derive(Clone, Debug)]
struct Run {
    content: BandHit,
    layer: u8,
    columns: Range<usize>,
    /// The pixel rows that the band fills in all of these columns.
    rows: Range<u32>,
}

/// Returns for each band, and for the small allocations of each layer, the run with the most
/// columns; omits runs lower than `min_height` pixel rows or narrower than `min_width` columns.
fn widest_runs(layout: &BandLayout, min_height: u32, min_width: usize) -> Vec<Run> {
    let mut complete: Vec<Run> = Vec::new();
    let mut current: Vec<Run> = Vec::new();
    for column in 0..layout.column_count() {
        let mut next = Vec::with_capacity(current.len());
        for cell in layout.cells(column) {
            let rows = layout.scale().row(cell.bottom)..layout.scale().row(cell.top);
            if rows.len() < min_height as usize {
                continue;
            }
            let open = current.iter().position(|run| run.content == cell.content).map(|at| current.swap_remove(at));
            let run = match open {
                Some(mut run) => {
                    let common = run.rows.start.max(rows.start)..run.rows.end.min(rows.end);
                    if common.len() >= min_height as usize {
                        (run.rows, run.columns.end) = (common, column + 1);
                        run
                    } else {
                        complete.push(run);
                        Run { content: cell.content, layer: cell.layer, columns: column..column + 1, rows }
                    }
                }
                None => Run { content: cell.content, layer: cell.layer, columns: column..column + 1, rows },
            };
            next.push(run);
        }
        complete.append(&mut current);
        complete.retain(|run| run.columns.len() >= min_width);
        current = next;
    }
    complete.append(&mut current);
    complete.retain(|run| run.columns.len() >= min_width);
    let key = |content: BandHit| match content {
        BandHit::Small { layer } => (false, u32::from(layer)),
        BandHit::Band(band) => (true, band),
    };
    sort_by_key(&mut complete, |run| (key(run.content), std::cmp::Reverse(run.columns.len()), run.columns.start));
    complete.dedup_by_key(|run| key(run.content));
    complete
}

/// Returns the names to draw in a stacked layout: one for each band, and for the small allocations
/// of each layer, if there is room. `name_of` returns the short name of an allocation by row
/// number, and `layer_name` the name of a layer.
pub(super) fn band_labels(
    layout: &BandLayout,
    geometry: &Geometry,
    typesetter: &Typesetter,
    name_of: &mut dyn FnMut(u32) -> String,
    layer_name: &mut dyn FnMut(u8) -> String,
) -> Vec<BandLabel> {
    let columns = layout.column_count();
    let min_height = geometry.px(MIN_HEIGHT).max(1).unsigned_abs();
    // Columns can be wider than a pixel.
    let min_width = (geometry.px(MIN_WIDTH).max(1) as usize * columns).div_ceil(geometry.width().max(1) as usize);
    let mut labels = Vec::new();
    for run in widest_runs(layout, min_height, min_width.max(1)) {
        let (name, is_alternate) = match run.content {
            BandHit::Small { layer } => (layer_name(layer), false),
            BandHit::Band(band) => {
                let row = layout.bands()[band as usize].row;
                (name_of(row), is_alternate(row))
            }
        };
        let x0 = geometry.plot.x0 + geometry.pixels(run.columns.start, columns).start as i32;
        let x1 = geometry.plot.x0 + geometry.pixels(run.columns.end - 1, columns).end as i32;
        let (y0, y1) = geometry.rows(&run.rows);
        labels.extend(fitted(&name, Rect::new(x0, y0, x1, y1), geometry, typesetter, (run.layer, is_alternate)));
    }
    labels
}

/// Returns the names to draw in an address map: one for each allocation that is painted so far and
/// has room for it. `name_of` returns the short name of an allocation by row number.
pub(super) fn map_labels(
    map: &AddressMap,
    geometry: &Geometry,
    typesetter: &Typesetter,
    name_of: &mut dyn FnMut(u32) -> String,
) -> Vec<BandLabel> {
    let count = map.moments().len();
    let mut labels = Vec::new();
    for large in map.large_rectangles() {
        let x0 = geometry.plot.x0 + geometry.pixels(large.columns.start, count).start as i32;
        let x1 = geometry.plot.x0 + geometry.pixels(large.columns.end - 1, count).end as i32;
        let (y0, y1) = geometry.rows(&(large.pixel_rows.start as u32..large.pixel_rows.end as u32));
        // The outermost pixel rows may be shared with neighbors.
        let area = Rect::new(x0, y0 + 1, x1, y1 - 1);
        if area.width() >= geometry.px(MIN_WIDTH) && area.height() >= geometry.px(MIN_HEIGHT) {
            let name = name_of(large.row);
            labels.extend(fitted(&name, area, geometry, typesetter, (large.layer, is_alternate(large.row))));
        }
    }
    labels
}

/// Returns the label of a band with as much of `name` as fits into `area`, or `None` if fewer than
/// three letters would remain of a longer name. The last argument is the band's layer, and whether
/// it has the layer's second shade.
fn fitted(
    name: &str,
    area: Rect,
    geometry: &Geometry,
    typesetter: &Typesetter,
    (layer, is_alternate): (u8, bool),
) -> Option<BandLabel> {
    let padding = geometry.px(PADDING);
    let area = Rect { x0: area.x0 + padding, x1: (area.x1 - padding).max(area.x0 + padding), ..area };
    let text = typesetter.fit(name, TEXT * geometry.scale, area.width() as f32);
    // One or two letters and an ellipsis are of no use.
    let is_useful = !text.is_empty() && (text.chars().count() > 3 || !text.ends_with('…'));
    is_useful.then_some(BandLabel { text, area, layer, is_alternate })
}

/// Returns true if the allocation with row number `row` has the second of the two shades of its
/// color, which tell neighbors apart. The shade depends only on the number.
#[inline]
pub(super) fn is_alternate(row: u32) -> bool {
    row.wrapping_mul(0x9e37_79b9) >> 31 == 1
}

/// Returns the vertical axis of the byte counts `visible`, the lower end of the plot first.
pub(super) fn bytes_axis(visible: &Range<u64>, geometry: &Geometry) -> Axis {
    Axis::bytes(visible, (geometry.plot.height() / geometry.px(AXIS_DISTANCE).max(1)).max(1) as u64)
}

/// Returns the vertical axis of an address map in pixel rows, labelled with the addresses at both
/// ends of every address range with room for them, and others at least [`ADDRESS_DISTANCE`] apart
/// in high ranges. A range too low for two labels has at most one.
pub(super) fn address_axis(map: &AddressMap, geometry: &Geometry) -> Axis {
    let (scale, visible) = (map.scale(), map.scale().range());
    let (near, far) = (geometry.px(MIN_HEIGHT).max(1), geometry.px(ADDRESS_DISTANCE).max(1));
    let length = visible.end.saturating_sub(visible.start).max(1);
    let step = binary_step(length, (geometry.plot.height() / far).max(1) as u64);
    // Pairs (axis position, address) by priority: lower ends of ranges, upper ends, others.
    let mut wanted: [Vec<(u64, u64)>; 3] = Default::default();
    for range in map.axis().ranges() {
        let start = range.offset.max(visible.start);
        let end = range.offset.saturating_add(range.size).min(visible.end);
        if start >= end {
            continue;
        }
        let [from, to] = [start, end].map(|position| range.address.saturating_add(position - range.offset));
        if i64::from(scale.row(end)) - i64::from(scale.row(start)) < i64::from(near) {
            wanted[2].push((start, from));
            continue;
        }
        wanted[0].push((start, from));
        wanted[1].push((end, to));
        let mut address = from.div_ceil(step).checked_mul(step);
        while let Some(inside) = address.filter(|&inside| inside < to) {
            wanted[2].push((start + (inside - from), inside));
            address = inside.checked_add(step);
        }
    }
    let mut labels: Vec<(f64, String)> = Vec::new();
    for (positions, distance) in wanted.iter().zip([near, near, far / 2]) {
        for &(position, address) in positions {
            // The row below the position, and in its middle, so that rounding cannot move it.
            let row = f64::from(scale.row(position)).max(1.0) - 0.5;
            // All digits do not fit. On a short axis only the last digits differ.
            let text = match length {
                ..SHORT_AXIS_BYTES => format!("…{:07x}", address % SHORT_AXIS_BYTES),
                _ => format!("{:#x}…", address >> 24),
            };
            if labels.iter().all(|(other, label)| (other - row).abs() >= f64::from(distance) && *label != text) {
                labels.push((row, text));
            }
        }
    }
    Axis::new(f64::from(geometry.plot.height() - 1).max(1.0), labels).without_grid()
}
