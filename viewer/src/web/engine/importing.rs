//! Opens files of other formats with an importer in a worker of its own.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Function, Object, Promise, Reflect, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{Event, MessageEvent, Worker};

use super::super::listener::Listener;
use super::app::App;
use super::recording_bytes::RecordingBytes;
use crate::open::{LoadedFile, RecordingLoader};
use crate::protocol::FromEngine;

/// Name of the function of the worker's script that starts an importer: it returns a `Worker`.
///
/// The importer gets one message, `{ name, source }`, where `source` is a `File` or a URL. Its
/// answers are objects: `{ part }` with the next bytes of the recording (an `ArrayBuffer`),
/// `{ share, text }` with progress, and at the end `{ done }` or `{ failure }`, a text.
const START_IMPORTER: &str = "startImporter";

/// A running importer. Dropping it ends its worker.
struct Importer {
    worker: Worker,
    _listeners: [Listener; 2],
}

impl Drop for Importer {
    fn drop(&mut self) {
        self.worker.terminate();
    }
}

/// What has arrived of a recording, and what resolves or rejects when it is complete.
#[derive(Default)]
struct Arriving {
    loader: RecordingLoader,
    bytes: RecordingBytes,
    on_end: Option<(Function, Function)>,
}

impl Arriving {
    /// Ends the conversion, with an error's text if it has failed.
    fn end(&mut self, error: Option<&JsValue>) {
        if let Some((resolve, reject)) = self.on_end.take() {
            let _ = match error {
                None => resolve.call0(&JsValue::UNDEFINED),
                Some(error) => reject.call1(&JsValue::UNDEFINED, error),
            };
        }
    }
}

/// Converts the file `source` (a `File` or a URL) called `name`; returns the recording and its
/// bytes. `is_current` returns false once the user has opened another file: then the import stops.
pub(super) async fn import(
    app: &App,
    name: &str,
    source: &JsValue,
    is_current: impl Fn() -> bool + 'static,
) -> Result<(LoadedFile, RecordingBytes), JsValue> {
    let arriving = Rc::new(RefCell::new(Arriving::default()));
    let end = Promise::new(&mut |resolve, reject| arriving.borrow_mut().on_end = Some((resolve, reject)));
    let (receiving, reporting) = (arriving.clone(), app.clone());
    let (failing, failed_name) = (arriving.clone(), name.to_owned());
    let importer = start(
        name,
        move |message| receive(&reporting, &mut receiving.borrow_mut(), &message, &is_current),
        move || {
            let text = format!("{failed_name}: the part of the page that converts files could not be loaded; reload");
            failing.borrow_mut().end(Some(&text.into()));
        },
    )?;
    let request = Object::new();
    Reflect::set(&request, &"name".into(), &name.into())?;
    Reflect::set(&request, &"source".into(), source)?;
    importer.worker.post_message(&request)?;
    let ended = JsFuture::from(end).await;
    app.send(&FromEngine::Progress(None));
    drop(importer);
    ended?;
    let arrived = arriving.take();
    let file = arrived.loader.finish().map_err(|error| JsValue::from(format!("{name}: {error}")))?;
    Ok((file, arrived.bytes))
}

/// Starts an importer of the file called `name`; `react` is called with its messages, `fail` if its
/// script fails.
fn start(
    name: &str,
    mut react: impl FnMut(JsValue) + 'static,
    mut fail: impl FnMut() + 'static,
) -> Result<Importer, JsValue> {
    let start: Function = Reflect::get(&js_sys::global(), &START_IMPORTER.into())?.dyn_into().map_err(|_| {
        format!("{name} is not a recording, and this page cannot convert files: convert it with `vramscope import`")
    })?;
    let worker: Worker = start.call0(&JsValue::UNDEFINED)?.dyn_into()?;
    let on_message = Listener::new(&worker, "message", move |event: MessageEvent| react(event.data()))?;
    let on_error = Listener::new(&worker, "error", move |_: Event| fail())?;
    Ok(Importer { worker, _listeners: [on_message, on_error] })
}

/// Handles a message of the importer.
fn receive(app: &App, arriving: &mut Arriving, message: &JsValue, is_current: &impl Fn() -> bool) {
    let field = |name: &str| Reflect::get(message, &name.into()).ok().filter(|value| !value.is_undefined());
    if !is_current() {
        arriving.end(Some(&"the opening was stopped".into()));
    } else if let Some(part) = field("part") {
        let bytes = Uint8Array::new(&part);
        arriving.loader.push(&bytes.to_vec());
        arriving.bytes.push(&bytes);
    } else if let (Some(share), Some(text)) = (field("share"), field("text")) {
        let (share, text) = (share.as_f64().unwrap_or_default(), text.as_string().unwrap_or_default());
        app.send(&FromEngine::Progress(Some((share, text))));
    } else if field("done").is_some() {
        arriving.end(None);
    } else if let Some(failure) = field("failure") {
        arriving.end(Some(&failure));
    }
}
