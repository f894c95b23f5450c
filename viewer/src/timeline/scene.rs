//! Computes the texts, positions and heights of a timeline, without colors.

use std::ops::Range;

use vramscope_draw::picture::LABEL_DISTANCE;
use vramscope_draw::{Axis, Rect, Typesetter};
use vramscope_insight::history::History;
use vramscope_trace::{ByteSize, CounterColumn, CounterSeries, DeviceId, Incident, Recording};

use super::columns::{columns_of, counters, samples};
use super::content::TimelineContent;
use super::flags::{Flag, flags};
use super::geometry::{Geometry, Rows, TEXT, span_rows, time_origin_ns};
use super::lanes::{Lanes, lanes_in_view};
use super::measure::{Measure, Tag};
use super::overview::Overview;
use super::scale::{Scale, TimedMoment};
use super::span_boxes::{SpanBoxes, span_boxes};
use super::stack::Stack;
use super::x_axis::XAxis;
use crate::bands::Band;
use crate::linked_memory::LinkedMemory;
use crate::units;

/// How a timeline is shown beyond its content: the axis, and the rows around the chart.
#[derive(Clone, Default)]
pub struct Options<'a> {
    /// Unit of the horizontal axis.
    pub scale: Scale,
    /// The positions to show on the axis; `None` for the content's range of time.
    pub shown: Option<Range<u64>>,
    /// The positions of the whole recording, of which an overview is shown if only a part is in
    /// view; `None` for no overview.
    pub whole: Option<Range<u64>>,
    /// Times of all events. Axes of events and steps need them.
    pub history: Option<&'a History>,
    /// Whether idle time is left out; needs the history.
    pub cuts_idle: bool,
    /// The counters of a simulated run, which has the times of the recording, to draw as lines.
    pub run: Option<&'a CounterSeries>,
    /// The timeline before, of which parts may be used again.
    pub previous: Option<&'a TimelineScene>,
    /// Whether a row for named intervals is there before the first one.
    pub has_span_row: bool,
    /// The index of the first device with a lane in view; `None` for no lanes.
    pub first_lane: Option<usize>,
    /// Whether the view is moving: then counters are not exact if more than [`QUICK_EVENTS`] events
    /// would have to be replayed.
    pub is_moving: bool,
}

/// Maximum number of events to replay for exact counters while the view is moving. Most recordings
/// have a full state every 32,000 events or less. Applying this many takes about 2 ms.
pub const QUICK_EVENTS: u64 = 32_768;

/// A timeline ready to draw: positions, heights and texts of everything on it, without colors.
#[derive(Clone, Debug)]
pub struct TimelineScene {
    /// Positions of the parts.
    pub geometry: Geometry,
    /// The horizontal axis.
    pub axis: XAxis,
    /// The areas of groups in place of the counters.
    pub stack: Option<Stack>,
    /// Pixels per unit.
    pub(super) scale: f32,
    /// Counters, one entry per pixel column.
    pub(super) columns: Vec<CounterColumn>,
    /// Counters of a simulated run, one entry per pixel column; empty without one.
    pub(super) run_columns: Vec<CounterColumn>,
    /// The inputs of the counters of the chart and the lanes.
    columns_key: ColumnsKey,
    /// Bands of memory outside the pool, the topmost first.
    pub(super) bands: Vec<BandArea>,
    /// The labels of the horizontal axis, in pixel columns.
    pub(super) axis_labels: Axis,
    /// Where the labels of the horizontal axis are.
    pub(super) axis_label_rects: Vec<Rect>,
    pub(super) bytes_axis: Axis,
    pub(super) spans: SpanBoxes,
    /// Vertical lines, or their dashes, at incidents.
    pub(super) incident_lines: Vec<Rect>,
    pub(super) flags: Vec<Flag>,
    /// The line and label of the device's memory, if that is the top of the chart.
    pub(super) device_memory: Option<(Rect, Tag)>,
    pub(super) peaks: Vec<PeakPoint>,
    pub(super) overview: Option<Overview>,
    pub(super) lanes: Lanes,
}

/// The inputs of a timeline's counters; the counters are computed again when these change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ColumnsKey {
    device: DeviceId,
    /// The moment at the left edge of each column.
    edges: Vec<u64>,
    times: Vec<u64>,
    /// Number of events of the recording, and the bytes of it in memory: chunks may be loaded.
    end_event: u64,
    memory_bytes: usize,
    /// Maximum number of events to replay.
    max_events: u64,
}

/// The area that one [`Band`] covers on the chart, by its upper end in each pixel column.
#[derive(Clone, Debug)]
pub(super) struct BandArea {
    pub(super) band: Band,
    /// Upper end in bytes for each column; 0 where the device was not sampled.
    pub(super) ends: Vec<u64>,
}

/// A marked peak: its pixel on the chart and its label.
#[derive(Clone, Debug)]
pub(super) struct PeakPoint {
    pub(super) x: i32,
    pub(super) y: i32,
    pub(super) label: Tag,
}

/// The part of the timeline at a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The chart, or the rows above it.
    Chart,
    /// The axis below the chart.
    Axis,
    /// The overview strip.
    Overview,
    /// The lane of a device.
    Lane(DeviceId),
}

impl TimelineScene {
    /// Computes the timeline for a picture of `size` pixels with `scale` pixels per unit, with an
    /// axis of time.
    pub fn new(content: &TimelineContent, size: (u32, u32), scale: f32, typesetter: &Typesetter) -> Self {
        Self::with_options(content, &Options::default(), size, scale, typesetter)
    }

    /// Computes the timeline for a picture of `size` pixels with `scale` pixels per unit.
    pub fn with_options(
        content: &TimelineContent,
        options: &Options,
        size: (u32, u32),
        scale: f32,
        typesetter: &Typesetter,
    ) -> Self {
        let measure = Measure { scale, typesetter };
        let recording = content.recording;
        let shown = options.shown.clone().unwrap_or_else(|| content.range.clone());
        let whole = options.whole.clone().filter(|whole| *whole != shown);
        let rows = Rows {
            spans: span_rows(content.marks).max(usize::from(options.has_span_row)),
            has_flags: !content.marks.incidents().is_empty(),
            has_overview: whole.is_some(),
            lanes: options.first_lane.map_or(0, |_| lanes_in_view(recording, size.1, scale)),
        };
        let geometry = Geometry::with_rows(size, scale, rows);
        let width = usize::try_from(geometry.plot.width()).unwrap_or(1);
        let idle_width = options.cuts_idle.then(|| measure.px(12.0).max(6));
        let mut axis = XAxis::new(options.scale.clone(), geometry.plot, &shown, recording, options.history, idle_width);
        let max_events = if options.is_moving { QUICK_EVENTS } else { u64::MAX };
        let columns_key = ColumnsKey {
            device: content.device,
            edges: axis.edges().to_vec(),
            times: axis.times().to_vec(),
            end_event: recording.end_event(),
            memory_bytes: recording.memory_bytes(),
            max_events,
        };
        let same = options.previous.filter(|previous| previous.columns_key == columns_key);
        let columns = match same {
            Some(same) => same.columns.clone(),
            None => counters(recording, content.device, &axis, width, max_events),
        };
        if options.history.is_none() {
            axis.set_edges(recording.event_at_time(shown.start), &columns);
        }
        let top = Top::new(content, options.run);
        let bands = band_areas(content, &columns, &axis, top.bytes);
        let max_labels = (geometry.plot.width() / measure.px(110.0).max(1)) as u64;
        let (axis_labels, axis_label_rects) = fit_labels(&measure, &geometry, axis.labels(recording, max_labels));
        let max_labels = (geometry.plot.height() / measure.px(26.0).max(1)).max(1) as u64;
        let bytes_axis = Axis::bytes(&(0..top.bytes), max_labels);
        let (incident_lines, flags) = flags(&measure, &geometry, &axis, content);
        let device_memory = top.is_device_memory.then(|| device_memory(&measure, &geometry, top.bytes));
        let occupied = device_memory.as_ref().map(|(_, tag)| tag.rect);
        let facts = (recording, content.device, options.history);
        Self {
            spans: span_boxes(&measure, &geometry, &axis, content),
            peaks: peaks(&measure, &geometry, &axis, content, top.bytes, occupied),
            overview: whole.map(|whole| {
                let previous = options.previous.and_then(|previous| previous.overview.as_ref());
                Overview::new(facts, (&options.scale, idle_width), geometry.overview, whole, &shown, previous)
            }),
            lanes: options
                .first_lane
                .map(|first| {
                    Lanes::new(&measure, &geometry, &axis, content, (first, max_events), same.map(|same| &same.lanes))
                })
                .unwrap_or_default(),
            geometry,
            stack: None,
            scale,
            run_columns: options.run.map(|run| columns_of(run, &axis)).unwrap_or_default(),
            columns,
            columns_key,
            axis,
            bands,
            axis_labels,
            axis_label_rects,
            bytes_axis,
            incident_lines,
            flags,
            device_memory,
        }
    }

    /// Returns the moments at the boundaries of the chart's pixel columns: one more than there are
    /// columns, never decreasing. Other charts with these left and right edges use them to show
    /// equal moments in equal columns.
    pub fn edges(&self) -> &[u64] {
        self.axis.edges()
    }

    /// Returns the labels of the axis for another chart of equal moments that is `width` pixels
    /// wide, each with its distance from that chart's left edge in pixels.
    pub fn axis_ticks(&self, width: i32) -> Vec<(i32, String)> {
        let part = f64::from(width) / f64::from(self.geometry.plot.width().max(1));
        self.axis_labels.labels.iter().map(|(x, text)| ((x * part) as i32, text.clone())).collect()
    }

    /// Returns the pixels per unit.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Returns the counters of the chart's pixel columns.
    pub fn columns(&self) -> &[CounterColumn] {
        &self.columns
    }

    /// Returns the part of the timeline at pixel row `y`.
    pub fn target(&self, y: f64) -> Target {
        let y = y as i32;
        if let Some(lane) = self.lanes.at(y) {
            Target::Lane(lane.device)
        } else if self.overview.is_some() && y >= self.geometry.overview.y0 {
            Target::Overview
        } else if y >= self.geometry.plot.y1 {
            Target::Axis
        } else {
            Target::Chart
        }
    }

    /// Returns the incidents of the flag at a pixel; empty if there is no flag.
    pub fn incidents_at(&self, x: i32, y: i32) -> &[Incident] {
        self.flags.iter().rev().find(|flag| flag.rect.contains(x, y)).map_or(&[], |flag| &flag.incidents)
    }

    /// Returns the memory of the stacked area at a pixel; `None` elsewhere.
    pub fn memory_at(&self, (x, y): (i32, i32)) -> Option<LinkedMemory> {
        let (plot, stack) = (self.geometry.plot, self.stack.as_ref()?);
        if !plot.contains(x, y) {
            return None;
        }
        let column = self.axis.column_at(f64::from(x));
        let reaches = |bytes: u64| self.bytes_axis.row(plot, bytes as f64) <= y;
        stack.layer_at(column, reaches).and_then(|layer| layer.memory)
    }

    /// Returns the moment of the out-of-memory error whose mark on a lane is at a pixel, or within
    /// 3 units of it; `None` if there is none.
    pub fn failure_on_lane(&self, x: i32, y: i32) -> Option<u64> {
        self.lanes.failure_at((x, y), (3.0 * self.scale) as i32)
    }

    /// Returns the position on the axis at `x` pixels from the left edge of the overview strip's
    /// picture; `None` without a strip.
    pub fn overview_position(&self, x: f64) -> Option<u64> {
        self.overview.as_ref().map(|overview| overview.position_at(x))
    }
}

/// Returns the axis of the labels of the horizontal axis, and the labels' rectangles. A label that
/// does not fit into the picture, or beside the one before it, keeps its grid line only.
fn fit_labels(measure: &Measure, geometry: &Geometry, labels: Vec<(f64, String)>) -> (Axis, Vec<Rect>) {
    let plot = geometry.plot;
    let text_width = |text: &str| measure.typesetter.width(text, TEXT * measure.scale);
    let axis = Axis::new(f64::from(plot.width()), labels)
        .with_fitting_texts((geometry.width - plot.x0, measure.px(LABEL_DISTANCE)), text_width);
    let rect = |(x, text): &(f64, String)| {
        let half = f64::from(text_width(text)) / 2.0;
        let (x0, x1) = (plot.x0 + (x - half).floor() as i32 - 1, plot.x0 + (x + half).ceil() as i32 + 1);
        Rect::new(x0, plot.y1 + measure.px(5.0), x1, plot.y1 + measure.px(20.0))
    };
    let rects = axis.labels.iter().filter(|(_, text)| !text.is_empty()).map(rect).collect();
    (axis, rects)
}

/// Returns the recording's time `time_ns` as text, counted from the recording's start; see
/// [`units::moment`]. Empty if the recording has no times.
pub fn moment_text(recording: &Recording, time_ns: u64) -> String {
    if recording.info().lacks_times {
        return String::new();
    }
    let origin_ns = time_origin_ns(recording);
    units::moment(time_ns.saturating_sub(origin_ns), recording.end_ns().saturating_sub(origin_ns))
}

/// The upper end of the timeline's byte axis.
struct Top {
    bytes: u64,
    is_device_memory: bool,
}

impl Top {
    fn new(content: &TimelineContent, run: Option<&CounterSeries>) -> Self {
        let total = device_bytes(content);
        let used =
            content.recording.series(content.device).and_then(CounterSeries::used_memory_peaks).unwrap_or_default();
        let used = match content.bands {
            bands if bands.contains(Band::Others) => used.by_all_processes,
            bands if bands.contains(Band::Outside) => used.by_process,
            _ => 0,
        };
        // Samples are older than the counters, so their sum may exceed the device's memory.
        let highest = content.peaks[1].bytes.max(content.peaks[0].bytes).max(used.min(total));
        let highest = highest.max(run.map_or(0, |run| run.peak_reserved().bytes));
        // With other processes' memory drawn, free device memory is worth showing, unless that
        // would be most of the picture.
        if content.bands.contains(Band::Others) && highest <= total && total / 2 <= highest {
            return Self { bytes: total, is_device_memory: true };
        }
        Self { bytes: highest.saturating_add(highest / 12).max(1 << 20), is_device_memory: false }
    }
}

/// Returns the size of the device's memory in bytes, or `u64::MAX` if the recording does not
/// contain it.
fn device_bytes(content: &TimelineContent) -> u64 {
    let info = content.recording.info().device(content.device);
    info.map(|info| info.total_bytes).filter(|&bytes| bytes > 0).unwrap_or(u64::MAX)
}

/// Returns the areas of the visible bands, stacked on the reserved bytes and cut at `top` bytes.
/// `columns` has the counters of each pixel column of `axis`.
///
/// The topmost band comes first. Each area reaches down to the reserved bytes, so the areas must be
/// drawn in this order.
fn band_areas(content: &TimelineContent, columns: &[CounterColumn], axis: &XAxis, top: u64) -> Vec<BandArea> {
    let visible: Vec<Band> = Band::ALL.into_iter().filter(|&band| content.bands.contains(band)).collect();
    if visible.is_empty() {
        return Vec::new();
    }
    let series = content.recording.series(content.device);
    let samples = series.map(|series| samples(series, axis, columns.len())).unwrap_or_default();
    let top = top.min(device_bytes(content));
    let mut ends: Vec<u64> = columns.iter().map(|column| column.max.reserved).collect();
    let mut areas = Vec::with_capacity(visible.len());
    for band in visible {
        for (end, sample) in ends.iter_mut().zip(&samples) {
            *end = sample.map_or(0, |sample| end.saturating_add(band.bytes(&sample.max)).min(top));
        }
        areas.push(BandArea { band, ends: ends.clone() });
    }
    areas.reverse();
    areas
}

/// Returns the line at the timeline's upper end that marks the device's memory of `bytes`, and its
/// label.
fn device_memory(measure: &Measure, geometry: &Geometry, bytes: u64) -> (Rect, Tag) {
    let plot = geometry.plot;
    let line = Rect { y1: plot.y0 + measure.stroke(), ..plot };
    let text = format!("device {}", ByteSize(bytes));
    let width = measure.text_width(&text, TEXT - 0.5, 8.0);
    let (x0, y0) = (plot.x0 + measure.px(4.0), plot.y0 + measure.px(3.0));
    (line, Tag { rect: Rect::new(x0, y0, x0 + width, y0 + measure.px(15.0)), text })
}

/// Computes the points and labels of the marked peaks on a timeline's chart that reaches up to
/// `top` bytes. Labels avoid `occupied`, the rectangle of another label on the chart.
fn peaks(
    measure: &Measure,
    geometry: &Geometry,
    axis: &XAxis,
    content: &TimelineContent,
    top: u64,
    occupied: Option<Rect>,
) -> Vec<PeakPoint> {
    let plot = geometry.plot;
    let mut placed: Vec<Rect> = occupied.into_iter().collect();
    let mut points = Vec::new();
    // The higher label is placed first; the lower one moves down, or up at the chart's bottom.
    for (peak, name) in content.peaks.iter().zip(["allocated", "reserved"]).rev() {
        let at = TimedMoment { event: peak.event, time_ns: peak.time_ns };
        let Some(x) = axis.column(at).filter(|_| peak.bytes > 0) else { continue };
        let ratio = peak.bytes as f64 / top as f64;
        let y = plot.y1 - (ratio * f64::from(plot.height())) as i32;
        let radius = measure.px(3.0);
        let text = format!("{name} peak {}", ByteSize(peak.bytes));
        let width = measure.text_width(&text, TEXT - 0.5, 8.0);
        let is_clipped = x + radius + width > plot.x1;
        let x0 = if is_clipped { x - radius - width } else { x + radius + measure.px(2.0) };
        let height = measure.px(15.0);
        let y0 = y - height / 2;
        let lowest = (plot.y1 - height).max(plot.y0);
        let overlaps = |other: &&Rect| y0 < other.y1 && x0 < other.x1 && other.x0 < x0 + width;
        let y0 = match placed.iter().filter(overlaps).max_by_key(|other| other.y1) {
            Some(other) if other.y1 <= lowest => other.y1,
            Some(other) => other.y0 - height,
            None => y0.clamp(plot.y0, lowest),
        };
        let rect = Rect::new(x0, y0, x0 + width, y0 + height);
        placed.push(rect);
        points.push(PeakPoint { x, y, label: Tag { rect, text } });
    }
    points
}
