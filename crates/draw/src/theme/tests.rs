//! Contrast, and distances of colors as color-blind people see them.

use super::*;

/// Returns the perceived lightness, 0 to 255 (ITU-R BT.709).
fn luma(color: Color) -> f32 {
    0.2126 * f32::from(color.r) + 0.7152 * f32::from(color.g) + 0.0722 * f32::from(color.b)
}

/// A linear transformation of linear RGB.
type Matrix = [[f64; 3]; 3];

/// Normal vision, then protanopia, deuteranopia and tritanopia (Machado, Oliveira and
/// Fernandes 2009, severity 1).
const VISIONS: [Matrix; 4] = [
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
];

/// Returns the linear RGB values of a color, 0 to 1.
fn linear(color: Color) -> [f64; 3] {
    [color.r, color.g, color.b].map(|channel| {
        let value = f64::from(channel) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    })
}

/// Returns the OKLab coordinates (Ottosson 2020) of a color as seen with a vision.
fn seen(color: Color, vision: &Matrix) -> [f64; 3] {
    let linear = linear(color);
    let product = |matrix: &Matrix, vector: [f64; 3]| {
        std::array::from_fn::<f64, 3, _>(|row| matrix[row].iter().zip(vector).map(|(a, b)| a * b).sum())
    };
    let [r, g, b] = product(vision, linear).map(|value| value.clamp(0.0, 1.0));
    const TO_CONES: Matrix = [
        [0.412_221_470_8, 0.536_332_536_3, 0.051_445_992_9],
        [0.211_903_498_2, 0.680_699_545_1, 0.107_396_956_6],
        [0.088_302_461_9, 0.281_718_837_6, 0.629_978_700_5],
    ];
    const TO_LAB: Matrix = [
        [0.210_454_255_3, 0.793_617_785_0, -0.004_072_046_8],
        [1.977_998_495_1, -2.428_592_205_0, 0.450_593_709_9],
        [0.025_904_037_1, 0.782_771_766_2, -0.808_675_766_0],
    ];
    product(&TO_LAB, product(&TO_CONES, [r, g, b]).map(f64::cbrt))
}

/// Returns the least distance of two colors in OKLab over all visions; black and white are 1
/// apart, 0.02 is just noticeable.
fn distance(one: Color, other: Color) -> f64 {
    let distance = |vision| {
        let (one, other) = (seen(one, vision), seen(other, vision));
        one.iter().zip(other).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
    };
    VISIONS.iter().map(distance).fold(f64::INFINITY, f64::min)
}

/// Returns the contrast ratio of two colors by WCAG 2.1, 1 to 21.
fn contrast(one: Color, other: Color) -> f64 {
    let luminance = |color| {
        let [r, g, b] = linear(color);
        0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05
    };
    let (one, other) = (luminance(one), luminance(other));
    one.max(other) / one.min(other)
}

/// Checks that all pairs of named colors are at least `least` apart in every vision.
#[track_caller]
fn check_apart(colors: &[(&str, Color)], least: f64) {
    for (index, (name, color)) in colors.iter().enumerate() {
        for (other_name, other) in &colors[index + 1..] {
            let distance = distance(*color, *other);
            assert!(distance >= least, "{name} and {other_name} are {distance:.3} apart");
        }
    }
}

const THEMES: [Theme; 2] = [Theme::new(true), Theme::new(false)];

#[test]
fn text_has_contrast_aa() {
    for theme in THEMES {
        let backgrounds = [theme.background, theme.well, theme.mark, theme.mark_alternate];
        for background in backgrounds {
            for text in [theme.text, theme.dim, theme.mark_text] {
                assert!(contrast(text, background) >= 4.5, "{text:?} on {background:?}");
            }
        }
        for background in [theme.background, theme.well] {
            assert!(contrast(theme.alarm, background) >= 4.5, "alarms on {background:?}");
            assert!(contrast(theme.cursor, background) >= 4.5, "the cursor on {background:?}");
        }
    }
}

#[test]
fn graphics_have_contrast_aa() {
    for theme in THEMES {
        let roles = [
            theme.allocated,
            theme.allocated_alternate,
            theme.pending,
            theme.free,
            theme.cached_hatch,
            theme.reserved_line,
            theme.outside,
            theme.others,
        ];
        let colors = roles.into_iter().chain(theme.categories).chain(theme.groups).chain(theme.sequence);
        for color in colors {
            for background in [theme.background, theme.well] {
                let contrast = contrast(color, background);
                assert!(contrast >= 3.0, "{color:x?} on {background:x?} has {contrast:.2}");
            }
        }
    }
}

#[test]
fn states_differ_in_every_vision() {
    for theme in THEMES {
        let states = [
            ("allocated", theme.allocated),
            ("pending", theme.pending),
            ("free", theme.free),
            ("free segment", theme.cached),
            ("rounding", theme.rounding(theme.allocated)),
            ("background", theme.background.mix(theme.well, 0.5)),
        ];
        check_apart(&states[..5], 0.1);
        // The hatching distinguishes a free segment from the background.
        assert!(contrast(theme.cached_hatch, theme.cached) > 2.4);
        for (name, state) in states[..3].iter().chain(&states[4..5]) {
            assert!(distance(states[5].1, *state) >= 0.13, "the background and {name}");
        }
        let stacked = [("outside", theme.outside), ("others", theme.others), ("free", theme.free)];
        check_apart(&stacked, 0.07);
    }
}

#[test]
fn categories_and_groups_differ_in_every_vision() {
    for theme in THEMES {
        let names = vramscope_trace::Category::ALL.map(vramscope_trace::Category::name);
        let categories: Vec<_> = names.into_iter().zip(theme.categories).collect();
        check_apart(&categories, 0.098);
        // What the map shows between blocks of any category; whole free segments are hatched, too.
        for (name, color) in &categories {
            let stuck = distance(*color, theme.stuck(1.0));
            // Temporaries have a texture.
            let least = if *name == "temporary" { 0.04 } else { 0.078 };
            assert!(stuck >= least, "{name} and stuck memory are {stuck:.3} apart");
        }
        let groups: Vec<_> = theme.groups.map(|color| ("group", color)).into();
        check_apart(&groups, 0.095);
        for index in 0..GROUP_COLORS {
            let neighbors = (theme.group_color(index), theme.group_color(index + 1));
            assert!(distance(neighbors.0, neighbors.1) >= 0.115, "groups {index} and {}", index + 1);
        }
        let looks: std::collections::HashSet<_> = (0..GROUP_COLORS * Texture::ALL.len())
            .map(|index| {
                let Color { r, g, b } = theme.group_color(index);
                ((r, g, b), theme.group_texture(index))
            })
            .collect();
        assert_eq!(looks.len(), GROUP_COLORS * Texture::ALL.len(), "color and texture together are unique");
    }
}

#[test]
fn sequence_is_ordered_by_lightness_in_every_vision() {
    for theme in THEMES {
        for vision in &VISIONS {
            let lightness: Vec<f64> =
                (0..=40).map(|step| seen(theme.sequential(step as f32 / 40.0), vision)[0]).collect();
            let is_ordered = lightness.windows(2).all(|pair| (pair[0] < pair[1]) == (theme == THEMES[0]));
            assert!(is_ordered, "{lightness:?}");
            assert!((lightness[0] - lightness[40]).abs() > 0.25, "{lightness:?}");
        }
        assert_eq!(theme.sequential(f32::NAN), theme.sequence[0]);
        assert_eq!(theme.sequential(7.0), theme.sequence[4]);
    }
}

#[test]
fn textures_ink_a_part_at_every_scale() {
    for scale in [1.0, 1.5, 3.0] {
        for texture in Texture::ALL {
            let inked = (0..60).flat_map(|y| (-30..30).map(move |x| (x, y)));
            let count = inked.filter(|&(x, y)| texture.inks(x, y, scale)).count();
            let expected = if texture == Texture::None { 0..=0 } else { 300..=1800 };
            assert!(expected.contains(&count), "{texture:?} inks {count} of 3600 pixels");
            let period = texture.period(scale);
            let mut pixels = (0..60).flat_map(|y| (-30..30).map(move |x| (x, y)));
            assert!(pixels.all(|(x, y)| texture.inks(x, y, scale) == texture.inks(x + period, y, scale)));
        }
    }
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
