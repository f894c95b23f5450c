//! What has come over a live connection and is not in the recording yet. It is decoded a slice at a time, so that the page answers in between, and
//! where the page cannot keep up with what comes, it begins anew with the newest full state rather than to queue without end.
//!
//! Where much waits, as much as a message brings is decoded from within the event that brings it: a browser stops reading from a connection whose
//! events are not handled, and so the server learns that this page is slow and skips it forward.

use std::collections::VecDeque;

use js_sys::Uint8Array;

use super::live::after;
use super::{App, State, live, now_ms};

/// Bytes that may wait. So many take a page seconds; what waits longer is not live any more.
const WAITING_LIMIT_BYTES: u32 = 64 << 20;
/// Bytes that are decoded at once: up to 20,000 events, which take a few milliseconds.
const SLICE_BYTES: u32 = 16 << 10;
/// How long is decoded before the page is given a turn.
const TURN_MS: f64 = 10.0;
/// Bytes that may wait while messages are taken as they come.
const CALM_BYTES: u32 = 1 << 20;
/// How long, and for how many times as many events as were decoded at least, what is to stay is looked through while the oldest part of the
/// recording is forgotten, so that it comes to an end however fast more comes; and how many events at once.
const FORGETTING_MS: f64 = 4.0;
const FORGETTING_TIMES: u64 = 3;
const FORGETTING_EVENTS: u64 = 10_000;

/// A binary message.
struct Message {
    bytes: Uint8Array,
    /// How many of them were decoded.
    used: u32,
    /// What the server said of it.
    next: Option<u64>,
}

/// Messages in the order in which they came.
#[derive(Default)]
pub(super) struct Arrivals {
    messages: VecDeque<Message>,
    waiting_bytes: u32,
    /// Bytes of the recording that have come.
    pub(super) received_bytes: f64,
    /// With what code the connection ended behind them, if it did.
    pub(super) closed: Option<u16>,
    /// Whether somebody will go on with them.
    is_due: bool,
}

impl Arrivals {
    /// Takes a message. Says whether there is room for it.
    pub(super) fn push(&mut self, bytes: Uint8Array, next: Option<u64>) -> bool {
        self.received_bytes += f64::from(bytes.length());
        self.waiting_bytes = self.waiting_bytes.saturating_add(bytes.length());
        self.messages.push_back(Message { bytes, used: 0, next });
        self.waiting_bytes <= WAITING_LIMIT_BYTES
    }

    /// Forgets all that waits.
    pub(super) fn clear(&mut self) {
        *self = Self { received_bytes: self.received_bytes, is_due: self.is_due, ..Self::default() };
    }

    pub(super) fn waiting_bytes(&self) -> u32 {
        self.waiting_bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The next bytes; and where they are a message's last, what the server said of it.
    fn next_slice(&mut self) -> Option<(Vec<u8>, Option<u64>)> {
        let message = self.messages.front_mut()?;
        let end = message.bytes.length().min(message.used + SLICE_BYTES);
        let slice = message.bytes.subarray(message.used, end).to_vec();
        self.waiting_bytes -= end - message.used;
        message.used = end;
        if end < message.bytes.length() {
            return Some((slice, None));
        }
        let next = self.messages.pop_front().and_then(|message| message.next);
        Some((slice, next))
    }
}

impl State {
    /// Decodes what waits, for as long as a turn lasts, and where much waits at least so many bytes.
    fn decode(&mut self, least_bytes: u32) -> Result<(), String> {
        let (begun, mut decoded, before) = (now_ms(), 0, self.model.recording().events());
        let least_bytes = if self.arrivals.waiting_bytes > CALM_BYTES { least_bytes } else { 0 };
        let turn_ms = if self.model.is_forgetting() { TURN_MS / 2.0 } else { TURN_MS };
        while let Some((bytes, next)) = self.arrivals.next_slice() {
            self.model.take(&bytes).map_err(|error| error.to_string())?;
            decoded += bytes.len() as u32;
            if let Some(next) = next {
                self.following.taken(next);
            }
            if now_ms() - begun > turn_ms && decoded >= least_bytes {
                break;
            }
        }
        let mut left = self.model.recording().events().saturating_sub(before).saturating_mul(FORGETTING_TIMES);
        let begun = now_ms();
        while self.model.is_forgetting() && (left > 0 || now_ms() - begun < FORGETTING_MS) {
            self.model.forget_on(FORGETTING_EVENTS);
            left = left.saturating_sub(FORGETTING_EVENTS);
        }
        Ok(())
    }
}

/// Decodes a turn's worth of what waits, has it drawn, and goes on later where more does. `least_bytes` is what a message has just brought.
pub(super) fn decode(app: &App, least_bytes: u32) {
    let mut state = app.0.state.borrow_mut();
    if let Err(error) = state.decode(least_bytes) {
        state.page.show_message(&error);
        state.arrivals.clear();
        drop(state);
        live::give_up(app);
        return;
    }
    if state.model.is_overfull() {
        drop(state);
        live::skip_forward(app);
        return;
    }
    let more = !state.arrivals.is_empty() || state.model.is_forgetting();
    let is_new = more && !state.arrivals.is_due;
    state.arrivals.is_due |= more;
    let closed = if state.arrivals.is_empty() { state.arrivals.closed.take() } else { None };
    drop(state);
    app.want_frame_soon();
    if is_new {
        let app = app.clone();
        after(0, move || {
            app.0.state.borrow_mut().arrivals.is_due = false;
            decode(&app, 0);
        });
    }
    if let Some(code) = closed {
        live::lost(app, code);
    }
}
