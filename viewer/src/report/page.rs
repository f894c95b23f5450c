//! Where everything stands on the page.

use vramscope_trace::{DeviceId, DeviceInfo, site_name};

use super::facts::Facts;
use super::{Report, chart};
use crate::bands::Choice;
use crate::frame::{Color, Rect};
use crate::heatmap::{self, ColorBy, Layout, View};
use crate::surface::Surface;
use crate::text::{Align, Weight};
use crate::timeline::{self, Look};
use crate::units;

/// The page's width. This and all that follows is in units.
const WIDTH: f32 = 1000.0;
/// What is left free around the page.
const MARGIN: f32 = 24.0;
/// The head of the page: title and what was recorded.
const HEAD: f32 = 54.0;
/// The name of a device.
const HEADING: f32 = 34.0;
/// A row of key figures.
const TILE: f32 = 58.0;
/// Key figures beside each other.
const TILES: usize = 6;
/// The heading of a part.
const CAPTION: f32 = 24.0;
/// Memory over time, without the rows of its marks.
const TIMELINE: f32 = 230.0;
/// A row of marks on it.
const LANE: f32 = 15.0;
/// Fragmentation over time.
const CHART: f32 = 104.0;
/// A line of the segments at the peak, as long as there is room for it.
const SEGMENT: f32 = 22.0;
/// The bytes of a segment that get such a height, as long as there is room: a longer one is continued.
const LONG_SEGMENT: u64 = 64 << 20;
/// The height that segments get without need.
const MAP: f32 = 380.0;
/// The height that no number of segments goes beyond.
const HIGHEST_MAP: f32 = 1400.0;
/// A line of the table.
const LINE: f32 = 19.0;
/// Sites in the table.
const SITES: usize = 12;
/// Free space below a part.
const GAP: f32 = 18.0;
/// The size of letters.
const TEXT: f32 = 11.5;

/// A key figure.
struct Tile {
    name: &'static str,
    value: String,
    note: String,
    alarming: bool,
}

/// The parts of a device's block that depend on the recording.
struct Block<'a> {
    facts: &'a Facts,
    map: Layout,
    /// In units.
    map_height: f32,
}

/// A report and the room it takes.
pub(super) struct Page<'a> {
    report: &'a Report<'a>,
    look: Look<'a>,
    blocks: Vec<Block<'a>>,
}

impl Block<'_> {
    fn height(&self, report: &Report) -> f32 {
        let lines = 1 + self.facts.holders.len().clamp(1, SITES + 1);
        HEADING
            + 2.0 * TILE
            + 4.0 * (CAPTION + GAP)
            + timeline_height(report)
            + CHART
            + self.map_height
            + LINE * lines as f32
    }
}

/// Memory over time with its marks.
fn timeline_height(report: &Report) -> f32 {
    TIMELINE + LANE * report.marks.depth() as f32
}

impl<'a> Page<'a> {
    /// The page of a report.
    pub(super) fn new(report: &'a Report<'a>, look: Look<'a>) -> Self {
        let px = |units: f32| (units * look.scale).round() as u32;
        let blocks = report.facts.iter().map(|facts| {
            let layout = |height: f32| {
                Layout::new(&facts.peak, (px(WIDTH - 2.0 * MARGIN), px(height)), look.scale, View::default())
            };
            let lines =
                facts.peak.segments().map(|segment| segment.size.div_ceil(LONG_SEGMENT)).fold(0, u64::saturating_add);
            let least = (Layout::HEADER + 4.0 + SEGMENT * lines as f32).clamp(50.0, MAP);
            let (mut map, mut map_height) = (layout(least), least);
            // Nobody can scroll a picture: it is as high as the segments need.
            for _ in 0..2 {
                if map.scroll_end > 0 && map_height < HIGHEST_MAP {
                    map_height = (map_height + map.scroll_end as f32 / look.scale + 2.0).min(HIGHEST_MAP);
                    map = layout(map_height);
                }
            }
            Block { facts, map, map_height }
        });
        Self { report, look, blocks: blocks.collect() }
    }

    fn px(&self, units: f32) -> i32 {
        (units * self.look.scale).round() as i32
    }

    /// Its columns and rows in pixels.
    pub(super) fn size(&self) -> (u32, u32) {
        let blocks: f32 = self.blocks.iter().map(|block| block.height(self.report)).sum();
        (self.px(WIDTH) as u32, self.px(2.0 * MARGIN + HEAD + blocks - GAP) as u32)
    }

    /// Draws it on all of a surface of that size.
    pub(super) fn draw(&self, surface: &mut impl Surface) {
        surface.fill(surface.bounds(), self.look.theme.background);
        let mut pen = Pen { page: self, surface, y: MARGIN };
        pen.head();
        for block in &self.blocks {
            pen.block(block);
        }
    }

    fn about(&self, facts: &Facts) -> Option<&DeviceInfo> {
        self.report.recording.info().devices.iter().find(|about| about.device == facts.device.0)
    }
}

/// Draws the page from the top down.
struct Pen<'p, S> {
    page: &'p Page<'p>,
    surface: &'p mut S,
    /// How far down it is.
    y: f32,
}

impl<S: Surface> Pen<'_, S> {
    /// Draws text so that its digits stand around a height in units; what has no room is left out. Returns where it ends.
    fn text(&mut self, text: &str, size: f32, (x, y): (f32, f32), room: f32, color: Color) -> f32 {
        let scale = self.page.look.scale;
        let text = self.surface.typesetter().fit(text, size * scale, room * scale);
        self.surface.text(&text, size * scale, (x * scale, y * scale), Align::Left, color);
        x + self.surface.typesetter().width(&text, size * scale) / scale
    }

    fn strong(&mut self, text: &str, size: f32, at: (f32, f32), room: f32) -> f32 {
        self.surface.set_weight(Weight::SemiBold);
        let end = self.text(text, size, at, room, self.page.look.theme.text);
        self.surface.set_weight(Weight::Regular);
        end
    }

    fn right(&mut self, text: &str, size: f32, (x, y): (f32, f32), color: Color) {
        let scale = self.page.look.scale;
        self.surface.text(text, size * scale, (x * scale, y * scale), Align::Right, color);
    }

    /// A rectangle of the page in pixels.
    fn rect(&self, x0: f32, y0: f32, x1: f32, y1: f32) -> Rect {
        let px = |units| self.page.px(units);
        Rect::new(px(x0), px(y0), px(x1), px(y1))
    }

    /// The next part of the page, as wide as there is room.
    fn part(&mut self, height: f32) -> Rect {
        let part = self.rect(MARGIN, self.y, WIDTH - MARGIN, self.y + height);
        self.y += height + GAP;
        part
    }

    fn head(&mut self) {
        let (report, theme) = (self.page.report, self.page.look.theme);
        let (recording, info) = (report.recording, report.recording.info());
        self.right("vramscope", TEXT, (WIDTH - MARGIN, self.y + 10.0), theme.dim);
        self.strong(&report.title, 21.0, (MARGIN, self.y + 10.0), WIDTH - 2.0 * MARGIN - 90.0);
        let mut said = vec![
            counted(recording.events(), "event", "events"),
            units::duration(recording.end_ns().saturating_sub(recording.start_ns())),
            counted(recording.devices().filter(|&id| id != DeviceId::HOST).count() as u64, "GPU", "GPUs"),
        ];
        said.extend([&info.writer, &info.alloc_conf].into_iter().filter(|text| !text.is_empty()).cloned());
        let y = self.y + 34.0;
        let mut x = MARGIN;
        if recording.lost_events() > 0 {
            let lost = format!("{} lost", counted(recording.lost_events(), "event", "events"));
            x = self.text(&lost, TEXT, (x, y), 200.0, theme.alarm) + 12.0;
        }
        self.text(&said.join(" · "), TEXT, (x, y), WIDTH - MARGIN - x, theme.dim);
        self.y += HEAD;
    }

    fn block(&mut self, block: &Block) {
        let (report, look) = (self.page.report, self.page.look);
        self.heading(block.facts);
        self.tiles(&tiles(report, block.facts));
        let theme = look.theme;
        let free = theme.well.mix(theme.free, 0.3);
        let keys = [
            ("allocated", theme.allocated),
            ("freed, in use by a stream", theme.well.mix(theme.pending, 0.7)),
            ("reserved", free),
        ];
        self.caption("Memory over time", "", &keys);
        let at = self.part(timeline_height(report));
        let content = timeline::Content {
            recording: report.recording,
            device: block.facts.device,
            marks: &report.marks,
            peaks: block.facts.peaks,
            bands: Choice::default().bands(report.recording.series(block.facts.device)),
            range: report.range.clone(),
        };
        self.surface.panel(at, theme.background, |surface| {
            timeline::draw_on(surface, look, &content);
        });
        let moments = units::count(block.facts.fragmentation.len() as u64);
        let said = format!("1 − largest free block ÷ free bytes in segments, exact at {moments} moments");
        self.caption("Fragmentation over time", &said, &[]);
        let at = self.part(CHART);
        self.surface.panel(at, theme.background, |surface| chart::draw(surface, look, report, block.facts));
        self.map(block);
        self.table(block.facts);
    }

    fn heading(&mut self, facts: &Facts) {
        let theme = self.page.look.theme;
        let line = self.rect(MARGIN, self.y, WIDTH - MARGIN, self.y + 1.0);
        self.surface.fill(line, theme.faint);
        let y = self.y + 18.0;
        let name = if facts.device == DeviceId::HOST {
            "Pinned memory of the host".to_owned()
        } else {
            format!("GPU {}", facts.device.0)
        };
        let end = self.strong(&name, 15.0, (MARGIN, y), 300.0);
        let mut said = Vec::new();
        if let Some(about) = self.page.about(facts) {
            said.extend(Some(about.name.clone()).filter(|name| !name.is_empty()));
            said.extend(Some(about.total_bytes).filter(|&bytes| bytes > 0).map(units::bytes));
            if !about.history_complete {
                said.push("the history begins late".to_owned());
            }
        }
        self.text(&said.join(" · "), TEXT, (end + 10.0, y), WIDTH - MARGIN - end - 10.0, theme.dim);
        self.y += HEADING;
    }

    fn tiles(&mut self, tiles: &[Tile]) {
        let theme = self.page.look.theme;
        let width = (WIDTH - 2.0 * MARGIN + 6.0) / TILES as f32;
        for row in tiles.chunks(TILES) {
            for (column, tile) in row.iter().enumerate() {
                let x = MARGIN + width * column as f32;
                let y = self.y;
                let back = self.rect(x, y, x + width - 6.0, y + TILE - 6.0);
                self.surface.fill(back, theme.well);
                if tile.alarming {
                    let edge = self.rect(x, y, x + 3.0, y + TILE - 6.0);
                    self.surface.fill(edge, theme.alarm);
                }
                let room = width - 22.0;
                self.text(tile.name, 10.5, (x + 9.0, y + 10.0), room, theme.dim);
                self.strong(&tile.value, 16.0, (x + 9.0, y + 26.0), room);
                self.text(&tile.note, 10.0, (x + 9.0, y + 42.0), room, theme.dim);
            }
            self.y += TILE;
        }
    }

    /// The heading of a part, with what the colors in it mean.
    fn caption(&mut self, title: &str, said: &str, keys: &[(&str, Color)]) {
        let theme = self.page.look.theme;
        let y = self.y + 10.0;
        let mut x = self.strong(title, 13.0, (MARGIN, y), 400.0) + 14.0;
        for (name, color) in keys {
            let key = self.rect(x, y - 5.0, x + 10.0, y + 5.0);
            self.surface.fill(key, *color);
            x = self.text(name, 10.5, (x + 15.0, y), WIDTH - MARGIN - x, theme.dim) + 14.0;
        }
        self.text(said, 10.5, (x, y), WIDTH - MARGIN - x, theme.dim);
        self.y += CAPTION;
    }

    fn map(&mut self, block: &Block) {
        let theme = self.page.look.theme;
        let facts = block.facts;
        let keys = [
            ("allocated", theme.allocated),
            ("rounding", theme.waste(theme.allocated)),
            ("freed, in use by a stream", theme.pending),
            ("free", theme.free),
            ("segment with nothing in it", theme.cached_hatch),
        ];
        let (shown, all) = (block.map.visible().filter(|row| row.line == 0).count(), facts.peak.segments().len());
        let said = if shown < all {
            format!("{} of {} segments are shown", units::count(shown as u64), units::count(all as u64))
        } else {
            String::new()
        };
        self.caption("Segments at the peak of the allocated bytes", &said, &keys);
        let at = self.part(block.map_height);
        let content = heatmap::Content {
            device: &facts.peak,
            definitions: self.page.report.recording.definitions(),
            color_by: ColorBy::State,
            theme,
        };
        self.surface.panel(at, theme.background, |surface| heatmap::draw_on(surface, &block.map, content));
    }

    fn table(&mut self, facts: &Facts) {
        let theme = self.page.look.theme;
        let sites = counted(facts.holders.len() as u64, "site holds", "sites hold");
        self.caption("Largest sites at the peak", &format!("{sites} allocated memory at that moment"), &[]);
        let columns = [MARGIN + 78.0, MARGIN + 138.0, MARGIN + 208.0];
        let site_x = MARGIN + 296.0;
        let middle = self.y + LINE / 2.0;
        for (name, x) in ["bytes", "share", "blocks"].into_iter().zip(columns) {
            self.right(name, 10.5, (x, middle), theme.dim);
        }
        self.text("site", 10.5, (site_x, middle), 100.0, theme.dim);
        self.y += LINE;
        let total = facts.peak.counters().allocated.max(1) as f64;
        for (index, holder) in facts.holders.iter().take(SITES).enumerate() {
            if index.is_multiple_of(2) {
                let back = self.rect(MARGIN, self.y, WIDTH - MARGIN, self.y + LINE);
                self.surface.fill(back, theme.well);
            }
            let middle = self.y + LINE / 2.0;
            let share = holder.bytes as f64 / total;
            let figures = [units::bytes(holder.bytes), units::percent(share), units::count(holder.blocks)];
            for (figure, x) in figures.iter().zip(columns) {
                self.right(figure, TEXT, (x, middle), theme.text);
            }
            let bar = MARGIN + 220.0;
            let bar = self.rect(bar, middle - 4.0, bar + (share as f32 * 64.0).max(1.0), middle + 4.0);
            self.surface.fill(bar, theme.allocated);
            let name = site_name(self.page.report.recording.definitions(), holder.site);
            self.text(&name, TEXT, (site_x, middle), WIDTH - MARGIN - 8.0 - site_x, theme.text);
            self.y += LINE;
        }
        let rest = facts.holders.get(SITES..).unwrap_or_default();
        let said = match rest {
            [] if facts.holders.is_empty() => "nothing is allocated".to_owned(),
            [] => String::new(),
            rest => {
                let bytes = rest.iter().fold(0u64, |sum, holder| sum.saturating_add(holder.bytes));
                format!("{} in {} more", units::bytes(bytes), counted(rest.len() as u64, "site", "sites"))
            }
        };
        if !said.is_empty() {
            self.text(&said, TEXT, (MARGIN + 22.0, self.y + LINE / 2.0), 300.0, theme.dim);
            self.y += LINE;
        }
        self.y += GAP;
    }
}

fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", units::count(number), if number == 1 { one } else { many })
}

/// The key figures of a device, in the order in which they are read.
fn tiles(report: &Report, facts: &Facts) -> Vec<Tile> {
    let tile = |name, value: String, note: String| Tile { name, value, note, alarming: false };
    let moment = |time_ns| format!("at {}", timeline::moment(report.recording, time_ns));
    let share = |part: u64, whole: u64| {
        let share = if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        format!("{} of the reserved", units::percent(share))
    };
    let (peak, free, rounding) = (facts.metrics.counters, facts.metrics.free, facts.metrics.rounding_waste_bytes());
    let [allocated, reserved] = facts.peaks;
    vec![
        tile("peak allocated", units::bytes(allocated.bytes), moment(allocated.time_ns)),
        tile("peak reserved", units::bytes(reserved.bytes), moment(reserved.time_ns)),
        tile(
            "fragmentation at the peak",
            units::percent(free.fragmentation()),
            format!("{} free in {}", units::bytes(free.total), counted(free.blocks, "piece", "pieces")),
        ),
        tile("largest free at the peak", units::bytes(free.largest), share(free.largest, peak.reserved)),
        tile(
            "inactive split at the peak",
            units::bytes(facts.metrics.inactive_split_bytes),
            share(facts.metrics.inactive_split_bytes, peak.reserved),
        ),
        tile("rounding at the peak", units::bytes(rounding), share(rounding, peak.reserved)),
        tile(
            "allocated at the end",
            units::bytes(facts.end.allocated),
            format!("{} active", units::bytes(facts.end.active)),
        ),
        tile("reserved at the end", units::bytes(facts.end.reserved), String::new()),
        Tile {
            alarming: facts.ooms > 0,
            ..tile("out of memory", counted(facts.ooms, "time", "times"), "requests that failed".to_owned())
        },
        tile(
            "segments at the peak",
            units::count(facts.metrics.segments),
            format!("{} reserved", units::bytes(peak.reserved)),
        ),
        tile(
            "blocks at the peak",
            units::count(facts.peak.blocks().len() as u64),
            format!("event {}", units::count(facts.peak_event)),
        ),
        tile("events", units::count(facts.events), "of this device".to_owned()),
    ]
}
