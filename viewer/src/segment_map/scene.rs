//! Computes the texts and positions of the heatmap, without colors.

use vramscope_draw::{Rect, Typesetter};
use vramscope_trace::sort::sort_by;
use vramscope_trace::{Block, DeviceState, FreeSpace, Segment};

use super::badges::SegmentBadges;
use super::block_colors::{Fill, HeatmapContent};
use super::labels::{self, Label, LineSums, ScrollBar};
use super::layout::Layout;
use super::legend::{self, FillBytes, LegendEntry};
use super::row::Row;
use super::slices::Slice;

/// The live part of a pixel column, which shows one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LiveCell {
    /// The block's fill.
    pub(super) fill: Fill,
    /// Whether the block has the second of two shades of its color, which tell neighbors apart.
    pub(super) is_alternate: bool,
    /// Whether the column shows the rounding at the end of the block.
    pub(super) is_rounding: bool,
    /// Whether a block begins in this column, which is drawn as a thin line.
    pub(super) begins: bool,
    /// Whether the block is drawn dim, because other blocks are highlighted.
    pub(super) is_dimmed: bool,
}

/// The content of a pixel column of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    /// A live part above, and free space from pixel row `free_from` on.
    Live { live: LiveCell, free_from: i32 },
    /// Free space only.
    Free,
    /// An unmapped part of an expandable segment.
    Hole,
}

/// A row in view, ready to draw.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// The pixels of the row, clipped to the map.
    pub(super) area: Rect,
    /// Content of the pixel columns from the row's left edge to the segment's end, which may be
    /// inside the row.
    pub(super) cells: Vec<Cell>,
    /// Whether no block of the segment is live.
    pub(super) is_empty: bool,
    /// The segment's fragmentation, 0 to 1; `None` with the common scale.
    pub(super) fragmentation: Option<f32>,
    pub(super) badges: SegmentBadges,
}

/// A heatmap ready to draw: positions, fills and texts of everything in view, without colors.
#[derive(Clone, Debug)]
pub struct HeatmapScene {
    /// Positions of the rows.
    pub layout: Layout,
    /// The legend of the colors in view.
    pub legend: Vec<LegendEntry>,
    pub(super) lines: Vec<Line>,
    /// First pixel column of the strip that shows each row's fragmentation, and the first column
    /// right of it.
    pub(super) heat_columns: (i32, i32),
    /// Labels beside or on the map.
    pub(super) labels: Vec<Label>,
    /// The part of the picture above the map, for the captions.
    pub(super) header: Rect,
    /// The captions.
    pub(super) header_labels: Vec<Label>,
    pub(super) scroll_bars: Vec<ScrollBar>,
    /// Whether blocks are highlighted, so that all others and free space are dimmed.
    pub(super) is_dimmed: bool,
    /// Whether free space has a paler color, because some blocks have colors close to its usual
    /// one.
    pub(super) is_free_subdued: bool,
    /// Number of blocks and free ranges that computing the scene visited.
    visited: u64,
}

impl HeatmapScene {
    /// Computes the heatmap of a picture that is `width` pixels wide, with the given layout.
    ///
    /// Visits only the blocks of segments that are in view.
    pub fn new(layout: Layout, width: i32, mut content: HeatmapContent, typesetter: &Typesetter) -> Self {
        let mut map = MapLines::default();
        // All rows of a segment together, so that its fragmentation is computed once.
        for rows in layout.rows.chunk_by(|a, b| a.region == b.region) {
            map.add_segment(&layout, rows, &mut content);
        }
        let mut labels = Vec::new();
        labels::add_empty_text(&layout, &mut labels);
        labels::add_row_labels(&layout, width, &map.sums, typesetter, &mut labels);
        let mut badges: Vec<SegmentBadges> = map.lines.iter().map(|line| line.badges).collect();
        sort_by(&mut badges, Ord::cmp);
        badges.dedup();
        Self {
            legend: legend::entries(&content, &map.bytes_by_fill, map.has_holes, &badges),
            lines: map.lines,
            heat_columns: labels::heat_columns(&layout),
            labels,
            header: Rect::new(0, 0, width, layout.map.y0),
            header_labels: labels::header(&layout, typesetter),
            scroll_bars: labels::scroll_bars(&layout, width),
            is_dimmed: content.highlight.is_some(),
            is_free_subdued: content.color_by.is_ordered(),
            visited: map.visited,
            layout,
        }
    }

    /// Returns the number of blocks and free ranges that computing the scene visited.
    pub const fn visited(&self) -> u64 {
        self.visited
    }
}

/// The lines of the map, as they are added, and totals over them.
#[derive(Default)]
struct MapLines<'a> {
    lines: Vec<Line>,
    /// The live and mapped columns of each line.
    sums: Vec<LineSums>,
    /// Live bytes of each category and group.
    bytes_by_fill: FillBytes,
    /// Whether unmapped parts of expandable segments are in view.
    has_holes: bool,
    /// Number of blocks and free ranges that were visited.
    visited: u64,
    /// A buffer whose content does not matter.
    slices: Vec<Slice<'a>>,
}

impl<'a> MapLines<'a> {
    /// Adds the visible `rows` of one segment.
    fn add_segment(&mut self, layout: &Layout, rows: &[Row], content: &mut HeatmapContent<'a>) {
        let Some(first) = rows.first() else { return };
        let device = content.device;
        let free = layout.common_bytes_per_pixel.is_none().then(|| free_space(layout, device, first));
        self.visited += free.map_or(0, |(_, visited)| visited);
        let first_line = self.lines.len();
        let mut has_live = false;
        for row in rows {
            self.visited += layout.fill_slices(device, row, &mut self.slices);
            let mut filler = Filler { content, bytes_by_fill: &mut self.bytes_by_fill, block: None };
            let mut sum = LineSums { row: *row, live: 0.0, mapped: 0.0 };
            let mut cells = Vec::with_capacity(self.slices.len());
            let last = self.slices.len().saturating_sub(1);
            for (column, slice) in self.slices.iter().enumerate() {
                let inside = if column == last { row.inside_part(column) } else { 1.0 };
                let mapped = (inside - f64::from(slice.hole)).max(0.0);
                has_live |= slice.live.is_some();
                let cell = filler.cell(slice, row, mapped);
                self.has_holes |= cell == Cell::Hole;
                cells.push(cell);
                sum.mapped += mapped;
                // Rounding errors of a column without live blocks do not count.
                sum.live += if slice.live.is_some() { (mapped - f64::from(slice.free)).max(0.0) } else { 0.0 };
            }
            filler.finish();
            self.lines.push(Line {
                area: Rect::new(row.x0, row.y0, row.x1, row.y1).intersect(layout.map),
                cells,
                is_empty: false,
                fragmentation: free.map(|(free, _)| free.fragmentation() as f32),
                badges: SegmentBadges::new(&row.segment),
            });
            self.sums.push(sum);
        }
        if !has_live && is_free(layout, device, first) {
            self.lines[first_line..].iter_mut().for_each(|line| line.is_empty = true);
        }
    }
}

/// Converts slices to cells, and looks up the fill of consecutive columns of one block only once.
struct Filler<'a, 'b> {
    content: &'a mut HeatmapContent<'b>,
    bytes_by_fill: &'a mut FillBytes,
    /// The block of the last column, its fill, whether it is dimmed, and its bytes in view so far.
    block: Option<(&'b Block, Fill, bool, f64)>,
}

impl<'b> Filler<'_, 'b> {
    /// Converts a pixel column of `row` to a cell: the live part above, the free part below.
    /// `mapped` is the part of the column that is mapped memory, from 0 to 1.
    fn cell(&mut self, slice: &Slice<'b>, row: &Row, mapped: f64) -> Cell {
        let Some(block) = slice.live else {
            // A column with any free space shows free space, even if most of it is a hole.
            return if slice.free > 0.0 { Cell::Free } else { Cell::Hole };
        };
        // Less than a millionth is a rounding error where two extents meet at a column's edge.
        let free_rows = if slice.free > 1e-6 {
            let height = row.y1 - row.y0;
            let free_rows = f64::from(slice.free) / mapped.max(1e-6) * f64::from(height) + 0.5;
            (free_rows as i32).clamp(1, (height - 1).max(1))
        } else {
            0
        };
        let live_bytes = (mapped - f64::from(slice.free)).max(0.0) * row.bytes_per_pixel;
        let (fill, is_dimmed) = self.fill_of(block, live_bytes);
        // The shade depends on the address only, so it stays when the block's neighbors change.
        let is_alternate = (block.address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1;
        let live = LiveCell { fill, is_alternate, is_rounding: slice.is_rounding, begins: slice.begins, is_dimmed };
        Cell::Live { live, free_from: row.y1 - free_rows }
    }

    /// Returns a block's fill and whether it is dimmed, and counts `live_bytes` more bytes of the
    /// block in view.
    fn fill_of(&mut self, block: &'b Block, live_bytes: f64) -> (Fill, bool) {
        if let Some((last, fill, is_dimmed, bytes)) = &mut self.block
            && std::ptr::eq(*last, block)
        {
            *bytes += live_bytes;
            return (*fill, *is_dimmed);
        }
        self.finish();
        let fill = self.content.fill_of(block);
        let is_dimmed = self.content.highlight.is_some_and(|highlight| !highlight(block));
        self.block = Some((block, fill, is_dimmed, live_bytes));
        (fill, is_dimmed)
    }

    /// Adds the bytes in view of the last column's block to the bytes of its fill.
    fn finish(&mut self) {
        if let Some((_, fill, _, bytes)) = self.block.take() {
            self.bytes_by_fill.add(fill, bytes);
        }
    }
}

/// Returns the free space in a row's segment (bytes, number of free blocks, the largest one), and
/// the number of blocks and free ranges visited.
fn free_space(layout: &Layout, device: &DeviceState, row: &Row) -> (FreeSpace, u64) {
    let (mut space, mut visited) = (FreeSpace::default(), 0);
    for part in layout.parts(row) {
        let part = Segment { address: part.start, size: part.end - part.start, ..row.segment };
        for extent in device.extents(&part) {
            visited += 1;
            if extent.block.is_some() {
                continue;
            }
            space.total = space.total.saturating_add(extent.size);
            space.largest = space.largest.max(extent.size);
            space.blocks += 1;
        }
    }
    (space, visited)
}

/// Returns true if a row's segment has no live block.
fn is_free(layout: &Layout, device: &DeviceState, row: &Row) -> bool {
    layout.parts(row).iter().all(|part| {
        let segment = Segment { address: part.start, size: part.end - part.start, ..row.segment };
        device.extents(&segment).next().is_none_or(|extent| extent.block.is_none() && extent.size == segment.size)
    })
}
