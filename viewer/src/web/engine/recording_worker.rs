//! Workers that make a recording: the importer, and the analyzer for an excerpt.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Function, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

use super::app::App;
use super::page_worker::{Answer, PageWorker};
use super::recording_bytes::RecordingBytes;
use crate::protocol::FromEngine;

/// Runs a worker that produces a recording, such as the importer, and returns the recording's
/// bytes. The worker is started by `function` of the engine's script (`None` if the script lacks
/// it) and gets an object with `fields`. Calls `on_part` with each part of the bytes, and shows the
/// progress.
///
/// # Errors
/// If the worker fails, or once `is_current` returns false (the user has cancelled it or opened
/// another recording); the error is then the text `stopped`.
pub(super) async fn make_recording(
    app: &App,
    function: &str,
    fields: &[(&str, &JsValue)],
    (is_current, stopped): (impl Fn() -> bool + Clone + 'static, &'static str),
    on_part: impl Fn(&Uint8Array) + Clone + 'static,
) -> Result<Option<RecordingBytes>, JsValue> {
    let written = Rc::new(RefCell::new(RecordingBytes::default()));
    let settle: Rc<RefCell<Option<(Function, Function)>>> = Rc::default();
    let end = Promise::new(&mut |resolve, reject| *settle.borrow_mut() = Some((resolve, reject)));
    let (writing, reporting) = (written.clone(), app.clone());
    let worker = PageWorker::start(function, move |answer| {
        let result = match answer {
            _ if !is_current() => Err(stopped.into()),
            Answer::Part(bytes) => {
                on_part(&bytes);
                return writing.borrow_mut().push(&bytes);
            }
            Answer::Progress(share, text) => return reporting.send(&FromEngine::Progress(Some((share, text)))),
            Answer::Done(_) => Ok(()),
            Answer::Failed(error) => Err(error),
        };
        if let Some((resolve, reject)) = settle.borrow_mut().take() {
            let _ = match result {
                Ok(()) => resolve.call0(&JsValue::UNDEFINED),
                Err(error) => reject.call1(&JsValue::UNDEFINED, &error),
            };
        }
    })?;
    let Some(worker) = worker else { return Ok(None) };
    worker.send(fields)?;
    JsFuture::from(end).await?;
    drop(worker);
    Ok(Some(written.take()))
}
