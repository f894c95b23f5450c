//! The colors of cells, for the light and the dark color scheme.

use std::fmt;

/// Number of colors that cells have, from the lowest to the highest value.
pub const LEVELS: usize = 24;

/// An RGB color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rgb(pub u8, pub u8, pub u8);

impl fmt::Display for Rgb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

impl Rgb {
    /// Creates a color from a number such as `0xd22f2f`.
    const fn hex(hex: u32) -> Self {
        Self((hex >> 16) as u8, (hex >> 8) as u8, hex as u8)
    }

    /// Mixes two colors: `self` if `share` is 0, `other` if it is 1.
    fn mixed(self, other: Self, share: f64) -> Self {
        let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * share).round() as u8;
        Self(mix(self.0, other.0), mix(self.1, other.1), mix(self.2, other.2))
    }

    /// Returns the color's relative luminance (WCAG 2.1), from 0 to 1.
    fn luminance(self) -> f64 {
        let linear = |channel: u8| {
            let share = f64::from(channel) / 255.0;
            if share <= 0.040_45 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(self.0) + 0.7152 * linear(self.1) + 0.0722 * linear(self.2)
    }

    /// Returns the contrast ratio with another color (WCAG 2.1), from 1 to 21.
    fn contrast(self, other: Self) -> f64 {
        let (a, b) = (self.luminance() + 0.05, other.luminance() + 0.05);
        a.max(b) / a.min(b)
    }

    /// Returns black or white, whichever is easier to read on this color.
    #[must_use]
    pub fn text(self) -> Self {
        let (black, white) = (Self(0, 0, 0), Self(255, 255, 255));
        if self.contrast(black) >= self.contrast(white) { black } else { white }
    }
}

/// The colors of the cells in one color scheme. Background and text colors equal the main page's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Palette {
    /// Background.
    pub background: Rgb,
    /// Primary text, and the selected cell.
    pub text: Rgb,
    /// Secondary text.
    pub dim: Rgb,
    /// Ranks that have ended.
    pub ended: Rgb,
    /// Ranks whose value is unknown.
    pub unknown: Rgb,
    /// Ranks that differ from those like them.
    pub marked: Rgb,
    /// Colors from the least to the most value; those in between are mixed.
    ramp: [Rgb; 5],
}

impl Palette {
    /// The palette of the light color scheme.
    pub const LIGHT: Self = Self {
        background: Rgb::hex(0xf7f9fb),
        text: Rgb::hex(0x17202b),
        dim: Rgb::hex(0x596675),
        ended: Rgb::hex(0xd5dae0),
        unknown: Rgb::hex(0xe9edf1),
        marked: Rgb::hex(0xd22f2f),
        ramp: [Rgb::hex(0xd3e4f4), Rgb::hex(0xa3c8e8), Rgb::hex(0x639fd6), Rgb::hex(0x2e6fb0), Rgb::hex(0x103a6b)],
    };
    /// The palette of the dark color scheme.
    pub const DARK: Self = Self {
        background: Rgb::hex(0x0d1117),
        text: Rgb::hex(0xdbe2ea),
        dim: Rgb::hex(0x8c98a7),
        ended: Rgb::hex(0x333a44),
        unknown: Rgb::hex(0x232b36),
        marked: Rgb::hex(0xff6b5e),
        ramp: [Rgb::hex(0x1c3a5c), Rgb::hex(0x27598f), Rgb::hex(0x3f86c9), Rgb::hex(0x7cb6ea), Rgb::hex(0xd6ecfd)],
    };

    /// Returns the color of a level, from 0 (lowest value) to [`LEVELS`] - 1 (highest value).
    #[must_use]
    pub fn level(&self, level: u8) -> Rgb {
        let position = f64::from(level) / (LEVELS - 1) as f64 * (self.ramp.len() - 1) as f64;
        let below = (position as usize).min(self.ramp.len() - 2);
        self.ramp[below].mixed(self.ramp[below + 1], position - below as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contrast_is_that_of_wcag_level_aa() {
        for palette in [Palette::LIGHT, Palette::DARK] {
            let levels = (0..LEVELS as u8).map(|level| palette.level(level));
            for fill in levels.chain([palette.ended, palette.unknown]) {
                assert!(fill.contrast(fill.text()) >= 4.5, "{fill}");
            }
            for text in [palette.text, palette.dim] {
                assert!(text.contrast(palette.background) >= 4.5, "{text}");
            }
            // An outline has the background on both sides.
            assert!(palette.marked.contrast(palette.background) >= 3.0);
        }
    }

    #[test]
    fn more_is_further_from_the_background() {
        for palette in [Palette::LIGHT, Palette::DARK] {
            let contrasts: Vec<f64> =
                (0..LEVELS as u8).map(|level| palette.level(level).contrast(palette.background)).collect();
            assert!(contrasts.is_sorted(), "{contrasts:?}");
        }
        assert_eq!(Palette::LIGHT.level(0).to_string(), "#d3e4f4");
        assert_eq!(Palette::LIGHT.level(LEVELS as u8 - 1).to_string(), "#103a6b");
    }
}
