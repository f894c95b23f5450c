//! The recording on the page as an analyzer gets it, and files that an analyzer writes.

use serde_json::Value;
use wasm_bindgen::prelude::*;
use web_sys::Url;

use super::app::{App, EngineState};
use super::recording_bytes::{RecordingBytes, blob};
use super::recording_worker::make_recording;

/// Name of the function of the engine's script that starts an analyzer: it returns a `Worker`.
///
/// The first message to the analyzer has the recording as `source`, a `Blob` or a URL, and a
/// `request` in JSON; later ones have other requests about the same recording.
pub(super) const START_ANALYZER: &str = "startAnalyzer";

/// Error message of a page without an analyzer.
pub(super) const NO_ANALYZER: &str = "this page cannot compute that: open the recording with `vramscope view`";

/// Returns the recording on the page as an analyzer's input: a `Blob` or an absolute URL.
pub(super) fn source(app: &App, state: &EngineState) -> Result<JsValue, JsValue> {
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

/// Returns the file that an analyzer writes for `request` about the recording on the page;
/// `is_current` returns false once the user has stopped it or opened another recording.
pub(super) async fn write_in_analyzer(
    app: &App,
    request: &Value,
    is_current: impl Fn() -> bool + Clone + 'static,
) -> Result<RecordingBytes, JsValue> {
    let (request, source) = (JsValue::from(request.to_string()), source(app, &app.0.state.borrow())?);
    let fields = [("source", &source), ("request", &request)];
    let written = make_recording(app, START_ANALYZER, &fields, (is_current, "stopped"), |_| {}).await?;
    Ok(written.ok_or(NO_ANALYZER)?)
}
