use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;

use tungstenite::client::IntoClientRequest;
use vramscope_page::Content::{Brotli, Plain};
use vramscope_page::PageFile;
use vramscope_trace::{DeviceId, Encoder, Event, EventKind, Recording, RecordingInfo, Sink, digest};

use super::*;
use crate::hub::testing::TestProgram;
use crate::hub::{Hub, HubLimits};
use crate::recorder::{Outputs, Recorder};

const ASSETS: Assets = Assets(&[
    PageFile { path: "index.html", content: Plain(INDEX) },
    PageFile { path: "pkg/viewer.wasm", content: Plain(b"\0asm") },
    PageFile { path: "notes.secret", content: Plain(b"no media type") },
    PageFile { path: "style.css", content: Brotli(STYLE_BROTLI) },
]);
const INDEX: &[u8] = b"<!doctype html><title>page</title>";
const STYLE: &[u8] = b"p{}";
/// [`STYLE`] as brotli: 24 bits of headers, the uncompressed bytes, and the end of the stream.
const STYLE_BROTLI: &[u8] = b"\x0b\x01\x80p{}\x03";

fn events(count: u64) -> Vec<Event> {
    let sample = |n| EventKind::MemorySample { used_by_context: n, used_by_others: 0, free: 9 };
    (0..count).map(|n| Event { device: DeviceId(0), time_ns: n, kind: sample(n) }).collect()
}

/// Returns a hub with `count` events, and the encoded recording.
fn hub_with_events(count: u64) -> (Hub, Vec<u8>) {
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

fn start(content: ServedContent) -> Server {
    Server::start(ServerOptions { listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))), ..Default::default() }, content)
        .expect("a port is free")
}

fn live_server(count: u64) -> (Server, Hub, Vec<u8>) {
    let (hub, bytes) = hub_with_events(count);
    (start(ServedContent { assets: ASSETS, ..ServedContent::live(hub.clone()) }), hub, bytes)
}

pub(super) struct Response {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

pub(super) fn send(server: &Server, request: &str) -> Response {
    let mut stream = TcpStream::connect(server.address()).expect("the server listens");
    stream.write_all(request.as_bytes()).expect("the request fits the socket buffer");
    let mut response = Vec::new();
    stream.read_to_end(&mut response).expect("the server responds and closes");
    let end = response.windows(4).position(|window| window == b"\r\n\r\n").expect("the response has a head");
    let head = String::from_utf8(response[..end].to_vec()).expect("headers are UTF-8").to_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("the head has a status");
    Response { status, head, body: response[end + 4..].to_vec() }
}

fn get(server: &Server, path: &str) -> Response {
    send(server, &format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address()))
}

#[track_caller]
fn check(response: &Response, status: u16, in_head: &[&str]) {
    assert_eq!(response.status, status, "{}", response.head);
    for line in in_head {
        assert!(response.head.contains(line), "missing {line:?} in\n{}", response.head);
    }
    // Every response has the security headers.
    for line in [
        "content-security-policy: default-src 'none'; script-src 'self'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
    ] {
        assert!(response.head.contains(line), "missing {line:?} in\n{}", response.head);
    }
    assert!(!response.head.contains("access-control"), "{}", response.head);
}

#[test]
fn page_and_its_files_are_served() {
    let (server, _hub, _) = live_server(1);
    let page = get(&server, "/");
    check(&page, 200, &["content-type: text/html; charset=utf-8"]);
    assert_eq!(page.body, INDEX);
    check(&get(&server, "/index.html"), 200, &["content-type: text/html; charset=utf-8"]);
    check(&get(&server, "/?trace=files/0/a.vram"), 200, &["text/html"]);
    check(&get(&server, "/pkg/viewer.wasm"), 200, &["content-type: application/wasm"]);
    check(&get(&server, "/healthz"), 200, &["text/plain"]);
}

#[test]
fn files_are_sent_in_the_smallest_accepted_encoding() {
    let (server, _hub, _) = live_server(1);
    let body = |accept: &str, encoding: Option<&str>| {
        let host = server.address();
        let request = format!("GET /style.css HTTP/1.1\r\nHost: {host}\r\n{accept}Connection: close\r\n\r\n");
        let response = send(&server, &request);
        assert_eq!(response.status, 200, "{}", response.head);
        assert!(response.head.contains("vary: accept-encoding"), "{}", response.head);
        let line = encoding.map(|encoding| format!("content-encoding: {encoding}"));
        assert_eq!(response.head.lines().find(|line| line.starts_with("content-encoding")), line.as_deref());
        response.body
    };
    assert_eq!(body("Accept-Encoding: gzip, deflate, br\r\n", Some("br")), STYLE_BROTLI);
    let gzip = body("Accept-Encoding: gzip\r\n", Some("gzip"));
    // The last 4 bytes are the number of uncompressed bytes.
    assert!(gzip.starts_with(b"\x1f\x8b") && gzip.ends_with(&(STYLE.len() as u32).to_le_bytes()), "{gzip:?}");
    assert_eq!(body("", None), STYLE);
}

#[test]
fn unknown_paths_are_not_found() {
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
        let status = get(&server, path).status;
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
fn foreign_hosts_and_origins_are_refused() {
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
    let mut request = format!("ws://{}/ws", server.address()).into_client_request().expect("a valid URL");
    request.headers_mut().insert("Origin", "http://evil.example".parse().expect("a valid header value"));
    let stream = TcpStream::connect(server.address()).expect("the server listens");
    assert!(tungstenite::client(request, stream).is_err());
}

#[test]
fn download_is_the_complete_recording() {
    let (server, _hub, bytes) = live_server(50_000);
    let response = get(&server, "/trace.vram");
    check(
        &response,
        200,
        &["content-type: application/vnd.vramscope.trace", &format!("content-length: {}", bytes.len())],
    );
    assert!(response.body == bytes);
}

#[test]
fn websocket_sends_the_recording_and_closes_when_it_ends() {
    let (server, hub, bytes) = live_server(50_000);
    let stream = TcpStream::connect(server.address()).expect("the server listens");
    let (mut socket, _) =
        tungstenite::client(format!("ws://{}/ws?history=all", server.address()), stream).expect("the WebSocket opens");
    let mut received = Vec::new();
    while received.len() < bytes.len() {
        received.extend(socket.read().expect("a message arrives").into_data());
    }
    assert!(received == bytes);
    hub.end();
    let close = socket.read().expect("a close frame arrives");
    let tungstenite::Message::Close(Some(frame)) = close else { panic!("expected a close frame, got {close:?}") };
    assert_eq!(u16::from(frame.code), 1000);
}

#[test]
fn stopping_server_closes_websockets() {
    let (server, _hub, bytes) = live_server(1);
    let stream = TcpStream::connect(server.address()).expect("the server listens");
    let (mut socket, _) =
        tungstenite::client(format!("ws://{}/ws", server.address()), stream).expect("the WebSocket opens");
    assert_eq!(socket.read().expect("a message arrives").into_data(), bytes);
    let reading = std::thread::spawn(move || socket.read().expect("a close frame arrives"));
    drop(server);
    let close = reading.join().expect("the reading thread does not panic");
    let tungstenite::Message::Close(Some(frame)) = close else { panic!("expected a close frame, got {close:?}") };
    assert_eq!(u16::from(frame.code), 1001);
}

#[test]
fn complete_recordings_are_served_by_index_and_name() {
    let recording = |name: &str, bytes: &[u8]| ServedRecording {
        name: name.into(),
        bytes: RecordingBytes::from_vec(bytes.to_vec()),
        events: Some(bytes.len() as u64),
    };
    let files = vec![recording("a b%?#\u{fc}.vram", b"first"), recording("second.vram", b"second")];
    let alone = start(ServedContent { assets: ASSETS, ..ServedContent::files(files[..1].to_vec()) });
    check(&get(&alone, "/"), 307, &["location: ?trace=files/0/a%2520b%2525%253f%2523%25c3%25bc.vram"]);
    let server = start(ServedContent { assets: ASSETS, ..ServedContent::files(files) });
    check(&get(&server, "/"), 200, &["text/html"]);
    let list = get(&server, "/files");
    check(&list, 200, &["content-type: application/json"]);
    let expected = concat!(
        r#"{"files":[{"bytes":5,"events":5,"name":"a b%?#ü.vram","url":"files/0/a%20b%25%3F%23%C3%BC.vram"},"#,
        r#"{"bytes":6,"events":6,"name":"second.vram","url":"files/1/second.vram"}]}"#,
        "\n"
    );
    assert_eq!(String::from_utf8(list.body).expect("JSON is UTF-8"), expected);
    check(&get(&server, "/?trace=files/1/second.vram"), 200, &["text/html"]);
    let first = get(&server, "/files/0/a%20b%25%3F%23%C3%BC.vram");
    check(&first, 200, &["content-type: application/vnd.vramscope.trace", "content-length: 5"]);
    assert_eq!(first.body, b"first");
    assert_eq!(get(&server, "/files/1/second.vram").body, b"second");
    for path in ["/files/1/first.vram", "/files/2/second.vram", "/files/-1/second.vram", "/ws", "/trace.vram"] {
        let status = get(&server, path).status;
        assert!(matches!(status, 400 | 404), "{path} gave {status}");
    }
}

/// Returns an unnamed temporary file with these bytes.
fn temporary_file(bytes: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("the file is writable");
    file
}

#[test]
fn ranges_are_served_from_file_and_memory() {
    let bytes: Vec<u8> = (0..1_000_000u32).map(|n| (n / 7) as u8).collect();
    let (in_file, appended) = bytes.split_at(700_000);
    let file = RecordingBytes::from_file(temporary_file(in_file), in_file.len() as u64, appended.to_vec());
    let files = vec![
        ServedRecording { name: "disk.vram".into(), bytes: file, events: None },
        ServedRecording { name: "memory.vram".into(), bytes: RecordingBytes::from_vec(bytes.clone()), events: None },
        ServedRecording { name: "empty.vram".into(), bytes: RecordingBytes::default(), events: None },
    ];
    let server = start(ServedContent { assets: ASSETS, ..ServedContent::files(files) });
    let request = |method: &str, path: &str, header: &str| {
        let host = server.address();
        send(&server, &format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{header}Connection: close\r\n\r\n"))
    };
    for path in ["/files/0/disk.vram", "/files/1/memory.vram"] {
        let whole = request("GET", path, "");
        check(&whole, 200, &["accept-ranges: bytes", "content-length: 1000000"]);
        assert!(whole.body == bytes);
        let check_range = |header: &str, expected: Range<usize>| {
            let part = request("GET", path, &format!("Range: bytes={header}\r\n"));
            let (start, end, len) = (expected.start, expected.end - 1, expected.len());
            let content_range = format!("content-range: bytes {start}-{end}/1000000");
            check(&part, 206, &[&content_range, &format!("content-length: {len}"), "accept-ranges: bytes"]);
            assert!(part.body == bytes[expected], "{header} of {path}");
        };
        check_range("0-0", 0..1);
        check_range("699990-700009", 699_990..700_010);
        check_range("100000-900000", 100_000..900_001);
        check_range("999999-", 999_999..1_000_000);
        check_range("-40", 999_960..1_000_000);
        let past_end = request("GET", path, "Range: bytes=1000000-\r\n");
        check(&past_end, 416, &["content-range: bytes */1000000"]);
        for header in ["Range: bytes=0-1,5-6\r\n", "Range: bytes=0-9\r\nIf-Range: \"a\"\r\n"] {
            assert!(request("GET", path, header).body == bytes, "{header}");
        }
        let head = request("HEAD", path, "Range: bytes=0-9\r\n");
        check(&head, 200, &["content-length: 1000000", "accept-ranges: bytes"]);
        assert!(head.body.is_empty());
    }
    check(&request("GET", "/files/2/empty.vram", ""), 200, &["content-length: 0"]);
    check(&request("GET", "/files/2/empty.vram", "Range: bytes=0-63\r\n"), 416, &["content-range: bytes */0"]);
}

#[test]
fn truncated_file_aborts_the_response() {
    let file = RecordingBytes::from_file(temporary_file(&[7; 5000]), 1 << 20, Vec::new());
    let files = vec![ServedRecording { name: "cut.vram".into(), bytes: file, events: None }];
    let server = start(ServedContent { assets: ASSETS, ..ServedContent::files(files) });
    let response = get(&server, "/files/0/cut.vram");
    check(&response, 200, &["content-length: 1048576"]);
    assert!(response.body.len() < 1 << 20, "the body must be shorter than its Content-Length");
}

#[test]
fn second_server_takes_the_next_port() {
    let content = || ServedContent { assets: ASSETS, ..ServedContent::files(Vec::new()) };
    let first = Server::start(ServerOptions::default(), content()).expect("a later port is free");
    let second = Server::start(ServerOptions::default(), content()).expect("a later port is free");
    assert_ne!(first.address(), second.address());
    assert!((DEFAULT_PORT..=DEFAULT_PORT + listen::PORTS_TRIED).contains(&second.address().port()));
}

#[test]
fn stalled_client_does_not_delay_others() {
    let mut source = TestProgram::new(HubLimits { lag_bytes: 1 << 20, ..HubLimits::default() });
    source.run(1000);
    let server = start(ServedContent { assets: ASSETS, ..ServedContent::live(source.hub.clone()) });
    let connect = || {
        let stream = TcpStream::connect(server.address()).expect("the server listens");
        tungstenite::client(format!("ws://{}/ws", server.address()), stream).expect("the WebSocket opens").0
    };
    let (mut stalled, mut fast) = (connect(), connect());
    let read = |socket: &mut tungstenite::WebSocket<TcpStream>, recording: &mut Recording| {
        // On a slow machine the test takes long enough for the server to send pings.
        match socket.read().expect("a message arrives") {
            tungstenite::Message::Binary(bytes) => recording.push(&bytes).expect("the server sends a valid recording"),
            tungstenite::Message::Close(_) => return false,
            _ => {}
        }
        true
    };
    let (mut stalled_recording, mut fast_recording) = (Recording::new(), Recording::new());
    read(&mut stalled, &mut stalled_recording);
    // More than the socket buffers of both sides hold: at most 33 MB and 4 MB by default.
    for _ in 0..100 {
        source.run_incompressible(25_000);
        while fast_recording.end_event() < source.encoder.state().event() {
            read(&mut fast, &mut fast_recording);
        }
    }
    source.hub.end();
    while read(&mut stalled, &mut stalled_recording) {}
    for recording in [&stalled_recording, &fast_recording] {
        assert_eq!(recording.end_event(), source.encoder.state().event());
        assert_eq!(digest(recording.end_state()), digest(source.encoder.state()));
    }
    assert_eq!(fast_recording.lost_events(), 0);
    assert!(stalled_recording.lost_events() > 100_000, "only {} events were left out", stalled_recording.lost_events());
}

#[test]
fn events_reach_viewers_within_100_ms() {
    let hub = Hub::default();
    let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
    let (_recorder, mut handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the recorder starts");
    let server = start(ServedContent { assets: ASSETS, ..ServedContent::live(hub) });
    let stream = TcpStream::connect(server.address()).expect("the server listens");
    let (mut socket, _) =
        tungstenite::client(format!("ws://{}/ws", server.address()), stream).expect("the WebSocket opens");
    let mut recording = Recording::new();
    let mut latencies_ns: Vec<u64> = (0..20)
        .map(|n| {
            let kind = EventKind::MemorySample { used_by_context: n, used_by_others: 0, free: 0 };
            let begin = handle.now_ns();
            handle.event(&Event { device: DeviceId(0), time_ns: begin, kind });
            while recording.end_event() <= n {
                recording.push(&socket.read().expect("a message arrives").into_data()).expect("a valid recording");
            }
            handle.now_ns() - begin
        })
        .collect();
    latencies_ns.sort_unstable();
    println!(
        "latency from event to viewer: median {:.1} ms, maximum {:.1} ms",
        latencies_ns[10] as f64 / 1e6,
        latencies_ns[19] as f64 / 1e6
    );
    // Checks the median, because other tests on a busy machine may suspend this test at any time.
    assert!(latencies_ns[10] < 100_000_000, "{latencies_ns:?}");
}
