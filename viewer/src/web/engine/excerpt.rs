//! The recording on the page as an analyzer gets it, and excerpts that an analyzer writes.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Function, Promise};
use serde_json::json;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::Url;

use super::app::{App, State};
use super::page_worker::{Answer, PageWorker};
use super::recording_bytes::{RecordingBytes, blob};
use crate::protocol::FromEngine;

/// Name of the function of the engine's script that starts an analyzer: it returns a `Worker`.
///
/// The first message to the analyzer has the recording as `source`, a `Blob` or a URL, and a
/// `request` in JSON; later ones have other requests about the same recording.
pub(super) const START_ANALYZER: &str = "startAnalyzer";

/// Shown if the page has no analyzer.
pub(super) const NO_ANALYZER: &str = "this page cannot compute that: open the recording with `vramscope view`";

/// Returns the recording on the page as a blob or a URL.
pub(super) fn source(app: &App, state: &State) -> Result<JsValue, JsValue> {
    let held;
    let bytes = match &state.bytes {
        RecordingBytes::Live => {
            held = RecordingBytes::held_by(state.session.model.recording());
            &held
        }
        bytes => bytes,
    };
    match bytes {
        RecordingBytes::Pieces(pieces) => Ok(blob(pieces)?.into()),
        // A worker resolves relative URLs differently.
        RecordingBytes::Url(url) => Ok(Url::new_with_base(url, &app.0.address.borrow())?.href().into()),
        RecordingBytes::Live => Err("the recording has no bytes".into()),
    }
}

/// Writes the part of the recording on the page between two moments; `is_current` returns false
/// once the user has stopped it or opened another recording.
pub(super) async fn excerpt(
    app: &App,
    (from, to): (u64, u64),
    is_redacted: bool,
    is_current: impl Fn() -> bool + Clone + 'static,
) -> Result<RecordingBytes, JsValue> {
    let written = Rc::new(RefCell::new(RecordingBytes::default()));
    let settle: Rc<RefCell<Option<(Function, Function)>>> = Rc::default();
    let end = Promise::new(&mut |resolve, reject| *settle.borrow_mut() = Some((resolve, reject)));
    let (writing, reporting) = (written.clone(), app.clone());
    let worker = PageWorker::start(START_ANALYZER, move |answer| {
        let (result, value) = match answer {
            _ if !is_current() => (false, "stopped".into()),
            Answer::Part(bytes) => return writing.borrow_mut().push(&bytes),
            Answer::Progress(share, text) => return reporting.send(&FromEngine::Progress(Some((share, text)))),
            Answer::Done(_) => (true, JsValue::UNDEFINED),
            Answer::Failed(error) => (false, error),
        };
        if let Some((resolve, reject)) = settle.borrow_mut().take() {
            let _ = if result { resolve } else { reject }.call1(&JsValue::UNDEFINED, &value);
        }
    })?;
    let worker = worker.ok_or(NO_ANALYZER)?;
    let request = json!({ "kind": "excerpt", "from": from, "to": to, "is_redacted": is_redacted }).to_string();
    let source = source(app, &app.0.state.borrow())?;
    worker.send(&[("source", &source), ("request", &request.into())])?;
    JsFuture::from(end).await?;
    drop(worker);
    Ok(written.take())
}
