//! Computes the texts and positions of the "Fragmentation" view's picture, without colors.

use vramscope_insight::pools::FragmentationColumn;
use vramscope_trace::{ByteSize, Count, Percent};

use crate::draw::bitmap::{Bitmap, Rect};
use crate::draw::picture::{AxisLabel, MomentAxis, chart_columns, px};
use crate::units;

/// Font size of all labels, in units (pixels at scale 1).
pub(super) const TEXT: f32 = 11.0;
/// Height above each chart, for its title, in units (pixels at scale 1).
const TITLE: f32 = 21.0;
/// Height below the lowest chart, for the times, in units (pixels at scale 1).
const TIMES: f32 = 18.0;
/// Shares of the charts' total height, from 0 to 1: of the chart of fragmentation, and of the chart
/// of requests. The chart of free bytes has the rest.
const PARTS: (f32, f32) = (0.36, 0.28);
/// Minimum distance between labels of the vertical axes, in units (pixels at scale 1).
const AXIS_DISTANCE: f32 = 26.0;
/// Maximum length of the axis of requests, as a multiple of the largest free block. Larger requests
/// are drawn at the axis's upper end.
const MOST_ABOVE_FREE: u64 = 3;

/// The inputs of a [`FragmentationScene`].
#[derive(Clone, Debug, Default)]
pub(super) struct FragmentationContent {
    /// The moments that the pixel columns show.
    pub axis: MomentAxis,
    /// The values of the pixel columns, from left to right.
    pub columns: Vec<FragmentationColumn>,
    /// The threshold of fragmentation, from 0 to 1, that the chart marks by a dashed line.
    pub threshold: f64,
    /// The moment (event number) at which fragmentation first exceeds the threshold, and its value
    /// then; `None` if it never does or that is not known yet.
    pub crossing: Option<(u64, f64)>,
    /// Text in the middle of a picture without columns.
    pub notice: &'static str,
}

/// A part of the charts that a pixel shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// The background of a chart, or a grid line.
    Background,
    /// The dashed line of the threshold.
    Threshold,
    /// The line of the fragmentation at the columns' ends.
    Fragmentation,
    /// The band from the lowest to the highest fragmentation in the column.
    Band,
    /// Free bytes in segments with live blocks.
    Stuck,
    /// Free bytes in segments without live blocks, which could be released.
    Releasable,
    /// The line of the largest free block.
    LargestFree,
    /// The dot of the column's largest request.
    LargestRequest,
}

/// The pixel rows of each [`Part`] in one pixel column: the first row, and the first one below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ColumnRows {
    pub(super) band: (i32, i32),
    pub(super) line: (i32, i32),
    pub(super) releasable: (i32, i32),
    pub(super) stuck: (i32, i32),
    pub(super) largest_free: (i32, i32),
    /// (0, 0) without a request in the column.
    pub(super) largest_request: (i32, i32),
}

/// The "Fragmentation" view's picture ready to draw.
#[derive(Clone, Debug, Default)]
pub(super) struct FragmentationScene {
    /// The moments that the pixel columns show.
    pub axis: MomentAxis,
    /// The chart of fragmentation.
    pub upper: Rect,
    /// The chart of free bytes.
    pub lower: Rect,
    /// The chart of the largest free block and the largest request.
    pub requests: Rect,
    pub(super) columns: Vec<FragmentationColumn>,
    pub(super) rows: Vec<ColumnRows>,
    pub(super) labels: Vec<AxisLabel>,
    /// Pixel rows of the threshold's line (first, and the first one below), and its text: `80%`.
    pub(super) threshold: ((i32, i32), String),
    /// Pixel at which fragmentation first exceeds the threshold; `None` if the chart does not show
    /// it.
    pub(super) crossing: Option<(i32, i32)>,
    pub(super) notice: &'static str,
    pub(super) scale: f32,
}

/// Returns true if the pixel rows from `rows.0` up to, but not including, `rows.1` contain `y`.
fn contains(rows: (i32, i32), y: i32) -> bool {
    (rows.0..rows.1).contains(&y)
}

impl FragmentationScene {
    /// Computes the picture of `size` pixels (width, height) with `scale` pixels per unit. The axis
    /// in `content` must have as many columns as a chart of this size.
    #[must_use]
    pub(super) fn new(content: FragmentationContent, size: (u32, u32), scale: f32) -> Self {
        let (x0, x1) = chart_columns(size.0, scale);
        let title = px(TITLE, scale);
        let height = size.1.min(Bitmap::MAX_SIDE) as i32;
        let available = (height - 3 * title - px(TIMES, scale)).max(3);
        let part = |part: f32| ((available as f32 * part) as i32).max(1);
        let (upper_height, request_height) = (part(PARTS.0), part(PARTS.1));
        let upper = Rect::new(x0, title, x1, title + upper_height);
        let lower_top = upper.y1 + title;
        let lower = Rect::new(x0, lower_top, x1, lower_top + (available - upper_height - request_height).max(1));
        let requests = Rect { y0: lower.y1 + title, y1: lower.y1 + title + request_height, ..lower };
        let FragmentationContent { axis, columns, threshold, crossing, notice } = content;
        let most_free = columns.iter().map(|column| column.free.total).max().unwrap_or(0);
        let most_requested = columns.iter().filter_map(|column| column.largest_request_bytes).max().unwrap_or(0);
        let largest_free = columns.iter().map(|column| column.free.largest).max().unwrap_or(0);
        let highest = largest_free.max(most_requested.min(largest_free.saturating_mul(MOST_ABOVE_FREE)));
        // Each chart has its own scale: the largest free block may be tiny against all free bytes.
        let tops = [(most_free, 20), (highest, 10)].map(|(most, least)| {
            let most = most.max(1 << least);
            most.saturating_add(most / 16)
        });
        let mut scene = Self { axis, upper, lower, requests, scale, notice, ..Self::default() };
        scene.rows = scene.column_rows(&columns, tops);
        scene.labels = scene.axis_labels(tops);
        let line = scene.percent_rows(threshold);
        scene.threshold = (line, format!("{:.0}%", threshold * 100.0));
        scene.crossing =
            crossing.and_then(|(moment, value)| Some((scene.axis.x(moment)?, scene.percent_rows(value).0)));
        scene.columns = columns;
        scene
    }

    /// Returns the width of thin lines in pixels: one unit, at least one pixel.
    pub(super) fn stroke(&self) -> i32 {
        px(1.0, self.scale).max(1)
    }

    /// Returns the pixel rows (first, and the first one below) of a thin horizontal line at a
    /// fragmentation from 0 to 1 in the upper chart.
    fn percent_rows(&self, fragmentation: f64) -> (i32, i32) {
        let stroke = self.stroke();
        let room = f64::from((self.upper.height() - stroke).max(0));
        let y = self.upper.y0 + ((1.0 - fragmentation.clamp(0.0, 1.0)) * room).round() as i32;
        (y, (y + stroke).min(self.upper.y1))
    }

    /// Returns the height of `bytes` in pixel rows on a chart whose axis ends at `top_bytes`: at
    /// least one row, unless `bytes` is 0.
    fn byte_rows(chart: Rect, bytes: u64, top_bytes: u64) -> i32 {
        let rows = (bytes as f64 / top_bytes.max(1) as f64 * f64::from(chart.height())).round() as i32;
        rows.clamp(i32::from(bytes > 0), chart.height())
    }

    /// Returns the pixel rows of every column. The last argument is the bytes at the upper ends of
    /// the axes: of the chart of free bytes, and of the chart of requests.
    fn column_rows(&self, columns: &[FragmentationColumn], [top_free, top_request]: [u64; 2]) -> Vec<ColumnRows> {
        let (stroke, lower, requests) = (self.stroke(), self.lower, self.requests);
        let dot = px(2.0, self.scale).max(2);
        // Extends a column's line up or down to the value of the column before.
        let join = |line: (i32, i32), before: Option<(i32, i32)>| match before {
            Some((top, _)) if top > line.1 => (line.0, top),
            Some((_, bottom)) if bottom < line.0 => (bottom, line.1),
            _ => line,
        };
        let (mut line_before, mut largest_before) = (None, None);
        let mut rows = Vec::with_capacity(columns.len());
        for column in columns {
            let value = self.percent_rows(column.fragmentation);
            let highest = self.percent_rows(column.max_fragmentation).0;
            let lowest = self.percent_rows(column.min_fragmentation).1;
            let stuck = lower.y1 - Self::byte_rows(lower, column.stuck_bytes, top_free);
            let free = (lower.y1 - Self::byte_rows(lower, column.free.total, top_free)).min(stuck);
            let y = requests.y1 - Self::byte_rows(requests, column.free.largest, top_request);
            let largest = (y.min(requests.y1 - stroke), y.min(requests.y1 - stroke) + stroke);
            let request = column.largest_request_bytes.filter(|&bytes| bytes > 0).map(|bytes| {
                let y = requests.y1 - Self::byte_rows(requests, bytes, top_request) - dot / 2;
                let y = y.clamp(requests.y0, requests.y1 - 1);
                (y, (y + dot).min(requests.y1))
            });
            rows.push(ColumnRows {
                band: (highest, lowest),
                line: join(value, line_before),
                releasable: (free, stuck),
                stuck: (stuck, lower.y1),
                largest_free: join(largest, largest_before),
                largest_request: request.unwrap_or_default(),
            });
            (line_before, largest_before) = (Some(value), Some(largest));
        }
        rows
    }

    /// Returns the labels of the vertical axes of all charts. The argument is the bytes at the
    /// upper ends of the axes: of the chart of free bytes, and of the chart of requests.
    fn axis_labels(&self, [top_free, top_request]: [u64; 2]) -> Vec<AxisLabel> {
        let distance = px(AXIS_DISTANCE, self.scale).max(1);
        let step = if self.upper.height() >= 4 * distance { 25 } else { 50 };
        let percent = (0..=100u32).step_by(step).map(|percent| AxisLabel {
            text: format!("{percent}%"),
            y: self.percent_rows(f64::from(percent) / 100.0).0,
            has_line: percent > 0,
        });
        let mut labels: Vec<AxisLabel> = percent.collect();
        for (chart, top_bytes) in [(self.lower, top_free), (self.requests, top_request)] {
            let max_labels = (chart.height() / distance).max(1) as u64;
            let step = units::binary_step(top_bytes, max_labels);
            for index in 0..=(top_bytes / step.max(1)).min(max_labels) {
                let bytes = index.saturating_mul(step);
                let rows = (bytes as f64 / top_bytes as f64 * f64::from(chart.height())).round() as i32;
                let y = chart.y1 - rows - i32::from(index == 0);
                labels.push(AxisLabel { text: units::axis_size(bytes), y, has_line: index > 0 });
            }
        }
        labels
    }

    /// Returns the first pixel row of the upper chart, and the first one below the lowest chart.
    #[must_use]
    pub(super) fn chart_rows(&self) -> (i32, i32) {
        (self.upper.y0, self.requests.y1)
    }

    /// Returns the part that pixel (`x`, `y`) shows; `None` outside of the charts. Ignores the mark
    /// of the first crossing.
    #[must_use]
    pub(super) fn hit(&self, (x, y): (i32, i32)) -> Option<Part> {
        let index = self.axis.index(x)?;
        let rows = self.rows.get(index)?;
        if self.upper.contains(x, y) {
            let dash = px(4.0, self.scale).max(1);
            let is_dash = contains(self.threshold.0, y) && (x - self.upper.x0) / dash % 2 == 0;
            return Some(match () {
                () if is_dash => Part::Threshold,
                () if contains(rows.line, y) => Part::Fragmentation,
                () if contains(rows.band, y) => Part::Band,
                () => Part::Background,
            });
        }
        if self.lower.contains(x, y) {
            return Some(match () {
                () if contains(rows.releasable, y) => Part::Releasable,
                () if contains(rows.stuck, y) => Part::Stuck,
                () => Part::Background,
            });
        }
        if !self.requests.contains(x, y) {
            return None;
        }
        let dot = px(2.0, self.scale).max(2) as usize;
        let near = &self.rows[(index + 1).saturating_sub(dot)..=index];
        Some(match () {
            () if near.iter().any(|rows| contains(rows.largest_request, y)) => Part::LargestRequest,
            () if contains(rows.largest_free, y) => Part::LargestFree,
            () => Part::Background,
        })
    }

    /// Returns the moment (event number) at the end of the column at `x`, and its values as lines
    /// of text; `None` outside of the charts.
    #[must_use]
    pub(super) fn values(&self, x: i32) -> Option<(u64, Vec<String>)> {
        let column = self.columns.get(self.axis.index(x)?)?;
        let [value, least, most] = [column.fragmentation, column.min_fragmentation, column.max_fragmentation]
            .map(|share| Percent(share).to_string());
        let mut fragmentation = format!("fragmentation {value}");
        if least != most {
            fragmentation += &format!(" ({least} to {most} in this column)");
        }
        let mut lines = vec![fragmentation];
        lines.push(format!(
            "free {} in {}",
            ByteSize(column.free.total),
            Count(column.free.blocks).of("block", "blocks")
        ));
        lines.push(format!("releasable {}, stuck {}", ByteSize(column.releasable_bytes), ByteSize(column.stuck_bytes)));
        lines.push(format!("largest free block {}", ByteSize(column.free.largest)));
        lines.extend(
            column
                .largest_request_bytes
                .filter(|&bytes| bytes > 0)
                .map(|bytes| format!("largest request {}", ByteSize(bytes))),
        );
        lines.push(format!("rounding waste {}", ByteSize(column.rounding_waste_bytes)));
        Some((column.moment, lines))
    }
}
