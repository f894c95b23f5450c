//! The color and pattern of each kind of memory.

use vramscope_draw::{Color, Texture, Theme, opaque};

use super::memory_kind::{MemoryKind, STUCK_LEVELS};

/// Share of the background in the colors of dimmed memory, from 0 to 1.
const DIMMED: f32 = 0.72;
/// Share of the background in the colors of free memory beside blocks in similar colors.
const SUBDUED: f32 = 0.5;

/// The color of a kind of memory, and the strokes on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KindStyle {
    /// The color.
    pub color: Color,
    /// The strokes; [`Texture::None`] without any, and for hatching.
    pub texture: Texture,
    /// Whether strokes rise to the right: memory that can be released.
    pub is_hatched: bool,
    /// The color of the strokes.
    pub ink: Color,
}

impl KindStyle {
    /// Creates a style without strokes.
    pub(crate) const fn plain(color: Color) -> Self {
        Self { color, texture: Texture::None, is_hatched: false, ink: color }
    }

    /// Returns the style of a kind of memory in a theme.
    #[must_use]
    pub fn new(kind: MemoryKind, theme: &Theme) -> Self {
        match kind {
            MemoryKind::Live(fill) => {
                let color = fill.color(theme);
                Self { texture: fill.texture(theme), ink: theme.texture_ink(color), ..Self::plain(color) }
            }
            MemoryKind::Rounding(fill) => Self::plain(theme.rounding(fill.color(theme))),
            MemoryKind::Stuck(level) => {
                let level = level.min(STUCK_LEVELS - 1);
                Self::plain(theme.stuck(f32::from(level) / f32::from(STUCK_LEVELS - 1)))
            }
            MemoryKind::Releasable => Self { is_hatched: true, ink: theme.cached_hatch, ..Self::plain(theme.cached) },
            MemoryKind::Outside => Self::plain(theme.outside),
            MemoryKind::Others => Self::plain(theme.others),
            MemoryKind::DriverFree => Self::plain(theme.grid.mix(theme.background, 0.4)),
            MemoryKind::Unknown => Self { texture: Texture::Dots, ink: theme.faint, ..Self::plain(theme.background) },
        }
    }

    /// Returns the name of the style sheet's pattern for the strokes; `None` without strokes.
    #[must_use]
    pub fn pattern(&self) -> Option<&'static str> {
        let texture = Some(self.texture).filter(|texture| *texture != Texture::None).map(Texture::name);
        if self.is_hatched { Some("rising") } else { texture }
    }

    /// Returns the style of dimmed memory.
    pub(super) fn dimmed(self, theme: &Theme) -> Self {
        self.mixed(theme, DIMMED)
    }

    /// Returns the style of memory beside blocks in similar colors.
    pub(super) fn subdued(self, theme: &Theme) -> Self {
        self.mixed(theme, SUBDUED)
    }

    fn mixed(self, theme: &Theme, amount: f32) -> Self {
        let [color, ink] = [self.color, self.ink].map(|color| color.mix(theme.background, amount));
        Self { color, ink, ..self }
    }

    /// Returns true if the area has strokes.
    pub(super) fn has_strokes(&self) -> bool {
        self.is_hatched || self.texture != Texture::None
    }

    /// Sets the colors of adjacent pixels from (`x`, `y`) to the right.
    pub(super) fn fill_row(&self, pixels: &mut [[u8; 4]], (x, y): (i32, i32), scale: f32) {
        let period = if self.is_hatched { hatch_period(scale) } else { self.texture.period(scale) };
        let period = period.max(1) as usize;
        for (pixel, x) in pixels.iter_mut().take(period).zip(x..) {
            let is_inked = if self.is_hatched { hatches(x, y, scale) } else { self.texture.inks(x, y, scale) };
            *pixel = opaque(if is_inked { self.ink } else { self.color });
        }
        for index in period..pixels.len() {
            pixels[index] = pixels[index - period];
        }
    }
}

/// Returns the number of pixel columns after which the hatching repeats.
fn hatch_period(scale: f32) -> i32 {
    (scale * 7.0).round().max(4.0) as i32
}

/// Returns true if the hatching inks pixel (`x`, `y`). Its strokes rise to the right, as no
/// [`Texture`]'s do.
fn hatches(x: i32, y: i32, scale: f32) -> bool {
    let stroke = scale.round().max(1.0) as i32;
    (x + y).rem_euclid(hatch_period(scale)) < stroke
}
