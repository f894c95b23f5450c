//! Draws a [`FragmentationScene`].

use super::scene::{FragmentationScene, TEXT};
use crate::draw::bitmap::{Bitmap, Color, Rect, opaque};
use crate::draw::picture::px;
use crate::draw::surface::Surface;
use crate::draw::text::Align;
use crate::draw::theme::Theme;

/// Titles of the three charts, from the top.
const TITLES: [&str; 3] = [
    "fragmentation: 1 − largest free block ÷ free bytes",
    "free bytes in segments",
    "largest free block, and largest request (dots above the line do not fit)",
];

/// Draws the "Fragmentation" view's picture on a surface, which must have the size that the scene
/// was computed for.
pub(crate) fn draw_on(scene: &FragmentationScene, theme: &Theme, surface: &mut dyn Surface) {
    let (upper, lower) = (scene.upper, scene.lower);
    surface.pixels(theme.background, &mut |bitmap| {
        bitmap.fill(upper, theme.well);
        bitmap.fill(lower, theme.well);
        bitmap.fill(scene.requests, theme.well);
        draw_grid(scene, theme, bitmap);
        draw_fragmentation(scene, theme, bitmap);
        draw_free(scene, theme, bitmap);
    });
    let size = TEXT * scene.scale;
    for label in &scene.labels {
        label.draw(surface, upper.x0, TEXT, scene.scale, theme);
    }
    for (title, chart) in TITLES.into_iter().zip([upper, lower, scene.requests]) {
        let at = (chart.x0 as f32, (chart.y0 - px(10.0, scene.scale)) as f32);
        let title = surface.typesetter().fit(title, size, chart.width() as f32);
        surface.text(&title, size, at, Align::Left, theme.dim);
    }
    draw_threshold(scene, theme, surface);
    if scene.columns.is_empty() {
        let at = ((upper.x0 + upper.x1) as f32 / 2.0, (upper.y0 + upper.y1) as f32 / 2.0);
        surface.text(scene.notice, size + scene.scale, at, Align::Center, theme.dim);
    }
}

/// Draws the horizontal grid lines at the labels of the vertical axes.
fn draw_grid(scene: &FragmentationScene, theme: &Theme, bitmap: &mut Bitmap) {
    let color = theme.well.mix(theme.dim, 0.22);
    for label in scene.labels.iter().filter(|label| label.has_line) {
        bitmap.fill(Rect::new(scene.upper.x0, label.y, scene.upper.x1, label.y + 1), color);
    }
}

/// Draws the chart of fragmentation: a band from the lowest to the highest value in each column,
/// the line of the values at the columns' ends, and the dashed line of the threshold.
fn draw_fragmentation(scene: &FragmentationScene, theme: &Theme, bitmap: &mut Bitmap) {
    let band = theme.well.mix(theme.free, 0.35);
    let (x0, x1) = scene.axis.columns();
    for (x, rows) in (x0..x1).zip(&scene.rows) {
        bitmap.fill(Rect::new(x, rows.band.0, x + 1, rows.band.1), band);
        bitmap.fill(Rect::new(x, rows.line.0, x + 1, rows.line.1), theme.free);
    }
    let (rows, _) = &scene.threshold;
    let dash = px(4.0, scene.scale).max(1);
    for x in (scene.upper.x0..scene.upper.x1).step_by(2 * dash as usize) {
        bitmap.fill(Rect::new(x, rows.0, (x + dash).min(scene.upper.x1), rows.1), theme.alarm);
    }
}

/// Draws the lower two charts: the stuck and releasable bytes with the heatmap's colors and
/// hatching, and the largest free blocks with the largest requests.
fn draw_free(scene: &FragmentationScene, theme: &Theme, bitmap: &mut Bitmap) {
    let period = (scene.scale * 6.0).round().max(4.0) as i32;
    let stroke = (scene.scale * 2.0).round().max(1.0) as i32;
    let (x0, x1) = scene.axis.columns();
    let paint = |is_stroke: bool, fill: Color, ink: Color| opaque(if is_stroke { ink } else { fill });
    bitmap.for_each_row(Rect { x0, x1, ..scene.lower }, |y, pixels| {
        for ((pixel, rows), x) in pixels.iter_mut().zip(&scene.rows).zip(x0..) {
            if y < rows.releasable.0 {
                continue;
            }
            let is_stroke = (x + y).rem_euclid(period) < stroke;
            *pixel = if y < rows.stuck.0 {
                paint(is_stroke, theme.cached, theme.cached_hatch)
            } else {
                paint(is_stroke, theme.free, theme.free_hatch)
            };
        }
    });
    for (x, rows) in (x0..x1).zip(&scene.rows) {
        bitmap.fill(Rect::new(x, rows.largest_free.0, x + 1, rows.largest_free.1), theme.text);
    }
    let dot = px(2.0, scene.scale).max(2);
    for (x, rows) in (x0..x1).zip(&scene.rows) {
        let (y0, y1) = rows.largest_request;
        bitmap.fill(Rect::new(x, y0, (x + dot).min(x1), y1), theme.allocated);
    }
}

/// Draws the threshold's text right of the chart, and a diamond where fragmentation first exceeds
/// the threshold.
fn draw_threshold(scene: &FragmentationScene, theme: &Theme, surface: &mut dyn Surface) {
    let size = (TEXT - 0.5) * scene.scale;
    let ((line, _), text) = &scene.threshold;
    let right = scene.upper.x1 + px(2.0, scene.scale);
    // Beside the chart, where it covers no values.
    surface.text(text, size * 0.86, (right as f32, *line as f32), Align::Left, theme.alarm);
    if let Some((x, y)) = scene.crossing {
        let radius = px(3.0, scene.scale);
        for row in -radius..=radius {
            let (half, y) = (radius - row.abs(), y + row);
            surface.fill(Rect::new(x - half, y, x + half + 1, y + 1), theme.cursor);
        }
    }
}
