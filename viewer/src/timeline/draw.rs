//! Draws a [`TimelineScene`].

use plotters::prelude::*;
use plotters::style::Color as _;
use vramscope_trace::Counters;

use super::geometry::{TEXT, to_rgb};
use super::scene::{Cursor, Tag, TimelineScene};
use crate::backend::Backend;
use crate::bands::Band;
use crate::canvas::Canvas;
use crate::frame::{Color, Frame, Rect};
use crate::surface::Surface;
use crate::text::{Align, Typesetter};
use crate::theme::Theme;
use crate::units;

/// Opacity (0 to 1) of the background of a label on the chart.
const TAG_ALPHA: f32 = 0.78;

/// Draws the timeline on `frame`, which must have the size that the scene was computed for.
pub fn draw(scene: &TimelineScene, theme: &Theme, frame: &mut Frame, typesetter: &mut Typesetter) {
    draw_on(scene, theme, &mut Canvas { frame, typesetter });
}

/// Draws the timeline on a whole surface.
pub(crate) fn draw_on(scene: &TimelineScene, theme: &Theme, surface: &mut impl Surface) {
    surface.fill(surface.bounds(), theme.background);
    surface.fill(scene.geometry.plot, theme.well);
    // The backend never fails, and plotters only refuses charts without area, which Geometry
    // never makes.
    let _ = draw_chart(scene, theme, Backend(surface));
    draw_spans(scene, theme, surface);
    draw_incidents(scene, theme, surface);
    if let Some((line, tag)) = &scene.device_memory {
        surface.fill(*line, theme.dim);
        draw_tag(tag, scene.scale, theme, surface);
    }
    draw_peaks(scene, theme, surface);
}

/// The result of drawing with plotters on backend `B`.
type ChartResult<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// Draws the areas and lines of the counters, the bands and both axes.
fn draw_chart<B: DrawingBackend>(scene: &TimelineScene, theme: &Theme, backend: B) -> ChartResult<B> {
    let (width, height) = backend.get_size();
    let (geometry, columns) = (&scene.geometry, &scene.columns);
    let plot = geometry.plot;
    let root = backend.into_drawing_area();
    let mut chart = ChartBuilder::on(&root)
        .margin_top(plot.y0)
        .margin_right(width as i32 - plot.x1)
        .set_label_area_size(LabelAreaPosition::Left, plot.x0)
        .set_label_area_size(LabelAreaPosition::Bottom, height as i32 - plot.y1)
        .build_cartesian_2d(scene.time_axis, scene.bytes_axis)?;
    let slice_ns = (geometry.to_ns - geometry.from_ns) as f64 / columns.len().max(1) as f64;
    let middle = |index: usize| (index as f64 + 0.5) * slice_ns;
    let mut fill = |color: Color, values: &mut dyn Iterator<Item = u64>| {
        let bar = move |(index, value): (usize, u64)| {
            Rectangle::new([(middle(index), 0.0), (middle(index), value as f64)], to_rgb(color).filled())
        };
        chart.draw_series(values.enumerate().filter(|&(_, value)| value > 0).map(bar)).map(|_| ())
    };
    for area in &scene.bands {
        let color = match area.band {
            Band::Outside => theme.outside,
            Band::Others => theme.others,
        };
        fill(color, &mut area.ends.iter().copied())?;
    }
    // Reserved bytes that are not active are free space inside segments: the heatmap's color for
    // free space, tinted.
    fill(theme.well.mix(theme.free, 0.3), &mut columns.iter().map(|column| column.max.reserved))?;
    fill(theme.well.mix(theme.pending, 0.7), &mut columns.iter().map(|column| column.max.active))?;
    fill(theme.well.mix(theme.allocated, 0.65), &mut columns.iter().map(|column| column.max.allocated))?;
    fill(theme.allocated, &mut columns.iter().map(|column| column.min.allocated))?;
    let size = f64::from(TEXT * scene.scale);
    let time_label = |time: &f64| {
        if *time <= scene.last_label_at { scene.time_axis.label(*time) } else { String::new() }
    };
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(to_rgb(theme.dim).mix(0.22))
        .axis_style(to_rgb(theme.faint))
        .label_style(("Inter", size).into_font().color(&to_rgb(theme.dim)))
        .x_label_formatter(&time_label)
        .y_label_formatter(&|bytes| units::axis_size(*bytes as u64))
        .set_all_tick_mark_size(px(4.0, scene.scale))
        .draw()?;
    let mut line = |color: Color, value: fn(&Counters) -> u64| {
        let points = columns.iter().enumerate().map(|(index, column)| (middle(index), value(&column.max) as f64));
        chart.draw_series(LineSeries::new(points, to_rgb(color).stroke_width(1))).map(|_| ())
    };
    line(theme.allocated.mix(theme.text, 0.35), |counters| counters.allocated)?;
    line(theme.reserved_line, |counters| counters.reserved)?;
    root.present()
}

/// Converts units (pixels at scale 1) to whole pixels, rounded; `scale` is pixels per unit.
fn px(units: f32, scale: f32) -> i32 {
    (units * scale).round() as i32
}

/// Draws the program's named intervals above the chart.
fn draw_spans(scene: &TimelineScene, theme: &Theme, surface: &mut impl Surface) {
    let scale = scene.scale;
    for span in &scene.spans {
        let rect = span.rect;
        surface.fill(rect, if span.is_alternate { theme.mark_alternate } else { theme.mark });
        surface.fill(Rect { x1: rect.x0 + px(1.0, scale).max(1), ..rect }, theme.dim);
        let position = ((rect.x0 + px(5.0, scale)) as f32, (rect.y0 + rect.y1) as f32 / 2.0);
        if !span.name.is_empty() {
            surface.text(&span.name, (TEXT - 1.0) * scale, position, Align::Left, theme.mark_text);
        }
    }
}

/// Draws out-of-memory errors and gaps as vertical lines with labels.
fn draw_incidents(scene: &TimelineScene, theme: &Theme, surface: &mut impl Surface) {
    for line in &scene.incident_lines {
        surface.fill(*line, theme.alarm);
    }
    // After all lines, so that no line crosses a label.
    for Tag { rect, text } in &scene.incident_labels {
        surface.fill(*rect, theme.alarm);
        let position = ((rect.x0 + px(4.0, scene.scale)) as f32, (rect.y0 + rect.y1) as f32 / 2.0);
        surface.text(text, (TEXT - 1.0) * scene.scale, position, Align::Left, theme.background);
    }
}

/// Draws a label of the chart on a translucent background; `scale` is pixels per unit.
fn draw_tag(tag: &Tag, scale: f32, theme: &Theme, surface: &mut impl Surface) {
    let rect = tag.rect;
    surface.tint(rect, theme.background, TAG_ALPHA);
    let position = ((rect.x0 + px(4.0, scale)) as f32, (rect.y0 + rect.y1) as f32 / 2.0);
    surface.text(&tag.text, (TEXT - 0.5) * scale, position, Align::Left, theme.text);
}

/// Draws each peak as a diamond on the chart, with its label.
fn draw_peaks(scene: &TimelineScene, theme: &Theme, surface: &mut impl Surface) {
    let radius = px(3.0, scene.scale);
    for point in &scene.peaks {
        for row in -radius..=radius {
            let (half, y) = (radius - row.abs(), point.y + row);
            surface.fill(Rect::new(point.x - half, y, point.x + half + 1, y + 1), theme.cursor);
        }
        draw_tag(&point.label, scene.scale, theme, surface);
    }
}

/// Draws the cursor, the line and time of the moment on the screen, on a timeline's picture.
pub fn draw_cursor(cursor: &Cursor, theme: &Theme, frame: &mut Frame, typesetter: &mut Typesetter) {
    frame.fill(cursor.line, theme.cursor);
    let label = cursor.label;
    frame.fill(label, theme.cursor);
    let position = ((label.x0 + label.x1) as f32 / 2.0, (label.y0 + label.y1) as f32 / 2.0);
    typesetter.draw(frame, &cursor.text, TEXT * cursor.scale, position, Align::Center, theme.background);
}
