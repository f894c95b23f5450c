//! Draws an [`AllocationsScene`].

use std::ops::Range;

use vramscope_draw::picture::text_color;
use vramscope_draw::{Align, Axis, Bitmap, Chart, Color, GroupStyle, Rect, Surface, Texture, Theme, opaque};
use vramscope_insight::address_map::{AddressMap, MapPixel};
use vramscope_insight::bands::{BandHit, BandLayout};
use vramscope_insight::composition::LAYERS;

use super::labels::{TEXT, is_alternate};
use super::outline::Outline;
use super::scene::{AllocationsLayout, AllocationsScene};
use crate::device_map::Highlight;

/// Minimum height of a band that gets a line along its upper edge, in units (pixels at scale 1).
const MIN_SEPARATED: f32 = 3.0;
/// Minimum width in columns of a band that gets a line along its left edge.
const MIN_SEPARATED_COLUMNS: u32 = 6;

/// Pixel code of the space above all bands of a stacked layout. A pixel code is a number that
/// selects a [`Paint`].
pub(super) const EMPTY: u8 = 0;
/// Pixel code of the gap between two address ranges of an address map.
const GAP: u8 = 1;
/// Pixel code of addresses that are not reserved, in an address map.
const NOT_RESERVED: u8 = 2;
/// Pixel code of free memory in a segment, in an address map.
const FREE: u8 = 3;
/// First pixel code of the layers, the groups of allocations that share a color. Each layer has
/// three codes: two shades, and the edge of a band.
pub(super) const FIRST_LAYER: u8 = 4;
/// Difference between the code of a layer's dim pixel and that of its normal pixel. Pixels are dim
/// if other allocations are outlined.
const DIM: u8 = 3 * LAYERS as u8;
/// Pixel code of the edge of an outlined allocation.
const OUTLINE: u8 = FIRST_LAYER + 2 * DIM;
/// Number of pixel codes.
const CODES: usize = OUTLINE as usize + 1;

/// Returns the code of a pixel inside a band of a layer: in its second shade if `is_alternate`,
/// else in its first.
pub(super) fn layer_code(layer: u8, is_alternate: bool) -> u8 {
    FIRST_LAYER + 3 * layer.min(LAYERS as u8 - 1) + u8::from(is_alternate)
}

/// Returns the code of a pixel on the edge of a band of a layer; both shades have one edge code.
pub(super) fn edge_code(layer: u8) -> u8 {
    layer_code(layer, false) + 2
}

/// The colors (RGBA) and texture of the pixels with one pixel code.
#[derive(Clone, Copy, Debug)]
struct Paint {
    fill: [u8; 4],
    /// Color of the texture's lines or dots.
    ink: [u8; 4],
    texture: Texture,
}

impl Paint {
    /// Creates a paint of one color without texture.
    const fn plain(color: Color) -> Self {
        Self { fill: opaque(color), ink: opaque(color), texture: Texture::None }
    }
}

/// Draws the "Allocations" view on a surface, which must have the size that the scene was computed
/// for.
pub(crate) fn draw_on(scene: &AllocationsScene, theme: &Theme, surface: &mut dyn Surface) {
    let geometry = &scene.geometry;
    let plot = geometry.plot;
    let paints = paints(scene, theme);
    surface.pixels(theme.background, &mut |bitmap| {
        let (width, height) = (geometry.width() as usize, geometry.height() as usize);
        let codes = match &scene.layout {
            AllocationsLayout::Stacked(layout) => band_codes(scene, layout, width, height),
            AllocationsLayout::ByAddress(map) => map_codes(scene, map, width, height),
        };
        let scale = geometry.scale;
        // Indexed by pixel code, so that painting a pixel is one look-up; few have a texture.
        let mut fills = [opaque(theme.well); 256];
        for (fill, paint) in fills.iter_mut().zip(&paints) {
            *fill = paint.fill;
        }
        let is_textured: [bool; 256] =
            std::array::from_fn(|code| paints.get(code).is_some_and(|paint| paint.texture != Texture::None));
        bitmap.for_each_row(plot, |y, pixels| {
            let Some(row) = geometry.pixel_row(y).map(|row| row as usize * width) else { return };
            let codes = codes.get(row..row + width).unwrap_or_default();
            let mut has_texture = false;
            // By index: in the page, which is compiled for size, an iterator costs a function call
            // per pixel.
            for x in 0..pixels.len().min(codes.len()) {
                let code = usize::from(codes[x]);
                pixels[x] = fills[code];
                has_texture |= is_textured[code];
            }
            if has_texture {
                for ((pixel, &code), x) in pixels.iter_mut().zip(codes).zip(plot.x0..) {
                    if is_textured[usize::from(code)] && paints[usize::from(code)].texture.inks(x, y, scale) {
                        *pixel = paints[usize::from(code)].ink;
                    }
                }
            }
        });
    });
    // Addresses are longer than sizes.
    let text_size = if matches!(scene.layout, AllocationsLayout::ByAddress(_)) { TEXT - 1.5 } else { TEXT };
    Chart { plot, x: &Axis::default(), y: &scene.axis, text_size, scale: geometry.scale }.draw_axes(surface, theme);
    draw_labels(scene, theme, surface);
    if let Some(notice) = scene.notice {
        let at = ((plot.x0 + plot.x1) as f32 / 2.0, (plot.y0 + plot.y1) as f32 / 2.0);
        surface.text(notice, (TEXT + 1.0) * geometry.scale, at, Align::Center, theme.dim);
    }
}

/// Returns the color and texture of a layer that is not dim, in its second shade if `is_alternate`,
/// else in its first.
fn layer_fill(style: GroupStyle, is_alternate: bool, theme: &Theme) -> (Color, Texture) {
    let color = style.color(theme);
    (if is_alternate { color.mix(theme.well, 0.14) } else { color }, style.texture(theme))
}

/// Returns the paint of every pixel code; the code is the index.
fn paints(scene: &AllocationsScene, theme: &Theme) -> [Paint; CODES] {
    let mut paints = [Paint::plain(theme.well); CODES];
    paints[usize::from(GAP)] = Paint::plain(theme.background);
    paints[usize::from(NOT_RESERVED)] = Paint::plain(theme.well);
    // The color of free space, tinted as in the timeline.
    paints[usize::from(FREE)] = Paint::plain(theme.well.mix(theme.free, 0.3));
    paints[usize::from(OUTLINE)] = Paint::plain(theme.cursor);
    for (layer, &style) in (0..).zip(&scene.styles) {
        for offset in [0, DIM] {
            let is_dim = offset > 0 || scene.emphasized.is_some_and(|emphasized| emphasized != layer);
            let dimmed = |color: Color| if is_dim { color.mix(theme.well, 0.78) } else { color };
            let (color, _) = layer_fill(style, false, theme);
            paints[usize::from(edge_code(layer) + offset)] = Paint::plain(dimmed(color.mix(theme.background, 0.6)));
            for is_alternate in [false, true] {
                let (color, texture) = layer_fill(style, is_alternate, theme);
                paints[usize::from(layer_code(layer, is_alternate) + offset)] =
                    Paint { fill: opaque(dimmed(color)), ink: opaque(dimmed(theme.texture_ink(color))), texture };
            }
        }
    }
    paints
}

/// Returns the pixel codes of a stacked layout, `width` of them for each pixel row, the lowest row
/// first; [`EMPTY`] where no band is.
pub(super) fn band_codes(scene: &AllocationsScene, layout: &BandLayout, width: usize, height: usize) -> Vec<u8> {
    let mut codes = vec![EMPTY; width * height];
    let columns = layout.column_count();
    let min_separated = (MIN_SEPARATED * scene.geometry.scale).round().max(3.0) as usize;
    for column in 0..columns {
        let pixels = scene.geometry.pixels(column, columns);
        for cell in layout.cells(column) {
            let rows = layout.scale().row(cell.bottom) as usize..(layout.scale().row(cell.top) as usize).min(height);
            if rows.is_empty() {
                continue;
            }
            let is_high = rows.len() >= min_separated;
            let dim = if scene.outlined.is_some() { DIM } else { 0 };
            let mut edge = edge_code(cell.layer) + dim;
            let (mut has_lower_edge, mut has_side_edge) = (false, false);
            let code = match cell.content {
                BandHit::Small { layer } => layer_code(layer, false) + dim,
                BandHit::Band(band) => {
                    let band = &layout.bands()[band as usize];
                    let is_outlined = scene.is_outlined(band.row) == Some(true);
                    let begins = band.first_column as usize == column && column > 0;
                    let ends = band.end_column as usize == column + 1 && column + 1 < columns;
                    let is_wide = band.width() >= MIN_SEPARATED_COLUMNS;
                    has_side_edge = is_high && is_wide && (begins || (ends && is_outlined));
                    if is_outlined {
                        (edge, has_lower_edge) = (OUTLINE, is_high);
                    }
                    layer_code(cell.layer, is_alternate(band.row)) + if is_outlined { 0 } else { dim }
                }
            };
            let (code, top_code) = (if has_side_edge { edge } else { code }, if is_high { edge } else { code });
            let mut fill = |rows: Range<usize>, code: u8| {
                if pixels.len() == 1 {
                    // Setting a single pixel directly is much faster than `fill`.
                    let mut at = rows.start * width + pixels.start;
                    for _ in rows {
                        codes[at] = code;
                        at += width;
                    }
                } else {
                    rows.for_each(|row| codes[row * width + pixels.start..row * width + pixels.end].fill(code));
                }
            };
            fill(rows.start..rows.end - 1, code);
            if has_lower_edge {
                fill(rows.start..rows.start + 1, edge);
            }
            fill(rows.end - 1..rows.end, top_code);
        }
    }
    codes
}

/// Returns the pixel codes of an address map, `width` of them for each pixel row, the lowest row
/// first.
pub(super) fn map_codes(scene: &AllocationsScene, map: &AddressMap, width: usize, height: usize) -> Vec<u8> {
    let mut codes = vec![GAP; width * height];
    let columns = map.moments().len();
    let pixels: Vec<Range<usize>> = (0..columns).map(|column| scene.geometry.pixels(column, columns)).collect();
    for (y, codes) in codes.chunks_exact_mut(width.max(1)).enumerate() {
        // Neighboring pixels mostly show one allocation, so its dimness is looked up once.
        let (mut last, mut dim) = (None, 0);
        for ((pixel, row), pixels) in map.pixel_row(y).zip(&pixels) {
            let code = match pixel {
                MapPixel::Gap => GAP,
                MapPixel::NotReserved => NOT_RESERVED,
                MapPixel::Free => FREE,
                MapPixel::Allocation { layer } => {
                    if last.replace(row) != Some(row) {
                        dim = if scene.is_outlined(row) == Some(false) { DIM } else { 0 };
                    }
                    layer_code(layer, is_alternate(row)) + dim
                }
            };
            // Setting a single pixel directly is much faster than `fill`.
            if pixels.len() == 1 {
                codes[pixels.start] = code;
            } else {
                codes[pixels.start..pixels.end].fill(code);
            }
        }
    }
    codes
}

/// Draws the names inside bands.
fn draw_labels(scene: &AllocationsScene, theme: &Theme, surface: &mut dyn Surface) {
    for label in &scene.labels {
        if scene.emphasized.is_some_and(|emphasized| emphasized != label.layer) {
            continue;
        }
        let (fill, _) = layer_fill(scene.styles[usize::from(label.layer)], label.is_alternate, theme);
        let at = (label.area.x0 as f32, (label.area.y0 + label.area.y1) as f32 / 2.0);
        surface.text(&label.text, TEXT * scene.geometry.scale, at, Align::Left, text_color(fill));
    }
}

/// Draws the outline of an allocation on a bitmap with the drawn view: with a thin line if the
/// allocation is under the pointer, with a thick one if it is selected.
pub(super) fn draw_outline(
    bitmap: &mut Bitmap,
    scene: &AllocationsScene,
    theme: &Theme,
    outline: &Outline,
    highlight: Highlight,
) {
    let stroke = match highlight {
        Highlight::Hovered => scene.geometry.stroke(),
        Highlight::Selected => scene.geometry.px(2.0).max(2),
    };
    let plot = scene.geometry.plot;
    let mut fill = |x0: i32, y0: i32, x1: i32, y1: i32| {
        bitmap.fill(Rect::new(x0, y0, x1, y1).intersect(plot), theme.cursor);
    };
    let mut before: Option<(i32, i32, i32)> = None;
    for &(x, y0, y1) in &outline.columns {
        fill(x, y0, x + 1, (y0 + stroke).min(y1));
        fill(x, (y1 - stroke).max(y0), x + 1, y1);
        match before {
            // Joins the edges of two columns where the band moves up or down.
            Some((_, top, bottom)) => {
                fill(x, y0.min(top), x + 1, y0.max(top));
                fill(x, y1.min(bottom), x + 1, y1.max(bottom));
            }
            None => fill(x, y0, x + stroke, y1),
        }
        before = Some((x, y0, y1));
    }
    if let Some((x, y0, y1)) = before {
        fill(x + 1 - stroke, y0, x + 1, y1);
    }
}
