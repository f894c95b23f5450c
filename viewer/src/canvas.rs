//! A [`Surface`] that draws on a [`Frame`].

use crate::backend;
use crate::frame::{Color, Frame, Rect};
use crate::surface::Surface;
use crate::text::{Align, Typesetter, Weight};

/// A drawing surface that is a frame of pixels; a typesetter draws its text.
pub(crate) struct Canvas<'a> {
    pub(crate) frame: &'a mut Frame,
    pub(crate) typesetter: &'a mut Typesetter,
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
        backend::draw_line(self.frame, points, stroke, color, alpha);
    }

    fn set_weight(&mut self, weight: Weight) {
        self.typesetter.set_weight(weight);
    }

    fn text(&mut self, text: &str, size: f32, at: (f32, f32), align: Align, color: Color) {
        self.typesetter.draw(self.frame, text, size, at, align, color);
    }

    fn typesetter(&self) -> &Typesetter {
        self.typesetter
    }

    fn pixels(&mut self, background: Color, draw: impl FnOnce(&mut Frame)) {
        self.frame.fill(self.frame.bounds(), background);
        draw(self.frame);
    }

    fn panel(&mut self, at: Rect, background: Color, draw: impl FnOnce(&mut Self)) {
        let side = |pixels: i32| pixels.max(0) as u32;
        let outer = std::mem::replace(self.frame, Frame::new(side(at.width()), side(at.height()), background));
        draw(self);
        let inner = std::mem::replace(self.frame, outer);
        self.frame.paste(&inner, at.x0, at.y0);
    }
}
