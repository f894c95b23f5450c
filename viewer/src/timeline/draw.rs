//! Draws a [`TimelineScene`].

use vramscope_draw::picture::{draw_diamond, px};
use vramscope_draw::{Align, Bitmap, Canvas, Chart, Color, Rect, Surface, Texture, Theme, Typesetter};
use vramscope_trace::{CounterColumn, Counters};

use super::geometry::TEXT;
use super::lanes::Lanes;
use super::measure::Tag;
use super::overlay::{Cursor, Overlay};
use super::overview::Overview;
use super::scene::TimelineScene;
use super::stack::Stack;
use crate::bands::Band;

/// Opacity (0 to 1) of the background of a label on the chart.
const TAG_ALPHA: f32 = 0.78;

impl TimelineScene {
    /// Returns the colors of a simulated run's allocated and reserved bytes.
    pub(crate) fn run_colors(theme: &Theme) -> [Color; 2] {
        [theme.sides[1].mix(theme.well, 0.4), theme.sides[1]]
    }
}

/// Draws the timeline on `bitmap`, which must have the size that the scene was computed for.
pub fn draw(scene: &TimelineScene, theme: &Theme, bitmap: &mut Bitmap, typesetter: &mut Typesetter) {
    draw_on(scene, theme, &mut Canvas { bitmap, typesetter });
}

/// Draws the timeline, without the overlay, on a surface of the size that the scene was computed
/// for.
pub fn draw_on(scene: &TimelineScene, theme: &Theme, surface: &mut dyn Surface) {
    surface.fill(surface.bounds(), theme.background);
    surface.fill(scene.geometry.plot, theme.well);
    match &scene.stack {
        Some(stack) => draw_stack(scene, stack, theme, surface),
        None => draw_counters(scene, theme, surface),
    }
    draw_chart(scene, theme, surface);
    draw_idle_time(scene, theme, surface);
    draw_spans(scene, theme, surface);
    draw_incidents(scene, theme, surface);
    if let Some((line, tag)) = &scene.device_memory {
        surface.fill(*line, theme.dim);
        draw_tag(tag, scene.scale, theme, surface);
    }
    draw_peaks(scene, theme, surface);
    if let Some(overview) = &scene.overview {
        draw_overview(overview, scene.scale, theme, surface);
    }
    draw_lanes(&scene.lanes, scene.scale, theme, surface);
}

/// Draws the timeline's axes, grid, and lines of the counters.
fn draw_chart(scene: &TimelineScene, theme: &Theme, surface: &mut dyn Surface) {
    let (x, y) = (&scene.axis_labels, &scene.bytes_axis);
    let chart = Chart { plot: scene.geometry.plot, x, y, text_size: TEXT, scale: scene.scale };
    chart.draw_axes(surface, theme);
    let mut line = |columns: &[CounterColumn], color: Color, value: &dyn Fn(usize, &Counters) -> u64| {
        let values = columns.iter().enumerate().map(|(index, column)| value(index, &column.max) as f64);
        chart.draw_line(surface, values, color);
    };
    match &scene.stack {
        None => line(&scene.columns, theme.allocated.mix(theme.text, 0.35), &|_, counters| counters.allocated),
        // The active bytes: the upper edge of the areas.
        Some(stack) => {
            line(&scene.columns, theme.text, &|index, _| stack.columns.get(index).map_or(0, |column| column.total));
        }
    }
    line(&scene.columns, theme.reserved_line, &|_, counters| counters.reserved);
    let [allocated, reserved] = TimelineScene::run_colors(theme);
    line(&scene.run_columns, allocated, &|_, counters| counters.allocated);
    line(&scene.run_columns, reserved, &|_, counters| counters.reserved);
}

/// Returns the color of a band of memory outside the pool.
fn band_color(band: Band, theme: &Theme) -> Color {
    match band {
        Band::Outside => theme.outside,
        Band::Others => theme.others,
    }
}

/// Returns the rectangle of the timeline's chart in pixel column `column` that reaches from `from`
/// to `to` bytes.
fn area(scene: &TimelineScene, column: usize, from: u64, to: u64) -> Rect {
    let plot = scene.geometry.plot;
    let y = |bytes: u64| scene.bytes_axis.row(plot, bytes as f64);
    let x = plot.x0 + column as i32;
    let end = if from == 0 { plot.y1 } else { y(from) };
    Rect::new(x, y(to), x + 1, end)
}

/// Draws the timeline's areas of allocated, active and reserved bytes, and the bands above them.
fn draw_counters(scene: &TimelineScene, theme: &Theme, surface: &mut dyn Surface) {
    let (allocated, range) = (theme.allocated, theme.well.mix(theme.allocated, 0.65));
    let (pending, reserved) = (theme.well.mix(theme.pending, 0.7), theme.reserved());
    for (index, CounterColumn { min, max, .. }) in scene.columns.iter().enumerate() {
        let counters =
            [(min.allocated, allocated), (max.allocated, range), (max.active, pending), (max.reserved, reserved)];
        let bands = scene.bands.iter().rev();
        let bands = bands.map(|band| (band.ends.get(index).copied().unwrap_or(0), band_color(band.band, theme)));
        // From the front to the back, so that no pixel is filled twice.
        let mut covered = scene.geometry.plot.y1;
        for (value, color) in counters.into_iter().chain(bands).filter(|&(value, _)| value > 0) {
            let rect = area(scene, index, 0, value);
            if rect.y0 < covered {
                surface.fill(Rect { y1: covered, ..rect }, color);
                covered = rect.y0;
            }
        }
    }
}

/// Draws the live bytes of groups on top of each other, above them the free part of the reserved
/// bytes and the bands. Lit blocks are at the bottom of their layer.
fn draw_stack(scene: &TimelineScene, stack: &Stack, theme: &Theme, surface: &mut dyn Surface) {
    for band in &scene.bands {
        for (column, &end) in band.ends.iter().enumerate().filter(|&(_, &end)| end > 0) {
            surface.fill(area(scene, column, 0, end), band_color(band.band, theme));
        }
    }
    for (index, counters) in scene.columns.iter().enumerate() {
        surface.fill(area(scene, index, 0, counters.max.reserved), theme.reserved());
    }
    for index in 0..stack.columns.len().min(scene.columns.len()) {
        let mut below = 0u64;
        for (layer, look) in stack.layers.iter().enumerate() {
            let bytes = stack.bytes(index, layer);
            if bytes == 0 {
                continue;
            }
            let lit = stack.lit_bytes(index, layer).min(bytes);
            let parts = [(lit, false), (bytes - lit, look.is_dimmed)];
            for (bytes, is_dimmed) in parts.into_iter().filter(|(bytes, _)| *bytes > 0) {
                let rect = area(scene, index, below, below.saturating_add(bytes));
                below = below.saturating_add(bytes);
                let dimmed = |color: Color| if is_dimmed { color.mix(theme.well, 0.72) } else { color };
                surface.fill(rect, dimmed(look.color));
                if look.texture != Texture::None {
                    let ink = dimmed(theme.texture_ink(look.color));
                    for row in (rect.y0..rect.y1).filter(|&row| look.texture.inks(rect.x0, row, scene.scale)) {
                        surface.fill(Rect { y0: row, y1: row + 1, ..rect }, ink);
                    }
                }
            }
        }
    }
}

/// Marks where idle time is left out of the axis: an empty strip between two jagged lines.
fn draw_idle_time(scene: &TimelineScene, theme: &Theme, surface: &mut dyn Surface) {
    let (plot, tooth) = (scene.geometry.plot, px(4.0, scene.scale).max(2));
    for piece in scene.axis.pieces.iter().filter(|piece| piece.is_idle) {
        let strip = Rect { x0: plot.x0 + piece.x0, x1: plot.x0 + piece.x1, ..plot };
        surface.fill(strip, theme.background);
        // Both lines lean from side to side, by at most a quarter of the strip's width.
        let depth = (strip.width() / 4).max(1);
        for (index, y) in (0..).zip((strip.y0..strip.y1).step_by(tooth as usize)) {
            let (from, to) = if index % 2 == 0 { (0, depth) } else { (depth, 0) };
            let y1 = (y + tooth).min(strip.y1);
            for x in [strip.x0, strip.x1 - 1 - depth] {
                surface.line(&[(x + from, y), (x + to, y1)], px(1.0, scene.scale).max(1) as u32, theme.dim, 0.8);
            }
        }
    }
}

/// Draws the program's named intervals above the chart.
fn draw_spans(scene: &TimelineScene, theme: &Theme, surface: &mut dyn Surface) {
    let scale = scene.scale;
    for span in &scene.spans.boxes {
        let rect = span.rect;
        match span.is_merged {
            true => surface.fill(rect, theme.mark.mix(theme.background, 0.3)),
            false => {
                surface.fill(rect, if span.is_alternate { theme.mark_alternate } else { theme.mark });
                surface.fill(Rect { x1: rect.x0 + px(1.0, scale).max(1), ..rect }, theme.dim);
            }
        }
        let position = ((rect.x0 + px(5.0, scale)) as f32, (rect.y0 + rect.y1) as f32 / 2.0);
        if !span.name.is_empty() {
            surface.text(&span.name, (TEXT - 1.0) * scale, position, Align::Left, theme.mark_text);
        }
    }
}

/// Draws out-of-memory errors and gaps as vertical lines with flags.
fn draw_incidents(scene: &TimelineScene, theme: &Theme, surface: &mut dyn Surface) {
    for line in &scene.incident_lines {
        surface.fill(*line, theme.alarm);
    }
    // After all lines, so that no line crosses a label.
    for flag in &scene.flags {
        let rect = flag.rect;
        surface.fill(rect, theme.alarm);
        let position = ((rect.x0 + px(4.0, scene.scale)) as f32, (rect.y0 + rect.y1) as f32 / 2.0);
        surface.text(&flag.text, (TEXT - 1.0) * scene.scale, position, Align::Left, theme.background);
    }
}

/// Draws the whole recording in the overview strip, with an outline around the visible part.
fn draw_overview(overview: &Overview, scale: f32, theme: &Theme, surface: &mut dyn Surface) {
    let (strip, window) = (overview.strip, overview.window);
    surface.fill(strip, theme.well);
    let y = |bytes: u64| strip.y1 - (bytes as f64 / overview.top as f64 * f64::from(strip.height())) as i32;
    for (x, &(allocated, reserved)) in (strip.x0..).zip(overview.columns.iter()) {
        surface.fill(Rect::new(x, y(reserved), x + 1, strip.y1), theme.reserved());
        surface.fill(Rect::new(x, y(allocated), x + 1, strip.y1), theme.allocated);
    }
    for hidden in [Rect { x1: window.x0, ..strip }, Rect { x0: window.x1, ..strip }] {
        surface.tint(hidden, theme.background, 0.6);
    }
    for edge in window.edges(px(1.0, scale).max(1)) {
        surface.fill(edge, theme.cursor);
    }
}

/// Draws the lanes of devices: allocated and reserved bytes, names and out-of-memory errors.
fn draw_lanes(lanes: &Lanes, scale: f32, theme: &Theme, surface: &mut dyn Surface) {
    for lane in &lanes.lanes {
        let plot = lane.rect;
        surface.fill(plot, theme.well);
        let y = |bytes: u64| plot.y1 - (bytes as f64 / lanes.top as f64 * f64::from(plot.height())).ceil() as i32;
        for (x, &(allocated, reserved)) in (plot.x0..).zip(&lane.columns) {
            surface.fill(Rect::new(x, y(reserved), x + 1, plot.y1), theme.reserved());
            surface.fill(Rect::new(x, y(allocated), x + 1, plot.y1), theme.well.mix(theme.allocated, 0.65));
        }
        for &(x, _) in &lane.failures {
            surface.fill(Rect::new(x, plot.y0, x + px(2.0, scale).max(1), plot.y1), theme.alarm);
        }
        let (fill, text) =
            if lane.is_selected { (theme.text, theme.background) } else { (theme.background, theme.dim) };
        surface.fill(lane.label, fill);
        let position = ((lane.label.x1 - px(4.0, scale)) as f32, (plot.y0 + plot.y1) as f32 / 2.0);
        surface.text(&lane.name, TEXT * scale, position, Align::Right, text);
    }
    surface.fill(lanes.scrollbar, theme.dim);
}

/// Draws a label of the chart on a translucent background; `scale` is pixels per unit.
fn draw_tag(tag: &Tag, scale: f32, theme: &Theme, surface: &mut dyn Surface) {
    let rect = tag.rect;
    surface.tint(rect, theme.background, TAG_ALPHA);
    let position = ((rect.x0 + px(4.0, scale)) as f32, (rect.y0 + rect.y1) as f32 / 2.0);
    surface.text(&tag.text, (TEXT - 0.5) * scale, position, Align::Left, theme.text);
}

/// Draws each peak as a diamond on the chart, with its label.
fn draw_peaks(scene: &TimelineScene, theme: &Theme, surface: &mut dyn Surface) {
    for point in &scene.peaks {
        draw_diamond(surface, (point.x, point.y), scene.scale, theme);
        draw_tag(&point.label, scene.scale, theme, surface);
    }
}

/// Draws the selected range, the line under the pointer, and the cursor on a timeline's picture.
pub fn draw_overlay(overlay: &Overlay, scale: f32, theme: &Theme, bitmap: &mut Bitmap, typesetter: &mut Typesetter) {
    if let Some(band) = &overlay.selection {
        bitmap.tint(band.rect, theme.cursor, 0.16);
        let stroke = px(1.0, scale).max(1);
        for x in [band.rect.x0, band.rect.x1 - stroke] {
            bitmap.tint(Rect { x0: x, x1: x + stroke, ..band.rect }, theme.cursor, 0.7);
        }
        if let Some(tag) = &band.label {
            // Opaque: other labels may be below it.
            bitmap.fill(tag.rect, theme.background);
            bitmap.outline(tag.rect, stroke, theme.dim);
            draw_tag(tag, scale, theme, &mut Canvas { bitmap, typesetter });
        }
    }
    if let (Some(x), Some(cursor)) = (overlay.pointer_x, &overlay.cursor) {
        let line = cursor.line.unwrap_or(Rect { y0: 0, ..cursor.label });
        bitmap.tint(Rect { x0: x, x1: x + 1, ..line }, theme.cursor, 0.45);
    }
    let lanes = overlay.lanes.rect;
    if let (Some(x), true) = (overlay.pointer_x, lanes.height() > 0) {
        bitmap.tint(Rect { x0: x, x1: x + 1, ..lanes }, theme.cursor, 0.45);
    }
    if let Some(cursor) = &overlay.cursor {
        draw_cursor(cursor, theme, bitmap, typesetter);
        if let Some(line) = cursor.line {
            bitmap.fill(Rect { x0: line.x0, x1: line.x1, ..lanes }, theme.cursor);
        }
    }
    for tag in &overlay.lanes.tags {
        draw_tag(tag, scale, theme, &mut Canvas { bitmap, typesetter });
    }
}

/// Draws the cursor, the line and time of the moment on the screen, or the arrow to it, on a
/// timeline's picture.
pub fn draw_cursor(cursor: &Cursor, theme: &Theme, bitmap: &mut Bitmap, typesetter: &mut Typesetter) {
    for label in &cursor.covered {
        bitmap.fill(*label, theme.background);
    }
    if let Some(line) = cursor.line {
        bitmap.fill(line, theme.cursor);
    }
    let label = cursor.label;
    bitmap.fill(label, theme.cursor);
    let center_y = (label.y0 + label.y1) as f32 / 2.0;
    let mut center_x = (label.x0 + label.x1) as f32 / 2.0;
    if cursor.line.is_none() {
        // A triangle that points to the moment.
        let half = px(4.0, cursor.scale).max(2);
        let margin = px(5.0, cursor.scale);
        center_x += if cursor.is_left { margin as f32 } else { -margin as f32 };
        for step in 0..=half {
            let x = if cursor.is_left { label.x0 + margin + step } else { label.x1 - 1 - margin - step };
            bitmap.fill(Rect::new(x, center_y as i32 - step, x + 1, center_y as i32 + step + 1), theme.background);
        }
    }
    typesetter.draw(bitmap, &cursor.text, TEXT * cursor.scale, (center_x, center_y), Align::Center, theme.background);
}
