//! The running engine: its session, and the connections and requests around it.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use js_sys::{Function, Uint8Array};
use wasm_bindgen::prelude::*;
use web_sys::{AbortController, MessagePort};

use super::super::browser::{now_ms, run_after, run_soon};
use super::super::port::Port;
use super::byte_source::ByteSource;
use super::message_queue::MessageQueue;
use super::page_worker::Analysis;
use super::recording_bytes::RecordingBytes;
use super::socket::Socket;
use crate::app::{ConnectionFacts, PageFacts, Session, SessionReport};
use crate::command::Command;
use crate::connection::Connection;
use crate::lateness::Lateness;
use crate::model::{Fetch, Model, Origin};
use crate::page_texts::LiveStatus;
use crate::protocol::{Action, FrameRequest, FromEngine, PageStage, RecordingSource, Sources, ToEngine};

/// Time in milliseconds after which the rate of live events is measured again if no event has
/// arrived.
const RATE_CHECK_MS: f64 = 1500.0;
/// Minimum and maximum time in milliseconds between two frames that only show new live events.
/// Within these limits, the time is twice the duration of the last frame.
const LIVE_FRAME_INTERVAL_MS: [f64; 2] = [16.0, 60.0];

/// Maximum time in milliseconds for which the recording is read for the views before other messages
/// are handled.
const WORK_MS: f64 = 6.0;
/// Time in milliseconds for which the page must show a moment before it computes the bytes of other
/// devices.
const REST_MS: i32 = 150;
/// Number of events that are read for the views between two checks of the time limit.
const WORK_EVENTS: u64 = 16_384;

/// A running request for a byte range. Dropping it aborts the request.
pub(super) struct InFlight {
    pub(super) number: u64,
    pub(super) range: Range<u64>,
    pub(super) abort: AbortController,
}

impl InFlight {
    /// Returns true if the request loads all bytes of `fetch`.
    pub(super) fn loads(&self, fetch: &Fetch) -> bool {
        self.range.start <= fetch.range.start && fetch.range.end <= self.range.end
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

/// The source of the bytes of the recording on the page, and the running requests for them.
#[derive(Default)]
pub(super) struct Fetches {
    /// Where to read; `None` if the whole recording is loaded.
    pub(super) source: Option<Rc<ByteSource>>,
    pub(super) in_flight: Vec<InFlight>,
    /// Number of fetches started, which numbers them.
    pub(super) started: u64,
    /// The message of the last failed fetch, until a script asks for rows.
    pub(super) failure: Option<String>,
}

impl Fetches {
    /// Aborts the running requests and sets the source of the next ones; `None` if the whole
    /// recording is loaded.
    pub(super) fn reset(&mut self, source: Option<Rc<ByteSource>>) {
        self.source = source;
        self.in_flight.clear();
    }
}

/// The state of the engine: session, connection, requests, and messages that are not decoded yet.
#[derive(Default)]
pub(super) struct EngineState {
    pub(super) session: Session,
    /// Duration of the last frame that drew a picture.
    pub(super) frame_ms: f64,
    /// When the last frame began, by the engine's clock.
    frame_began_ms: f64,
    /// Buffers of pictures that the page has shown, to be filled again.
    buffers: Vec<JsValue>,
    pub(super) bytes: RecordingBytes,
    /// Where the recordings on the page come from, and what the page knows of it.
    pub(super) sources: Sources,
    sent_sources: Sources,
    pub(super) fetches: Fetches,
    /// Called once the requested moment is on the screen (first) or cannot be loaded (second).
    pub(super) drawn_callbacks: Vec<(Function, Function)>,
    pub(super) connection: Connection,
    pub(super) messages: MessageQueue,
    /// Bytes of files that have been read so far.
    pub(super) read_bytes: f64,
    lateness: Lateness,
}

/// A handle to the running engine. Clones share one engine.
#[derive(Clone)]
pub(super) struct App(pub(super) Rc<Inner>);

/// The running engine that all [`App`] handles share.
#[derive(Default)]
pub(super) struct Inner {
    pub(super) state: RefCell<EngineState>,
    /// The page's whole address when the engine was started.
    pub(super) address: RefCell<String>,
    is_frame_wanted: Cell<bool>,
    /// Whether a timer will continue reading the recording for the views.
    is_work_scheduled: Cell<bool>,
    /// Whether a timer will find out if the page still shows the same moment.
    is_rest_scheduled: Cell<bool>,
    /// Counts files opened, so that a slow earlier one is not shown.
    pub(super) openings: Cell<u64>,
    pub(super) socket: RefCell<Option<Socket>>,
    /// Resolves the promise of the page's first connection attempt.
    pub(super) on_settled: RefCell<Option<Function>>,
    /// The analyzer of the recording on the page, while it is needed.
    pub(super) analysis: RefCell<Option<Analysis>>,
    /// Whether a frame is scheduled for the next analysis of a live recording.
    pub(super) is_analysis_scheduled: Cell<bool>,
    port: RefCell<Option<Port>>,
}

impl App {
    /// Creates an engine that calls `react` for every message of the page at the other end of
    /// `port`.
    pub(super) fn new(
        port: MessagePort,
        react: impl Fn(&Self, ToEngine, Vec<JsValue>) + 'static,
    ) -> Result<Self, JsValue> {
        let app = Self(Rc::default());
        let reacting = app.clone();
        let port = Port::new(port, move |message, objects| react(&reacting, message, objects))?;
        *app.0.port.borrow_mut() = Some(port);
        Ok(app)
    }

    /// Sends a message to the page.
    pub(super) fn send(&self, message: &FromEngine) {
        self.send_with(message, &[], &[]);
    }

    /// Sends a message to the page with objects beside it; objects in `transferred` are moved
    /// instead of copied.
    pub(super) fn send_with(&self, message: &FromEngine, objects: &[JsValue], transferred: &[JsValue]) {
        if let Some(port) = self.0.port.borrow().as_ref() {
            port.send(message, objects, transferred);
        }
    }

    /// Shows a message to the user until it is closed or replaced.
    pub(super) fn show_message(&self, text: &str) {
        self.send(&FromEngine::Message(Some(text.to_owned())));
    }

    /// Hides the message to the user.
    pub(super) fn hide_message(&self) {
        self.send(&FromEngine::Message(None));
    }

    /// Shows another stage of the page, with title and text.
    pub(super) fn set_stage(&self, stage: PageStage, title: &str, text: &str) {
        self.send(&FromEngine::Stage(stage, title.to_owned(), text.to_owned()));
    }

    /// Shows the page on which a file can be opened.
    pub(super) fn show_start_page(&self) {
        self.set_stage(PageStage::StartPage, "", "");
    }

    /// Calls `change` with the engine's state and requests a frame. An error is shown as a message;
    /// the picture stays.
    pub(super) fn change<E: std::fmt::Display>(&self, change: impl FnOnce(&mut EngineState) -> Result<(), E>) {
        let mut state = self.0.state.borrow_mut();
        if let Err(error) = change(&mut state) {
            self.show_message(&error.to_string());
        }
        self.fetch_needed(&mut state);
        drop(state);
        self.want_frame();
    }

    /// Calls `change` with the model and redraws everything that depends on the moment.
    pub(super) fn change_model(&self, change: impl FnOnce(&mut Model)) {
        self.change(|state| {
            change(&mut state.session.model);
            state.session.model.moment_changed();
            Ok::<_, String>(())
        });
    }

    /// Tells the page to request a frame.
    pub(super) fn want_frame(&self) {
        if !self.0.is_frame_wanted.replace(true) {
            self.send(&FromEngine::FrameWanted(0.0));
        }
    }

    /// Tells the page to request a frame that shows new live events. The request is delayed if the
    /// last frame was recent, to leave time for other work.
    pub(super) fn want_live_frame(&self) {
        if self.0.is_frame_wanted.replace(true) {
            return;
        }
        let state = self.0.state.borrow();
        let [shortest, longest] = LIVE_FRAME_INTERVAL_MS;
        let delay_ms = state.frame_began_ms + (2.0 * state.frame_ms).clamp(shortest, longest) - now_ms();
        self.send(&FromEngine::FrameWanted(delay_ms.max(0.0)));
    }

    /// Draws a frame for the page and sends it. `buffers` are the pixel buffers of pictures that
    /// the page has shown; they are reused. Returns the commands that the session does not execute.
    pub(super) fn frame(&self, request: &FrameRequest, buffers: Vec<JsValue>) -> Vec<Command> {
        self.0.is_frame_wanted.set(false);
        let mut state = self.0.state.borrow_mut();
        let state = &mut *state;
        let began_ms = now_ms();
        if !buffers.is_empty() {
            state.buffers = buffers;
        }
        let mut report = SessionReport::default();
        let facts = state.facts();
        let frame = state.session.frame(request, &facts, &mut report);
        if let Some(sources) = state.changed_sources() {
            self.send(&FromEngine::Sources(sources));
        }
        self.fetch_needed(state);
        let pixels: Vec<JsValue> = frame
            .pictures
            .iter()
            .map(|(surface, ..)| buffer_with(state.session.pixels(*surface), &mut state.buffers))
            .collect();
        let next_frame_ms = frame.next_frame_ms;
        self.send_with(&FromEngine::Frame(Box::new(frame)), &pixels, &pixels);
        if let Some(delay_ms) = next_frame_ms {
            self.send(&FromEngine::FrameWanted(delay_ms));
        }
        self.show_messages(&report);
        if !pixels.is_empty() {
            state.frame_ms = now_ms() - began_ms;
        }
        state.frame_began_ms = began_ms;
        if state.measure_lateness() {
            state.session.model.moment_changed();
            self.want_frame();
            // The rate of a program that falls silent becomes 0 without an event.
            self.send(&FromEngine::FrameWanted(RATE_CHECK_MS));
        }
        if !state.session.model.is_loading() {
            for (resolve, _) in state.drawn_callbacks.drain(..) {
                let _ = resolve.call0(&JsValue::UNDEFINED);
            }
        }
        if let Some(moment) = state.session.unrested_moment() {
            self.schedule_rest(moment);
        }
        self.schedule_work();
        report.commands
    }

    /// Schedules the computation of the other devices' bytes for when the page has shown `moment`,
    /// or a moment that it goes to before then, for [`REST_MS`].
    fn schedule_rest(&self, moment: u64) {
        if !self.0.is_rest_scheduled.replace(true) {
            let app = self.clone();
            run_after(REST_MS, move || {
                app.0.is_rest_scheduled.set(false);
                let next = app.0.state.borrow_mut().session.rest(moment);
                match next {
                    Some(next) => app.schedule_rest(next),
                    None => app.schedule_work(),
                }
            });
        }
    }

    /// Applies the user's actions without drawing a frame. Returns the commands that the session
    /// does not execute.
    pub(super) fn act(&self, actions: &[Action], clock_ms: f64) -> Vec<Command> {
        let mut report = SessionReport::default();
        self.0.state.borrow_mut().session.act(actions, clock_ms, &mut report);
        self.show_messages(&report);
        report.commands
    }

    /// Sends the page the messages and the text for the clipboard that a report contains.
    fn show_messages(&self, report: &SessionReport) {
        if let Some(text) = &report.clipboard {
            self.send(&FromEngine::Clipboard(text.clone()));
        }
        if let Some((surface, picture)) = &report.picture {
            self.send(&FromEngine::Picture(*surface, picture.clone()));
        }
        for message in &report.messages {
            self.show_message(message);
        }
    }

    /// Schedules a call of [`work`](Self::work) after the events that are queued.
    fn schedule_work(&self) {
        if !self.0.is_work_scheduled.replace(true) {
            let app = self.clone();
            run_soon(move || app.work());
        }
    }

    /// Reads the recording for the views for about [`WORK_MS`], and schedules the next part if more
    /// is left.
    fn work(&self) {
        self.0.is_work_scheduled.set(false);
        let mut state = self.0.state.borrow_mut();
        let began_ms = now_ms();
        let has_more = loop {
            match state.session.work(WORK_EVENTS) {
                Ok(true) if now_ms() - began_ms < WORK_MS => {}
                Ok(has_more) => break has_more,
                Err(error) => {
                    self.show_message(&error.to_string());
                    break false;
                }
            }
        };
        self.fetch_needed(&mut state);
        if state.session.model.has_changed() {
            self.want_frame();
        }
        if has_more {
            drop(state);
            self.schedule_work();
        }
    }
}

/// Copies bytes into a JavaScript buffer: one of `buffers` of equal length, which is removed from
/// the list, or else a new one. Writing to a new buffer's memory takes twice as long.
fn buffer_with(bytes: &[u8], buffers: &mut Vec<JsValue>) -> JsValue {
    let view = |buffer: &JsValue| Uint8Array::new(buffer);
    let same = buffers.iter().position(|buffer| view(buffer).length() as usize == bytes.len());
    let filled = match same {
        Some(index) => {
            let filled = view(&buffers.swap_remove(index));
            filled.copy_from(bytes);
            filled
        }
        None => Uint8Array::from(bytes),
    };
    filled.buffer().into()
}

impl EngineState {
    /// Returns the facts about connection, speed and memory that the page shows.
    fn facts(&self) -> PageFacts {
        let connection = self.connection.state();
        PageFacts {
            status: LiveStatus {
                connection,
                behind_s: self.lateness.behind_s(),
                events_per_s: self.lateness.events_per_s(),
                utc_offset_min: -(js_sys::Date::new_0().get_timezone_offset() as i32),
            },
            connection: ConnectionFacts {
                name: connection.name(),
                received_bytes: self.messages.received_bytes,
                waiting_bytes: self.messages.queued_bytes(),
                read_bytes: self.read_bytes,
                latency_ms: self.lateness.latency_ms(),
            },
            frame_ms: self.frame_ms,
            memory_bytes: memory_bytes(),
        }
    }

    /// Returns the sources of the recordings on the page if they have changed since they were last
    /// sent to the page; else `None`.
    fn changed_sources(&mut self) -> Option<Sources> {
        if self.session.model.comparison.second().is_none() {
            self.sources.second = RecordingSource::None;
        }
        let has_changed = self.sources != self.sent_sources;
        self.sent_sources.clone_from(&self.sources);
        has_changed.then(|| self.sources.clone())
    }

    /// Measures the delay of the drawn live events and their rate. Returns true if the values in
    /// the page's header have changed.
    fn measure_lateness(&mut self) -> bool {
        let before = self.lateness.measured();
        if self.session.model.origin() == Origin::Live {
            self.lateness.frame_drawn(self.session.model.recording(), js_sys::Date::now());
        } else {
            self.lateness = Lateness::default();
        }
        self.lateness.measured() != before
    }
}

/// Returns the size of this module's WebAssembly memory in bytes.
fn memory_bytes() -> f64 {
    /// Size of a page of WebAssembly memory in bytes.
    const PAGE_BYTES: f64 = 65_536.0;
    core::arch::wasm32::memory_size(0) as f64 * PAGE_BYTES
}
