//! The two canvases: size, colors and pictures.

use wasm_bindgen::prelude::*;
use wasm_bindgen::{Clamped, JsCast};
use web_sys::{CanvasRenderingContext2d, FontFace, HtmlCanvasElement, ImageData};

use super::browser::window;
use super::page::Page;
use crate::frame::{Color, Frame};
use crate::scene::{Layers, Scene, Viewport};
use crate::text::{REGULAR, SEMI_BOLD, Typesetter};
use crate::theme::Theme;

/// The page's font size in CSS pixels at which a unit is one CSS pixel.
const UNIT_FONT_SIZE: f32 = 13.0;

/// A canvas element of the page with its picture.
struct Canvas {
    element: HtmlCanvasElement,
    context: CanvasRenderingContext2d,
    layers: Layers,
}

impl Canvas {
    fn new(element: &HtmlCanvasElement) -> Result<Self, JsValue> {
        let context = element.get_context("2d")?.ok_or("the browser does not support 2D canvases")?.dyn_into()?;
        Ok(Self { element: element.clone(), context, layers: Layers::default() })
    }

    /// Resizes the canvas and its picture to the element's size on the screen. `ratio` is canvas
    /// pixels per CSS pixel.
    fn fit(&mut self, ratio: f64) {
        let rect = self.element.get_bounding_client_rect();
        let pixels = |length: f64| ((length * ratio).round() as u32).clamp(1, Frame::MAX_SIDE);
        let size = (pixels(rect.width()), pixels(rect.height()));
        if size != self.layers.size() {
            self.element.set_width(size.0);
            self.element.set_height(size.1);
            self.layers.resize(size);
        }
    }

    /// Copies the picture to the canvas element.
    fn show(&self) -> Result<(), JsValue> {
        let picture = self.layers.picture();
        let (width, height) = (picture.width() as u32, picture.height() as u32);
        let image = ImageData::new_with_u8_clamped_array_and_sh(Clamped(picture.bytes()), width, height)?;
        self.context.put_image_data(&image, 0.0, 0.0)
    }
}

/// The timeline's and the heatmap's canvases, with the colors, font and scale for drawing them.
pub(super) struct Screen {
    timeline: Canvas,
    heatmap: Canvas,
    typesetter: Typesetter,
    theme: Theme,
    /// Canvas pixels per unit.
    scale: f32,
    /// Canvas pixels per CSS pixel.
    ratio: f64,
}

impl Screen {
    pub(super) fn new(page: &Page) -> Result<Self, JsValue> {
        register_font(page)?;
        Ok(Self {
            timeline: Canvas::new(&page.timeline)?,
            heatmap: Canvas::new(&page.heatmap)?,
            typesetter: Typesetter::new(),
            theme: Theme::new(false),
            scale: 1.0,
            ratio: 1.0,
        })
    }

    /// Adapts the canvases and colors to the page's size and the system's color scheme.
    pub(super) fn measure(&mut self, page: &Page) {
        let Ok(window) = window() else { return };
        let is_dark =
            window.match_media("(prefers-color-scheme: dark)").ok().flatten().is_some_and(|query| query.matches());
        self.theme = Theme::new(is_dark);
        set_colors(page, &self.theme);
        self.ratio = window.device_pixel_ratio();
        let root = page.document.document_element();
        let style = root.and_then(|root| window.get_computed_style(&root).ok().flatten());
        let font_size = style.and_then(|style| style.get_property_value("font-size").ok());
        let font_size = font_size.and_then(|size| size.trim_end_matches("px").parse::<f32>().ok());
        self.scale = font_size.unwrap_or(UNIT_FONT_SIZE) / UNIT_FONT_SIZE * self.ratio as f32;
        self.timeline.fit(self.ratio);
        self.heatmap.fit(self.ratio);
    }

    /// Returns both canvases' sizes in pixels, and the pixels per unit.
    pub(super) fn viewport(&self) -> Viewport {
        Viewport { timeline: self.timeline.layers.size(), heatmap: self.heatmap.layers.size(), scale: self.scale }
    }

    /// Returns the typesetter that measures and draws text on both canvases.
    pub(super) fn typesetter(&self) -> &Typesetter {
        &self.typesetter
    }

    /// Returns the colors for the system's color scheme.
    pub(super) fn theme(&self) -> &Theme {
        &self.theme
    }

    /// Returns the canvas pixels per CSS pixel.
    pub(super) fn ratio(&self) -> f64 {
        self.ratio
    }

    /// Draws the timeline's canvas; unless `is_changed`, only the cursor is drawn again.
    pub(super) fn draw_timeline(&mut self, scene: &Scene, is_changed: bool) -> Result<(), JsValue> {
        self.timeline.layers.draw_timeline(scene, is_changed, &self.theme, &mut self.typesetter);
        self.timeline.show()
    }

    /// Draws the heatmap's canvas; unless `is_changed`, only the highlights are drawn again.
    pub(super) fn draw_heatmap(&mut self, scene: &Scene, is_changed: bool) -> Result<(), JsValue> {
        self.heatmap.layers.draw_heatmap(scene, is_changed, &self.theme, &mut self.typesetter);
        self.heatmap.show()
    }
}

/// Registers the bundled font for the page's own text.
fn register_font(page: &Page) -> Result<(), JsValue> {
    for (bytes, weight) in [(REGULAR, "400"), (SEMI_BOLD, "600")] {
        let face = FontFace::new_with_u8_array("vramscope", bytes)?;
        face.set_weight(weight);
        // If the browser refuses the font, the page uses the system's.
        let _ = face.load()?;
        page.document.fonts().add(&face)?;
    }
    Ok(())
}

/// Sets the style sheet's color variables to the colors of a palette.
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
        ("--waste", theme.rounding(theme.allocated)),
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
        // Fails only for invalid property names.
        let _ = root.style().set_property(name, &css(color));
    }
}

/// Returns a color in CSS syntax: `#2a68ad`.
pub(super) fn css(color: Color) -> String {
    format!("#{:02x}{:02x}{:02x}", color.r, color.g, color.b)
}
