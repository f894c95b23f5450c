//! Tests of the connection's state machine, with a page that executes the effects on its model.

use vramscope_trace::{DeviceId, Encoder, Event, EventKind, Sink};

use super::*;

/// Returns the first note of a stream.
fn note(recording: &str, resumed: bool) -> StreamNote {
    StreamNote { recording: Some(recording.to_owned()), resumed: Some(resumed), ..StreamNote::default() }
}

/// A test page: a connection, and a model on which the connection's effects are executed.
struct Page {
    connection: Connection,
    model: Model,
}

impl Page {
    /// Creates a page that follows the recording "aa" and has decoded its stream up to position 20.
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

    /// Appends ten events to the model's recording.
    fn receive_events(&mut self) {
        let mut encoder = Encoder::new(&RecordingInfo { source: "program".to_owned(), ..RecordingInfo::default() });
        for time_ns in 0..10 {
            let kind = EventKind::MemorySample { used_by_context: 0, used_by_others: 0, free: 1 };
            encoder.event(&Event { device: DeviceId(0), time_ns, kind });
        }
        encoder.flush();
        encoder.take_output().iter().for_each(|chunk| self.model.push(&chunk.bytes).expect("a valid chunk"));
    }

    /// Passes an event to the connection, executes the effects that concern the model, and returns
    /// all effects.
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

    /// Receives a note of the server.
    fn note(&mut self, note: StreamNote) -> Vec<Effect> {
        self.handle(ConnectionEvent::NoteReceived(note))
    }

    /// Closes the socket with a WebSocket close code.
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
    page.note(StreamNote { next: Some(21), ..StreamNote::default() });
    let bytes = ConnectionEvent::BytesReceived { info: None };
    assert_eq!(page.handle(bytes.clone()), [Effect::DecodeMessage { next: Some(21) }]);
    assert_eq!(page.handle(bytes), [Effect::DecodeMessage { next: None }], "a note is for one message");
}

#[test]
fn restarted_stream_replaces_the_recording_only_while_following() {
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
fn following_page_shows_a_new_run() {
    let mut page = Page::following();
    page.reconnect(1006);
    let effects = page.note(note("bb", false));
    assert!(matches!(effects[0], Effect::ShowStream { history: History::Recent, .. }), "{effects:?}");
    assert!(effects.contains(&Effect::ShowMessage(FOLLOWS_NEW_RUN)) && effects.contains(&Effect::AttemptSettled));
    assert_eq!((page.connection.state(), page.model.origin()), (ConnectionState::Live, Origin::Live));
    assert_eq!(page.handle(ConnectionEvent::BytesReceived { info: None }), [Effect::DecodeMessage { next: None }]);
    page.receive_events();
    // From then on the page resumes the new run.
    page.connection.decoded_up_to(3);
    assert_eq!(page.reconnect(1006), "history=recent&notes=1&resume=bb:3");
}

#[test]
fn new_run_is_refused_while_the_user_looks_at_an_earlier_moment() {
    let mut page = Page::following();
    page.reconnect(1006);
    // The user has looked at an earlier moment since.
    page.model.seek(3).expect("a loaded moment");
    let refused = page.note(note("bb", false));
    assert!(refused.contains(&Effect::CloseSocket) && refused.contains(&Effect::ShowMessage(NEW_RUN)));
    let mut page = Page::following();
    page.connection.position = StreamPosition::default();
    page.reconnect(1006);
    page.model.seek(3).expect("a loaded moment");
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
    page.reconnect(RECORDING_ENDED);
    assert_eq!(page.connection.state(), ConnectionState::Ended);
    let effects = page.note(note("aa", true));
    let [Effect::StartTimer { timer, .. }] = effects[..] else { panic!("{effects:?}") };
    page.close(RECORDING_ENDED);
    assert_eq!(page.handle(ConnectionEvent::TimerExpired(timer)), [], "the stream has closed");
    assert_eq!(page.connection.state(), ConnectionState::Ended);
    page.reconnect(RECORDING_ENDED);
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
fn watch_request_without_a_program_shows_a_message() {
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
