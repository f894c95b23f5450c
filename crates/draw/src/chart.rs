//! Charts: axes with ticks, labels and grid lines, and lines of values. The plotters crate draws
//! them on any [`Surface`].

use std::convert::Infallible;

use plotters::coord::cartesian::Cartesian2d;
use plotters::prelude::*;
use plotters::style::Color as _;

use crate::axis::Axis;
use crate::backend::Backend;
use crate::bitmap::{Color, Rect};
use crate::canvas::Canvas;
use crate::picture::{MomentAxis, TEXT, px};
use crate::surface::Surface;
use crate::theme::Theme;

/// Length of a tick, and half the distance of a label from its axis, in units (pixels at scale 1).
const TICK: f32 = 4.0;
/// Opacity (0 to 1) of grid lines.
const GRID_ALPHA: f64 = 0.22;

/// The pixels and the axes of a chart.
pub struct Chart<'a> {
    /// The pixels inside of the axes.
    pub plot: Rect,
    /// The axis below, whose values are pixel columns. It is not drawn if it has no labels.
    pub x: &'a Axis,
    /// The axis on the left. It is not drawn if it has no labels.
    pub y: &'a Axis,
    /// Font size of the labels, in units (pixels at scale 1).
    pub text_size: f32,
    /// Pixels per unit.
    pub scale: f32,
}

/// The look of a line of a chart.
#[derive(Clone, Copy)]
pub struct LineStyle {
    /// Color of the line.
    pub color: Color,
    /// Width in pixels.
    pub stroke: i32,
    /// Length in pixels of a dash and of a gap between dashes; `None` for a solid line.
    pub dash: Option<i32>,
}

/// A chart of plotters on a [`Surface`].
type Context<'a> = ChartContext<'a, Backend<'a>, Cartesian2d<&'a Axis, &'a Axis>>;
/// The result of drawing with plotters on a [`Surface`].
type DrawResult = Result<(), DrawingAreaErrorKind<Infallible>>;

/// Converts a color to plotters' color type.
fn to_rgb(color: Color) -> RGBColor {
    RGBColor(color.r, color.g, color.b)
}

/// Draws a chart's horizontal axis with its labels below the pixel row `bottom`. A label that does
/// not fit beside the one before it has a tick only.
pub fn draw_ticks(surface: &mut Canvas<'_>, axis: &MomentAxis, bottom: i32, scale: f32, theme: &Theme) {
    let (x0, x1) = axis.columns();
    let plot = Rect::new(x0, 0, x1, bottom);
    let labels = axis.labels(plot, surface.bitmap.width(), surface.typesetter, scale);
    Chart { plot, x: &labels, y: &Axis::default(), text_size: TEXT, scale }.draw_axes(surface, theme);
}

impl Chart<'_> {
    /// Draws the grid lines, the axes and their labels.
    pub fn draw_axes(&self, surface: &mut dyn Surface, theme: &Theme) {
        self.draw(surface, |chart| {
            let mut mesh = chart.configure_mesh();
            if !self.x.has_grid {
                mesh.disable_x_mesh();
            }
            if !self.y.has_grid {
                mesh.disable_y_mesh();
            }
            mesh.light_line_style(TRANSPARENT)
                .bold_line_style(to_rgb(theme.dim).mix(GRID_ALPHA))
                .axis_style(to_rgb(theme.faint))
                .label_style(("Inter", f64::from(self.text_size * self.scale)).into_font().color(&to_rgb(theme.dim)))
                .x_label_formatter(&|x| self.x.text(*x))
                .y_label_formatter(&|y| self.y.text(*y))
                .set_all_tick_mark_size(px(TICK, self.scale))
                .draw()
        });
    }

    /// Draws a line through the values at the middles of pixel columns, from the first column on.
    pub fn draw_line(&self, surface: &mut dyn Surface, values: impl Iterator<Item = f64>, color: Color) {
        let points = values.enumerate().map(|(column, value)| (column as f64 + 0.5, value));
        self.draw(surface, |chart| {
            chart.draw_series(LineSeries::new(points, to_rgb(color).stroke_width(1))).map(|_| ())
        });
    }

    /// Draws a line that keeps each column's value over the whole pixel column. `first` is the
    /// index of the first column with a value. Dashes are drawn only where the line is horizontal.
    pub fn draw_steps(
        &self,
        surface: &mut dyn Surface,
        first: usize,
        values: impl Iterator<Item = f64>,
        style: LineStyle,
    ) {
        let is_gap = |column: usize| style.dash.is_some_and(|dash| (self.plot.x0 + column as i32) / dash % 2 == 1);
        let mut paths: Vec<Vec<(f64, f64)>> = vec![Vec::new()];
        let mut last = None;
        for (column, value) in (first..).zip(values) {
            let (x, row) = (column as f64 + 0.5, self.y.row(self.plot, value));
            let (before, value) = match last {
                Some((last_row, last)) if last_row == row => (last, last),
                Some((_, last)) => (last, value),
                None => (value, value),
            };
            last = Some((row, value));
            match paths.last_mut() {
                Some(path) if before != value || !is_gap(column) => {
                    // Only the ends of a horizontal part are needed.
                    if matches!(path[..], [.., (_, from), (_, to)] if from == value && to == value) {
                        path.pop();
                    } else if path.is_empty() || before != value {
                        path.push((x, before));
                    }
                    path.push((x, value));
                }
                _ => paths.push(Vec::new()),
            }
        }
        let shape = to_rgb(style.color).stroke_width(style.stroke.max(1) as u32);
        let paths = paths.into_iter().filter(|path| !path.is_empty()).map(|path| PathElement::new(path, shape));
        self.draw(surface, |chart| chart.draw_series(paths).map(|_| ()));
    }

    /// Draws with plotters on a surface; draws nothing unless the chart is inside of the surface.
    fn draw<'a>(&'a self, surface: &'a mut dyn Surface, draw: impl FnOnce(&mut Context<'a>) -> DrawResult) {
        let (plot, picture) = (self.plot, surface.bounds());
        if plot.intersect(picture) != plot || plot.width() < 1 || plot.height() < 1 {
            return;
        }
        // Plotters draws an axis, also one without labels, if there is space for labels.
        let space = |axis: &Axis, pixels: i32| if axis.labels.is_empty() { (pixels, 0) } else { (0, pixels) };
        let (left, bottom) = (space(self.y, plot.x0), space(self.x, picture.y1 - plot.y1));
        let root = Backend(surface).into_drawing_area();
        let chart = ChartBuilder::on(&root)
            .margin_top(plot.y0)
            .margin_right(picture.x1 - plot.x1)
            .margin_left(left.0)
            .margin_bottom(bottom.0)
            .set_label_area_size(LabelAreaPosition::Left, left.1)
            .set_label_area_size(LabelAreaPosition::Bottom, bottom.1)
            .build_cartesian_2d(self.x, self.y);
        // Neither plotters nor the backend fails for a chart inside of the surface.
        let _ = chart.and_then(|mut chart| draw(&mut chart));
    }
}
