//! Draws a [`HeatmapScene`].

use super::layout::Layout;
use super::scene::{Cell, Fill, HeatmapScene, Label, Line, LiveCell};
use crate::canvas::Canvas;
use crate::frame::{Color, Frame, Rect, opaque};
use crate::surface::Surface;
use crate::text::Typesetter;
use crate::theme::Theme;

/// Draws the heatmap on `frame`, which must have the size that the scene was computed for.
pub fn draw(scene: &HeatmapScene, theme: &Theme, frame: &mut Frame, typesetter: &mut Typesetter) {
    draw_on(scene, theme, &mut Canvas { frame, typesetter });
}

/// Draws the heatmap on a whole surface.
pub(crate) fn draw_on(scene: &HeatmapScene, theme: &Theme, surface: &mut impl Surface) {
    surface.pixels(theme.background, |frame| {
        for line in &scene.lines {
            draw_line(scene, line, theme, frame);
        }
    });
    draw_labels(&scene.labels, theme, surface);
    surface.fill(scene.header, theme.background);
    draw_labels(&scene.header_labels, theme, surface);
    if let Some(bar) = scene.scroll_bar {
        surface.fill(bar.track, theme.grid);
        surface.fill(bar.thumb, theme.dim);
    }
}

/// Returns the color for the allocated or pending-free part of a pixel column: by state or
/// category, darker for rounding, lighter where a block begins.
fn live_color(cell: LiveCell, theme: &Theme) -> Color {
    let block = match cell.fill {
        Fill::Pending => theme.pending,
        Fill::Allocated { is_alternate: true } => theme.allocated_alternate,
        Fill::Allocated { is_alternate: false } => theme.allocated,
        Fill::Category { index, is_alternate } => {
            theme.categories[usize::from(index)].mix(theme.background, if is_alternate { 0.05 } else { 0.0 })
        }
    };
    let color = if cell.is_rounding { theme.rounding(block) } else { block };
    // The line where a block begins: light enough to keep the block's color.
    if cell.begins { color.mix(theme.background, 0.55) } else { color }
}

/// Draws one row of the heatmap: its blocks and free space, and the color of the segment's
/// fragmentation beside it.
fn draw_line(scene: &HeatmapScene, line: &Line, theme: &Theme, frame: &mut Frame) {
    let (free, hatch) = if line.is_empty { (theme.cached, theme.cached_hatch) } else { (theme.free, theme.free_hatch) };
    let live: Vec<Color> =
        line.cells.iter().map(|cell| cell.live.map_or(free, |live| live_color(live, theme))).collect();
    let period = (scene.layout.scale * 6.0).round().max(4.0) as i32;
    let stroke = (scene.layout.scale * 2.0).round().max(1.0) as i32;
    frame.for_each_row(line.area, |y, pixels| {
        for ((pixel, &live), (x, cell)) in pixels.iter_mut().zip(&live).zip((0..).zip(&line.cells)) {
            let color = if y < cell.free_from {
                live
            } else if is_hatched(cell, x + y, period, stroke) {
                hatch
            } else {
                free
            };
            *pixel = opaque(color);
        }
    });
    let (x0, x1) = scene.heat_columns;
    frame.fill(Rect { x0, x1, ..line.area }, theme.heat(line.fragmentation));
}

/// Returns true if a pixel of `cell` belongs to a stroke of the hatching, which only free columns
/// have. `diagonal` is the pixel's x + y; strokes are `stroke` pixels wide and `period` pixels
/// apart.
fn is_hatched(cell: &Cell, diagonal: i32, period: i32, stroke: i32) -> bool {
    cell.live.is_none() && diagonal.rem_euclid(period) < stroke
}

/// Draws the heatmap's texts at their positions, in the dim or the normal text color.
fn draw_labels(labels: &[Label], theme: &Theme, surface: &mut impl Surface) {
    for label in labels {
        let color = if label.is_dim { theme.dim } else { theme.text };
        surface.text(&label.text, label.size, label.at, label.align, color);
    }
}

/// Why the heatmap outlines a block or free range: the pointer is over it (a thin line), or the
/// user selected it (a thick line).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Highlight {
    /// The pointer is over it.
    Hovered,
    /// The user selected it.
    Selected,
}

/// Outlines the `size` bytes at device address `address` on the heatmap's picture, on every row
/// that shows some of these bytes.
pub fn draw_highlight(
    frame: &mut Frame,
    layout: &Layout,
    theme: &Theme,
    (address, size): (u64, u64),
    highlight: Highlight,
) {
    let px = |units: f32| (units * layout.scale).round() as i32;
    let stroke = match highlight {
        Highlight::Hovered => px(1.0).max(1),
        Highlight::Selected => px(2.0).max(2),
    };
    let visible = Rect { x0: 0, x1: frame.width(), ..layout.map };
    for row in layout.rows_of(address) {
        let Some((x0, x1)) = layout.columns(row, address, size) else { continue };
        let edge = Rect::new(x0 - stroke, row.y0 - stroke, x1 + stroke, row.y1 + stroke);
        frame.outline(edge.intersect(visible), stroke, theme.cursor);
        if highlight == Highlight::Selected {
            let tick = Rect::new(px(2.0), row.y0, px(5.0), row.y1).intersect(visible);
            frame.fill(tick, theme.cursor);
        }
    }
}
