//! Computes what the picture shows and where: lines, labels and heatmaps, without colors.

use vramscope_trace::{ByteSize, Count, CounterColumn, Definitions, DeviceId, DeviceState, DurationNs, Recording};

use super::NAMES;
use crate::frame::{Frame, Rect};
use crate::heatmap::{self, HeatmapScene, Layout, View};
use crate::picture::{chart_columns, px};
use crate::text::Typesetter;
use crate::units::{axis_moment, axis_size, binary_step, decimal_step};

/// Font size of the labels, in units (pixels at scale 1).
pub(super) const TEXT: f32 = 11.0;
/// Height of a row of the chart's legend, in units.
const LEGEND_ROW: f32 = 16.0;
/// Width of the piece of a line in the chart's legend with the space after it, in units.
pub(super) const LEGEND_LINE: f32 = 26.0;
/// Space after an entry of the chart's legend, in units.
const LEGEND_GAP: f32 = 18.0;
/// Least height of a picture with heatmaps, in units.
const LEAST_WITH_HEATMAPS: f32 = 270.0;
/// The chart's share of the height of a picture with heatmaps.
const CHART_SHARE: f32 = 0.48;
/// Least distance between two labels of the time axis, in units.
const TIME_LABEL_DISTANCE: f32 = 90.0;
/// Least distance between two labels of the bytes axis, in units.
const BYTES_LABEL_DISTANCE: f32 = 30.0;

/// One side of a comparison.
pub struct SideContent<'a> {
    /// The recording.
    pub recording: &'a Recording,
    /// A number that tells the recording from the other side's.
    pub recording_id: u64,
    /// The device.
    pub device: DeviceId,
    /// The device's memory at the moment.
    pub state: &'a DeviceState,
    /// The moment's time in nanoseconds.
    pub time_ns: u64,
    /// The time that is drawn at the same place as that of the other side, in nanoseconds.
    pub origin_ns: u64,
}

impl SideContent<'_> {
    /// Returns the start and the end of the recording relative to the side's origin, in
    /// nanoseconds.
    fn range(&self) -> (i128, i128) {
        let relative = |time_ns: u64| i128::from(time_ns) - i128::from(self.origin_ns);
        let (start, end) = (self.recording.start_ns(), self.recording.end_ns());
        (relative(start), relative(end.max(start.saturating_add(1))))
    }
}

/// The two sides, A and B.
pub struct Content<'a> {
    /// The sides.
    pub sides: [SideContent<'a>; 2],
    /// The part of A's time to show, in nanoseconds of its recording; `None` for the whole length
    /// of both sides.
    pub range: Option<(u64, u64)>,
}

impl Content<'_> {
    /// Returns true if both sides are of one device of one recording, so that one pair of lines
    /// shows both.
    fn has_one_device(&self) -> bool {
        let [a, b] = &self.sides;
        a.recording_id == b.recording_id && a.device == b.device
    }
}

/// What the counters of a side are computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ColumnsKey {
    recording_id: u64,
    device: DeviceId,
    end_event: u64,
    range_ns: (u64, u64),
    width: usize,
}

/// The counters of both sides over time, kept between frames.
#[derive(Default)]
pub struct ColumnsCache([Option<(ColumnsKey, Vec<CounterColumn>)>; 2]);

impl ColumnsCache {
    /// Returns the counters of a side in `width` equal parts of a range of its time.
    fn columns(
        &mut self,
        index: usize,
        side: &SideContent<'_>,
        range_ns: (u64, u64),
        width: usize,
    ) -> &[CounterColumn] {
        let key = ColumnsKey {
            recording_id: side.recording_id,
            device: side.device,
            end_event: side.recording.end_event(),
            range_ns,
            width,
        };
        let kept = self.0[index].take().filter(|(known, _)| *known == key);
        let (_, columns) = self.0[index]
            .insert(kept.unwrap_or_else(|| (key, side.recording.columns(side.device, range_ns.0, range_ns.1, width))));
        columns
    }
}

/// A label and the pixel at which it begins (left) or its line is (axis).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Label {
    pub(super) x: i32,
    pub(super) y: i32,
    pub(super) text: String,
}

/// A line of the chart.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    /// 0 for A, 1 for B.
    pub(super) side: usize,
    /// Whether it is that of the reserved bytes.
    pub(super) is_reserved: bool,
    /// First pixel column.
    pub(super) x0: i32,
    /// Pixel row in each column.
    pub(super) rows: Vec<i32>,
    /// Bytes in each column.
    values: Vec<u64>,
    /// Where its entry in the chart's legend begins, and the entry's text.
    pub(super) label: Label,
}

impl Line {
    /// Returns the name of its counter.
    fn counter(&self) -> &'static str {
        counter_name(self.is_reserved)
    }
}

/// Returns the name of a line's counter.
const fn counter_name(is_reserved: bool) -> &'static str {
    if is_reserved { "reserved" } else { "allocated" }
}

/// A heatmap, its title, and its part of the picture.
pub(super) struct Map {
    pub(super) area: Rect,
    pub(super) title: Label,
    pub(super) scene: HeatmapScene,
}

/// The picture ready to draw: positions and texts, without colors.
pub struct ComparisonScene {
    pub(super) scale: f32,
    pub(super) plot: Rect,
    pub(super) lines: Vec<Line>,
    pub(super) times: Vec<Label>,
    pub(super) sizes: Vec<Label>,
    /// Pixel columns of the moments of A and B; `None` outside of the chart.
    pub(super) moments: [Option<i32>; 2],
    /// Empty if the picture is too low.
    pub(super) maps: Vec<Map>,
    axis: TimeAxis,
    has_one_device: bool,
}

/// The range of times on the chart, relative to the sides' origins, and the chart's pixels.
#[derive(Clone, Copy, Debug)]
struct TimeAxis {
    from: i128,
    to: i128,
    plot: Rect,
}

impl TimeAxis {
    /// Creates an axis from the earlier start of both sides to the later end.
    fn new(content: &Content<'_>, plot: Rect) -> Self {
        let [a, b] = content.sides.each_ref().map(SideContent::range);
        let origin = i128::from(content.sides[0].origin_ns);
        let (from, to) = match content.range {
            Some((from, to)) if from < to => (i128::from(from) - origin, i128::from(to) - origin),
            _ => (a.0.min(b.0), a.1.max(b.1)),
        };
        Self { from, to, plot }
    }

    /// Returns the pixel column of a relative time.
    fn x(&self, time: i128) -> i32 {
        let ratio = (time - self.from) as f64 / (self.to - self.from) as f64;
        self.plot.x0 + (ratio.clamp(0.0, 1.0) * f64::from(self.plot.width())).round() as i32
    }

    /// Returns the labels of the axis.
    fn labels(&self, scale: f32, typesetter: &Typesetter) -> Vec<Label> {
        let most = (self.plot.width() / px(TIME_LABEL_DISTANCE, scale).max(1)).max(1) as u64;
        let length = u64::try_from(self.to - self.from).unwrap_or(u64::MAX);
        let step = i128::from(decimal_step(length, most));
        let furthest = u64::try_from(self.from.abs().max(self.to.abs())).unwrap_or(u64::MAX);
        let first = self.from.div_euclid(step) + i128::from(self.from.rem_euclid(step) != 0);
        let mut labels = Vec::new();
        for index in first..=self.to.div_euclid(step) {
            let time = index * step;
            let distance = u64::try_from(time.unsigned_abs()).unwrap_or(u64::MAX);
            let sign = if time < 0 { "−" } else { "" };
            let text = format!("{sign}{}", axis_moment(distance, step as u64, furthest));
            let half = (typesetter.width(&text, TEXT * scale) / 2.0) as i32;
            let x = self.x(time);
            // The last label must not be cut off.
            if x + half <= self.plot.x1 + px(20.0, scale) {
                labels.push(Label { x, y: self.plot.y1, text });
            }
        }
        labels
    }
}

impl ComparisonScene {
    /// Computes the picture of `size` pixels with `scale` pixels per unit.
    #[must_use]
    pub fn new(
        content: &Content<'_>,
        columns: &mut ColumnsCache,
        size: (u32, u32),
        scale: f32,
        typesetter: &Typesetter,
    ) -> Self {
        let height = size.1.min(Frame::MAX_SIDE) as i32;
        let has_maps = height >= px(LEAST_WITH_HEATMAPS, scale);
        let chart_height = if has_maps { (height as f32 * CHART_SHARE) as i32 } else { height };
        let (x0, x1) = chart_columns(size.0, scale);
        // Below the legend, whose height follows from its texts, and the names of the moments.
        let mut plot = Rect::new(x0, 0, x1, (chart_height - px(20.0, scale)).max(1));
        let (drawn, legend_rows) = drawn_lines(content, columns, plot, scale, typesetter);
        plot.y0 = (px(LEGEND_ROW, scale) * legend_rows + px(20.0, scale)).min(plot.y1 - 1);
        let axis = TimeAxis::new(content, plot);
        let moments = content.sides.each_ref().map(|side| {
            let relative = i128::from(side.time_ns.max(side.recording.start_ns())) - i128::from(side.origin_ns);
            (axis.from..=axis.to).contains(&relative).then(|| axis.x(relative).min(plot.x1 - 1))
        });
        let mut scene = Self {
            scale,
            plot,
            lines: Vec::new(),
            times: axis.labels(scale, typesetter),
            sizes: Vec::new(),
            moments,
            maps: Vec::new(),
            axis,
            has_one_device: content.has_one_device(),
        };
        scene.add_lines(drawn);
        if has_maps {
            scene.add_maps(content, Rect::new(0, chart_height, size.0.min(Frame::MAX_SIDE) as i32, height), typesetter);
        }
        scene
    }

    /// Adds the lines and the axis of bytes.
    fn add_lines(&mut self, drawn: Vec<DrawnLine>) {
        let (plot, scale) = (self.plot, self.scale);
        let highest = drawn.iter().flat_map(|line| &line.values).copied().max().unwrap_or(0).max(1);
        let top = highest.saturating_add(highest / 16);
        let most = (plot.height() / px(BYTES_LABEL_DISTANCE, scale).max(1)).max(1) as u64;
        let step = binary_step(top, most);
        let y = |bytes: u64| plot.y1 - 1 - (bytes as f64 / top as f64 * f64::from(plot.height() - 1)) as i32;
        self.sizes = (0..=top / step)
            .map(|index| Label { x: plot.x0, y: y(index * step), text: axis_size(index * step) })
            .collect();
        self.lines = drawn
            .into_iter()
            .map(|DrawnLine { side, is_reserved, x0, values, label }| {
                let rows = values.iter().map(|&bytes| y(bytes)).collect();
                Line { side, is_reserved, x0, rows, values, label }
            })
            .collect();
    }

    /// Returns lines of text about a pixel of the chart: the time, and the bytes of both sides.
    /// None outside of the chart.
    #[must_use]
    pub fn values(&self, (x, y): (i32, i32)) -> Vec<String> {
        if !self.plot.contains(x, y) {
            return Vec::new();
        }
        let part = f64::from(x - self.plot.x0) / f64::from(self.plot.width());
        let time = self.axis.from + ((self.axis.to - self.axis.from) as f64 * part) as i128;
        let duration = DurationNs(u64::try_from(time.unsigned_abs()).unwrap_or(u64::MAX));
        let mut texts = vec![format!("{duration} {}", if time < 0 { "before" } else { "after the start" })];
        for (side, side_name) in NAMES.iter().enumerate() {
            let of_side = self.lines.iter().filter(|line| line.side == side);
            let parts: Vec<String> = of_side
                .filter_map(|line| {
                    let bytes = line.values.get(usize::try_from(x - line.x0).ok()?)?;
                    Some(format!("{} {}", ByteSize(*bytes), line.counter()))
                })
                .collect();
            if !parts.is_empty() {
                let name = if self.has_one_device { String::new() } else { format!("{side_name}: ") };
                texts.push(format!("{name}{}", parts.join(", ")));
            }
        }
        texts
    }

    /// Adds the heatmaps of both sides in an area of the picture.
    fn add_maps(&mut self, content: &Content<'_>, area: Rect, typesetter: &Typesetter) {
        let scale = self.scale;
        let (title_height, gap) = (px(18.0, scale), px(8.0, scale));
        let half = (area.width() - gap) / 2;
        let definitions = content.sides.each_ref().map(|side| side.recording.definitions());
        for (index, side) in content.sides.iter().enumerate() {
            let x0 = area.x0 + index as i32 * (half + gap);
            let map = Rect::new(x0, area.y0 + title_height, x0 + half, area.y1);
            if map.width() < px(60.0, scale) || map.height() < px(40.0, scale) {
                continue;
            }
            let text = format!(
                "{}: {} reserved in {}",
                NAMES[index],
                ByteSize(side.state.counters().reserved),
                Count(side.state.segments().len() as u64).of("segment", "segments")
            );
            let title = Label {
                x: map.x0 + px(24.0, scale),
                y: area.y0 + title_height / 2,
                text: typesetter.fit(&text, TEXT * scale, (half - px(24.0, scale)).max(1) as f32),
            };
            let scene = heatmap_scene(side.state, definitions[index], map, scale, typesetter);
            self.maps.push(Map { area: map, title, scene });
        }
    }
}

/// A line before the chart's height is known.
struct DrawnLine {
    side: usize,
    is_reserved: bool,
    /// First pixel column.
    x0: i32,
    /// Bytes in each column.
    values: Vec<u64>,
    label: Label,
}

/// Returns the lines of both sides on a chart with the columns of `plot`, with their entries in the
/// chart's legend, and the number of the legend's rows: one if all entries fit, else one for each
/// side.
fn drawn_lines(
    content: &Content<'_>,
    cache: &mut ColumnsCache,
    plot: Rect,
    scale: f32,
    typesetter: &Typesetter,
) -> (Vec<DrawnLine>, i32) {
    let axis = TimeAxis::new(content, plot);
    let has_one_device = content.has_one_device();
    let mut drawn: Vec<DrawnLine> = Vec::new();
    for index in if has_one_device { 1..2 } else { 0..2 } {
        let side = &content.sides[index];
        let (start, end) = side.range();
        let (from, to) = (start.clamp(axis.from, axis.to), end.clamp(axis.from, axis.to));
        let (x0, x1) = (axis.x(from), axis.x(to));
        let absolute = |time: i128| u64::try_from(time + i128::from(side.origin_ns)).unwrap_or(0);
        let range_ns = (absolute(from), absolute(to).max(absolute(from).saturating_add(1)));
        let width = usize::try_from(x1 - x0).unwrap_or(0);
        let columns = if from < to { cache.columns(index, side, range_ns, width.max(1)) } else { &[] };
        for is_reserved in [false, true] {
            let value = |column: &CounterColumn| {
                if is_reserved { column.max.reserved } else { column.max.allocated }
            };
            let values: Vec<u64> = columns.iter().map(value).collect();
            let most = ByteSize(values.iter().copied().max().unwrap_or(0));
            let name = if has_one_device { String::new() } else { format!("{} ", NAMES[index]) };
            let text = format!("{name}{} up to {most}", counter_name(is_reserved));
            drawn.push(DrawnLine { side: index, is_reserved, x0, values, label: Label { x: 0, y: 0, text } });
        }
    }
    let width = |line: &DrawnLine| {
        px(LEGEND_LINE + LEGEND_GAP, scale) + typesetter.width(&line.label.text, TEXT * scale).ceil() as i32
    };
    let is_one_row = drawn.iter().map(width).sum::<i32>() <= plot.width();
    let (mut x, mut row) = (plot.x0, 0);
    for (index, line) in drawn.iter_mut().enumerate() {
        if index == 2 && !is_one_row {
            (x, row) = (plot.x0, 1);
        }
        line.label.x = x;
        line.label.y = px(LEGEND_ROW, scale) * row + px(LEGEND_ROW, scale) / 2;
        x += width(line);
    }
    (drawn, row + 1)
}

/// Computes the heatmap of a device's memory in a part of the picture.
fn heatmap_scene(
    state: &DeviceState,
    definitions: &Definitions,
    area: Rect,
    scale: f32,
    typesetter: &Typesetter,
) -> HeatmapScene {
    let size = (area.width().max(1) as u32, area.height().max(1) as u32);
    let layout = Layout::new(state, size, scale, View::default());
    HeatmapScene::new(layout, size.0 as i32, heatmap::Content::new(state, definitions), typesetter)
}
