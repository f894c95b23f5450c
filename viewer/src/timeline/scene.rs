//! Computes what a timeline shows and where: texts, positions and heights, without colors.

use std::ops::Range;

use vramscope_trace::{ByteSize, Count, CounterColumn, CounterSeries, DeviceId, IncidentKind, Recording};

use super::geometry::{Geometry, SPAN_ROW, TEXT, time_origin_ns};
use crate::axis::Axis;
use crate::bands::{Band, VisibleBands};
use crate::frame::Rect;
use crate::marks::Marks;
use crate::text::Typesetter;
use crate::units;

/// The time and the bytes of a peak to mark on the timeline; a peak of 0 bytes is not drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeakMark {
    /// When it was reached.
    pub time_ns: u64,
    /// Bytes at the peak; a peak of 0 bytes is not drawn.
    pub bytes: u64,
}

/// What a timeline is computed from: recording, device, marks, peaks, bands and range of time.
pub struct Content<'a> {
    /// The recording.
    pub recording: &'a Recording,
    /// The device.
    pub device: DeviceId,
    /// Spans and incidents.
    pub marks: &'a Marks,
    /// Peaks of the allocated and of the reserved bytes.
    pub peaks: [PeakMark; 2],
    /// Bands of memory outside the pool to draw.
    pub bands: VisibleBands,
    /// The range of time to show.
    pub range: Range<u64>,
}

/// A timeline ready to draw: positions, heights and texts of everything on it, without colors.
#[derive(Clone, Debug)]
pub struct TimelineScene {
    /// Positions of the parts.
    pub geometry: Geometry,
    /// Pixels per unit.
    pub(super) scale: f32,
    /// Counters, one entry per pixel column.
    pub(super) columns: Vec<CounterColumn>,
    /// Bands of memory outside the pool, the topmost first.
    pub(super) bands: Vec<BandArea>,
    pub(super) time_axis: Axis,
    pub(super) bytes_axis: Axis,
    /// Last distance on the time axis whose label fits into the picture.
    pub(super) last_label_at: f64,
    pub(super) spans: Vec<SpanBox>,
    /// Vertical lines, or their dashes, at incidents.
    pub(super) incident_lines: Vec<Rect>,
    pub(super) incident_labels: Vec<Tag>,
    /// The line and label of the device's memory, if that is the top of the chart.
    pub(super) device_memory: Option<(Rect, Tag)>,
    pub(super) peaks: Vec<PeakPoint>,
}

/// The area that one [`Band`] covers on the chart, by its upper end in each pixel column.
#[derive(Clone, Debug)]
pub(super) struct BandArea {
    pub(super) band: Band,
    /// Upper end in bytes for each column; 0 where the device was not sampled.
    pub(super) ends: Vec<u64>,
}

/// The rectangle of a named interval above the chart, with its shortened name.
#[derive(Clone, Debug)]
pub(super) struct SpanBox {
    pub(super) rect: Rect,
    /// Whether it has the second of the two alternating colors.
    pub(super) is_alternate: bool,
    /// The shortened name; empty if too little of it would fit.
    pub(super) name: String,
}

/// A label of the chart: its text and the rectangle of its background.
#[derive(Clone, Debug)]
pub(super) struct Tag {
    pub(super) rect: Rect,
    pub(super) text: String,
}

/// A marked peak: its pixel on the chart and its label.
#[derive(Clone, Debug)]
pub(super) struct PeakPoint {
    pub(super) x: i32,
    pub(super) y: i32,
    pub(super) label: Tag,
}

/// The moment on the screen: a line on the timeline, and its time on the axis.
#[derive(Clone, Debug)]
pub struct Cursor {
    pub(super) line: Rect,
    pub(super) label: Rect,
    pub(super) text: String,
    pub(super) scale: f32,
}

/// Converts units to pixels and measures text while a scene is computed.
struct Measure<'a> {
    scale: f32,
    typesetter: &'a Typesetter,
}

impl Measure<'_> {
    /// Converts units (pixels at scale 1) to whole pixels, rounded.
    fn px(&self, units: f32) -> i32 {
        (units * self.scale).round() as i32
    }

    /// Returns the width of thin lines in pixels: one unit, at least one pixel.
    fn stroke(&self) -> i32 {
        self.px(1.0).max(1)
    }

    /// Returns the width of a text in pixels plus `padding` units. `size` is the font size in
    /// units.
    fn text_width(&self, text: &str, size: f32, padding: f32) -> i32 {
        self.typesetter.width(text, size * self.scale).ceil() as i32 + self.px(padding)
    }
}

impl TimelineScene {
    /// Computes the timeline for a picture of `size` pixels with `scale` pixels per unit.
    #[must_use]
    pub fn new(content: &Content, size: (u32, u32), scale: f32, typesetter: &Typesetter) -> Self {
        let measure = Measure { scale, typesetter };
        let geometry = Geometry::new(size, scale, content.marks, &content.range);
        let (from_ns, to_ns) = (geometry.from_ns, geometry.to_ns);
        let width = usize::try_from(geometry.plot.width()).unwrap_or(1);
        let columns = content.recording.columns(content.device, from_ns, to_ns, width);
        let top = Top::new(content);
        let bands = band_areas(content, &columns, (from_ns, to_ns), top.bytes);
        let max_labels = (geometry.plot.width() / measure.px(110.0).max(1)) as u64;
        let time_axis = Axis::time(from_ns, to_ns, time_origin_ns(content.recording), max_labels);
        let max_labels = (geometry.plot.height() / measure.px(26.0).max(1)).max(1) as u64;
        let bytes_axis = Axis::bytes(top.bytes, max_labels);
        let last_label_at = last_label_at(&measure, &geometry, &time_axis);
        let (incident_lines, incident_labels) = incidents(&measure, &geometry, content);
        let device_memory = top.is_device_memory.then(|| device_memory(&measure, &geometry, top.bytes));
        let occupied = device_memory.as_ref().map(|(_, tag)| tag.rect);
        Self {
            spans: spans(&measure, &geometry, content),
            peaks: peaks(&measure, &geometry, content, top.bytes, occupied),
            geometry,
            scale,
            columns,
            bands,
            time_axis,
            bytes_axis,
            last_label_at,
            incident_lines,
            incident_labels,
            device_memory,
        }
    }
}

impl Cursor {
    /// Computes the cursor at `time_ns`; `None` if that is outside of the shown range.
    #[must_use]
    pub fn new(scene: &TimelineScene, recording: &Recording, time_ns: u64, typesetter: &Typesetter) -> Option<Self> {
        let (geometry, measure) = (&scene.geometry, Measure { scale: scene.scale, typesetter });
        let plot = geometry.plot;
        let x = geometry.column(time_ns)?;
        let stroke = measure.px(1.5).max(1);
        let left = x - stroke / 2;
        let line = Rect::new(left, geometry.span_rows.y0, left + stroke, plot.y1 + measure.px(5.0));
        let text = moment_text(recording, time_ns);
        let width = measure.text_width(&text, TEXT, 12.0);
        let x0 = (x - width / 2).clamp(0, (geometry.width - width).max(0));
        // Below the lowest label of the byte axis, which it would cover at the left edge.
        let label = Rect::new(x0, plot.y1 + measure.px(5.0), x0 + width, plot.y1 + measure.px(20.0));
        Some(Self { line, label, text, scale: scene.scale })
    }
}

/// Returns the recording's time `time_ns` as text, counted from the recording's start; see
/// [`units::moment`].
#[must_use]
pub fn moment_text(recording: &Recording, time_ns: u64) -> String {
    let origin_ns = time_origin_ns(recording);
    units::moment(time_ns.saturating_sub(origin_ns), recording.end_ns().saturating_sub(origin_ns))
}

/// Returns up to which distance from the time axis's start, in nanoseconds, labels fit into the
/// picture.
///
/// Labels beyond that distance are omitted instead of clipped.
fn last_label_at(measure: &Measure, geometry: &Geometry, axis: &Axis) -> f64 {
    let length_ns = (geometry.to_ns - geometry.from_ns) as f64;
    let half = measure.typesetter.width(&axis.label(length_ns), TEXT * measure.scale) / 2.0;
    let available = f64::from(geometry.width - geometry.plot.x0) - f64::from(half);
    available / f64::from(geometry.plot.width()) * length_ns
}

/// The upper end of the byte axis in bytes, and whether that is the size of the device's memory.
struct Top {
    bytes: u64,
    is_device_memory: bool,
}

impl Top {
    fn new(content: &Content) -> Self {
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
fn device_bytes(content: &Content) -> u64 {
    let devices = &content.recording.info().devices;
    let info = devices.iter().find(|info| info.device == content.device.0);
    info.map(|info| info.total_bytes).filter(|&bytes| bytes > 0).unwrap_or(u64::MAX)
}

/// Returns the areas of the visible bands, stacked on the reserved bytes and cut at `top` bytes.
/// `columns` has the counters of each pixel column of `range` (start, end) in nanoseconds.
///
/// The topmost band comes first. Each area reaches down to the reserved bytes, so the areas must be
/// drawn in this order.
fn band_areas(content: &Content, columns: &[CounterColumn], range: (u64, u64), top: u64) -> Vec<BandArea> {
    let visible: Vec<Band> = Band::ALL.into_iter().filter(|&band| content.bands.contains(band)).collect();
    if visible.is_empty() {
        return Vec::new();
    }
    let series = content.recording.series(content.device);
    let samples = series.map(|series| series.samples(range.0, range.1, columns.len())).unwrap_or_default();
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

/// Returns the rectangles and names of the named intervals that the device's process recorded in
/// the shown range of time.
fn spans(measure: &Measure, geometry: &Geometry, content: &Content) -> Vec<SpanBox> {
    let row_height = measure.px(SPAN_ROW);
    let size = (TEXT - 1.0) * measure.scale;
    let mut boxes = Vec::new();
    // End of the last box of each row: spans narrower than a pixel are drawn once per pixel.
    let mut row_ends = vec![i32::MIN; content.marks.depth()];
    for (index, span) in content.marks.spans_on(content.recording.info(), content.device).enumerate() {
        let to_ns = span.to_ns.unwrap_or_else(|| content.recording.end_ns());
        if span.from_ns > geometry.to_ns || to_ns < geometry.from_ns {
            continue;
        }
        let x0 = geometry.x(span.from_ns).max(geometry.plot.x0);
        let x1 = geometry.x(to_ns).min(geometry.plot.x1).max(x0 + measure.px(1.5).max(1));
        if x1 <= row_ends[span.depth] {
            continue;
        }
        row_ends[span.depth] = x1;
        let y0 = geometry.span_rows.y0 + row_height * span.depth as i32;
        let rect = Rect::new(x0, y0, x1 - i32::from(x1 - x0 > 2), y0 + row_height - measure.stroke());
        let max_width = (rect.width() - measure.px(8.0)) as f32;
        let mut name = measure.typesetter.fit(content.recording.definitions().string(span.name), size, max_width);
        // One or two letters and an ellipsis are of no use.
        if name.chars().count() <= 2 && name.ends_with('…') {
            name.clear();
        }
        boxes.push(SpanBox { rect, is_alternate: !index.is_multiple_of(2), name });
    }
    boxes
}

/// Returns the lines and labels of out-of-memory errors and gaps in the shown range of time. Labels
/// that do not fit are omitted; a gap's line is dashed.
fn incidents(measure: &Measure, geometry: &Geometry, content: &Content) -> (Vec<Rect>, Vec<Tag>) {
    let plot = geometry.plot;
    let (mut lines, mut labels) = (Vec::new(), Vec::new());
    let mut labels_end = i32::MIN;
    for incident in content.marks.incidents() {
        let (text, is_oom) = match incident.kind {
            IncidentKind::OutOfMemory { requested } => (format!("OOM {}", ByteSize(requested)), true),
            IncidentKind::Gap { lost } => (format!("{} lost", Count(lost).of("event", "events")), false),
        };
        // A gap concerns every device.
        let is_relevant = incident.device == content.device || !is_oom;
        let Some(x) = geometry.column(incident.time_ns).filter(|_| is_relevant) else { continue };
        let dash = measure.px(4.0).max(1);
        let (step, length) = if is_oom { (usize::MAX, i32::MAX) } else { (2 * dash as usize, dash) };
        for y in (geometry.incident_row.y0..plot.y1).step_by(step) {
            lines.push(Rect::new(x, y, x + measure.stroke(), y.saturating_add(length).min(plot.y1)));
        }
        let width = measure.text_width(&text, TEXT - 1.0, 8.0);
        let x0 = if x + width > plot.x1 { x - width } else { x };
        // A label moves right of the previous one, but at most by its own width.
        let is_too_far = labels_end.saturating_sub(x0) > width;
        let x0 = x0.max(labels_end);
        if is_too_far || x0 + width > geometry.width {
            continue;
        }
        labels_end = x0 + width + measure.px(2.0);
        labels.push(Tag { rect: Rect { x0, x1: x0 + width, ..geometry.incident_row }, text });
    }
    (lines, labels)
}

/// Returns the line at the chart's top that marks the device's memory of `bytes`, and its label.
fn device_memory(measure: &Measure, geometry: &Geometry, bytes: u64) -> (Rect, Tag) {
    let plot = geometry.plot;
    let line = Rect { y1: plot.y0 + measure.stroke(), ..plot };
    let text = format!("device {}", ByteSize(bytes));
    let width = measure.text_width(&text, TEXT - 0.5, 8.0);
    let (x0, y0) = (plot.x0 + measure.px(4.0), plot.y0 + measure.px(3.0));
    (line, Tag { rect: Rect::new(x0, y0, x0 + width, y0 + measure.px(15.0)), text })
}

/// Returns the points and labels of the peaks on a chart that reaches up to `top` bytes. Labels
/// avoid `occupied`, the rectangle of another label on the chart.
fn peaks(
    measure: &Measure,
    geometry: &Geometry,
    content: &Content,
    top: u64,
    occupied: Option<Rect>,
) -> Vec<PeakPoint> {
    let plot = geometry.plot;
    let mut placed: Vec<Rect> = occupied.into_iter().collect();
    let mut points = Vec::new();
    // The higher label is placed first; the lower one moves down, or up at the chart's bottom.
    for (peak, name) in content.peaks.iter().zip(["allocated", "reserved"]).rev() {
        let Some(x) = geometry.column(peak.time_ns).filter(|_| peak.bytes > 0) else { continue };
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
