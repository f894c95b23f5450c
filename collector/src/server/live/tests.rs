use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use axum::extract::WebSocketUpgrade;
use serde_json::Value;
use tungstenite::protocol::CloseFrame as Close;
use tungstenite::{Message as Said, WebSocket as ClientSocket};
use vramscope_trace::{DeviceId, Event, EventKind, RecordingInfo, Recording, Sink, digest};

use super::*;
use crate::file::{Keep, RecordingFile};
use crate::hub::HubLimits;
use crate::hub::testing::Source;
use crate::recorder::{Outputs, Recorder, RecorderHandle};
use crate::server::tests::{Answer, send};
use crate::server::{Assets, Content, Server, ServerOptions};

fn serve(hub: &Hub) -> Server {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let content = Content { assets: Assets(&[]), ..Content::live(hub.clone()) };
    Server::start(ServerOptions { listen, ..Default::default() }, content).expect("a free port")
}

fn connect(address: SocketAddr, query: &str) -> ClientSocket<TcpStream> {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    tungstenite::client(format!("ws://{address}/ws{query}"), stream).expect("a socket").0
}

/// What a client with notes was sent, up to a moment.
#[derive(Default)]
struct Followed {
    recording: Recording,
    greeting: Value,
    next: u64,
    missed: u64,
}

impl Followed {
    fn read(&mut self, socket: &mut ClientSocket<TcpStream>, until: u64) {
        let mut note = Value::Null;
        while self.recording.end_event() < until {
            match socket.read().expect("a message") {
                Said::Text(text) => {
                    let said: Value = serde_json::from_str(&text).expect("JSON");
                    if said.get("recording").is_some() {
                        self.greeting = said;
                    } else {
                        assert_eq!(std::mem::replace(&mut note, said), Value::Null, "one note for a message");
                    }
                }
                Said::Binary(bytes) => {
                    self.recording.push(&bytes).expect("what a viewer is sent is a recording");
                    self.recording.finish().expect("whole chunks");
                    self.next = note["next"].as_u64().expect("a note before each message");
                    self.missed += note["missed"].as_u64().unwrap_or(0);
                    note = Value::Null;
                }
                _ => {}
            }
        }
    }

    #[track_caller]
    fn check(&self, source: &Source) {
        assert_eq!(digest(self.recording.end_state()), digest(source.encoder.state()));
        assert_eq!(self.recording.lost_events(), self.missed);
    }
}

fn closing(socket: &mut ClientSocket<TcpStream>) -> Close {
    loop {
        if let Said::Close(Some(frame)) = socket.read().expect("the closing") {
            return frame;
        }
    }
}

#[test]
fn addresses_say_what_is_asked_for() {
    let check = |query: &str, expected: Option<Asked>| assert_eq!(Asked::read(query), expected, "{query}");
    let nothing = Asked::default();
    let position = "0123456789abcdef0123456789abcdef:17";
    let resume = Some(position.parse().expect("a position"));
    check("", Some(nothing));
    check("token=x&later=1", Some(nothing));
    check("history=recent", Some(Asked { begin: Begin::Recent(16 << 20), ..nothing }));
    check("history=all&notes=1", Some(Asked { begin: Begin::Oldest, notes: true, ..nothing }));
    check(&format!("resume={position}"), Some(Asked { resume, ..nothing }));
    check(&format!("notes=0&resume={}", position.replace(':', "%3A")), Some(Asked { resume, ..nothing }));
    for query in ["history=", "history=some", "notes=yes", "resume=", "resume=1", "resume=x:1"] {
        check(query, None);
    }
}

#[test]
fn a_client_with_notes_resumes_where_it_was() {
    let mut source = Source::new(HubLimits { history_bytes: 300_000, lag_bytes: 1 << 20 });
    let server = serve(&source.hub);
    source.run(30_000);
    let end = |source: &Source| source.encoder.state().event();
    let mut followed = Followed::default();
    let mut socket = connect(server.address(), "?notes=1&history=all");
    followed.read(&mut socket, end(&source));
    let recording = source.hub.identity().to_string();
    assert_eq!(followed.greeting, serde_json::json!({ "recording": recording, "resumed": false }));
    for (events, is_lost) in [(100, false), (300_000, true)] {
        drop(socket);
        source.run(events);
        socket = connect(server.address(), &format!("?notes=1&resume={recording}:{}", followed.next));
        followed.read(&mut socket, end(&source));
        assert_eq!(followed.greeting["resumed"], true);
        followed.check(&source);
        assert_eq!(followed.missed > 0, is_lost, "{events} events");
    }
    // Of another recording there is nothing to go on with.
    let mut newcomer = Followed::default();
    newcomer.read(&mut connect(server.address(), &format!("?notes=1&resume={:032x}:5", 7)), end(&source));
    assert_eq!(newcomer.greeting["resumed"], false);
    newcomer.check(&source);
    let close = closing(&mut connect(server.address(), "?history=some"));
    assert_eq!(u16::from(close.code), 1008);
}

fn mark(handle: &mut RecorderHandle, events: &mut u64) {
    let kind = EventKind::MemorySample { used_by_context: *events, used_by_others: 0, free: 0 };
    handle.event(&Event { device: DeviceId(0), time_ns: handle.now_ns(), kind });
    *events += 1;
}

fn file_and_hub(path: &Path, history_bytes: u64) -> (Outputs, Hub) {
    let hub = Hub::new(HubLimits { history_bytes, ..HubLimits::default() });
    let file = RecordingFile::create(path, Keep::default()).expect("a file");
    (Outputs { file: Some(file), hub: Some(hub.clone()), ..Outputs::default() }, hub)
}

#[test]
fn the_whole_history_is_followed_while_it_grows() {
    let folder = tempfile::tempdir().expect("a folder");
    // Less than all, so that the file is needed, and more than comes while a machine is busy with other things.
    let (outputs, hub) = file_and_hub(&folder.path().join("a.vram"), 400_000);
    let (recorder, mut handle) = Recorder::start(RecordingInfo::default(), outputs).expect("a thread");
    let server = serve(&hub);
    let mut events = 0;
    (0..800_000).for_each(|_| mark(&mut handle, &mut events));
    handle.flush();
    let address = server.address();
    let watching: Vec<_> = (0..3)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(100));
            (0..100_000).for_each(|_| mark(&mut handle, &mut events));
            std::thread::spawn(move || {
                let (mut recording, mut socket) = (Recording::new(), connect(address, "?history=all"));
                while let Said::Binary(bytes) = socket.read().expect("a message") {
                    recording.push(&bytes).expect("a recording");
                }
                recording
            })
        })
        .collect();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(20));
        (0..5000).for_each(|_| mark(&mut handle, &mut events));
    }
    recorder.stop();
    for recording in watching {
        let recording = recording.join().expect("no panic");
        assert_eq!((recording.first_event(), recording.end_event(), recording.lost_events()), (0, events, 0));
    }
}

impl Answer {
    fn tag(&self) -> &str {
        let line = self.head.lines().find_map(|line| line.strip_prefix("etag: "));
        line.expect("a strong tag").trim()
    }
}

fn ask(server: &Server, method: &str, headers: &str) -> Answer {
    let address = server.address();
    send(server, &format!("{method} /trace.vram HTTP/1.1\r\nHost: {address}\r\n{headers}Connection: close\r\n\r\n"))
}

/// Downloads in two parts, between which the recording grows.
#[track_caller]
fn check_download(server: &Server, grow: impl FnOnce()) {
    let whole = ask(server, "GET", "");
    let len = whole.body.len();
    let mut recording = Recording::new();
    recording.push(&whole.body).expect("a recording");
    recording.finish().expect("whole chunks");
    let head = ask(server, "HEAD", "Range: bytes=0-9\r\n");
    assert!(head.head.contains(&format!("content-length: {len}")) && head.body.is_empty(), "{}", head.head);
    assert!(head.head.contains("accept-ranges: bytes"), "{}", head.head);
    assert_eq!((whole.status, head.status, head.tag()), (200, 200, whole.tag()));
    let tag = whole.tag();
    grow();
    let rest = |tag: &str| ask(server, "GET", &format!("Range: bytes={}-\r\nIf-Range: {tag}\r\n", len / 3));
    let part = rest(tag);
    assert_eq!((part.status, part.tag()), (206, tag));
    assert!(part.head.contains(&format!("content-range: bytes {}-{}/{len}", len / 3, len - 1)), "{}", part.head);
    assert!(part.body == whole.body[len / 3..]);
    let now = ask(server, "GET", "");
    assert_ne!(now.tag(), tag, "there is more now");
    assert!(now.body.starts_with(&whole.body));
    for other in ["\"a\"", "W/\"a\"", "Wed, 21 Oct 2015 07:28:00 GMT", &tag.replace('-', "-9")] {
        let other = rest(other);
        assert_eq!((other.status, other.body.len(), other.tag()), (200, now.body.len(), now.tag()));
    }
    let part = ask(server, "GET", "Range: bytes=5-10\r\n");
    assert_eq!((part.status, part.body.as_slice(), part.tag()), (206, &now.body[5..11], now.tag()));
    assert_eq!(ask(server, "GET", "Range: bytes=9999999999-\r\n").status, 416);
}

#[test]
fn a_download_of_what_is_held_goes_on_where_it_broke_off() {
    let mut source = Source::new(HubLimits::default());
    source.run(50_000);
    check_download(&serve(&source.hub.clone()), || source.run(1000));
}

#[test]
fn a_download_of_the_file_goes_on_where_it_broke_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let (outputs, hub) = file_and_hub(&folder.path().join("a.vram"), 1000);
    let (_recorder, mut handle) = Recorder::start(RecordingInfo::default(), outputs).expect("a thread");
    let mut events = 0;
    let mut run = || {
        (0..100_000).for_each(|_| mark(&mut handle, &mut events));
        handle.flush();
    };
    run();
    check_download(&serve(&hub), run);
}

#[test]
fn a_slow_download_of_what_is_dropped_meanwhile_is_cut_off() {
    let mut source = Source::new(HubLimits { history_bytes: 24 << 20, ..HubLimits::default() });
    (0..40).for_each(|_| source.run_incompressible(20_000));
    let server = serve(&source.hub);
    let len = source.hub.held(None).expect("it is held").len() as usize;
    let mut stream = TcpStream::connect(server.address()).expect("the server listens");
    let request = "GET /trace.vram HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("the request is small");
    let mut answer = vec![0; 1000];
    stream.read_exact(&mut answer).expect("the beginning");
    for _ in 0..60 {
        source.run_incompressible(20_000);
        source.full_state();
    }
    assert!(source.hub.held_bytes() < 32 << 20, "nobody keeps it");
    // However the connection ends then.
    let _ = stream.read_to_end(&mut answer);
    assert!(len > 16 << 20 && answer.len() < len, "{} of {len} bytes", answer.len());
}

/// A server on a thread of its own that lets a client go when it is silent for that long.
fn impatient(hub: Hub) -> SocketAddr {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = listener.local_addr().expect("an address");
    listener.set_nonblocking(true).expect("a socket");
    let patience = Patience { ping_every: Duration::from_millis(50), silence: Duration::from_millis(400) };
    let (stop, stopping) = watch::channel(false);
    let handle = async move |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(async move |socket| {
            let mut client = Client::new(socket, stopping, patience);
            let _ = client.send_all(&Asked::default(), &hub).await;
        })
    };
    let serving = async move {
        let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
        let router = axum::Router::new().route("/ws", axum::routing::get(handle));
        axum::serve(listener, router).await.expect("it serves for good");
    };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(serving);
        drop(stop);
    });
    address
}

#[test]
fn whoever_does_not_answer_is_let_go_and_whoever_does_is_not() {
    let mut source = Source::new(HubLimits::default());
    source.run(10);
    let address = impatient(source.hub.clone());
    let mut answers = connect(address, "");
    let silent = connect(address, "");
    let began = std::time::Instant::now();
    let mut pings = 0;
    while began.elapsed() < Duration::from_millis(1500) {
        pings += usize::from(matches!(answers.read().expect("it is still served"), Said::Ping(_)));
    }
    assert!(pings > 3, "{pings} pings");
    assert_eq!(source.hub.viewers(), 1, "the silent one is gone");
    drop(silent);
}
