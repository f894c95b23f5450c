//! The pictures of the page: their sizes, colors and pixels.

use vramscope_draw::{Bitmap, Canvas, Color, Theme, Typesetter};

use crate::protocol::{Screen, Surface};

/// The sizes and colors of the page's pictures, and the pictures as last drawn.
#[derive(Default)]
pub(super) struct Display {
    pub(super) screen: Screen,
    pub(super) theme: Theme,
    pub(super) typesetter: Typesetter,
    /// The pictures, in the order of [`Surface::ALL`].
    layers: [Layers; 3],
}

impl Display {
    /// Sets sizes and colors; pictures of another size are discarded.
    pub(super) fn set_screen(&mut self, screen: &Screen) {
        self.screen = screen.clone();
        self.theme = Theme::new(screen.is_dark);
        for (layers, size) in self.layers.iter_mut().zip(screen.sizes) {
            if layers.size() != size {
                layers.base = Bitmap::new(size.0, size.1, Color::default());
            }
        }
    }

    /// Returns the width and height of a picture as the page has it, in pixels.
    pub(super) fn size(&self, surface: Surface) -> (u32, u32) {
        self.screen.sizes[surface as usize]
    }

    /// Returns the width and height of a picture as last drawn, in pixels.
    pub(super) fn drawn_size(&self, surface: Surface) -> (u32, u32) {
        self.layers[surface as usize].size()
    }

    /// Draws a picture: its base by `draw_base` if that `is_changed`, and cursor and highlights on
    /// a copy of the base by `draw_above`.
    pub(super) fn draw(
        &mut self,
        surface: Surface,
        is_changed: bool,
        draw_base: impl FnOnce(&mut Canvas<'_>, &Theme),
        draw_above: impl FnOnce(&mut Canvas<'_>, &Theme),
    ) {
        let Layers { base, composed } = &mut self.layers[surface as usize];
        if is_changed {
            draw_base(&mut Canvas { bitmap: base, typesetter: &mut self.typesetter }, &self.theme);
        }
        composed.copy_from(base);
        draw_above(&mut Canvas { bitmap: composed, typesetter: &mut self.typesetter }, &self.theme);
    }

    /// Returns the pixels of a picture as last drawn, RGBA.
    pub(super) fn pixels(&self, surface: Surface) -> &[u8] {
        self.layers[surface as usize].composed.bytes()
    }
}

/// A picture in two layers: a base that is drawn only when it changes, and a copy of it on which
/// the cursor or the highlights are drawn each time.
struct Layers {
    base: Bitmap,
    composed: Bitmap,
}

impl Default for Layers {
    fn default() -> Self {
        let empty = Bitmap::new(1, 1, Color::default());
        Self { base: empty.clone(), composed: empty }
    }
}

impl Layers {
    /// Returns the picture's width and height in pixels.
    fn size(&self) -> (u32, u32) {
        (self.base.width() as u32, self.base.height() as u32)
    }
}
