//! The live connection: executes the effects of the [`Connection`](crate::connection::Connection)
//! and decodes its messages.
//!
//! Messages are decoded in slices, so that the page stays responsive. If many wait, each message
//! event also decodes as many bytes as it brings: a browser stops reading from a socket whose
//! events are not handled, and so the server notices a slow page and skips ahead for it.

use js_sys::{Promise, Uint8Array};
use vramscope_trace::{Recording, RecordingInfo};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

use super::super::browser::{now_ms, run_after};
use super::app::{App, EngineState};
use super::message_queue::MessageQueue;
use super::recording_bytes::RecordingBytes;
use super::socket::{Socket, SocketEvent};
use crate::connection::{ConnectionEvent, Effect, History};
use crate::link::Link;
use crate::model::{LIVE_LIMIT_BYTES, Model, Origin, WHOLE_LIMIT_BYTES};
use crate::protocol::{FromEngine, PageStage, RecordingSource, Sources};

/// Maximum time in milliseconds for which live messages are decoded before other events are
/// handled.
const DECODE_MS: f64 = 10.0;
/// Maximum number of queued bytes at which decoding stops after [`DECODE_MS`]. With more, each
/// arriving message makes the page decode at least as many bytes as the message has, so that the
/// queue does not grow.
const RELAXED_QUEUE_BYTES: u32 = 1 << 20;
/// Minimum time in milliseconds for discarding old events after each round of decoding, while the
/// recording exceeds its memory limit.
const DISCARD_MS: f64 = 4.0;
/// Minimum number of old events that are discarded for each decoded event, so that discarding ends
/// however fast events arrive.
const DISCARDED_PER_DECODED: u64 = 3;
/// Number of old events that are discarded between two checks of the time limit.
const DISCARD_STEP: u64 = 10_000;
/// Maximum number of bytes of a live stream's first message that are decoded to find its header
/// chunk.
const MAX_INFO_BYTES: u32 = 256 << 10;

/// Text on the page before the first events of a live recording.
const WAITING: &str = "Waiting for the first events. The program sends them as soon as it allocates memory. \
     With vramscope serve, start programs with VRAMSCOPE_PUSH set.";

/// Shows the running program that serves the page, at the view of `link`; returns once it is known
/// whether there is such a program.
pub(super) async fn show_program(app: &App, link: Link) {
    let promise = Promise::new(&mut |resolve, _| {
        *app.0.on_settled.borrow_mut() = Some(resolve);
    });
    handle(app, ConnectionEvent::ShowRequested { link, history: History::Recent });
    let _ = JsFuture::from(promise).await;
}

/// Reloads the running program's recording from its beginning, instead of only its newest part.
pub(super) fn load_everything(app: &App) {
    let link = app.0.state.borrow().session.model.link_to_resume();
    handle(app, ConnectionEvent::ShowRequested { link, history: History::All });
}

/// Passes an event to the live connection's state machine and executes the effects that it returns.
pub(super) fn handle(app: &App, event: ConnectionEvent) {
    for effect in effects_of(app, event) {
        execute(app, effect);
    }
}

/// Passes an event to the live connection's state machine and returns the effects to execute.
fn effects_of(app: &App, event: ConnectionEvent) -> Vec<Effect> {
    let mut state = app.0.state.borrow_mut();
    let state = &mut *state;
    state.connection.handle(event, &state.session.model)
}

/// Executes one effect of the live connection, except for [`Effect::DecodeMessage`], which
/// [`receive`] executes.
fn execute(app: &App, effect: Effect) {
    match effect {
        Effect::OpenSocket { query } => open_socket(app, &query),
        Effect::CloseSocket => close_socket(app),
        Effect::ShowStream { link, history } => {
            show_stream(app, history, &link, |model| model.reset("live", Origin::Live));
        }
        Effect::RestartStream { history } => {
            let link = app.0.state.borrow().session.model.link_to_resume();
            show_stream(app, history, &link, Model::restart_live);
        }
        Effect::ResumeStream { following } => {
            app.change(|state| {
                state.session.model.reconnect(following);
                Ok::<_, String>(())
            });
            app.hide_message();
            app.send(&FromEngine::LoadControls);
        }
        // The message itself is at hand only in `receive`.
        Effect::DecodeMessage { .. } => {}
        Effect::DiscardMessages => app.0.state.borrow_mut().messages.clear(),
        Effect::DisconnectModel => app.0.state.borrow_mut().session.model.disconnect(),
        Effect::AttemptSettled => {
            if let Some(socket) = app.0.socket.borrow().as_ref() {
                socket.settle();
            }
        }
        Effect::StartTimer { delay_ms, timer } => {
            let app = app.clone();
            run_after(delay_ms, move || handle(&app, ConnectionEvent::TimerExpired(timer)));
        }
        Effect::ShowMessage(message) => app.show_message(message),
        Effect::ShowStartPage => app.show_start_page(),
        Effect::StateChanged => app.change_model(|_| ()),
    }
}

/// Closes the live connection's socket and opens a new one with this query string.
fn open_socket(app: &App, query: &str) {
    close_socket(app);
    let reacting = app.clone();
    let on_settled = app.0.on_settled.take();
    let address = app.0.address.borrow().clone();
    let opened = Socket::open(&address, query, on_settled.clone(), move |event| match event {
        SocketEvent::Opened => handle(&reacting, ConnectionEvent::Opened),
        SocketEvent::Note(note) => handle(&reacting, ConnectionEvent::NoteReceived(note)),
        SocketEvent::Bytes(bytes) => receive(&reacting, bytes),
        SocketEvent::Closed(code) => {
            reacting.0.state.borrow_mut().messages.close_code = Some(code);
            // Everything that was received is shown first.
            decode(&reacting, 0);
        }
    });
    match opened {
        Ok(socket) => *app.0.socket.borrow_mut() = Some(socket),
        Err(error) => {
            app.show_message(&format!("cannot open a live connection: {error:?}"));
            if let Some(on_settled) = on_settled {
                let _ = on_settled.call0(&JsValue::UNDEFINED);
            }
        }
    }
}

/// Closes the live connection's socket, if there is one.
fn close_socket(app: &App) {
    // Taken out first: dropping the socket calls back into the page.
    let socket = app.0.socket.borrow_mut().take();
    drop(socket);
}

/// Shows a new live stream at the view of `link`. `reset` empties the model; `history` determines
/// the memory limit.
fn show_stream(app: &App, history: History, link: &Link, reset: impl FnOnce(&mut Model)) {
    app.change(|state| {
        reset(&mut state.session.model);
        state.session.model.set_memory_limit(match history {
            History::All => WHOLE_LIMIT_BYTES,
            History::Recent => LIVE_LIMIT_BYTES,
        });
        state.messages = MessageQueue::default();
        state.bytes = RecordingBytes::Live;
        state.sources = Sources { recording: RecordingSource::Program, second: RecordingSource::None };
        state.fetches.reset(None);
        state.session.go_to_link(link)
    });
    app.hide_message();
    app.set_stage(PageStage::Loading, "Connected", WAITING);
    app.send(&FromEngine::LoadControls);
}

/// Handles a binary message of the live connection: queues and decodes it if its stream is the one
/// on the page.
fn receive(app: &App, bytes: Uint8Array) {
    let needs_info = app.0.state.borrow().connection.needs_stream_info();
    let info = needs_info.then(|| stream_info(&bytes));
    for effect in effects_of(app, ConnectionEvent::BytesReceived { info }) {
        let Effect::DecodeMessage { next } = effect else {
            execute(app, effect);
            continue;
        };
        let fits = app.0.state.borrow_mut().messages.push(bytes.clone(), next);
        if fits {
            decode(app, bytes.length());
        } else {
            handle(app, ConnectionEvent::FellBehind);
        }
    }
}

/// Decodes the header chunk, which describes the program, from the first binary message of a live
/// stream.
fn stream_info(bytes: &Uint8Array) -> RecordingInfo {
    let mut recording = Recording::new();
    // An error is reported when the message is decoded.
    let _ = recording.push(&bytes.subarray(0, bytes.length().min(MAX_INFO_BYTES)).to_vec());
    recording.info().clone()
}

/// Decodes queued messages for about [`DECODE_MS`]. If more are queued, schedules the next call for
/// when the browser has handled other events.
///
/// `least_bytes` is the size of the message that has just arrived, 0 if none has: at least that
/// many bytes are decoded if many are queued.
fn decode(app: &App, least_bytes: u32) {
    let mut state = app.0.state.borrow_mut();
    if let Err(error) = state.decode(least_bytes) {
        drop(state);
        app.show_message(&error);
        handle(app, ConnectionEvent::DecodingFailed);
        return;
    }
    if state.session.model.exceeds_memory_limit() {
        drop(state);
        handle(app, ConnectionEvent::FellBehind);
        return;
    }
    let has_more = !state.messages.is_empty() || state.session.model.is_discarding();
    let must_schedule = has_more && !state.messages.is_scheduled;
    state.messages.is_scheduled |= has_more;
    let close_code = if state.messages.is_empty() { state.messages.close_code.take() } else { None };
    drop(state);
    app.want_live_frame();
    if must_schedule {
        let app = app.clone();
        run_after(0, move || {
            app.0.state.borrow_mut().messages.is_scheduled = false;
            decode(&app, 0);
        });
    }
    if let Some(code) = close_code {
        handle(app, ConnectionEvent::Closed { code, random: js_sys::Math::random() });
    }
}

impl EngineState {
    /// Decodes queued messages for about [`DECODE_MS`], then discards old events. With more than
    /// [`RELAXED_QUEUE_BYTES`] queued, decodes at least `least_bytes`.
    fn decode(&mut self, least_bytes: u32) -> Result<(), String> {
        let (began_ms, events_before) = (now_ms(), self.session.model.recording().events());
        let least_bytes = if self.messages.queued_bytes() > RELAXED_QUEUE_BYTES { least_bytes } else { 0 };
        let turn_ms = if self.session.model.is_discarding() { DECODE_MS / 2.0 } else { DECODE_MS };
        let mut decoded_bytes = 0;
        while let Some((bytes, next)) = self.messages.next_slice() {
            self.session.model.receive(&bytes).map_err(|error| error.to_string())?;
            decoded_bytes += bytes.len() as u32;
            if let Some(next) = next {
                self.connection.decoded_up_to(next);
            }
            if now_ms() - began_ms > turn_ms && decoded_bytes >= least_bytes {
                break;
            }
        }
        let decoded_events = self.session.model.recording().events().saturating_sub(events_before);
        let mut to_discard = decoded_events.saturating_mul(DISCARDED_PER_DECODED);
        let began_ms = now_ms();
        while self.session.model.is_discarding() && (to_discard > 0 || now_ms() - began_ms < DISCARD_MS) {
            self.session.model.continue_discarding(DISCARD_STEP);
            to_discard = to_discard.saturating_sub(DISCARD_STEP);
        }
        Ok(())
    }
}
