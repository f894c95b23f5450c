use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::WebSocketUpgrade;
use serde_json::Value;
use tokio::sync::mpsc;
use tungstenite::protocol::CloseFrame as ClientCloseFrame;
use tungstenite::{Message as ClientMessage, WebSocket as ClientSocket};
use vramscope_trace::{DeviceId, Event, EventKind, Recording, RecordingInfo, Sink, digest};

use super::*;
use crate::file::{Keep, RecordingFile};
use crate::hub::HubLimits;
use crate::hub::testing::TestProgram;
use crate::recorder::{Outputs, Recorder, RecorderHandle};
use crate::server::tests::{Response as TestResponse, send};
use crate::server::{Assets, ServedContent, Server, ServerOptions};
use crate::wait_until::{TIMEOUT, wait_until};

fn serve(hub: &Hub) -> Server {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let content = ServedContent { assets: Assets(&[]), ..ServedContent::live(hub.clone()) };
    Server::start(ServerOptions { listen, ..Default::default() }, content).expect("a port is free")
}

fn connect(address: SocketAddr, query: &str) -> ClientSocket<TcpStream> {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("the socket can be configured");
    tungstenite::client(format!("ws://{address}/ws{query}"), stream).expect("the WebSocket opens").0
}

/// The data that a client with notes has received so far.
#[derive(Default)]
struct Received {
    recording: Recording,
    greeting: Value,
    next: u64,
    missed: u64,
}

impl Received {
    fn read(&mut self, socket: &mut ClientSocket<TcpStream>, until: u64) {
        let mut note = Value::Null;
        while self.recording.end_event() < until {
            match socket.read().expect("a message arrives") {
                ClientMessage::Text(text) => {
                    let parsed: Value = serde_json::from_str(&text).expect("JSON");
                    if parsed.get("recording").is_some() {
                        self.greeting = parsed;
                    } else {
                        assert_eq!(std::mem::replace(&mut note, parsed), Value::Null, "each message has one note");
                    }
                }
                ClientMessage::Binary(bytes) => {
                    self.recording.push(&bytes).expect("the server sends a valid recording");
                    self.recording.finish().expect("messages have whole chunks");
                    self.next = note["next"].as_u64().expect("a note precedes each message");
                    self.missed += note["missed"].as_u64().unwrap_or(0);
                    note = Value::Null;
                }
                _ => {}
            }
        }
    }

    #[track_caller]
    fn check(&self, source: &TestProgram) {
        assert_eq!(digest(self.recording.end_state()), digest(source.encoder.state()));
        assert_eq!(self.recording.lost_events(), self.missed);
    }
}

fn read_close_frame(socket: &mut ClientSocket<TcpStream>) -> ClientCloseFrame {
    loop {
        if let ClientMessage::Close(Some(frame)) = socket.read().expect("a close frame arrives") {
            return frame;
        }
    }
}

#[test]
fn follow_query_is_parsed() {
    let check = |query: &str, expected: Option<FollowQuery>| assert_eq!(FollowQuery::parse(query), expected, "{query}");
    let default = FollowQuery::default();
    let position = "0123456789abcdef0123456789abcdef:17";
    let resume = Some(position.parse().expect("a valid position"));
    check("", Some(default));
    check("token=x&later=1", Some(default));
    check("history=recent", Some(FollowQuery { begin: ViewFrom::Recent(16 << 20), ..default }));
    check("history=all&notes=1", Some(FollowQuery { begin: ViewFrom::Oldest, notes: true, ..default }));
    check(&format!("resume={position}"), Some(FollowQuery { resume, ..default }));
    check(&format!("notes=0&resume={}", position.replace(':', "%3A")), Some(FollowQuery { resume, ..default }));
    for query in ["history=", "history=some", "notes=yes", "resume=", "resume=1", "resume=x:1"] {
        check(query, None);
    }
}

#[test]
fn client_with_notes_resumes_at_its_position() {
    let mut source = TestProgram::new(HubLimits { history_bytes: 300_000, lag_bytes: 1 << 20 });
    let server = serve(&source.hub);
    source.run(30_000);
    let end = |source: &TestProgram| source.encoder.state().event();
    let mut received = Received::default();
    let mut socket = connect(server.address(), "?notes=1&history=all");
    received.read(&mut socket, end(&source));
    let recording = source.hub.identity().to_string();
    assert_eq!(received.greeting, serde_json::json!({ "recording": recording, "resumed": false }));
    for (events, is_lost) in [(100, false), (300_000, true)] {
        drop(socket);
        source.run(events);
        socket = connect(server.address(), &format!("?notes=1&resume={recording}:{}", received.next));
        received.read(&mut socket, end(&source));
        assert_eq!(received.greeting["resumed"], true);
        received.check(&source);
        assert_eq!(received.missed > 0, is_lost, "{events} events");
    }
    // A position in another recording cannot be resumed.
    let mut new_client = Received::default();
    new_client.read(&mut connect(server.address(), &format!("?notes=1&resume={:032x}:5", 7)), end(&source));
    assert_eq!(new_client.greeting["resumed"], false);
    new_client.check(&source);
    let close = read_close_frame(&mut connect(server.address(), "?history=some"));
    assert_eq!(u16::from(close.code), 1008);
}

fn record_sample(handle: &mut RecorderHandle, events: &mut u64) {
    let kind = EventKind::MemorySample { used_by_context: *events, used_by_others: 0, free: 0 };
    handle.event(&Event { device: DeviceId(0), time_ns: handle.now_ns(), kind });
    *events += 1;
}

fn file_and_hub(path: &Path, history_bytes: u64) -> (Outputs, Hub) {
    let hub = Hub::new(HubLimits { history_bytes, ..HubLimits::default() });
    let file = RecordingFile::create(path, Keep::default()).expect("the file can be created");
    (Outputs { file: Some(file), hub: Some(hub.clone()), ..Outputs::default() }, hub)
}

#[test]
fn complete_history_is_sent_while_it_grows() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The history's limit is smaller than the recording, so that the file is needed, and larger
    // than `MAX_LACKING`.
    const MAX_LACKING: u64 = 25_000;
    let (outputs, hub) = file_and_hub(&folder.path().join("a.vram"), 400_000);
    let (recorder, mut handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the recorder starts");
    let server = serve(&hub);
    let mut events = 0;
    (0..800_000).for_each(|_| record_sample(&mut handle, &mut events));
    handle.flush();
    let address = server.address();
    let (mut followers, mut received) = (Vec::new(), Vec::<Arc<AtomicU64>>::new());
    for _ in 0..3 {
        let end_event = Arc::<AtomicU64>::default();
        received.push(Arc::clone(&end_event));
        followers.push(std::thread::spawn(move || {
            let (mut recording, mut socket) = (Recording::new(), connect(address, "?history=all"));
            while let ClientMessage::Binary(bytes) = socket.read().expect("a message arrives") {
                recording.push(&bytes).expect("a valid recording");
                end_event.store(recording.end_event(), Ordering::Relaxed);
            }
            recording
        }));
        for _ in 0..20 {
            (0..5000).for_each(|_| record_sample(&mut handle, &mut events));
            wait_until("the followers lack little", || {
                received.iter().all(|end_event| end_event.load(Ordering::Relaxed) + MAX_LACKING >= events)
            });
        }
    }
    recorder.stop();
    for follower in followers {
        let recording = follower.join().expect("the follower does not panic");
        assert_eq!((recording.first_event(), recording.end_event(), recording.lost_events()), (0, events, 0));
    }
}

impl TestResponse {
    fn tag(&self) -> &str {
        let line = self.head.lines().find_map(|line| line.strip_prefix("etag: "));
        line.expect("the response has an ETag").trim()
    }
}

fn request(server: &Server, method: &str, headers: &str) -> TestResponse {
    let address = server.address();
    send(server, &format!("{method} /trace.vram HTTP/1.1\r\nHost: {address}\r\n{headers}Connection: close\r\n\r\n"))
}

/// Downloads a recording in two parts while it grows in between.
#[track_caller]
fn check_download(server: &Server, grow: impl FnOnce()) {
    let whole = request(server, "GET", "");
    let len = whole.body.len();
    let mut recording = Recording::new();
    recording.push(&whole.body).expect("a valid recording");
    recording.finish().expect("messages have whole chunks");
    let head = request(server, "HEAD", "Range: bytes=0-9\r\n");
    assert!(head.head.contains(&format!("content-length: {len}")) && head.body.is_empty(), "{}", head.head);
    assert!(head.head.contains("accept-ranges: bytes"), "{}", head.head);
    assert_eq!((whole.status, head.status, head.tag()), (200, 200, whole.tag()));
    let tag = whole.tag();
    grow();
    let rest = |tag: &str| request(server, "GET", &format!("Range: bytes={}-\r\nIf-Range: {tag}\r\n", len / 3));
    let part = rest(tag);
    assert_eq!((part.status, part.tag()), (206, tag));
    assert!(part.head.contains(&format!("content-range: bytes {}-{}/{len}", len / 3, len - 1)), "{}", part.head);
    assert!(part.body == whole.body[len / 3..]);
    let now = request(server, "GET", "");
    assert_ne!(now.tag(), tag, "the recording has grown");
    assert!(now.body.starts_with(&whole.body));
    for other in ["\"a\"", "W/\"a\"", "Wed, 21 Oct 2015 07:28:00 GMT", &tag.replace('-', "-9")] {
        let other = rest(other);
        assert_eq!((other.status, other.body.len(), other.tag()), (200, now.body.len(), now.tag()));
    }
    let part = request(server, "GET", "Range: bytes=5-10\r\n");
    assert_eq!((part.status, part.body.as_slice(), part.tag()), (206, &now.body[5..11], now.tag()));
    assert_eq!(request(server, "GET", "Range: bytes=9999999999-\r\n").status, 416);
}

#[test]
fn download_of_held_chunks_can_be_resumed() {
    let mut source = TestProgram::new(HubLimits::default());
    source.run(50_000);
    check_download(&serve(&source.hub.clone()), || source.run(1000));
}

#[test]
fn download_of_the_file_can_be_resumed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (outputs, hub) = file_and_hub(&folder.path().join("a.vram"), 1000);
    let (_recorder, mut handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the recorder starts");
    let mut events = 0;
    let mut run = || {
        (0..100_000).for_each(|_| record_sample(&mut handle, &mut events));
        handle.flush();
    };
    run();
    check_download(&serve(&hub), run);
}

#[test]
fn slow_download_is_aborted_when_the_hub_drops_its_chunks() {
    let mut source = TestProgram::new(HubLimits { history_bytes: 24 << 20, ..HubLimits::default() });
    (0..40).for_each(|_| source.run_incompressible(20_000));
    let server = serve(&source.hub);
    let len = source.hub.history_view(None).expect("the hub holds everything so far").len() as usize;
    let mut stream = TcpStream::connect(server.address()).expect("the server listens");
    let request = "GET /trace.vram HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("the request fits the socket buffer");
    let mut response = vec![0; 1000];
    stream.read_exact(&mut response).expect("the response starts");
    for _ in 0..60 {
        source.run_incompressible(20_000);
        source.replace_state();
    }
    assert!(source.hub.held_bytes() < 32 << 20, "the download must not keep dropped chunks alive");
    // The connection may be closed or reset.
    let _ = stream.read_to_end(&mut response);
    assert!(len > 16 << 20 && response.len() < len, "{} of {len} bytes", response.len());
}

/// Interval of pings, and of silence until a client is disconnected, on a clock that the test
/// advances.
const SHORT_KEEPALIVE: Keepalive =
    Keepalive { ping_interval: Duration::from_millis(50), timeout: Duration::from_millis(400) };

/// Starts a server with [`SHORT_KEEPALIVE`]. Its clock stands still, and advances by each time that
/// is sent.
fn serve_with_paused_clock(hub: Hub) -> (SocketAddr, mpsc::UnboundedSender<Duration>) {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    let address = listener.local_addr().expect("a bound socket has an address");
    listener.set_nonblocking(true).expect("the socket can be configured");
    let (stop, stopping) = watch::channel(false);
    let (clock, mut advances) = mpsc::unbounded_channel();
    let handle = async move |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(async move |socket| {
            let mut client = Client::new(socket, stopping, SHORT_KEEPALIVE);
            let _ = client.send_all(&FollowQuery::default(), &hub).await;
        })
    };
    let serving = async move {
        tokio::time::pause();
        // A paused clock jumps to the next timer when nothing else is to be done, but not while a
        // blocking task runs.
        let (_hold, held) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || held.recv());
        tokio::spawn(async move {
            while let Some(time) = advances.recv().await {
                tokio::time::advance(time).await;
            }
        });
        let listener = tokio::net::TcpListener::from_std(listener).expect("the socket can be configured");
        let router = axum::Router::new().route("/ws", axum::routing::get(handle));
        axum::serve(listener, router).await.expect("the server runs until the process ends");
    };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        runtime.block_on(serving);
        drop(stop);
    });
    (address, clock)
}

#[test]
fn client_that_answers_no_pings_is_disconnected() {
    let mut source = TestProgram::new(HubLimits::default());
    source.run(10);
    let (address, clock) = serve_with_paused_clock(source.hub.clone());
    let [mut responsive, silent] = [(), ()].map(|()| {
        let mut socket = connect(address, "");
        // The server follows the client from here on.
        assert!(socket.read().expect("the recording arrives").is_binary());
        socket
    });
    let mut answer_ping = || {
        // Timers fire at the next whole millisecond.
        clock.send(SHORT_KEEPALIVE.ping_interval + Duration::from_millis(1)).expect("the server runs");
        while !responsive.read().expect("the responsive client stays connected").is_ping() {}
        responsive.flush().expect("the responsive client stays connected");
    };
    let time = SHORT_KEEPALIVE.timeout.as_millis() / SHORT_KEEPALIVE.ping_interval.as_millis();
    for _ in 0..time / 2 {
        answer_ping();
    }
    assert_eq!(source.hub.viewers(), 2, "no client has been silent for long");
    for _ in 0..2 * time {
        answer_ping();
    }
    wait_until("only the responsive client is left", || source.hub.viewers() == 1);
    answer_ping();
    drop(silent);
}
