//! Opens files of other formats with an importer in a worker of its own.

use std::cell::RefCell;
use std::rc::Rc;

use wasm_bindgen::prelude::*;

use super::app::App;
use super::recording_bytes::RecordingBytes;
use super::recording_worker::make_recording;
use crate::open::{LoadedFile, RecordingLoader};
use crate::protocol::FromEngine;

/// Name of the function of the worker's script that starts an importer: it returns a `Worker`.
///
/// The importer gets one message, `{ name, source }`, where `source` is a `File` or a URL. Its
/// answers are objects: `{ part }` with the next bytes of the recording (an `ArrayBuffer`),
/// `{ share, text }` with progress, and at the end `{ done }` or `{ failure }`, a text.
const START_IMPORTER: &str = "startImporter";

/// Converts the file `source` (a `File` or a URL) called `name`; returns the recording and its
/// bytes. `is_current` returns false once the user has opened another file: then the import stops.
pub(super) async fn import(
    app: &App,
    name: &str,
    source: &JsValue,
    is_current: impl Fn() -> bool + Clone + 'static,
) -> Result<(LoadedFile, RecordingBytes), JsValue> {
    let loader = Rc::new(RefCell::new(RecordingLoader::default()));
    let loading = loader.clone();
    let js_name = JsValue::from(name);
    let fields = [("name", &js_name), ("source", source)];
    let current = (is_current, "the opening was stopped");
    let made = make_recording(app, START_IMPORTER, &fields, current, move |part| {
        loading.borrow_mut().push(&part.to_vec());
    });
    let made = made.await;
    app.send(&FromEngine::Progress(None));
    let bytes = made?.ok_or_else(|| {
        format!("{name} is not a recording, and this page cannot convert files: convert it with `vramscope import`")
    })?;
    let file = loader.take().finish().map_err(|error| JsValue::from(format!("{name}: {error}")))?;
    Ok((file, bytes))
}
