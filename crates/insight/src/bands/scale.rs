//! Conversion between bytes and pixel rows.

use std::ops::Range;

/// A linear scale from a range of bytes to pixel rows; pixel row 0 shows the lowest bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ByteScale {
    start: u64,
    end: u64,
    rows: u32,
    rows_per_byte: f64,
    bytes_per_row: f64,
}

impl ByteScale {
    /// Creates a scale that shows the bytes in `range`, at least one byte, on `rows` pixel rows, at
    /// least one.
    #[must_use]
    pub fn new(range: &Range<u64>, rows: u32) -> Self {
        let rows = rows.max(1);
        let length = range.end.saturating_sub(range.start).max(1) as f64;
        Self {
            start: range.start,
            end: range.end.max(range.start.saturating_add(1)),
            rows,
            rows_per_byte: f64::from(rows) / length,
            bytes_per_row: length / f64::from(rows),
        }
    }

    /// Returns the bytes that are shown.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// Returns the number of pixel rows.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Returns the number of bytes of a pixel row.
    #[must_use]
    pub fn bytes_per_row(&self) -> f64 {
        self.bytes_per_row
    }

    /// Returns the pixel row at which byte number `bytes` begins, from 0 to the number of rows. The
    /// bytes `a..b` fill the pixel rows `row(a)..row(b)`.
    #[must_use]
    #[inline]
    pub fn row(&self, bytes: u64) -> u32 {
        let distance = bytes.saturating_sub(self.start) as f64;
        // A conversion from a float saturates.
        ((distance * self.rows_per_byte) as u32).min(self.rows)
    }

    /// Returns the position at which byte number `bytes` begins, in pixel rows, also below or above
    /// the visible rows.
    #[inline]
    pub(crate) fn position(&self, bytes: u64) -> f64 {
        (bytes as f64 - self.start as f64) * self.rows_per_byte
    }

    /// Returns the number of the first byte of a pixel row.
    #[must_use]
    pub fn bytes(&self, row: u32) -> u64 {
        self.start.saturating_add((f64::from(row) * self.bytes_per_row) as u64)
    }
}
