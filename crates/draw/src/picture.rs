//! Parts of several views' pictures: the axis of moments, the cursor and the selected range on it,
//! and the text under the pointer.

use crate::axis::Axis;
use crate::bitmap::{Bitmap, Color, Rect};
use crate::canvas::Canvas;
use crate::surface::Surface;
use crate::text::{Align, Typesetter};
use crate::theme::Theme;

/// Space left of a chart for its byte axis, in units (pixels at scale 1); as wide as the
/// timeline's.
const LEFT: f32 = 64.0;
/// Space right of a chart, in units (pixels at scale 1); as wide as the timeline's.
const RIGHT: f32 = 22.0;
/// Font size of texts on charts, in units (pixels at scale 1).
pub const TEXT: f32 = 11.0;
/// Minimum distance between the texts of a horizontal axis, in units (pixels at scale 1).
pub const LABEL_DISTANCE: f32 = 10.0;
/// Line height of the text under the pointer, in units (pixels at scale 1).
const LINE: f32 = 15.0;
/// Opacity (0 to 1) of the tint over the selected range of moments on a chart.
const RANGE_ALPHA: f32 = 0.1;

/// Converts units (pixels at scale 1) to whole pixels, rounded; `scale` is pixels per unit.
pub fn px(units: f32, scale: f32) -> i32 {
    (units * scale).round() as i32
}

/// Returns the first pixel column of a chart in a picture that is `width` pixels wide, and the
/// first one right of it. They equal the columns of a timeline of this width.
pub fn chart_columns(width: u32, scale: f32) -> (i32, i32) {
    let x0 = px(LEFT, scale);
    (x0, (width.min(Bitmap::MAX_SIDE) as i32 - px(RIGHT, scale)).max(x0 + 1))
}

/// The horizontal axis of a chart: the moments that each pixel column shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MomentAxis {
    x0: i32,
    edges: Vec<u64>,
    /// Pixel columns of the timeline's labels, counted from the picture's left edge, with their
    /// texts.
    ticks: Vec<(i32, String)>,
}

impl MomentAxis {
    /// Creates an axis from the first pixel column and the moments at the columns' left edges and
    /// at the last one's right edge, which must not decrease.
    pub fn new(x0: i32, edges: Vec<u64>) -> Self {
        Self { x0, edges, ticks: Vec::new() }
    }

    /// Returns the axis with labels at pixel columns, counted from the picture's left edge.
    #[must_use]
    pub fn with_ticks(self, ticks: Vec<(i32, String)>) -> Self {
        Self { ticks, ..self }
    }

    /// Returns the labels for the chart `plot` in a picture that is `width` pixels wide; a label
    /// that does not fit beside the one before it has no text.
    pub fn labels(&self, plot: Rect, width: i32, typesetter: &Typesetter, scale: f32) -> Axis {
        // In the middles of the pixel columns, so that rounding cannot move them.
        let labels = self.ticks.iter().map(|(x, text)| (f64::from(x - plot.x0) + 0.5, text.clone()));
        Axis::new(f64::from(plot.width()).max(1.0), labels.collect())
            .without_grid()
            .with_fitting_texts((width - plot.x0, px(LABEL_DISTANCE, scale)), |text| {
                typesetter.width(text, TEXT * scale)
            })
    }

    /// Returns the moments at the left edges of the columns and at the right edge of the last one.
    pub fn edges(&self) -> &[u64] {
        &self.edges
    }

    /// Returns the axis's first pixel column and the first one right of it, both counted from the
    /// picture's left edge.
    pub fn columns(&self) -> (i32, i32) {
        (self.x0, self.x0 + self.edges.len().saturating_sub(1) as i32)
    }

    /// Returns the index of the column at `x` pixels from the picture's left edge; `None` outside
    /// of the axis.
    pub fn index(&self, x: i32) -> Option<usize> {
        let (x0, x1) = self.columns();
        (x0..x1).contains(&x).then(|| (x - x0) as usize)
    }

    /// Returns the pixel column that shows a moment, counted from the picture's left edge; `None`
    /// for a moment outside of the axis.
    pub fn x(&self, moment: u64) -> Option<i32> {
        let (first, last) = (*self.edges.first()?, *self.edges.last()?);
        let is_inside = (first..=last).contains(&moment) && self.edges.len() > 1;
        is_inside.then(|| self.x0 + self.edges.partition_point(|&edge| edge < moment).saturating_sub(1) as i32)
    }

    /// Returns the pixel columns from the moment `from` to the moment `to`, as far as the axis
    /// shows them: the first, and the first one right of them. `None` if the axis shows none of
    /// these moments.
    pub fn range(&self, (from, to): (u64, u64)) -> Option<(i32, i32)> {
        let (first, last) = (*self.edges.first()?, *self.edges.last()?);
        if to < first || from > last {
            return None;
        }
        Some((self.x(from.max(first))?, self.x(to.min(last))? + 1))
    }
}

/// Draws a line at the moment on the screen and a tint over the selected range of moments, on a
/// chart that fills the pixel rows `rows` (first, and the first one below).
pub fn draw_moment(
    bitmap: &mut Bitmap,
    axis: &MomentAxis,
    (moment, range): (u64, Option<(u64, u64)>),
    rows: (i32, i32),
    scale: f32,
    theme: &Theme,
) {
    let stroke = px(1.0, scale).max(1);
    if let Some((x0, x1)) = range.and_then(|range| axis.range(range)) {
        bitmap.tint(Rect::new(x0, rows.0, x1, rows.1), theme.cursor, RANGE_ALPHA);
        for x in [x0, x1 - stroke] {
            bitmap.tint(Rect::new(x, rows.0, x + stroke, rows.1), theme.cursor, 0.5);
        }
    }
    if let Some(x) = axis.x(moment) {
        let stroke = px(1.5, scale).max(1);
        bitmap.fill(Rect::new(x - stroke / 2, rows.0, x - stroke / 2 + stroke, rows.1), theme.cursor);
    }
}

/// Draws a diamond that marks a pixel (x, y) of a chart.
pub fn draw_diamond(surface: &mut dyn Surface, (x, y): (i32, i32), scale: f32, theme: &Theme) {
    let radius = px(3.0, scale);
    for row in -radius..=radius {
        let half = radius - row.abs();
        surface.fill(Rect::new(x - half, y + row, x + half + 1, y + row + 1), theme.cursor);
    }
}

/// Draws lines of text in a box beside the pointer's pixel, inside of the picture.
pub fn draw_pointer_text(surface: &mut Canvas<'_>, lines: &[String], (x, y): (i32, i32), scale: f32, theme: &Theme) {
    if lines.is_empty() {
        return;
    }
    let (padding, size) = (px(7.0, scale), TEXT * scale);
    let most = (surface.bitmap.width() - 2 * padding - px(8.0, scale)).max(1) as f32;
    let lines: Vec<String> = lines.iter().map(|line| surface.typesetter.fit(line, size, most)).collect();
    let widest = lines.iter().map(|line| surface.typesetter.width(line, size)).fold(0.0, f32::max).ceil() as i32;
    let width = widest + 2 * padding;
    let height = px(LINE, scale) * lines.len() as i32 + px(6.0, scale);
    let distance = px(14.0, scale);
    let right = x + distance;
    let x0 = if right + width <= surface.bitmap.width() { right } else { (x - distance - width).max(0) };
    let y0 = (y + distance).min(surface.bitmap.height() - height).max(0);
    let area = Rect::new(x0, y0, x0 + width, y0 + height);
    surface.fill(area, theme.background);
    surface.bitmap.outline(area, px(1.0, scale).max(1), theme.dim);
    for (index, line) in lines.iter().enumerate() {
        let center = y0 + px(3.0, scale) + px(LINE, scale) * index as i32 + px(LINE, scale) / 2;
        let color = if index == 0 { theme.text } else { theme.dim };
        surface.text(line, size, ((x0 + padding) as f32, center as f32), Align::Left, color);
    }
}

/// Draws a text in the middle of an otherwise empty picture.
pub fn draw_notice(surface: &mut Canvas<'_>, text: &str, scale: f32, theme: &Theme) {
    surface.fill(surface.bounds(), theme.background);
    let middle = (surface.bitmap.width() as f32 / 2.0, surface.bitmap.height() as f32 / 2.0);
    surface.text(text, (TEXT + 1.0) * scale, middle, Align::Center, theme.dim);
}

/// Returns a dark or a light color, whichever is easier to read on `fill`.
pub fn text_color(fill: Color) -> Color {
    // Relative luminance and contrast of WCAG 2.
    let linear = |part: u8| {
        let part = f32::from(part) / 255.0;
        if part <= 0.040_45 { part / 12.92 } else { libm::powf((part + 0.055) / 1.055, 2.4) }
    };
    let luminance = 0.2126 * linear(fill.r) + 0.7152 * linear(fill.g) + 0.0722 * linear(fill.b);
    let is_bright = (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05);
    if is_bright { Color::hex(0x0b_1017) } else { Color::hex(0xff_ffff) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Typesetter;

    #[test]
    fn axis_finds_the_column_of_a_moment() {
        let axis = MomentAxis::new(10, vec![5, 5, 8, 8, 20]);
        assert_eq!(axis.columns(), (10, 14));
        for (moment, x) in [(4, None), (5, Some(10)), (6, Some(11)), (8, Some(11)), (9, Some(13)), (20, Some(13))] {
            assert_eq!(axis.x(moment), x, "moment {moment}");
        }
        assert_eq!(axis.x(21), None);
        assert_eq!((axis.index(9), axis.index(13), axis.index(14)), (None, Some(3), None));
        assert_eq!(axis.range((0, 6)), Some((10, 12)));
        assert_eq!(axis.range((9, 99)), Some((13, 14)));
        assert_eq!((axis.range((0, 4)), axis.range((21, 22))), (None, None));
        assert_eq!((MomentAxis::default().x(0), MomentAxis::default().range((0, 9))), (None, None));
    }

    #[test]
    fn pointer_text_stays_inside_of_the_picture() {
        let theme = Theme::new(true);
        let lines = ["a line of text that is much wider than the picture".to_owned(), "another".to_owned()];
        for point in [(0, 0), (199, 99), (-5, 300), (100, 50)] {
            let mut bitmap = Bitmap::new(200, 100, Color::default());
            let canvas = &mut Canvas { bitmap: &mut bitmap, typesetter: &mut Typesetter::new() };
            draw_pointer_text(canvas, &lines, point, 1.0, &theme);
            let drawn = (0..100).flat_map(|y| (0..200).map(move |x| (x, y)));
            let boxed = drawn.filter(|&(x, y)| bitmap.pixel(x, y) == Some(theme.dim)).count();
            assert!(boxed > 100, "the outline is drawn at {point:?}");
        }
    }
}
