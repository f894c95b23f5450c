//! Pixels that show the allocation that covers most of them.

/// The value of [`PaintedRows::row`] for a pixel without an allocation.
pub(super) const NO_ROW: u32 = u32::MAX;

/// For every pixel, the allocation that covers most of it.
///
/// Allocations come in decreasing order of size classes, so a pixel whose cover cannot be exceeded
/// by much is closed: later allocations skip it, and all closed pixels beside it, at once.
#[derive(Clone, Debug)]
pub(super) struct PaintedRows {
    width: usize,
    /// Row number of the allocation shown in each pixel, or [`NO_ROW`].
    row: Vec<u32>,
    /// Covered part of each pixel, 0 to 1.
    cover: Vec<f32>,
    /// For every pixel row, `width` + 1 entries, one for each column and one for the end: the
    /// column's own number if its pixel is open, else a later column, not beyond the next open one.
    next: Vec<u16>,
}

impl PaintedRows {
    /// Maximum number of pixels in a row.
    pub(super) const MAX_WIDTH: usize = u16::MAX as usize - 1;

    /// Creates `width` × `height` pixels without allocations. The width is at most
    /// [`MAX_WIDTH`](Self::MAX_WIDTH).
    pub(super) fn new(width: usize, height: usize) -> Self {
        let width = width.min(Self::MAX_WIDTH);
        let next = (0..height).flat_map(|_| 0..=width as u16).collect();
        Self { width, row: vec![NO_ROW; width * height], cover: vec![0.0; width * height], next }
    }

    /// Returns the row number of the allocation shown in a pixel, or [`NO_ROW`].
    pub(super) fn row(&self, x: usize, y: usize) -> u32 {
        self.row.get(y * self.width + x).copied().unwrap_or(NO_ROW)
    }

    /// Returns the row numbers of the allocations shown in the pixel row `y`, [`NO_ROW`] for a
    /// pixel without one.
    pub(super) fn rows(&self, y: usize) -> &[u32] {
        self.row.get(y * self.width..(y + 1) * self.width).unwrap_or_default()
    }

    /// Returns the first column from `x` on whose pixel in row `y` is not closed; the width if all
    /// are.
    fn next_open(&mut self, x: usize, y: usize) -> usize {
        let next = &mut self.next[y * (self.width + 1)..(y + 1) * (self.width + 1)];
        let mut x = x;
        while usize::from(next[x]) != x {
            // Halves the path for later searches.
            next[x] = next[usize::from(next[x])];
            x = usize::from(next[x]);
        }
        x
    }

    /// Covers the fraction `part` of each pixel in the columns `start..end` of pixel row `y` with
    /// the allocation that has the row number `row`. Closes pixels of which at least the fraction
    /// `closing` is covered then. `changed` gets each column that now shows the allocation. Returns
    /// the number of pixels looked at.
    pub(super) fn cover(
        &mut self,
        (start, end): (usize, usize),
        y: usize,
        row: u32,
        (part, closing): (f32, f32),
        mut changed: impl FnMut(usize),
    ) -> usize {
        let end = end.min(self.width);
        let mut looked_at = 0;
        let mut x = self.next_open(start.min(self.width), y);
        while x < end {
            looked_at += 1;
            let index = y * self.width + x;
            if part > self.cover[index] {
                (self.cover[index], self.row[index]) = (part, row);
                changed(x);
            }
            if self.cover[index] >= closing {
                self.next[y * (self.width + 1) + x] = x as u16 + 1;
            }
            x = self.next_open(x + 1, y);
        }
        looked_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_pixels_are_skipped_and_larger_covers_win() {
        let mut rows = PaintedRows::new(10, 2);
        let mut painted = Vec::new();
        assert_eq!(rows.cover((2, 6), 1, 7, (1.0, 0.5), |x| painted.push(x)), 4);
        assert_eq!(painted, [2, 3, 4, 5]);
        // Only the open columns 0, 1 and 6 to 9 are looked at.
        assert_eq!(rows.cover((0, 99), 1, 8, (0.3, 0.5), |_| {}), 6);
        assert_eq!(rows.cover((1, 3), 1, 10, (0.4, 0.5), |_| {}), 1);
        // Closes the pixels whose cover suffices now, which shows nothing else.
        assert_eq!(rows.cover((0, 99), 1, 9, (0.2, 0.3), |_| {}), 6);
        assert_eq!(rows.cover((0, 99), 1, 11, (0.2, 0.3), |_| {}), 0);
        let shown: Vec<u32> = (0..10).map(|x| rows.row(x, 1)).collect();
        assert_eq!(shown, [8, 10, 7, 7, 7, 7, 8, 8, 8, 8]);
        assert_eq!((rows.row(3, 0), rows.row(99, 99)), (NO_ROW, NO_ROW));
    }
}
