//! The chart of fragmentation over time, for the view and for reports.
//!
//! All charts have the timeline's left and right edges, so a pixel column shows equal moments in
//! all. Fragmentation is a line at its value at each column's end, on a band from its lowest to its
//! highest value. Below, the free bytes that are stuck beside live blocks and the releasable free
//! bytes (whole free segments) are stacked. At the bottom, to its own scale, the largest free block
//! is a line, and the largest request of each column a dot: a dot above the line could not be
//! served from free memory.
//!
//! [`vramscope_insight::pools`] computes the columns; a [`FragmentationScene`] adds positions and
//! texts, without colors.

mod draw;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;

use vramscope_draw::picture::{chart_columns, px};
use vramscope_draw::{Axis, Bitmap, MomentAxis, Rect};
use vramscope_insight::pools::FragmentationColumn;
use vramscope_trace::{ByteSize, Count, Percent};

/// The threshold of fragmentation, in percent, whose first crossing the chart marks unless the
/// user sets another.
pub const DEFAULT_PERCENT: u64 = 80;
/// Height above each chart, for its title, in units (pixels at scale 1).
const TITLE: f32 = 21.0;
/// Height below the lowest chart, for the times, in units (pixels at scale 1).
const TIMES: f32 = 18.0;
/// Shares of the charts' total height, from 0 to 1: of the chart of fragmentation, and of the chart
/// of requests. The chart of free bytes has the rest.
const PARTS: (f32, f32) = (0.36, 0.28);
/// Height above and below the chart of fragmentation in a picture of this chart alone, in units
/// (pixels at scale 1).
const MARGINS: (f32, f32) = (10.0, 20.0);
/// Minimum distance between labels of the vertical axes, in units (pixels at scale 1).
const AXIS_DISTANCE: f32 = 26.0;
/// Maximum length of the axis of requests, as a multiple of the largest free block. Larger requests
/// are drawn at the axis's upper end.
const MOST_ABOVE_FREE: u64 = 3;

/// The inputs of a [`FragmentationScene`].
#[derive(Clone, Debug, Default)]
pub struct FragmentationContent {
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
pub enum Part {
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
pub(crate) struct ColumnRows {
    pub(crate) band: (i32, i32),
    /// The highest row of the line in the column before, and in this column.
    pub(crate) line: (i32, i32),
    pub(crate) releasable: (i32, i32),
    pub(crate) stuck: (i32, i32),
    /// As for `line`.
    pub(crate) largest_free: (i32, i32),
    /// (0, 0) without a request in the column.
    pub(crate) largest_request: (i32, i32),
}

/// The picture of fragmentation over time, ready to draw.
#[derive(Clone, Debug, Default)]
pub struct FragmentationScene {
    /// The moments that the pixel columns show.
    pub(crate) axis: MomentAxis,
    /// The chart of fragmentation.
    pub(crate) upper: Rect,
    /// The chart of free bytes.
    pub(crate) lower: Rect,
    /// The chart of the largest free block and the largest request.
    pub(crate) requests: Rect,
    pub(crate) columns: Vec<FragmentationColumn>,
    pub(crate) rows: Vec<ColumnRows>,
    /// The vertical axes of the three charts: shares from 0 to 1, and bytes.
    pub(crate) value_axes: [Axis; 3],
    /// The threshold of fragmentation, from 0 to 1.
    pub(crate) threshold: f64,
    /// Pixel at which fragmentation first exceeds the threshold; `None` if the chart does not show
    /// it.
    pub(crate) crossing: Option<(i32, i32)>,
    pub(crate) notice: &'static str,
    pub(crate) scale: f32,
}

/// Returns true if the pixel rows from `rows.0` up to, but not including, `rows.1` contain `y`.
fn contains(rows: (i32, i32), y: i32) -> bool {
    (rows.0..rows.1).contains(&y)
}

impl FragmentationScene {
    /// Computes the picture of `size` pixels (width, height) with `scale` pixels per unit. The axis
    /// in `content` must have as many columns as a chart of this size.
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
        Self::with_charts(content, [upper, lower, requests], scale)
    }

    /// Computes a picture of the chart of fragmentation alone, without its title.
    pub fn without_bytes(content: FragmentationContent, size: (u32, u32), scale: f32) -> Self {
        let (x0, x1) = chart_columns(size.0, scale);
        let (top, height) = (px(MARGINS.0, scale), size.1.min(Bitmap::MAX_SIDE) as i32);
        let upper = Rect::new(x0, top, x1, (height - px(MARGINS.1, scale)).max(top + 1));
        let below = Rect { y0: upper.y1, ..upper };
        Self::with_charts(content, [upper, below, below], scale)
    }

    /// Computes a picture whose three charts are in the given rectangles; a chart without height is
    /// not drawn.
    fn with_charts(content: FragmentationContent, charts: [Rect; 3], scale: f32) -> Self {
        let [upper, lower, requests] = charts;
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
        let distance = px(AXIS_DISTANCE, scale).max(1);
        let step = if upper.height() >= 4 * distance { 25 } else { 50 };
        let percent = (0..=100u32).step_by(step).map(|percent| (f64::from(percent) / 100.0, format!("{percent}%")));
        let bytes = |chart: Rect, top: u64| Axis::bytes(&(0..top), (chart.height() / distance).max(1) as u64);
        let value_axes = [Axis::new(1.0, percent.collect()), bytes(lower, tops[0]), bytes(requests, tops[1])];
        let mut scene = Self { axis, upper, lower, requests, value_axes, threshold, scale, notice, ..Self::default() };
        scene.rows = scene.column_rows(&columns);
        let pixel = |(moment, value)| Some((scene.axis.x(moment)?, scene.value_axes[0].row(upper, value)));
        scene.crossing = crossing.and_then(pixel);
        scene.columns = columns;
        scene
    }

    /// Returns the width of thin lines in pixels: one unit, at least one pixel.
    pub fn stroke(&self) -> i32 {
        px(1.0, self.scale).max(1)
    }

    /// Returns the length in pixels of the threshold's dashes.
    pub fn dash(&self) -> i32 {
        px(4.0, self.scale).max(1)
    }

    /// Returns the size in pixels of the dots of the largest requests.
    pub fn dot(&self) -> i32 {
        px(2.0, self.scale).max(2)
    }

    /// Returns the pixel rows of every column.
    fn column_rows(&self, columns: &[FragmentationColumn]) -> Vec<ColumnRows> {
        let (upper, lower, requests) = (self.upper, self.lower, self.requests);
        let [percent, free_bytes, request_bytes] = &self.value_axes;
        let top = |bytes: u64| if bytes == 0 { lower.y1 } else { free_bytes.row(lower, bytes as f64) };
        let dot = self.dot();
        let mut rows: Vec<ColumnRows> = Vec::with_capacity(columns.len());
        for column in columns {
            let value = percent.row(upper, column.fragmentation);
            let lowest = percent.row(upper, column.min_fragmentation) + self.stroke();
            let stuck = top(column.stuck_bytes);
            let largest = request_bytes.row(requests, column.free.largest as f64);
            let request = column.largest_request_bytes.filter(|&bytes| bytes > 0).map(|bytes| {
                let y = request_bytes.row(requests, bytes as f64) - dot / 2;
                let y = y.min(requests.y1 - 1).max(requests.y0);
                (y, (y + dot).min(requests.y1))
            });
            let before = rows.last().map_or((value, largest), |before| (before.line.1, before.largest_free.1));
            rows.push(ColumnRows {
                band: (percent.row(upper, column.max_fragmentation), lowest.min(upper.y1)),
                line: (before.0, value),
                releasable: (top(column.free.total).min(stuck), stuck),
                stuck: (stuck, lower.y1),
                largest_free: (before.1, largest),
                largest_request: request.unwrap_or_default(),
            });
        }
        rows
    }

    /// Returns the first pixel row of the upper chart, and the first one below the lowest chart.
    pub fn chart_rows(&self) -> (i32, i32) {
        (self.upper.y0, self.requests.y1)
    }

    /// Returns the part that pixel (`x`, `y`) shows; `None` outside of the charts. Ignores the mark
    /// of the first crossing.
    pub fn hit(&self, (x, y): (i32, i32)) -> Option<Part> {
        let index = self.axis.index(x)?;
        let rows = self.rows.get(index)?;
        if self.upper.contains(x, y) {
            let threshold = self.value_axes[0].row(self.upper, self.threshold);
            let is_dash = contains((threshold, threshold + self.stroke()), y) && x / self.dash() % 2 == 0;
            return Some(match () {
                () if is_dash => Part::Threshold,
                () if self.is_on_line(index, y, |rows| rows.line) => Part::Fragmentation,
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
        let near = &self.rows[(index + 1).saturating_sub(self.dot() as usize)..=index];
        Some(match () {
            () if near.iter().any(|rows| contains(rows.largest_request, y)) => Part::LargestRequest,
            () if self.is_on_line(index, y, |rows| rows.largest_free) => Part::LargestFree,
            () => Part::Background,
        })
    }

    /// Returns true if a line is drawn in the pixel row `y` of the column `index`. `line` returns
    /// the line's highest row in the column before a column, and in the column itself.
    fn is_on_line(&self, index: usize, y: i32, line: impl Fn(&ColumnRows) -> (i32, i32)) -> bool {
        let stroke = self.stroke();
        // The line's vertical parts in the columns to the left may be more than a pixel wide.
        let first = (index + 1).saturating_sub(stroke as usize);
        self.rows[first..=index].iter().enumerate().any(|(column, rows)| {
            let (before, row) = line(rows);
            let below = if first + column == index { stroke } else { 1 };
            contains((before.min(row), before.max(row) + below), y)
        })
    }

    /// Returns the moment (event number) at the end of the column at `x`, and its values as lines
    /// of text; `None` outside of the charts.
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
