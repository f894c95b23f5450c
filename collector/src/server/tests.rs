use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;

use tungstenite::client::IntoClientRequest;
use vramscope_trace::{DeviceId, Encoder, Event, EventKind, RecordingInfo, Recording, Sink, digest};

use super::*;
use crate::hub::HubLimits;
use crate::hub::testing::Source;
use crate::recorder::{Outputs, Recorder};

const ASSETS: Assets = Assets(&[
    Asset { path: "index.html", bytes: b"<!doctype html><title>page</title>" },
    Asset { path: "pkg/viewer.wasm", bytes: b"\0asm" },
    Asset { path: "notes.secret", bytes: b"no media type" },
]);

fn events(count: u64) -> Vec<Event> {
    let sample = |n| EventKind::MemorySample { used_by_context: n, used_by_others: 0, free: 9 };
    (0..count).map(|n| Event { device: DeviceId(0), time_ns: n, kind: sample(n) }).collect()
}

/// A hub with `count` events in it, and their bytes.
fn hub_of(count: u64) -> (Hub, Vec<u8>) {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    for event in events(count) {
        encoder.event(&event);
    }
    encoder.flush();
    let chunks: Vec<_> = encoder.take_output().into_iter().map(Arc::new).collect();
    let hub = Hub::default();
    hub.publish(&chunks);
    (hub, chunks.iter().flat_map(|chunk| chunk.bytes.clone()).collect())
}

fn start(content: Content) -> Server {
    Server::start(ServerOptions { listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))), ..Default::default() }, content)
        .expect("a free port")
}

fn live_server(count: u64) -> (Server, Hub, Vec<u8>) {
    let (hub, bytes) = hub_of(count);
    (start(Content { assets: ASSETS, ..Content::live(hub.clone()) }), hub, bytes)
}

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

pub(super) fn send(server: &Server, request: &str) -> Answer {
    let mut stream = TcpStream::connect(server.address()).expect("the server listens");
    stream.write_all(request.as_bytes()).expect("the request is small");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the server answers and closes");
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(answer[..end].to_vec()).expect("headers are text").to_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
    Answer { status, head, body: answer[end + 4..].to_vec() }
}

fn ask(server: &Server, path: &str) -> Answer {
    send(server, &format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address()))
}

#[track_caller]
fn check(answer: &Answer, status: u16, in_head: &[&str]) {
    assert_eq!(answer.status, status, "{}", answer.head);
    for line in in_head {
        assert!(answer.head.contains(line), "no {line:?} in\n{}", answer.head);
    }
    // Whatever the answer is, it carries these.
    for line in [
        "content-security-policy: default-src 'none'; script-src 'self'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
    ] {
        assert!(answer.head.contains(line), "no {line:?} in\n{}", answer.head);
    }
    assert!(!answer.head.contains("access-control"), "{}", answer.head);
}

#[test]
fn the_page_and_its_files_are_served() {
    let (server, _hub, _) = live_server(1);
    let page = ask(&server, "/");
    check(&page, 200, &["content-type: text/html; charset=utf-8"]);
    assert_eq!(page.body, ASSETS.0[0].bytes);
    check(&ask(&server, "/index.html"), 200, &["content-type: text/html; charset=utf-8"]);
    check(&ask(&server, "/?trace=files/0/a.vram"), 200, &["text/html"]);
    check(&ask(&server, "/pkg/viewer.wasm"), 200, &["content-type: application/wasm"]);
    check(&ask(&server, "/healthz"), 200, &["text/plain"]);
}

#[test]
fn nothing_else_is_served() {
    let (server, _hub, _) = live_server(1);
    for path in [
        "/nothing",
        "/pkg",
        "/pkg/",
        "/notes.secret",
        "/../Cargo.toml",
        "/pkg/../index.html",
        "/..%2f..%2fetc/passwd",
        "/%2e%2e/x",
        "/files/0/a.vram",
        "/files/x/a",
        "//etc/passwd",
    ] {
        let status = ask(&server, path).status;
        assert!(matches!(status, 400 | 404), "{path} gave {status}");
    }
    check(
        &send(
            &server,
            &format!("POST / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", server.address()),
        ),
        405,
        &[],
    );
}

#[test]
fn another_site_gets_nothing() {
    let (server, _hub, _) = live_server(1);
    for path in ["/", "/ws", "/trace.vram", "/healthz", "/nothing"] {
        check(
            &send(&server, &format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")),
            403,
            &[],
        );
        let origin = "Origin: http://evil.example";
        check(
            &send(&server, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{origin}\r\nConnection: close\r\n\r\n")),
            403,
            &[],
        );
    }
    let mut request = format!("ws://{}/ws", server.address()).into_client_request().expect("an address");
    request.headers_mut().insert("Origin", "http://evil.example".parse().expect("a header value"));
    let stream = TcpStream::connect(server.address()).expect("the server listens");
    assert!(tungstenite::client(request, stream).is_err());
}

#[test]
fn everything_so_far_is_a_recording() {
    let (server, _hub, bytes) = live_server(50_000);
    let answer = ask(&server, "/trace.vram");
    check(
        &answer,
        200,
        &["content-type: application/vnd.vramscope.trace", &format!("content-length: {}", bytes.len())],
    );
    assert!(answer.body == bytes);
}

#[test]
fn the_socket_gives_what_the_file_would_hold_and_says_how_it_ended() {
    let (server, hub, bytes) = live_server(50_000);
    let stream = TcpStream::connect(server.address()).expect("the server listens");
    let (mut socket, _) =
        tungstenite::client(format!("ws://{}/ws?history=all", server.address()), stream).expect("a socket");
    let mut received = Vec::new();
    while received.len() < bytes.len() {
        received.extend(socket.read().expect("a message").into_data());
    }
    assert!(received == bytes);
    hub.end();
    let close = socket.read().expect("the closing");
    let tungstenite::Message::Close(Some(frame)) = close else { panic!("not a close but {close:?}") };
    assert_eq!(u16::from(frame.code), 1000);
}

#[test]
fn a_server_that_stops_says_so() {
    let (server, _hub, bytes) = live_server(1);
    let stream = TcpStream::connect(server.address()).expect("the server listens");
    let (mut socket, _) = tungstenite::client(format!("ws://{}/ws", server.address()), stream).expect("a socket");
    assert_eq!(socket.read().expect("a message").into_data(), bytes);
    let reading = std::thread::spawn(move || socket.read().expect("the closing"));
    drop(server);
    let close = reading.join().expect("no panic");
    let tungstenite::Message::Close(Some(frame)) = close else { panic!("not a close but {close:?}") };
    assert_eq!(u16::from(frame.code), 1001);
}

#[test]
fn complete_recordings_are_served_under_their_names() {
    let recorded =
        |name: &str, bytes: &[u8]| Recorded { name: name.into(), bytes: RecordingBytes::from_vec(bytes.to_vec()) };
    let files = vec![recorded("a b%?#\u{fc}.vram", b"first"), recorded("second.vram", b"second")];
    let server = start(Content { assets: ASSETS, ..Content::files(files) });
    check(&ask(&server, "/"), 307, &["location: ?trace=files/0/a%2520b%2525%253f%2523%25c3%25bc.vram"]);
    check(&ask(&server, "/?trace=files/1/second.vram"), 200, &["text/html"]);
    let first = ask(&server, "/files/0/a%20b%25%3F%23%C3%BC.vram");
    check(&first, 200, &["content-type: application/vnd.vramscope.trace", "content-length: 5"]);
    assert_eq!(first.body, b"first");
    assert_eq!(ask(&server, "/files/1/second.vram").body, b"second");
    for path in ["/files/1/first.vram", "/files/2/second.vram", "/files/-1/second.vram", "/ws", "/trace.vram"] {
        let status = ask(&server, path).status;
        assert!(matches!(status, 400 | 404), "{path} gave {status}");
    }
}

/// A file that is gone when it is closed.
fn file_of(bytes: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("room for it");
    file
}

#[test]
fn ranges_of_a_recording_are_served_from_wherever_it_is() {
    let bytes: Vec<u8> = (0..1_000_000u32).map(|n| (n / 7) as u8).collect();
    let (on_disk, behind) = bytes.split_at(700_000);
    let file = RecordingBytes::from_file(file_of(on_disk), on_disk.len() as u64, behind.to_vec());
    let files = vec![
        Recorded { name: "disk.vram".into(), bytes: file },
        Recorded { name: "memory.vram".into(), bytes: RecordingBytes::from_vec(bytes.clone()) },
        Recorded { name: "empty.vram".into(), bytes: RecordingBytes::default() },
    ];
    let server = start(Content { assets: ASSETS, ..Content::files(files) });
    let ask_for = |method: &str, path: &str, header: &str| {
        let host = server.address();
        send(&server, &format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{header}Connection: close\r\n\r\n"))
    };
    for path in ["/files/0/disk.vram", "/files/1/memory.vram"] {
        let everything = ask_for("GET", path, "");
        check(&everything, 200, &["accept-ranges: bytes", "content-length: 1000000"]);
        assert!(everything.body == bytes);
        let check_range = |header: &str, expected: Range<usize>| {
            let part = ask_for("GET", path, &format!("Range: bytes={header}\r\n"));
            let (start, end, len) = (expected.start, expected.end - 1, expected.len());
            let place = format!("content-range: bytes {start}-{end}/1000000");
            check(&part, 206, &[&place, &format!("content-length: {len}"), "accept-ranges: bytes"]);
            assert!(part.body == bytes[expected], "{header} of {path}");
        };
        check_range("0-0", 0..1);
        check_range("699990-700009", 699_990..700_010);
        check_range("100000-900000", 100_000..900_001);
        check_range("999999-", 999_999..1_000_000);
        check_range("-40", 999_960..1_000_000);
        let beyond = ask_for("GET", path, "Range: bytes=1000000-\r\n");
        check(&beyond, 416, &["content-range: bytes */1000000"]);
        for header in ["Range: bytes=0-1,5-6\r\n", "Range: bytes=0-9\r\nIf-Range: \"a\"\r\n"] {
            assert!(ask_for("GET", path, header).body == bytes, "{header}");
        }
        let head = ask_for("HEAD", path, "Range: bytes=0-9\r\n");
        check(&head, 200, &["content-length: 1000000", "accept-ranges: bytes"]);
        assert!(head.body.is_empty());
    }
    check(&ask_for("GET", "/files/2/empty.vram", ""), 200, &["content-length: 0"]);
    check(&ask_for("GET", "/files/2/empty.vram", "Range: bytes=0-63\r\n"), 416, &["content-range: bytes */0"]);
}

#[test]
fn a_file_that_has_become_shorter_is_cut_off() {
    let file = RecordingBytes::from_file(file_of(&[7; 5000]), 1 << 20, Vec::new());
    let files = vec![Recorded { name: "cut.vram".into(), bytes: file }];
    let server = start(Content { assets: ASSETS, ..Content::files(files) });
    let answer = ask(&server, "/files/0/cut.vram");
    check(&answer, 200, &["content-length: 1048576"]);
    assert!(answer.body.len() < 1 << 20, "nobody takes it for whole");
}

#[test]
fn the_next_port_is_taken_where_the_default_one_is_not_free() {
    let content = || Content { assets: ASSETS, ..Content::files(Vec::new()) };
    let first = Server::start(ServerOptions::default(), content()).expect("a port of many");
    let second = Server::start(ServerOptions::default(), content()).expect("a port of many");
    assert_ne!(first.address(), second.address());
    assert!((DEFAULT_PORT..=DEFAULT_PORT + listen::PORTS_TRIED).contains(&second.address().port()));
}

#[test]
fn a_client_that_does_not_read_holds_nobody_up() {
    let mut source = Source::new(HubLimits { lag_bytes: 1 << 20, ..HubLimits::default() });
    source.run(1000);
    let server = start(Content { assets: ASSETS, ..Content::live(source.hub.clone()) });
    let connect = || {
        let stream = TcpStream::connect(server.address()).expect("the server listens");
        tungstenite::client(format!("ws://{}/ws", server.address()), stream).expect("a socket").0
    };
    let (mut slow, mut quick) = (connect(), connect());
    let read = |socket: &mut tungstenite::WebSocket<TcpStream>, recording: &mut Recording| {
        // On a slow machine this takes so long that it is asked whether it is there.
        match socket.read().expect("a message") {
            tungstenite::Message::Binary(bytes) => {
                recording.push(&bytes).expect("what a viewer is sent is a recording")
            }
            tungstenite::Message::Close(_) => return false,
            _ => {}
        }
        true
    };
    let (mut of_slow, mut of_quick) = (Recording::new(), Recording::new());
    read(&mut slow, &mut of_slow);
    // More than the sockets of both sides hold: 33 MB here and 4 MB there, unless someone set it otherwise.
    for _ in 0..100 {
        source.run_incompressible(25_000);
        while of_quick.end_event() < source.encoder.state().event() {
            read(&mut quick, &mut of_quick);
        }
    }
    source.hub.end();
    while read(&mut slow, &mut of_slow) {}
    for recording in [&of_slow, &of_quick] {
        assert_eq!(recording.end_event(), source.encoder.state().event());
        assert_eq!(digest(recording.end_state()), digest(source.encoder.state()));
    }
    assert_eq!(of_quick.lost_events(), 0);
    assert!(of_slow.lost_events() > 100_000, "{} events were left out", of_slow.lost_events());
}

#[test]
fn an_event_is_with_a_viewer_within_a_tenth_of_a_second() {
    let hub = Hub::default();
    let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
    let (_recorder, mut handle) = Recorder::start(RecordingInfo::default(), outputs).expect("a thread");
    let server = start(Content { assets: ASSETS, ..Content::live(hub) });
    let stream = TcpStream::connect(server.address()).expect("the server listens");
    let (mut socket, _) = tungstenite::client(format!("ws://{}/ws", server.address()), stream).expect("a socket");
    let mut recording = Recording::new();
    let mut latencies_ns: Vec<u64> = (0..20)
        .map(|n| {
            let kind = EventKind::MemorySample { used_by_context: n, used_by_others: 0, free: 0 };
            let begin = handle.now_ns();
            handle.event(&Event { device: DeviceId(0), time_ns: begin, kind });
            while recording.end_event() <= n {
                recording.push(&socket.read().expect("a message").into_data()).expect("a recording");
            }
            handle.now_ns() - begin
        })
        .collect();
    latencies_ns.sort_unstable();
    println!(
        "from an event to a viewer: median {:.1} ms, slowest {:.1} ms",
        latencies_ns[10] as f64 / 1e6,
        latencies_ns[19] as f64 / 1e6
    );
    // The median, because a machine that is busy with other tests may stop this one for as long as it likes.
    assert!(latencies_ns[10] < 100_000_000, "{latencies_ns:?}");
}
