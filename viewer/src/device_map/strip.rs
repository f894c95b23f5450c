//! The strip above the map: all memory of the device on one row, and the part of it that the map
//! shows.

use std::rc::Rc;

use vramscope_draw::Rect;
use vramscope_trace::ByteSize;

use super::cells::{CellBuilder, RowCells};
use super::layout::{Layout, Row};
use super::memory_kind::KindId;
use super::memory_line::MemoryLine;

/// The strip, ready to draw.
#[derive(Clone, Debug)]
pub(super) struct Strip {
    pub(super) row: Row,
    /// Number of pixel columns.
    width: i32,
    pub(super) cells: Rc<RowCells>,
    /// The part of the strip whose bytes the map shows.
    pub(super) shown: Rect,
    /// The memory of owners other than the pool: area, kind, and texts, longest first.
    pub(super) owners: Vec<(Rect, KindId, [String; 2])>,
}

impl Strip {
    /// Computes the strip of a layout; `None` if the picture has none. `known` is the strip of an
    /// earlier picture of this line.
    pub(super) fn new(line: &MemoryLine, layout: &Layout, known: Option<Self>) -> Option<Self> {
        let strip = layout.strip;
        if strip.height() <= 0 || line.end() == 0 {
            return None;
        }
        let end = line.end() as f64;
        let bytes_per_column = end / f64::from(strip.width().max(1));
        let row = Row { y0: strip.y0, y1: strip.y1, start: 0.0, end, part: 0, begins_part: true };
        let known = known.filter(|known| known.row == row && known.width == strip.width());
        let cells = known.map(|known| known.cells);
        let cells =
            cells.unwrap_or_else(|| CellBuilder::new(line, 0.0, bytes_per_column, strip.height()).row(&row).into());
        let x = |position: f64| strip.x0 + (position / bytes_per_column).round() as i32;
        let (first, last) = layout.shown();
        let x0 = x(first).min(strip.x1 - 1);
        let shown = Rect { x0, x1: x(last).max(x0 + 2).min(strip.x1), ..strip };
        let owners = line.parts.iter().filter(|part| part.segment.is_none()).map(|part| {
            let kind = line.spans[part.first_span as usize].kind;
            let size = ByteSize(part.bytes).to_string();
            let area = Rect { x0: x(part.start as f64), x1: x(part.end() as f64), ..strip };
            (area, kind, [format!("{} {size}", kind.kind().name()), size])
        });
        Some(Self { row, width: strip.width(), cells, shown, owners: owners.collect() })
    }
}
