//! The pictures of the page: size, colors and pixels.

use js_sys::Uint8ClampedArray;
use vramscope_draw::text::REGULAR;
use vramscope_draw::{Bitmap, Theme};
use wasm_bindgen::prelude::*;
use web_sys::{FontFace, ImageData};

use super::super::browser::window;
use super::page::Page;
use crate::protocol::{Screen, Surface};

/// Font size of the page, in CSS pixels, at which a unit of layout is one CSS pixel; units grow
/// with the font size.
const UNIT_FONT_SIZE: f32 = 13.0;

/// The sizes of the page's pictures, and the scale of their pixels.
pub(super) struct Display {
    /// Canvas pixels per CSS pixel.
    ratio: f64,
    sizes: [(u32, u32); 3],
}

impl Default for Display {
    fn default() -> Self {
        Self { ratio: 1.0, sizes: Default::default() }
    }
}

impl Display {
    /// Returns the sizes of the pictures, the scale and the color scheme, and applies the scheme's
    /// colors to the page.
    pub(super) fn measure(&mut self, page: &Page) -> Screen {
        let Ok(window) = window() else { return Screen::default() };
        let query = window.match_media("(prefers-color-scheme: dark)").ok().flatten();
        let root = page.document.document_element();
        let chosen = root.as_ref().and_then(|root| root.get_attribute("data-theme"));
        let is_dark = match chosen.as_deref() {
            Some(theme) => theme == "dark",
            None => query.is_some_and(|query| query.matches()),
        };
        set_colors(page, &Theme::new(is_dark));
        self.ratio = window.device_pixel_ratio();
        let style = root.and_then(|root| window.get_computed_style(&root).ok().flatten());
        let font_size = style.and_then(|style| style.get_property_value("font-size").ok());
        let font_size = font_size.and_then(|size| size.trim_end_matches("px").parse::<f64>().ok());
        self.sizes = self.sizes_of(page);
        let scale = font_size.map_or(1.0, |size| size as f32 / UNIT_FONT_SIZE) * self.ratio as f32;
        Screen { sizes: self.sizes, scale, is_dark }
    }

    /// Returns the sizes of the pictures' elements on the screen, in pixels; (0, 0) for one that is
    /// not shown.
    fn sizes_of(&self, page: &Page) -> [(u32, u32); 3] {
        let pixels = |length: f64| ((length * self.ratio).round() as u32).min(Bitmap::MAX_SIDE);
        [0, 1, 2].map(|index: usize| {
            let rect = page.pictures[index].get_bounding_client_rect();
            (pixels(rect.width()), pixels(rect.height()))
        })
    }

    /// Returns the number of a picture's pixels per CSS pixel.
    pub(super) fn ratio(&self) -> f64 {
        self.ratio
    }

    /// Returns true if the size of a picture has changed since the last [`measure`](Self::measure).
    pub(super) fn is_outdated(&self, page: &Page) -> bool {
        self.sizes_of(page) != self.sizes
    }

    /// Converts a position in CSS pixels, as in pointer events, to pixels of a picture.
    pub(super) fn pixels(&self, x: i32, y: i32) -> (f64, f64) {
        (f64::from(x) * self.ratio, f64::from(y) * self.ratio)
    }
}

/// Shows a picture on its canvas. `pixels` is a buffer of `width` × `height` RGBA pixels.
pub(super) fn show_picture(
    page: &Page,
    surface: Surface,
    width: u32,
    height: u32,
    pixels: &JsValue,
) -> Result<(), JsValue> {
    let canvas = &page.pictures[surface as usize];
    if (canvas.width(), canvas.height()) != (width, height) {
        canvas.set_width(width);
        canvas.set_height(height);
    }
    let bytes = Uint8ClampedArray::new(pixels);
    let image = ImageData::new_with_js_u8_clamped_array_and_sh(&bytes, width, height)?;
    page.contexts[surface as usize].put_image_data(&image, 0.0, 0.0)
}

/// Registers the bundled font for the page's own text.
pub(super) fn register_font(page: &Page) -> Result<(), JsValue> {
    let face = FontFace::new_with_u8_array("vramscope", REGULAR)?;
    // If the browser refuses the font, the page uses the system's.
    let _ = face.load()?;
    page.document.fonts().add(&face).map(|_| ())
}

/// Sets the style sheet's color variables to the colors of a palette.
fn set_colors(page: &Page, theme: &Theme) {
    let Some(root) = page.document.document_element().and_then(|root| root.dyn_into::<web_sys::HtmlElement>().ok())
    else {
        return;
    };
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
    ];
    for (name, color) in colors {
        // Fails only for invalid property names.
        let _ = root.style().set_property(name, &color.css());
    }
}
