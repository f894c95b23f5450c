//! The named intervals above the chart: boxes with names, and their density where they are narrow.

use vramscope_insight::spans::Span;

use super::content::Content;
use super::geometry::{Geometry, SPAN_ROW, TEXT};
use super::measure::Measure;
use super::scale::TimedMoment;
use super::x_axis::XAxis;
use crate::frame::Rect;

/// Width in units below which a span counts as narrow, and the least distance of narrow ones that
/// are drawn one by one.
const NARROW: f32 = 3.0;
/// Number of narrow spans close together from which their density is drawn instead.
const MIN_DENSE: usize = 4;

/// The rectangle of a named interval above the chart, with its shortened name.
#[derive(Clone, Debug)]
pub(super) struct SpanBox {
    pub(super) rect: Rect,
    /// Whether it has the second of the two alternating colors.
    pub(super) is_alternate: bool,
    /// The shortened name; empty if too little of it would fit.
    pub(super) name: String,
}

/// A pixel column in which several narrow spans begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DenseColumn {
    pub(super) rect: Rect,
    /// Number of spans that begin here, as a share of the most in any column.
    pub(super) density: f32,
}

/// The named intervals in view.
#[derive(Clone, Debug, Default)]
pub(super) struct SpanBoxes {
    pub(super) boxes: Vec<SpanBox>,
    pub(super) dense: Vec<DenseColumn>,
}

/// Returns the moments and times of a span's begin and end; an open span lasts until the end of the
/// recording.
pub(super) fn ends_of(span: &Span, content: &Content) -> [TimedMoment; 2] {
    let recording = content.recording;
    let from = TimedMoment { event: span.from_event, time_ns: span.from_ns };
    let event = span.to_event.unwrap_or_else(|| recording.end_event());
    [from, TimedMoment { event, time_ns: span.to_ns.unwrap_or_else(|| recording.end_ns()) }]
}

/// A row of narrow spans that are close together, from left to right.
#[derive(Default)]
struct Cluster {
    /// Column, width in pixels, position in the order of spans, and number of spans that begin
    /// here.
    columns: Vec<(i32, i32, usize, usize)>,
    count: usize,
}

/// Returns the rectangles and names of the named intervals that the device's process recorded in
/// view.
pub(super) fn span_boxes(measure: &Measure, geometry: &Geometry, axis: &XAxis, content: &Content) -> SpanBoxes {
    let rows = geometry.span_row_count;
    let mut result = SpanBoxes::default();
    if rows == 0 {
        return result;
    }
    let narrow = measure.px(NARROW).max(2);
    let least_width = measure.px(1.5).max(1);
    let range = axis.range();
    let mut clusters: Vec<Cluster> = (0..rows).map(|_| Cluster::default()).collect();
    // Right edge of the last box of each row.
    let mut row_ends = vec![i32::MIN; rows];
    let mut densest = 1;
    let spans = content.marks.spans_on(content.recording.info(), content.device);
    for (index, span) in spans.enumerate() {
        let [from, to] = ends_of(span, content).map(|at| axis.scale().position(at));
        if from > range.end || to < range.start {
            continue;
        }
        let row = span.depth.min(rows - 1);
        let x0 = axis.x_of(from).max(geometry.plot.x0).min(geometry.plot.x1 - 1);
        let x1 = axis.x_of(to).min(geometry.plot.x1);
        let cluster = &mut clusters[row];
        if x1 - x0 < narrow {
            let last = cluster.columns.last().map_or(i32::MIN, |&(x, ..)| x);
            if x0.saturating_sub(last) > narrow {
                densest = densest.max(result.finish(cluster, measure, geometry, row));
            }
            match cluster.columns.last_mut().filter(|(x, ..)| *x == x0) {
                Some((.., count)) => *count += 1,
                None => cluster.columns.push((x0, (x1 - x0).max(least_width), index, 1)),
            }
            cluster.count += 1;
            continue;
        }
        densest = densest.max(result.finish(cluster, measure, geometry, row));
        if x1 <= row_ends[row] {
            continue;
        }
        row_ends[row] = x1;
        let rect = row_rect(measure, geometry, row, x0, x1);
        let max_width = (rect.width() - measure.px(8.0)) as f32;
        let size = (TEXT - 1.0) * measure.scale;
        let mut name = measure.typesetter.fit(content.recording.definitions().string(span.name), size, max_width);
        // One or two letters and an ellipsis are of no use.
        if name.chars().count() <= 2 && name.ends_with('…') {
            name.clear();
        }
        result.boxes.push(SpanBox { rect, is_alternate: !index.is_multiple_of(2), name });
    }
    for (row, cluster) in clusters.iter_mut().enumerate() {
        densest = densest.max(result.finish(cluster, measure, geometry, row));
    }
    // So far, densities are numbers of spans.
    result.dense.iter_mut().for_each(|column| column.density /= densest as f32);
    result
}

/// Returns the rectangle of a span in a row, with a gap to the next one unless it is very narrow.
fn row_rect(measure: &Measure, geometry: &Geometry, row: usize, x0: i32, x1: i32) -> Rect {
    let height = measure.px(SPAN_ROW);
    let y0 = geometry.span_rows.y0 + height * row as i32;
    Rect::new(x0, y0, x1 - i32::from(x1 - x0 > 2), y0 + height - measure.stroke())
}

impl SpanBoxes {
    /// Adds the narrow spans of a row: each as a box if they are few, else their density. Returns
    /// the most spans that begin in one column.
    fn finish(&mut self, cluster: &mut Cluster, measure: &Measure, geometry: &Geometry, row: usize) -> usize {
        let Cluster { columns, count } = std::mem::take(cluster);
        let rect = |x0: i32, width: i32| row_rect(measure, geometry, row, x0, x0 + width);
        if count < MIN_DENSE {
            self.boxes.extend(columns.into_iter().map(|(x, width, index, _)| SpanBox {
                rect: rect(x, width),
                is_alternate: !index.is_multiple_of(2),
                name: String::new(),
            }));
            return 1;
        }
        let most = columns.iter().map(|&(.., count)| count).max().unwrap_or(1);
        // Each column reaches to the next one, so that the bar has no holes.
        let ends = columns.iter().skip(1).map(|&(x, ..)| x).chain(columns.last().map(|&(x, width, ..)| x + width));
        let dense = columns
            .iter()
            .zip(ends)
            .map(|(&(x, .., count), end)| DenseColumn { rect: Rect { x1: end, ..rect(x, 1) }, density: count as f32 });
        self.dense.extend(dense);
        most
    }
}
