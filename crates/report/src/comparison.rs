//! Two recordings side by side, on one scale of bytes: a picture for a page of documentation.
//!
//! Each side has the live bytes by category, stacked, and the line of the reserved bytes over its
//! events. Steps are numbered below. The fonts are not embedded, so that the file is small.

use vramscope_draw::png;
use vramscope_draw::{
    Align, Axis, Bitmap, Canvas, Chart, Color, GroupStyle, LineStyle, Rect, Surface, Svg, Theme, Typesetter, Weight,
};
use vramscope_insight::composition::{CompositionSeries, DeviceRows, OTHER_LAYER, RowGroups};
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::history::History;
use vramscope_insight::spans::Marks;
use vramscope_insight::steps::find_steps;
use vramscope_trace::{ByteSize, Category, DeviceId, FormatError, Recording, Replay};

use super::contents::ReportError;
use super::render::SCALE;

// Lengths are in units (pixels at scale 1).

/// Width and height of the comparison picture, in units (pixels at scale 1).
const SIZE: (f32, f32) = (900.0, 310.0);
/// Margin between the picture's edges and its contents, in units (pixels at scale 1).
const MARGIN: f32 = 16.0;
/// Width of the labels of the byte axis, in units (pixels at scale 1).
const LABELS: f32 = 58.0;
/// Space between the two charts, in units (pixels at scale 1).
const GUTTER: f32 = 24.0;
/// Vertical positions of the charts' top and bottom, in units (pixels at scale 1).
const PLOT: (f32, f32) = (66.0, 244.0);
/// Number of columns into which each chart divides its recording's events.
const COLUMNS: u64 = 200;
/// Font sizes of titles and of all other text, in units (pixels at scale 1).
const TEXT: (f32, f32) = (14.5, 12.5);

/// The categories in the order in which a chart stacks them, from the bottom up; long-lived memory
/// is at the bottom.
const STACKED: [Category; 10] = [
    Category::Parameter,
    Category::OptimizerState,
    Category::Gradient,
    Category::Activation,
    Category::Input,
    Category::Temporary,
    Category::Workspace,
    Category::Cache,
    Category::Communication,
    Category::Unknown,
];

/// One column of a chart: live bytes by category, and reserved bytes.
#[derive(Clone, Copy, Default)]
struct Column {
    /// Live bytes by category, in the order of [`STACKED`], at the peak of the live bytes.
    live: [u64; STACKED.len()],
    reserved: u64,
}

/// One side of the comparison: a device of one recording, with its peaks, chart columns and steps.
struct Side {
    title: String,
    peak_allocated: u64,
    peak_reserved: u64,
    columns: Vec<Column>,
    /// The number of each step, and where it begins, from 0 (left) to 1 (right).
    steps: Vec<(u64, f32)>,
}

/// A picture of two recordings on one scale, ready to draw as SVG or PNG.
pub struct ComparisonReport {
    sides: [Side; 2],
    theme: Theme,
}

impl Side {
    /// Collects the data of one device.
    fn new(recording: &Recording, name: &str, device: Option<DeviceId>) -> Result<Self, ReportError> {
        let id = recording.devices().find(|&id| device.is_none_or(|device| device == id));
        let (id, series) = id
            .and_then(|id| Some((id, recording.series(id)?)))
            .filter(|(_, series)| series.peak_reserved().bytes > 0)
            .ok_or(ReportError::NoDevice(device))?;
        let history = History::of(recording)?;
        let (first, last) = (recording.first_event(), recording.end_event());
        let span = (last - first).max(1);
        let edges: Vec<u64> = (0..=COLUMNS)
            .map(|edge| first + (u128::from(span) * u128::from(edge) / u128::from(COLUMNS)) as u64)
            .collect();
        let mut marks = Marks::default();
        marks.update(recording);
        let steps = history.lifetimes(id).map(|lifetimes| {
            let steps = find_steps(recording, &marks, id, lifetimes, None, |event| history.time_ns(event));
            let start = |from_event: u64| from_event.saturating_sub(first) as f32 / span as f32;
            steps.as_slice().iter().map(|step| (step.number, start(step.from_event))).collect()
        });
        let source = recording.info().source.as_str();
        Ok(Self {
            title: if source.is_empty() { name } else { source }.to_owned(),
            peak_allocated: series.peak_allocated().bytes,
            peak_reserved: series.peak_reserved().bytes,
            columns: columns(recording, &history, id, &edges)?,
            steps: steps.unwrap_or_default(),
        })
    }
}

/// Computes the chart columns of a device: one between each two neighboring moments of `edges`.
fn columns(
    recording: &Recording,
    history: &History,
    device: DeviceId,
    edges: &[u64],
) -> Result<Vec<Column>, FormatError> {
    let mut grouping = Grouping::of(GroupBy::Category, recording).with_categories(&history.categories(device));
    let mut replay = Replay::new();
    let mut columns = Vec::new();
    let Some(lifetimes) = history.lifetimes(device) else { return Ok(columns) };
    let mut groups = RowGroups::default();
    groups.update(&mut grouping, lifetimes);
    let rows = DeviceRows { lifetimes, groups: &groups };
    let mut series = CompositionSeries::new(history.first_event());
    while !series.step(&rows, history.until(), usize::MAX) {}
    let categories: Vec<Category> = series.groups().iter().map(|&group| grouping.category_at(group)).collect();
    for (composition, pair) in series.columns(&rows, edges).iter().zip(edges.windows(2)) {
        let mut column = Column::default();
        for (layer, &bytes) in composition.layers.iter().enumerate() {
            let is_other = layer == usize::from(OTHER_LAYER);
            let category = categories.get(layer).copied().filter(|_| !is_other).unwrap_or_default();
            let index = STACKED.iter().position(|&stacked| stacked == category).unwrap_or(STACKED.len() - 1);
            column.live[index] += bytes;
        }
        for moment in [composition.moment, pair[1]] {
            let state = replay.seek(recording, moment)?.device(device);
            column.reserved = column.reserved.max(state.map_or(0, |state| state.counters().reserved));
        }
        columns.push(column);
    }
    Ok(columns)
}

impl ComparisonReport {
    /// Collects the data of one device of each recording: `device`, or the first one. A name is the
    /// title if the recording does not name its program.
    ///
    /// # Errors
    /// If a recording has no memory of the device, or a chunk cannot be read. The number says which
    /// recording: 0 or 1.
    pub fn new(recordings: [(&Recording, &str); 2], device: Option<DeviceId>) -> Result<Self, (ReportError, usize)> {
        let [first, second] = recordings;
        let side = |(recording, name): (&Recording, &str), index| {
            Side::new(recording, name, device).map_err(|error| (error, index))
        };
        let sides = [side(first, 0)?, side(second, 1)?];
        Ok(Self { sides, theme: Theme::new(false) })
    }

    /// Returns the picture as an SVG document without external references.
    pub fn svg(&self) -> String {
        let mut svg = Svg::new(Self::size());
        self.draw(&mut svg);
        svg.finish(&self.sides.each_ref().map(|side| side.title.as_str()).join(" and "), SCALE, false)
    }

    /// Returns the picture as a PNG file.
    pub fn png(&self) -> Vec<u8> {
        let (width, height) = Self::size();
        let (mut bitmap, mut typesetter) = (Bitmap::new(width, height, Color::default()), Typesetter::new());
        self.draw(&mut Canvas { bitmap: &mut bitmap, typesetter: &mut typesetter });
        png::encode(&bitmap)
    }

    /// Returns the picture's width and height in pixels.
    fn size() -> (u32, u32) {
        (px(SIZE.0) as u32, px(SIZE.1) as u32)
    }

    /// Returns the bytes at the upper end of both charts.
    fn top_bytes(&self) -> u64 {
        let highest = self.sides.iter().map(|side| side.peak_reserved).max().unwrap_or(0);
        highest.saturating_add(highest / 16).max(1)
    }

    /// Draws both sides and the legend on a surface of [`size`](Self::size) pixels.
    fn draw(&self, surface: &mut dyn Surface) {
        surface.fill(surface.bounds(), self.theme.background);
        let width = (SIZE.0 - 2.0 * MARGIN - LABELS - GUTTER) / 2.0;
        let mut bytes = Axis::bytes(&(0..self.top_bytes()), 4);
        for (side, index) in self.sides.iter().zip(0u8..) {
            let left = MARGIN + LABELS + f32::from(index) * (width + GUTTER);
            self.heading(surface, side, left, width);
            let plot = Rect::new(px(left), px(PLOT.0), px(left + width), px(PLOT.1));
            self.chart(surface, side, plot, &bytes);
            // The second chart has the scale of the first.
            bytes.labels.iter_mut().for_each(|(_, text)| text.clear());
        }
        self.legend(surface, &bytes);
    }

    /// Draws a side's title and peaks above its chart.
    fn heading(&self, surface: &mut dyn Surface, side: &Side, left: f32, width: f32) {
        surface.set_weight(Weight::SemiBold);
        let title = surface.typesetter().fit(&side.title, TEXT.0 * SCALE, width * SCALE);
        text(surface, &title, TEXT.0, (left, MARGIN + 8.0), Align::Left, self.theme.text);
        surface.set_weight(Weight::Regular);
        let [allocated, reserved] = [side.peak_allocated, side.peak_reserved].map(ByteSize);
        let peaks = format!("peak: {allocated} allocated, {reserved} reserved");
        text(surface, &peaks, TEXT.1, (left, MARGIN + 30.0), Align::Left, self.theme.dim);
    }

    /// Draws the chart of a side; `bytes` is its vertical axis.
    fn chart(&self, surface: &mut dyn Surface, side: &Side, plot: Rect, bytes: &Axis) {
        surface.fill(plot, self.theme.well);
        let steps = step_axis(side, plot, surface.typesetter());
        let chart = Chart { plot, x: &steps, y: bytes, text_size: TEXT.1, scale: SCALE };
        chart.draw_axes(surface, &self.theme);
        let count = side.columns.len().max(1) as i32;
        let edge = |index: usize| plot.x0 + plot.width() * index as i32 / count;
        // Each area reaches down to the base, so the topmost is drawn first.
        for areas in (1..=STACKED.len()).rev() {
            if side.columns.iter().all(|column| column.live[areas - 1] == 0) {
                continue;
            }
            let rect = |(index, column): (usize, &Column)| {
                let top = top_row(bytes, plot, column.live[..areas].iter().sum());
                Rect::new(edge(index), top, edge(index + 1), plot.y1)
            };
            let area: Vec<Rect> = side.columns.iter().enumerate().map(rect).collect();
            surface.area(&area, GroupStyle::of_category(STACKED[areas - 1]).color(&self.theme));
        }
        let reserved =
            |x: i32| side.columns.get((x * count / plot.width()) as usize).map(|column| column.reserved as f64);
        let style = LineStyle { color: self.theme.text, stroke: px(1.5), dash: None };
        chart.draw_steps(surface, 0, (0..plot.width()).filter_map(reserved), style);
    }

    /// Draws the legend: the categories that are visible in either chart, and the line of the
    /// reserved bytes.
    fn legend(&self, surface: &mut dyn Surface, bytes: &Axis) {
        let (theme, y) = (&self.theme, SIZE.1 - MARGIN - 8.0);
        let mut x = MARGIN + LABELS;
        for (index, category) in STACKED.iter().enumerate() {
            let most = self.sides.iter().flat_map(|side| &side.columns).map(|column| column.live[index]).max();
            // An area less than a pixel high is not visible.
            let plot = Rect::new(0, px(PLOT.0), 1, px(PLOT.1));
            if most.is_none_or(|most| plot.y1 - 1 - bytes.row(plot, most as f64) < 1) {
                continue;
            }
            surface.fill(
                Rect::new(px(x), px(y - 5.5), px(x + 11.0), px(y + 5.5)),
                GroupStyle::of_category(*category).color(theme),
            );
            let name = if *category == Category::Unknown { "other" } else { category.name() };
            text(surface, name, TEXT.1, (x + 16.0, y), Align::Left, theme.text);
            x += 16.0 + surface.typesetter().width(name, TEXT.1 * SCALE) / SCALE + 16.0;
        }
        surface.fill(Rect::new(px(x), px(y - 0.75), px(x + 18.0), px(y + 0.75)), theme.text);
        text(surface, "reserved", TEXT.1, (x + 23.0, y), Align::Left, theme.text);
    }
}

/// Converts units (pixels at scale 1) to pixels, rounded.
fn px(units: f32) -> i32 {
    (units * SCALE).round() as i32
}

/// Returns the uppermost pixel row of an area of `bytes` above the base of a chart; the row below
/// the chart for no bytes.
fn top_row(axis: &Axis, plot: Rect, bytes: u64) -> i32 {
    if bytes == 0 { plot.y1 } else { axis.row(plot, bytes as f64) }
}

/// Returns the horizontal axis of a side, with a label where each step begins.
fn step_axis(side: &Side, plot: Rect, typesetter: &Typesetter) -> Axis {
    let width = f64::from(plot.width());
    let label = |(index, (number, start)): (usize, &(u64, f32))| {
        let text = if index == 0 { format!("step {number}") } else { number.to_string() };
        (f64::from(*start) * width, text)
    };
    Axis::new(width, side.steps.iter().enumerate().map(label).collect())
        .without_grid()
        .with_fitting_texts((plot.width(), px(10.0)), |text| typesetter.width(text, TEXT.1 * SCALE))
}

/// Draws text; its font size `size` and position (`x`, `y`) are in units (pixels at scale 1).
fn text(surface: &mut dyn Surface, text: &str, size: f32, (x, y): (f32, f32), align: Align, color: Color) {
    surface.text(text, size * SCALE, (x * SCALE, y * SCALE), align, color);
}
