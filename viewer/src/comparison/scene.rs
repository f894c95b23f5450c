//! Computes the lines, labels and heatmaps of the picture and their positions, without colors.

use vramscope_trace::{ByteSize, Count, CounterColumn, Definitions, DeviceId, DeviceState, Recording};

use super::NAMES;
use super::axis::{Alignment, AxisUnit, Label, SharedAxis, TEXT};
use crate::bitmap::{Bitmap, Rect};
use crate::heatmap::{self, HeatmapScene, Layout, View};
use crate::picture::{chart_columns, px};
use crate::text::Typesetter;
use crate::units::{axis_size, binary_step};

/// Height of a row of the chart's legend, in units.
const LEGEND_ROW: f32 = 16.0;
/// Width of the piece of a line in the chart's legend with the space after it, in units.
pub(super) const LEGEND_LINE: f32 = 26.0;
/// Space after an entry of the chart's legend, in units.
const LEGEND_GAP: f32 = 18.0;
/// Minimum height of a picture with heatmaps, in units.
const LEAST_WITH_HEATMAPS: f32 = 265.0;
/// The chart's share of the height of a picture with heatmaps.
const CHART_SHARE: f32 = 0.5;
/// Minimum distance between two labels of the bytes axis, in units.
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
    /// Where its times are on the axis.
    pub alignment: &'a Alignment,
}

/// The two sides, A and B.
pub struct ComparisonContent<'a> {
    /// The sides.
    pub sides: [SideContent<'a>; 2],
    /// The unit of the axis.
    pub unit: AxisUnit,
    /// The part of A's time to show, in nanoseconds of its recording; `None` for the whole length
    /// of both sides.
    pub range: Option<(u64, u64)>,
}

impl ComparisonContent<'_> {
    /// Returns true if both sides are of one device of one recording, so that one pair of lines
    /// shows both.
    fn has_one_device(&self) -> bool {
        let [a, b] = &self.sides;
        a.recording_id == b.recording_id && a.device == b.device
    }
}

/// The inputs of the counters of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ColumnsKey {
    recording_id: u64,
    device: DeviceId,
    end_event: u64,
    unit: AxisUnit,
    positions: (i64, i64),
    /// First and last time, in nanoseconds.
    range_ns: (u64, u64),
    width: usize,
}

/// The counters of both sides over time, kept between frames.
#[derive(Default)]
pub struct ColumnsCache([Option<(ColumnsKey, Vec<CounterColumn>)>; 2]);

impl ColumnsCache {
    /// Returns the counters of a side in `width` equal parts between two positions of the axis.
    fn columns(
        &mut self,
        index: usize,
        side: &SideContent<'_>,
        unit: AxisUnit,
        positions: (i64, i64),
        width: usize,
    ) -> &[CounterColumn] {
        let (from_ns, to_ns) = (side.alignment.time_ns(positions.0), side.alignment.time_ns(positions.1));
        let range_ns = (from_ns, to_ns.max(from_ns.saturating_add(1)));
        let key = ColumnsKey {
            recording_id: side.recording_id,
            device: side.device,
            end_event: side.recording.end_event(),
            unit,
            positions,
            range_ns,
            width,
        };
        let kept = self.0[index].take().filter(|(known, _)| *known == key);
        let compute = || match side.recording.series(side.device).filter(|_| unit != AxisUnit::Time) {
            Some(series) => series.columns_between(&side.alignment.edges(positions.0, positions.1, width)),
            None => side.recording.columns(side.device, range_ns.0, range_ns.1, width),
        };
        let (_, columns) = self.0[index].insert(kept.unwrap_or_else(|| (key, compute())));
        columns
    }
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
    axis: SharedAxis,
    has_one_device: bool,
}

impl SharedAxis {
    /// Creates an axis from the earlier start of both sides to the later end.
    fn new(content: &ComparisonContent<'_>, plot: Rect) -> Self {
        let [a, b] = content.sides.each_ref().map(|side| side.alignment.range());
        let a_position = |time_ns| content.sides[0].alignment.position(time_ns);
        let (from, to) = match content.range.map(|(from, to)| (a_position(from), a_position(to))) {
            Some((from, to)) if from < to => (from, to),
            _ => (a.0.min(b.0), a.1.max(b.1)),
        };
        Self { unit: content.unit, from, to: to.max(from + 1), plot }
    }
}

impl ComparisonScene {
    /// Computes the picture of `size` pixels with `scale` pixels per unit.
    #[must_use]
    pub fn new(
        content: &ComparisonContent<'_>,
        columns: &mut ColumnsCache,
        size: (u32, u32),
        scale: f32,
        typesetter: &Typesetter,
    ) -> Self {
        let height = size.1.min(Bitmap::MAX_SIDE) as i32;
        let has_maps = height >= px(LEAST_WITH_HEATMAPS, scale);
        let chart_height = if has_maps { (height as f32 * CHART_SHARE) as i32 } else { height };
        let (x0, x1) = chart_columns(size.0, scale);
        // Below the legend, whose height follows from its texts, and the names of the moments.
        let mut plot = Rect::new(x0, 0, x1, (chart_height - px(20.0, scale)).max(1));
        let (drawn, legend_rows) = drawn_lines(content, columns, plot, scale, typesetter);
        plot.y0 = (px(LEGEND_ROW, scale) * legend_rows + px(20.0, scale)).min(plot.y1 - 1);
        let axis = SharedAxis::new(content, plot);
        let moments = content.sides.each_ref().map(|side| {
            let position = side.alignment.position(side.time_ns.max(side.recording.start_ns()));
            (axis.from..=axis.to).contains(&position).then(|| axis.x(position).min(plot.x1 - 1))
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
            scene.add_maps(
                content,
                Rect::new(0, chart_height, size.0.min(Bitmap::MAX_SIDE) as i32, height),
                typesetter,
            );
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

    /// Returns lines of text about a pixel of the chart: the position on the axis, and the bytes of
    /// both sides. None outside of the chart.
    #[must_use]
    pub fn values(&self, (x, y): (i32, i32)) -> Vec<String> {
        if !self.plot.contains(x, y) {
            return Vec::new();
        }
        let mut texts = vec![self.axis.text_at(x)];
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
    fn add_maps(&mut self, content: &ComparisonContent<'_>, area: Rect, typesetter: &Typesetter) {
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
    content: &ComparisonContent<'_>,
    cache: &mut ColumnsCache,
    plot: Rect,
    scale: f32,
    typesetter: &Typesetter,
) -> (Vec<DrawnLine>, i32) {
    let axis = SharedAxis::new(content, plot);
    let has_one_device = content.has_one_device();
    let mut drawn: Vec<DrawnLine> = Vec::new();
    for index in if has_one_device { 1..2 } else { 0..2 } {
        let side = &content.sides[index];
        let (start, end) = side.alignment.range();
        let (from, to) = (start.clamp(axis.from, axis.to), end.clamp(axis.from, axis.to));
        let (x0, x1) = (axis.x(from), axis.x(to));
        let width = usize::try_from(x1 - x0).unwrap_or(0);
        let columns = if from < to { cache.columns(index, side, content.unit, (from, to), width.max(1)) } else { &[] };
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
    HeatmapScene::new(layout, size.0 as i32, heatmap::HeatmapContent::new(state, definitions), typesetter)
}
