//! The viewer in a browser: turns input into calls of the [`Model`](crate::model::Model), and the
//! [`Scene`](crate::scene::Scene) into canvases and elements.
//!
//! A frame is drawn only when something has changed. Modules below `app` do not know it; those
//! above implement what users, scripts and the live connection do with it.

mod api;
mod app;
mod browser;
mod byte_source;
mod commands;
mod controls;
mod controls_view;
mod fetching;
mod input;
mod keys;
mod listener;
mod live;
mod message_queue;
mod open_file;
mod page;
mod panel;
mod panic_message;
mod recording_bytes;
mod save;
mod screen;
mod socket;

use js_sys::Promise;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;
use web_sys::File;

/// Starts the viewer on the current document.
///
/// The promise resolves once `file` is open; without a file, once the recording named in the
/// address is open or the live connection is established.
#[wasm_bindgen]
pub fn start(file: Option<File>) -> Promise {
    panic_message::install();
    future_to_promise(async {
        let document = browser::window()?.document().ok_or("the window has no document")?;
        let app = app::App::new(&document)?;
        input::listen(&app)?;
        api::publish(&app)?;
        match file {
            Some(file) => open_file::open_embedded_file(&app, file).await,
            None => open_file::open_address(&app).await,
        }
        Ok(JsValue::UNDEFINED)
    })
}
