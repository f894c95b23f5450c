//! The live connection as a state machine: events in, effects out; the client side of
//! `docs/live.md`.
//!
//! [`Connection::handle`] decides what to do about an event of the socket, the user or a timer; the
//! `web` module executes the returned [`Effect`]s. Nothing here depends on a browser.

use vramscope_trace::RecordingInfo;

use crate::link::Link;
use crate::model::{Model, Origin};

/// Delay before the first reconnection; it doubles with each failure.
const RETRY_MS: f64 = 500.0;
/// Longest delay between reconnections.
const MAX_RETRY_MS: f64 = 15_000.0;
/// How long a resumed stream of an ended recording may be silent before it counts as live: a
/// server closes the stream of an ended recording at once.
const SILENCE_MS: i32 = 700;
/// Longest identity of a recording, in characters.
const MAX_IDENTITY: usize = 64;

/// WebSocket close code of a recording that has ended.
const CLOSE_ENDED: u16 = 1000;
/// WebSocket close code of a server with too many viewers.
const CLOSE_TOO_MANY_VIEWERS: u16 = 1013;
/// WebSocket close code of a server that requires a token.
const CLOSE_TOKEN_REQUIRED: u16 = 4401;

const NEW_RUN: &str = "A new run has started here. Press L to watch it.";
const CANNOT_RESUME: &str = "Reconnected, but cannot resume where the connection ended. This page keeps what it has; \
     press L to show what the server holds now.";
const NO_PROGRAM: &str = "No program is running here. This page keeps the last recording.";
const TOKEN_REQUIRED: &str = "This server needs a token. Open the full address that the program printed.";
const TOO_MANY_VIEWERS: &str = "The server has reached its limit of viewers; trying again.";
const TOO_SLOW: &str =
    "This page could not keep up with the program. It continues with the newest events and counts the missed ones.";

/// Which part of a live recording to load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum History {
    /// The newest part.
    #[default]
    Recent,
    /// All of it.
    All,
}

/// A text message of the server about the bytes that follow. Every field may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerNote {
    /// Identity of the recording.
    pub recording: Option<String>,
    /// Whether the stream resumes at the requested position.
    pub resumed: bool,
    /// Number of the chunk after the next message.
    pub next: Option<u64>,
}

/// The meaning of the first message after a reconnection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeOutcome {
    /// The stream continues where it ended.
    Resumed,
    /// The same recording, from another position.
    Restarted,
    /// Another recording.
    OtherRecording,
    /// The server does not identify the recording; the first bytes have to.
    Unknown,
}

/// The recording that is followed, and how far it has been received.
#[derive(Clone, Debug, Default)]
pub struct StreamPosition {
    /// The requested part of the recording.
    pub history: History,
    recording: Option<String>,
    next: Option<u64>,
    /// Whether to skip to the newest full state.
    skips_ahead: bool,
    failures: i32,
}

impl StreamPosition {
    /// Creates the position before the first byte of any recording.
    #[must_use]
    pub fn new(history: History) -> Self {
        Self { history, ..Self::default() }
    }

    /// Returns the query string for the WebSocket's URL.
    #[must_use]
    pub fn query(&self) -> String {
        let history = match self.history {
            History::Recent => "history=recent&",
            History::All => "history=all&",
        };
        if self.skips_ahead {
            return "notes=1".to_owned();
        }
        match (&self.recording, self.next) {
            (Some(recording), Some(next)) => format!("{history}notes=1&resume={recording}:{next}"),
            _ => format!("{history}notes=1"),
        }
    }

    /// Returns true if the server has identified the recording.
    #[must_use]
    pub fn is_identified(&self) -> bool {
        self.recording.is_some()
    }

    fn requests_resume(&self) -> bool {
        self.next.is_some() && !self.skips_ahead
    }

    /// Makes the next connection start with the newest full state.
    pub fn skip_ahead(&mut self) {
        self.skips_ahead = true;
    }

    /// Returns what the first note of a reconnection means.
    #[must_use]
    pub fn resume_outcome(&self, first: Option<&ServerNote>) -> ResumeOutcome {
        let Some(note) = first else { return ResumeOutcome::Unknown };
        match (&self.recording, &note.recording) {
            (Some(known), Some(found)) if known != found => ResumeOutcome::OtherRecording,
            (Some(_), Some(_)) if note.resumed && self.requests_resume() => ResumeOutcome::Resumed,
            (Some(_), Some(_)) => ResumeOutcome::Restarted,
            _ => ResumeOutcome::Unknown,
        }
    }

    /// Stores the recording's identity. An identity that does not fit into a query is ignored.
    pub fn identify(&mut self, note: &ServerNote) {
        let is_valid = |text: &String| {
            !text.is_empty() && text.len() <= MAX_IDENTITY && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let found = note.recording.clone().filter(is_valid);
        if found != self.recording {
            (self.recording, self.next) = (found, None);
        }
    }

    /// Notes that everything before chunk `next` has been decoded.
    pub fn decoded_up_to(&mut self, next: u64) {
        self.next = Some(next);
    }

    /// Resets the reconnection delay after a successful connection.
    pub fn connected(&mut self) {
        self.failures = 0;
    }

    /// Returns the delay before the next reconnection; it grows with each call.
    ///
    /// `random`, from 0 to 1, spreads the reconnections of many pages.
    pub fn next_retry_ms(&mut self, random: f64) -> i32 {
        let delay = (RETRY_MS * 2f64.powi(self.failures.min(16))).min(MAX_RETRY_MS);
        self.failures = self.failures.saturating_add(1);
        (delay * (0.75 + 0.5 * random)) as i32
    }
}

/// The state of the connection, shown in the page's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionState {
    /// There has been no connection.
    #[default]
    None,
    /// Events arrive.
    Live,
    /// The connection was lost and is being restored.
    Reconnecting,
    /// The recording has ended.
    Ended,
    /// The connection was lost; only the user reconnects.
    Disconnected,
}

impl ConnectionState {
    /// Returns the name for scripts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Live => "live",
            Self::Reconnecting => "reconnecting",
            Self::Ended => "ended",
            Self::Disconnected => "disconnected",
        }
    }
}

/// The connection attempt that a timer or a socket belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptId(u64);

/// Something that the connection must react to.
#[derive(Clone, Debug)]
pub enum ConnectionEvent {
    /// Show the running program, at the view of a link.
    ShowRequested {
        /// The view to go to.
        link: Link,
        /// The part of the recording to load.
        history: History,
    },
    /// The user wants to watch the running program.
    WatchRequested,
    /// The socket is open.
    Opened,
    /// A text message arrived.
    NoteReceived(ServerNote),
    /// A binary message arrived. The head is needed if
    /// [`needs_stream_info`](Connection::needs_stream_info).
    BytesReceived {
        /// Description of the program, decoded from the message.
        info: Option<RecordingInfo>,
    },
    /// The socket has closed and all its bytes are decoded.
    Closed {
        /// The WebSocket close code.
        code: u16,
        /// A random number from 0 to 1 for the reconnection delay.
        random: f64,
    },
    /// More bytes arrive than can be decoded or held.
    FellBehind,
    /// The received bytes are invalid.
    DecodingFailed,
    /// The time of an [`Effect::StartTimer`] has passed.
    TimerExpired(Timer),
    /// A file is shown instead.
    Replaced,
}

/// What happens when a timer expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// The resumed stream of an ended recording has been silent: it is live.
    Silence(AttemptId),
    /// Reconnect.
    Retry(AttemptId),
}

/// Something that the page must do. Effects are executed in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Close the socket, and open a new one with this query string.
    OpenSocket {
        /// Query string of the URL.
        query: String,
    },
    /// Close the socket.
    CloseSocket,
    /// Show the stream from its start, at the view of a link.
    ShowStream {
        /// The view to go to.
        link: Link,
        /// The requested part of the recording, which sets the memory limit.
        history: History,
    },
    /// Show the same recording again from the start of the stream, at the current view.
    RestartStream {
        /// The requested part of the recording.
        history: History,
    },
    /// Continue with the recording on the page.
    ResumeStream {
        /// Whether to go to the newest event.
        following: bool,
    },
    /// Decode the message; its last byte is before chunk `next`, if the server said so.
    DecodeMessage {
        /// Number of the chunk after the message.
        next: Option<u64>,
    },
    /// Discard messages that have not been decoded.
    DiscardMessages,
    /// Mark the model as disconnected.
    DisconnectModel,
    /// The attempt's result is known: whether there is a program, and whether it is the expected
    /// one.
    AttemptSettled,
    /// Send [`ConnectionEvent::TimerExpired`] after a delay.
    StartTimer {
        /// Delay in milliseconds.
        delay_ms: i32,
        /// The timer.
        timer: Timer,
    },
    /// Show a message.
    ShowMessage(&'static str),
    /// Show the start page: nothing has been received.
    ShowStartPage,
    /// The connection state has changed.
    StateChanged,
}

/// What a socket was opened for.
#[derive(Clone, Debug, PartialEq)]
enum Purpose {
    /// To show any program, at the view of a link.
    Show { link: Link, history: History },
    /// To resume the recording on the page. Another program may have taken its place.
    Resume,
}

/// Why a connection is resumed, for the message once the result is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Retry,
    UserRequest,
    FellBehind,
}

/// A connection attempt, from opening its socket until that is closed or replaced.
#[derive(Clone, Debug)]
struct Attempt {
    id: AttemptId,
    purpose: Purpose,
    reason: Reason,
    /// Whether its stream is shown.
    is_shown: bool,
    is_settled: bool,
    /// The note that identified the recording before the first bytes.
    first_note: Option<ServerNote>,
    /// Number of the chunk after the next message.
    next: Option<u64>,
}

/// The live connection of a page.
#[derive(Clone, Debug)]
pub struct Connection {
    state: ConnectionState,
    position: StreamPosition,
    attempt: Option<Attempt>,
    attempts: u64,
    /// Whether the newest event was followed when the connection ended.
    was_following: bool,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            state: ConnectionState::None,
            position: StreamPosition::default(),
            attempt: None,
            attempts: 0,
            was_following: true,
        }
    }
}

impl Connection {
    /// Returns the state shown in the page's header.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.state
    }

    /// Returns true if the next binary message must be decoded to find out which program it is of.
    #[must_use]
    pub fn needs_stream_info(&self) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| {
            let outcome = self.position.resume_outcome(attempt.first_note.as_ref());
            !attempt.is_shown && attempt.purpose == Purpose::Resume && outcome != ResumeOutcome::Resumed
        })
    }

    /// Notes that everything before chunk `next` has been decoded.
    pub fn decoded_up_to(&mut self, next: u64) {
        self.position.decoded_up_to(next);
    }

    /// Reacts to an event. `model` is the page's model before the effects are executed.
    pub fn handle(&mut self, event: ConnectionEvent, model: &Model) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            ConnectionEvent::ShowRequested { link, history } => {
                self.open(Purpose::Show { link, history }, Reason::Retry, &mut effects);
            }
            ConnectionEvent::WatchRequested => {
                self.was_following = true;
                let purpose = match self.position.is_identified() {
                    true => Purpose::Resume,
                    false => Purpose::Show { link: Link::default(), history: History::Recent },
                };
                self.open(purpose, Reason::UserRequest, &mut effects);
            }
            ConnectionEvent::Opened => self.opened(&mut effects),
            ConnectionEvent::NoteReceived(note) => self.note_received(note, model, &mut effects),
            ConnectionEvent::BytesReceived { info } => self.bytes_received(info.as_ref(), model, &mut effects),
            ConnectionEvent::Closed { code, random } => self.closed(code, random, model, &mut effects),
            ConnectionEvent::FellBehind => {
                self.was_following = model.is_following();
                self.state = ConnectionState::Reconnecting;
                self.position.skip_ahead();
                effects.extend([Effect::CloseSocket, Effect::DiscardMessages, Effect::DisconnectModel]);
                effects.push(Effect::StateChanged);
                self.open(Purpose::Resume, Reason::FellBehind, &mut effects);
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

    fn open(&mut self, purpose: Purpose, reason: Reason, effects: &mut Vec<Effect>) {
        let query = match &purpose {
            Purpose::Show { history, .. } => StreamPosition::new(*history).query(),
            Purpose::Resume => self.position.query(),
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

    fn opened(&mut self, effects: &mut Vec<Effect>) {
        let Some(attempt) = &self.attempt else { return };
        // A resumed connection waits for the first message, which identifies the recording.
        if let Purpose::Show { link, history } = attempt.purpose.clone() {
            self.position = StreamPosition::new(history);
            effects.push(Effect::ShowStream { link, history });
            self.stream_is_shown(effects);
            self.settle(effects);
        }
    }

    fn note_received(&mut self, note: ServerNote, model: &Model, effects: &mut Vec<Effect>) {
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
            // An ended recording closes the stream at once, and must not appear live until then.
            ResumeOutcome::Resumed if self.state == ConnectionState::Ended => {
                let timer = Timer::Silence(attempt.id);
                effects.push(Effect::StartTimer { delay_ms: SILENCE_MS, timer });
                return;
            }
            ResumeOutcome::Resumed => self.resume(effects),
            ResumeOutcome::Restarted => self.restart(model, effects),
            ResumeOutcome::OtherRecording => self.refuse(NEW_RUN, effects),
            ResumeOutcome::Unknown => {}
        }
        self.settle(effects);
    }

    fn bytes_received(&mut self, info: Option<&RecordingInfo>, model: &Model, effects: &mut Vec<Effect>) {
        let Some(attempt) = &self.attempt else { return };
        if !attempt.is_shown && attempt.purpose == Purpose::Resume {
            if self.position.resume_outcome(attempt.first_note.as_ref()) == ResumeOutcome::Resumed {
                self.resume(effects);
            } else {
                // The server did not identify the recording, so its description has to.
                match info == Some(model.recording().info()) {
                    true => self.restart(model, effects),
                    false => self.refuse(NEW_RUN, effects),
                }
            }
            self.settle(effects);
        }
        if let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.is_shown) {
            effects.push(Effect::DecodeMessage { next: attempt.next.take() });
        }
    }

    /// Continues where the previous connection ended.
    fn resume(&mut self, effects: &mut Vec<Effect>) {
        effects.push(Effect::ResumeStream { following: self.was_following });
        self.stream_is_shown(effects);
    }

    /// Restarts the stream, unless that would replace something the user is looking at.
    fn restart(&mut self, model: &Model, effects: &mut Vec<Effect>) {
        let has_events = model.recording().end_event() > 0;
        if has_events && !self.was_following {
            self.refuse(CANNOT_RESUME, effects);
            return;
        }
        let history = self.position.history;
        self.position = StreamPosition::new(history);
        if let Some(note) = self.attempt.as_ref().and_then(|attempt| attempt.first_note.as_ref()) {
            self.position.identify(note);
        }
        effects.push(Effect::RestartStream { history });
        self.stream_is_shown(effects);
    }

    fn stream_is_shown(&mut self, effects: &mut Vec<Effect>) {
        if let Some(attempt) = &mut self.attempt {
            attempt.is_shown = true;
        }
        self.state = ConnectionState::Live;
        self.position.connected();
        effects.push(Effect::StateChanged);
    }

    /// Keeps the recording on the page. The user's next request shows whatever runs.
    fn refuse(&mut self, message: &'static str, effects: &mut Vec<Effect>) {
        self.settle(effects);
        self.attempt = None;
        self.state = ConnectionState::Disconnected;
        self.position = StreamPosition::default();
        effects.extend([Effect::CloseSocket, Effect::ShowMessage(message), Effect::StateChanged]);
    }

    /// Reports the attempt's result, once.
    fn settle(&mut self, effects: &mut Vec<Effect>) {
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| !attempt.is_settled) else { return };
        attempt.is_settled = true;
        effects.push(Effect::AttemptSettled);
        if attempt.reason == Reason::FellBehind {
            effects.push(Effect::ShowMessage(TOO_SLOW));
        }
    }

    fn closed(&mut self, code: u16, random: f64, model: &Model, effects: &mut Vec<Effect>) {
        let found_no_program =
            self.attempt.as_ref().is_some_and(|attempt| attempt.reason == Reason::UserRequest && !attempt.is_settled);
        self.settle(effects);
        if !matches!(model.origin(), Origin::Live | Origin::Disconnected) {
            return;
        }
        if model.origin() == Origin::Live {
            self.was_following = model.is_following();
        }
        effects.push(Effect::DisconnectModel);
        let has_ended = code == CLOSE_ENDED || self.state == ConnectionState::Ended;
        // Without the recording's identity a reconnection restarts the stream, which would replace
        // an earlier moment that the user looks at.
        let retries =
            code != CLOSE_TOKEN_REQUIRED && (self.position.is_identified() || (self.was_following && !has_ended));
        self.state = match has_ended && code != CLOSE_TOKEN_REQUIRED {
            true => ConnectionState::Ended,
            false if retries => ConnectionState::Reconnecting,
            false => ConnectionState::Disconnected,
        };
        let message = match code {
            CLOSE_TOKEN_REQUIRED => Some(TOKEN_REQUIRED),
            CLOSE_TOO_MANY_VIEWERS => Some(TOO_MANY_VIEWERS),
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

    fn timer_expired(&mut self, timer: Timer, model: &Model, effects: &mut Vec<Effect>) {
        let Some(attempt) = &self.attempt else { return };
        match timer {
            Timer::Silence(id) if attempt.id == id && !attempt.is_shown && !attempt.is_settled => {
                self.resume(effects);
                self.settle(effects);
            }
            Timer::Retry(id) if attempt.id == id && model.origin() == Origin::Disconnected => {
                self.open(Purpose::Resume, Reason::Retry, effects);
            }
            Timer::Silence(_) | Timer::Retry(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{DeviceId, Encoder, Event, EventKind, Sink};

    use super::*;

    fn note(recording: &str, resumed: bool) -> ServerNote {
        ServerNote { recording: Some(recording.to_owned()), resumed, next: None }
    }

    #[test]
    fn query_resumes_at_the_decoded_position() {
        let mut position = StreamPosition::new(History::Recent);
        assert_eq!(position.query(), "history=recent&notes=1");
        position.identify(&note("0af3", false));
        assert_eq!(position.query(), "history=recent&notes=1", "nothing has been decoded");
        position.decoded_up_to(17);
        assert_eq!(position.query(), "history=recent&notes=1&resume=0af3:17");
        position.identify(&note("0af3", true));
        assert_eq!(position.query(), "history=recent&notes=1&resume=0af3:17");
        position.identify(&note("77", false));
        assert_eq!(position.query(), "history=recent&notes=1", "nothing of the other recording has been decoded");
        assert_eq!(StreamPosition::new(History::All).query(), "history=all&notes=1");
        position.skip_ahead();
        assert_eq!(position.query(), "notes=1");
    }

    #[test]
    fn first_note_determines_the_resume_outcome() {
        let mut known = StreamPosition::new(History::Recent);
        known.identify(&note("aa", false));
        let fresh = known.clone();
        known.decoded_up_to(3);
        let check = |position: &StreamPosition, first: Option<ServerNote>, expected| {
            assert_eq!(position.resume_outcome(first.as_ref()), expected);
        };
        check(&known, Some(note("aa", true)), ResumeOutcome::Resumed);
        check(&known, Some(note("aa", false)), ResumeOutcome::Restarted);
        check(&known, Some(note("bb", false)), ResumeOutcome::OtherRecording);
        check(&known, Some(note("bb", true)), ResumeOutcome::OtherRecording);
        check(&known, None, ResumeOutcome::Unknown);
        check(&known, Some(ServerNote::default()), ResumeOutcome::Unknown);
        check(&fresh, Some(note("aa", true)), ResumeOutcome::Restarted);
        known.skip_ahead();
        check(&known, Some(note("aa", false)), ResumeOutcome::Restarted);
        check(&StreamPosition::default(), Some(note("aa", true)), ResumeOutcome::Unknown);
    }

    #[test]
    fn invalid_identities_never_reach_the_query() {
        for text in ["", "a&history=all", "a:1", "a b", "é", &"a".repeat(65)] {
            let mut position = StreamPosition::new(History::Recent);
            position.identify(&note(text, false));
            position.decoded_up_to(1);
            assert_eq!(position.query(), "history=recent&notes=1", "{text:?}");
        }
    }

    #[test]
    fn retry_delay_doubles_up_to_a_limit() {
        let mut position = StreamPosition::default();
        let delays: Vec<i32> = (0..8).map(|_| position.next_retry_ms(0.5)).collect();
        assert_eq!(delays, [500, 1000, 2000, 4000, 8000, 15_000, 15_000, 15_000]);
        position.connected();
        assert_eq!((position.next_retry_ms(0.0), position.next_retry_ms(1.0)), (375, 1250));
        for _ in 0..1000 {
            assert!(position.next_retry_ms(1.0) <= 18_750);
        }
    }

    /// A connection with its model; effects on the model are executed, the others returned.
    struct Page {
        connection: Connection,
        model: Model,
    }

    impl Page {
        /// A page that follows recording "aa" and has decoded 20 chunks.
        fn following() -> Self {
            let mut page = Self { connection: Connection::default(), model: Model::default() };
            let request = ConnectionEvent::ShowRequested { link: Link::default(), history: History::Recent };
            let query = "history=recent&notes=1".to_owned();
            assert_eq!(page.handle(request), [Effect::OpenSocket { query }]);
            let shown = page.handle(ConnectionEvent::Opened);
            assert!(matches!(shown[..], [Effect::ShowStream { .. }, Effect::StateChanged, Effect::AttemptSettled]));
            assert_eq!(page.note(note("aa", false)), []);
            page.receive_events();
            page.connection.decoded_up_to(20);
            assert_eq!(page.connection.state(), ConnectionState::Live);
            page
        }

        fn receive_events(&mut self) {
            let mut encoder = Encoder::new(&RecordingInfo { source: "program".to_owned(), ..RecordingInfo::default() });
            for time_ns in 0..10 {
                let kind = EventKind::MemorySample { used_by_context: 0, used_by_others: 0, free: 1 };
                encoder.event(&Event { device: DeviceId(0), time_ns, kind });
            }
            encoder.flush();
            encoder.take_output().iter().for_each(|chunk| self.model.push(&chunk.bytes).expect("a valid chunk"));
        }

        fn handle(&mut self, event: ConnectionEvent) -> Vec<Effect> {
            let effects = self.connection.handle(event, &self.model);
            for effect in &effects {
                match effect {
                    Effect::ShowStream { .. } => self.model.reset("live", Origin::Live),
                    Effect::RestartStream { .. } => self.model.restart_live(),
                    Effect::ResumeStream { following } => self.model.reconnect(*following),
                    Effect::DisconnectModel => self.model.disconnect(),
                    _ => {}
                }
            }
            effects
        }

        fn note(&mut self, note: ServerNote) -> Vec<Effect> {
            self.handle(ConnectionEvent::NoteReceived(note))
        }

        fn close(&mut self, code: u16) -> Vec<Effect> {
            self.handle(ConnectionEvent::Closed { code, random: 0.5 })
        }

        /// Closes the socket and reconnects when the timer expires; returns the new socket's query.
        fn reconnect(&mut self, code: u16) -> String {
            let effects = self.close(code);
            let Some(Effect::StartTimer { timer, .. }) = effects.last() else { panic!("{effects:?}") };
            match &self.handle(ConnectionEvent::TimerExpired(*timer))[..] {
                [Effect::OpenSocket { query }] => query.clone(),
                effects => panic!("{effects:?}"),
            }
        }
    }

    #[test]
    fn lost_connection_resumes_at_its_position() {
        let mut page = Page::following();
        assert_eq!(page.reconnect(1006), "history=recent&notes=1&resume=aa:20");
        assert_eq!(page.connection.state(), ConnectionState::Reconnecting);
        assert_eq!(page.model.origin(), Origin::Disconnected);
        let effects = page.note(note("aa", true));
        let resumed = Effect::ResumeStream { following: true };
        assert_eq!(effects, [resumed, Effect::StateChanged, Effect::AttemptSettled]);
        assert_eq!((page.connection.state(), page.model.is_following()), (ConnectionState::Live, true));
        page.note(ServerNote { next: Some(21), ..ServerNote::default() });
        let bytes = ConnectionEvent::BytesReceived { info: None };
        assert_eq!(page.handle(bytes.clone()), [Effect::DecodeMessage { next: Some(21) }]);
        assert_eq!(page.handle(bytes), [Effect::DecodeMessage { next: None }], "a note is for one message");
    }

    #[test]
    fn restart_replaces_only_a_followed_recording() {
        let mut page = Page::following();
        page.reconnect(1001);
        assert!(page.note(note("aa", false)).contains(&Effect::RestartStream { history: History::Recent }));
        page.receive_events();
        page.model.seek(3).expect("a loaded moment");
        page.reconnect(1001);
        let effects = page.note(note("aa", false));
        assert!(effects.contains(&Effect::ShowMessage(CANNOT_RESUME)), "{effects:?}");
        assert_eq!(page.connection.state(), ConnectionState::Disconnected);
        assert_eq!(page.model.state().event(), 3);
        let query = "history=recent&notes=1".to_owned();
        assert_eq!(page.handle(ConnectionEvent::WatchRequested), [Effect::OpenSocket { query }]);
        page.handle(ConnectionEvent::Opened);
        assert_eq!(page.connection.state(), ConnectionState::Live);
    }

    #[test]
    fn another_recording_is_refused_by_note_or_by_its_info() {
        let mut page = Page::following();
        page.reconnect(1006);
        let refused = page.note(note("bb", false));
        assert!(refused.contains(&Effect::CloseSocket) && refused.contains(&Effect::ShowMessage(NEW_RUN)));
        let mut page = Page::following();
        page.connection.position = StreamPosition::default();
        page.reconnect(1006);
        assert!(page.connection.needs_stream_info());
        let other = RecordingInfo { source: "other".to_owned(), ..RecordingInfo::default() };
        let effects = page.handle(ConnectionEvent::BytesReceived { info: Some(other) });
        assert!(effects.contains(&Effect::ShowMessage(NEW_RUN)) && page.connection.attempt.is_none(), "{effects:?}");
        assert_eq!(page.handle(ConnectionEvent::BytesReceived { info: None }), []);
    }

    #[test]
    fn unidentified_stream_of_the_same_program_restarts() {
        let mut page = Page::following();
        page.connection.position = StreamPosition::default();
        page.reconnect(1006);
        let info = Some(page.model.recording().info().clone());
        let effects = page.handle(ConnectionEvent::BytesReceived { info });
        assert!(effects.contains(&Effect::RestartStream { history: History::Recent }), "{effects:?}");
        assert_eq!(effects.last(), Some(&Effect::DecodeMessage { next: None }));
    }

    #[test]
    fn ended_recording_is_not_live_until_its_stream_stays_open() {
        let mut page = Page::following();
        page.reconnect(CLOSE_ENDED);
        assert_eq!(page.connection.state(), ConnectionState::Ended);
        let effects = page.note(note("aa", true));
        let [Effect::StartTimer { timer, .. }] = effects[..] else { panic!("{effects:?}") };
        page.close(CLOSE_ENDED);
        assert_eq!(page.handle(ConnectionEvent::TimerExpired(timer)), [], "the stream has closed");
        assert_eq!(page.connection.state(), ConnectionState::Ended);
        page.reconnect(CLOSE_ENDED);
        let effects = page.note(note("aa", true));
        let [Effect::StartTimer { timer, .. }] = effects[..] else { panic!("{effects:?}") };
        assert!(page.handle(ConnectionEvent::TimerExpired(timer)).contains(&Effect::AttemptSettled));
        assert_eq!(page.connection.state(), ConnectionState::Live);
    }

    #[test]
    fn close_code_decides_message_and_retry() {
        let check = |code: u16, state: ConnectionState, message: Option<&'static str>, retries: bool| {
            let mut page = Page::following();
            let effects = page.close(code);
            assert_eq!(page.connection.state(), state, "{code}");
            let shown = effects.iter().find_map(|effect| match effect {
                Effect::ShowMessage(message) => Some(*message),
                _ => None,
            });
            assert_eq!(shown, message, "{code}");
            assert_eq!(matches!(effects.last(), Some(Effect::StartTimer { .. })), retries, "{code}");
        };
        check(1000, ConnectionState::Ended, None, true);
        check(1006, ConnectionState::Reconnecting, None, true);
        check(1013, ConnectionState::Reconnecting, Some(TOO_MANY_VIEWERS), true);
        check(4401, ConnectionState::Disconnected, Some(TOKEN_REQUIRED), false);
    }

    #[test]
    fn user_request_without_a_program_says_so() {
        let mut page = Page::following();
        page.reconnect(1000);
        page.close(1006);
        assert!(matches!(page.handle(ConnectionEvent::WatchRequested)[..], [Effect::OpenSocket { .. }]));
        assert!(page.close(1006).contains(&Effect::ShowMessage(NO_PROGRAM)));
        page.reconnect(1006);
        assert!(!page.close(1006).contains(&Effect::ShowMessage(NO_PROGRAM)), "only once");
    }

    #[test]
    fn page_that_falls_behind_skips_to_the_newest_state() {
        let mut page = Page::following();
        let effects = page.handle(ConnectionEvent::FellBehind);
        assert_eq!(effects.last(), Some(&Effect::OpenSocket { query: "notes=1".to_owned() }));
        assert!(effects.contains(&Effect::DiscardMessages) && page.model.origin() == Origin::Disconnected);
        let effects = page.note(note("aa", false));
        assert_eq!(effects.last(), Some(&Effect::ShowMessage(TOO_SLOW)));
        assert_eq!(page.connection.state(), ConnectionState::Live);
    }

    #[test]
    fn replaced_connection_ignores_its_timers() {
        let mut page = Page::following();
        let effects = page.close(1006);
        let Some(&Effect::StartTimer { timer, .. }) = effects.last() else { panic!("{effects:?}") };
        page.handle(ConnectionEvent::Replaced);
        assert_eq!(page.handle(ConnectionEvent::TimerExpired(timer)), []);
        assert_eq!(page.connection.state(), ConnectionState::None);
    }

    #[test]
    fn decoding_error_disconnects_and_keeps_the_recording() {
        let mut page = Page::following();
        assert!(page.handle(ConnectionEvent::DecodingFailed).contains(&Effect::CloseSocket));
        assert_eq!(page.connection.state(), ConnectionState::Disconnected);
        assert_eq!((page.model.origin(), page.model.recording().end_event()), (Origin::Disconnected, 10));
    }
}
