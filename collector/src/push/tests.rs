//! Pushing over connections that break, and to servers that stop, restart or refuse.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use tracing::Level;
use vramscope_trace::{DecodedItem, Decoder, DeviceId, Event, EventKind, RecordingInfo, Sink};

use super::*;
use crate::aggregator::Aggregator;
use crate::captured_log;
use crate::hub::testing::TestProgram;
use crate::hub::{Hub, HubLimits};
use crate::process::{Process, Rank};
use crate::recorder::{Outputs, Recorder};
use crate::server::{ServedContent, Server, ServerOptions, Token};
use crate::socket::Address;
use crate::wait_until::{TIMEOUT, wait_until};

/// The state of a simulated server that a [`BreakingTransport`] delivers chunks to.
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

#[test]
fn broken_connections_lose_and_repeat_nothing() {
    let mut source = TestProgram::new(HubLimits::default());
    let server = Arc::new(Mutex::new(FakeServer::default()));
    let transport = BreakingTransport {
        server: Arc::clone(&server),
        breaks_after: vec![3, 1, 2],
        remaining: 0,
        unacknowledged: Vec::new(),
    };
    let push = start(transport, &source.hub);
    wait_until("the push has reconnected after every break", || {
        source.run(500);
        server.lock().expect("no test thread panics").connects == 7
    });
    source.hub.end();
    wait_until("the recording has arrived", || server.lock().expect("no test thread panics").has_ended);
    drop(push);
    let server = server.lock().expect("no test thread panics");
    let everything: Vec<u8> = source.hub.everything().iter().flat_map(|chunk| chunk.bytes.clone()).collect();
    assert!(server.bytes == everything);
    assert_eq!((server.missed, server.connects), (0, 7));
    assert!(server.hellos.iter().all(|process| process.identity == source.hub.identity().to_string()));
}

/// A call of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Connect,
    Send,
    Receive,
}

/// A transport whose server does not answer: one call does not return before `release` is dropped.
struct StuckTransport {
    stuck: Call,
    /// Notified when the call begins.
    began: mpsc::Sender<()>,
    released: mpsc::Receiver<()>,
}

impl StuckTransport {
    fn new(stuck: Call) -> (Self, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((began, has_begun), (release, released)) = (mpsc::channel(), mpsc::channel());
        (Self { stuck, began, released }, has_begun, release)
    }

    fn call(&self, call: Call) -> Result<(), String> {
        if call != self.stuck {
            return Ok(());
        }
        // Only the first call is reported and blocks.
        let _ = self.began.send(());
        let _ = self.released.recv();
        Err("the server does not answer".to_owned())
    }
}

impl Transport for StuckTransport {
    fn connect(&mut self, _: &Process) -> Result<u64, String> {
        self.call(Call::Connect).map(|()| 0)
    }

    fn send(&mut self, _: PushMessage<'_>) -> Result<(), String> {
        self.call(Call::Send)
    }

    fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn receive(&mut self, _: Duration) -> Result<Option<u64>, String> {
        self.call(Call::Receive).map(|()| None)
    }

    fn close(&mut self) {}
}

/// In debug builds, each event also checks what the program's thread may wait for; see
/// [`wait_check`](crate::wait_check).
#[test]
fn program_trains_while_the_server_does_not_answer() {
    // More events than a ring holds: the program waits for the recorder, which publishes to the
    // hub.
    const EVENTS: usize = 300_000;
    for stuck in [Call::Connect, Call::Send, Call::Receive] {
        let hub = Hub::default();
        let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
        let (recorder, mut handle) = Recorder::start(RecordingInfo::default(), outputs).expect("a thread starts");
        let (transport, has_begun, release) = StuckTransport::new(stuck);
        let process = Process::this(hub.identity().to_string(), "train.py", Rank::default(), false);
        let push = Push::start_with(transport, "a test server".to_owned(), process, &hub).expect("a thread starts");
        has_begun.recv_timeout(TIMEOUT).unwrap_or_else(|error| panic!("{stuck:?} does not begin: {error}"));
        let (sender, trained) = mpsc::channel();
        std::thread::spawn(move || {
            for _ in 0..EVENTS {
                let kind = EventKind::MemorySample { used_by_context: 1, used_by_others: 2, free: 3 };
                handle.event(&Event { device: DeviceId(0), time_ns: handle.now_ns(), kind });
            }
            handle.flush();
            sender.send(recorder.stop().events)
        });
        let recorded = trained.recv_timeout(TIMEOUT);
        assert_eq!(recorded, Ok(EVENTS as u64), "the program waits while {stuck:?} is stuck");
        assert_eq!(events(&hub), EVENTS);
        drop(release);
        drop(push);
    }
}

#[test]
fn program_ends_although_its_server_does_not_answer() {
    // No server listens at the first address; the server at the second never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let silent = format!("ws://{}", silent.local_addr().expect("a bound socket has an address"));
    for url in ["ws://127.0.0.1:1", &silent] {
        let mut source = TestProgram::new(HubLimits::default());
        let address = Address::parse(url).expect("a valid address");
        let push = Push::start(address, "train.py", Rank::default(), &source.hub).expect("a thread starts");
        source.run(1000);
        source.hub.end();
        end(push, url);
    }
    // The thread that pushes never returns from a call.
    let mut source = TestProgram::new(HubLimits::default());
    let (transport, has_begun, _release) = StuckTransport::new(Call::Send);
    let process = Process::this(source.hub.identity().to_string(), "train.py", Rank::default(), false);
    let push = Push::start_with(transport, "a test server".to_owned(), process, &source.hub).expect("a thread starts");
    source.run(1000);
    has_begun.recv_timeout(TIMEOUT).expect("the push sends");
    source.hub.end();
    end(push, "a stuck call");
}

/// Ends a push, and prints how long that takes.
#[track_caller]
fn end(push: Push, server: &str) {
    let (start, (sender, ended)) = (Instant::now(), mpsc::channel());
    std::thread::spawn(move || {
        drop(push);
        sender.send(())
    });
    ended.recv_timeout(TIMEOUT).unwrap_or_else(|error| panic!("{server}: the push does not end: {error}"));
    println!("{server}: the push has ended after {:?}", start.elapsed());
}

/// Starts a server that takes pushed recordings.
fn serve(listen: std::net::SocketAddr, token: Option<&str>) -> (Aggregator, Hub, Server) {
    let (aggregator, hub) = (Aggregator::new(), Hub::default());
    aggregator.begin(Outputs { hub: Some(hub.clone()), ..Outputs::default() }).expect("a thread starts");
    let token = token.map(|token| Token::new(token).expect("a valid token"));
    let options = ServerOptions { listen: Some(listen), token, ..ServerOptions::default() };
    let content = ServedContent { aggregator: Some(aggregator.clone()), ..ServedContent::live(hub.clone()) };
    (aggregator, hub, Server::start(options, content).expect("the server starts"))
}

/// Returns the number of events in a hub's recording, without marks.
fn events(hub: &Hub) -> usize {
    let mut decoder = Decoder::new();
    hub.everything().iter().for_each(|chunk| decoder.push(&chunk.bytes));
    let items = std::iter::from_fn(|| decoder.next_item().expect("a valid recording"));
    let is_counted = |item: &DecodedItem| match item {
        DecodedItem::Event(event) => !matches!(event.kind, EventKind::Mark { .. }),
        _ => false,
    };
    items.filter(is_counted).count()
}

#[test]
fn restarted_server_receives_the_whole_recording() {
    let any_port = ([127, 0, 0, 1], 0).into();
    let (aggregator, hub, server) = serve(any_port, Some("secret"));
    let (address, url) = (server.address(), server.url());
    let mut source = TestProgram::new(HubLimits::default());
    let push_address = Address::parse(&url).expect("a valid address");
    let push = Push::start(push_address, "train.py", Rank::default(), &source.hub).expect("a thread starts");
    source.run(1000);
    let recorded = |source: &TestProgram| source.encoder.state().event() as usize;
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
    let mut source = TestProgram::with_file(HubLimits { history_bytes: 100_000, lag_bytes: u64::MAX }, &path);
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

/// Returns true if the server answers.
fn is_responsive(server: &Server) -> bool {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(server.address()).expect("the server listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("the socket can be configured");
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address());
    stream.write_all(request.as_bytes()).expect("the request fits the socket buffer");
    let mut response = String::new();
    stream.read_to_string(&mut response).is_ok() && response.contains(" 200 ")
}

#[test]
fn server_answers_while_the_aggregator_is_busy() {
    let (aggregator, hub, server) = serve(([127, 0, 0, 1], 0).into(), None);
    let start = |source: &TestProgram| {
        let address = Address::parse(&server.url()).expect("a valid address");
        Push::start(address, "train.py", Rank::default(), &source.hub).expect("a thread starts")
    };
    let (mut leaving, mut joining) = (TestProgram::new(HubLimits::default()), TestProgram::new(HubLimits::default()));
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
    let mut source = TestProgram::new(HubLimits::default());
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
    let mut source = TestProgram::new(HubLimits::default());
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
