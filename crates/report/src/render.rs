//! Draws a report as SVG, PNG or pixels.

use vramscope_draw::png;
use vramscope_draw::{Bitmap, Canvas, Color, Svg, Typesetter};

use super::contents::{RecordingReport, ReportError};
use super::page::Page;

/// Pixels per unit of a report, for screens with two pixels per CSS pixel; a very high PNG gets
/// fewer.
pub(super) const SCALE: f32 = 2.0;
/// Minimum pixels per unit of a PNG; a PNG that would need fewer is refused, because its text would
/// be illegible.
const MIN_SCALE: f32 = 0.75;

impl RecordingReport<'_> {
    /// Returns the report as an SVG document without external references.
    pub fn svg(&self) -> String {
        let page = Page::new(self, SCALE);
        let mut svg = Svg::new(page.size());
        page.draw(&mut svg);
        svg.finish(&self.title, SCALE, true)
    }

    /// Returns the report as a PNG file.
    ///
    /// # Errors
    /// If the picture would be higher than [`Bitmap::MAX_SIDE`] pixels at the smallest legible
    /// scale.
    pub fn png(&self) -> Result<Vec<u8>, ReportError> {
        self.bitmap().map(|bitmap| png::encode(&bitmap))
    }

    /// Returns the report as pixels.
    ///
    /// # Errors
    /// If the picture would be higher than [`Bitmap::MAX_SIDE`] pixels at the smallest legible
    /// scale.
    pub fn bitmap(&self) -> Result<Bitmap, ReportError> {
        let (_, height) = Page::new(self, 1.0).size();
        // 8 pixels of margin, because sides are rounded to whole pixels at any scale.
        let scale = SCALE.min(Bitmap::MAX_SIDE as f32 / (height as f32 + 8.0));
        if scale < MIN_SCALE {
            return Err(ReportError::TooHigh(self.devices.len()));
        }
        let page = Page::new(self, scale);
        let (width, height) = page.size();
        let (mut bitmap, mut typesetter) = (Bitmap::new(width, height, Color::default()), Typesetter::new());
        page.draw(&mut Canvas { bitmap: &mut bitmap, typesetter: &mut typesetter });
        Ok(bitmap)
    }
}
