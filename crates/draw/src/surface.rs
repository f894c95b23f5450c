//! The drawing interface: pixels for a screen or a PNG file, shapes for an SVG file.
//!
//! One piece of code draws a picture on either, as `&mut dyn Surface`. Text has equal widths on
//! both, so that labels that do not overlap in one do not overlap in the other.

use crate::bitmap::{Bitmap, Color, Rect};
use crate::text::{Align, Typesetter, Weight};

/// A target for drawing: a picture's pixels or an SVG. Positions are pixels from the upper left
/// corner; shapes are clipped to the target.
pub trait Surface {
    /// Returns the width and height in pixels.
    fn size(&self) -> (u32, u32);

    /// Fills a rectangle with an opaque color.
    fn fill(&mut self, rect: Rect, color: Color);

    /// Fills `columns` with one color: adjacent rectangles, from left to right, with equal lower
    /// ends.
    fn area(&mut self, columns: &[Rect], color: Color) {
        columns.iter().for_each(|&column| self.fill(column, color));
    }

    /// Mixes `alpha` (0 to 1) of a color into a rectangle.
    fn tint(&mut self, rect: Rect, color: Color, alpha: f32);

    /// Draws a line through `points` (x, y), `stroke` pixels wide, with opacity `alpha` (0 to 1).
    fn line(&mut self, points: &[(i32, i32)], stroke: u32, color: Color, alpha: f32);

    /// Sets the weight of all text drawn from now on.
    fn set_weight(&mut self, weight: Weight);

    /// Draws `text` at a font size of `size` pixels, aligned at `at.0`, its digits vertically
    /// centered on `at.1`.
    fn text(&mut self, text: &str, size: f32, at: (f32, f32), align: Align, color: Color);

    /// Returns the typesetter that measures the text.
    fn typesetter(&self) -> &Typesetter;

    /// Lets `draw` paint single pixels on a bitmap of the surface's size, filled with `background`.
    fn pixels(&mut self, background: Color, draw: &mut dyn FnMut(&mut Bitmap));

    /// Lets `draw` paint on the part `at` as if it were a whole surface, filled with `background`.
    fn panel(&mut self, at: Rect, background: Color, draw: &mut dyn FnMut(&mut dyn Surface));

    /// Returns the whole surface as a rectangle.
    fn bounds(&self) -> Rect {
        let (width, height) = self.size();
        Rect::new(0, 0, width as i32, height as i32)
    }
}
