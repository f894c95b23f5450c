//! The two canvases: their size, their colors, their pictures.

use wasm_bindgen::prelude::*;
use wasm_bindgen::{Clamped, JsCast};
use web_sys::{CanvasRenderingContext2d, FontFace, HtmlCanvasElement, ImageData};

use super::page::Page;
use super::window;
use crate::frame::{Color, Frame};
use crate::heatmap::{self, Highlight, Hit, Layout};
use crate::model::Model;
use crate::text::{REGULAR, SEMI_BOLD, Typesetter};
use crate::theme::Theme;
use crate::timeline::{self, Geometry, Look};

/// The page's letter size, in CSS pixels, at which a unit of the pictures is a CSS pixel.
const UNIT_FONT: f32 = 13.0;

/// A canvas with the picture that is kept, and the one that was last shown.
struct Surface {
    canvas: HtmlCanvasElement,
    context: CanvasRenderingContext2d,
    base: Frame,
    shown: Frame,
}

impl Surface {
    fn new(canvas: &HtmlCanvasElement) -> Result<Self, JsValue> {
        let context = canvas.get_context("2d")?.ok_or("the browser gives no canvas to draw on")?.dyn_into()?;
        let nothing = Frame::new(1, 1, Color::default());
        Ok(Self { canvas: canvas.clone(), context, base: nothing.clone(), shown: nothing })
    }

    /// Makes the canvas as many pixels large as the screen has for it.
    fn fit(&mut self, ratio: f64) {
        let rect = self.canvas.get_bounding_client_rect();
        let pixels = |length: f64| ((length * ratio).round() as u32).clamp(1, Frame::MAX_SIDE);
        let (width, height) = (pixels(rect.width()), pixels(rect.height()));
        if (width as i32, height as i32) != (self.base.width(), self.base.height()) {
            self.canvas.set_width(width);
            self.canvas.set_height(height);
            self.base = Frame::new(width, height, Color::default());
        }
    }

    fn show(&self) -> Result<(), JsValue> {
        let (width, height) = (self.shown.width() as u32, self.shown.height() as u32);
        let image = ImageData::new_with_u8_clamped_array_and_sh(Clamped(self.shown.bytes()), width, height)?;
        self.context.put_image_data(&image, 0.0, 0.0)
    }
}

/// The canvases and how they are drawn.
pub(super) struct Screen {
    timeline: Surface,
    heatmap: Surface,
    type_: Typesetter,
    theme: Theme,
    /// Pixels to the unit.
    scale: f32,
    /// Pixels to the CSS pixel.
    ratio: f64,
    geometry: Option<Geometry>,
    layout: Option<Layout>,
}

impl Screen {
    pub(super) fn new(page: &Page) -> Result<Self, JsValue> {
        register_font(page)?;
        Ok(Self {
            timeline: Surface::new(&page.timeline)?,
            heatmap: Surface::new(&page.heatmap)?,
            type_: Typesetter::new(),
            theme: Theme::new(false),
            scale: 1.0,
            ratio: 1.0,
            geometry: None,
            layout: None,
        })
    }

    /// Takes over the page's size and the system's colors.
    pub(super) fn measure(&mut self, page: &Page) {
        let Ok(window) = window() else { return };
        let dark =
            window.match_media("(prefers-color-scheme: dark)").ok().flatten().is_some_and(|query| query.matches());
        self.theme = Theme::new(dark);
        set_colors(page, &self.theme);
        self.ratio = window.device_pixel_ratio();
        let root = page.document.document_element();
        let style = root.and_then(|root| window.get_computed_style(&root).ok().flatten());
        let letters = style.and_then(|style| style.get_property_value("font-size").ok());
        let letters = letters.and_then(|size| size.trim_end_matches("px").parse::<f32>().ok()).unwrap_or(UNIT_FONT);
        self.scale = letters / UNIT_FONT * self.ratio as f32;
        self.timeline.fit(self.ratio);
        self.heatmap.fit(self.ratio);
    }

    pub(super) fn theme(&self) -> &Theme {
        &self.theme
    }

    /// Pixels of the canvases to a CSS pixel.
    pub(super) fn ratio(&self) -> f64 {
        self.ratio
    }

    pub(super) fn geometry(&self) -> Option<&Geometry> {
        self.geometry.as_ref()
    }

    pub(super) fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    /// Draws the timeline; all of it only if it has changed, else only the moment.
    pub(super) fn draw_timeline(&mut self, model: &mut Model, changed: bool) -> Result<(), JsValue> {
        let look = Look { theme: &self.theme, scale: self.scale };
        let surface = &mut self.timeline;
        if changed || self.geometry.is_none() {
            let content = timeline::Content {
                recording: model.recording(),
                device: model.device(),
                marks: model.marks(),
                peaks: model.peaks(),
                bands: model.bands(),
                range: model.range(),
            };
            let geometry = timeline::draw(&mut surface.base, &mut self.type_, look, &content);
            model.timeline_width = usize::try_from(geometry.plot.width()).unwrap_or(0);
            self.geometry = Some(geometry);
        }
        surface.shown.copy_from(&surface.base);
        if let Some(geometry) = &self.geometry {
            timeline::draw_cursor(
                &mut surface.shown,
                &mut self.type_,
                look,
                geometry,
                model.recording(),
                model.time_ns(),
            );
        }
        surface.show()
    }

    /// Draws the heatmap, and gives back what is under the pointer. Where only the pointer moved the picture itself is kept.
    pub(super) fn draw_heatmap(
        &mut self,
        model: &mut Model,
        hover: Option<(i32, i32)>,
        changed: bool,
    ) -> Result<Option<Hit>, JsValue> {
        let view = model.heatmap_view;
        let surface = &mut self.heatmap;
        let device = model.device_state();
        if changed || self.layout.is_none() {
            let size = (surface.base.width() as u32, surface.base.height() as u32);
            let layout = Layout::new(device, size, self.scale, view);
            let definitions = model.recording().definitions();
            let content = heatmap::Content { device, definitions, color_by: model.color_by, theme: &self.theme };
            heatmap::draw(&mut surface.base, &mut self.type_, &layout, content);
            self.layout = Some(layout);
        }
        surface.shown.copy_from(&surface.base);
        let Some(layout) = &self.layout else { return Ok(None) };
        let hit = hover.and_then(|(x, y)| layout.hit(device, x, y));
        if let Some(selected) = model.selected() {
            let range = (selected.address, selected.size);
            heatmap::draw_highlight(&mut surface.shown, layout, &self.theme, range, Highlight::Selected);
        }
        if let Some(hit) = hit {
            let range = (hit.address, hit.size);
            heatmap::draw_highlight(&mut surface.shown, layout, &self.theme, range, Highlight::Hovered);
        }
        model.heatmap_view.scroll = layout.scroll;
        surface.show()?;
        Ok(hit)
    }
}

/// Sets the page in the letters that the pictures are set in.
fn register_font(page: &Page) -> Result<(), JsValue> {
    for (bytes, weight) in [(REGULAR, "400"), (SEMI_BOLD, "600")] {
        let face = FontFace::new_with_u8_array("vramscope", bytes)?;
        face.set_weight(weight);
        // The page is legible in the system's letters as well, should the browser refuse these.
        let _ = face.load()?;
        page.document.fonts().add(&face)?;
    }
    Ok(())
}

/// Gives the style sheet the colors that the pictures are drawn with.
fn set_colors(page: &Page, theme: &Theme) {
    let Some(root) = page.document.document_element().and_then(|root| root.dyn_into::<web_sys::HtmlElement>().ok())
    else {
        return;
    };
    let [heat_0, heat_1, heat_2] = theme.heat;
    let colors = [
        ("--background", theme.background),
        ("--well", theme.well),
        ("--grid", theme.grid),
        ("--text", theme.text),
        ("--dim", theme.dim),
        ("--faint", theme.faint),
        ("--cursor", theme.cursor),
        ("--allocated", theme.allocated),
        ("--waste", theme.waste(theme.allocated)),
        ("--pending", theme.pending),
        ("--free", theme.free),
        ("--free-hatch", theme.free_hatch),
        ("--cached", theme.cached),
        ("--cached-hatch", theme.cached_hatch),
        ("--reserved", theme.reserved_line),
        ("--outside", theme.outside),
        ("--others", theme.others),
        ("--alarm", theme.alarm),
        ("--heat-0", heat_0),
        ("--heat-1", heat_1),
        ("--heat-2", heat_2),
    ];
    for (name, color) in colors {
        // It fails only for a name that is none.
        let _ = root.style().set_property(name, &css(color));
    }
}

/// A color as style sheets write it.
pub(super) fn css(color: Color) -> String {
    format!("#{:02x}{:02x}{:02x}", color.r, color.g, color.b)
}
