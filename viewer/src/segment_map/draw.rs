//! Draws a [`HeatmapScene`].

use std::ops::Range;

use vramscope_draw::picture::px;
use vramscope_draw::{Bitmap, Canvas, Color, Rect, Surface, Texture, Theme, Typesetter, opaque};

use super::badges::SegmentBadges;
use super::labels::Label;
use super::layout::Layout;
use super::scene::{Cell, HeatmapScene, Line, LiveCell};

/// Share of the background in the colors of dimmed blocks and free space, from 0 to 1.
const DIMMED: f32 = 0.72;

/// Draws the heatmap on `bitmap`, which must have the size that the scene was computed for.
pub fn draw(scene: &HeatmapScene, theme: &Theme, bitmap: &mut Bitmap, typesetter: &mut Typesetter) {
    draw_on(scene, theme, &mut Canvas { bitmap, typesetter });
}

/// Draws the heatmap on a surface, which must have the size that the scene was computed for.
pub fn draw_on(scene: &HeatmapScene, theme: &Theme, surface: &mut dyn Surface) {
    surface.pixels(theme.background, &mut |bitmap| {
        let mut painter = Painter::new(scene, theme);
        for line in &scene.lines {
            painter.draw_line(line, bitmap);
        }
    });
    draw_labels(&scene.labels, theme, surface);
    surface.fill(scene.header, theme.background);
    draw_labels(&scene.header_labels, theme, surface);
    for bar in &scene.scroll_bars {
        surface.fill(bar.track, theme.grid);
        surface.fill(bar.thumb, theme.dim);
    }
}

/// The pattern of a pixel column that is not of one color.
#[derive(Clone, Copy)]
enum Pattern {
    /// The column's color above the pixel row `from`, the color of free space from there down.
    Free { from: i32 },
    /// A texture on the column's color above the pixel row `free_from`, the color of free space
    /// from there down.
    Texture { texture: Texture, ink: [u8; 4], free_from: i32 },
    /// Dots, for an unmapped part of an expandable segment.
    Hole,
}

/// Draws the heatmap's rows one after the other, and reuses its buffers for each.
struct Painter<'a> {
    scene: &'a HeatmapScene,
    theme: &'a Theme,
    /// The color of each pixel column of the current row.
    colors: Vec<[u8; 4]>,
    /// Index and pattern of the current row's columns that are not of one color, ascending.
    patterns: Vec<(u32, Pattern)>,
    /// Ranges of the current row's columns that show only free space.
    free_runs: Vec<Range<usize>>,
    /// A line of pixels of the hatching of free space, one period longer than the current row.
    hatching: Vec<[u8; 4]>,
}

impl<'a> Painter<'a> {
    /// Creates a painter of a scene's rows.
    const fn new(scene: &'a HeatmapScene, theme: &'a Theme) -> Self {
        Self { scene, theme, colors: Vec::new(), patterns: Vec::new(), free_runs: Vec::new(), hatching: Vec::new() }
    }

    /// Returns `color`, mixed with the background if `is_dimmed`.
    fn dimmed(&self, color: Color, is_dimmed: bool) -> Color {
        if is_dimmed { color.mix(self.theme.background, DIMMED) } else { color }
    }

    /// Returns the color of the live part of a pixel column: darker for rounding, lighter where a
    /// block begins.
    fn live_color(&self, cell: LiveCell) -> Color {
        let theme = self.theme;
        let block = match (cell.fill.color(theme), cell.is_alternate) {
            (color, false) => color,
            (color, true) if color == theme.allocated => theme.allocated_alternate,
            (color, true) => color.mix(theme.background, 0.06),
        };
        let color = if cell.is_rounding { theme.rounding(block) } else { block };
        // The line where a block begins: light enough to keep the block's color.
        let color = if cell.begins { color.mix(theme.background, 0.55) } else { color };
        self.dimmed(color, cell.is_dimmed)
    }

    /// Fills the buffers `colors`, `patterns` and `free_runs` for the pixel columns of a row.
    /// `free` is the color of free space.
    fn prepare(&mut self, line: &Line, free: [u8; 4]) {
        self.colors.clear();
        self.patterns.clear();
        self.free_runs.clear();
        // Neighboring columns mostly show one block, so its color is computed once.
        let mut last: Option<(LiveCell, [u8; 4])> = None;
        for (index, cell) in (0u32..).zip(&line.cells) {
            match *cell {
                Cell::Free => {
                    self.colors.push(free);
                    let at = index as usize;
                    match self.free_runs.last_mut().filter(|run| run.end == at) {
                        Some(run) => run.end = at + 1,
                        None => self.free_runs.push(at..at + 1),
                    }
                }
                Cell::Hole => {
                    self.colors.push(opaque(self.theme.background));
                    self.patterns.push((index, Pattern::Hole));
                }
                Cell::Live { live, free_from } => {
                    let color = match last {
                        Some((known, color)) if known == live => color,
                        _ => opaque(self.live_color(live)),
                    };
                    last = Some((live, color));
                    self.colors.push(color);
                    let texture = if live.is_rounding { Texture::None } else { live.fill.texture(self.theme) };
                    if texture != Texture::None {
                        let ink = self.dimmed(self.theme.texture_ink(live.fill.color(self.theme)), live.is_dimmed);
                        self.patterns.push((index, Pattern::Texture { texture, ink: opaque(ink), free_from }));
                    } else if free_from < line.area.y1 {
                        self.patterns.push((index, Pattern::Free { from: free_from }));
                    }
                }
            }
        }
    }

    /// Draws one row of the heatmap: its blocks and free space, the color of the segment's
    /// fragmentation right of it, and the segment's badges left of it.
    fn draw_line(&mut self, line: &Line, bitmap: &mut Bitmap) {
        let (theme, scale, is_dimmed) = (self.theme, self.scene.layout.scale, self.scene.is_dimmed);
        let (free, hatch) = if line.is_empty {
            (theme.cached, theme.cached_hatch)
        } else {
            theme.free_colors(self.scene.is_free_subdued)
        };
        let (free, hatch) = (opaque(self.dimmed(free, is_dimmed)), opaque(self.dimmed(hatch, is_dimmed)));
        let (faint, background) = (opaque(theme.faint), opaque(theme.background));
        self.prepare(line, free);
        let period = (scale * 6.0).round().max(4.0) as i32;
        let stroke = (scale * 2.0).round().max(1.0) as i32;
        let Rect { x0, y0, y1, .. } = line.area;
        // The hatching depends on x + y only, so each pixel row is the row above it, shifted by
        // one.
        let hatched = |diagonal: i32| if diagonal.rem_euclid(period) < stroke { hatch } else { free };
        self.hatching.clear();
        self.hatching.extend((0..self.colors.len() as i32 + period).map(hatched));
        bitmap.for_each_row(line.area, |y, pixels| {
            let width = pixels.len().min(self.colors.len());
            pixels[..width].copy_from_slice(&self.colors[..width]);
            let shift = y.rem_euclid(period) as usize;
            for run in &self.free_runs {
                let run = run.start..run.end.min(width);
                if let Some(pixels) = pixels.get_mut(run.clone()) {
                    pixels.copy_from_slice(&self.hatching[run.start + shift..run.end + shift]);
                }
            }
            for &(index, pattern) in &self.patterns {
                let Some(pixel) = pixels.get_mut(index as usize) else { break };
                let x = index as i32 + x0;
                match pattern {
                    Pattern::Free { from } | Pattern::Texture { free_from: from, .. } if y >= from => *pixel = free,
                    Pattern::Texture { texture, ink, .. } if texture.inks(x, y, scale) => *pixel = ink,
                    Pattern::Hole => {
                        let is_inked = y == y0 || y == y1 - 1 || Texture::Dots.inks(x, y, scale * 1.5);
                        *pixel = if is_inked { faint } else { background };
                    }
                    Pattern::Free { .. } | Pattern::Texture { .. } => {}
                }
            }
        });
        if is_dimmed {
            self.outline_highlighted(line, bitmap);
        }
        if let Some(fragmentation) = line.fragmentation {
            let (x0, x1) = self.scene.heat_columns;
            bitmap.fill(Rect { x0, x1, ..line.area }, theme.heat(fragmentation));
        }
        self.draw_badges(&line.badges, line.area, bitmap);
    }

    /// Outlines the highlighted blocks of a row whose width and height exceed two outlines.
    fn outline_highlighted(&self, line: &Line, bitmap: &mut Bitmap) {
        let stroke = (self.scene.layout.scale.round() as i32).max(1);
        let Rect { x0, y0, y1, .. } = line.area;
        let mut start: Option<usize> = None;
        for (index, cell) in line.cells.iter().map(Some).chain([None]).enumerate() {
            let (is_highlighted, begins) = match cell {
                Some(Cell::Live { live, .. }) => (!live.is_dimmed, live.begins),
                _ => (false, false),
            };
            if let Some(first) = start.filter(|_| !is_highlighted || begins) {
                let block = Rect::new(x0 + first as i32, y0, x0 + index as i32, y1);
                if block.width() > 2 * stroke && block.height() > 2 * stroke {
                    bitmap.outline(block, stroke, self.theme.cursor);
                }
                start = None;
            }
            if is_highlighted {
                start.get_or_insert(index);
            }
        }
    }

    /// Draws the badges left of a row: a bar in the color of the private pool or stream, and a
    /// dashed bar for an expandable segment.
    fn draw_badges(&self, badges: &SegmentBadges, area: Rect, bitmap: &mut Bitmap) {
        if *badges == SegmentBadges::default() {
            return;
        }
        let px = |units: f32| ((units * self.scene.layout.scale).round() as i32).max(1);
        let edge = Rect { x0: area.x0 - px(3.0), x1: area.x0 - px(1.0), ..area };
        if let Some(index) = badges.color_index() {
            bitmap.fill(edge, self.theme.group_color(index));
        }
        if badges.is_expandable {
            let is_beside = area.x0 == self.scene.layout.map.x0;
            let distance = if is_beside && badges.color_index().is_some() { px(3.0) } else { 0 };
            let dashes = Rect { x0: edge.x0 - distance, x1: edge.x1 - distance, ..edge };
            let (dash, dim) = (px(3.0), opaque(self.theme.dim));
            bitmap.for_each_row(dashes, |y, pixels| {
                if (y - area.y0).rem_euclid(dash * 2) < dash {
                    pixels.fill(dim);
                }
            });
        }
    }
}

/// Draws texts of the heatmap at their positions, in the dim or the normal text color.
fn draw_labels(labels: &[Label], theme: &Theme, surface: &mut dyn Surface) {
    for label in labels {
        let color = if label.is_dim { theme.dim } else { theme.text };
        surface.text(&label.text, label.size, label.at, label.align, color);
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

/// Outlines a range of device memory on a bitmap with the drawn heatmap, on every row that shows a
/// part of it. `range` is the address and the size in bytes.
pub fn draw_highlight(bitmap: &mut Bitmap, layout: &Layout, theme: &Theme, range: (u64, u64), highlight: Highlight) {
    let stroke = match highlight {
        Highlight::Hovered => px(1.0, layout.scale).max(1),
        Highlight::Selected => px(2.0, layout.scale).max(2),
    };
    for_each_part(bitmap, layout, range, |bitmap, part| {
        bitmap.outline(part.outset(stroke), stroke, theme.cursor);
        if highlight == Highlight::Selected {
            bitmap.fill(part.tick, theme.cursor);
        }
    });
}

/// Marks the memory in which a request would be placed on a bitmap with the drawn heatmap: a dashed
/// outline and a tint, on every row that shows a part of it. `range` is the address and the size in
/// bytes.
pub fn draw_placement(bitmap: &mut Bitmap, layout: &Layout, theme: &Theme, range: (u64, u64)) {
    let (stroke, dash) = (px(2.0, layout.scale).max(2), px(5.0, layout.scale).max(3));
    for_each_part(bitmap, layout, range, |bitmap, part| {
        bitmap.tint(part.area.intersect(part.visible), theme.cursor, 0.35);
        draw_dashes(bitmap, part.outset(stroke), stroke, dash, theme);
        bitmap.fill(part.tick, theme.cursor);
    });
}

/// The part of an address range that one row of the heatmap shows.
struct RangePart {
    /// The pixels of this part of the range.
    area: Rect,
    /// A short vertical line at the picture's left edge, which marks the row.
    tick: Rect,
    /// The part of the picture that outlines may cover.
    visible: Rect,
}

impl RangePart {
    /// Returns the area extended by `stroke` pixels on each side, clipped to the visible part.
    fn outset(&self, stroke: i32) -> Rect {
        let Rect { x0, y0, x1, y1 } = self.area;
        Rect::new(x0 - stroke, y0 - stroke, x1 + stroke, y1 + stroke).intersect(self.visible)
    }
}

/// Calls `draw` for each row in view that shows a part of the `size` bytes at device address
/// `address`.
fn for_each_part(
    bitmap: &mut Bitmap,
    layout: &Layout,
    (address, size): (u64, u64),
    mut draw: impl FnMut(&mut Bitmap, RangePart),
) {
    let visible = Rect { x0: 0, x1: bitmap.width(), ..layout.map };
    for row in layout.rows_of(address) {
        let Some((x0, x1)) = layout.columns(row, address, size) else { continue };
        let tick = Rect::new(px(2.0, layout.scale), row.y0, px(5.0, layout.scale), row.y1).intersect(visible);
        draw(bitmap, RangePart { area: Rect::new(x0, row.y0, x1, row.y1), tick, visible });
    }
}

/// Draws the edge of a rectangle in dashes of `dash` pixels, alternately light and dark, so that it
/// stands out from every color.
fn draw_dashes(bitmap: &mut Bitmap, rect: Rect, stroke: i32, dash: i32, theme: &Theme) {
    let colors = [opaque(theme.cursor), opaque(theme.background)];
    for side in rect.edges(stroke).map(|side| side.intersect(bitmap.bounds())) {
        bitmap.for_each_row(side, |y, pixels| {
            for (x, pixel) in (side.x0..).zip(pixels) {
                *pixel = colors[((x + y).div_euclid(dash) & 1) as usize];
            }
        });
    }
}
