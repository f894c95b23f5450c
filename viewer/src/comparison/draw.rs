//! Draws a [`ComparisonScene`].

use vramscope_draw::picture::{TEXT, px, text_color};
use vramscope_draw::{Align, Canvas, Chart, LineStyle, Rect, Surface, Theme};

use super::scene::{ComparisonScene, LEGEND_LINE, Line};
use super::{NAMES, side_color};
use crate::device_map;

/// Widths of the lines of sides A and B, in units (pixels at scale 1). B is drawn over A; A is
/// wider, so that both show where they are equal.
const STROKES: [f32; 2] = [3.0, 1.5];
/// Length of a dash, and of a gap, in the lines of the reserved bytes, in units.
const DASH: f32 = 5.0;

/// Draws the picture of a comparison on a canvas, which must have the size that the scene was
/// computed for.
pub(super) fn draw_on(scene: &ComparisonScene, theme: &Theme, surface: &mut Canvas<'_>) {
    surface.fill(surface.bounds(), theme.background);
    surface.fill(scene.plot, theme.well);
    let (x, y) = (&scene.axis_labels, &scene.bytes_axis);
    let chart = Chart { plot: scene.plot, x, y, text_size: TEXT, scale: scene.scale };
    chart.draw_axes(surface, theme);
    // Reserved bytes first; within each counter, side A before B.
    for is_reserved in [true, false] {
        for line in scene.lines.iter().filter(|line| line.is_reserved == is_reserved) {
            let values = line.values.iter().map(|&bytes| bytes as f64);
            let first = usize::try_from(line.x0 - scene.plot.x0).unwrap_or(0);
            chart.draw_steps(surface, first, values, line_style(scene, line, theme));
        }
    }
    draw_moments(scene, theme, surface);
    for line in &scene.lines {
        draw_legend_entry(scene, line, theme, surface);
    }
    for (index, map) in scene.maps.iter().enumerate() {
        surface.panel(map.area, theme.background, &mut |surface| {
            device_map::draw_on(&map.scene, theme, surface);
            for edge in map.served.iter().flat_map(|area| area.edges(px(2.0, scene.scale).max(1))) {
                surface.fill(edge, theme.cursor);
            }
        });
        let title = &map.title;
        let half = px(4.0, scene.scale);
        let swatch =
            Rect::new(title.x - px(16.0, scene.scale), title.y - half, title.x - px(5.0, scene.scale), title.y + half);
        surface.fill(swatch, side_color(theme, index));
        let at = (title.x as f32, title.y as f32);
        surface.text(&title.text, TEXT * scene.scale, at, Align::Left, theme.text);
    }
}

/// Returns the look of a line of the chart: dashed for the reserved bytes, solid for the allocated
/// bytes.
fn line_style(scene: &ComparisonScene, line: &Line, theme: &Theme) -> LineStyle {
    LineStyle {
        color: side_color(theme, line.side),
        stroke: px(STROKES[line.side], scene.scale).max(1),
        dash: line.is_reserved.then(|| px(DASH, scene.scale).max(1)),
    }
}

/// Draws a line's entry in the chart's legend: a sample of the line, and its text.
fn draw_legend_entry(scene: &ComparisonScene, line: &Line, theme: &Theme, surface: &mut dyn Surface) {
    let (label, scale) = (&line.label, scene.scale);
    let LineStyle { color, stroke, dash } = line_style(scene, line, theme);
    let (x1, y0) = (label.x + px(LEGEND_LINE - 6.0, scale), label.y - stroke / 2);
    let (length, period) = dash.map_or((x1 - label.x, x1 - label.x), |dash| (dash, 2 * dash));
    for x in (label.x..x1).step_by(period.max(1) as usize) {
        surface.fill(Rect::new(x, y0, (x + length).min(x1), y0 + stroke), color);
    }
    let at = ((label.x + px(LEGEND_LINE, scale)) as f32, label.y as f32);
    surface.text(&label.text, TEXT * scale, at, Align::Left, theme.text);
}

/// Draws the compared moment of each side as a vertical line with a flag above the chart, which
/// shows the side's name.
fn draw_moments(scene: &ComparisonScene, theme: &Theme, surface: &mut dyn Surface) {
    let (plot, scale) = (scene.plot, scene.scale);
    let (width, height) = (px(15.0, scale), px(15.0, scale));
    for (side, x) in scene.moments.iter().enumerate() {
        let Some(x) = *x else { continue };
        let stroke = px(1.5, scale).max(1);
        let color = side_color(theme, side);
        surface.fill(Rect::new(x - stroke / 2, plot.y0 - height, x - stroke / 2 + stroke, plot.y1), color);
        // A's name is left of its line, B's right of it, so that both show if they are close.
        let x0 = if side == 0 { x - width } else { x };
        let flag = Rect::new(x0, plot.y0 - height - px(2.0, scale), x0 + width, plot.y0 - px(2.0, scale));
        surface.fill(flag, color);
        let at = ((flag.x0 + flag.x1) as f32 / 2.0, (flag.y0 + flag.y1) as f32 / 2.0);
        surface.text(NAMES[side], TEXT * scale, at, Align::Center, text_color(color));
    }
}
