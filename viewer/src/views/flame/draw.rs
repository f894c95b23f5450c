//! Draws a [`FlameScene`].

use vramscope_draw::picture::{px, text_color};
use vramscope_draw::{Align, Bitmap, Color, Rect, Surface, Theme, opaque};

use super::scene::{BoxStyle, FlameBox, FlameScene, PADDING, TEXT};

/// Minimum width of a box that is separated from the next one by a gap, in units (pixels at scale
/// 1).
const MIN_GAP_WIDTH: f32 = 3.0;

/// Distance of the two lines of a label, in units (pixels at scale 1).
const LINE: f32 = 13.0;

/// Draws the flame graph on a surface, which must have the size that the scene was computed for.
pub(crate) fn draw_on(scene: &FlameScene, theme: &Theme, surface: &mut dyn Surface) {
    surface.pixels(theme.background, &mut |bitmap| {
        for one in &scene.boxes {
            draw_box(scene, one, theme, bitmap);
        }
    });
    for one in scene.boxes.iter().filter(|one| !one.label[0].is_empty()) {
        let area = scene.visible_area(one);
        // A label that is cut by the edge of the view is hard to read.
        if area.height() == one.area.height() {
            let (x, middle) = ((area.x0 + px(PADDING, scene.scale)) as f32, (area.y0 + area.y1) as f32 / 2.0);
            let color = text_color(fill(one, theme));
            let [first, second] = &one.label;
            let offset = if second.is_empty() { 0.0 } else { LINE / 2.0 * scene.scale };
            surface.text(first, TEXT * scene.scale, (x, middle - offset), Align::Left, color);
            surface.text(second, TEXT * scene.scale, (x, middle + offset), Align::Left, color);
        }
    }
    if let Some((track, thumb)) = scene.scroll_bar {
        surface.fill(track, theme.grid);
        surface.fill(thumb, theme.dim);
    }
    if let Some(notice) = scene.notice {
        let at = ((scene.view.x0 + scene.view.x1) as f32 / 2.0, (scene.view.y0 + scene.view.y1) as f32 / 2.0);
        surface.text(notice, (TEXT + 1.0) * scene.scale, at, Align::Center, theme.dim);
    }
}

/// Returns the color of boxes with this style.
pub(super) fn color_of(style: BoxStyle, theme: &Theme) -> Color {
    match style {
        BoxStyle::Root | BoxStyle::Other => theme.mark_alternate,
        BoxStyle::Group(style) => style.color(theme),
        BoxStyle::Own(hue) => theme.group_color(hue),
        BoxStyle::Library(hue) => theme.group_color(hue).mix(theme.well, 0.72),
        BoxStyle::NoStack => theme.others,
    }
}

/// Returns the color of a box: its style's, paler if the box is a caller of the zoomed node, or if
/// other memory is lit.
pub(super) fn fill(one: &FlameBox, theme: &Theme) -> Color {
    let color = color_of(one.style, theme);
    match (one.is_dim, one.is_caller) {
        (true, _) => color.mix(theme.background, 0.8),
        (false, true) => color.mix(theme.background, 0.45),
        (false, false) => color,
    }
}

/// Draws the visible part of a box without its label; boxes of narrow nodes are hatched.
fn draw_box(scene: &FlameScene, one: &FlameBox, theme: &Theme, bitmap: &mut Bitmap) {
    let area = scene.visible_area(one);
    let gap = px(1.0, scene.scale).max(1);
    let right = if area.width() >= px(MIN_GAP_WIDTH, scene.scale).max(2) { area.x1 - gap } else { area.x1 };
    let painted = Rect { x1: right, y1: area.y1.min(one.area.y1 - scene.scroll - gap).max(area.y0), ..area };
    let color = fill(one, theme);
    bitmap.fill(painted, color);
    if one.style == BoxStyle::Other {
        let period = px(5.0, scene.scale).max(3);
        let ink = opaque(theme.dim);
        bitmap.for_each_row(painted, |y, pixels| {
            for (pixel, x) in pixels.iter_mut().zip(painted.x0..) {
                if (x - y).rem_euclid(period) < gap {
                    *pixel = ink;
                }
            }
        });
    }
}

/// Outlines a box on a bitmap with the drawn flame graph.
pub(super) fn draw_highlight(bitmap: &mut Bitmap, scene: &FlameScene, theme: &Theme, one: &FlameBox) {
    let area = scene.visible_area(one);
    let stroke = px(1.5, scene.scale).max(1);
    let wide = Rect { x0: area.x0 - 1, x1: area.x1.max(area.x0 + 2), ..area };
    bitmap.outline(wide, stroke, theme.cursor);
}
