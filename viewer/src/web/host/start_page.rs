//! The start page: recordings that the server offers, recent files, the gallery and installation.
//!
//! The page's script `start.js` does the work; an exported HTML page has none of it.

use js_sys::{Object, Promise, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{DataTransfer, File};

use super::super::browser::error_text;
use super::app::App;
use crate::protocol::{RecordingSource, Sources};

/// Message for commands of the start page on a page without its script.
const NO_SCRIPT: &str = "an exported page has no start page; open another file with Open…";

/// Message where the recording cannot be saved as an HTML file.
const NO_TEMPLATE: &str = "this page cannot write HTML files: open the recording with `vramscope view`";

/// Calls the start page's script with a command and a value, and returns its result; `None` without
/// a script, or if the command fails.
fn call(app: &App, command: &str, value: &JsValue) -> Option<JsValue> {
    let script = app.start_script.borrow().clone()?;
    script.call2(&JsValue::UNDEFINED, &command.into(), value).ok()
}

/// Executes a command of the start page and shows the message that it returns, if any.
pub(super) fn run(app: &App, name: &str, argument: &str) {
    match call(app, name, &argument.into()) {
        Some(result) => show_result(app, result),
        None => app.page.show_message(NO_SCRIPT),
    }
}

/// Offers the page with a recording called `name` in it as a download; the recording is a blob, or
/// at `url`.
pub(super) fn save_html(app: &App, blob: Option<&JsValue>, url: &str, name: &str) {
    let recording = object(&[("blob", blob.cloned().unwrap_or_default()), ("url", url.into()), ("name", name.into())]);
    match call(app, "save-html", &recording) {
        Some(result) => show_result(app, result),
        None => app.page.show_message(NO_TEMPLATE),
    }
}

/// Returns an object with these properties.
fn object(properties: &[(&str, JsValue)]) -> Object {
    let object = Object::new();
    for (name, value) in properties {
        // Fails only for objects that cannot be changed.
        let _ = Reflect::set(&object, &(*name).into(), value);
    }
    object
}

/// Shows the message that a promise or another result of the script contains, if any.
fn show_result(app: &App, result: JsValue) {
    let app = app.clone();
    spawn_local(async move {
        let text = match JsFuture::from(Promise::resolve(&result)).await {
            Ok(result) => result.as_string(),
            Err(error) => Some(error_text(&error)),
        };
        if let Some(text) = text {
            app.page.show_message(&text);
        }
    });
}

/// Shows the start page and fills its lists.
pub(super) fn show(app: &App) {
    call(app, "show", &JsValue::UNDEFINED);
}

/// Hides the start page if it covers a recording. Returns true if it did.
pub(super) fn close(app: &App) -> bool {
    call(app, "close", &JsValue::UNDEFINED).is_some_and(|was_shown| was_shown.is_truthy())
}

/// Adds the recording on the page to the start page's recent files.
pub(super) fn opened(app: &App, sources: &Sources) {
    let (url, file) = match &sources.recording {
        RecordingSource::Url(url) => (url.as_str(), None),
        RecordingSource::File(number) => ("", app.state.borrow().history.file(*number)),
        RecordingSource::Program | RecordingSource::None => return,
    };
    let recording = object(&[("url", url.into()), ("file", file.unwrap_or_default())]);
    call(app, "opened", &recording);
}

/// Returns the file that was dropped on the page; `None` if there is none. The start page's script
/// keeps a handle to open it again later.
pub(super) fn dropped(app: &App, transfer: &DataTransfer) -> Option<File> {
    let kept = call(app, "dropped", transfer).and_then(|file| file.dyn_into().ok());
    kept.or_else(|| transfer.files()?.get(0))
}

/// Lets the user choose a file that can be opened again later, and calls `open` with it. Returns
/// false if the browser cannot do that.
pub(super) fn choose(app: &App, open: fn(&App, &JsValue)) -> bool {
    let Some(choice) = call(app, "choose", &JsValue::UNDEFINED).and_then(|choice| choice.dyn_into::<Promise>().ok())
    else {
        return false;
    };
    let app = app.clone();
    spawn_local(async move {
        if let Ok(file) = JsFuture::from(choice).await
            && file.is_instance_of::<File>()
        {
            open(&app, &file);
        }
    });
    true
}
