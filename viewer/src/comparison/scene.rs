//! Computes the lines, labels and maps of a comparison's picture and their positions,
//! without colors.

use vramscope_draw::picture::{TEXT, chart_columns, px};
use vramscope_draw::{Axis, Bitmap, Rect, Typesetter};
use vramscope_insight::comparison::Alignment;
use vramscope_insight::group::DeviceCategories;
use vramscope_trace::{ByteSize, Count, CounterColumn, DeviceId, DeviceState, Recording};

use super::NAMES;
use super::axis::{AxisUnit, Label, SharedAxis};
use super::failed_request::FailedRequest;
use crate::device_map::{MapScene, StillMap};

/// Height of a row of the chart's legend, in units (pixels at scale 1).
const LEGEND_ROW: f32 = 16.0;
/// Width of the line sample in an entry of the chart's legend and of the space after it, in units.
pub(super) const LEGEND_LINE: f32 = 26.0;
/// Space after an entry of the chart's legend, in units.
const LEGEND_GAP: f32 = 18.0;
/// Minimum height of a picture that shows maps below the chart, in units.
const LEAST_WITH_HEATMAPS: f32 = 265.0;
/// The chart's share of the height of a picture with maps, from 0 to 1.
const CHART_SHARE: f32 = 0.5;
/// Minimum distance between two labels of the vertical axis of bytes, in units.
const BYTES_LABEL_DISTANCE: f32 = 30.0;

/// The inputs of one side of a comparison: a moment of a device.
pub struct SideContent<'a> {
    /// The side's recording.
    pub recording: &'a Recording,
    /// Number of the recording; equal on both sides if they show one recording.
    pub recording_id: u64,
    /// The device whose memory is compared.
    pub device: DeviceId,
    /// The device's memory at the compared moment.
    pub state: &'a DeviceState,
    /// The inferred categories of the device's blocks.
    pub categories: DeviceCategories,
    /// Time of the compared moment in nanoseconds.
    pub time_ns: u64,
    /// Maps the recording's times to positions on the horizontal axis.
    pub alignment: &'a Alignment,
}

/// The inputs of a [`ComparisonScene`].
pub struct ComparisonContent<'a> {
    /// Sides A and B.
    pub sides: [SideContent<'a>; 2],
    /// The unit of the axis.
    pub unit: AxisUnit,
    /// The time range of side A to show (first and last time, in nanoseconds); `None` to show both
    /// recordings completely.
    pub range: Option<(u64, u64)>,
    /// The request that failed at side A's moment, marked on side B's map.
    pub failed_request: Option<FailedRequest>,
}

impl ComparisonContent<'_> {
    /// Returns true if both sides show the same device of the same recording, so that one pair of
    /// lines is enough.
    fn has_one_device(&self) -> bool {
        let [a, b] = &self.sides;
        a.recording_id == b.recording_id && a.device == b.device
    }
}

/// The inputs of one side's counters over time; if they are equal, the cached counters are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ColumnsKey {
    recording_id: u64,
    device: DeviceId,
    end_event: u64,
    unit: AxisUnit,
    /// First and last position on the axis.
    positions: (i64, i64),
    /// First and last time, in nanoseconds.
    range_ns: (u64, u64),
    /// Number of columns.
    width: usize,
}

/// A cache of the counters over time of sides A and B, for the next animation frame.
#[derive(Default)]
pub struct ColumnsCache([Option<(ColumnsKey, Vec<CounterColumn>)>; 2]);

impl ColumnsCache {
    /// Returns the counters of side `index` (0 for A, 1 for B) in `width` equal parts of the axis
    /// between two positions; computes them only if an input has changed since the last call.
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

/// A line of the chart: the allocated or the reserved bytes of a side over time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    /// 0 for A, 1 for B.
    pub(super) side: usize,
    /// Whether the line shows the reserved bytes; else it shows the allocated bytes.
    pub(super) is_reserved: bool,
    /// First pixel column of the line.
    pub(super) x0: i32,
    /// Bytes in each column.
    pub(super) values: Vec<u64>,
    /// The line's entry in the chart's legend.
    pub(super) label: Label,
}

impl Line {
    /// Returns the name of the counter that the line shows: `reserved` or `allocated`.
    fn counter(&self) -> &'static str {
        counter_name(self.is_reserved)
    }
}

/// Returns the name of a line's counter: `reserved` or `allocated`.
const fn counter_name(is_reserved: bool) -> &'static str {
    if is_reserved { "reserved" } else { "allocated" }
}

/// The map of one side, its title, and its part of the picture.
pub(super) struct Map {
    pub(super) area: Rect,
    pub(super) title: Label,
    pub(super) scene: MapScene,
    /// The pixels of the memory that serves the request that fails on the other side.
    pub(super) served: Vec<Rect>,
}

/// The "Compare" view's picture ready to draw: positions and texts, without colors.
pub struct ComparisonScene {
    pub(super) scale: f32,
    pub(super) plot: Rect,
    pub(super) lines: Vec<Line>,
    /// The labels of the horizontal axis, in pixel columns.
    pub(super) axis_labels: Axis,
    pub(super) bytes_axis: Axis,
    /// Pixel columns of the compared moments of A and B; `None` outside of the chart.
    pub(super) moments: [Option<i32>; 2],
    /// The maps of A and B; none if the picture has no room for them.
    pub(super) maps: Vec<Map>,
    axis: SharedAxis,
    has_one_device: bool,
}

impl SharedAxis {
    /// Creates the horizontal axis of the chart: over [`ComparisonContent::range`], or else from
    /// the first position of either side to the last.
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
    /// Computes the picture of `size` pixels (width, height) with `scale` pixels per unit.
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
        // The plot's upper edge is known once the rows of the legend above it are.
        let mut plot = Rect::new(x0, 0, x1, (chart_height - px(20.0, scale)).max(1));
        let (lines, legend_rows) = lines(content, columns, plot, scale, typesetter);
        plot.y0 = (px(LEGEND_ROW, scale) * legend_rows + px(20.0, scale)).min(plot.y1 - 1);
        let axis = SharedAxis::new(content, plot);
        let moments = content.sides.each_ref().map(|side| {
            let position = side.alignment.position(side.time_ns.max(side.recording.start_ns()));
            (axis.from..=axis.to).contains(&position).then(|| axis.x(position).min(plot.x1 - 1))
        });
        let highest = lines.iter().flat_map(|line| &line.values).copied().max().unwrap_or(0).max(1);
        let max_labels = (plot.height() / px(BYTES_LABEL_DISTANCE, scale).max(1)).max(1) as u64;
        let mut scene = Self {
            scale,
            plot,
            lines,
            axis_labels: axis.labels(scale, typesetter),
            bytes_axis: Axis::bytes(&(0..highest.saturating_add(highest / 16)), max_labels),
            moments,
            maps: Vec::new(),
            axis,
            has_one_device: content.has_one_device(),
        };
        if has_maps {
            scene.add_maps(
                content,
                Rect::new(0, chart_height, size.0.min(Bitmap::MAX_SIDE) as i32, height),
                typesetter,
            );
        }
        scene
    }

    /// Returns lines of text about pixel (`x`, `y`): the step, event or time there, and the bytes
    /// of each side. Returns no line outside of the chart.
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

    /// Adds the maps of both sides, side by side in an area of the picture; none if they would
    /// be too small.
    fn add_maps(&mut self, content: &ComparisonContent<'_>, area: Rect, typesetter: &Typesetter) {
        let scale = self.scale;
        let (title_height, gap) = (px(18.0, scale), px(8.0, scale));
        let half = (area.width() - gap) / 2;
        let size = (half.max(1) as u32, (area.height() - title_height).max(1) as u32);
        if half < px(60.0, scale) || area.height() - title_height < px(40.0, scale) {
            return;
        }
        let mut maps = content.sides.each_ref().map(|side| StillMap::new(side.recording, side.state, &side.categories));
        // Both maps have one scale.
        let row_bytes = maps.iter().map(|map| map.row_bytes(size, scale)).fold(0.0, f64::max);
        for (index, (side, still)) in content.sides.iter().zip(&mut maps).enumerate() {
            still.set_least_row_bytes(row_bytes);
            let x0 = area.x0 + index as i32 * (half + gap);
            let map = Rect::new(x0, area.y0 + title_height, x0 + half, area.y1);
            let scene = still.scene(side.state, size, scale, typesetter);
            let failed = content.failed_request.filter(|_| index == 1);
            let position = |(address, size)| Some((still.position_of(address)?, size));
            let served = failed.and_then(|failed| failed.memory).and_then(position);
            let served: Vec<Rect> = served.map(|(at, size)| scene.layout.areas(at, size).collect()).unwrap_or_default();
            let fits = failed.map(|FailedRequest { requested, memory }| {
                let fits = match memory {
                    Some(_) if served.is_empty() => "fits",
                    Some(_) => "fits (outlined)",
                    None => "does not fit",
                };
                format!("{} {fits}; ", ByteSize(requested))
            });
            let text = format!(
                "{}: {}{} reserved in {}",
                NAMES[index],
                fits.unwrap_or_default(),
                ByteSize(side.state.counters().reserved),
                Count(side.state.segments().len() as u64).of("segment", "segments")
            );
            let title = Label {
                x: map.x0 + px(24.0, scale),
                y: area.y0 + title_height / 2,
                text: typesetter.fit(&text, TEXT * scale, (half - px(24.0, scale)).max(1) as f32),
            };
            self.maps.push(Map { area: map, title, scene, served });
        }
    }
}

/// Returns the lines of both sides, and the number of rows of the chart's legend: one if all
/// entries fit, else one for each side. Of `plot`, only the columns matter.
fn lines(
    content: &ComparisonContent<'_>,
    cache: &mut ColumnsCache,
    plot: Rect,
    scale: f32,
    typesetter: &Typesetter,
) -> (Vec<Line>, i32) {
    let axis = SharedAxis::new(content, plot);
    let has_one_device = content.has_one_device();
    let mut drawn: Vec<Line> = Vec::new();
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
            let label = Label { x: 0, y: 0, text };
            drawn.push(Line { side: index, is_reserved, x0, values, label });
        }
    }
    let width = |line: &Line| {
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
