//! Computes the texts and positions of the device map, without colors.

use vramscope_draw::Typesetter;
use vramscope_trace::DeviceState;

use super::cells::{CellBuilder, Look, RowCells};
use super::labels::{self, BlockLabel, Label, MapTexts, ScrollBar};
use super::layout::{Layout, Row};
use super::memory_kind::MemoryKind;
use super::memory_line::MemoryLine;
use super::strip::Strip;

/// A row in view, ready to draw.
#[derive(Clone, Debug)]
pub(super) struct DrawnRow {
    pub(super) row: Row,
    pub(super) cells: RowCells,
}

/// A device map ready to draw: positions, kinds of memory and texts of everything in view, without
/// colors.
#[derive(Clone, Debug)]
pub struct MapScene {
    /// Positions of the rows.
    pub layout: Layout,
    pub(super) rows: Vec<DrawnRow>,
    /// The strip that shows the whole device.
    pub(super) strip: Option<Strip>,
    /// Texts inside blocks.
    pub(super) block_labels: Vec<BlockLabel>,
    /// Texts beside and above the map.
    pub(super) labels: Vec<Label>,
    pub(super) scroll_bar: Option<ScrollBar>,
    /// Whether free memory has paler colors, because blocks have colors close to the usual ones.
    pub(super) is_free_subdued: bool,
}

impl MapScene {
    /// Computes the map with the given layout. Visits all memory for the strip. `is_ordered` is
    /// true if colors show an ordered value.
    #[must_use]
    pub fn new(
        line: &MemoryLine,
        layout: Layout,
        blocks: (&DeviceState, bool),
        texts: MapTexts<'_>,
        typesetter: &Typesetter,
    ) -> Self {
        Self::new_after(None, line, layout, blocks, texts, typesetter)
    }

    /// Computes the map with the given layout, like [`new`](Self::new). With an earlier map of this
    /// line, it visits the memory in view only.
    #[must_use]
    pub fn new_after(
        known: Option<Self>,
        line: &MemoryLine,
        layout: Layout,
        (device, is_ordered): (&DeviceState, bool),
        texts: MapTexts<'_>,
        typesetter: &Typesetter,
    ) -> Self {
        let start = layout.rows.first().map_or(0.0, |row| row.start);
        let mut builder = CellBuilder::new(line, start, layout.bytes_per_column(), layout.row_pixels());
        let rows = layout.rows.iter().map(|row| DrawnRow { row: *row, cells: builder.row(row) }).collect();
        Self {
            rows,
            strip: Strip::new(line, &layout, known.and_then(|known| known.strip)),
            block_labels: labels::of_blocks(line, &layout, device, texts, typesetter),
            labels: labels::beside(line, &layout, typesetter),
            scroll_bar: labels::scroll_bar(&layout),
            is_free_subdued: is_ordered,
            layout,
        }
    }

    /// Returns the number of pixels on the map that show each kind of memory, without texts and
    /// lines, in the order of first occurrence. Rows that are partly in view count completely.
    #[must_use]
    pub fn pixels_by_kind(&self) -> Vec<(MemoryKind, u64)> {
        let height = self.layout.row_pixels().unsigned_abs();
        let mut sums: Vec<(MemoryKind, u64)> = Vec::new();
        let mut add = |look: Look, pixels: u32| {
            let Some(kind) = look.kind() else { return };
            match sums.iter_mut().find(|(known, _)| *known == kind.kind()) {
                Some((_, sum)) => *sum += u64::from(pixels),
                None => sums.push((kind.kind(), pixels.into())),
            }
        };
        for DrawnRow { cells, .. } in &self.rows {
            cells.runs.iter().for_each(|run| add(run.look, (run.to - run.from) * height));
            cells.pieces.iter().for_each(|piece| add(piece.look, piece.y1 - piece.y0));
        }
        sums
    }
}
