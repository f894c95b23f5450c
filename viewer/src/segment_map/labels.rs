//! Texts and scroll bars around the heatmap's map, the area with the blocks.

use vramscope_draw::{Align, Rect, Typesetter};
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{ByteSize, Count};

use super::badges::SegmentBadges;
use super::layout::Layout;
use super::row::Row;
use crate::units;

/// Font size of the heatmap's row labels, in units (pixels at scale 1).
const TEXT: f32 = 10.5;
/// Font size of the badges' names below a row's address, in units (pixels at scale 1).
const BADGES_TEXT: f32 = 9.5;
/// Font size of the captions above the heatmap, in units (pixels at scale 1).
const HEADER_TEXT: f32 = 10.0;
/// Minimum vertical distance between row labels, in units (pixels at scale 1); a label closer to
/// another is omitted.
const LABEL_DISTANCE: f32 = 13.0;
/// Minimum height of a row with the badges' names below its address, in units (pixels at scale 1).
const BADGES_ROW: f32 = 22.0;
/// Text in the middle of a heatmap without segments.
const EMPTY: &str = "no memory is reserved at this moment";

/// Captions above the map, longest first; the first that fits the map's width is shown.
const CAPTIONS: [&str; 3] =
    ["addresses from low to high, every segment to its own scale →", "addresses from low to high →", "addresses →"];

/// A text of the heatmap with its position, font size and alignment.
#[derive(Clone, Debug)]
pub(super) struct Label {
    pub(super) text: String,
    /// Font size in pixels.
    pub(super) size: f32,
    /// Position in pixels (x, y): of the text's edge or center as `align` says, and of its vertical
    /// center.
    pub(super) at: (f32, f32),
    pub(super) align: Align,
    /// Whether the text has the theme's dim color.
    pub(super) is_dim: bool,
}

/// The rectangles of a scroll bar's track and thumb.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScrollBar {
    pub(super) track: Rect,
    pub(super) thumb: Rect,
}

/// The live and the mapped part of a row, in pixel columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineSums {
    pub(super) row: Row,
    /// Width of all live blocks together, in pixel columns (fractional).
    pub(super) live: f64,
    /// Width of the row without holes, in pixel columns (fractional).
    pub(super) mapped: f64,
}

/// Adds the text in the middle of the map to `labels` if the device has no segments.
pub(super) fn add_empty_text(layout: &Layout, labels: &mut Vec<Label>) {
    if layout.segment_count() == 0 {
        let at = ((layout.map.x0 + layout.map.x1) as f32 / 2.0, (layout.map.y0 + layout.map.y1) as f32 / 2.0);
        let (text, size) = (EMPTY.to_owned(), TEXT * layout.scale);
        labels.push(Label { text, size, at, align: Align::Center, is_dim: true });
    }
}

/// Adds the labels of `rows` to `labels`: address, size, badges and used percentage. A row whose
/// label would overlap another label gets none. `width` is the picture's width in pixels.
pub(super) fn add_row_labels(
    layout: &Layout,
    width: i32,
    rows: &[LineSums],
    typesetter: &Typesetter,
    labels: &mut Vec<Label>,
) {
    let px = |units: f32| units * layout.scale;
    let size = px(TEXT);
    // Rows side by side (with the common scale) share one label.
    let mut lines: Vec<&[LineSums]> = rows.chunk_by(|a, b| a.row.y0 == b.row.y0).collect();
    // First lines of segments get their labels first, high rows before low ones, then from the top.
    sort_by_key(&mut lines, |line| (line[0].row.line > 0, line[0].row.y0 - line[0].row.y1, line[0].row.y0));
    let mut occupied: Vec<i32> = Vec::new();
    let (first, last) = (layout.map.y0 + px(5.0) as i32, layout.map.y1 - px(5.0) as i32);
    for line in lines {
        let row = &line[0].row;
        let middle = (row.y0 + row.y1) / 2;
        let is_close = |other: &i32| ((other - middle).abs() as f32) < px(LABEL_DISTANCE);
        if middle < first || middle > last || occupied.iter().any(is_close) {
            continue;
        }
        let right = layout.map.x0 as f32 - px(10.0);
        // Badges are below the address of a segment's first line, or if that is too low, in place
        // of the second line's address.
        let has_room = (row.y1 - row.y0) as f32 >= px(BADGES_ROW);
        let has_badges = !layout.is_narrow && if row.line == 0 { has_room } else { row.line == 1 && !has_room };
        let badges = if has_badges { badges_text(row, typesetter, px(BADGES_TEXT), right - px(10.0)) } else { None };
        let shift = if badges.is_some() && has_room { px(5.5) } else { 0.0 };
        let y = middle as f32 - shift;
        let mut add = |text: String, size: f32, x: f32, y: f32, align: Align, is_dim: bool| {
            labels.push(Label { text, size, at: (x, y), align, is_dim });
        };
        occupied.extend([middle - shift as i32, middle + shift as i32]);
        if !layout.is_narrow && (badges.is_none() || has_room) {
            add(units::address(row.address()), size, px(10.0), y, Align::Left, true);
        }
        if let Some(badges) = badges {
            add(badges, px(BADGES_TEXT), px(10.0), middle as f32 + shift, Align::Left, true);
        }
        if line.len() > 1 {
            let others = format!("+{}", Count(line.len() as u64 - 1));
            add(others, size, right, y, Align::Right, true);
        } else if row.line == 0 {
            add(ByteSize(row.mapped_bytes).to_string(), size, right, y, Align::Right, false);
        }
        let (live, mapped) = line.iter().fold((0.0, 0.0), |sum, row| (sum.0 + row.live, sum.1 + row.mapped));
        if mapped > 0.0 {
            add(used_text(live / mapped), size, width as f32 - px(12.0), middle as f32, Align::Right, false);
        }
    }
}

/// Returns the used share of a row (0 to 1) as a percentage. Only an empty row is 0%, and only a
/// full one 100%.
fn used_text(used: f64) -> String {
    // Differences below a millionth are rounding errors.
    let (least, most) = (f64::from(u8::from(used > 1e-6)), if used < 1.0 - 1e-6 { 99.0 } else { 100.0 });
    format!("{:.0}%", (used * 100.0).round().clamp(least, most))
}

/// Returns the names of the badges of a row's segment: as many as fit into `max_width` pixels at a
/// font size of `size` pixels. `None` if the segment has no badge or none fits.
fn badges_text(row: &Row, typesetter: &Typesetter, size: f32, max_width: f32) -> Option<String> {
    let mut names = SegmentBadges::new(&row.segment).names();
    while !names.is_empty() {
        let text = names.join(" · ");
        if typesetter.width(&text, size) <= max_width {
            return Some(text);
        }
        names.pop();
    }
    None
}

/// Returns the horizontal extent of the strip right of the map that shows each segment's
/// fragmentation: the first pixel column, and the first one right of the strip.
pub(super) fn heat_columns(layout: &Layout) -> (i32, i32) {
    let px = |units: f32| (units * layout.scale).round() as i32;
    (layout.map.x1 + px(6.0), layout.map.x1 + px(22.0))
}

/// Returns the captions above the map and above the texts beside it, such as `size` and `used`.
pub(super) fn header(layout: &Layout, typesetter: &Typesetter) -> Vec<Label> {
    let px = |units: f32| units * layout.scale;
    let size = px(HEADER_TEXT);
    let y = px(Layout::HEADER) / 2.0;
    let max_width = layout.map.width() as f32;
    let captions = captions(layout);
    let caption = captions.iter().find(|text| typesetter.width(text, size) <= max_width).cloned().unwrap_or_default();
    let label =
        |text: &str, x: f32, align: Align| Label { text: text.to_owned(), size, at: (x, y), align, is_dim: true };
    let mut labels = Vec::new();
    labels.extend((!layout.is_narrow).then(|| label("segment", px(10.0), Align::Left)));
    labels.push(label("size", layout.map.x0 as f32 - px(10.0), Align::Right));
    labels.push(label(&caption, layout.map.x0 as f32, Align::Left));
    labels.extend(
        layout.common_bytes_per_pixel.is_none().then(|| label("frag", heat_columns(layout).0 as f32, Align::Left)),
    );
    labels.push(label("used", layout.map.x1 as f32 + px(Layout::MARGIN - 12.0), Align::Right));
    labels
}

/// Returns the possible captions above the map, longest first; the first that fits is shown.
fn captions(layout: &Layout) -> Vec<String> {
    match layout.common_bytes_per_pixel {
        Some(bytes) => {
            let pixel = ByteSize(bytes.round() as u64);
            vec![
                format!("addresses from low to high, all segments to one scale: a pixel is {pixel} wide →"),
                format!("one scale: a pixel is {pixel} wide →"),
                format!("{pixel} a pixel →"),
            ]
        }
        None if layout.view.column_zoom > 1.0 => {
            let zoom = layout.view.column_zoom;
            let zoom = if zoom < 10.0 { format!("{zoom:.1}") } else { Count(zoom.round() as u64).to_string() };
            vec![format!("a part of every segment, {zoom} times as wide →"), format!("{zoom}× →")]
        }
        None => CAPTIONS.map(str::to_owned).into(),
    }
}

/// Returns the scroll bars: at the right edge if not all rows are in view, and above the map if
/// segments are wider than the map. `width` is the picture's width in pixels.
pub(super) fn scroll_bars(layout: &Layout, width: i32) -> Vec<ScrollBar> {
    let px = |units: f32| (units * layout.scale).round() as i32;
    let mut bars = Vec::new();
    if layout.max_scroll > 0 {
        let x1 = width - px(2.0);
        let track = Rect::new(x1 - px(5.0), layout.map.y0, x1, layout.map.y1);
        let total = f64::from(layout.max_scroll) + f64::from(track.height());
        let to_track = |pixels: i32| (f64::from(pixels) / total * f64::from(track.height())) as i32;
        let length = to_track(track.height()).max(px(16.0)).min(track.height());
        let y0 = (track.y0 + to_track(layout.scroll)).min(track.y1 - length);
        bars.push(ScrollBar { track, thumb: Rect { y0, y1: y0 + length, ..track } });
    }
    let view = &layout.view;
    if layout.common_bytes_per_pixel.is_none() && view.column_zoom > 1.0 {
        let track = Rect::new(layout.map.x0, layout.map.y0 - px(3.0).max(2), layout.map.x1, layout.map.y0);
        let to_track = |part: f64| (part * f64::from(track.width())) as i32;
        let length = to_track(1.0 / view.column_zoom).max(px(16.0)).min(track.width());
        let x0 = (track.x0 + to_track(view.column_start)).min(track.x1 - length);
        bars.push(ScrollBar { track, thumb: Rect { x0, x1: x0 + length, ..track } });
    }
    bars
}
