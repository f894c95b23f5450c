//! Draws the cells on the page's canvas.

use std::f64::consts::TAU;

use wasm_bindgen::prelude::*;
use web_sys::{CanvasRenderingContext2d, HtmlCanvasElement};

use super::elements::by_id;
use crate::palette::{LEVELS, Palette, Rgb};
use crate::scene::{Cell, Fill, Scene};

/// Space around the cells for the outlines of cells at the edge, in CSS pixels.
pub(super) const PADDING: f32 = 8.0;
/// Minimum size of a cell, in CSS pixels, in which a marked rank also has a marked corner.
const CORNER_CELL_SIZE: f32 = 18.0;
/// Font families of the canvas, equal to the main page's.
const FONT: &str = "\"vramscope\", system-ui, sans-serif";
/// Space between a group's name and its note, in CSS pixels.
const NOTE_GAP: f64 = 7.0;
/// Minimum average width of a title's characters, in CSS pixels.
const NARROW: f64 = 5.0;
/// Maximum average width of a title's characters, in CSS pixels.
const WIDE: f64 = 8.0;

/// The canvas on which the cells are drawn, and its size.
pub(super) struct Canvas {
    pub(super) element: HtmlCanvasElement,
    context: CanvasRenderingContext2d,
    /// Width and height in CSS pixels, and device pixels in each of them.
    size: (f32, f32, f64),
}

impl Canvas {
    /// Finds the page's canvas; an error if it is missing.
    pub(super) fn new() -> Result<Self, JsValue> {
        let element: HtmlCanvasElement = by_id("grid")?;
        let context = element.get_context("2d")?.ok_or("the browser has no 2D canvas")?.dyn_into()?;
        Ok(Self { element, context, size: (0.0, 0.0, 0.0) })
    }

    /// Draws a scene on a canvas of this width and at least this height, in CSS pixels.
    pub(super) fn draw(
        &mut self,
        scene: &Scene,
        palette: &Palette,
        (width, least_height): (f32, f32),
        pixel_ratio: f64,
    ) -> Result<(), JsValue> {
        let height = (scene.height + 2.0 * PADDING).max(least_height).floor();
        if self.size != (width, height, pixel_ratio) {
            self.size = (width, height, pixel_ratio);
            self.element.set_width((f64::from(width) * pixel_ratio) as u32);
            self.element.set_height((f64::from(height) * pixel_ratio) as u32);
            self.element.style().set_property("height", &format!("{height}px"))?;
        }
        let context = &self.context;
        context.set_transform(pixel_ratio, 0.0, 0.0, pixel_ratio, 0.0, 0.0)?;
        self.fill(palette.background);
        context.fill_rect(0.0, 0.0, width.into(), height.into());
        context.translate(PADDING.into(), PADDING.into())?;
        self.cells(scene, palette);
        self.labels(scene, palette)?;
        self.titles(scene, palette)?;
        self.marks(scene, palette)?;
        for (index, color) in [(scene.hovered, palette.dim), (scene.selected, palette.text)] {
            if let Some(cell) = index.and_then(|index| scene.cells.get(index)) {
                self.ring(cell, scene.cell_size, palette.background, color);
            }
        }
        Ok(())
    }

    /// Sets the color for the next filled shapes and texts.
    fn fill(&self, color: Rgb) {
        self.context.set_fill_style_str(&color.to_string());
    }

    /// Sets the color and width of the next lines.
    fn stroke(&self, color: Rgb, width: f64) {
        self.context.set_stroke_style_str(&color.to_string());
        self.context.set_line_width(width);
    }

    /// Fills all cells, one color after the other, because changing the color takes longer than
    /// filling a cell.
    fn cells(&self, scene: &Scene, palette: &Palette) {
        let size = f64::from(scene.cell_size);
        for fill in (0..LEVELS as u8).map(Fill::Level).chain([Fill::Ended, Fill::Unknown]) {
            let mut cells = scene.cells.iter().filter(|cell| cell.fill == fill).peekable();
            if cells.peek().is_some() {
                self.fill(fill_color(fill, palette));
                cells.for_each(|cell| self.context.fill_rect(cell.x.into(), cell.y.into(), size, size));
            }
        }
        self.stroke(palette.dim, 1.0);
        for cell in scene.cells.iter().filter(|cell| cell.fill == Fill::Ended) {
            let (x, y) = (f64::from(cell.x), f64::from(cell.y));
            self.context.begin_path();
            self.context.move_to(x + 1.0, y + size - 1.0);
            self.context.line_to(x + size - 1.0, y + 1.0);
            self.context.stroke();
        }
    }

    /// Draws the ranks' numbers on the cells, if the cells are large enough.
    fn labels(&self, scene: &Scene, palette: &Palette) -> Result<(), JsValue> {
        let Some(size) = scene.label_size else { return Ok(()) };
        let half = f64::from(scene.cell_size) / 2.0;
        self.context.set_font(&format!("{size}px {FONT}"));
        self.context.set_text_align("center");
        self.context.set_text_baseline("middle");
        for color in [Rgb(0, 0, 0), Rgb(255, 255, 255)] {
            self.fill(color);
            let cells = scene.cells.iter().filter(|cell| fill_color(cell.fill, palette).text() == color);
            for (cell, rank) in cells.filter_map(|cell| Some((cell, cell.rank?))) {
                let (x, y) = (f64::from(cell.x) + half, f64::from(cell.y) + half + 0.5);
                self.context.fill_text(&rank.to_string(), x, y)?;
            }
        }
        Ok(())
    }

    /// Draws the groups' names and notes as far as they fit. Texts are measured only where the
    /// estimated width is not enough to decide, because measuring takes longer than drawing.
    fn titles(&self, scene: &Scene, palette: &Palette) -> Result<(), JsValue> {
        self.context.set_text_align("left");
        self.context.set_text_baseline("middle");
        self.context.set_font(&format!("600 12px {FONT}"));
        self.fill(palette.text);
        let mut notes = Vec::new();
        for title in &scene.titles {
            let (x, y, room) = (f64::from(title.x), f64::from(title.y) + 8.0, f64::from(title.width));
            let characters = title.name.chars().count();
            let note_room = room - characters as f64 * NARROW - NOTE_GAP;
            let may_have_note = note_room > title.note.chars().count() as f64 * NARROW;
            if !may_have_note && characters as f64 * WIDE <= room {
                self.context.fill_text(&title.name, x, y)?;
                continue;
            }
            let width = self.context.measure_text(&title.name)?.width();
            if width <= room {
                self.context.fill_text(&title.name, x, y)?;
                notes.push((x + width + NOTE_GAP, y, room - width - NOTE_GAP, &title.note));
            } else {
                // Names of machines differ at their end.
                let kept = (characters as f64 * room / width - 1.5).max(1.0) as usize;
                let end: String = title.name.chars().skip(characters.saturating_sub(kept)).collect();
                self.context.fill_text(&format!("…{end}"), x, y)?;
            }
        }
        self.context.set_font(&format!("12px {FONT}"));
        self.fill(palette.dim);
        for (x, y, room, note) in notes {
            if self.context.measure_text(note)?.width() <= room {
                self.context.fill_text(note, x, y)?;
            }
        }
        Ok(())
    }

    /// Outlines the cells of ranks that differ, and adds a dot to ranks whose events the server
    /// reads.
    fn marks(&self, scene: &Scene, palette: &Palette) -> Result<(), JsValue> {
        let size = f64::from(scene.cell_size);
        let is_large = scene.cell_size >= CORNER_CELL_SIZE;
        for cell in scene.cells.iter().filter(|cell| cell.is_marked) {
            self.stroke(palette.background, 1.5);
            self.outline(cell, size, -1.25);
            self.stroke(palette.marked, if is_large { 2.5 } else { 2.0 });
            self.outline(cell, size, 0.5);
            if is_large {
                let (right, top, leg) = (f64::from(cell.x) + size, f64::from(cell.y), (size * 0.3).min(11.0));
                self.fill(palette.marked);
                self.context.begin_path();
                self.context.move_to(right - leg, top);
                self.context.line_to(right, top);
                self.context.line_to(right, top + leg);
                self.context.fill();
            }
        }
        let radius = (size * 0.08).clamp(1.5, 3.0);
        for cell in scene.cells.iter().filter(|cell| cell.has_events) {
            self.fill(fill_color(cell.fill, palette).text());
            let at = 2.0 + radius;
            self.context.begin_path();
            self.context.arc(f64::from(cell.x) + at, f64::from(cell.y) + size - at, radius, 0.0, TAU)?;
            self.context.fill();
        }
        Ok(())
    }

    /// Draws a ring of color `color` around a cell, with the background's color on both sides.
    fn ring(&self, cell: &Cell, size: f32, background: Rgb, color: Rgb) {
        for (color, width) in [(background, 5.0), (color, 2.0)] {
            self.stroke(color, width);
            self.outline(cell, size.into(), 3.0);
        }
    }

    /// Draws a square around a cell, `outset` CSS pixels outside of its edges.
    fn outline(&self, cell: &Cell, size: f64, outset: f64) {
        let side = size + 2.0 * outset;
        self.context.stroke_rect(f64::from(cell.x) - outset, f64::from(cell.y) - outset, side, side);
    }
}

/// Returns the color of a cell's fill.
fn fill_color(fill: Fill, palette: &Palette) -> Rgb {
    match fill {
        Fill::Level(level) => palette.level(level),
        Fill::Ended => palette.ended,
        Fill::Unknown => palette.unknown,
    }
}
