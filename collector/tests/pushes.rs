//! Invalid and valid clients of `/push`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::Level;
use tungstenite::client::IntoClientRequest;
use tungstenite::{Message, WebSocket};
use vramscope_collector::{Aggregator, Hub, Outputs, ServedContent, Server, ServerOptions, Token, log_text};
use vramscope_trace::{
    AnnotationStage, DeviceId, Encoder, Event, EventKind, Recording, RecordingInfo, Sink, SiteId, StringId,
};

#[path = "../src/captured_log.rs"]
mod captured_log;

/// Maximum time that a test waits for an event; only a test that hangs reaches it.
const TIMEOUT: Duration = Duration::from_secs(120);
const IDENTITY: &str = "0123456789abcdef0123456789abcdef";

/// Locked while a test's server runs: all tests share one log.
static LOG: Mutex<()> = Mutex::new(());

/// A server with a token, to which processes push recordings.
struct PushServer {
    aggregator: Aggregator,
    hub: Hub,
    server: Server,
    /// Number of log events when the server was started.
    first_log_event: usize,
    _log: MutexGuard<'static, ()>,
}

fn start() -> PushServer {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    captured_log::start();
    let first_log_event = captured_log::events().len();
    let (aggregator, hub) = (Aggregator::new(), Hub::default());
    aggregator.begin(Outputs { hub: Some(hub.clone()), ..Outputs::default() }).expect("a thread starts");
    let options = ServerOptions {
        listen: Some(([127, 0, 0, 1], 0).into()),
        token: Some(Token::new("secret").expect("a valid token")),
        ..ServerOptions::default()
    };
    let content = ServedContent { aggregator: Some(aggregator.clone()), ..ServedContent::live(hub.clone()) };
    let server = Server::start(options, content).expect("the server starts");
    PushServer { aggregator, hub, server, first_log_event, _log: log }
}

impl PushServer {
    fn connect(&self) -> WebSocket<TcpStream> {
        let address = self.server.address();
        let stream = TcpStream::connect(address).expect("the server receives");
        stream.set_read_timeout(Some(TIMEOUT)).expect("the socket can be configured");
        let mut request = format!("ws://{address}/push").into_client_request().expect("a valid URL");
        request.headers_mut().insert("authorization", "Bearer secret".parse().expect("a valid header value"));
        tungstenite::client(request, stream).expect("the server accepts the token").0
    }

    /// Returns the log events since the server was started: level and message.
    fn log(&self) -> Vec<(Level, String)> {
        captured_log::events().split_off(self.first_log_event)
    }

    fn recording(&self) -> Recording {
        let mut recording = Recording::new();
        self.hub.everything().iter().for_each(|chunk| recording.push(&chunk.bytes).expect("a valid recording"));
        recording
    }
}

fn hello(identity: &str) -> Message {
    Message::text(format!(r#"{{"process": "{identity}", "program": "train.py", "pid": 7, "rank": 1}}"#))
}

/// Returns the chunks of a recording with this many marks.
fn marks(count: u64) -> Vec<u8> {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let kind = EventKind::Mark { stage: AnnotationStage::Instant, name: StringId(0), address: 0, site: SiteId(0) };
    (0..count).for_each(|time_ns| encoder.event(&Event { device: DeviceId(0), time_ns, kind }));
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

/// Returns the next text message, or the code and reason of the close.
///
/// # Panics
/// Panics if neither arrives.
fn receive(socket: &mut WebSocket<TcpStream>) -> Result<String, (u16, String)> {
    loop {
        match socket.read() {
            Ok(Message::Text(text)) => return Ok(text.as_str().to_owned()),
            Ok(Message::Close(Some(frame))) => return Err((frame.code.into(), frame.reason.as_str().to_owned())),
            Ok(_) => {}
            Err(tungstenite::Error::Io(error))
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
            {
                panic!("the server sent nothing for {TIMEOUT:?}")
            }
            Err(error) => return Err((0, error.to_string())),
        }
    }
}

#[test]
fn invalid_pushes_disconnect_only_their_process() {
    let server = start();
    let mut good = server.connect();
    good.send(hello(IDENTITY)).expect("the server receives");
    assert_eq!(receive(&mut good), Ok(r#"{"resume":0}"#.to_owned()));
    let mut number = 0;
    let mut check = |messages: &[Message], expected: (u16, &str)| {
        number += 1;
        let mut bad = server.connect();
        let mut messages = messages.to_vec();
        if let Some(Message::Text(text)) = messages.first_mut()
            && text.as_str() == "hello"
        {
            messages[0] = hello(&format!("{number:032x}"));
        }
        // The server may close before all messages are sent.
        messages.into_iter().for_each(|message| drop(bad.send(message)));
        let closed =
            std::iter::repeat_with(|| receive(&mut bad)).find_map(Result::err).expect("the server closes the socket");
        assert_eq!(closed.0, expected.0, "{closed:?}");
        assert!(closed.1.contains(expected.1), "{closed:?}");
    };
    let first = Message::text("hello");
    let next = Message::text(r#"{"next": 1}"#);
    const POLICY: u16 = 1008;
    check(&[Message::binary(marks(1))], (POLICY, "the first message must identify the process"));
    check(&[Message::text("")], (POLICY, "the description of the process"));
    check(&[Message::text("[[[[")], (POLICY, "the description of the process"));
    check(&[Message::text("{}")], (POLICY, "`process` must be the recording's identity"));
    check(&[hello("../../etc/passwd")], (POLICY, "`process` must be the recording's identity"));
    check(&[Message::text("x".repeat(5000))], (POLICY, "at most 4096 bytes"));
    check(&[first.clone(), Message::binary(marks(1))], (POLICY, "a note with `next`"));
    check(&[first.clone(), Message::text("next")], (POLICY, "a text message must be a note"));
    check(&[first.clone(), Message::text(r#"{"next": -1}"#)], (POLICY, "a text message must be a note"));
    check(&[first.clone(), next.clone(), Message::binary(vec![0; 100])], (POLICY, "not a vramscope recording"));
    check(&[first.clone(), next.clone(), Message::binary(marks(9)[..60].to_vec())], (POLICY, "the recording ends"));
    check(
        &[first.clone(), next.clone(), Message::binary(marks(1)), next.clone(), Message::binary(marks(1))],
        (POLICY, "chunk begins with event index 0"),
    );
    // A message larger than a full state is not read.
    check(&[first.clone(), next, Message::binary(vec![0; 66 << 20])], (0, ""));
    check(&[first, Message::text(r#"{"end": true, "more": "<script>"}"#)], (1000, "the recording is complete"));

    good.send(Message::text(r#"{"next": 2}"#)).expect("the server receives");
    good.send(Message::binary(marks(3))).expect("the server receives");
    assert_eq!(receive(&mut good), Ok(r#"{"taken":2}"#.to_owned()));
    good.send(Message::text(r#"{"end": true}"#)).expect("the server receives");
    assert_eq!(receive(&mut good), Err((1000, "the recording is complete".to_owned())));
    assert!(server.aggregator.stop().is_some() && server.aggregator.stop().is_none());
    let recording = server.recording();
    let device = recording.info().devices.iter().find(|device| device.name == "rank 1 · device 0");
    let device = recording
        .end_state()
        .device(DeviceId(device.expect("the recording lists the device").device))
        .expect("the device has events");
    assert_eq!(device.events(), 4, "three marks, and the mark of the end");
    let log = server.log();
    let refused = log.iter().filter(|(_, line)| line.starts_with("disconnected "));
    let levels: Vec<_> = refused.map(|(level, _)| *level).collect();
    assert_eq!(levels, [Level::WARN; 3], "{log:?}");
    let expected = [" joined; 1 connected", " has ended; 0 connected"];
    let is_info = |end: &str| log.iter().any(|(level, line)| *level == Level::INFO && line.ends_with(end));
    assert!(expected.into_iter().all(is_info), "{log:?}");
}

#[test]
fn metrics_cover_connected_processes_only() {
    let server = start();
    let mut program = server.connect();
    program.send(hello(IDENTITY)).expect("the server receives");
    receive(&mut program).expect("the first reply");
    program.send(Message::text(r#"{"next": 2}"#)).expect("the server receives");
    program.send(Message::binary(marks(3))).expect("the server receives");
    let metrics = || {
        let mut stream = TcpStream::connect(server.server.address()).expect("the server receives");
        let request = "GET /metrics?token=secret HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("the request fits the socket buffer");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("the response is text");
        response
    };
    let wait_until = |is_expected: bool| {
        let start = Instant::now();
        while metrics().contains("vramscope_segments{device=\"1\",name=\"rank 1 · device 0\"} 0") != is_expected {
            assert!(start.elapsed() < TIMEOUT, "{}", metrics());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_until(true);
    drop(program);
    wait_until(false);
    assert!(metrics().contains("vramscope_events_total "), "the recording continues");
}

#[test]
fn idle_client_is_disconnected() {
    let server = start();
    let mut silent = server.connect();
    assert!(receive(&mut silent).is_err());
    // The server of an earlier test may still log that its processes have disconnected.
    assert!(!server.log().iter().any(|(_, line)| line.contains(" joined; ")), "{:?}", server.log());
}

#[test]
fn newer_connection_of_a_process_replaces_the_older() {
    let server = start();
    let (mut first, mut second) = (server.connect(), server.connect());
    let note = || Message::text(r#"{"next": 5}"#);
    first.send(hello(IDENTITY)).expect("the server receives");
    receive(&mut first).expect("the first reply");
    first.send(note()).expect("the server receives");
    first.send(Message::binary(marks(3))).expect("the server receives");
    assert_eq!(receive(&mut first), Ok(r#"{"taken":5}"#.to_owned()));
    second.send(hello(IDENTITY)).expect("the server receives");
    assert_eq!(receive(&mut second), Ok(r#"{"resume":5}"#.to_owned()));
    first.send(note()).expect("the server receives");
    first.send(Message::binary(marks(3))).expect("the server receives");
    let (code, reason) = receive(&mut first).expect_err("a newer connection has replaced it");
    assert!(code == 1008 && reason.contains("another connection"), "{code} {reason}");
    second.send(Message::text(r#"{"end": true}"#)).expect("the server receives");
    assert_eq!(receive(&mut second).expect_err("the recording has ended").0, 1000);
}
