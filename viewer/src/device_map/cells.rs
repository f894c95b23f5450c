//! The content of the map's pixel columns: every column shows its bytes by kind, and what is
//! thinner than a pixel is added up, so that no byte vanishes.
//!
//! A column of one kind has its color from top to bottom. Any other column is divided: each kind
//! gets a share of the column's pixels. What a share loses to rounding is added to the kind's next
//! share, so that over the whole map the pixels of a kind stand for its bytes.

use super::layout::Row;
use super::memory_kind::KindId;
use super::memory_line::MemoryLine;

/// Minimum width in pixel columns of a block whose beginning is drawn as a line.
const LEAST_WITH_LINE: f64 = 3.0;

/// Minimum width in pixel columns of two segments with a line between them.
const LEAST_WITH_SEPARATOR: f64 = 12.0;

/// The look of a part of a column: what it shows, and whether it is dimmed because other memory is
/// highlighted. [`NOTHING`](Self::NOTHING) shows no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look(u32);

impl Look {
    /// The look beside the memory of a row.
    pub(super) const NOTHING: Self = Self(u32::MAX);

    /// Creates the look of a kind of memory.
    pub(super) const fn new(kind: KindId, is_dimmed: bool) -> Self {
        Self(kind.0 << 1 | is_dimmed as u32)
    }

    /// Returns the kind of memory; `None` for no memory.
    pub(super) fn kind(self) -> Option<KindId> {
        (self != Self::NOTHING).then_some(KindId(self.0 >> 1))
    }

    /// Returns the number of the look; `None` for no memory.
    pub(super) fn number(self) -> Option<usize> {
        (self != Self::NOTHING).then_some(self.0 as usize)
    }

    /// Returns true if the look is dimmed.
    pub(super) const fn is_dimmed(self) -> bool {
        self.0 & 1 == 1
    }
}

/// Consecutive pixel columns of a row with one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// First column, from 0.
    pub(super) from: u32,
    /// First column behind the run.
    pub(super) to: u32,
    pub(super) look: Look,
}

/// A part of a divided column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The column, from 0.
    pub(super) column: u32,
    /// First pixel row, from the row's upper edge.
    pub(super) y0: u32,
    /// First pixel row below the piece.
    pub(super) y1: u32,
    pub(super) look: Look,
}

/// The content of a row's pixel columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RowCells {
    /// The columns that are not divided.
    pub(super) runs: Vec<Run>,
    /// The parts of the others.
    pub(super) pieces: Vec<Piece>,
    /// The columns in which a block or free block begins that is at least 3 columns wide.
    pub(super) begins: Vec<u32>,
    /// The columns in which a segment or the memory of another owner begins that is, as the one
    /// before it, wide enough for a line between them.
    pub(super) part_begins: Vec<u32>,
}

/// Divides the rows of a map into cells, from the top.
pub(super) struct CellBuilder<'a> {
    line: &'a MemoryLine,
    /// Number of bytes that a column stands for.
    bytes_per_column: f64,
    /// Height of a column in pixels.
    height: u32,
    /// What each look has lost to rounding so far, in pixels; by the look's number, and last for no
    /// memory.
    lost: Vec<f32>,
    /// The parts of the current column: look, and share of the column.
    shares: Vec<(Look, f32)>,
    /// Position in `shares` of each look, by the look's number; `u32::MAX` for the others.
    share_of: Vec<u32>,
    /// Wanted and assigned pixels of each share of the current column.
    wanted: Vec<(f32, u32)>,
    /// The shares of the current column by how much they lack, with their positions in `wanted`.
    order: Vec<(f32, usize)>,
    /// The span with which the next row begins.
    span: usize,
}

impl<'a> CellBuilder<'a> {
    /// Creates a builder of the cells of rows that begin at position `start` on a line and are
    /// `height` pixels high.
    pub(super) fn new(line: &'a MemoryLine, start: f64, bytes_per_column: f64, height: i32) -> Self {
        let first = line.span_at(start as u64);
        let height = height.max(1).unsigned_abs();
        // Each kind has two looks, of which one is dimmed.
        let looks = 2 * line.bytes().kind_count();
        Self {
            line,
            bytes_per_column,
            height,
            lost: vec![0.0; looks + 1],
            shares: Vec::new(),
            share_of: vec![u32::MAX; looks + 1],
            wanted: Vec::new(),
            order: Vec::new(),
            span: first,
        }
    }

    /// Returns the cells of a row; rows must be given from the top.
    pub(super) fn row(&mut self, row: &Row) -> RowCells {
        let mut cells = RowCells::default();
        let (line, per_byte) = (self.line, 1.0 / self.bytes_per_column);
        let column = |position: f64| (position - row.start) * per_byte;
        let mut from = 0.0;
        // The position at which the column of `from` ends.
        let mut column_end = row.start + self.bytes_per_column;
        while let Some(span) = line.spans.get(self.span) {
            let end = span.end as f64;
            if end < column_end && end < row.end {
                // Most spans of a map of many blocks are within a column.
                let to = column(end);
                self.push_share(Look::new(span.kind, span.is_dimmed), (to - from) as f32);
                from = to;
                self.span += 1;
                continue;
            }
            let to = column(end.min(row.end));
            let look = Look::new(span.kind, span.is_dimmed);
            let start = self.span.checked_sub(1).map_or(0, |before| line.spans[before].end) as f64;
            if span.begins && start >= row.start && to - from >= LEAST_WITH_LINE {
                cells.begins.push((from + 0.5) as u32);
            }
            self.add(&mut cells, look, from, to);
            from = to;
            column_end = row.start + (to.floor() + 1.0) * self.bytes_per_column;
            if end > row.end {
                break;
            }
            self.span += 1;
            if end == row.end {
                break;
            }
        }
        if !self.shares.is_empty() {
            let rest = 1.0 - self.shares.iter().map(|(_, share)| share).sum::<f32>();
            self.push_share(Look::NOTHING, rest);
            self.divide(&mut cells, from as u32);
        }
        let mut part = row.part + usize::from(!row.begins_part);
        while let Some(next) = line.parts.get(part).filter(|next| (next.start as f64) < row.end) {
            let is_wide = |bytes: u64| bytes as f64 * per_byte >= LEAST_WITH_SEPARATOR;
            let before = part.checked_sub(1).map(|before| line.parts[before].bytes);
            if is_wide(next.bytes) && before.is_none_or(is_wide) {
                cells.part_begins.push(column(next.start as f64) as u32);
            }
            part += 1;
        }
        cells
    }

    /// Adds memory from position `from` to position `to`, in pixel columns from the row's left
    /// edge.
    fn add(&mut self, cells: &mut RowCells, look: Look, from: f64, to: f64) {
        let (first, last) = (from as u32, to as u32);
        if first == last {
            return self.push_share(look, (to - from) as f32);
        }
        let mut whole = first;
        if !self.shares.is_empty() || from > f64::from(first) {
            self.push_share(look, (f64::from(first + 1) - from) as f32);
            self.divide(cells, first);
            whole += 1;
        }
        push_run(&mut cells.runs, Run { from: whole, to: last, look });
        self.push_share(look, (to - f64::from(last)) as f32);
    }

    /// Adds a share of the current column.
    fn push_share(&mut self, look: Look, share: f32) {
        // A millionth of a column beside the memory of a row is a rounding error.
        if share <= 0.0 || (look == Look::NOTHING && share < 1e-6) {
            return;
        }
        let index = self.index_of(look);
        match self.shares.get_mut(self.share_of[index] as usize) {
            Some((_, sum)) => *sum += share,
            None => {
                self.share_of[index] = self.shares.len() as u32;
                self.shares.push((look, share));
            }
        }
    }

    /// Returns the index of a look in `lost` and `share_of`.
    fn index_of(&self, look: Look) -> usize {
        look.number().unwrap_or(self.lost.len() - 1)
    }

    /// Ends the current column: divides its pixels among the shares.
    fn divide(&mut self, cells: &mut RowCells, column: u32) {
        let height = self.height;
        for index in 0..self.shares.len() {
            let look = self.index_of(self.shares[index].0);
            self.share_of[look] = u32::MAX;
        }
        if let [(look, _)] = self.shares[..] {
            self.shares.clear();
            return push_run(&mut cells.runs, Run { from: column, to: column + 1, look });
        }
        self.wanted.clear();
        for &(look, share) in &self.shares {
            let wanted = share * height as f32 + self.lost[self.index_of(look)];
            self.wanted.push((wanted, wanted.max(0.0) as u32));
        }
        let assigned = self.wanted.iter().map(|&(_, pixels)| u64::from(pixels)).sum::<u64>();
        let mut left = u64::from(height).abs_diff(assigned) as usize;
        let gets_more = assigned < u64::from(height);
        while left > 0 {
            // The shares that lack most pixels get one more; those with most to spare give one.
            let change = |&(wanted, pixels): &(f32, u32)| match gets_more {
                true => wanted - pixels as f32,
                false => pixels as f32 - wanted,
            };
            self.order.clear();
            let changing = self.wanted.iter().enumerate().filter(|(_, (_, pixels))| gets_more || *pixels > 0);
            self.order.extend(changing.map(|(index, one)| (change(one), index)));
            let count = left.min(self.order.len());
            if count == 0 {
                break;
            }
            self.order.select_nth_unstable_by(count - 1, |a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
            for &(_, index) in &self.order[..count] {
                let pixels = &mut self.wanted[index].1;
                *pixels = if gets_more { *pixels + 1 } else { *pixels - 1 };
            }
            left -= count;
        }
        let mut y = 0;
        for index in 0..self.shares.len() {
            let (look, (wanted, pixels)) = (self.shares[index].0, self.wanted[index]);
            let lost = self.index_of(look);
            self.lost[lost] = wanted - pixels as f32;
            if pixels > 0 {
                cells.pieces.push(Piece { column, y0: y, y1: y + pixels, look });
            }
            y += pixels;
        }
        self.shares.clear();
    }
}

/// Appends a run, or extends the last one.
fn push_run(runs: &mut Vec<Run>, run: Run) {
    if run.from >= run.to {
        return;
    }
    match runs.last_mut().filter(|last| last.to == run.from && last.look == run.look) {
        Some(last) => last.to = run.to,
        None => runs.push(run),
    }
}
