//! The layout of a report's page.

use vramscope_draw::{Align, Color, MomentAxis, Rect, Surface, Theme, Weight};
use vramscope_trace::{ByteSize, Count, DeviceInfo, DurationNs, LifetimeSummary, Percent, site_name};
use vramscope_viewer::bands::BandChoice;
use vramscope_viewer::device_map::StillMap;
use vramscope_viewer::fragmentation_chart::{DEFAULT_PERCENT, FragmentationContent, FragmentationScene};
use vramscope_viewer::timeline::{self, TimelineScene};

use super::contents::RecordingReport;
use super::summary::DeviceSummary;

// Lengths are in units; see `Page::scale`.

/// Width of a report's page, in units (pixels at scale 1).
const WIDTH: f32 = 1000.0;
/// Margin around a report's page, in units (pixels at scale 1).
const MARGIN: f32 = 24.0;
/// Height of a report's header (title and facts about the recording), in units (pixels at scale 1).
const HEADER: f32 = 54.0;
/// Height of the line with a device's name, in units (pixels at scale 1).
const HEADING: f32 = 34.0;
/// Height of a row of key figures, in units (pixels at scale 1).
const FIGURE_ROW: f32 = 58.0;
/// Number of key figures in a full row.
const FIGURES_PER_ROW: usize = 6;
/// Height of the heading above a chart, map or table, in units (pixels at scale 1).
const CAPTION: f32 = 24.0;
/// Height of the timeline without its rows of named intervals, in units (pixels at scale 1).
const TIMELINE: f32 = 230.0;
/// Height that a row of named intervals adds to the timeline, in units (pixels at scale 1).
const SPAN_ROW: f32 = 15.0;
/// Height of the chart of fragmentation over time, in units (pixels at scale 1).
const CHART: f32 = 104.0;
/// Height of the map of the pool, in units (pixels at scale 1).
const MAP: f32 = 380.0;
/// Height of a line of the table of sites, in units (pixels at scale 1).
const TABLE_LINE: f32 = 19.0;
/// Maximum number of sites in a device's table; one line sums up the others.
const MAX_SITES: usize = 12;
/// Empty space below each chart, map or table, in units (pixels at scale 1).
const GAP: f32 = 18.0;
/// Font size of the report's text, in units (pixels at scale 1).
const TEXT: f32 = 11.5;
/// Font size of captions and notes, in units (pixels at scale 1).
const SMALL_TEXT: f32 = 10.5;

/// A key figure of a device as text: name, value, note, and whether it is marked as an alarm.
struct KeyFigure {
    name: &'static str,
    value: String,
    note: String,
    is_alarming: bool,
}

/// A device's part of the report's page: its data, and the map of its pool.
struct DeviceBlock<'a> {
    summary: &'a DeviceSummary,
    map: StillMap,
}

/// The layout of a report's page: positions of everything, in units, for one scale.
pub(super) struct Page<'a> {
    report: &'a RecordingReport<'a>,
    theme: Theme,
    /// Pixels per unit.
    scale: f32,
    blocks: Vec<DeviceBlock<'a>>,
}

impl DeviceBlock<'_> {
    /// Returns the height of the device's part of the page, in units (pixels at scale 1).
    fn height(&self, report: &RecordingReport) -> f32 {
        let lines = 1 + self.summary.sites.len().clamp(1, MAX_SITES + 1);
        HEADING
            + 2.0 * FIGURE_ROW
            + 4.0 * (CAPTION + GAP)
            + timeline_height(report)
            + CHART
            + MAP
            + TABLE_LINE * lines as f32
    }
}

/// Returns the height of the timeline with its rows of named intervals, in units (pixels at scale
/// 1).
fn timeline_height(report: &RecordingReport) -> f32 {
    TIMELINE + SPAN_ROW * timeline::span_rows(&report.marks) as f32
}

impl<'a> Page<'a> {
    /// Computes the layout with `scale` pixels per unit.
    pub(super) fn new(report: &'a RecordingReport<'a>, scale: f32) -> Self {
        let blocks = report.devices.iter().map(|summary| DeviceBlock {
            summary,
            map: StillMap::new(report.recording, &summary.peak_state, &summary.categories),
        });
        Self { report, theme: Theme::new(false), scale, blocks: blocks.collect() }
    }

    /// Converts units (pixels at scale 1) to whole pixels, rounded.
    fn px(&self, units: f32) -> i32 {
        (units * self.scale).round() as i32
    }

    /// Returns the page's width and height in pixels.
    pub(super) fn size(&self) -> (u32, u32) {
        let blocks: f32 = self.blocks.iter().map(|block| block.height(self.report)).sum();
        (self.px(WIDTH) as u32, self.px(2.0 * MARGIN + HEADER + blocks - GAP) as u32)
    }

    /// Draws the page on a surface of [`size`](Self::size) pixels.
    pub(super) fn draw(&self, surface: &mut dyn Surface) {
        surface.fill(surface.bounds(), self.theme.background);
        let mut painter = Painter { page: self, surface, y: MARGIN };
        painter.header();
        for block in &self.blocks {
            painter.block(block);
        }
    }

    /// Returns the recording's description of a device; `None` if the recording has none.
    fn device_info(&self, summary: &DeviceSummary) -> Option<&DeviceInfo> {
        self.report.recording.info().device(summary.device)
    }
}

/// A painter that draws a report's page on a surface from the top down.
struct Painter<'p> {
    page: &'p Page<'p>,
    surface: &'p mut dyn Surface,
    /// Top of the next part.
    y: f32,
}

impl Painter<'_> {
    /// Draws text shortened to `max_width`, vertically centered on `y`, and returns the text's
    /// right end. Lengths and font size are in units (pixels at scale 1).
    fn text(&mut self, text: &str, size: f32, (x, y): (f32, f32), max_width: f32, color: Color) -> f32 {
        let scale = self.page.scale;
        let text = self.surface.typesetter().fit(text, size * scale, max_width * scale);
        self.surface.text(&text, size * scale, (x * scale, y * scale), Align::Left, color);
        x + self.surface.typesetter().width(&text, size * scale) / scale
    }

    /// Draws semi-bold text shortened to `max_width`, vertically centered on `at.1`, and returns
    /// the text's right end. Lengths and font size are in units (pixels at scale 1).
    fn bold_text(&mut self, text: &str, size: f32, at: (f32, f32), max_width: f32) -> f32 {
        self.surface.set_weight(Weight::SemiBold);
        let end = self.text(text, size, at, max_width, self.page.theme.text);
        self.surface.set_weight(Weight::Regular);
        end
    }

    /// Draws text that ends at `x`, vertically centered on `y`. Positions and font size are in
    /// units (pixels at scale 1).
    fn right_aligned(&mut self, text: &str, size: f32, (x, y): (f32, f32), color: Color) {
        let scale = self.page.scale;
        self.surface.text(text, size * scale, (x * scale, y * scale), Align::Right, color);
    }

    /// Converts the edges of a rectangle from units (pixels at scale 1) to pixels.
    fn rect(&self, x0: f32, y0: f32, x1: f32, y1: f32) -> Rect {
        let px = |units| self.page.px(units);
        Rect::new(px(x0), px(y0), px(x1), px(y1))
    }

    /// Returns the pixels of the page's next part, `height` units (pixels at scale 1) high and as
    /// wide as the page without its margins; further drawing continues below the part.
    fn part(&mut self, height: f32) -> Rect {
        let part = self.rect(MARGIN, self.y, WIDTH - MARGIN, self.y + height);
        self.y += height + GAP;
        part
    }

    /// Draws the report's title and facts about the recording, such as its length and lost events.
    fn header(&mut self) {
        let (report, theme) = (self.page.report, &self.page.theme);
        let (recording, info) = (report.recording, report.recording.info());
        self.right_aligned("vramscope", TEXT, (WIDTH - MARGIN, self.y + 10.0), theme.dim);
        self.bold_text(&report.title, 21.0, (MARGIN, self.y + 10.0), WIDTH - 2.0 * MARGIN - 90.0);
        let mut facts = vec![
            Count(recording.events()).of("event", "events"),
            Count(recording.devices().count() as u64).of("device", "devices"),
        ];
        if !info.lacks_times {
            facts.insert(1, DurationNs(recording.end_ns().saturating_sub(recording.start_ns())).to_string());
        }
        facts.extend([&info.writer, &info.alloc_conf].into_iter().filter(|text| !text.is_empty()).cloned());
        let y = self.y + 34.0;
        let mut x = MARGIN;
        if recording.lost_events() > 0 {
            let lost = format!("{} lost", Count(recording.lost_events()).of("event", "events"));
            x = self.text(&lost, TEXT, (x, y), 200.0, theme.alarm) + 12.0;
        }
        self.text(&facts.join(" · "), TEXT, (x, y), WIDTH - MARGIN - x, theme.dim);
        self.y += HEADER;
    }

    /// Draws a device's part of the page: name, key figures, charts, map and largest sites.
    fn block(&mut self, block: &DeviceBlock) {
        let (report, theme, scale, summary) = (self.page.report, &self.page.theme, self.page.scale, block.summary);
        self.heading(summary);
        self.key_figures(&key_figures(report, summary));
        let legend = [
            ("allocated", theme.allocated),
            ("pending free", theme.well.mix(theme.pending, 0.7)),
            ("reserved", theme.well.mix(theme.free, 0.3)),
        ];
        self.caption("Memory over time", "", &legend);
        let area = self.part(timeline_height(report));
        let content = timeline::TimelineContent {
            recording: report.recording,
            device: summary.device,
            marks: &report.marks,
            peaks: summary.peaks,
            bands: BandChoice::default().visible(report.recording.series(summary.device)),
            range: report.range.clone(),
        };
        let size = (area.width().unsigned_abs(), area.height().unsigned_abs());
        let timeline = TimelineScene::new(&content, size, scale, self.surface.typesetter());
        self.surface.panel(area, theme.background, &mut |surface| timeline::draw_on(&timeline, theme, surface));
        let note = fragmentation_note(summary);
        self.caption("Fragmentation over time", &note, &[]);
        let area = self.part(CHART);
        let (x0, x1) = (timeline.geometry.plot.x0, timeline.geometry.plot.x1);
        let ticks = timeline.axis_ticks(x1 - x0).into_iter().map(|(x, text)| (x0 + x, text)).collect();
        let content = FragmentationContent {
            axis: MomentAxis::new(x0, timeline.edges().to_vec()).with_ticks(ticks),
            columns: summary.fragmentation_columns(timeline.edges()),
            threshold: DEFAULT_PERCENT as f64 / 100.0,
            ..FragmentationContent::default()
        };
        let scene = FragmentationScene::without_bytes(content, (size.0, area.height().unsigned_abs()), scale);
        self.surface.panel(area, theme.background, &mut |surface| scene.draw_on(surface, theme));
        self.map(block);
        self.site_table(summary);
    }

    /// Draws a line with a device's name, its events and memory, and whether earlier history is
    /// missing.
    fn heading(&mut self, summary: &DeviceSummary) {
        let theme = &self.page.theme;
        let line = self.rect(MARGIN, self.y, WIDTH - MARGIN, self.y + 1.0);
        self.surface.fill(line, theme.faint);
        let y = self.y + 18.0;
        let label = self.page.report.recording.info().device_label(summary.device);
        let end = self.bold_text(&label, 15.0, (MARGIN, y), 600.0);
        let info = self.page.device_info(summary);
        let bytes = info.map(|info| info.total_bytes).filter(|&bytes| bytes > 0);
        let mut facts: Vec<String> = bytes.map(|bytes| ByteSize(bytes).to_string()).into_iter().collect();
        facts.push(Count(summary.events).of("event", "events"));
        facts.extend(info.is_some_and(|info| !info.history_complete).then(|| "earlier history is missing".to_owned()));
        self.text(&facts.join(" · "), TEXT, (end + 10.0, y), WIDTH - MARGIN - end - 10.0, theme.dim);
        self.y += HEADING;
    }

    /// Draws key figures as boxes, [`FIGURES_PER_ROW`] side by side.
    fn key_figures(&mut self, figures: &[KeyFigure]) {
        let theme = &self.page.theme;
        let width = (WIDTH - 2.0 * MARGIN + 6.0) / FIGURES_PER_ROW as f32;
        for row in figures.chunks(FIGURES_PER_ROW) {
            for (column, figure) in row.iter().enumerate() {
                let x = MARGIN + width * column as f32;
                let y = self.y;
                let background = self.rect(x, y, x + width - 6.0, y + FIGURE_ROW - 6.0);
                self.surface.fill(background, theme.well);
                if figure.is_alarming {
                    let edge = self.rect(x, y, x + 3.0, y + FIGURE_ROW - 6.0);
                    self.surface.fill(edge, theme.alarm);
                }
                let max_width = width - 22.0;
                self.text(figure.name, SMALL_TEXT, (x + 9.0, y + 10.0), max_width, theme.dim);
                self.bold_text(&figure.value, 16.0, (x + 9.0, y + 26.0), max_width);
                self.text(&figure.note, 10.0, (x + 9.0, y + 42.0), max_width, theme.dim);
            }
            self.y += FIGURE_ROW;
        }
    }

    /// Draws the heading of a chart, map or table, with a legend of (name, color) and a note.
    fn caption(&mut self, title: &str, note: &str, legend: &[(&str, Color)]) {
        let theme = &self.page.theme;
        let y = self.y + 10.0;
        let mut x = self.bold_text(title, 13.0, (MARGIN, y), 400.0) + 14.0;
        for (name, color) in legend {
            let swatch = self.rect(x, y - 5.0, x + 10.0, y + 5.0);
            self.surface.fill(swatch, *color);
            x = self.text(name, SMALL_TEXT, (x + 15.0, y), WIDTH - MARGIN - x, theme.dim) + 14.0;
        }
        self.text(note, SMALL_TEXT, (x, y), WIDTH - MARGIN - x, theme.dim);
        self.y += CAPTION;
    }

    /// Draws the map of a device's pool at the peak of its allocated bytes, with its heading.
    fn map(&mut self, block: &DeviceBlock) {
        let (theme, summary) = (&self.page.theme, block.summary);
        let entries = block.map.legend().iter().filter(|entry| entry.bytes.is_some_and(|bytes| bytes > 0));
        let legend: Vec<(&str, Color)> =
            entries.map(|entry| (entry.text.as_str(), entry.swatch.style(theme).color)).collect();
        self.caption("The pool at the peak of the allocated bytes", "", &legend);
        let area = self.part(MAP);
        let scale = self.page.scale;
        self.surface.panel(area, theme.background, &mut |surface| {
            block.map.draw(&summary.peak_state, scale, theme, surface);
        });
    }

    /// Draws the table of the sites with the most live bytes at the peak of allocated bytes.
    fn site_table(&mut self, summary: &DeviceSummary) {
        let theme = &self.page.theme;
        let sites = Count(summary.sites.len() as u64).of("site holds", "sites hold");
        self.caption("Largest sites at the peak", &format!("{sites} allocated memory at that moment"), &[]);
        let columns = [MARGIN + 78.0, MARGIN + 138.0, MARGIN + 208.0];
        let site_x = MARGIN + 296.0;
        let middle = self.y + TABLE_LINE / 2.0;
        for (name, x) in ["bytes", "share", "blocks"].into_iter().zip(columns) {
            self.right_aligned(name, SMALL_TEXT, (x, middle), theme.dim);
        }
        self.text("site", SMALL_TEXT, (site_x, middle), 100.0, theme.dim);
        self.y += TABLE_LINE;
        let total = summary.peak_state.counters().allocated.max(1) as f64;
        for (index, site) in summary.sites.iter().take(MAX_SITES).enumerate() {
            if index.is_multiple_of(2) {
                let background = self.rect(MARGIN, self.y, WIDTH - MARGIN, self.y + TABLE_LINE);
                self.surface.fill(background, theme.well);
            }
            let middle = self.y + TABLE_LINE / 2.0;
            let ratio = site.bytes as f64 / total;
            let cells = [ByteSize(site.bytes).to_string(), Percent(ratio).to_string(), Count(site.blocks).to_string()];
            for (cell, x) in cells.iter().zip(columns) {
                self.right_aligned(cell, TEXT, (x, middle), theme.text);
            }
            let bar_x = MARGIN + 220.0;
            let bar = self.rect(bar_x, middle - 4.0, bar_x + (ratio as f32 * 64.0).max(1.0), middle + 4.0);
            self.surface.fill(bar, theme.allocated);
            let name = site_name(self.page.report.recording.definitions(), site.site);
            self.text(&name, TEXT, (site_x, middle), WIDTH - MARGIN - 8.0 - site_x, theme.text);
            self.y += TABLE_LINE;
        }
        let rest = summary.sites.get(MAX_SITES..).unwrap_or_default();
        let note = match rest {
            [] if summary.sites.is_empty() => "nothing is allocated".to_owned(),
            [] => String::new(),
            rest => {
                let bytes = rest.iter().fold(0u64, |sum, site| sum.saturating_add(site.bytes));
                format!("{} in {} more", ByteSize(bytes), Count(rest.len() as u64).of("site", "sites"))
            }
        };
        if !note.is_empty() {
            self.text(&note, TEXT, (MARGIN + 22.0, self.y + TABLE_LINE / 2.0), 300.0, theme.dim);
            self.y += TABLE_LINE;
        }
        self.y += GAP;
    }
}

/// Returns the note beside the fragmentation chart's heading: formula, highest value and mean.
fn fragmentation_note(summary: &DeviceSummary) -> String {
    let over_time = summary.fragmentation_summary;
    format!(
        "1 − largest free block ÷ free bytes in segments · highest {} at event {} · mean {} · exact at {} moments",
        Percent(over_time.highest),
        Count(over_time.highest_event),
        Percent(over_time.mean),
        Count(summary.metrics_over_time.len() as u64),
    )
}

/// Returns the note below the number of allocations: within which time half of them were freed.
/// Empty without allocations, and if the recording has no times.
fn median_note(report: &RecordingReport, lifetimes: LifetimeSummary) -> String {
    match lifetimes.median_ns {
        _ if lifetimes.allocations == 0 => String::new(),
        None => "more than half not freed".to_owned(),
        Some(_) if report.recording.info().lacks_times => String::new(),
        Some(_) if report.recording.start_ns() == report.recording.end_ns() => String::new(),
        Some(median_ns) => format!("half freed within {}", DurationNs(median_ns)),
    }
}

/// Returns a device's key figures in the order in which the report shows them.
fn key_figures(report: &RecordingReport, summary: &DeviceSummary) -> Vec<KeyFigure> {
    let figure = |name, value: String, note: String| KeyFigure { name, value, note, is_alarming: false };
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let count = |number: u64| Count(number).to_string();
    let time = |time_ns| match timeline::moment_text(report.recording, time_ns) {
        text if text.is_empty() => text,
        text => format!("at {text}"),
    };
    let of_reserved = |part: u64, reserved: u64| format!("{} of the reserved", Percent::of(part, reserved));
    let (peak, free) = (summary.metrics.counters, summary.metrics.free);
    let (split, rounding) = (summary.metrics.inactive_split_bytes, summary.metrics.rounding_waste_bytes());
    let [allocated, reserved] = summary.peaks;
    vec![
        figure("peak allocated", size(allocated.bytes), time(allocated.time_ns)),
        figure("peak reserved", size(reserved.bytes), time(reserved.time_ns)),
        figure(
            "fragmentation at the peak",
            Percent(free.fragmentation()).to_string(),
            format!("{} free in {}", ByteSize(free.total), Count(free.blocks).of("piece", "pieces")),
        ),
        figure("largest free at the peak", size(free.largest), of_reserved(free.largest, peak.reserved)),
        figure("inactive split at the peak", size(split), of_reserved(split, peak.reserved)),
        figure("rounding at the peak", size(rounding), of_reserved(rounding, peak.reserved)),
        figure("allocated at the end", size(summary.end.allocated), format!("{} active", ByteSize(summary.end.active))),
        figure("reserved at the end", size(summary.end.reserved), String::new()),
        KeyFigure {
            is_alarming: summary.ooms > 0,
            ..figure("out of memory", Count(summary.ooms).of("time", "times"), "requests that failed".to_owned())
        },
        figure(
            "segments at the peak",
            count(summary.metrics.segments),
            format!("{} reserved", ByteSize(peak.reserved)),
        ),
        figure(
            "blocks at the peak",
            count(summary.peak_state.blocks().len() as u64),
            format!("event {}", Count(summary.peak_event)),
        ),
        figure("allocations", count(summary.lifetimes.allocations), median_note(report, summary.lifetimes)),
    ]
}
