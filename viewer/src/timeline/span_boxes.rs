//! The named intervals above the chart: boxes with names, and their density where they are narrow.

use vramscope_insight::spans::Span;
use vramscope_trace::{Count, StringId};

use super::content::Content;
use super::geometry::{Geometry, SPAN_ROW, TEXT};
use super::measure::{Measure, Tag};
use super::scale::TimedMoment;
use super::x_axis::XAxis;
use crate::frame::Rect;

/// Width in units below which a span counts as narrow, and the least distance of narrow ones that
/// are drawn one by one.
const NARROW: f32 = 3.0;
/// Least number of letters of a shortened name: fewer are of no use.
const MIN_LETTERS: usize = 4;
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
    /// What stretches of spans without room for their names contain: `train_step ×120`.
    pub(super) labels: Vec<Tag>,
}

/// Width in units between two spans without names from which they do not share a label.
const RUN_GAP: f32 = 48.0;
/// Most different names that are counted in a stretch of spans.
const MAX_NAMES: usize = 16;

/// A stretch of a row in which spans have no room for their names.
#[derive(Default)]
struct Run<'a> {
    x0: i32,
    x1: i32,
    count: u64,
    /// Names without the number at their end, each with the first span's whole name and the number
    /// of spans.
    names: Vec<(&'a str, StringId, u64)>,
}

impl<'a> Run<'a> {
    /// Adds a span.
    fn add(&mut self, (x0, x1): (i32, i32), id: StringId, name: impl FnOnce() -> &'a str) {
        if self.count == 0 {
            self.x0 = x0;
        }
        self.x1 = self.x1.max(x1);
        self.count += 1;
        if let Some((.., count)) = self.names.iter_mut().find(|(_, known, _)| *known == id) {
            *count += 1;
            return;
        }
        let stem = name().trim_end_matches(|letter: char| letter.is_ascii_digit());
        let stem = stem.trim_end_matches(['#', ' ', '_', '-', '.', ':']);
        if let Some((.., count)) = self.names.iter_mut().find(|(known, ..)| *known == stem) {
            *count += 1;
        } else if self.names.len() < MAX_NAMES {
            self.names.push((stem, id, 1));
        }
    }

    /// Ends the stretch and returns its label, if there is room for one.
    fn finish(&mut self, measure: &Measure, geometry: &Geometry, row: usize) -> Option<Tag> {
        let run = std::mem::take(self);
        let (name, _, most) = run.names.iter().max_by_key(|(.., count)| *count)?;
        let count = match run.count {
            1 => String::new(),
            count if count == *most => format!(" ×{}", Count(count)),
            count => format!(" ×{} of {}", Count(*most), Count(count)),
        };
        let size = (TEXT - 1.0) * measure.scale;
        let width = (run.x1 - run.x0 - measure.px(10.0)) as f32 - measure.typesetter.width(&count, size);
        let name = measure.typesetter.fit(name, size, width.max(0.0));
        if name.chars().count() < MIN_LETTERS && name.ends_with('…') || name.is_empty() {
            return None;
        }
        let text = name + &count;
        let rect = row_rect(measure, geometry, row, run.x0, run.x1);
        let width = measure.text_width(&text, TEXT - 0.5, 8.0);
        let x0 = ((rect.x0 + rect.x1 - width) / 2).max(rect.x0);
        Some(Tag { rect: Rect { x0, x1: x0 + width, ..rect }, text })
    }
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
    let mut runs: Vec<Run> = (0..rows).map(|_| Run::default()).collect();
    let run_gap = measure.px(RUN_GAP);
    let spans = content.marks.spans_on(content.recording.info(), content.device);
    for (index, span) in spans.enumerate() {
        let [from, to] = ends_of(span, content).map(|at| axis.scale().position(at));
        if from > range.end || to < range.start {
            continue;
        }
        let row = span.depth.min(rows - 1);
        let x0 = axis.x_of(from).max(geometry.plot.x0).min(geometry.plot.x1 - 1);
        let x1 = axis.x_of(to).min(geometry.plot.x1);
        let (cluster, run) = (&mut clusters[row], &mut runs[row]);
        let name = || content.recording.definitions().string(span.name);
        if x0.saturating_sub(run.x1) > run_gap {
            result.labels.extend(run.finish(measure, geometry, row));
        }
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
            run.add((x0, x1.max(x0 + least_width)), span.name, name);
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
        let full = name();
        let mut name = measure.typesetter.fit(full, size, max_width);
        if name.chars().count() < MIN_LETTERS && name.ends_with('…') {
            name.clear();
            run.add((x0, x1), span.name, || full);
        } else {
            result.labels.extend(run.finish(measure, geometry, row));
        }
        result.boxes.push(SpanBox { rect, is_alternate: !index.is_multiple_of(2), name });
    }
    for (row, cluster) in clusters.iter_mut().enumerate() {
        densest = densest.max(result.finish(cluster, measure, geometry, row));
    }
    for (row, run) in runs.iter_mut().enumerate() {
        result.labels.extend(run.finish(measure, geometry, row));
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
