//! The dark and the light palette.
//!
//! Each hue has one meaning: blue is allocated, lilac pending free, orange free space inside
//! segments, sea green this process's memory outside the pool, gray other processes' memory. Blue
//! and orange differ in every common kind of color blindness; free space is hatched as well.

use crate::frame::Color;

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
    /// Fragmentation: none, half, full; colors in between are mixed.
    pub heat: [Color; 3],
    /// Blocks by category, in the order of `Category::ALL`.
    pub categories: [Color; 8],
}

/// Colors for the dark color scheme.
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

/// Colors for the light color scheme, and for reports.
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
    /// Returns the dark or the light palette.
    #[must_use]
    pub const fn new(dark: bool) -> Self {
        if dark { DARK } else { LIGHT }
    }

    /// Returns the color of a block's rounding, the bytes beyond the requested size, for a block of
    /// color `block`.
    #[must_use]
    pub fn rounding(&self, block: Color) -> Color {
        block.mix(self.shade, 0.6)
    }

    /// Returns the color that shows a fragmentation from 0 to 1.
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

    /// Returns the perceived lightness, 0 to 255 (ITU-R BT.709).
    fn luma(color: Color) -> f32 {
        0.2126 * f32::from(color.r) + 0.7152 * f32::from(color.g) + 0.0722 * f32::from(color.b)
    }

    #[test]
    fn rounding_is_darker_than_blocks_and_block_shades_are_close() {
        for theme in [Theme::new(true), Theme::new(false)] {
            let rounding = luma(theme.rounding(theme.allocated));
            assert!((luma(theme.allocated) - luma(theme.allocated_alternate)).abs() < 8.0);
            for block in [theme.allocated, theme.allocated_alternate, theme.pending] {
                assert!(luma(block) - rounding > 40.0, "rounding is the darker end");
            }
        }
    }

    #[test]
    fn stacked_timeline_areas_differ_in_lightness() {
        for theme in [Theme::new(true), Theme::new(false)] {
            let stacked = [theme.well.mix(theme.free, 0.3), theme.outside, theme.others, theme.well];
            for (lower, upper) in stacked.iter().zip(&stacked[1..]) {
                assert!((luma(*lower) - luma(*upper)).abs() > 15.0, "{lower:?} below {upper:?}");
            }
        }
    }

    #[test]
    fn free_space_and_text_differ_in_lightness() {
        for theme in [Theme::new(true), Theme::new(false)] {
            assert!((luma(theme.free) - luma(theme.free_hatch)).abs() > 60.0);
            assert!((luma(theme.free) - luma(theme.allocated)).abs() > 25.0);
            assert!((luma(theme.text) - luma(theme.background)).abs() > 150.0);
            assert!((luma(theme.dim) - luma(theme.background)).abs() > 100.0);
        }
    }
}
