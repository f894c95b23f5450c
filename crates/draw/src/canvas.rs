//! A `Surface` that draws on a [`Bitmap`].

use crate::backend;
use crate::bitmap::{Bitmap, Color, Rect};
use crate::surface::Surface;
use crate::text::{Align, Typesetter, Weight};

/// A drawing surface over a [`Bitmap`]; a [`Typesetter`] draws its text.
pub struct Canvas<'a> {
    /// The pixels.
    pub bitmap: &'a mut Bitmap,
    /// Draws and measures text.
    pub typesetter: &'a mut Typesetter,
}

impl Surface for Canvas<'_> {
    fn size(&self) -> (u32, u32) {
        (self.bitmap.width() as u32, self.bitmap.height() as u32)
    }

    fn fill(&mut self, rect: Rect, color: Color) {
        self.bitmap.fill(rect, color);
    }

    fn tint(&mut self, rect: Rect, color: Color, alpha: f32) {
        self.bitmap.tint(rect, color, alpha);
    }

    fn line(&mut self, points: &[(i32, i32)], stroke: u32, color: Color, alpha: f32) {
        backend::draw_line(self.bitmap, points, stroke, color, alpha);
    }

    fn set_weight(&mut self, weight: Weight) {
        self.typesetter.set_weight(weight);
    }

    fn text(&mut self, text: &str, size: f32, at: (f32, f32), align: Align, color: Color) {
        self.typesetter.draw(self.bitmap, text, size, at, align, color);
    }

    fn typesetter(&self) -> &Typesetter {
        self.typesetter
    }

    fn pixels(&mut self, background: Color, draw: &mut dyn FnMut(&mut Bitmap)) {
        self.bitmap.fill(self.bitmap.bounds(), background);
        draw(self.bitmap);
    }

    fn panel(&mut self, at: Rect, background: Color, draw: &mut dyn FnMut(&mut dyn Surface)) {
        let side = |pixels: i32| pixels.max(0) as u32;
        let outer = std::mem::replace(self.bitmap, Bitmap::new(side(at.width()), side(at.height()), background));
        draw(self);
        let inner = std::mem::replace(self.bitmap, outer);
        self.bitmap.paste(&inner, at.x0, at.y0);
    }
}
