//! Draws a [`MapScene`].

use vramscope_draw::picture::{px, text_color};
use vramscope_draw::{Align, Bitmap, Color, Rect, Surface, Theme, opaque};

use super::cells::{Look, RowCells};
use super::layout::{Layout, Row};
use super::memory_kind::MemoryKind;
use super::memory_line::MemoryLine;
use super::scene::MapScene;
use super::strip::Strip;
use super::style::KindStyle;

/// Draws the device map on a surface, which must have the size that the scene was computed for.
pub fn draw_on(scene: &MapScene, theme: &Theme, surface: &mut dyn Surface) {
    surface.pixels(theme.background, &mut |bitmap| {
        let mut painter = Painter::new(scene, theme);
        for row in &scene.rows {
            painter.draw_row(&row.row, &row.cells, scene.layout.map, bitmap);
        }
        if let Some(Strip { row, cells, .. }) = &scene.strip {
            painter.draw_row(row, cells, scene.layout.strip, bitmap);
        }
    });
    if let Some(strip) = &scene.strip {
        draw_strip(strip, scene, theme, surface);
    }
    for label in &scene.block_labels {
        let style = scene.style(Look::new(label.kind, label.is_dimmed), theme);
        surface.fill(label.area, style.color);
        let at = (label.area.x0 as f32, (label.area.y0 + label.area.y1) as f32 / 2.0);
        surface.text(&label.text, super::labels::TEXT * scene.layout.scale, at, Align::Left, text_color(style.color));
    }
    for label in &scene.labels {
        surface.text(&label.text, label.size, label.at, label.align, theme.dim);
    }
    if let Some(bar) = &scene.scroll_bar {
        surface.fill(bar.track, theme.grid);
        surface.fill(bar.thumb, theme.dim);
    }
}

impl MapScene {
    /// Returns the style of a look.
    fn style(&self, look: Look, theme: &Theme) -> KindStyle {
        let Some(kind) = look.kind() else { return KindStyle::plain(theme.background) };
        let kind = kind.kind();
        let style = KindStyle::new(kind, theme);
        let is_free = matches!(kind, MemoryKind::Stuck(_) | MemoryKind::Releasable);
        let style = if is_free && self.is_free_subdued { style.subdued(theme) } else { style };
        if look.is_dimmed() { style.dimmed(theme) } else { style }
    }
}

/// Draws the map's rows one after the other, and reuses its buffer for each.
struct Painter<'a> {
    scene: &'a MapScene,
    theme: &'a Theme,
    /// The color of each pixel column of the current row.
    colors: Vec<[u8; 4]>,
    /// The styles that were computed, by the number of the look.
    styles: Vec<Option<KindStyle>>,
}

impl<'a> Painter<'a> {
    fn new(scene: &'a MapScene, theme: &'a Theme) -> Self {
        let width = scene.layout.map.width().unsigned_abs() as usize;
        Self { scene, theme, colors: vec![opaque(theme.background); width], styles: Vec::new() }
    }

    /// Returns the style of a look.
    fn style(&mut self, look: Look) -> KindStyle {
        let Some(number) = look.number() else { return self.scene.style(look, self.theme) };
        if number >= self.styles.len() {
            self.styles.resize(number + 1, None);
        }
        *self.styles[number].get_or_insert_with(|| self.scene.style(look, self.theme))
    }

    /// Draws one row of the part `map` of the picture.
    fn draw_row(&mut self, row: &Row, cells: &RowCells, map: Rect, bitmap: &mut Bitmap) {
        let (theme, scale) = (self.theme, self.scene.layout.scale);
        let area = Rect { y0: row.y0, y1: row.y1, ..map };
        self.colors.fill(opaque(theme.background));
        let mut textured = Vec::new();
        for run in &cells.runs {
            let style = self.style(run.look);
            let columns = run.from as usize..(run.to as usize).min(self.colors.len());
            if let Some(colors) = self.colors.get_mut(columns) {
                colors.fill(opaque(style.color));
            }
            if style.has_strokes() {
                textured.push((run.from as usize..run.to as usize, style));
            }
        }
        bitmap.for_each_row(area.intersect(map), |y, pixels| {
            pixels.copy_from_slice(&self.colors[..pixels.len()]);
            for (columns, style) in &textured {
                let end = columns.end.min(pixels.len());
                if let Some(pixels) = pixels.get_mut(columns.start..end) {
                    style.fill_row(pixels, (map.x0 + columns.start as i32, y), scale);
                }
            }
            // The line where a block begins: light enough to keep the block's color.
            for &column in &cells.begins {
                if let Some(pixel) = pixels.get_mut(column as usize) {
                    let [r, g, b, _] = *pixel;
                    *pixel = opaque(Color { r, g, b }.mix(theme.background, 0.55));
                }
            }
        });
        for piece in &cells.pieces {
            let x = map.x0 + piece.column as i32;
            let rows = ((row.y0 + piece.y0 as i32).max(map.y0), (row.y0 + piece.y1 as i32).min(map.y1));
            if x < map.x1 {
                bitmap.fill_column(x, rows, self.style(piece.look).color);
            }
        }
        for &column in &cells.part_begins {
            let x0 = map.x0 + column as i32;
            bitmap.fill(Rect { x0, x1: x0 + 1, ..area }.intersect(map), theme.background);
        }
    }
}

/// Draws the texts on the strip that shows the whole device, and a frame around the part that the
/// map shows.
fn draw_strip(strip: &Strip, scene: &MapScene, theme: &Theme, surface: &mut dyn Surface) {
    let Layout { strip: area, scale, .. } = scene.layout;
    let size = 9.5 * scale;
    for (area, kind, texts) in &strip.owners {
        let style = scene.style(Look::new(*kind, false), theme);
        let room = (area.width() - px(8.0, scale)) as f32;
        let text = texts.iter().find(|text| surface.typesetter().width(text, size) <= room);
        if let Some(text) = text.cloned() {
            let at = ((area.x0 + px(4.0, scale)) as f32, (area.y0 + area.y1) as f32 / 2.0);
            surface.text(&text, size, at, Align::Left, text_color(style.color));
        }
    }
    if strip.shown.width() < area.width() {
        let stroke = px(2.0, scale).max(1);
        let frame = Rect { y0: area.y0 - stroke, y1: area.y1 + stroke, ..strip.shown };
        for edge in frame.edges(stroke) {
            surface.fill(edge, theme.cursor);
        }
    }
}

/// The reason why a picture outlines a block, a free range or an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Highlight {
    /// The pointer is over it: a thin line.
    Hovered,
    /// The user selected it: a thick line.
    Selected,
}

/// Outlines a range of device memory on a bitmap with the drawn map, on every row that shows a part
/// of it. `range` is the address and the size in bytes.
pub fn draw_highlight(
    bitmap: &mut Bitmap,
    (line, layout): (&MemoryLine, &Layout),
    theme: &Theme,
    range: (u64, u64),
    highlight: Highlight,
) {
    let stroke = match highlight {
        Highlight::Hovered => px(1.0, layout.scale).max(1),
        Highlight::Selected => px(2.0, layout.scale).max(2),
    };
    for_each_area(line, layout, range, |area| {
        let outset = outset(area, stroke, layout, bitmap.width());
        bitmap.outline(outset, stroke, theme.cursor);
        if highlight == Highlight::Selected {
            bitmap.fill(tick(area, layout), theme.cursor);
        }
    });
}

/// Marks the memory in which a request would be placed on a bitmap with the drawn map: a dashed
/// outline and a tint, on every row that shows a part of it. `range` is the address and the size in
/// bytes.
pub fn draw_placement(bitmap: &mut Bitmap, (line, layout): (&MemoryLine, &Layout), theme: &Theme, range: (u64, u64)) {
    let (stroke, dash) = (px(2.0, layout.scale).max(2), px(5.0, layout.scale).max(3));
    for_each_area(line, layout, range, |area| {
        bitmap.tint(area.intersect(layout.map), theme.cursor, 0.35);
        let edge = outset(area, stroke, layout, bitmap.width());
        draw_dashes(bitmap, edge, stroke, dash, [theme.cursor, theme.background]);
        bitmap.fill(tick(area, layout), theme.cursor);
    });
}

/// Marks the region that a failed request would have needed on a bitmap with the drawn map: a
/// dashed outline in the color of failures, and a line around each block in its way. Ranges are
/// addresses and sizes in bytes.
pub fn draw_failure(
    bitmap: &mut Bitmap,
    map: (&MemoryLine, &Layout),
    theme: &Theme,
    region: (u64, u64),
    blocks: &[(u64, u64)],
) {
    let (line, layout) = map;
    let (stroke, dash) = (px(2.0, layout.scale).max(2), px(5.0, layout.scale).max(3));
    for &block in blocks {
        for_each_area(line, layout, block, |area| {
            bitmap.outline(area.intersect(layout.map), px(1.0, layout.scale).max(1), theme.alarm);
        });
    }
    for_each_area(line, layout, region, |area| {
        bitmap.tint(area.intersect(layout.map), theme.alarm, 0.25);
        let edge = outset(area, stroke, layout, bitmap.width());
        draw_dashes(bitmap, edge, stroke, dash, [theme.alarm, theme.background]);
        bitmap.fill(tick(area, layout), theme.alarm);
    });
}

/// Calls `draw` with the pixels of each row in view that shows a part of the `size` bytes at device
/// address `address`.
fn for_each_area(line: &MemoryLine, layout: &Layout, (address, size): (u64, u64), draw: impl FnMut(Rect)) {
    if let Some(position) = line.position_of(address) {
        layout.areas(position, size).for_each(draw);
    }
}

/// Returns the area extended by `stroke` pixels on each side, in the part of the picture that
/// outlines may cover.
fn outset(area: Rect, stroke: i32, layout: &Layout, width: i32) -> Rect {
    let Rect { x0, y0, x1, y1 } = area;
    let visible = Rect { x0: 0, x1: width, ..layout.map };
    Rect::new(x0 - stroke, y0 - stroke, x1 + stroke, y1 + stroke).intersect(visible)
}

/// Returns a short vertical line at the picture's left edge, which marks the row of an area.
fn tick(area: Rect, layout: &Layout) -> Rect {
    let (x0, x1) = (px(2.0, layout.scale), px(5.0, layout.scale));
    Rect { x0, x1, ..area }.intersect(Rect { x0: 0, ..layout.map })
}

/// Draws the edge of a rectangle in dashes of `dash` pixels, alternately in two colors, so that it
/// stands out from every color.
fn draw_dashes(bitmap: &mut Bitmap, rect: Rect, stroke: i32, dash: i32, colors: [Color; 2]) {
    let colors = colors.map(opaque);
    for side in rect.edges(stroke).map(|side| side.intersect(bitmap.bounds())) {
        bitmap.for_each_row(side, |y, pixels| {
            for (x, pixel) in (side.x0..).zip(pixels) {
                *pixel = colors[((x + y).div_euclid(dash) & 1) as usize];
            }
        });
    }
}
