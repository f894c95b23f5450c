//! The live connection as a state machine that turns events into effects. It implements the client
//! side of `docs/live.md`.
//!
//! [`Connection::handle`] decides what to do about an event of the socket, the user or a timer; the
//! `web` module executes the returned [`Effect`]s. Nothing here depends on a browser.

mod messages;
mod position;
mod state;
#[cfg(test)]
mod tests;

use vramscope_trace::RecordingInfo;
use vramscope_trace::live_protocol::{RECORDING_ENDED, StreamNote, TOO_MANY_CLIENTS, WRONG_TOKEN};

use messages::{CANNOT_RESUME, FOLLOWS_NEW_RUN, NEW_RUN, NO_PROGRAM, TOKEN_REQUIRED, TOO_MANY_VIEWERS, TOO_SLOW};
pub use position::{History, ResumeOutcome, StreamPosition};
pub use state::ConnectionState;

use crate::link::Link;
use crate::model::{Model, Origin};

/// Delay in milliseconds after which a resumed stream of an ended recording counts as live, if it
/// stays open without a message. The server closes it at once if the recording has not continued.
const SILENCE_MS: i32 = 700;

/// Number of a connection attempt, counted from 1. A timer has the number of its attempt, and is
/// ignored once another attempt has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptId(u64);

/// An input of the connection's state machine, from the socket, the user or a timer.
#[derive(Clone, Debug)]
pub enum ConnectionEvent {
    /// The page was opened or the user asked for all history, so the page must show the running
    /// program.
    ShowRequested {
        /// The view to go to.
        link: Link,
        /// The part of the recording to load.
        history: History,
    },
    /// The user asked to watch the program again after its connection had ended.
    WatchRequested,
    /// The socket is open.
    Opened,
    /// The server sent a text message about the recording or about the next binary message.
    NoteReceived(StreamNote),
    /// A binary message arrived: chunks of the recording.
    BytesReceived {
        /// Description of the recording, decoded from the message's header chunk; `None` unless
        /// [`needs_stream_info`](Connection::needs_stream_info) returned true.
        info: Option<RecordingInfo>,
    },
    /// The socket has closed, and all messages received from it have been decoded.
    Closed {
        /// The WebSocket close code.
        code: u16,
        /// A random number from 0 to 1 that varies the reconnection delay.
        random: f64,
    },
    /// Messages arrive faster than the page can decode them or discard old events.
    FellBehind,
    /// The bytes of a received message cannot be decoded.
    DecodingFailed,
    /// The delay of an [`Effect::StartTimer`] has passed.
    TimerExpired(Timer),
    /// The page now shows a file in place of the live recording.
    Replaced,
}

/// A timer of a connection attempt, named after its effect when it expires. It is ignored if
/// another attempt has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// Treat the resumed stream of an ended recording as live, because no message has arrived.
    Silence(AttemptId),
    /// Connect again.
    Retry(AttemptId),
}

/// An action that the page must execute; [`Connection::handle`] returns them in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Close the current socket if there is one, and open a new one.
    OpenSocket {
        /// Query string of the new socket's URL.
        query: String,
    },
    /// Close the socket.
    CloseSocket,
    /// Replace the page's recording by the new stream, from its start, and go to the view of a
    /// link.
    ShowStream {
        /// The view to go to.
        link: Box<Link>,
        /// The requested part of the recording, which decides the page's memory limit.
        history: History,
    },
    /// Discard the events on the page and read the same recording again from the start of the new
    /// stream; keep the current view.
    RestartStream {
        /// The requested part of the recording.
        history: History,
    },
    /// Append the events of the new stream to the recording on the page.
    ResumeStream {
        /// Whether to follow the newest event; if false, the moment on the screen stays.
        following: bool,
    },
    /// Decode the binary message that has just arrived.
    DecodeMessage {
        /// Stream position to pass to [`Connection::decoded_up_to`] once the message is decoded;
        /// `None` if the server sent none.
        next: Option<u64>,
    },
    /// Discard received messages that have not been decoded.
    DiscardMessages,
    /// Mark the model's recording as no longer live.
    DisconnectModel,
    /// Wake the code that waits for the connection attempt: it has found a stream or failed.
    AttemptSettled,
    /// Pass [`ConnectionEvent::TimerExpired`] to the connection after a delay.
    StartTimer {
        /// Delay in milliseconds.
        delay_ms: i32,
        /// The timer to pass in the event.
        timer: Timer,
    },
    /// Show a message to the user.
    ShowMessage(&'static str),
    /// Show the start page, because the page has no events to show.
    ShowStartPage,
    /// Update the page: [`Connection::state`] has changed.
    StateChanged,
}

/// The purpose of a connection attempt: to show any running program, or to resume the recording on
/// the page.
#[derive(Clone, Debug, PartialEq)]
enum AttemptPurpose {
    /// Show the running program, at the view of a link.
    Show { link: Box<Link>, history: History },
    /// Resume the recording on the page. The server may serve another recording by now.
    Resume,
}

/// The reason for a connection attempt, which decides the message to the user about its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptReason {
    /// The page connects on its own, for the first time or after a delay; no message.
    Retry,
    /// The user asked to watch the program.
    UserRequest,
    /// The page could not decode events as fast as they arrived.
    FellBehind,
}

/// A connection attempt and its connection. It lasts until another attempt replaces it, or the page
/// gives up the connection.
#[derive(Clone, Debug)]
struct Attempt {
    id: AttemptId,
    purpose: AttemptPurpose,
    reason: AttemptReason,
    /// Whether the page shows the stream. If not, binary messages are not decoded.
    is_shown: bool,
    /// Whether [`Effect::AttemptSettled`] was returned.
    is_settled: bool,
    /// The note that identified the recording before the page showed the stream.
    first_note: Option<StreamNote>,
    /// Stream position after the next binary message, from the note that describes it; `None` if
    /// the server sent none.
    next: Option<u64>,
}

/// The live connection of a page, as a state machine that does not open sockets itself.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    state: ConnectionState,
    position: StreamPosition,
    attempt: Option<Attempt>,
    /// Number of attempts so far.
    attempts: u64,
    /// Whether the user looked at an earlier moment than the newest when the connection ended.
    had_left_end: bool,
}

impl Connection {
    /// Returns the state shown in the page's header.
    pub fn state(&self) -> ConnectionState {
        self.state
    }

    /// Returns true if the page must decode the header chunk of the next binary message and pass it
    /// in [`ConnectionEvent::BytesReceived`]: after a reconnection, until the stream is shown,
    /// unless the server's first note says that the stream resumes.
    pub fn needs_stream_info(&self) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| {
            let outcome = self.position.resume_outcome(attempt.first_note.as_ref());
            !attempt.is_shown && attempt.purpose == AttemptPurpose::Resume && outcome != ResumeOutcome::Resumed
        })
    }

    /// Stores the stream position after the last decoded message, the number `next` in the server's
    /// note. A reconnection resumes there.
    pub fn decoded_up_to(&mut self, next: u64) {
        self.position.decoded_up_to(next);
    }

    /// Reacts to an event and returns the effects to execute, in order. `model` is the page's model
    /// before the effects.
    pub fn handle(&mut self, event: ConnectionEvent, model: &Model) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            ConnectionEvent::ShowRequested { link, history } => {
                self.open(AttemptPurpose::Show { link: Box::new(link), history }, AttemptReason::Retry, &mut effects);
            }
            ConnectionEvent::WatchRequested => {
                self.had_left_end = false;
                let purpose = match self.position.is_identified() {
                    true => AttemptPurpose::Resume,
                    false => AttemptPurpose::Show { link: Box::default(), history: History::Recent },
                };
                self.open(purpose, AttemptReason::UserRequest, &mut effects);
            }
            ConnectionEvent::Opened => self.opened(&mut effects),
            ConnectionEvent::NoteReceived(note) => self.note_received(note, model, &mut effects),
            ConnectionEvent::BytesReceived { info } => self.bytes_received(info.as_ref(), model, &mut effects),
            ConnectionEvent::Closed { code, random } => self.closed(code, random, model, &mut effects),
            ConnectionEvent::FellBehind => {
                self.had_left_end = !model.is_following();
                self.state = ConnectionState::Reconnecting;
                self.position.skip_ahead();
                effects.extend([Effect::CloseSocket, Effect::DiscardMessages, Effect::DisconnectModel]);
                effects.push(Effect::StateChanged);
                self.open(AttemptPurpose::Resume, AttemptReason::FellBehind, &mut effects);
            }
            ConnectionEvent::DecodingFailed => {
                self.attempt = None;
                self.state = ConnectionState::Disconnected;
                effects.extend([Effect::CloseSocket, Effect::DiscardMessages, Effect::DisconnectModel]);
                effects.push(Effect::StateChanged);
            }
            ConnectionEvent::TimerExpired(timer) => self.timer_expired(timer, model, &mut effects),
            ConnectionEvent::Replaced => {
                self.attempt = None;
                self.state = ConnectionState::None;
                effects.push(Effect::CloseSocket);
            }
        }
        effects
    }

    /// Replaces the current attempt by a new one and appends the effect that opens its socket.
    fn open(&mut self, purpose: AttemptPurpose, reason: AttemptReason, effects: &mut Vec<Effect>) {
        let query = match &purpose {
            AttemptPurpose::Show { history, .. } => StreamPosition::new(*history).query(),
            AttemptPurpose::Resume => self.position.query(),
        };
        self.attempts += 1;
        self.attempt = Some(Attempt {
            id: AttemptId(self.attempts),
            purpose,
            reason,
            is_shown: false,
            is_settled: false,
            first_note: None,
            next: None,
        });
        effects.push(Effect::OpenSocket { query });
    }

    /// Reacts to an open socket: a new stream is shown at once, a resumed one after its first
    /// message.
    fn opened(&mut self, effects: &mut Vec<Effect>) {
        let Some(attempt) = &self.attempt else { return };
        // A resumed connection waits for the first message, which identifies the recording.
        if let AttemptPurpose::Show { link, history } = attempt.purpose.clone() {
            self.position = StreamPosition::new(history);
            effects.push(Effect::ShowStream { link, history });
            self.stream_is_shown(effects);
            self.settle(effects);
        }
    }

    /// Reacts to a note of the server. After a reconnection, the first note with the recording's
    /// identity decides whether the page's recording continues.
    fn note_received(&mut self, note: StreamNote, model: &Model, effects: &mut Vec<Effect>) {
        let Some(attempt) = &mut self.attempt else { return };
        if note.next.is_some() {
            attempt.next = note.next;
        }
        if note.recording.is_none() {
            return;
        }
        if attempt.is_shown {
            self.position.identify(&note);
            return;
        }
        let outcome = self.position.resume_outcome(Some(&note));
        attempt.first_note = Some(note);
        match outcome {
            // If the recording has ended, the server closes the stream at once; until then the
            // recording must not appear live.
            ResumeOutcome::Resumed if self.state == ConnectionState::Ended => {
                let timer = Timer::Silence(attempt.id);
                effects.push(Effect::StartTimer { delay_ms: SILENCE_MS, timer });
                return;
            }
            ResumeOutcome::Resumed => self.resume(effects),
            ResumeOutcome::Restarted => self.restart(model, effects),
            ResumeOutcome::OtherRecording => self.show_new_run(model, effects),
            ResumeOutcome::Unknown => {}
        }
        self.settle(effects);
    }

    /// Reacts to a binary message: decodes it if its stream is shown. `info` is the message's
    /// decoded header chunk where [`needs_stream_info`](Self::needs_stream_info) asked for it, else
    /// `None`.
    fn bytes_received(&mut self, info: Option<&RecordingInfo>, model: &Model, effects: &mut Vec<Effect>) {
        let Some(attempt) = &self.attempt else { return };
        if !attempt.is_shown && attempt.purpose == AttemptPurpose::Resume {
            if self.position.resume_outcome(attempt.first_note.as_ref()) == ResumeOutcome::Resumed {
                self.resume(effects);
            } else {
                // Without an identity, equal descriptions mean the same recording.
                match info == Some(model.recording().info()) {
                    true => self.restart(model, effects),
                    false => self.show_new_run(model, effects),
                }
            }
            self.settle(effects);
        }
        if let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.is_shown) {
            effects.push(Effect::DecodeMessage { next: attempt.next.take() });
        }
    }

    /// Continues the recording on the page with the attempt's stream.
    fn resume(&mut self, effects: &mut Vec<Effect>) {
        effects.push(Effect::ResumeStream { following: !self.had_left_end });
        self.stream_is_shown(effects);
    }

    /// Reads the page's recording again from the start of the attempt's stream. If the user looks
    /// at an earlier moment, which would be lost, ends the attempt instead.
    fn restart(&mut self, model: &Model, effects: &mut Vec<Effect>) {
        let has_events = model.recording().end_event() > 0;
        if has_events && self.had_left_end {
            self.refuse(CANNOT_RESUME, effects);
            return;
        }
        let history = self.position.history;
        self.start_position(history);
        effects.push(Effect::RestartStream { history });
        self.stream_is_shown(effects);
    }

    /// Replaces the page's recording by the attempt's stream, which is another run. If the user
    /// looks at an earlier moment, ends the attempt instead.
    fn show_new_run(&mut self, model: &Model, effects: &mut Vec<Effect>) {
        let is_at_end = model.state().event() >= model.recording().end_event();
        if self.had_left_end || !is_at_end {
            return self.refuse(NEW_RUN, effects);
        }
        self.start_position(History::Recent);
        effects.push(Effect::ShowStream { link: Box::default(), history: History::Recent });
        effects.push(Effect::ShowMessage(FOLLOWS_NEW_RUN));
        self.stream_is_shown(effects);
    }

    /// Resets the stream position to the start of the attempt's stream, with the identity from its
    /// first note.
    fn start_position(&mut self, history: History) {
        self.position = StreamPosition::new(history);
        if let Some(note) = self.attempt.as_ref().and_then(|attempt| attempt.first_note.as_ref()) {
            self.position.identify(note);
        }
    }

    /// Marks the attempt's stream as shown, so that its messages are decoded, and the connection as
    /// live.
    fn stream_is_shown(&mut self, effects: &mut Vec<Effect>) {
        if let Some(attempt) = &mut self.attempt {
            attempt.is_shown = true;
        }
        self.state = ConnectionState::Live;
        self.position.connected();
        effects.push(Effect::StateChanged);
    }

    /// Ends the attempt without showing its stream, and shows `message` instead. The page keeps its
    /// recording; if the user asks to watch again, the page shows any running program.
    fn refuse(&mut self, message: &'static str, effects: &mut Vec<Effect>) {
        self.settle(effects);
        self.attempt = None;
        self.state = ConnectionState::Disconnected;
        self.position = StreamPosition::default();
        effects.extend([Effect::CloseSocket, Effect::ShowMessage(message), Effect::StateChanged]);
    }

    /// Appends [`Effect::AttemptSettled`] on the first call for an attempt, and a message to the
    /// user if the attempt was made because the page fell behind. Later calls do nothing.
    fn settle(&mut self, effects: &mut Vec<Effect>) {
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| !attempt.is_settled) else { return };
        attempt.is_settled = true;
        effects.push(Effect::AttemptSettled);
        if attempt.reason == AttemptReason::FellBehind {
            effects.push(Effect::ShowMessage(TOO_SLOW));
        }
    }

    /// Reacts to a closed socket. The close code `code` decides whether the recording has ended and
    /// whether to reconnect; `random`, from 0 to 1, varies the delay before that.
    fn closed(&mut self, code: u16, random: f64, model: &Model, effects: &mut Vec<Effect>) {
        let is_open_request = |attempt: &Attempt| attempt.reason == AttemptReason::UserRequest && !attempt.is_settled;
        let found_no_program = self.attempt.as_ref().is_some_and(is_open_request);
        self.settle(effects);
        if !matches!(model.origin(), Origin::Live | Origin::Disconnected) {
            return;
        }
        if model.origin() == Origin::Live {
            self.had_left_end = !model.is_following();
        }
        effects.push(Effect::DisconnectModel);
        let has_ended = code == RECORDING_ENDED || self.state == ConnectionState::Ended;
        // Without the recording's identity a reconnection restarts the stream, which discards the
        // earlier moment that the user may be looking at.
        let retries = code != WRONG_TOKEN && (self.position.is_identified() || (!self.had_left_end && !has_ended));
        self.state = match has_ended && code != WRONG_TOKEN {
            true => ConnectionState::Ended,
            false if retries => ConnectionState::Reconnecting,
            false => ConnectionState::Disconnected,
        };
        let message = match code {
            WRONG_TOKEN => Some(TOKEN_REQUIRED),
            TOO_MANY_CLIENTS => Some(TOO_MANY_VIEWERS),
            _ => found_no_program.then_some(NO_PROGRAM),
        };
        effects.extend(message.map(Effect::ShowMessage));
        if model.recording().end_event() == 0 && !retries {
            effects.push(Effect::ShowStartPage);
        }
        effects.push(Effect::StateChanged);
        if let Some(attempt) = self.attempt.as_ref().filter(|_| retries) {
            let delay_ms = self.position.next_retry_ms(random);
            effects.push(Effect::StartTimer { delay_ms, timer: Timer::Retry(attempt.id) });
        }
    }

    /// Reacts to an expired timer of the current attempt: resumes a silent stream, or reconnects.
    fn timer_expired(&mut self, timer: Timer, model: &Model, effects: &mut Vec<Effect>) {
        let Some(attempt) = &self.attempt else { return };
        match timer {
            Timer::Silence(id) if attempt.id == id && !attempt.is_shown && !attempt.is_settled => {
                self.resume(effects);
                self.settle(effects);
            }
            Timer::Retry(id) if attempt.id == id && model.origin() == Origin::Disconnected => {
                self.open(AttemptPurpose::Resume, AttemptReason::Retry, effects);
            }
            Timer::Silence(_) | Timer::Retry(_) => {}
        }
    }
}
