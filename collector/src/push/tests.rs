//! Pushing over connections that break, and to servers that stop, restart or refuse.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::Level;
use vramscope_trace::{DecodedItem, Decoder};

use super::pusher::SHUTDOWN_TIME;
use super::*;
use crate::aggregator::Aggregator;
use crate::captured_log;
use crate::hub::testing::Source;
use crate::hub::{Hub, HubLimits};
use crate::process::{Process, Rank};
use crate::recorder::Outputs;
use crate::server::{Content, Server, ServerOptions, Token};
use crate::socket::Address;

/// A server's state, as a fake transport fills it.
#[derive(Default)]
struct FakeServer {
    bytes: Vec<u8>,
    next: u64,
    missed: u64,
    has_ended: bool,
    connects: usize,
    hellos: Vec<Process>,
}

/// A transport whose connections break.
struct BreakingTransport {
    server: Arc<Mutex<FakeServer>>,
    /// The number of messages after which each connection breaks, the last first. Once the list is
    /// empty, connections hold.
    breaks_after: Vec<usize>,
    remaining: usize,
    unacknowledged: Vec<u64>,
}

impl BreakingTransport {
    /// Counts a message; fails once the connection has broken.
    fn take_message(&mut self) -> Result<(), String> {
        self.remaining = self.remaining.checked_sub(1).ok_or("connection lost")?;
        Ok(())
    }
}

impl Transport for BreakingTransport {
    fn connect(&mut self, process: &Process) -> Result<u64, String> {
        let mut server = self.server.lock().expect("no test thread panics");
        server.connects += 1;
        if server.hellos.last().is_some_and(|before| before.identity != process.identity) {
            // A new identity is a new recording.
            server.bytes.clear();
            server.next = 0;
        }
        server.hellos.push(process.clone());
        // Every second attempt fails.
        if server.connects.is_multiple_of(2) {
            return Err("connection refused".to_owned());
        }
        self.remaining = self.breaks_after.pop().unwrap_or(usize::MAX);
        self.unacknowledged.clear();
        Ok(server.next)
    }

    fn send(&mut self, message: PushMessage<'_>) -> Result<(), String> {
        self.take_message()?;
        let mut server = self.server.lock().expect("no test thread panics");
        server.missed += message.missed_events;
        message.chunks.iter().for_each(|chunk| server.bytes.extend_from_slice(&chunk.bytes));
        server.next = message.next;
        self.unacknowledged.push(message.next);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        self.take_message()?;
        self.server.lock().expect("no test thread panics").has_ended = true;
        Ok(())
    }

    fn receive(&mut self, _: Duration) -> Result<Option<u64>, String> {
        // Acknowledgements in flight are lost with the connection.
        if self.remaining == 0 { Err("connection lost".to_owned()) } else { Ok(self.unacknowledged.pop()) }
    }

    fn close(&mut self) {}
}

fn start(transport: BreakingTransport, hub: &Hub) -> Push {
    let process = Process::this(hub.identity().to_string(), "train.py", Rank::default(), false);
    Push::start_with(transport, "a test server".to_owned(), process, hub).expect("a thread starts")
}

#[track_caller]
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn broken_connections_lose_and_repeat_nothing() {
    let mut source = Source::new(HubLimits::default());
    let server = Arc::new(Mutex::new(FakeServer::default()));
    let transport = BreakingTransport {
        server: Arc::clone(&server),
        breaks_after: vec![3, 1, 2],
        remaining: 0,
        unacknowledged: Vec::new(),
    };
    let push = start(transport, &source.hub);
    let deadline = Instant::now() + Duration::from_secs(30);
    while server.lock().expect("no test thread panics").connects < 7 {
        assert!(Instant::now() < deadline, "the push must reconnect after every break");
        source.run(500);
        std::thread::sleep(Duration::from_millis(30));
    }
    source.hub.end();
    wait_until("the recording has arrived", || server.lock().expect("no test thread panics").has_ended);
    drop(push);
    let server = server.lock().expect("no test thread panics");
    let everything: Vec<u8> = source.hub.everything().iter().flat_map(|chunk| chunk.bytes.clone()).collect();
    assert!(server.bytes == everything);
    assert_eq!((server.missed, server.connects), (0, 7));
    assert!(server.hellos.iter().all(|process| process.identity == source.hub.identity().to_string()));
}

#[test]
fn program_end_waits_two_seconds_at_most() {
    // No server listens at the first address; the server at the second never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let silent = format!("ws://{}", silent.local_addr().expect("a bound socket has an address"));
    for url in ["ws://127.0.0.1:1", &silent] {
        let mut source = Source::new(HubLimits::default());
        let address = Address::parse(url).expect("a valid address");
        let push = Push::start(address, "train.py", Rank::default(), &source.hub).expect("a thread starts");
        source.run(1000);
        source.hub.end();
        let start = Instant::now();
        drop(push);
        assert!(start.elapsed() < SHUTDOWN_TIME + Duration::from_millis(700), "{url}: {:?}", start.elapsed());
    }
}

/// Starts a server that takes pushed recordings.
fn serve(listen: std::net::SocketAddr, token: Option<&str>) -> (Aggregator, Hub, Server) {
    let (aggregator, hub) = (Aggregator::new(), Hub::default());
    aggregator.begin(Outputs { hub: Some(hub.clone()), ..Outputs::default() }).expect("a thread starts");
    let token = token.map(|token| Token::new(token).expect("a valid token"));
    let options = ServerOptions { listen: Some(listen), token, ..ServerOptions::default() };
    let content = Content { aggregator: Some(aggregator.clone()), ..Content::live(hub.clone()) };
    (aggregator, hub, Server::start(options, content).expect("the server starts"))
}

/// Returns the number of events in a hub's recording, without marks.
fn events(hub: &Hub) -> usize {
    let mut decoder = Decoder::new();
    hub.everything().iter().for_each(|chunk| decoder.push(&chunk.bytes));
    let items = std::iter::from_fn(|| decoder.next_item().expect("a valid recording"));
    let is_counted = |item: &DecodedItem| match item {
        DecodedItem::Event(event) => !matches!(event.kind, vramscope_trace::EventKind::Mark { .. }),
        _ => false,
    };
    items.filter(is_counted).count()
}

#[test]
fn restarted_server_receives_the_whole_recording() {
    let any_port = ([127, 0, 0, 1], 0).into();
    let (aggregator, hub, server) = serve(any_port, Some("secret"));
    let (address, url) = (server.address(), server.url());
    let mut source = Source::new(HubLimits::default());
    let push_address = Address::parse(&url).expect("a valid address");
    let push = Push::start(push_address, "train.py", Rank::default(), &source.hub).expect("a thread starts");
    source.run(1000);
    let recorded = |source: &Source| source.encoder.state().event() as usize;
    wait_until("the first server has the recording", || events(&hub) == recorded(&source));
    aggregator.stop();
    drop(server);
    source.run(1000);
    let (aggregator, hub, _server) = serve(address, Some("secret"));
    wait_until("the second server has the whole recording", || events(&hub) == recorded(&source));
    source.run(1000);
    source.hub.end();
    drop(push);
    aggregator.stop();
    assert_eq!(events(&hub), recorded(&source));
}

#[test]
fn damaged_file_is_replaced_by_a_new_run_from_memory() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.vram");
    let mut source = Source::with_file(HubLimits { history_bytes: 100_000, lag_bytes: u64::MAX }, &path);
    for _ in 0..20 {
        source.run(10_000);
        source.cut(true);
    }
    let server = Arc::new(Mutex::new(FakeServer::default()));
    // The connection breaks in the middle of the file.
    let transport = BreakingTransport {
        server: Arc::clone(&server),
        breaks_after: vec![1],
        remaining: 0,
        unacknowledged: Vec::new(),
    };
    let push = start(transport, &source.hub);
    wait_until("the connection has broken", || server.lock().expect("no test thread panics").connects == 2);
    std::fs::write(&path, b"something else").expect("the file can be overwritten");
    source.hub.end();
    wait_until("the held chunks have arrived", || server.lock().expect("no test thread panics").has_ended);
    drop(push);
    let server = server.lock().expect("no test thread panics");
    let mut decoder = Decoder::new();
    decoder.push(&server.bytes);
    let items = std::iter::from_fn(|| decoder.next_item().expect("a valid recording"));
    let states =
        items.filter_map(|item| if let DecodedItem::FullState(state) = item { Some(state.event()) } else { None });
    assert!(states.last().is_some_and(|event| event > 100_000));
    let identities: std::collections::HashSet<_> = server.hellos.iter().map(|process| &process.identity).collect();
    assert_eq!(identities.len(), 2, "the held chunks are pushed as another run");
}

/// Returns true if the server answers within five seconds.
fn is_responsive(server: &Server) -> bool {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(server.address()).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("the socket can be configured");
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address());
    stream.write_all(request.as_bytes()).expect("the request fits the socket buffer");
    let mut response = String::new();
    stream.read_to_string(&mut response).is_ok() && response.contains(" 200 ")
}

#[test]
fn server_answers_while_the_aggregator_is_busy() {
    let (aggregator, hub, server) = serve(([127, 0, 0, 1], 0).into(), None);
    let start = |source: &Source| {
        let address = Address::parse(&server.url()).expect("a valid address");
        Push::start(address, "train.py", Rank::default(), &source.hub).expect("a thread starts")
    };
    let (mut leaving, mut joining) = (Source::new(HubLimits::default()), Source::new(HubLimits::default()));
    leaving.run(100);
    joining.run(100);
    let push = start(&leaving);
    wait_until("the first process has connected", || events(&hub) > 0);
    let before = events(&hub);
    let mut second = None;
    aggregator.while_locked(|| {
        second = Some(start(&joining));
        drop(push);
        assert!(is_responsive(&server));
    });
    wait_until("the second process has connected", || events(&hub) == 2 * before);
}

#[test]
fn panic_of_the_merge_thread_is_logged() {
    captured_log::start();
    Aggregator::panic_in_merge_thread();
    let is_logged = |(level, message): &(Level, String)| {
        *level == Level::ERROR && message.starts_with("internal error in the merge thread")
    };
    assert!(captured_log::events().iter().any(is_logged));
}

#[test]
fn push_with_a_wrong_token_is_refused() {
    let (_aggregator, hub, server) = serve(([127, 0, 0, 1], 0).into(), Some("secret"));
    let url = server.url().replace("secret", "wrong");
    captured_log::start();
    let mut source = Source::new(HubLimits::default());
    source.run(100);
    let address = Address::parse(&url).expect("a valid address");
    let prefix = format!("push to {address}: ");
    let _push = Push::start(address, "train.py", Rank::default(), &source.hub).expect("a thread starts");
    wait_until("the failure is logged", || !logged(&prefix).is_empty());
    let lines = logged(&prefix);
    let [(level, line)] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!(*level, Level::WARN, "{line}");
    assert!(line.contains("check the token") && !line.contains("wrong"), "{line}");
    assert_eq!(events(&hub), 0);
}

#[test]
fn lost_and_restored_connections_are_logged() {
    captured_log::start();
    let (_aggregator, _hub, server) = serve(([127, 0, 0, 1], 0).into(), None);
    let (address, url) = (server.address(), server.url());
    let push_address = Address::parse(&url).expect("a valid address");
    let prefix = format!("push to {push_address}: ");
    let mut source = Source::new(HubLimits::default());
    source.run(100);
    let _push = Push::start(push_address, "train.py", Rank::default(), &source.hub).expect("a thread starts");
    wait_until("the process has joined", || !logged("train.py").is_empty());
    drop(server);
    wait_until("the lost connection is logged", || logged(&prefix).len() == 1);
    let (_aggregator, _hub, _server) = serve(address, None);
    wait_until("the new connection is logged", || logged(&prefix).len() == 2);
    let levels: Vec<_> =
        logged(&prefix).into_iter().map(|(level, line)| (level, line.ends_with(": connected"))).collect();
    assert_eq!(levels, [(Level::WARN, false), (Level::INFO, true)], "{:?}", logged(&prefix));
}

/// Returns the captured log events, of all tests, whose message begins with `prefix`.
fn logged(prefix: &str) -> Vec<(Level, String)> {
    captured_log::events().into_iter().filter(|(_, message)| message.starts_with(prefix)).collect()
}

#[test]
fn push_variable_has_the_address() {
    let check = |url: &str| parse_variable(Some(url.into())).map(|address| address.map(|address| address.to_string()));
    assert!(parse_variable(None).is_ok_and(|address| address.is_none()));
    assert_eq!(check(""), Ok(None));
    assert_eq!(check("ws://127.0.0.1:7791"), Ok(Some("http://127.0.0.1:7791/".to_owned())));
    let error = check("ftp://127.0.0.1/?token=secret").expect_err("FTP is not supported").to_string();
    assert!(error.starts_with("VRAMSCOPE_PUSH: not an address") && !error.contains("secret"), "{error}");
}
