//! Gives the recording's bytes to the page, to save them.

use js_sys::{Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};

use super::super::browser::{error_text, now_ms, run_soon};
use super::app::App;
use super::recording_bytes::{RecordingBytes, blob};
use crate::excerpt::{ExcerptJob, ExcerptStep, excerpt_name};
use crate::model::{Fetch, Origin};
use crate::open::{live_name, saved_name};
use crate::protocol::FromEngine;

/// URL of the live recording, relative to the page.
const LIVE_RECORDING_URL: &str = "trace.vram";

/// Longest time in milliseconds for which an excerpt is written before other messages are handled.
const WORK_MS: f64 = 8.0;

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

/// Writes an excerpt between other work and offers it as a download. Stops without one if the user
/// cancels it or opens another recording.
async fn write_excerpt(app: &App, is_range: bool, is_redacted: bool) -> Result<(), JsValue> {
    let opening = app.0.openings.get();
    let is_current = || app.0.openings.get() == opening;
    let (mut job, name) = {
        let state = app.0.state.borrow();
        let model = &state.session.model;
        if model.origin() == Origin::Empty {
            return Ok(());
        }
        let recording = model.recording();
        let range = is_range.then(|| model.selected_range().unwrap_or_else(|| model.shown_moments()));
        let events = range.unwrap_or((recording.first_event(), recording.end_event()));
        (ExcerptJob::new(recording, events, is_redacted), excerpt_name(model.source(), range, is_redacted))
    };
    let mut bytes = RecordingBytes::default();
    loop {
        let began_ms = now_ms();
        let mut output = Vec::new();
        let step = loop {
            let state = app.0.state.borrow();
            let step = job.step(state.session.model.recording(), &mut output);
            match step.map_err(|error| JsValue::from(error.to_string()))? {
                ExcerptStep::Written(..) if now_ms() - began_ms < WORK_MS => {}
                step => break step,
            }
        };
        for part in output {
            bytes.push(&Uint8Array::from(part.as_slice()));
        }
        match step {
            ExcerptStep::Done => break,
            ExcerptStep::Written(done, all) => {
                let share = done as f64 / all.max(1) as f64;
                app.send(&FromEngine::Progress(Some((share, format!("Saving {name}…")))));
                // Lets other messages be handled.
                JsFuture::from(Promise::new(&mut |resolve, _| {
                    run_soon(move || drop(resolve.call0(&JsValue::UNDEFINED)));
                }))
                .await?;
            }
            ExcerptStep::Missing(ranges) => {
                let source = app.0.state.borrow().fetches.source.clone();
                let source = source.ok_or("a part of it is not on the page any more")?;
                for fetch in Fetch::for_chunks(ranges) {
                    let read = source.read(&fetch.range, None).await?;
                    if !is_current() {
                        return Ok(());
                    }
                    let supplied = app.0.state.borrow_mut().session.supply(&fetch, &read);
                    supplied.map_err(|error| JsValue::from(error.to_string()))?;
                }
            }
        }
        if !is_current() {
            return Ok(());
        }
    }
    let RecordingBytes::Pieces(pieces) = bytes else { return Ok(()) };
    let blob: JsValue = blob(&pieces)?.into();
    app.send_with(&FromEngine::Download { name, url: String::new() }, &[blob], &[]);
    Ok(())
}
