//! Loads the second module of the viewer's WebAssembly, which has the functions of the later views.
//!
//! The module fills slots of this module's table when it is instantiated. Everything that it needs,
//! it imports from this module's exports.

use std::cell::{Cell, RefCell};

use js_sys::{Function, Object, Promise, Reflect, WebAssembly};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::RequestInit;

use super::super::browser::{error_text, fetch, now_ms};
use super::app::App;
use crate::later;

/// URL of the second module, relative to the engine's script and to the page.
const URL: &str = "./pkg/vramscope_viewer_later_bg.wasm";
/// The function of the engine's script that returns the second module's `Response`; only an
/// exported HTML page has it, others fetch [`URL`].
const OPEN_FUNCTION: &str = "openLaterModule";
/// The export that only a module with a second one has: the table with the second one's functions.
const TABLE_EXPORT: &str = "later";
/// The name under which the second module imports this module's exports.
const IMPORT_MODULE: &str = "first";
/// Time in milliseconds after a failure before the module is requested again.
const RETRY_MS: f64 = 2000.0;

thread_local! {
    /// The running request for the second module.
    static RUNNING: RefCell<Option<Promise>> = const { RefCell::new(None) };
    /// When the last request failed, by the engine's clock.
    static FAILED_MS: Cell<Option<f64>> = const { Cell::new(None) };
}

/// Notes that the second module must be loaded, if there is one.
pub(super) fn init() {
    let has_later = Reflect::has(&wasm_bindgen::exports(), &TABLE_EXPORT.into());
    later::set_loaded(!has_later.unwrap_or(false));
}

/// Starts to load the second module, if it is missing: once the page shows a picture, or when a
/// view needs it. After a failure, it is loaded again when a view needs it.
pub(super) fn update(app: &App) {
    if later::is_loaded() {
        return;
    }
    let has_picture = app.0.state.borrow().frame_ms > 0.0;
    let failed_ms = FAILED_MS.get();
    let is_early = failed_ms.is_some_and(|failed_ms| now_ms() - failed_ms < RETRY_MS);
    if later::is_requested() && !is_early || has_picture && failed_ms.is_none() {
        drop(start(app));
    }
}

/// Loads the second module, unless it is loaded.
///
/// # Errors
/// If the server does not answer, or has another version of the page: a text.
pub(super) async fn load(app: &App) -> Result<(), String> {
    if later::is_loaded() {
        return Ok(());
    }
    JsFuture::from(start(app)).await.map_err(|error| failure(&error))?;
    // This may run before the task that `start` has started.
    later::set_loaded(true);
    Ok(())
}

/// Returns the running request for the second module, or starts one. When the module has arrived,
/// the page draws a frame.
fn start(app: &App) -> Promise {
    if let Some(running) = RUNNING.with_borrow(Clone::clone) {
        return running;
    }
    let promise = instantiate();
    RUNNING.set(Some(promise.clone()));
    let (app, loading) = (app.clone(), promise.clone());
    spawn_local(async move {
        let result = JsFuture::from(loading).await;
        RUNNING.set(None);
        match result {
            Ok(_) => {
                later::set_loaded(true);
                if FAILED_MS.get().is_some() {
                    app.hide_message();
                }
                app.change_model(|_| {});
            }
            Err(error) => {
                FAILED_MS.set(Some(now_ms()));
                if later::is_requested() {
                    app.show_message(&failure(&error));
                }
            }
        }
    });
    promise
}

/// Returns the message about a failed request.
fn failure(error: &JsValue) -> String {
    let is_other_version = error.has_type::<WebAssembly::LinkError>();
    let reason =
        if is_other_version { "the server has another version of the page".to_owned() } else { error_text(error) };
    format!("cannot load the part of the page that draws this view: {reason}: reload the page")
}

/// Fetches and instantiates the second module.
fn instantiate() -> Promise {
    let start = || -> Result<Promise, JsValue> {
        let response = match Reflect::get(&js_sys::global(), &OPEN_FUNCTION.into())?.dyn_into::<Function>() {
            Ok(open) => open.call0(&JsValue::UNDEFINED)?,
            Err(_) => fetch(URL, &RequestInit::new()).into(),
        };
        let imports = Object::new();
        Reflect::set(&imports, &IMPORT_MODULE.into(), &wasm_bindgen::exports())?;
        Ok(WebAssembly::instantiate_streaming(&response, &imports))
    };
    start().unwrap_or_else(|error| Promise::reject(&error))
}
