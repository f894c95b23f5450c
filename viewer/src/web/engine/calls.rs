//! Answers the calls of `window.vramscope`.

use js_sys::Promise;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};

use super::super::browser::{error_text, run_after, run_soon};
use super::app::App;
use super::{later_module, open_file};
use crate::link::Link;
use crate::protocol::{Call, FromEngine};

/// Executes a call of a script and sends the answer under its `number`, for some calls once the
/// result is on the screen.
pub(super) fn answer(app: &App, number: u32, call: Call, objects: Vec<JsValue>) {
    let app = app.clone();
    spawn_local(async move {
        let result = execute(&app, call, objects).await.map_err(|error| error_text(&error));
        app.send(&FromEngine::Answer(number, result));
    });
}

/// Executes a call of a script and returns its result as JSON. `objects` are the files beside the
/// call.
async fn execute(app: &App, call: Call, objects: Vec<JsValue>) -> Result<String, JsValue> {
    match call {
        Call::Open(source) => open_file::open(app, &source, objects.first(), &Link::default()).await?,
        Call::Compare(source) => open_file::compare(app, &source, objects.first()).await?,
        Call::SelectRange(range) => {
            app.0.state.borrow_mut().session.select_range(range);
            app.drawn().await?;
        }
        Call::Seek(event) => {
            {
                let mut state = app.0.state.borrow_mut();
                state.session.seek(event).map_err(|error| JsValue::from(error.to_string()))?;
                app.fetch_needed(&mut state);
            }
            app.drawn().await?;
        }
        Call::Show(view) => {
            app.0.state.borrow_mut().session.show(&view)?;
            app.drawn().await?;
        }
        Call::Rows { view, options } => {
            later_module::load(app).await?;
            app.0.state.borrow_mut().fetches.failure = None;
            while !is_prepared(app, &view, &options)? {
                super::analyzing::update(app);
                pause(is_loading(app)).await?;
            }
            return Ok(app.0.state.borrow_mut().session.rows(&view, &options)?);
        }
        Call::Digest => return Ok(format!("\"{}\"", app.0.state.borrow().session.digest())),
    }
    Ok("null".to_owned())
}

/// Time in milliseconds between two checks whether the bytes that a script's rows need have
/// arrived.
const ROWS_INTERVAL_MS: i32 = 5;

/// Reads a part of the events that the rows of a view need for a script, and requests missing
/// bytes. Returns true once everything is read.
fn is_prepared(app: &App, view: &str, options: &str) -> Result<bool, JsValue> {
    let mut state = app.0.state.borrow_mut();
    let is_prepared = state.session.prepare_rows(view, options)?;
    if !is_prepared {
        app.fetch_needed(&mut state);
    }
    match state.fetches.failure.take() {
        Some(message) => Err(message.into()),
        None => Ok(is_prepared),
    }
}

/// Returns true while bytes are loaded or the analyzer works.
fn is_loading(app: &App) -> bool {
    let state = app.0.state.borrow();
    !state.fetches.in_flight.is_empty() || state.session.jobs().running.is_some()
}

/// Waits until the queued messages are handled; while bytes are loaded, waits [`ROWS_INTERVAL_MS`].
async fn pause(is_loading: bool) -> Result<(), JsValue> {
    let end = Promise::new(&mut |resolve, _| {
        let resume = move || drop(resolve.call0(&JsValue::UNDEFINED));
        if is_loading { run_after(ROWS_INTERVAL_MS, resume) } else { run_soon(resume) }
    });
    JsFuture::from(end).await.map(drop)
}
