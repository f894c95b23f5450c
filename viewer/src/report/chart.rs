//! Fragmentation over time.

use plotters::prelude::*;
use plotters::style::Color as _;

use super::Report;
use super::facts::Facts;
use crate::axis::Axis;
use crate::backend::Backend;
use crate::frame::Color;
use crate::marks::Marks;
use crate::surface::Surface;
use crate::timeline::{Geometry, Look, zero_ns};

/// The size of letters.
const TEXT: f32 = 11.0;

fn rgb(color: Color) -> RGBColor {
    RGBColor(color.r, color.g, color.b)
}

/// Draws a device's fragmentation over time on all of a surface, with the same time at the same place as the timeline above it.
pub(super) fn draw(surface: &mut impl Surface, look: Look, report: &Report, facts: &Facts) {
    let geometry = Geometry::new(surface.size(), look.scale, &Marks::default(), &report.range);
    surface.fill(surface.bounds(), look.theme.background);
    surface.fill(geometry.plot, look.theme.well);
    // The backend cannot fail; plotters' own errors would be about a chart without area, which Geometry does not make.
    let _ = draw_chart(Backend(surface), look, &geometry, report, facts);
}

fn draw_chart<B: DrawingBackend>(
    backend: B,
    look: Look,
    geometry: &Geometry,
    report: &Report,
    facts: &Facts,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let px = |units: f32| (units * look.scale).round() as i32;
    let (width, height) = backend.get_size();
    let (theme, plot) = (look.theme, geometry.plot);
    let most = (plot.width() / px(110.0).max(1)) as u64;
    let time = Axis::time(geometry.from_ns, geometry.to_ns, zero_ns(report.recording), most);
    let root = backend.into_drawing_area();
    let mut chart = ChartBuilder::on(&root)
        .margin_top(plot.y0)
        .margin_right(width as i32 - plot.x1)
        .set_label_area_size(LabelAreaPosition::Left, plot.x0)
        .set_label_area_size(LabelAreaPosition::Bottom, height as i32 - plot.y1)
        .build_cartesian_2d(time, 0.0..100.0)?;
    let slice_ns = (geometry.to_ns - geometry.from_ns) as f64 / facts.fragmentation.len().max(1) as f64;
    let percent = |index: usize| facts.fragmentation[index] * 100.0;
    let color = theme.heat[1];
    let area = (0..facts.fragmentation.len()).filter(|&index| percent(index) > 0.0).map(|index| {
        let corners = [(index as f64 * slice_ns, 0.0), ((index + 1) as f64 * slice_ns, percent(index))];
        Rectangle::new(corners, rgb(theme.well.mix(color, 0.3)).filled())
    });
    chart.draw_series(area)?;
    let size = f64::from(TEXT * look.scale);
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(rgb(theme.dim).mix(0.22))
        .axis_style(rgb(theme.faint))
        .label_style(("Inter", size).into_font().color(&rgb(theme.dim)))
        .y_labels(3)
        .x_label_formatter(&|at| time.label(*at))
        .y_label_formatter(&|percent| format!("{percent:.0}%"))
        .set_all_tick_mark_size(px(4.0))
        .draw()?;
    // Each value up to the end of its slice: what lies between two moments was not looked at.
    let steps = (0..facts.fragmentation.len())
        .flat_map(|index| [index, index + 1].map(|edge| (edge as f64 * slice_ns, percent(index))));
    chart.draw_series(LineSeries::new(steps, rgb(color.mix(theme.text, 0.2)).stroke_width(px(1.0).max(1) as u32)))?;
    root.present()
}
