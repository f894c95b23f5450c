//! The chart of the fragmentation over time.

use plotters::prelude::*;
use vramscope_insight::spans::Marks;

use super::contents::RecordingReport;
use super::summary::DeviceSummary;
use crate::draw::axis::Axis;
use crate::draw::backend::Backend;
use crate::draw::surface::Surface;
use crate::draw::theme::Theme;
use crate::timeline::{Geometry, time_origin_ns, to_rgb};

/// Font size of the labels of the fragmentation chart, in units (pixels at scale 1).
const TEXT: f32 = 11.0;

/// Draws the chart of a device's fragmentation over time on a whole surface, with `scale` pixels
/// per unit. The time axis matches a timeline of equal width.
pub(super) fn draw(
    surface: &mut dyn Surface,
    theme: &Theme,
    scale: f32,
    report: &RecordingReport,
    summary: &DeviceSummary,
) {
    let geometry = Geometry::new(surface.size(), scale, &Marks::default(), &report.range);
    surface.fill(surface.bounds(), theme.background);
    surface.fill(geometry.plot, theme.well);
    let time = Axis::time(
        geometry.from_ns,
        geometry.to_ns,
        time_origin_ns(report.recording),
        (geometry.plot.width() / ((110.0 * scale).round() as i32).max(1)) as u64,
    );
    // The backend never fails, and plotters only refuses charts without area, which Geometry
    // never makes.
    let _ = draw_chart(Backend(surface), theme, scale, &geometry, time, &summary.fragmentation);
}

/// Draws the fragmentation chart with plotters: areas, axes and labels. `fragmentation` has values
/// from 0 to 1 for equal slices of the time range.
fn draw_chart<B: DrawingBackend>(
    backend: B,
    theme: &Theme,
    scale: f32,
    geometry: &Geometry,
    time: Axis,
    fragmentation: &[f64],
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let px = |units: f32| (units * scale).round() as i32;
    let (width, height) = backend.get_size();
    let plot = geometry.plot;
    let root = backend.into_drawing_area();
    let mut chart = ChartBuilder::on(&root)
        .margin_top(plot.y0)
        .margin_right(width as i32 - plot.x1)
        .set_label_area_size(LabelAreaPosition::Left, plot.x0)
        .set_label_area_size(LabelAreaPosition::Bottom, height as i32 - plot.y1)
        .build_cartesian_2d(time, 0.0..100.0)?;
    let slice_ns = (geometry.to_ns - geometry.from_ns) as f64 / fragmentation.len().max(1) as f64;
    let percent = |index: usize| fragmentation[index] * 100.0;
    let color = theme.heat[1];
    let area = (0..fragmentation.len()).filter(|&index| percent(index) > 0.0).map(|index| {
        let corners = [(index as f64 * slice_ns, 0.0), ((index + 1) as f64 * slice_ns, percent(index))];
        Rectangle::new(corners, to_rgb(theme.well.mix(color, 0.3)).filled())
    });
    chart.draw_series(area)?;
    let size = f64::from(TEXT * scale);
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(to_rgb(theme.dim).mix(0.22))
        .axis_style(to_rgb(theme.faint))
        .label_style(("Inter", size).into_font().color(&to_rgb(theme.dim)))
        .y_labels(3)
        .x_label_formatter(&|distance| time.label(*distance))
        .y_label_formatter(&|percent| format!("{percent:.0}%"))
        .set_all_tick_mark_size(px(4.0))
        .draw()?;
    // Each value is drawn as a step over its slice, because values in between are unknown.
    let steps = (0..fragmentation.len())
        .flat_map(|index| [index, index + 1].map(|edge| (edge as f64 * slice_ns, percent(index))));
    chart
        .draw_series(LineSeries::new(steps, to_rgb(color.mix(theme.text, 0.2)).stroke_width(px(1.0).max(1) as u32)))?;
    root.present()
}
