//! What a picture is drawn on: pixels for a screen or a PNG file, shapes for an SVG file. Each picture is drawn by the same lines of
//! code on either, and text has the same width on both, so that what does not overlap on one does not on the other.

use crate::backend;
use crate::frame::{Color, Frame, Rect};
use crate::text::{Align, Typesetter, Weight};

/// Something to draw on. All places are in pixels from its upper left corner; whatever lies outside is not seen.
pub(crate) trait Surface {
    /// Columns and rows.
    fn size(&self) -> (u32, u32);

    /// Paints a rectangle.
    fn fill(&mut self, rect: Rect, color: Color);

    /// Paints a rectangle with a share of `alpha` (0 to 1) of the color.
    fn tint(&mut self, rect: Rect, color: Color, alpha: f32);

    /// Draws a line of `stroke` pixels through `points`.
    fn line(&mut self, points: &[(i32, i32)], stroke: u32, color: Color, alpha: f32);

    /// Letters from here on have this weight.
    #[cfg_attr(target_arch = "wasm32", expect(dead_code, reason = "only reports ask for it"))]
    fn set_weight(&mut self, weight: Weight);

    /// Draws `text` so that its digits are vertically centered on `center_y`.
    fn text(&mut self, text: &str, size: f32, at: (f32, f32), align: Align, color: Color);

    /// What measures the text.
    fn typesetter(&self) -> &Typesetter;

    /// Draws pixel by pixel on a frame of the surface's size, which `behind` is the color of.
    fn pixels(&mut self, behind: Color, draw: impl FnOnce(&mut Frame));

    /// What `draw` draws, as on a surface of its own that is as large as `at` and of the color `behind`, at that place.
    #[cfg_attr(target_arch = "wasm32", expect(dead_code, reason = "only reports ask for it"))]
    fn panel(&mut self, at: Rect, behind: Color, draw: impl FnOnce(&mut Self));

    /// All of it.
    fn bounds(&self) -> Rect {
        let (width, height) = self.size();
        Rect::new(0, 0, width as i32, height as i32)
    }
}

/// A frame with the letters for it.
pub(crate) struct Canvas<'a> {
    pub(crate) frame: &'a mut Frame,
    pub(crate) type_: &'a mut Typesetter,
}

impl Surface for Canvas<'_> {
    fn size(&self) -> (u32, u32) {
        (self.frame.width() as u32, self.frame.height() as u32)
    }

    fn fill(&mut self, rect: Rect, color: Color) {
        self.frame.fill(rect, color);
    }

    fn tint(&mut self, rect: Rect, color: Color, alpha: f32) {
        self.frame.tint(rect, color, alpha);
    }

    fn line(&mut self, points: &[(i32, i32)], stroke: u32, color: Color, alpha: f32) {
        backend::line(self.frame, points, stroke, color, alpha);
    }

    fn set_weight(&mut self, weight: Weight) {
        self.type_.set_weight(weight);
    }

    fn text(&mut self, text: &str, size: f32, at: (f32, f32), align: Align, color: Color) {
        self.type_.draw(self.frame, text, size, at, align, color);
    }

    fn typesetter(&self) -> &Typesetter {
        self.type_
    }

    fn pixels(&mut self, behind: Color, draw: impl FnOnce(&mut Frame)) {
        self.frame.fill(self.frame.bounds(), behind);
        draw(self.frame);
    }

    fn panel(&mut self, at: Rect, behind: Color, draw: impl FnOnce(&mut Self)) {
        let side = |pixels: i32| pixels.max(0) as u32;
        let outer = std::mem::replace(self.frame, Frame::new(side(at.width()), side(at.height()), behind));
        draw(self);
        let inner = std::mem::replace(self.frame, outer);
        self.frame.paste(&inner, at.x0, at.y0);
    }
}
