//! The heatmap's pixels.

use vramscope_trace::{Block, Category, Definitions, DeviceState, FreeSpace, SiteId};

use super::layout::{Layout, Row};
use super::slices::{Kind, Slice};
use crate::frame::{Color, Frame, Rect, opaque};
use crate::surface::{Canvas, Surface};
use crate::text::{Align, Typesetter};
use crate::theme::Theme;
use crate::units;

/// The size of letters.
const TEXT: f32 = 10.5;
/// The least distance from label to label.
const LABEL: f32 = 13.0;
/// What stands where there is nothing to be drawn.
const NOTHING: &str = "no memory is reserved at this moment";

/// What the map shows, in as many words as there is room for.
const CAPTIONS: [&str; 3] =
    ["addresses from low to high, every segment to its own scale →", "addresses from low to high →", "addresses →"];

/// What the color of a live block says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColorBy {
    /// Whether it is allocated or waits for a stream.
    #[default]
    State,
    /// What it is for.
    Category,
}

impl ColorBy {
    /// What links and scripts call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Category => "category",
        }
    }

    /// What links call by this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::State, Self::Category].into_iter().find(|color_by| color_by.name() == name)
    }
}

/// What the heatmap shows, and how.
#[derive(Clone, Copy)]
pub struct Content<'a> {
    /// The memory of the GPU.
    pub device: &'a DeviceState,
    /// The names and sites of its blocks.
    pub definitions: &'a Definitions,
    /// What color says.
    pub color_by: ColorBy,
    /// The colors.
    pub theme: &'a Theme,
}

impl Content<'_> {
    fn block_color(&self, block: &Block) -> Color {
        let theme = self.theme;
        // From the address, so that a block keeps its shade while its neighbors come and go.
        let odd = (block.address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1;
        match self.color_by {
            ColorBy::State if block.pending_free => theme.pending,
            ColorBy::State if odd => theme.allocated_alternate,
            ColorBy::State => theme.allocated,
            ColorBy::Category => {
                let category = self.definitions.site(block.site).category;
                let index = Category::ALL.iter().position(|&other| other == category).unwrap_or(0);
                theme.categories[index].mix(theme.background, if odd { 0.05 } else { 0.0 })
            }
        }
    }

    fn live_color(&self, kind: Kind) -> Color {
        match kind {
            Kind::Live(block) => self.block_color(block),
            Kind::Waste(block) => self.theme.waste(self.block_color(block)),
            Kind::Free => self.theme.free,
        }
    }
}

/// The categories that a recording's blocks may have, in the order of [`Category::ALL`]; always the one that means none.
#[must_use]
pub fn categories(definitions: &Definitions) -> Vec<Category> {
    let mut found = [false; Category::ALL.len()];
    for site in (0..=definitions.site_count()).filter_map(|number| u32::try_from(number).ok()) {
        let category = definitions.site(SiteId(site)).category;
        if let Some(index) = Category::ALL.iter().position(|&other| other == category) {
            found[index] = true;
        }
    }
    Category::ALL
        .into_iter()
        .zip(found)
        .filter(|&(category, found)| found || category == Category::default())
        .map(|(category, _)| category)
        .collect()
}

/// Draws the heatmap on all of `frame`, which has the size that `layout` was made for.
pub fn draw(frame: &mut Frame, type_: &mut Typesetter, layout: &Layout, content: Content) {
    draw_on(&mut Canvas { frame, type_ }, layout, content);
}

/// Draws the heatmap on all of a surface.
pub(crate) fn draw_on(surface: &mut impl Surface, layout: &Layout, content: Content) {
    let theme = content.theme;
    let rows: Vec<&Row> = layout.visible().collect();
    let mut used = Vec::with_capacity(rows.len());
    surface.pixels(theme.background, |frame| {
        // All rows of a segment are worked out at once: where one line of it ends the next goes on.
        for lines in rows.chunk_by(|a, b| a.segment.address == b.segment.address) {
            draw_segment(frame, layout, lines, content, &mut used);
        }
    });
    if layout.rows.is_empty() {
        let middle = ((layout.map.x0 + layout.map.x1) as f32 / 2.0, (layout.map.y0 + layout.map.y1) as f32 / 2.0);
        surface.text(NOTHING, TEXT * layout.scale, middle, Align::Center, theme.dim);
    }
    draw_labels(surface, layout, theme, &rows, &used);
    draw_header(surface, layout, theme);
    draw_scrollbar(surface, layout, theme);
}

/// Draws the lines of one segment, and adds to `used` the share of each that is in use.
fn draw_segment(frame: &mut Frame, layout: &Layout, lines: &[&Row], content: Content, used: &mut Vec<f32>) {
    let Some(&first) = lines.first() else { return };
    let columns = layout.slices(content.device, first);
    let empty = columns.iter().all(|slice| slice.live.is_none());
    // A last line may end before the map does.
    let inside = columns.iter().rposition(|slice| !slice.is_outside()).map_or(0, |last| last + 1);
    let fragmentation = free_space(content.device, first).fragmentation() as f32;
    let (x0, x1) = heat_columns(layout);
    for row in lines {
        let mut range = layout.line_columns(row);
        range.end = range.end.min(inside).max(range.start);
        let columns = &columns[range];
        draw_line(frame, layout, row, columns, empty, content);
        let strip = Rect::new(x0, row.y0.max(layout.map.y0), x1, row.y1.min(layout.map.y1));
        frame.fill(strip, content.theme.heat(fragmentation));
        used.push(1.0 - columns.iter().map(|slice| slice.free).sum::<f32>() / columns.len().max(1) as f32);
    }
}

fn draw_line(frame: &mut Frame, layout: &Layout, row: &Row, columns: &[Slice], empty: bool, content: Content) {
    let theme = content.theme;
    let (base, hatch) = if empty { (theme.cached, theme.cached_hatch) } else { (theme.free, theme.free_hatch) };
    let height = row.y1 - row.y0;
    // The first pixel row of each column that shows free space, and the color above it.
    let painted: Vec<(i32, Color)> = columns
        .iter()
        .map(|slice| {
            let Some(live) = slice.live else { return (row.y0, base) };
            let share = (slice.free * height as f32).round() as i32;
            // Less than a millionth is what is left of rounding where two stretches meet at a column's edge.
            let free = if slice.free > 1e-6 { share.clamp(1, (height - 1).max(1)) } else { 0 };
            let color = content.live_color(live);
            // A line where a block begins, thin enough to leave its color alone.
            (row.y1 - free, if slice.begins { color.mix(theme.background, 0.55) } else { color })
        })
        .collect();
    let period = (layout.scale * 6.0).round().max(4.0) as i32;
    let stroke = (layout.scale * 2.0).round().max(1.0) as i32;
    let area = Rect::new(layout.map.x0, row.y0, layout.map.x1, row.y1).intersect(layout.map);
    frame.rows_mut(area, |y, pixels| {
        for ((pixel, &(free_from, live)), (x, slice)) in pixels.iter_mut().zip(&painted).zip((0..).zip(columns)) {
            let color = if y < free_from {
                live
            } else if hatched(slice, x + y, period, stroke) {
                hatch
            } else {
                base
            };
            *pixel = opaque(color);
        }
    });
}

/// Whether the hatch goes through this pixel. Columns that hold blocks as well have no room for it.
fn hatched(slice: &Slice, diagonal: i32, period: i32, stroke: i32) -> bool {
    slice.live.is_none() && diagonal.rem_euclid(period) < stroke
}

/// The free space of a row's segment.
fn free_space(device: &DeviceState, row: &Row) -> FreeSpace {
    let mut space = FreeSpace::default();
    for extent in device.extents(&row.segment).filter(|extent| extent.block.is_none()) {
        space.total = space.total.saturating_add(extent.size);
        space.largest = space.largest.max(extent.size);
        space.blocks += 1;
    }
    space
}

/// The columns of the strip that shows a row's fragmentation.
fn heat_columns(layout: &Layout) -> (i32, i32) {
    let px = |units: f32| (units * layout.scale).round() as i32;
    (layout.map.x1 + px(6.0), layout.map.x1 + px(22.0))
}

fn draw_labels(surface: &mut impl Surface, layout: &Layout, theme: &Theme, rows: &[&Row], used: &[f32]) {
    let px = |units: f32| units * layout.scale;
    let size = px(TEXT);
    let mut rows: Vec<(&Row, f32)> = rows.iter().copied().zip(used.iter().copied()).collect();
    // The highest rows come first; what is left of the room goes to the others from the top.
    rows.sort_by_key(|(row, _)| (row.line > 0, row.y0 - row.y1, row.y0));
    let mut taken: Vec<i32> = Vec::new();
    let (first, last) = (layout.map.y0 + px(5.0) as i32, layout.map.y1 - px(5.0) as i32);
    for (row, used) in rows {
        let middle = (row.y0 + row.y1) / 2;
        if middle < first || middle > last || taken.iter().any(|other| ((other - middle).abs() as f32) < px(LABEL)) {
            continue;
        }
        taken.push(middle);
        let y = middle as f32;
        if !layout.is_narrow {
            surface.text(&units::address(row.address()), size, (px(10.0), y), Align::Left, theme.dim);
        }
        if row.line == 0 {
            let right = layout.map.x0 as f32 - px(8.0);
            surface.text(&units::bytes(row.segment.size), size, (right, y), Align::Right, theme.text);
        }
        let at = (surface.bounds().width() as f32 - px(12.0), y);
        // Neither is said of what is only nearly so.
        let percent =
            (used * 100.0).round().clamp(f32::from(u8::from(used > 0.0)), if used < 1.0 { 99.0 } else { 100.0 });
        surface.text(&format!("{percent:.0}%"), size, at, Align::Right, theme.text);
    }
}

fn draw_header(surface: &mut impl Surface, layout: &Layout, theme: &Theme) {
    let px = |units: f32| units * layout.scale;
    let size = px(10.0);
    let y = px(Layout::HEADER) / 2.0;
    surface.fill(Rect::new(0, 0, surface.bounds().width(), layout.map.y0), theme.background);
    let room = layout.map.width() as f32;
    let caption = CAPTIONS.into_iter().find(|text| surface.typesetter().width(text, size) <= room).unwrap_or_default();
    let mut put = |text: &str, x: f32, align: Align| surface.text(text, size, (x, y), align, theme.dim);
    if !layout.is_narrow {
        put("segment", px(10.0), Align::Left);
    }
    put("size", layout.map.x0 as f32 - px(8.0), Align::Right);
    put(caption, layout.map.x0 as f32, Align::Left);
    let (x0, _) = heat_columns(layout);
    put("frag", x0 as f32, Align::Left);
    put("used", layout.map.x1 as f32 + px(Layout::MARGIN - 12.0), Align::Right);
}

fn draw_scrollbar(surface: &mut impl Surface, layout: &Layout, theme: &Theme) {
    if layout.scroll_end == 0 {
        return;
    }
    let px = |units: f32| (units * layout.scale).round() as i32;
    let x1 = surface.bounds().width() - px(2.0);
    let track = Rect::new(x1 - px(5.0), layout.map.y0, x1, layout.map.y1);
    surface.fill(track, theme.grid);
    let total = f64::from(layout.scroll_end + track.height());
    let at = |pixels: i32| (f64::from(pixels) / total * f64::from(track.height())) as i32;
    let y0 = track.y0 + at(layout.scroll);
    let y1 = (y0 + at(track.height()).max(px(16.0))).min(track.y1);
    surface.fill(Rect { y0, y1, ..track }, theme.dim);
}

/// How strongly a stretch is pointed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Highlight {
    /// The pointer is over it.
    Hovered,
    /// It is selected.
    Selected,
}

/// Points out a stretch of a segment, on a copy of the picture.
pub fn draw_highlight(frame: &mut Frame, layout: &Layout, theme: &Theme, (address, size): (u64, u64), how: Highlight) {
    let px = |units: f32| (units * layout.scale).round() as i32;
    let stroke = match how {
        Highlight::Hovered => px(1.0).max(1),
        Highlight::Selected => px(2.0).max(2),
    };
    let seen = Rect { x0: 0, x1: frame.width(), ..layout.map };
    for row in layout.rows_of(address) {
        let Some((x0, x1)) = layout.columns(row, address, size) else { continue };
        let edge = Rect::new(x0 - stroke, row.y0 - stroke, x1 + stroke, row.y1 + stroke);
        frame.outline(edge.intersect(seen), stroke, theme.cursor);
        if how == Highlight::Selected {
            let tick = Rect::new(px(2.0), row.y0, px(5.0), row.y1).intersect(seen);
            frame.fill(tick, theme.cursor);
        }
    }
}
