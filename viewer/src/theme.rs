//! The two palettes.
//!
//! One hue has one meaning everywhere: blue is allocated, lilac is freed but still in use by a stream, orange is free space inside
//! segments, sea green is what this process holds outside of the pool, gray what others hold. Blue and orange stay apart in every common kind of color blindness; free space is hatched as well, so that it does not
//! rest on color at all.

use crate::frame::Color;

/// The colors of everything that is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    /// Behind everything.
    pub background: Color,
    /// Behind a row of the heatmap, and behind a chart.
    pub well: Color,
    /// Grid lines.
    pub grid: Color,
    /// Text that matters.
    pub text: Color,
    /// Text that explains.
    pub dim: Color,
    /// What should hardly be seen.
    pub faint: Color,
    /// The moment on the screen, and the selection.
    pub cursor: Color,
    /// Allocated blocks.
    pub allocated: Color,
    /// Nearly the same, for every second block: it helps the line between two of them, and is not to be read as another color.
    pub allocated_alternate: Color,
    /// What a block's color is darkened with where nobody asked for the memory.
    pub shade: Color,
    /// Freed by the program, still in use by a stream.
    pub pending: Color,
    /// Free space between or beside live blocks.
    pub free: Color,
    /// The hatch on it.
    pub free_hatch: Color,
    /// A segment with nothing in it.
    pub cached: Color,
    /// The hatch on it.
    pub cached_hatch: Color,
    /// The line of the reserved bytes.
    pub reserved_line: Color,
    /// Held by this process outside of the pool.
    pub outside: Color,
    /// Held by other processes.
    pub others: Color,
    /// Out of memory, lost events.
    pub alarm: Color,
    /// A span of an annotation.
    pub mark: Color,
    /// Every second span.
    pub mark_alternate: Color,
    /// The text on a span.
    pub mark_text: Color,
    /// Fragmentation from none over half to full.
    pub heat: [Color; 3],
    /// Blocks by category, in the order of `Category::ALL`.
    pub categories: [Color; 8],
}

const DARK: Theme = Theme {
    background: Color::hex(0x0d1117),
    well: Color::hex(0x151b23),
    grid: Color::hex(0x232b36),
    text: Color::hex(0xdbe2ea),
    dim: Color::hex(0x8c98a7),
    faint: Color::hex(0x3d4754),
    cursor: Color::hex(0xf5f8fb),
    allocated: Color::hex(0x2a68ad),
    allocated_alternate: Color::hex(0x2f6eb4),
    shade: Color::hex(0x0a1420),
    pending: Color::hex(0xa993f0),
    free: Color::hex(0xe8832a),
    free_hatch: Color::hex(0x8a4510),
    cached: Color::hex(0x4a3317),
    cached_hatch: Color::hex(0x8a5a1e),
    reserved_line: Color::hex(0xaab4c0),
    outside: Color::hex(0x2c6a64),
    others: Color::hex(0x3b4552),
    alarm: Color::hex(0xff5d5d),
    mark: Color::hex(0x27323f),
    mark_alternate: Color::hex(0x2f3b4a),
    mark_text: Color::hex(0xb9c3cf),
    heat: [Color::hex(0x1c2530), Color::hex(0xa33a6b), Color::hex(0xffd166)],
    categories: [
        Color::hex(0x66717f),
        Color::hex(0x3f78c9),
        Color::hex(0x4fb7d6),
        Color::hex(0xb3589c),
        Color::hex(0x2f9a63),
        Color::hex(0xd6cf6a),
        Color::hex(0xaab3bd),
        Color::hex(0x7d68d8),
    ],
};

const LIGHT: Theme = Theme {
    background: Color::hex(0xf7f9fb),
    well: Color::hex(0xffffff),
    grid: Color::hex(0xe4e9ee),
    text: Color::hex(0x17202b),
    dim: Color::hex(0x596675),
    faint: Color::hex(0xc3ccd5),
    cursor: Color::hex(0x0b1017),
    allocated: Color::hex(0x4a8acb),
    allocated_alternate: Color::hex(0x5290d1),
    shade: Color::hex(0x0c1d33),
    pending: Color::hex(0x8f74dd),
    free: Color::hex(0xf58b2c),
    free_hatch: Color::hex(0xffd5a6),
    cached: Color::hex(0xfbecd6),
    cached_hatch: Color::hex(0xe3b57a),
    reserved_line: Color::hex(0x4b5765),
    outside: Color::hex(0x8fcac2),
    others: Color::hex(0xc9d1da),
    alarm: Color::hex(0xd22f2f),
    mark: Color::hex(0xdde4ec),
    mark_alternate: Color::hex(0xcfd9e4),
    mark_text: Color::hex(0x37434f),
    heat: [Color::hex(0xe7ecf1), Color::hex(0xd0689a), Color::hex(0x8c1d4b)],
    categories: [
        Color::hex(0x8994a0),
        Color::hex(0x3b74c4),
        Color::hex(0x4db4d3),
        Color::hex(0xb3589c),
        Color::hex(0x2f9a63),
        Color::hex(0xc4b93c),
        Color::hex(0xb7c0c9),
        Color::hex(0x7d68d8),
    ],
};

impl Theme {
    /// The palette for a dark or a light page.
    #[must_use]
    pub const fn new(dark: bool) -> Self {
        if dark { DARK } else { LIGHT }
    }

    /// The color of the rounding at the end of a block of this color.
    #[must_use]
    pub fn waste(&self, block: Color) -> Color {
        block.mix(self.shade, 0.6)
    }

    /// The color of a fragmentation between 0 and 1.
    #[must_use]
    pub fn heat(&self, fragmentation: f32) -> Color {
        let [none, half, full] = self.heat;
        if fragmentation < 0.5 {
            none.mix(half, fragmentation * 2.0)
        } else {
            half.mix(full, fragmentation * 2.0 - 1.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lightness as the eye weighs it, 0 to 255.
    fn luma(color: Color) -> f32 {
        0.2126 * f32::from(color.r) + 0.7152 * f32::from(color.g) + 0.0722 * f32::from(color.b)
    }

    #[test]
    fn rounding_is_told_from_blocks_and_blocks_are_one_color() {
        for theme in [Theme::new(true), Theme::new(false)] {
            let waste = luma(theme.waste(theme.allocated));
            assert!((luma(theme.allocated) - luma(theme.allocated_alternate)).abs() < 8.0);
            for block in [theme.allocated, theme.allocated_alternate, theme.pending] {
                assert!(luma(block) - waste > 40.0, "rounding is the darker end");
            }
        }
    }

    #[test]
    fn what_is_stacked_on_the_timeline_is_told_apart_without_color() {
        for theme in [Theme::new(true), Theme::new(false)] {
            let stacked = [theme.well.mix(theme.free, 0.3), theme.outside, theme.others, theme.well];
            for (lower, upper) in stacked.iter().zip(&stacked[1..]) {
                assert!((luma(*lower) - luma(*upper)).abs() > 15.0, "{lower:?} below {upper:?}");
            }
        }
    }

    #[test]
    fn free_space_stands_out_without_color() {
        for theme in [Theme::new(true), Theme::new(false)] {
            assert!((luma(theme.free) - luma(theme.free_hatch)).abs() > 60.0);
            assert!((luma(theme.free) - luma(theme.allocated)).abs() > 25.0);
            assert!((luma(theme.text) - luma(theme.background)).abs() > 150.0);
            assert!((luma(theme.dim) - luma(theme.background)).abs() > 100.0);
        }
    }
}
