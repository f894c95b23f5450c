//! Loads the parts of a recording that the model needs.

use std::rc::Rc;

use js_sys::{Function, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::AbortController;

use super::super::browser::error_text;
use super::app::{App, EngineState, InFlight};
use super::byte_source::ByteSource;
use crate::model::Fetch;

/// Maximum number of requests for bytes that run at once; others wait. Browsers open six
/// connections to a server.
const MAX_IN_FLIGHT: usize = 4;

impl App {
    /// Starts requests for bytes that the model needs now and that no running request loads, as far
    /// as [`MAX_IN_FLIGHT`] allows.
    pub(super) fn fetch_needed(&self, state: &mut EngineState) {
        let Some(source) = state.fetches.source.clone() else { return };
        let mut needed = state.session.needed_fetches();
        if needed.is_empty() && state.fetches.in_flight.is_empty() {
            needed = state.session.fetches_ahead();
        }
        for fetch in &needed {
            if state.fetches.in_flight.iter().any(|flying| flying.loads(fetch)) {
                continue;
            }
            if !has_free_slot(&mut state.fetches.in_flight, &needed) {
                break;
            }
            let Ok(abort) = AbortController::new() else { break };
            state.fetches.started += 1;
            let (app, fetch, number) = (self.clone(), fetch.clone(), state.fetches.started);
            let (source, signal): (Rc<ByteSource>, _) = (source.clone(), abort.signal());
            state.fetches.in_flight.push(InFlight { number, range: fetch.range.clone(), abort });
            spawn_local(async move {
                let bytes = source.read(&fetch.range, Some(&signal)).await;
                app.fetched(number, &fetch, bytes);
            });
        }
    }

    /// Handles the result of request `number`: adds its bytes to the model, or shows the error and
    /// stops loading. The result of an aborted request is ignored.
    fn fetched(&self, number: u64, fetch: &Fetch, bytes: Result<Vec<u8>, JsValue>) {
        let mut state = self.0.state.borrow_mut();
        let state = &mut *state;
        let Some(index) = state.fetches.in_flight.iter().position(|flying| flying.number == number) else {
            // Aborted: other bytes are needed by now, or another recording is on the page.
            return;
        };
        drop(state.fetches.in_flight.remove(index));
        state.read_bytes += bytes.as_ref().map_or(0.0, |bytes| bytes.len() as f64);
        let supplied = bytes.map_err(|error| error_text(&error));
        let supplied =
            supplied.and_then(|bytes| state.session.supply(fetch, &bytes).map_err(|error| error.to_string()));
        if let Err(error) = supplied {
            let (start, end, name) = (fetch.range.start, fetch.range.end, state.session.model.source());
            let message =
                format!("{name}: cannot read bytes {start} to {end}: {error}. Go to another moment to try again.");
            state.fetches.in_flight.clear();
            // If nothing is loading, the callers only wait for the next frame.
            if state.session.model.is_loading() {
                for (_, reject) in state.drawn_callbacks.drain(..) {
                    let _ = reject.call1(&JsValue::UNDEFINED, &JsValue::from(message.as_str()));
                }
            }
            state.session.model.stop_fetching();
            self.show_message(&message);
            state.fetches.failure = Some(message);
        }
        self.want_frame();
        self.fetch_needed(state);
    }

    /// Waits until everything that was requested so far is on the screen; fails if something cannot
    /// be loaded.
    pub(super) async fn drawn(&self) -> Result<(), JsValue> {
        let promise = Promise::new(&mut |resolve: Function, reject: Function| {
            self.0.state.borrow_mut().drawn_callbacks.push((resolve, reject));
        });
        self.want_frame();
        JsFuture::from(promise).await.map(|_| ())
    }
}

/// Returns true if another request can start; false if [`MAX_IN_FLIGHT`] requests run and all of
/// them are needed. Aborts a request that loads nothing in `needed` to make room.
fn has_free_slot(in_flight: &mut Vec<InFlight>, needed: &[Fetch]) -> bool {
    if in_flight.len() < MAX_IN_FLIGHT {
        return true;
    }
    let is_needed = |flying: &InFlight| needed.iter().any(|fetch| flying.loads(fetch));
    let unneeded = in_flight.iter().position(|flying| !is_needed(flying));
    unneeded.map(|index| in_flight.remove(index)).is_some()
}
