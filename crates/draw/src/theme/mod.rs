//! The dark and the light palette.
//!
//! Each hue has one meaning: blue is allocated, lilac pending free, orange free space inside
//! segments, sea green this process's memory outside the pool, gray other processes' memory.
//!
//! The tests ensure the contrast that WCAG 2.1 level AA asks for (4.5:1 for text, 3:1 for
//! graphics), and that colors stay apart in simulated protanopia, deuteranopia and tritanopia.
//! Where a picture has room, a [`Texture`] tells colors apart a second time.

use crate::bitmap::Color;

/// A palette: one color for each role, such as the background, text or allocated blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    /// Background of the page.
    pub background: Color,
    /// Background of charts and panels.
    pub well: Color,
    /// Grid lines.
    pub grid: Color,
    /// Primary text.
    pub text: Color,
    /// Secondary text.
    pub dim: Color,
    /// Lines and borders of little importance.
    pub faint: Color,
    /// The moment on the screen, the selection, and the peaks.
    pub cursor: Color,
    /// Allocated blocks.
    pub allocated: Color,
    /// A slightly different shade for about half of the blocks, so that neighbors can be told
    /// apart.
    pub allocated_alternate: Color,
    /// Darkens a block's color for the part beyond the requested size.
    pub shade: Color,
    /// Blocks pending free.
    pub pending: Color,
    /// Free space in segments that also have live blocks.
    pub free: Color,
    /// Hatching of free space.
    pub free_hatch: Color,
    /// Segments without live blocks.
    pub cached: Color,
    /// Hatching of segments without live blocks.
    pub cached_hatch: Color,
    /// Free memory beside live blocks: a range that every request fits, and one that none fits; see
    /// [`stuck`](Self::stuck).
    pub stuck: [Color; 2],
    /// The line of the reserved bytes.
    pub reserved_line: Color,
    /// Memory that this process holds outside the pool.
    pub outside: Color,
    /// Memory that other processes hold.
    pub others: Color,
    /// Out of memory, lost events, errors.
    pub alarm: Color,
    /// Spans of marks.
    pub mark: Color,
    /// Every second span.
    pub mark_alternate: Color,
    /// Text on a span.
    pub mark_text: Color,
    /// Blocks by category, in the order of `Category::ALL`.
    pub categories: [Color; 10],
    /// Colors of groups, such as sites, modules or streams; see [`group_color`](Self::group_color).
    pub groups: [Color; GROUP_COLORS],
    /// The two sides of a comparison.
    pub sides: [Color; 2],
    /// Colors of ordered values such as ages and sizes, from least to most; see
    /// [`sequential`](Self::sequential).
    pub sequence: [Color; 5],
}

/// Number of colors for groups; further groups get these colors with a [`Texture`].
pub const GROUP_COLORS: usize = 12;

/// A pattern on a filled area, for telling colors apart without seeing them.
///
/// None of them looks like the hatching of free space, whose strokes rise to the right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Texture {
    /// Plain.
    #[default]
    None,
    /// Strokes that fall to the right.
    Diagonal,
    /// Dots in a grid, every second row shifted.
    Dots,
    /// Vertical strokes.
    Vertical,
    /// Horizontal strokes.
    Horizontal,
    /// Strokes that rise and strokes that fall.
    Cross,
}

impl Texture {
    /// All textures.
    pub const ALL: [Self; 6] = [Self::None, Self::Diagonal, Self::Dots, Self::Vertical, Self::Horizontal, Self::Cross];

    /// Returns the name, for style sheets and scripts, such as `dots`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Diagonal => "diagonal",
            Self::Dots => "dots",
            Self::Vertical => "vertical",
            Self::Horizontal => "horizontal",
            Self::Cross => "cross",
        }
    }

    /// Returns the number of pixel columns after which the texture repeats. `scale` is the number
    /// of pixels per unit of layout.
    #[must_use]
    pub fn period(self, scale: f32) -> i32 {
        let px = |units: f32| ((units * scale).round() as i32).max(1);
        match self {
            Self::None | Self::Horizontal => 1,
            Self::Diagonal => px(6.0).max(px(1.0) + 1),
            Self::Dots => px(5.0).max(3),
            Self::Vertical => px(5.0).max(px(1.0) + 1),
            Self::Cross => px(8.0).max(px(1.0) + 1),
        }
    }

    /// Returns true if the texture inks pixel (`x`, `y`). `scale` is the number of pixels per unit
    /// of layout.
    #[must_use]
    pub fn inks(self, x: i32, y: i32, scale: f32) -> bool {
        let px = |units: f32| ((units * scale).round() as i32).max(1);
        let stroke = px(1.0);
        let in_stroke = |along: i32, period: f32| along.rem_euclid(px(period).max(stroke + 1)) < stroke;
        match self {
            Self::None => false,
            Self::Diagonal => in_stroke(x.wrapping_sub(y), 6.0),
            Self::Dots => {
                let (period, dot) = (px(5.0).max(3), px(2.0));
                let row = y.div_euclid(period);
                let shift = if row.rem_euclid(2) == 0 { 0 } else { period / 2 };
                y.rem_euclid(period) < dot && x.wrapping_add(shift).rem_euclid(period) < dot
            }
            Self::Vertical => in_stroke(x, 5.0),
            Self::Horizontal => in_stroke(y, 5.0),
            Self::Cross => in_stroke(x.wrapping_sub(y), 8.0) || in_stroke(x.wrapping_add(y), 8.0),
        }
    }
}

/// Returns the color `dark` (0xRRGGBB) if `is_dark`, else the color `light`.
const fn color(is_dark: bool, dark: u32, light: u32) -> Color {
    Color::hex(if is_dark { dark } else { light })
}

/// Returns the colors `dark` (0xRRGGBB) if `is_dark`, else the colors `light`.
const fn colors<const N: usize>(is_dark: bool, dark: [u32; N], light: [u32; N]) -> [Color; N] {
    let (mut colors, mut index) = ([Color::hex(0); N], 0);
    while index < N {
        colors[index] = color(is_dark, dark[index], light[index]);
        index += 1;
    }
    colors
}

impl Default for Theme {
    fn default() -> Self {
        Self::new(false)
    }
}

impl Theme {
    /// Returns the dark or the light palette.
    pub const fn new(is_dark: bool) -> Self {
        Self {
            background: color(is_dark, 0x0d1117, 0xf7f9fb),
            well: color(is_dark, 0x151b23, 0xffffff),
            grid: color(is_dark, 0x232b36, 0xe4e9ee),
            text: color(is_dark, 0xdbe2ea, 0x17202b),
            dim: color(is_dark, 0x9aa6b4, 0x515d6b),
            faint: color(is_dark, 0x3d4754, 0xc3ccd5),
            cursor: color(is_dark, 0xf5f8fb, 0x0b1017),
            allocated: color(is_dark, 0x2f6fb8, 0x2a66b5),
            allocated_alternate: color(is_dark, 0x3577c1, 0x316dbb),
            shade: color(is_dark, 0x0a1420, 0x0c1d33),
            pending: color(is_dark, 0xc9a6e8, 0xaa7fc0),
            free: color(is_dark, 0xe8832a, 0xdb7417),
            free_hatch: color(is_dark, 0x8a4510, 0xffe3c2),
            cached: color(is_dark, 0x4a3317, 0xfbecd6),
            cached_hatch: color(is_dark, 0x9a6722, 0xb08242),
            stuck: colors(is_dark, [0x4d2f45, 0xff7ab8], [0xf2d3e2, 0xc2256e]),
            reserved_line: color(is_dark, 0xaab4c0, 0x4b5765),
            outside: color(is_dark, 0x45a699, 0x2d827a),
            others: color(is_dark, 0x5f6b79, 0x85909c),
            alarm: color(is_dark, 0xff7373, 0xbe2222),
            mark: color(is_dark, 0x27323f, 0xdde4ec),
            mark_alternate: color(is_dark, 0x2d3846, 0xcfd9e4),
            mark_text: color(is_dark, 0xb9c3cf, 0x37434f),
            categories: colors(
                is_dark,
                [0x7b7581, 0x4474bd, 0x4cbee2, 0xc35cfa, 0x2ca86c, 0xebd555, 0xc1d8e2, 0x956133, 0xa8b800, 0xf8f8d0],
                [0x808a94, 0x216fca, 0x0898d7, 0x821969, 0x1b6e23, 0x533b00, 0x6c6774, 0x5936a1, 0xc08418, 0x1e1e2a],
            ),
            groups: colors(
                is_dark,
                [
                    0x605dca, 0x62ffbd, 0xb94006, 0xa4a8d5, 0xfedd43, 0xc27d65, 0x688dfc, 0x875b6b, 0xbbd2ff, 0xf1a800,
                    0x917db0, 0x4cd594,
                ],
                [
                    0x372c81, 0x13a366, 0x6f1b03, 0x937df2, 0x51304b, 0xb15204, 0x4644b1, 0xb37cb3, 0x654b79, 0x6568c3,
                    0x86413a, 0x8b6783,
                ],
            ),
            sides: colors(is_dark, [0xf1a800, 0xa78bfa], [0xb15204, 0x5b3fc4]),
            sequence: colors(
                is_dark,
                [0x2c728e, 0x28ae80, 0x5ec962, 0xaddc30, 0xfde725],
                [0x21918c, 0x2c728e, 0x3b528b, 0x472d7b, 0x300a4a],
            ),
        }
    }

    /// Returns the color of the reserved bytes as a whole: the map's color of free space, tinted.
    #[must_use]
    pub fn reserved(&self) -> Color {
        self.well.mix(self.free, 0.3)
    }

    /// Returns the color of a block's rounding, the bytes beyond the requested size, for a block of
    /// color `block`.
    pub fn rounding(&self, block: Color) -> Color {
        block.mix(self.shade, 0.6)
    }

    /// Returns the color of free memory beside live blocks; `share` (0 to 1) is how much of the
    /// requested memory does not fit into it.
    pub fn stuck(&self, share: f32) -> Color {
        self.stuck[0].mix(self.stuck[1], share)
    }

    /// Returns the color of the group with this index. Colors repeat after [`GROUP_COLORS`] groups;
    /// [`group_texture`](Self::group_texture) tells groups with equal colors apart.
    pub fn group_color(&self, index: usize) -> Color {
        self.groups[index % GROUP_COLORS]
    }

    /// Returns the texture of the group with this index: none for the first [`GROUP_COLORS`]
    /// groups, another one for each further round through the colors. Color and texture repeat
    /// after 72 groups.
    pub fn group_texture(&self, index: usize) -> Texture {
        Texture::ALL[index / GROUP_COLORS % Texture::ALL.len()]
    }

    /// Returns the texture of blocks of a category; `index` is the category's index in
    /// `Category::ALL`.
    pub fn category_texture(&self, index: usize) -> Texture {
        use Texture::{Cross, Diagonal, Dots, Horizontal, None, Vertical};
        /// The texture of each category, in the order of `Category::ALL`.
        const TEXTURES: [Texture; 10] = [None, None, Dots, Vertical, None, Diagonal, Horizontal, Cross, Dots, Diagonal];
        TEXTURES.get(index).copied().unwrap_or_default()
    }

    /// Returns the texture of blocks pending free.
    pub const fn pending_texture(&self) -> Texture {
        Texture::Dots
    }

    /// Returns the color of a texture's strokes on an area of color `fill`.
    pub fn texture_ink(&self, fill: Color) -> Color {
        fill.mix(self.shade, 0.38)
    }

    /// Returns the color of an ordered value, such as an age, a size or a share: `amount` is from 0
    /// (least) to 1 (most). More is further from the background in lightness.
    pub fn sequential(&self, amount: f32) -> Color {
        let last = self.sequence.len() - 1;
        let position = if amount.is_nan() { 0.0 } else { amount.clamp(0.0, 1.0) } * last as f32;
        let below = (position as usize).min(last - 1);
        self.sequence[below].mix(self.sequence[below + 1], position - below as f32)
    }
}

#[cfg(test)]
mod tests;
