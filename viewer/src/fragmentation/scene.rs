//! Computes the texts and positions of the picture, without colors.

use vramscope_insight::pools::FragmentationColumn;
use vramscope_trace::{ByteSize, Count, Percent};

use crate::bitmap::{Bitmap, Rect};
use crate::picture::{MomentAxis, chart_columns, px};
use crate::units;

/// Font size of all labels, in units (pixels at scale 1).
pub(super) const TEXT: f32 = 11.0;
/// Height above each chart, for its title, in units (pixels at scale 1).
const TITLE: f32 = 21.0;
/// Height below the lower chart, for the times, in units (pixels at scale 1).
const TIMES: f32 = 18.0;
/// Parts of the charts' height that the upper one and the one of requests have.
const PARTS: (f32, f32) = (0.36, 0.28);
/// Minimum distance between labels of the vertical axes, in units (pixels at scale 1).
const AXIS_DISTANCE: f32 = 26.0;
/// How many times the largest free block the axis of requests shows at most. Larger requests are
/// drawn at its upper end.
const MOST_ABOVE_FREE: u64 = 3;

/// The inputs of the picture.
#[derive(Clone, Debug, Default)]
pub struct FragmentationContent {
    /// The moments of the columns.
    pub axis: MomentAxis,
    /// The values of the columns.
    pub columns: Vec<FragmentationColumn>,
    /// The fragmentation to mark, 0 to 1.
    pub threshold: f64,
    /// The moment at which fragmentation first exceeds it, and its value then, if that is known.
    pub crossing: Option<(u64, f64)>,
    /// Text in the middle of a picture without values.
    pub notice: &'static str,
}

/// The object at a pixel of the charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Nothing.
    Background,
    /// The dashed line of the fragmentation to mark.
    Threshold,
    /// The fragmentation at the column's end.
    Fragmentation,
    /// From the lowest to the highest fragmentation in the column.
    Band,
    /// Free bytes beside live blocks.
    Stuck,
    /// Free bytes that could be released.
    Releasable,
    /// The largest free block.
    LargestFree,
    /// The largest request.
    LargestRequest,
}

/// A label of a vertical axis: its text, and its distance in pixels from the picture's upper edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AxisLabel {
    pub(super) text: String,
    pub(super) y: i32,
    /// Whether a grid line belongs to it.
    pub(super) has_line: bool,
}

/// The pixel rows of everything in one column: each the first row, and the first one below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ColumnRows {
    pub(super) band: (i32, i32),
    pub(super) line: (i32, i32),
    pub(super) releasable: (i32, i32),
    pub(super) stuck: (i32, i32),
    pub(super) largest_free: (i32, i32),
    /// Empty without a request.
    pub(super) largest_request: (i32, i32),
}

/// The picture ready to draw.
#[derive(Clone, Debug, Default)]
pub struct FragmentationScene {
    /// The moments of the columns.
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
    /// Rows of the line of the fragmentation to mark, and its text.
    pub(super) threshold: ((i32, i32), String),
    /// Where fragmentation first exceeds it.
    pub(super) crossing: Option<(i32, i32)>,
    pub(super) notice: &'static str,
    pub(super) scale: f32,
}

/// Returns true if a range of pixel rows contains `y`.
fn contains(rows: (i32, i32), y: i32) -> bool {
    (rows.0..rows.1).contains(&y)
}

impl FragmentationScene {
    /// Computes the picture of `size` pixels with `scale` pixels per unit. The axis must have been
    /// made for this size.
    #[must_use]
    pub fn new(content: FragmentationContent, size: (u32, u32), scale: f32) -> Self {
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

    /// Returns the pixel rows of a horizontal line at a fragmentation.
    fn percent_rows(&self, fragmentation: f64) -> (i32, i32) {
        let stroke = self.stroke();
        let room = f64::from((self.upper.height() - stroke).max(0));
        let y = self.upper.y0 + ((1.0 - fragmentation.clamp(0.0, 1.0)) * room).round() as i32;
        (y, (y + stroke).min(self.upper.y1))
    }

    /// Returns the number of pixel rows of `bytes` on a chart's axis that ends at `top_bytes`: at
    /// least one, unless there are none.
    fn byte_rows(chart: Rect, bytes: u64, top_bytes: u64) -> i32 {
        let rows = (bytes as f64 / top_bytes.max(1) as f64 * f64::from(chart.height())).round() as i32;
        rows.clamp(i32::from(bytes > 0), chart.height())
    }

    /// Computes the pixel rows of every column.
    fn column_rows(&self, columns: &[FragmentationColumn], [top_free, top_request]: [u64; 2]) -> Vec<ColumnRows> {
        let (stroke, lower, requests) = (self.stroke(), self.lower, self.requests);
        let dot = px(2.0, self.scale).max(2);
        // A line joins the value of the column before.
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

    /// Returns the labels of all vertical axes.
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

    /// Returns the first pixel row of all charts, and the first one below them.
    #[must_use]
    pub fn chart_rows(&self) -> (i32, i32) {
        (self.upper.y0, self.requests.y1)
    }

    /// Returns the object at pixel (`x`, `y`), apart from grid lines, labels and the mark of the
    /// first crossing; `None` outside of the charts.
    #[must_use]
    pub fn hit(&self, (x, y): (i32, i32)) -> Option<Part> {
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

    /// Returns the values of the column at `x`: its moment, and lines of text after one for the
    /// time; `None` outside of the charts.
    #[must_use]
    pub fn values(&self, x: i32) -> Option<(u64, Vec<String>)> {
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
        if let Some(bytes) = column.largest_request_bytes.filter(|&bytes| bytes > 0) {
            lines.push(format!("largest request {}", ByteSize(bytes)));
        }
        lines.push(format!("rounding waste {}", ByteSize(column.rounding_waste_bytes)));
        Some((column.moment, lines))
    }
}
