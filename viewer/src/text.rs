//! Letters in a [`Frame`]: the bundled font, drawn without the page, so that a picture is the same in a browser and outside.

use std::collections::HashMap;

use ab_glyph::{Font, FontRef, Glyph, GlyphId, ScaleFont};

use crate::frame::{Color, Frame};

/// The bundled regular weight; a page may register it so that its own text matches.
pub const REGULAR: &[u8] = include_bytes!("../assets/Inter-Regular.subset.otf");
/// The bundled semi-bold weight.
pub const SEMI_BOLD: &[u8] = include_bytes!("../assets/Inter-SemiBold.subset.otf");

/// Where a text stands relative to the point that it is drawn at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Align {
    /// It begins there.
    #[default]
    Left,
    /// It is centered there.
    Center,
    /// It ends there.
    Right,
}

/// How strong letters are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weight {
    /// As text is.
    #[default]
    Regular,
    /// As headings are.
    SemiBold,
}

/// Glyphs are drawn at this many places within a pixel, so that letters keep their distances.
const PLACES: f32 = 4.0;

/// A glyph's coverage, drawn once for each size and place within a pixel.
struct Drawn {
    left: i32,
    top: i32,
    width: i32,
    coverage: Vec<u8>,
}

/// Draws and measures text. Keeps every glyph that it has drawn.
pub struct Typesetter {
    fonts: [FontRef<'static>; 2],
    weight: Weight,
    drawn: HashMap<(Weight, GlyphId, u32, u32), Drawn>,
}

impl Default for Typesetter {
    fn default() -> Self {
        Self::new()
    }
}

impl Typesetter {
    /// A typesetter for the bundled font.
    #[must_use]
    pub fn new() -> Self {
        let read =
            |bytes| FontRef::try_from_slice(bytes).expect("the font is part of this program and a test reads it");
        Self { fonts: [read(REGULAR), read(SEMI_BOLD)], weight: Weight::Regular, drawn: HashMap::new() }
    }

    /// Letters from here on have this weight.
    pub fn set_weight(&mut self, weight: Weight) {
        self.weight = weight;
    }

    fn font(&self) -> &FontRef<'static> {
        &self.fonts[self.weight as usize]
    }

    /// The glyph of a character; a question mark where the font has none.
    fn glyph(&self, letter: char) -> GlyphId {
        match self.font().glyph_id(letter) {
            GlyphId(0) => self.font().glyph_id('?'),
            glyph => glyph,
        }
    }

    /// How wide `text` is at `size` pixels to the em.
    #[must_use]
    pub fn width(&self, text: &str, size: f32) -> f32 {
        let font = self.font().as_scaled(self.scale(size));
        text.chars().map(|letter| font.h_advance(self.glyph(letter))).sum()
    }

    /// The height of a digit at `size` pixels to the em; what a label is centered by.
    #[must_use]
    pub fn cap_height(size: f32) -> f32 {
        size * 0.727
    }

    /// `text`, cut short with an ellipsis so that it is at most `room` pixels wide; empty if not even one letter has room.
    #[must_use]
    pub fn fit(&self, text: &str, size: f32, room: f32) -> String {
        if self.width(text, size) <= room {
            return text.to_owned();
        }
        let mut used = self.width("…", size);
        let font = self.font().as_scaled(self.scale(size));
        let mut kept = String::new();
        for letter in text.chars() {
            used += font.h_advance(self.glyph(letter));
            if used > room {
                break;
            }
            kept.push(letter);
        }
        if kept.is_empty() { kept } else { kept + "…" }
    }

    /// Draws `text` so that its digits are vertically centered on `center_y`.
    pub fn draw(
        &mut self,
        frame: &mut Frame,
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
            let glyph = self.glyph(letter);
            let advance = self.font().as_scaled(self.scale(size)).h_advance(glyph);
            let place = (pen.fract().rem_euclid(1.0) * PLACES) as u32;
            let drawn = self.drawn(glyph, size, place);
            let left = pen.floor() as i32 + drawn.left;
            for (at, &coverage) in drawn.coverage.iter().enumerate().filter(|&(_, &coverage)| coverage > 0) {
                let (column, row) = (at as i32 % drawn.width, at as i32 / drawn.width);
                frame.blend(left + column, baseline + drawn.top + row, color, f32::from(coverage) / 255.0);
            }
            pen += advance;
        }
    }

    /// ab_glyph's scale is the font's whole height, a font size is that of its em.
    fn scale(&self, size: f32) -> f32 {
        size * self.font().height_unscaled() / self.font().units_per_em().unwrap_or(1000.0)
    }

    fn drawn(&mut self, id: GlyphId, size: f32, place: u32) -> &Drawn {
        let scale = self.scale(size);
        let font = &self.fonts[self.weight as usize];
        self.drawn.entry((self.weight, id, (size * 16.0) as u32, place)).or_insert_with(|| {
            let glyph = Glyph { id, scale: scale.into(), position: ab_glyph::point(place as f32 / PLACES, 0.0) };
            let Some(outline) = font.outline_glyph(glyph) else {
                return Drawn { left: 0, top: 0, width: 1, coverage: Vec::new() };
            };
            let bounds = outline.px_bounds();
            let (width, height) = (bounds.width() as usize, bounds.height() as usize);
            let mut coverage = vec![0; width * height];
            outline.draw(|x, y, covered| {
                if let Some(cell) = coverage.get_mut(y as usize * width + x as usize) {
                    *cell = (covered.clamp(0.0, 1.0) * 255.0) as u8;
                }
            });
            Drawn { left: bounds.min.x as i32, top: bounds.min.y as i32, width: width.max(1) as i32, coverage }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_equally_wide_and_strange_letters_have_a_stand_in() {
        let type_ = Typesetter::new();
        let widths: Vec<f32> = "0123456789".chars().map(|digit| type_.width(&digit.to_string(), 11.0)).collect();
        assert!(widths.iter().all(|width| (width - widths[0]).abs() < 1e-3), "{widths:?}");
        assert_eq!(type_.width("名", 11.0), type_.width("?", 11.0));
    }

    #[test]
    fn a_text_is_cut_to_its_room() {
        let type_ = Typesetter::new();
        for room in 0..80 {
            let cut = type_.fit("transformer/layer 3", 11.0, room as f32);
            assert!(type_.width(&cut, 11.0) <= room as f32, "{cut:?} in {room}");
        }
        assert_eq!(type_.fit("step", 11.0, 100.0), "step");
    }

    #[test]
    fn letters_leave_ink_where_they_should() {
        let mut frame = Frame::new(40, 20, Color::hex(0));
        Typesetter::new().draw(&mut frame, "8", 12.0, (20.0, 10.0), Align::Center, Color::hex(0xffffff));
        let inked = |x: i32, y: i32| frame.pixel(x, y).is_some_and(|pixel| pixel.r > 60);
        let rows: Vec<i32> = (0..20).filter(|&y| (0..40).any(|x| inked(x, y))).collect();
        let columns: Vec<i32> = (0..40).filter(|&x| (0..20).any(|y| inked(x, y))).collect();
        assert!(rows[0] >= 5 && rows[rows.len() - 1] <= 15, "{rows:?}");
        assert!(columns[0] >= 15 && columns[columns.len() - 1] <= 24, "{columns:?}");
    }
}
