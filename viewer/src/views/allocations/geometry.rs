//! Pixel positions of the plot of the "Allocations" view.

use std::ops::Range;

use vramscope_draw::picture::chart_columns;
use vramscope_draw::{Bitmap, Rect};

/// Height above the plot, in units (pixels at scale 1).
const TOP: f32 = 8.0;
/// Height below the plot, for the times, in units (pixels at scale 1).
const BOTTOM: f32 = 18.0;

/// Pixel positions of the plot in the picture of the "Allocations" view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Geometry {
    /// The pixels of the plot, without its axis labels.
    pub plot: Rect,
    /// Pixels per unit of length, such as the device pixel ratio of the screen.
    pub scale: f32,
}

impl Geometry {
    /// Computes the geometry of a picture of `size` pixels with `scale` pixels per unit.
    pub fn new(size: (u32, u32), scale: f32) -> Self {
        let px = |units: f32| (units * scale).round() as i32;
        let (x0, x1) = chart_columns(size.0, scale);
        let (y0, height) = (px(TOP), size.1.min(Bitmap::MAX_SIDE) as i32);
        Self { plot: Rect::new(x0, y0, x1, (height - px(BOTTOM)).max(y0 + 1)), scale }
    }

    /// Returns the width of the plot in pixels: the largest number of columns of a layout. A layout
    /// with fewer columns has columns several pixels wide.
    pub fn width(&self) -> u32 {
        self.plot.width().unsigned_abs()
    }

    /// Returns the height of the plot in pixels: the number of pixel rows of a layout.
    pub fn height(&self) -> u32 {
        self.plot.height().unsigned_abs()
    }

    /// Converts units (pixels at scale 1) to whole pixels, rounded.
    pub(super) fn px(&self, units: f32) -> i32 {
        (units * self.scale).round() as i32
    }

    /// Returns the width of thin lines in pixels: one unit, at least one pixel.
    pub(super) fn stroke(&self) -> i32 {
        self.px(1.0).max(1)
    }

    /// Returns the pixel columns, counted from the plot's left edge, that show column `column` of a
    /// layout with `columns` columns.
    pub(super) fn pixels(&self, column: usize, columns: usize) -> Range<usize> {
        let width = self.width() as usize;
        let boundary = |column: usize| column.saturating_mul(width).div_ceil(columns.max(1)).min(width);
        boundary(column)..boundary(column + 1)
    }

    /// Returns the column of a layout with `columns` columns that is shown `x` pixels from the
    /// picture's left edge; `None` outside of the plot.
    pub fn column(&self, x: i32, columns: usize) -> Option<usize> {
        let within = (self.plot.x0..self.plot.x1).contains(&x).then(|| (x - self.plot.x0) as usize)?;
        (columns > 0).then(|| within * columns / self.width() as usize)
    }

    /// Returns the pixel row, counted from the plot's lower edge, at `y` pixels from the picture's
    /// upper edge; `None` outside of the plot.
    pub fn pixel_row(&self, y: i32) -> Option<u32> {
        (self.plot.y0..self.plot.y1).contains(&y).then(|| (self.plot.y1 - 1 - y).unsigned_abs())
    }

    /// Converts a range of pixel rows, counted from the plot's lower edge, to pixel rows of the
    /// picture: the first one, and the first one below the range.
    pub(super) fn rows(&self, rows: &Range<u32>) -> (i32, i32) {
        (self.plot.y1 - rows.end as i32, self.plot.y1 - rows.start as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pixel_maps_back_to_its_column() {
        let geometry = Geometry::new((300, 200), 1.0);
        assert_eq!(geometry.plot, Rect::new(64, 8, 278, 182));
        for columns in [1, 7, 107, 214] {
            let mut next = 0;
            for column in 0..columns {
                let pixels = geometry.pixels(column, columns);
                assert_eq!(pixels.start, next);
                next = pixels.end;
                for pixel in pixels {
                    assert_eq!(geometry.column(64 + pixel as i32, columns), Some(column));
                }
            }
            assert_eq!(next, 214);
        }
        assert_eq!((geometry.column(63, 9), geometry.column(278, 9), geometry.column(100, 0)), (None, None, None));
        assert_eq!((geometry.pixel_row(181), geometry.pixel_row(8), geometry.pixel_row(7)), (Some(0), Some(173), None));
        assert_eq!(geometry.rows(&(0..3)), (179, 182));
    }
}
