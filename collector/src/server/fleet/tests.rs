//! The fleet page's requests against a server with a made-up fleet.

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::Value;
use tungstenite::WebSocket;
use vramscope_page::{Content::Plain, PageFile};

use super::*;
use crate::server::fleet_feed::FleetClient;
use crate::server::metric_family::{MetricFamily, MetricSample, MetricValue};
use crate::server::tests::{Response, send};
use crate::server::{Assets, ServedContent, Server, ServerOptions, Token};

const TOKEN: &str = "right-Token_1";
const ASSETS: Assets = Assets(&[
    PageFile { path: "fleet/index.html", content: Plain(b"all ranks") },
    PageFile { path: "fleet/main.js", content: Plain(b"start()") },
    PageFile { path: "index.html", content: Plain(b"one rank") },
]);

/// Bytes of a large view. A few large views fill the system's buffers of a connection.
const LARGE_VIEW_BYTES: usize = 4 << 20;

/// A fake fleet whose views are numbers, and which stores the commands it receives.
#[derive(Debug, Default)]
struct FakeFleet {
    /// True if views have [`LARGE_VIEW_BYTES`] bytes instead of one.
    has_large_views: bool,
    /// For each client, in order of their connections, the number of views made for it.
    views: Mutex<Vec<Arc<AtomicU64>>>,
    commands: Mutex<Vec<String>>,
}

impl FakeFleet {
    /// Returns the number of views made for the client that connected as number `client`.
    fn views(&self, client: usize) -> u64 {
        self.views.lock().expect("no thread panicked")[client].load(Ordering::Relaxed)
    }
}

struct FakeClient {
    view_bytes: usize,
    views: Arc<AtomicU64>,
}

impl FleetClient for FakeClient {
    fn update(&mut self) -> Option<Vec<u8>> {
        Some(vec![self.views.fetch_add(1, Ordering::Relaxed) as u8; self.view_bytes])
    }
}

impl FleetFeed for FakeFleet {
    fn run(&self) -> String {
        "run\"1\"".to_owned()
    }

    fn client(&self) -> Box<dyn FleetClient> {
        let views = Arc::default();
        self.views.lock().expect("no thread panicked").push(Arc::clone(&views));
        let view_bytes = if self.has_large_views { LARGE_VIEW_BYTES } else { 1 };
        Box::new(FakeClient { view_bytes, views })
    }

    fn json(&self) -> String {
        r#"{"ranks":[]}"#.to_owned()
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        let labels = vec![("rank", "3".to_owned()), ("host", "node\"1\"".to_owned())];
        vec![MetricFamily {
            name: "vramscope_rank_lag".to_owned(),
            help: "Age of the newest summary",
            unit: "seconds",
            is_counter: false,
            samples: vec![MetricSample { labels, value: MetricValue::Float(1.5) }],
        }]
    }

    fn open(&self, identity: &str) -> Result<(), String> {
        self.commands.lock().expect("no thread panicked").push(format!("open {identity}"));
        if identity == "unknown" { Err("no such process".to_owned()) } else { Ok(()) }
    }

    fn close(&self, identity: &str) -> Result<(), String> {
        self.commands.lock().expect("no thread panicked").push(format!("close {identity}"));
        Ok(())
    }
}

fn start(fleet: Option<Arc<FakeFleet>>, token: Option<&str>) -> Server {
    let token = token.map(|token| Token::new(token).expect("a valid token"));
    let options = ServerOptions { listen: Some(([127, 0, 0, 1], 0).into()), token, ..ServerOptions::default() };
    let fleet = fleet.map(|fleet| fleet as Arc<dyn FleetFeed>);
    Server::start(options, ServedContent { assets: ASSETS, fleet, ..ServedContent::files(Vec::new()) })
        .expect("a port is free")
}

fn get(server: &Server, path: &str, headers: &str) -> Response {
    let host = server.address();
    send(server, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n"))
}

fn connect(server: &Server, query: &str) -> WebSocket<TcpStream> {
    let stream = TcpStream::connect(server.address()).expect("the server listens");
    let url = format!("ws://{}/fleet/ws{query}", server.address());
    tungstenite::client(url, stream).expect("the WebSocket opens").0
}

/// Reads messages until one of text arrives, and returns it.
fn read_json(socket: &mut WebSocket<TcpStream>) -> Value {
    loop {
        if let tungstenite::Message::Text(text) = socket.read().expect("a message arrives") {
            return serde_json::from_str(&text).expect("JSON");
        }
    }
}

#[test]
fn server_without_a_fleet_serves_no_fleet_page() {
    let check = |has_fleet: bool, path: &str, status: u16, body_or_location: &str| {
        let server = start(has_fleet.then(Arc::default), None);
        let response = get(&server, path, "");
        assert_eq!(response.status, status, "{path}: {}", response.head);
        let body = String::from_utf8_lossy(&response.body).into_owned();
        let is_expected =
            body == body_or_location || response.head.contains(&format!("location: {body_or_location}\r\n"));
        assert!(is_expected, "{path}: {}\n{body}", response.head);
    };
    check(true, "/fleet/", 200, "all ranks");
    check(true, "/fleet/main.js", 200, "start()");
    check(true, "/fleet", 307, "fleet/");
    check(true, "/?fleet", 307, "./fleet/");
    check(true, "/fleet.json", 200, r#"{"ranks":[]}"#);
    check(true, "/fleet/ws", 400, "Connection header did not include 'upgrade'");
    check(false, "/fleet/", 404, "not found\n");
    check(false, "/fleet.json", 404, "not found\n");
    check(false, "/fleet/ws", 404, "not found\n");
    check(false, "/?fleet", 200, "one rank");
}

#[test]
fn metrics_have_the_figures_of_all_ranks() {
    let metrics = |fleet| String::from_utf8(get(&start(fleet, None), "/metrics", "").body).expect("text");
    let text = metrics(Some(Arc::default()));
    let sample = "vramscope_rank_lag_seconds{rank=\"3\",host=\"node\\\"1\\\"\"} 1.5\n";
    assert!(text.contains(sample), "{text}");
    assert!(text.contains("# TYPE vramscope_rank_lag_seconds gauge\n"), "{text}");
    assert!(!metrics(None).contains("vramscope_rank"));
}

#[test]
fn fleet_needs_the_token() {
    let server = start(Some(Arc::default()), Some(TOKEN));
    for path in ["/fleet/", "/fleet.json", "/fleet/ws", "/fleet/main.js"] {
        assert_eq!(get(&server, path, "").status, 401, "{path}");
        let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
        assert_ne!(get(&server, path, &bearer).status, 401, "{path}");
    }
    let page = get(&server, "/fleet/", "");
    assert!(String::from_utf8_lossy(&page.body).contains("This server needs a token"));
    // The token of the address becomes a cookie for all paths of the server.
    let redirect = get(&server, &format!("/fleet/?token={TOKEN}"), "");
    assert_eq!(redirect.status, 303);
    assert!(redirect.head.contains("location: ../?token=right-token_1&fleet\r\n"), "{}", redirect.head);
    let next = get(&server, &format!("/?token={TOKEN}&fleet"), "");
    assert!(next.head.contains("location: ./?fleet\r\n") && next.head.contains("set-cookie"), "{}", next.head);
    assert_eq!(get(&server, "/fleet/?token=wrong", "").status, 401);
}

#[test]
fn links_of_other_sites_open_the_page_and_nothing_else() {
    let server = start(Some(Arc::default()), None);
    let link = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n";
    assert_eq!(get(&server, "/fleet/", link).status, 200);
    assert_eq!(get(&server, "/fleet.json", link).status, 403);
    assert_eq!(get(&server, "/fleet/ws", link).status, 403);
}

#[test]
fn commands_need_the_token() {
    let fleet = Arc::new(FakeFleet::default());
    // Without a token, viewing is free on this machine; commands are not possible.
    let server = start(Some(Arc::clone(&fleet)), None);
    let mut socket = connect(&server, "");
    let greeting = read_json(&mut socket);
    assert_eq!((&greeting["run"], &greeting["allowed"]), (&"run\"1\"".into(), &false.into()));
    socket.send(r#"{"open":"a"}"#.into()).expect("sent");
    let error = read_json(&mut socket);
    assert!(error["error"].as_str().is_some_and(|error| error.contains("token")), "{error}");
    assert!(fleet.commands.lock().expect("no thread panicked").is_empty());
}

#[test]
fn commands_are_carried_out_and_failures_are_answered() {
    let fleet = Arc::new(FakeFleet::default());
    let server = start(Some(Arc::clone(&fleet)), Some(TOKEN));
    let mut socket = connect(&server, &format!("?token={TOKEN}"));
    assert_eq!(read_json(&mut socket)["allowed"], true);
    for command in [r#"{"open":"a"}"#, r#"{"close":"a"}"#, r#"{"open":"unknown"}"#] {
        socket.send(command.into()).expect("sent");
    }
    assert_eq!(read_json(&mut socket)["error"], "no such process");
    let expected = ["open a", "close a", "open unknown"];
    assert_eq!(*fleet.commands.lock().expect("no thread panicked"), expected);
    for invalid in ["", "{}", "[1]", r#"{"open":1}"#, r#"{"delete":"a"}"#, r#"{"open":"a","close":"a"}"#] {
        socket.send(invalid.into()).expect("sent");
        let error = read_json(&mut socket);
        assert!(error["error"].as_str().is_some_and(|error| error.starts_with("a command is")), "{error}");
    }
    // Too many commands at once fail. A client that sends these in twenty-five seconds is refused.
    for _ in 0..500 {
        socket.send(r#"{"close":"b"}"#.into()).expect("sent");
    }
    let error = read_json(&mut socket);
    assert!(error["error"].as_str().is_some_and(|error| error.starts_with("too many")), "{error}");
}

#[test]
fn views_arrive_at_most_ten_times_a_second() {
    let server = start(Some(Arc::default()), None);
    let start = Instant::now();
    let mut socket = connect(&server, "");
    let mut views = 0;
    while views < 6 {
        views += u32::from(socket.read().expect("a message arrives").is_binary());
    }
    // The first view is sent at once. A busy machine only delays views.
    assert!(start.elapsed() >= 4 * VIEW_INTERVAL, "{:?}", start.elapsed());
}

#[test]
fn slow_client_skips_views() {
    let fleet = Arc::new(FakeFleet { has_large_views: true, ..FakeFleet::default() });
    let server = start(Some(Arc::clone(&fleet)), None);
    let next_view = |socket: &mut WebSocket<TcpStream>| loop {
        if let tungstenite::Message::Binary(view) = socket.read().expect("a message arrives") {
            return u64::from(view[0]);
        }
    };
    let mut slow = connect(&server, "");
    read_json(&mut slow);
    let mut fast = connect(&server, "");
    const VIEWS: u64 = 20;
    assert!((0..VIEWS).all(|number| next_view(&mut fast) == number));
    let made = fleet.views(0);
    assert!(made < VIEWS, "as many views are made for a client that does not read");
    // No view is lost, and new ones are made once the client reads again.
    assert!((0..=made).all(|number| next_view(&mut slow) == number));
}

#[test]
fn stopping_server_closes_the_connection() {
    let server = start(Some(Arc::default()), None);
    let mut socket = connect(&server, "");
    read_json(&mut socket);
    drop(server);
    let code = loop {
        if let tungstenite::Message::Close(Some(frame)) = socket.read().expect("a close frame arrives") {
            break u16::from(frame.code);
        }
    };
    assert_eq!(code, 1001);
}
