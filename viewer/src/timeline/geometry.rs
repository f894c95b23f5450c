//! Positions of the timeline's parts, and conversion between times and pixels.

use std::ops::Range;

use plotters::style::RGBColor;
use vramscope_trace::Recording;

use crate::frame::{Color, Frame, Rect};
use crate::marks::Marks;

/// Height of a row of named intervals above the chart, in units (pixels at scale 1).
pub(super) const SPAN_ROW: f32 = 15.0;
/// Font size of the timeline's labels, in units (pixels at scale 1).
pub(super) const TEXT: f32 = 11.0;

/// Pixel positions of the timeline's parts, and the time range of its chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The chart.
    pub plot: Rect,
    /// The rows of spans above the chart.
    pub span_rows: Rect,
    /// The row of incident labels between spans and chart; its height is 0 without incidents.
    pub incident_row: Rect,
    /// Width of the picture.
    pub width: i32,
    /// Time at the chart's left edge.
    pub from_ns: u64,
    /// Time at the chart's right edge.
    pub to_ns: u64,
}

impl Geometry {
    /// Computes the geometry of a picture of `size` pixels with `scale` pixels per unit, with rows
    /// for `marks`.
    #[must_use]
    pub fn new(size: (u32, u32), scale: f32, marks: &Marks, range: &Range<u64>) -> Self {
        let px = |units: f32| (units * scale).round() as i32;
        let (width, height) = (size.0.min(Frame::MAX_SIDE) as i32, size.1.min(Frame::MAX_SIDE) as i32);
        let x0 = px(64.0);
        let x1 = (width - px(22.0)).max(x0 + 1);
        let spans_end = px(6.0) + px(SPAN_ROW) * marks.depth() as i32;
        let top = spans_end + if marks.incidents().is_empty() { 0 } else { px(SPAN_ROW) } + px(4.0);
        let bottom = (height - px(20.0)).max(top + 1);
        Self {
            plot: Rect::new(x0, top, x1, bottom),
            span_rows: Rect::new(x0, px(6.0), x1, spans_end),
            incident_row: Rect::new(x0, spans_end, x1, top - px(4.0)),
            width,
            from_ns: range.start,
            to_ns: range.end.max(range.start.saturating_add(1)),
        }
    }

    /// Returns the pixel column of a time of the recording, counted from the picture's left edge;
    /// outside of the chart for a time outside of the shown range.
    #[must_use]
    pub fn x(&self, time_ns: u64) -> i32 {
        let distance = (i128::from(time_ns) - i128::from(self.from_ns)) as f64;
        let ratio = distance / (self.to_ns - self.from_ns) as f64;
        self.plot.x0 + (ratio * f64::from(self.plot.width())).floor().clamp(-1e6, 1e6) as i32
    }

    /// Returns the pixel column of a time, counted from the picture's left edge; `None` outside of
    /// the shown range, whose end belongs to the chart's last column.
    pub(super) fn column(&self, time_ns: u64) -> Option<i32> {
        (self.from_ns..=self.to_ns).contains(&time_ns).then(|| self.x(time_ns).min(self.plot.x1 - 1))
    }

    /// Returns the recording's time in nanoseconds at `x` pixels from the picture's left edge;
    /// beyond the chart's edges, that of the nearest edge.
    #[must_use]
    pub fn time_ns(&self, x: f64) -> u64 {
        let ratio = ((x - f64::from(self.plot.x0)) / f64::from(self.plot.width())).clamp(0.0, 1.0);
        self.from_ns.saturating_add((ratio * (self.to_ns - self.from_ns) as f64) as u64).min(self.to_ns)
    }
}

/// Returns the recording's time in nanoseconds that is labelled 0 on time axes: the recording's
/// start.
///
/// If the start has been discarded, it is the start of the recorder's clock instead, so that a
/// moment keeps its label when earlier events are discarded.
pub(crate) fn time_origin_ns(recording: &Recording) -> u64 {
    let has_clock = recording.info().epoch_unix_ns > 0;
    if recording.first_event() > 0 && has_clock { 0 } else { recording.start_ns() }
}

/// Converts a color to plotters' color type.
pub(crate) fn to_rgb(color: Color) -> RGBColor {
    RGBColor(color.r, color.g, color.b)
}
