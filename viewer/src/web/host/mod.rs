//! The page: owns the elements, receives input and shows the engine's pictures and texts.
//!
//! Each frame, the page sends the engine the user's actions and receives pictures, texts and the
//! contents of the panes. The engine computes all pictures and texts.

mod api;
mod app;
mod controls;
mod controls_view;
mod dialogs;
mod early_search;
mod editor;
mod history;
mod input;
mod key_presses;
mod linked;
mod list_scroll;
mod page;
mod page_commands;
mod page_history;
mod panel;
mod render;
mod save;
mod save_picture;
mod screen;
mod splitters;
mod start_page;
mod storage;

use js_sys::{Function, Promise};
use wasm_bindgen::prelude::*;
use web_sys::{File, MessageChannel, MessagePort};

use self::app::App;
use super::browser::{run_after, window};
use super::panic_message;
use crate::protocol::{FromEngine, PageStage, RecordingSource, ToEngine};

/// Starts the page on the current document.
///
/// `connect` returns a message port whose other end is an engine in a worker; without it, or if it
/// fails, the engine runs beside the page. The promise resolves once `file` is open; without a
/// file, once the recording named in the address is open or the live connection is established.
/// `script` executes the commands of the start page, see `www/start.js`; an exported page has none.
#[wasm_bindgen]
pub fn start(file: Option<File>, connect: Option<Function>, script: Option<Function>) -> Promise {
    start_app(file, connect.as_ref(), script).unwrap_or_else(|error| Promise::reject(&error))
}

/// Starts the page and returns a promise that resolves once the page is ready; see [`start`].
fn start_app(file: Option<File>, connect: Option<&Function>, script: Option<Function>) -> Result<Promise, JsValue> {
    let document = window()?.document().ok_or("the window has no document")?;
    let app = App::new(&document, engine_port(connect)?, react)?;
    *app.start_script.borrow_mut() = script;
    let reporting = app.clone();
    panic_message::report_to(move |text| reporting.report_panic(&text));
    input::listen(&app)?;
    api::publish(&app)?;
    let address = window()?.location().href()?;
    let ready = Promise::new(&mut |resolve, _| *app.on_ready.borrow_mut() = Some(resolve));
    let objects: Vec<JsValue> = file.into_iter().map(JsValue::from).collect();
    let embedded = objects.first().map(|file| RecordingSource::File(app.state.borrow_mut().history.keep_file(file)));
    app.send_with(&ToEngine::Start { address, file: embedded.unwrap_or_default() }, &objects);
    app.want_frame();
    Ok(ready)
}

/// Starts the engine, in a worker if `connect` can, and returns the page's port to it.
fn engine_port(connect: Option<&Function>) -> Result<MessagePort, JsValue> {
    let connected = connect.and_then(|connect| connect.call0(&JsValue::UNDEFINED).ok());
    if let Some(port) = connected.and_then(|port| port.dyn_into().ok()) {
        return Ok(port);
    }
    let channel = MessageChannel::new()?;
    super::engine::start_engine(channel.port2())?;
    Ok(channel.port1())
}

/// Handles a message from the engine. `objects` are the blobs and buffers beside it.
fn react(app: &App, message: FromEngine, objects: Vec<JsValue>) {
    match message {
        FromEngine::Frame(frame) => {
            app.show_frame(*frame, &objects);
            *app.shown_pixels.borrow_mut() = objects;
        }
        FromEngine::FrameWanted(delay_ms) if delay_ms > 1.0 => {
            let app = app.clone();
            run_after(delay_ms as i32, move || app.want_frame());
        }
        FromEngine::FrameWanted(_) => app.want_frame(),
        FromEngine::Answer(number, result) => app.settle(number, result),
        FromEngine::Message(Some(text)) => app.page.show_message(&text),
        FromEngine::Message(None) => drop(app.page.hide_message()),
        FromEngine::Stage(stage, title, text) => {
            app.page.set_stage(stage, &title, &text);
            if stage == PageStage::StartPage {
                start_page::show(app);
            }
        }
        FromEngine::Progress(progress) => app.page.show_progress(progress),
        FromEngine::Download { name, url, is_html: true } => start_page::save_html(app, objects.first(), &url, &name),
        FromEngine::Download { name, url, .. } => {
            let page = &app.page;
            if let Err(error) = save::download(&page.document, objects.first(), &url, &name) {
                page.show_message(&format!("cannot save the recording: {error:?}"));
            }
        }
        FromEngine::Clipboard(text) => page_commands::copy(app, text),
        FromEngine::Picture(surface, picture) => save_picture::save(app, surface, &picture),
        FromEngine::Sources(sources) => {
            start_page::opened(app, &sources);
            let is_file = matches!(sources.recording, RecordingSource::File(_));
            app.state.borrow_mut().history.shown.0 = sources;
            if is_file {
                input::compare_dropped(app);
            }
        }
        FromEngine::WentBack => app.went_back(),
        FromEngine::LoadControls => controls::load_commands(app),
        FromEngine::Ready => {
            if let Some(on_ready) = app.on_ready.take() {
                let _ = on_ready.call0(&JsValue::UNDEFINED);
            }
            app.want_frame();
        }
        FromEngine::Panic(text) => app.report_panic(&text),
    }
}
