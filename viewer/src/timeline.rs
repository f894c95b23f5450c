//! The timeline: allocated, active and reserved bytes over time, what is held outside of the pool above them, and marks above all.
//!
//! Its picture changes with the recording, the range of time and the page's size, not with the moment on the screen; so it is drawn
//! once and kept, and [`draw_cursor`] adds the moment to a copy.

use std::ops::Range;

use plotters::prelude::*;
use plotters::style::Color as _;
use vramscope_trace::{Column, Counters, DeviceId, IncidentKind, Recording};

use crate::axis::Axis;
use crate::backend::Backend;
use crate::bands::{self, Bands};
use crate::frame::{Color, Frame, Rect};
use crate::marks::Marks;
use crate::surface::{Canvas, Surface};
use crate::text::{Align, Typesetter};
use crate::theme::Theme;
use crate::units;

/// The height of a row of spans.
const LANE: f32 = 15.0;
/// The size of letters.
const TEXT: f32 = 11.0;

/// Where things stand on the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The chart itself.
    pub plot: Rect,
    /// The spans above it.
    pub lanes: Rect,
    /// The labels of incidents, between the two; no height where there are none.
    pub flags: Rect,
    /// The picture's width.
    pub width: i32,
    /// The time at the chart's left edge.
    pub from_ns: u64,
    /// The time at the chart's right edge.
    pub to_ns: u64,
}

impl Geometry {
    /// The layout of a timeline of `width` by `height` pixels at `scale` pixels to the unit, with rows for these marks.
    #[must_use]
    pub fn new((width, height): (u32, u32), scale: f32, marks: &Marks, range: &Range<u64>) -> Self {
        let px = |units: f32| (units * scale).round() as i32;
        let (width, height) = (width.min(Frame::MAX_SIDE) as i32, height.min(Frame::MAX_SIDE) as i32);
        let x0 = px(64.0);
        let x1 = (width - px(22.0)).max(x0 + 1);
        let spans = px(6.0) + px(LANE) * marks.depth() as i32;
        let top = spans + if marks.incidents().is_empty() { 0 } else { px(LANE) } + px(4.0);
        let bottom = (height - px(20.0)).max(top + 1);
        Self {
            plot: Rect::new(x0, top, x1, bottom),
            lanes: Rect::new(x0, px(6.0), x1, spans),
            flags: Rect::new(x0, spans, x1, top - px(4.0)),
            width,
            from_ns: range.start,
            to_ns: range.end.max(range.start.saturating_add(1)),
        }
    }

    /// The pixel column of a time; outside of the chart for times outside of the range.
    #[must_use]
    pub fn x(&self, time_ns: u64) -> i32 {
        let away = (i128::from(time_ns) - i128::from(self.from_ns)) as f64;
        let share = away / (self.to_ns - self.from_ns) as f64;
        self.plot.x0 + (share * f64::from(self.plot.width())).floor().clamp(-1e6, 1e6) as i32
    }

    /// The pixel column of a time that is in the range; its end belongs to the last column.
    fn column(&self, time_ns: u64) -> Option<i32> {
        (self.from_ns..=self.to_ns).contains(&time_ns).then(|| self.x(time_ns).min(self.plot.x1 - 1))
    }

    /// The time at a place on the chart (in pixels from the picture's left edge), kept inside the range.
    #[must_use]
    pub fn time_ns(&self, x: f64) -> u64 {
        let share = ((x - f64::from(self.plot.x0)) / f64::from(self.plot.width())).clamp(0.0, 1.0);
        self.from_ns.saturating_add((share * (self.to_ns - self.from_ns) as f64) as u64).min(self.to_ns)
    }
}

/// A peak to point out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeakMark {
    /// When it was reached.
    pub time_ns: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What a timeline shows.
pub struct Content<'a> {
    /// The recording.
    pub recording: &'a Recording,
    /// The GPU.
    pub device: DeviceId,
    /// Spans and incidents.
    pub marks: &'a Marks,
    /// The peak of the allocated and of the reserved bytes.
    pub peaks: [PeakMark; 2],
    /// What is drawn of the memory outside of the pool.
    pub bands: Bands,
    /// The time shown.
    pub range: Range<u64>,
}

/// How it is drawn.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    /// The colors.
    pub theme: &'a Theme,
    /// Pixels to the unit.
    pub scale: f32,
}

impl Look<'_> {
    fn px(&self, units: f32) -> i32 {
        (units * self.scale).round() as i32
    }
}

/// Draws the timeline on all of `frame`.
pub fn draw(frame: &mut Frame, type_: &mut Typesetter, look: Look, content: &Content) -> Geometry {
    draw_on(&mut Canvas { frame, type_ }, look, content)
}

/// Draws the timeline on all of a surface.
pub(crate) fn draw_on(surface: &mut impl Surface, look: Look, content: &Content) -> Geometry {
    let geometry = Geometry::new(surface.size(), look.scale, content.marks, &content.range);
    surface.fill(surface.bounds(), look.theme.background);
    surface.fill(geometry.plot, look.theme.well);
    let columns = content.recording.columns(
        content.device,
        geometry.from_ns,
        geometry.to_ns,
        usize::try_from(geometry.plot.width()).unwrap_or(1),
    );
    let (top, whole) = bands::top(content);
    let bands = bands::stacked(content, look.theme, &columns, (geometry.from_ns, geometry.to_ns), top);
    let most = (geometry.plot.width() / look.px(110.0).max(1)) as u64;
    let time = Axis::time(geometry.from_ns, geometry.to_ns, zero_ns(content.recording), most);
    let most = (geometry.plot.height() / look.px(26.0).max(1)).max(1) as u64;
    let axes = Axes {
        time,
        labels_to: labels_to(surface.typesetter(), look, &geometry, &time),
        bytes: Axis::bytes(top, most),
    };
    // The backend cannot fail; plotters' own errors would be about a chart without area, which Geometry does not make.
    let _ = draw_chart(Backend(surface), look, &geometry, &axes, (&columns, &bands));
    draw_spans(surface, look, &geometry, content);
    draw_incidents(surface, look, &geometry, content);
    let taken = whole.map(|total| draw_total(surface, look, &geometry, total));
    draw_peaks(surface, look, &geometry, content, (top, taken));
    geometry
}

struct Axes {
    time: Axis,
    /// The last distance on the time axis at which there is room for a label.
    labels_to: f64,
    bytes: Axis,
}

/// The last distance on the time axis at which there is room for a label: it stands half to the right of its place, and where that
/// is more than there is room for, it is left out and not cut.
fn labels_to(type_: &Typesetter, look: Look, geometry: &Geometry, axis: &Axis) -> f64 {
    let length_ns = (geometry.to_ns - geometry.from_ns) as f64;
    let half = type_.width(&axis.label(length_ns), TEXT * look.scale) / 2.0;
    let room = f64::from(geometry.width - geometry.plot.x0) - f64::from(half);
    room / f64::from(geometry.plot.width()) * length_ns
}

fn rgb(color: Color) -> RGBColor {
    RGBColor(color.r, color.g, color.b)
}

type ChartResult<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

fn draw_chart<B: DrawingBackend>(
    backend: B,
    look: Look,
    geometry: &Geometry,
    axes: &Axes,
    (columns, bands): (&[Column], &[bands::Drawn]),
) -> ChartResult<B> {
    let (width, height) = backend.get_size();
    let theme = look.theme;
    let plot = geometry.plot;
    let root = backend.into_drawing_area();
    let mut chart = ChartBuilder::on(&root)
        .margin_top(plot.y0)
        .margin_right(width as i32 - plot.x1)
        .set_label_area_size(LabelAreaPosition::Left, plot.x0)
        .set_label_area_size(LabelAreaPosition::Bottom, height as i32 - plot.y1)
        .build_cartesian_2d(axes.time, axes.bytes)?;
    let slice_ns = (geometry.to_ns - geometry.from_ns) as f64 / columns.len().max(1) as f64;
    let at = |index: usize| (index as f64 + 0.5) * slice_ns;
    let mut fill = |color: Color, values: &mut dyn Iterator<Item = u64>| {
        let bar = move |(index, value): (usize, u64)| {
            Rectangle::new([(at(index), 0.0), (at(index), value as f64)], rgb(color).filled())
        };
        chart.draw_series(values.enumerate().filter(|&(_, value)| value > 0).map(bar)).map(|_| ())
    };
    for (color, ends) in bands {
        fill(*color, &mut ends.iter().copied())?;
    }
    // What is reserved and not active is free space inside segments, so it is tinted as free space is in the heatmap.
    fill(theme.well.mix(theme.free, 0.3), &mut columns.iter().map(|column| column.max.reserved))?;
    fill(theme.well.mix(theme.pending, 0.7), &mut columns.iter().map(|column| column.max.active))?;
    fill(theme.well.mix(theme.allocated, 0.65), &mut columns.iter().map(|column| column.max.allocated))?;
    fill(theme.allocated, &mut columns.iter().map(|column| column.min.allocated))?;
    let size = f64::from(TEXT * look.scale);
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(rgb(theme.dim).mix(0.22))
        .axis_style(rgb(theme.faint))
        .label_style(("Inter", size).into_font().color(&rgb(theme.dim)))
        .x_label_formatter(&|time| if *time <= axes.labels_to { axes.time.label(*time) } else { String::new() })
        .y_label_formatter(&|bytes| units::axis_bytes(*bytes as u64))
        .set_all_tick_mark_size(look.px(4.0))
        .draw()?;
    let mut line = |color: Color, value: fn(&Counters) -> u64| {
        let points = columns.iter().enumerate().map(|(index, column)| (at(index), value(&column.max) as f64));
        chart.draw_series(LineSeries::new(points, rgb(color).stroke_width(1))).map(|_| ())
    };
    line(theme.allocated.mix(theme.text, 0.35), |counters| counters.allocated)?;
    line(theme.reserved_line, |counters| counters.reserved)?;
    root.present()
}

fn draw_spans(surface: &mut impl Surface, look: Look, geometry: &Geometry, content: &Content) {
    let theme = look.theme;
    let lane = look.px(LANE);
    // The pixel column that is drawn up to in each row: what is narrower than a pixel is drawn once.
    let mut drawn_to = vec![i32::MIN; content.marks.depth()];
    for (index, span) in content.marks.spans_on(content.recording.info(), content.device).enumerate() {
        let to_ns = span.to_ns.unwrap_or_else(|| content.recording.end_ns());
        if span.from_ns > geometry.to_ns || to_ns < geometry.from_ns {
            continue;
        }
        let x0 = geometry.x(span.from_ns).max(geometry.plot.x0);
        let x1 = geometry.x(to_ns).min(geometry.plot.x1).max(x0 + look.px(1.5).max(1));
        if x1 <= drawn_to[span.depth] {
            continue;
        }
        drawn_to[span.depth] = x1;
        let y0 = geometry.lanes.y0 + lane * span.depth as i32;
        let rect = Rect::new(x0, y0, x1 - i32::from(x1 - x0 > 2), y0 + lane - look.px(1.0).max(1));
        let color = if index.is_multiple_of(2) { theme.mark } else { theme.mark_alternate };
        surface.fill(rect, color);
        surface.fill(Rect { x1: x0 + look.px(1.0).max(1), ..rect }, theme.dim);
        let size = (TEXT - 1.0) * look.scale;
        let room = (rect.width() - look.px(8.0)) as f32;
        let name = surface.typesetter().fit(content.recording.definitions().string(span.name), size, room);
        let middle = (rect.y0 + rect.y1) as f32 / 2.0;
        // One or two letters and an ellipsis say nothing.
        if name.chars().count() > 2 || !name.ends_with('…') {
            surface.text(&name, size, ((x0 + look.px(5.0)) as f32, middle), Align::Left, theme.mark_text);
        }
    }
}

fn draw_incidents(surface: &mut impl Surface, look: Look, geometry: &Geometry, content: &Content) {
    let theme = look.theme;
    let plot = geometry.plot;
    let size = (TEXT - 1.0) * look.scale;
    let mut labelled_to = i32::MIN;
    let mut labels = Vec::new();
    for incident in content.marks.incidents() {
        let (label, whole) = match incident.kind {
            IncidentKind::OutOfMemory { requested } => (format!("OOM {}", units::bytes(requested)), true),
            IncidentKind::Gap { lost } => (format!("{} events lost", units::count(lost)), false),
        };
        let concerns = incident.device == content.device || !whole;
        let Some(x) = geometry.column(incident.time_ns).filter(|_| concerns) else { continue };
        let stroke = look.px(1.0).max(1);
        let dash = look.px(4.0).max(1);
        let (every, length) = if whole { (usize::MAX, i32::MAX) } else { (2 * dash as usize, dash) };
        for y in (geometry.flags.y0..plot.y1).step_by(every) {
            surface.fill(Rect::new(x, y, x + stroke, y.saturating_add(length).min(plot.y1)), theme.alarm);
        }
        let width = surface.typesetter().width(&label, size).ceil() as i32 + look.px(8.0);
        let x0 = if x + width > plot.x1 { x - width } else { x };
        // A label gives way to the one before it, but not so far that nobody knows what it is about.
        let too_far = labelled_to.saturating_sub(x0) > width;
        let x0 = x0.max(labelled_to);
        if too_far || x0 + width > geometry.width {
            continue;
        }
        labelled_to = x0 + width + look.px(2.0);
        labels.push((label, Rect { x0, x1: x0 + width, ..geometry.flags }));
    }
    // Above all the lines, so that none goes through a label.
    for (label, flag) in labels {
        let x0 = flag.x0;
        surface.fill(flag, theme.alarm);
        let at = ((x0 + look.px(4.0)) as f32, (flag.y0 + flag.y1) as f32 / 2.0);
        surface.text(&label, size, at, Align::Left, theme.background);
    }
}

/// Draws the device's memory as the top of the chart. Returns where its label stands.
fn draw_total(surface: &mut impl Surface, look: Look, geometry: &Geometry, total: u64) -> Rect {
    let plot = geometry.plot;
    surface.fill(Rect { y1: plot.y0 + look.px(1.0).max(1), ..plot }, look.theme.dim);
    let size = (TEXT - 0.5) * look.scale;
    let label = format!("device {}", units::bytes(total));
    let width = surface.typesetter().width(&label, size).ceil() as i32 + look.px(8.0);
    let (x0, y0) = (plot.x0 + look.px(4.0), plot.y0 + look.px(3.0));
    let back = Rect::new(x0, y0, x0 + width, y0 + look.px(15.0));
    surface.tint(back, look.theme.background, 0.78);
    let at = ((x0 + look.px(4.0)) as f32, (back.y0 + back.y1) as f32 / 2.0);
    surface.text(&label, size, at, Align::Left, look.theme.text);
    back
}

/// Points out the peaks on a chart that reaches up to `top`, where one label is there already.
fn draw_peaks(
    surface: &mut impl Surface,
    look: Look,
    geometry: &Geometry,
    content: &Content,
    (top, taken): (u64, Option<Rect>),
) {
    let theme = look.theme;
    let plot = geometry.plot;
    let size = (TEXT - 0.5) * look.scale;
    // The higher one is placed first; the other gives way downwards, and upwards where it would leave the chart.
    let mut placed: Vec<Rect> = taken.into_iter().collect();
    for (peak, name) in content.peaks.iter().zip(["allocated", "reserved"]).rev() {
        let Some(x) = geometry.column(peak.time_ns).filter(|_| peak.bytes > 0) else { continue };
        let share = peak.bytes as f64 / top as f64;
        let y = plot.y1 - (share * f64::from(plot.height())) as i32;
        let radius = look.px(3.0);
        for row in -radius..=radius {
            let half = radius - row.abs();
            surface.fill(Rect::new(x - half, y + row, x + half + 1, y + row + 1), theme.cursor);
        }
        let label = format!("{name} peak {}", units::bytes(peak.bytes));
        let width = surface.typesetter().width(&label, size).ceil() as i32 + look.px(8.0);
        let x0 = if x + radius + width > plot.x1 { x - radius - width } else { x + radius + look.px(2.0) };
        let height = look.px(15.0);
        let y0 = y - height / 2;
        let lowest = (plot.y1 - height).max(plot.y0);
        let covers = |above: &&Rect| y0 < above.y1 && x0 < above.x1 && above.x0 < x0 + width;
        let y0 = match placed.iter().filter(covers).max_by_key(|above| above.y1) {
            Some(above) if above.y1 <= lowest => above.y1,
            Some(above) => above.y0 - height,
            None => y0.clamp(plot.y0, lowest),
        };
        let back = Rect::new(x0, y0, x0 + width, y0 + height);
        placed.push(back);
        surface.tint(back, theme.background, 0.78);
        let at = ((x0 + look.px(4.0)) as f32, (back.y0 + back.y1) as f32 / 2.0);
        surface.text(&label, size, at, Align::Left, theme.text);
    }
}

/// What times count from: the recording's beginning. Where that is not held, it is when the recorder's clock began, so that a moment
/// keeps its time when what comes before it is forgotten.
pub(crate) fn zero_ns(recording: &Recording) -> u64 {
    let has_clock = recording.info().epoch_unix_ns > 0;
    if recording.first_event() > 0 && has_clock { 0 } else { recording.start_ns() }
}

/// A time since the beginning of the recording, or of its clock where that is not held, as people read it.
#[must_use]
pub fn moment(recording: &Recording, time_ns: u64) -> String {
    let zero_ns = zero_ns(recording);
    units::moment(time_ns.saturating_sub(zero_ns), recording.end_ns().saturating_sub(zero_ns))
}

/// Adds the moment `time_ns` to a timeline's picture: a line, and its time on the axis below.
pub fn draw_cursor(
    frame: &mut Frame,
    type_: &mut Typesetter,
    look: Look,
    geometry: &Geometry,
    recording: &Recording,
    time_ns: u64,
) {
    let theme = look.theme;
    let plot = geometry.plot;
    let Some(x) = geometry.column(time_ns) else { return };
    let stroke = look.px(1.5).max(1);
    frame.fill(
        Rect::new(x - stroke / 2, geometry.lanes.y0, x - stroke / 2 + stroke, plot.y1 + look.px(5.0)),
        theme.cursor,
    );
    let size = TEXT * look.scale;
    let label = moment(recording, time_ns);
    let width = type_.width(&label, size).ceil() as i32 + look.px(12.0);
    let x0 = (x - width / 2).clamp(0, (frame.width() - width).max(0));
    // Below the lowest label of the other axis, which it would cover at the left edge.
    let pill = Rect::new(x0, plot.y1 + look.px(5.0), x0 + width, plot.y1 + look.px(20.0));
    frame.fill(pill, theme.cursor);
    let at = ((pill.x0 + pill.x1) as f32 / 2.0, (pill.y0 + pill.y1) as f32 / 2.0);
    type_.draw(frame, &label, size, at, Align::Center, theme.background);
}
