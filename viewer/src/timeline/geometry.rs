//! Positions of the timeline's parts, and conversion between times and pixels.

use vramscope_draw::{Bitmap, Rect};
use vramscope_insight::spans::Marks;
use vramscope_trace::Recording;

/// Height of a row of named intervals above the chart, in units (pixels at scale 1).
pub(super) const SPAN_ROW: f32 = 15.0;
/// Number of rows in which the timeline draws nested spans; deeper ones share the last row.
const MAX_SPAN_ROWS: usize = 3;
/// Font size of the timeline's labels, in units (pixels at scale 1).
pub(super) const TEXT: f32 = 11.0;

/// Returns the number of rows in which the timeline draws nested spans, at most 3; 0 without spans.
pub fn span_rows(marks: &Marks) -> usize {
    marks.depth().min(MAX_SPAN_ROWS)
}

/// Height of a device's lane, with the space below it, in units (pixels at scale 1).
pub(super) const LANE: f32 = 22.0;
/// Height of the overview strip and its distance from the axis, in units (pixels at scale 1).
const OVERVIEW: (f32, f32) = (14.0, 3.0);

/// The rows that a timeline has above and below its chart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rows {
    /// Number of rows of named intervals.
    pub(super) spans: usize,
    /// Whether there is a row of flags.
    pub(super) has_flags: bool,
    /// Whether there is an overview strip.
    pub(super) has_overview: bool,
    /// Number of lanes of devices in view.
    pub(super) lanes: usize,
}

/// Pixel positions of the timeline's parts, and the time range of its chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The chart.
    pub plot: Rect,
    /// The rows of spans above the chart.
    pub span_rows: Rect,
    /// Number of rows of spans.
    pub(super) span_row_count: usize,
    /// The row of incident labels between spans and chart; its height is 0 without incidents.
    pub incident_row: Rect,
    /// The overview strip below the axis; its height is 0 without one.
    pub overview: Rect,
    /// The lanes of devices at the bottom; their height is 0 without any.
    pub lanes: Rect,
    /// Width of the picture.
    pub width: i32,
}

impl Geometry {
    /// Computes the geometry of a picture of `size` pixels with `scale` pixels per unit, with the
    /// given rows around the chart.
    pub(super) fn with_rows(size: (u32, u32), scale: f32, rows: Rows) -> Self {
        let px = |units: f32| (units * scale).round() as i32;
        let (width, height) = (size.0.min(Bitmap::MAX_SIDE) as i32, size.1.min(Bitmap::MAX_SIDE) as i32);
        let x0 = px(64.0);
        let x1 = (width - px(22.0)).max(x0 + 1);
        let spans_end = px(6.0) + px(SPAN_ROW) * rows.spans as i32;
        let top = spans_end + if rows.has_flags { px(SPAN_ROW) } else { 0 } + px(4.0);
        let (strip, gap) = if rows.has_overview { (px(OVERVIEW.0), px(OVERVIEW.1)) } else { (0, 0) };
        let lanes = px(LANE) * rows.lanes as i32;
        let bottom = (height - px(20.0) - strip - gap - lanes).max(top + 1);
        let overview_end = (height - lanes).max(bottom) - gap;
        Self {
            plot: Rect::new(x0, top, x1, bottom),
            span_rows: Rect::new(x0, px(6.0), x1, spans_end),
            span_row_count: rows.spans,
            incident_row: Rect::new(x0, spans_end, x1, top - px(4.0)),
            overview: Rect::new(x0, overview_end - strip, x1, overview_end),
            lanes: Rect::new(x0, height - lanes, x1, height),
            width,
        }
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
