//! Gives the recording's bytes to the page, to save them.

use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::spawn_local;

use super::super::browser::error_text;
use super::app::App;
use super::excerpt::excerpt;
use super::recording_bytes::{RecordingBytes, blob};
use crate::model::Origin;
use crate::open::{excerpt_name, live_name, saved_name};
use crate::protocol::FromEngine;

/// URL of the live recording, relative to the page.
const LIVE_RECORDING_URL: &str = "trace.vram";

/// Offers the recording on the page as a download; does nothing if no recording is open.
pub(super) fn save(app: &App) {
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
                app.send_with(&FromEngine::Download { name, url: String::new() }, &[blob], &[]);
            }
            Err(error) => app.show_message(&format!("cannot save the recording: {error:?}")),
        },
        RecordingBytes::Url(url) => app.send(&FromEngine::Download { name, url: url.clone() }),
        RecordingBytes::Live => {}
    }
}

/// Offers a part of the recording on the page as a download: that of the selected or visible range
/// (`is_range`) or everything; without names if `is_redacted`. Does nothing if no recording is
/// open.
pub(super) fn save_excerpt(app: &App, is_range: bool, is_redacted: bool) {
    let app = app.clone();
    spawn_local(async move {
        if let Err(error) = write_excerpt(&app, is_range, is_redacted).await {
            app.show_message(&format!("cannot save the recording: {}", error_text(&error)));
        }
        app.send(&FromEngine::Progress(None));
    });
}

/// Writes an excerpt in a worker and offers it as a download. Stops without a download if the user
/// cancels or opens another recording.
async fn write_excerpt(app: &App, is_range: bool, is_redacted: bool) -> Result<(), JsValue> {
    let (events, name) = {
        let state = app.0.state.borrow();
        let model = &state.session.model;
        if model.origin() == Origin::Empty {
            return Ok(());
        }
        let recording = model.recording();
        let range = is_range.then(|| model.selected_range().unwrap_or_else(|| model.shown_moments()));
        let events = range.unwrap_or((recording.first_event(), recording.end_event()));
        (events, excerpt_name(model.source(), range, is_redacted))
    };
    app.send(&FromEngine::Progress(Some((0.0, format!("Saving {name}…")))));
    let (opening, waiting) = (app.0.openings.get(), app.clone());
    let is_current = move || waiting.0.openings.get() == opening;
    let written = excerpt(app, events, is_redacted, is_current.clone()).await;
    if !is_current() {
        return Ok(());
    }
    let RecordingBytes::Pieces(pieces) = written? else { return Ok(()) };
    let blob: JsValue = blob(&pieces)?.into();
    app.send_with(&FromEngine::Download { name, url: String::new() }, &[blob], &[]);
    Ok(())
}
