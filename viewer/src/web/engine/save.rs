//! Gives the recording's bytes to the page, to save them.

use serde_json::{Value, json};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::spawn_local;

use super::super::browser::error_text;
use super::app::App;
use super::excerpt::write_in_analyzer;
use super::recording_bytes::{RecordingBytes, blob};
use crate::model::{Model, Origin};
use crate::open::{SaveFormat, excerpt_name, live_name, saved_name, snapshot_name};
use crate::protocol::FromEngine;

/// URL of the live recording, relative to the page.
const LIVE_RECORDING_URL: &str = "trace.vram";

/// Offers the recording on the page as a download; does nothing if no recording is open. For the
/// format HTML, the page's thread puts the recording into an HTML file.
pub(super) fn save(app: &App, format: SaveFormat) {
    let is_html = format == SaveFormat::Html;
    let state = app.0.state.borrow();
    if state.bytes.is_empty() {
        return;
    }
    let model = &state.session.model;
    let name = match &state.bytes {
        RecordingBytes::Live => live_name(model.source(), model.recording()),
        _ => saved_name(model.source()),
    };
    let bytes = match &state.bytes {
        RecordingBytes::Live if model.origin() == Origin::Live => &RecordingBytes::Url(LIVE_RECORDING_URL.to_owned()),
        RecordingBytes::Live => &RecordingBytes::held_by(model.recording()),
        bytes => bytes,
    };
    match bytes {
        RecordingBytes::Pieces(pieces) => match blob(pieces) {
            Ok(blob) => {
                let blob: JsValue = blob.into();
                app.send_with(&FromEngine::Download { name, url: String::new(), is_html }, &[blob], &[]);
            }
            Err(error) => app.show_message(&format!("cannot save the recording: {error:?}")),
        },
        RecordingBytes::Url(url) => app.send(&FromEngine::Download { name, url: url.clone(), is_html }),
        RecordingBytes::Live => {}
    }
}

/// Offers a part of the recording on the page as a download: that of the selected or visible range
/// (`is_range`) or everything; without names if `is_redacted`. Does nothing if no recording is
/// open.
pub(super) fn save_excerpt(app: &App, is_range: bool, is_redacted: bool) {
    write(app, |model| {
        let recording = model.recording();
        let range = is_range.then(|| model.selected_range().unwrap_or_else(|| model.shown_moments()));
        let (from, to) = range.unwrap_or((recording.first_event(), recording.end_event()));
        let request = json!({ "kind": "excerpt", "from": from, "to": to, "is_redacted": is_redacted });
        (request, excerpt_name(model.source(), range, is_redacted))
    });
}

/// Offers the recording on the page as a PyTorch snapshot. Does nothing if no recording is open.
pub(super) fn save_snapshot(app: &App) {
    write(app, |model| (json!({ "kind": "snapshot" }), snapshot_name(model.source())));
}

/// Writes a file in a worker and offers it as a download. `describe` returns the analyzer's request
/// and the file's name.
fn write(app: &App, describe: impl FnOnce(&Model) -> (Value, String)) {
    let (request, name) = {
        let state = app.0.state.borrow();
        if state.session.model.origin() == Origin::Empty {
            return;
        }
        describe(&state.session.model)
    };
    let app = app.clone();
    spawn_local(async move {
        if let Err(error) = try_write(&app, &request, name).await {
            app.show_message(&format!("cannot save the recording: {}", error_text(&error)));
        }
        app.send(&FromEngine::Progress(None));
    });
}

/// Writes a file in a worker and offers it as a download called `name`. Stops without a download if
/// the user cancels or opens another recording.
async fn try_write(app: &App, request: &Value, name: String) -> Result<(), JsValue> {
    app.send(&FromEngine::Progress(Some((0.0, format!("Saving {name}…")))));
    let (opening, waiting) = (app.0.openings.get(), app.clone());
    let is_current = move || waiting.0.openings.get() == opening;
    let written = write_in_analyzer(app, request, is_current.clone()).await;
    if !is_current() {
        return Ok(());
    }
    let RecordingBytes::Pieces(pieces) = written? else { return Ok(()) };
    let blob: JsValue = blob(&pieces)?.into();
    app.send_with(&FromEngine::Download { name, url: String::new(), is_html: false }, &[blob], &[]);
    Ok(())
}
