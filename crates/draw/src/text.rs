//! Text in a [`Bitmap`], drawn with the bundled font, so that pictures are equal inside and outside
//! of a browser.
//!
//! Glyphs have the same pixels on every target. ab_glyph 0.2.32 and ab_glyph_rasterizer 0.1.10 only
//! add, subtract, multiply, divide, compare, and call `sqrt`, `floor`, `ceil`, `trunc`, `fract` and
//! `abs` (`raster.rs`, `geometry.rs`, `outlined.rs`): IEEE 754 defines each result exactly, and
//! rustc neither reorders floating point operations nor fuses them. The rasterizer's AVX2 and
//! SSE 4.2 variants are its scalar code, compiled without FMA.

use std::collections::HashMap;

use ab_glyph::{Font, FontRef, Glyph, GlyphId, ScaleFont};

use crate::bitmap::{Bitmap, Color};

/// The bundled font in regular weight (OpenType). The page registers it for its own text.
pub const REGULAR: &[u8] = include_bytes!("../assets/Inter-Regular.subset.otf");
/// The bundled font in semi-bold weight (OpenType). The page would download 7 KB more with it;
/// there, the browser makes the headings bold.
#[cfg(not(target_arch = "wasm32"))]
pub const SEMI_BOLD: &[u8] = include_bytes!("../assets/Inter-SemiBold.subset.otf");
/// The font for semi-bold text in WebAssembly: the regular weight, because the page does not
/// download another font.
#[cfg(target_arch = "wasm32")]
const SEMI_BOLD: &[u8] = REGULAR;

/// Horizontal alignment of a text: begins at, is centered on, or ends at the point where it is
/// drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Align {
    /// The text begins at the point.
    #[default]
    Left,
    /// The text is centered on the point.
    Center,
    /// The text ends at the point.
    Right,
}

/// Font weight: regular for text, semi-bold for headings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weight {
    /// For text.
    #[default]
    Regular,
    /// For headings.
    SemiBold,
}

/// Number of horizontal positions within a pixel at which glyphs are rasterized, so that letters
/// are spaced evenly.
const SUBPIXELS: f32 = 4.0;

/// A glyph's pixels at one font size and subpixel position, and their offset from the pen.
struct RasterGlyph {
    left: i32,
    top: i32,
    width: i32,
    coverage: Vec<u8>,
}

/// A typesetter that draws and measures text in the bundled font, and caches every glyph that it
/// has rasterized.
pub struct Typesetter {
    fonts: [FontRef<'static>; 2],
    weight: Weight,
    /// By weight, glyph, size in sixteenths of a pixel, and subpixel position.
    glyphs: HashMap<(Weight, GlyphId, u32, u32), RasterGlyph>,
}

impl Default for Typesetter {
    fn default() -> Self {
        Self::new()
    }
}

impl Typesetter {
    /// Creates a typesetter for the bundled font.
    pub fn new() -> Self {
        let read = |bytes| FontRef::try_from_slice(bytes).expect("the bundled font is valid, which a test checks");
        Self { fonts: [read(REGULAR), read(SEMI_BOLD)], weight: Weight::Regular, glyphs: HashMap::new() }
    }

    /// Sets the weight of all text drawn or measured from now on.
    pub fn set_weight(&mut self, weight: Weight) {
        self.weight = weight;
    }

    /// Returns the font of the current weight.
    fn font(&self) -> &FontRef<'static> {
        &self.fonts[self.weight as usize]
    }

    /// Returns the glyph of a character, or that of a question mark if the font lacks it.
    fn glyph_id(&self, letter: char) -> GlyphId {
        match self.font().glyph_id(letter) {
            GlyphId(0) => self.font().glyph_id('?'),
            glyph => glyph,
        }
    }

    /// Returns the width of `text` in pixels at a font size of `size` pixels.
    pub fn width(&self, text: &str, size: f32) -> f32 {
        let font = self.font().as_scaled(self.scale(size));
        text.chars().map(|letter| font.h_advance(self.glyph_id(letter))).sum()
    }

    /// Returns the height in pixels of a digit at a font size of `size` pixels; labels are centered
    /// by it.
    pub fn cap_height(size: f32) -> f32 {
        size * 0.727
    }

    /// Returns `text` shortened with an ellipsis to at most `max_width` pixels at a font size of
    /// `size` pixels.
    ///
    /// The result is empty if not even one letter fits.
    pub fn fit(&self, text: &str, size: f32, max_width: f32) -> String {
        if self.width(text, size) <= max_width {
            return text.to_owned();
        }
        let mut width = self.width("…", size);
        let font = self.font().as_scaled(self.scale(size));
        let mut shortened = String::new();
        for letter in text.chars() {
            width += font.h_advance(self.glyph_id(letter));
            if width > max_width {
                break;
            }
            shortened.push(letter);
        }
        if shortened.is_empty() { shortened } else { shortened + "…" }
    }

    /// Draws `text` on a bitmap at a font size of `size` pixels, aligned at `x`, with its digits
    /// vertically centered on `center_y`.
    pub fn draw(
        &mut self,
        bitmap: &mut Bitmap,
        text: &str,
        size: f32,
        (x, center_y): (f32, f32),
        align: Align,
        color: Color,
    ) {
        let mut pen = match align {
            Align::Left => x,
            Align::Center => x - self.width(text, size) / 2.0,
            Align::Right => x - self.width(text, size),
        };
        let baseline = (center_y + Self::cap_height(size) / 2.0).round() as i32;
        for letter in text.chars() {
            let id = self.glyph_id(letter);
            let advance = self.font().as_scaled(self.scale(size)).h_advance(id);
            let subpixel = (pen.fract().rem_euclid(1.0) * SUBPIXELS) as u32;
            let glyph = self.raster_glyph(id, size, subpixel);
            let left = pen.floor() as i32 + glyph.left;
            for (index, &coverage) in glyph.coverage.iter().enumerate().filter(|&(_, &coverage)| coverage > 0) {
                let (column, row) = (index as i32 % glyph.width, index as i32 / glyph.width);
                bitmap.blend(left + column, baseline + glyph.top + row, color, f32::from(coverage) / 255.0);
            }
            pen += advance;
        }
    }

    /// Converts a font size in pixels, the height of the em, to ab_glyph's scale, the height of the
    /// whole font.
    fn scale(&self, size: f32) -> f32 {
        size * self.font().height_unscaled() / self.font().units_per_em().unwrap_or(1000.0)
    }

    /// Returns a glyph of the current weight as pixels, from the cache after the first call.
    ///
    /// `size` is the font size in pixels, `subpixel` the horizontal offset in units of 1 /
    /// [`SUBPIXELS`] pixel.
    fn raster_glyph(&mut self, id: GlyphId, size: f32, subpixel: u32) -> &RasterGlyph {
        let scale = self.scale(size);
        let font = &self.fonts[self.weight as usize];
        self.glyphs.entry((self.weight, id, (size * 16.0) as u32, subpixel)).or_insert_with(|| {
            let glyph = Glyph { id, scale: scale.into(), position: ab_glyph::point(subpixel as f32 / SUBPIXELS, 0.0) };
            let Some(outline) = font.outline_glyph(glyph) else {
                return RasterGlyph { left: 0, top: 0, width: 1, coverage: Vec::new() };
            };
            let bounds = outline.px_bounds();
            let (width, height) = (bounds.width() as usize, bounds.height() as usize);
            let mut coverage = vec![0; width * height];
            outline.draw(|x, y, covered| {
                if let Some(cell) = coverage.get_mut(y as usize * width + x as usize) {
                    *cell = (covered.clamp(0.0, 1.0) * 255.0) as u8;
                }
            });
            RasterGlyph { left: bounds.min.x as i32, top: bounds.min.y as i32, width: width.max(1) as i32, coverage }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_have_equal_width_and_missing_glyphs_a_replacement() {
        let typesetter = Typesetter::new();
        let widths: Vec<f32> = "0123456789".chars().map(|digit| typesetter.width(&digit.to_string(), 11.0)).collect();
        assert!(widths.iter().all(|width| (width - widths[0]).abs() < 1e-3), "{widths:?}");
        assert_eq!(typesetter.width("名", 11.0), typesetter.width("?", 11.0));
    }

    #[test]
    fn text_is_shortened_to_the_given_width() {
        let typesetter = Typesetter::new();
        for width in 0..80 {
            let shortened = typesetter.fit("transformer/layer 3", 11.0, width as f32);
            assert!(typesetter.width(&shortened, 11.0) <= width as f32, "{shortened:?} in {width}");
        }
        assert_eq!(typesetter.fit("step", 11.0, 100.0), "step");
    }

    #[test]
    fn glyphs_are_drawn_around_their_center() {
        let mut bitmap = Bitmap::new(40, 20, Color::hex(0));
        Typesetter::new().draw(&mut bitmap, "8", 12.0, (20.0, 10.0), Align::Center, Color::hex(0xffffff));
        let inked = |x: i32, y: i32| bitmap.pixel(x, y).is_some_and(|pixel| pixel.r > 60);
        let rows: Vec<i32> = (0..20).filter(|&y| (0..40).any(|x| inked(x, y))).collect();
        let columns: Vec<i32> = (0..40).filter(|&x| (0..20).any(|y| inked(x, y))).collect();
        assert!(rows[0] >= 5 && rows[rows.len() - 1] <= 15, "{rows:?}");
        assert!(columns[0] >= 15 && columns[columns.len() - 1] <= 24, "{columns:?}");
    }
}
