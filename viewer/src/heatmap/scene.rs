//! Computes what the heatmap shows and where, without colors.

use vramscope_trace::{Block, ByteSize, Category, Definitions, DeviceState, FreeSpace, SiteId};

use super::layout::{Layout, Row};
use super::slices::{Kind, Slice};
use crate::frame::Rect;
use crate::text::{Align, Typesetter};
use crate::units;

/// Font size of the heatmap's row labels, in units (pixels at scale 1).
const TEXT: f32 = 10.5;
/// Font size of the captions above the heatmap, in units (pixels at scale 1).
const HEADER_TEXT: f32 = 10.0;
/// Least vertical distance between row labels, in units (pixels at scale 1); a label closer to
/// another is omitted.
const LABEL_DISTANCE: f32 = 13.0;
/// Text in the middle of a heatmap without segments.
const EMPTY: &str = "no memory is reserved at this moment";

/// Captions above the map, longest first; the first that fits the map's width is shown.
const CAPTIONS: [&str; 3] =
    ["addresses from low to high, every segment to its own scale →", "addresses from low to high →", "addresses →"];

/// What a live block's color shows: its state (allocated or pending free) or its category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColorBy {
    /// Allocated or pending free.
    #[default]
    State,
    /// The block's category.
    Category,
}

impl ColorBy {
    /// Returns the name in links and for scripts: `state` or `category`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Category => "category",
        }
    }

    /// Returns the value with this [`name`](Self::name), or `None` if no value has it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::State, Self::Category].into_iter().find(|color_by| color_by.name() == name)
    }
}

/// What a heatmap is computed from: a device's memory, the recording's definitions, and what colors
/// show.
#[derive(Clone, Copy)]
pub struct Content<'a> {
    /// The device's memory.
    pub device: &'a DeviceState,
    /// Names and sites of its blocks.
    pub definitions: &'a Definitions,
    /// What colors show.
    pub color_by: ColorBy,
}

impl Content<'_> {
    /// Returns how a live block is filled: by state or by category.
    fn fill_of(&self, block: &Block) -> Fill {
        // Chosen by address, so that a block keeps its shade while its neighbors change.
        let is_alternate = (block.address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1;
        match self.color_by {
            ColorBy::State if block.pending_free => Fill::Pending,
            ColorBy::State => Fill::Allocated { is_alternate },
            ColorBy::Category => {
                let category = self.definitions.site(block.site).category;
                let index = Category::ALL.iter().position(|&other| other == category).unwrap_or(0);
                Fill::Category { index: index as u8, is_alternate }
            }
        }
    }
}

/// How a live block is filled: as allocated, as pending free, or by category; alternate shades tell
/// neighbors apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    Allocated {
        is_alternate: bool,
    },
    Pending,
    /// Index in `Category::ALL`.
    Category {
        index: u8,
        is_alternate: bool,
    },
}

/// The live part of a pixel column: its fill, whether it is rounding, and whether a block begins
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LiveCell {
    pub(super) fill: Fill,
    /// Whether it is the rounding at the end of a block.
    pub(super) is_rounding: bool,
    /// Whether a block begins here, which is drawn as a thin line.
    pub(super) begins: bool,
}

/// A pixel column of a row: the live part above pixel row `free_from`, the free part below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) live: Option<LiveCell>,
    /// First pixel row of the free part.
    pub(super) free_from: i32,
}

/// A visible row of the map as pixel columns, with its segment's fragmentation.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// The part of the picture that it fills, clipped to the map.
    pub(super) area: Rect,
    /// Columns from the map's left edge; a last line may end before the map does.
    pub(super) cells: Vec<Cell>,
    /// Whether no block of the segment is live.
    pub(super) is_empty: bool,
    /// The segment's fragmentation, 0 to 1.
    pub(super) fragmentation: f32,
}

/// A text of the heatmap with its position, font size and alignment.
#[derive(Clone, Debug)]
pub(super) struct Label {
    pub(super) text: String,
    pub(super) size: f32,
    pub(super) at: (f32, f32),
    pub(super) align: Align,
    pub(super) is_dim: bool,
}

/// The rectangles of a scroll bar's track and thumb.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScrollBar {
    pub(super) track: Rect,
    pub(super) thumb: Rect,
}

/// A heatmap ready to draw: positions, fills and texts of everything in view, without colors.
#[derive(Clone, Debug)]
pub struct HeatmapScene {
    /// Positions of the rows.
    pub layout: Layout,
    pub(super) lines: Vec<Line>,
    /// Columns of the picture that show each line's fragmentation.
    pub(super) heat_columns: (i32, i32),
    /// Labels beside or on the map.
    pub(super) labels: Vec<Label>,
    pub(super) header: Rect,
    pub(super) header_labels: Vec<Label>,
    pub(super) scroll_bar: Option<ScrollBar>,
}

impl HeatmapScene {
    /// Computes the heatmap of a picture that is `width` pixels wide, with the given layout.
    #[must_use]
    pub fn new(layout: Layout, width: i32, content: Content, typesetter: &Typesetter) -> Self {
        let rows: Vec<&Row> = layout.visible().collect();
        let mut lines = Vec::with_capacity(rows.len());
        let mut used = Vec::with_capacity(rows.len());
        // All lines of a segment at once: where one ends, the next continues.
        for segment_rows in rows.chunk_by(|a, b| a.segment.address == b.segment.address) {
            add_segment(&layout, segment_rows, content, &mut lines, &mut used);
        }
        let mut labels = Vec::new();
        if layout.rows.is_empty() {
            let at = ((layout.map.x0 + layout.map.x1) as f32 / 2.0, (layout.map.y0 + layout.map.y1) as f32 / 2.0);
            let (text, size) = (EMPTY.to_owned(), TEXT * layout.scale);
            labels.push(Label { text, size, at, align: Align::Center, is_dim: true });
        }
        add_row_labels(&layout, width, &rows, &used, &mut labels);
        Self {
            lines,
            heat_columns: heat_columns(&layout),
            labels,
            header: Rect::new(0, 0, width, layout.map.y0),
            header_labels: header_labels(&layout, typesetter),
            scroll_bar: scroll_bar(&layout, width),
            layout,
        }
    }
}

/// Returns the categories of a recording's sites in the order of [`Category::ALL`]; the unknown
/// category is always included.
#[must_use]
pub fn categories(definitions: &Definitions) -> Vec<Category> {
    let mut found = [false; Category::ALL.len()];
    for site in (0..=definitions.site_count()).filter_map(|number| u32::try_from(number).ok()) {
        let category = definitions.site(SiteId(site)).category;
        if let Some(index) = Category::ALL.iter().position(|&other| other == category) {
            found[index] = true;
        }
    }
    Category::ALL
        .into_iter()
        .zip(found)
        .filter(|&(category, found)| found || category == Category::default())
        .map(|(category, _)| category)
        .collect()
}

/// Adds the visible `rows` of one segment to `lines`, and to `used` the part of each row that live
/// blocks cover, 0 to 1.
fn add_segment(layout: &Layout, rows: &[&Row], content: Content, lines: &mut Vec<Line>, used: &mut Vec<f32>) {
    let Some(&first) = rows.first() else { return };
    let columns = layout.slices(content.device, first);
    let is_empty = columns.iter().all(|slice| slice.live.is_none());
    let inside = columns.iter().rposition(|slice| !slice.is_outside()).map_or(0, |last| last + 1);
    let fragmentation = free_space(content.device, first).fragmentation() as f32;
    for row in rows {
        let mut range = layout.line_columns(row);
        range.end = range.end.min(inside).max(range.start);
        let columns = &columns[range];
        let cells = columns.iter().map(|slice| cell(slice, row, content)).collect();
        let area = Rect::new(layout.map.x0, row.y0, layout.map.x1, row.y1).intersect(layout.map);
        lines.push(Line { area, cells, is_empty, fragmentation });
        used.push(1.0 - columns.iter().map(|slice| slice.free).sum::<f32>() / columns.len().max(1) as f32);
    }
}

/// Returns the pixel column that draws a slice of a segment on `row`: the live part above, the free
/// part below.
fn cell(slice: &Slice, row: &Row, content: Content) -> Cell {
    let (block, is_rounding) = match slice.live {
        Some(Kind::Live(block)) => (block, false),
        Some(Kind::Rounding(block)) => (block, true),
        Some(Kind::Free) | None => return Cell { live: None, free_from: row.y0 },
    };
    let height = row.y1 - row.y0;
    let free_rows = (slice.free * height as f32).round() as i32;
    // Less than a millionth is a rounding error where two extents meet at a column's edge.
    let free_rows = if slice.free > 1e-6 { free_rows.clamp(1, (height - 1).max(1)) } else { 0 };
    let live = LiveCell { fill: content.fill_of(block), is_rounding, begins: slice.begins };
    Cell { live: Some(live), free_from: row.y1 - free_rows }
}

/// Returns the free bytes, the number of free blocks and the largest of them in a row's segment.
fn free_space(device: &DeviceState, row: &Row) -> FreeSpace {
    let mut space = FreeSpace::default();
    for extent in device.extents(&row.segment).filter(|extent| extent.block.is_none()) {
        space.total = space.total.saturating_add(extent.size);
        space.largest = space.largest.max(extent.size);
        space.blocks += 1;
    }
    space
}

/// Returns the pixels (first, end), `end` exclusive, of the column right of the map that shows each
/// segment's fragmentation.
fn heat_columns(layout: &Layout) -> (i32, i32) {
    let px = |units: f32| (units * layout.scale).round() as i32;
    (layout.map.x1 + px(6.0), layout.map.x1 + px(22.0))
}

/// Adds the address, size and used percentage of rows to `labels`; a row whose label would overlap
/// another's gets no label. `used` has the used part of each of `rows`, 0 to 1.
fn add_row_labels(layout: &Layout, width: i32, rows: &[&Row], used: &[f32], labels: &mut Vec<Label>) {
    let px = |units: f32| units * layout.scale;
    let size = px(TEXT);
    let mut rows: Vec<(&Row, f32)> = rows.iter().copied().zip(used.iter().copied()).collect();
    // The highest rows get their labels first, then the others from the top, where labels fit.
    rows.sort_by_key(|(row, _)| (row.line > 0, row.y0 - row.y1, row.y0));
    let mut occupied: Vec<i32> = Vec::new();
    let (first, last) = (layout.map.y0 + px(5.0) as i32, layout.map.y1 - px(5.0) as i32);
    for (row, used) in rows {
        let middle = (row.y0 + row.y1) / 2;
        let is_close = |other: &i32| ((other - middle).abs() as f32) < px(LABEL_DISTANCE);
        if middle < first || middle > last || occupied.iter().any(is_close) {
            continue;
        }
        occupied.push(middle);
        let mut add = |text: String, x: f32, align: Align, is_dim: bool| {
            labels.push(Label { text, size, at: (x, middle as f32), align, is_dim });
        };
        if !layout.is_narrow {
            add(units::address(row.address()), px(10.0), Align::Left, true);
        }
        if row.line == 0 {
            add(ByteSize(row.segment.size).to_string(), layout.map.x0 as f32 - px(8.0), Align::Right, false);
        }
        // 0% and 100% are exact; anything in between is shown as 1% to 99%.
        let (least, most) = (f32::from(u8::from(used > 0.0)), if used < 1.0 { 99.0 } else { 100.0 });
        let percent = (used * 100.0).round().clamp(least, most);
        add(format!("{percent:.0}%"), width as f32 - px(12.0), Align::Right, false);
    }
}

/// Returns the captions above the map and above the columns beside the map.
fn header_labels(layout: &Layout, typesetter: &Typesetter) -> Vec<Label> {
    let px = |units: f32| units * layout.scale;
    let size = px(HEADER_TEXT);
    let y = px(Layout::HEADER) / 2.0;
    let max_width = layout.map.width() as f32;
    let caption = CAPTIONS.into_iter().find(|text| typesetter.width(text, size) <= max_width).unwrap_or_default();
    let label =
        |text: &str, x: f32, align: Align| Label { text: text.to_owned(), size, at: (x, y), align, is_dim: true };
    let mut labels = Vec::new();
    if !layout.is_narrow {
        labels.push(label("segment", px(10.0), Align::Left));
    }
    labels.push(label("size", layout.map.x0 as f32 - px(8.0), Align::Right));
    labels.push(label(caption, layout.map.x0 as f32, Align::Left));
    labels.push(label("frag", heat_columns(layout).0 as f32, Align::Left));
    labels.push(label("used", layout.map.x1 as f32 + px(Layout::MARGIN - 12.0), Align::Right));
    labels
}

/// Returns the scroll bar at the right edge; `None` if all rows are in view.
fn scroll_bar(layout: &Layout, width: i32) -> Option<ScrollBar> {
    if layout.max_scroll == 0 {
        return None;
    }
    let px = |units: f32| (units * layout.scale).round() as i32;
    let x1 = width - px(2.0);
    let track = Rect::new(x1 - px(5.0), layout.map.y0, x1, layout.map.y1);
    let total = f64::from(layout.max_scroll + track.height());
    let to_track = |pixels: i32| (f64::from(pixels) / total * f64::from(track.height())) as i32;
    let y0 = track.y0 + to_track(layout.scroll);
    let y1 = (y0 + to_track(track.height()).max(px(16.0))).min(track.y1);
    Some(ScrollBar { track, thumb: Rect { y0, y1, ..track } })
}
