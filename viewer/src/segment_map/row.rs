//! A row of the heatmap.

use vramscope_trace::Segment;

/// A row of the heatmap that is at least partly in view: a whole segment, or one of the lines of a
/// large segment. With the common scale, several rows may be on one line.
///
/// Positions are pixels from the picture's upper left corner; a row may extend beyond the map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The segment. For an expandable segment: its first mapped part, with the size of all parts
    /// and the holes between them.
    pub segment: Segment,
    /// Bytes of the segment without holes.
    pub mapped_bytes: u64,
    /// Index of the row among the lines of its segment, from 0.
    pub line: u32,
    /// Number of lines of the segment.
    pub lines: u32,
    /// First pixel column of the row.
    pub x0: i32,
    /// First pixel column right of the row.
    pub x1: i32,
    /// First pixel row.
    pub y0: i32,
    /// First pixel row below the row.
    pub y1: i32,
    /// Bytes between the segment's start and the row's left edge.
    pub offset: f64,
    /// Bytes that a pixel column stands for.
    pub bytes_per_pixel: f64,
    /// Index of the segment's region in [`Regions::list`](super::regions::Regions::list).
    pub(super) region: u32,
}

impl Row {
    /// Returns the first device address that the row shows.
    pub fn address(&self) -> u64 {
        self.segment.address.saturating_add(self.offset as u64)
    }

    /// Returns the number of pixel columns of the row.
    pub(super) fn width(&self) -> usize {
        usize::try_from(self.x1 - self.x0).unwrap_or(0)
    }

    /// Returns the number of pixel columns that show a part of the segment. On a segment's last
    /// line, the segment may end inside the row, or left of it if the columns are zoomed.
    pub(super) fn inside(&self) -> usize {
        // A millionth of a column is a rounding error.
        ((self.columns_to_end() - 1e-6).ceil().max(0.0) as usize).min(self.width())
    }

    /// Returns the part of a pixel column that is inside the segment, from 0 to 1. Only a segment's
    /// last column is less than 1.
    pub(super) fn inside_part(&self, column: usize) -> f64 {
        (self.columns_to_end() - column as f64).clamp(0.0, 1.0)
    }

    /// Returns the number of pixel columns from the row's left edge to the segment's end, which may
    /// be beyond the row.
    fn columns_to_end(&self) -> f64 {
        (self.segment.size as f64 - self.offset) / self.bytes_per_pixel
    }
}
