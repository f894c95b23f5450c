//! Sizes of texts and lines, and labels.

use vramscope_draw::{Rect, Typesetter};

/// A label of the chart: its text and the rectangle of its background.
#[derive(Clone, Debug)]
pub(super) struct Tag {
    pub(super) rect: Rect,
    pub(super) text: String,
}

/// A helper that converts units to pixels and measures text while a scene is computed.
pub(super) struct Measure<'a> {
    pub(super) scale: f32,
    pub(super) typesetter: &'a Typesetter,
}

impl Measure<'_> {
    /// Converts units (pixels at scale 1) to whole pixels, rounded.
    pub(super) fn px(&self, units: f32) -> i32 {
        (units * self.scale).round() as i32
    }

    /// Returns the width of thin lines in pixels: one unit, at least one pixel.
    pub(super) fn stroke(&self) -> i32 {
        self.px(1.0).max(1)
    }

    /// Returns the width of a text in pixels plus `padding` units. `size` is the font size in
    /// units.
    pub(super) fn text_width(&self, text: &str, size: f32, padding: f32) -> i32 {
        self.typesetter.width(text, size * self.scale).ceil() as i32 + self.px(padding)
    }
}
