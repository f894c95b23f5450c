//! Opens files of other formats with an importer in a worker of its own.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Function, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

use super::app::App;
use super::page_worker::{Answer, PageWorker};
use super::recording_bytes::RecordingBytes;
use crate::open::{LoadedFile, RecordingLoader};
use crate::protocol::FromEngine;

/// Name of the function of the worker's script that starts an importer: it returns a `Worker`.
///
/// The importer gets one message, `{ name, source }`, where `source` is a `File` or a URL. Its
/// answers are objects: `{ part }` with the next bytes of the recording (an `ArrayBuffer`),
/// `{ share, text }` with progress, and at the end `{ done }` or `{ failure }`, a text.
const START_IMPORTER: &str = "startImporter";

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
    is_current: impl Fn() -> bool + Clone + 'static,
) -> Result<(LoadedFile, RecordingBytes), JsValue> {
    let arriving = Rc::new(RefCell::new(Arriving::default()));
    let end = Promise::new(&mut |resolve, reject| arriving.borrow_mut().on_end = Some((resolve, reject)));
    let (receiving, reporting) = (arriving.clone(), app.clone());
    let worker = PageWorker::start(START_IMPORTER, move |answer| {
        receive(&reporting, &mut receiving.borrow_mut(), answer, &is_current);
    })?;
    let worker = worker.ok_or_else(|| {
        format!("{name} is not a recording, and this page cannot convert files: convert it with `vramscope import`")
    })?;
    worker.send(&[("name", &name.into()), ("source", source)])?;
    let ended = JsFuture::from(end).await;
    app.send(&FromEngine::Progress(None));
    drop(worker);
    ended?;
    let arrived = arriving.take();
    let file = arrived.loader.finish().map_err(|error| JsValue::from(format!("{name}: {error}")))?;
    Ok((file, arrived.bytes))
}

/// Handles an answer of the importer.
fn receive(app: &App, arriving: &mut Arriving, answer: Answer, is_current: &impl Fn() -> bool) {
    match answer {
        _ if !is_current() => arriving.end(Some(&"the opening was stopped".into())),
        Answer::Part(bytes) => {
            arriving.loader.push(&bytes.to_vec());
            arriving.bytes.push(&bytes);
        }
        Answer::Progress(share, text) => app.send(&FromEngine::Progress(Some((share, text)))),
        Answer::Done(_) => arriving.end(None),
        Answer::Failed(error) => arriving.end(Some(&error)),
    }
}
