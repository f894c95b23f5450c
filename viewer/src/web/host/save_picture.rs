//! Saving the picture of a view as a file.

use js_sys::{Array, Function, Object, Promise, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{Blob, BlobPropertyBag, CanvasRenderingContext2d, HtmlCanvasElement};

use super::super::browser::window;
use super::app::App;
use super::page::context_2d;
use super::save::download;
use crate::protocol::Surface;
use crate::saved_picture::{PictureFormat, PlacedText, STRIPE_WIDTH, SavedPicture};

/// Saves the pixels of a picture with title, legend and other parts around them; errors are shown
/// on the page.
pub(super) fn save(app: &App, surface: Surface, picture: &SavedPicture) {
    if let Err(error) = try_save(app, surface, picture) {
        app.page.show_message(&format!("cannot save the picture: {error:?}"));
    }
}

/// Saves a picture as [`save`] does, but returns errors.
fn try_save(app: &App, surface: Surface, picture: &SavedPicture) -> Result<(), JsValue> {
    let pixels = &app.page.pictures[surface as usize];
    let document = app.page.document.clone();
    if picture.format == PictureFormat::Svg {
        let svg = picture.svg(&pixels.to_data_url()?);
        let options = BlobPropertyBag::new();
        options.set_type("image/svg+xml");
        let blob = Blob::new_with_str_sequence_and_options(&Array::of1(&svg.into()), &options)?;
        return download(&document, Some(&blob), "", &picture.name);
    }
    let canvas: HtmlCanvasElement = document.create_element("canvas")?.dyn_into()?;
    canvas.set_width(picture.size.0);
    canvas.set_height(picture.size.1);
    draw(picture, pixels, &context_2d(&canvas)?)?;
    if picture.format == PictureFormat::Clipboard {
        let app = app.clone();
        let copied = Closure::once_into_js(move |blob: JsValue| copy_to_clipboard(app, blob));
        return canvas.to_blob(copied.unchecked_ref());
    }
    let name = picture.name.clone();
    let finished = Closure::once_into_js(move |blob: JsValue| {
        // Without memory for the file there is no blob.
        if !blob.is_null() {
            drop(download(&document, Some(&blob), "", &name));
        }
    });
    canvas.to_blob(finished.unchecked_ref())
}

/// Writes a picture to the clipboard, and shows a message about it. Without memory for the picture
/// there is no blob.
fn copy_to_clipboard(app: App, blob: JsValue) {
    spawn_local(async move {
        let message = match write_picture(&blob).await {
            Ok(()) => "The picture is on the clipboard.",
            Err(_) => "cannot copy: the browser refused access to the clipboard; save the picture instead",
        };
        app.page.show_message(message);
    });
}

/// Writes a PNG to the clipboard.
async fn write_picture(blob: &JsValue) -> Result<(), JsValue> {
    // Browsers have no clipboard for pages that are neither local nor encrypted.
    let window = window()?;
    let clipboard = Reflect::get(&window.navigator(), &"clipboard".into())?;
    let class: Function = Reflect::get(&window, &"ClipboardItem".into())?.dyn_into()?;
    let content = Object::new();
    Reflect::set(&content, &"image/png".into(), blob)?;
    let item = Reflect::construct(&class, &Array::of1(&content))?;
    let write: Function = Reflect::get(&clipboard, &"write".into())?.dyn_into()?;
    let written: Promise = write.call1(&clipboard, &Array::of1(&item))?.dyn_into()?;
    JsFuture::from(written).await.map(drop)
}

/// Draws a picture's pixels and its title and legend on a canvas, to save them as PNG.
fn draw(picture: &SavedPicture, pixels: &HtmlCanvasElement, context: &CanvasRenderingContext2d) -> Result<(), JsValue> {
    context.set_fill_style_str(&picture.background.css());
    context.fill_rect(0.0, 0.0, picture.size.0.into(), picture.size.1.into());
    context.draw_image_with_html_canvas_element(pixels, picture.at.0.into(), picture.at.1.into())?;
    for swatch in &picture.swatches {
        let ((x, y), (width, height)) = (swatch.at, swatch.size);
        context.set_fill_style_str(&swatch.color.css());
        context.fill_rect(x.into(), y.into(), width.into(), height.into());
        if let Some((color, lines)) = swatch.lines() {
            context.set_stroke_style_str(&color.css());
            context.set_line_width((height * STRIPE_WIDTH).into());
            for [(x0, y0), (x1, y1)] in lines {
                context.begin_path();
                context.move_to(x0.into(), y0.into());
                context.line_to(x1.into(), y1.into());
                context.stroke();
            }
        }
    }
    for PlacedText { text, at: (x, y), size, is_bold, color } in &picture.texts {
        context.set_fill_style_str(&color.css());
        context.set_font(&format!("{} {size}px vramscope, sans-serif", if *is_bold { 600 } else { 400 }));
        context.fill_text(text, (*x).into(), (*y).into())?;
    }
    Ok(())
}
