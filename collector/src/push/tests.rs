//! How a recording reaches the hub, whatever becomes of the way there.

use std::sync::{Arc, Mutex};

use vramscope_trace::{Chunk, Decoder, DecodedItem};

use super::transport::Note;
use super::*;
use crate::gather::Aggregator;
use crate::hub::HubLimits;
use crate::hub::testing::Source;
use crate::recorder::Outputs;
use crate::server::{Content, Server, ServerOptions, Token};

/// What a hub has, to which the way breaks after every so many messages.
#[derive(Default)]
struct There {
    bytes: Vec<u8>,
    next: u64,
    missed: u64,
    has_ended: bool,
    connects: usize,
    hellos: Vec<Process>,
}

struct Way {
    there: Arc<Mutex<There>>,
    /// Every connection but the last breaks after so many messages, and what is on the way is lost.
    breaks_after: Vec<usize>,
    left: usize,
    untold: Vec<u64>,
}

impl Transport for Way {
    fn connect(&mut self, process: &Process) -> Result<u64, String> {
        let mut there = self.there.lock().expect("no panic");
        there.connects += 1;
        if there.hellos.last().is_some_and(|before| before.identity != process.identity) {
            // Another process than before.
            there.bytes.clear();
            there.next = 0;
        }
        there.hellos.push(process.clone());
        // Every other time nobody is there.
        if there.connects.is_multiple_of(2) {
            return Err("nobody is there".to_owned());
        }
        self.left = self.breaks_after.pop().unwrap_or(usize::MAX);
        self.untold.clear();
        Ok(there.next)
    }

    fn send(&mut self, note: Note, chunks: &[Arc<Chunk>]) -> Result<(), String> {
        if self.left == 0 {
            return Err("it broke".to_owned());
        }
        self.left -= 1;
        let mut there = self.there.lock().expect("no panic");
        there.has_ended |= note.end;
        there.missed += note.missed;
        chunks.iter().for_each(|chunk| there.bytes.extend_from_slice(&chunk.bytes));
        if let Some(next) = note.next {
            there.next = next;
            self.untold.push(next);
        }
        Ok(())
    }

    fn receive(&mut self, _: Duration) -> Result<Option<u64>, String> {
        // The last word of a connection that breaks is never heard.
        if self.left == 0 { Err("it broke".to_owned()) } else { Ok(self.untold.pop()) }
    }

    fn close(&mut self) {}
}

fn start(way: Way, hub: &Hub) -> Push {
    let address = Address::parse("ws://127.0.0.1:1").expect("an address");
    Push::start_with(way, address, "train.py", hub, Box::new(|_| {})).expect("a thread")
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn breaks_leave_neither_a_gap_nor_a_repetition() {
    let mut source = Source::new(HubLimits::default());
    let there = Arc::new(Mutex::new(There::default()));
    let way = Way { there: Arc::clone(&there), breaks_after: vec![3, 1, 2], left: 0, untold: Vec::new() };
    let push = start(way, &source.hub);
    let deadline = Instant::now() + Duration::from_secs(30);
    while there.lock().expect("no panic").connects < 7 {
        assert!(Instant::now() < deadline, "it is tried again after every break");
        source.run(500);
        std::thread::sleep(Duration::from_millis(30));
    }
    source.hub.end();
    wait_until("all is there", || there.lock().expect("no panic").has_ended);
    drop(push);
    let there = there.lock().expect("no panic");
    let everything: Vec<u8> = source.hub.everything().iter().flat_map(|chunk| chunk.bytes.clone()).collect();
    assert!(there.bytes == everything);
    assert_eq!((there.missed, there.connects), (0, 7));
    assert!(there.hellos.iter().all(|process| process.identity == source.hub.identity().to_string()));
}

#[test]
fn a_program_that_ends_waits_for_two_seconds_at_most() {
    // Nobody listens there; and there somebody listens who never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = format!("ws://{}", silent.local_addr().expect("it is bound"));
    for url in ["ws://127.0.0.1:1", &silent] {
        let mut source = Source::new(HubLimits::default());
        let push = Push::start(Address::parse(url).expect("an address"), "train.py", &source.hub, |_| {});
        let push = push.expect("a thread");
        source.run(1000);
        source.hub.end();
        let began = Instant::now();
        drop(push);
        assert!(began.elapsed() < ENDING_TIME + Duration::from_millis(700), "{url}: {:?}", began.elapsed());
    }
}

/// A hub of several programs, served.
fn serve(listen: std::net::SocketAddr, token: Option<&str>) -> (Aggregator, Hub, Server) {
    let (gather, hub) = (Aggregator::new(|_| {}), Hub::default());
    gather.begin(Outputs { hub: Some(hub.clone()), ..Outputs::default() }).expect("a thread");
    let token = token.map(|token| Token::new(token).expect("a token"));
    let options = ServerOptions { listen: Some(listen), token, ..ServerOptions::default() };
    let content = Content { aggregator: Some(gather.clone()), ..Content::live(hub.clone()) };
    (gather, hub, Server::start(options, content).expect("it serves"))
}

/// How many events of programs are in a recording.
fn events(hub: &Hub) -> usize {
    let mut decoder = Decoder::new();
    hub.everything().iter().for_each(|chunk| decoder.push(&chunk.bytes));
    let items = std::iter::from_fn(|| decoder.next_item().expect("a recording"));
    let is_theirs = |item: &DecodedItem| match item {
        DecodedItem::Event(event) => !matches!(event.kind, vramscope_trace::EventKind::Mark { .. }),
        _ => false,
    };
    items.filter(is_theirs).count()
}

#[test]
fn a_hub_that_is_started_again_is_given_everything() {
    let any = ([127, 0, 0, 1], 0).into();
    let (gather, hub, server) = serve(any, Some("secret"));
    let (address, url) = (server.address(), server.url());
    let mut source = Source::new(HubLimits::default());
    let push = Push::start(Address::parse(&url).expect("an address"), "train.py", &source.hub, |_| {});
    let push = push.expect("a thread");
    source.run(1000);
    let recorded = |source: &Source| source.encoder.state().event() as usize;
    wait_until("the first hub has it", || events(&hub) == recorded(&source));
    gather.stop();
    drop(server);
    source.run(1000);
    let (gather, hub, _server) = serve(address, Some("secret"));
    wait_until("the second hub has all of it", || events(&hub) == recorded(&source));
    source.run(1000);
    source.hub.end();
    drop(push);
    gather.stop();
    assert_eq!(events(&hub), recorded(&source));
}

#[test]
fn a_file_that_is_spoiled_is_left_for_what_is_held() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.vram");
    let mut source = Source::with_file(HubLimits { history_bytes: 100_000, lag_bytes: u64::MAX }, &path);
    for _ in 0..20 {
        source.run(10_000);
        source.cut(true);
    }
    let there = Arc::new(Mutex::new(There::default()));
    // The way breaks in the midst of the file.
    let way = Way { there: Arc::clone(&there), breaks_after: vec![1], left: 0, untold: Vec::new() };
    let push = start(way, &source.hub);
    wait_until("it breaks", || there.lock().expect("no panic").connects == 2);
    std::fs::write(&path, b"something else").expect("it can be written");
    source.hub.end();
    wait_until("all that is held is there", || there.lock().expect("no panic").has_ended);
    drop(push);
    let there = there.lock().expect("no panic");
    let mut decoder = Decoder::new();
    decoder.push(&there.bytes);
    let items = std::iter::from_fn(|| decoder.next_item().expect("a recording"));
    let states = items.filter_map(|item| if let DecodedItem::FullState(state) = item { Some(state.event()) } else { None });
    assert!(states.last().is_some_and(|event| event > 100_000));
    let identities: std::collections::HashSet<_> = there.hellos.iter().map(|process| &process.identity).collect();
    assert_eq!(identities.len(), 2, "what is held is another run");
}

/// Whether the server answers at once.
fn answers(server: &Server) -> bool {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(server.address()).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a time");
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address());
    stream.write_all(request.as_bytes()).expect("it is small");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).is_ok() && answer.contains(" 200 ")
}

#[test]
fn a_hub_that_is_busy_with_some_answers_the_others() {
    let (gather, hub, server) = serve(([127, 0, 0, 1], 0).into(), None);
    let start = |source: &Source| {
        let address = Address::parse(&server.url()).expect("an address");
        Push::start(address, "train.py", &source.hub, |_| {}).expect("a thread")
    };
    let (mut leaving, mut coming) = (Source::new(HubLimits::default()), Source::new(HubLimits::default()));
    leaving.run(100);
    coming.run(100);
    let push = start(&leaving);
    wait_until("the first is there", || events(&hub) > 0);
    let before = events(&hub);
    let mut second = None;
    gather.while_busy(|| {
        second = Some(start(&coming));
        drop(push);
        assert!(answers(&server));
    });
    wait_until("the other is there", || events(&hub) == 2 * before);
}

#[test]
fn a_hub_that_is_broken_says_so() {
    let (tell, told) = channel();
    Aggregator::new(move |what| tell.send(what.to_owned()).expect("the test listens")).panic_in_a_thread();
    assert!(told.try_recv().is_ok_and(|said| said.contains("the hub is broken")));
}

#[test]
fn who_has_not_the_token_does_not_push() {
    let (_gather, hub, server) = serve(([127, 0, 0, 1], 0).into(), Some("secret"));
    let url = server.url().replace("secret", "wrong");
    let (tell, told) = channel();
    let mut source = Source::new(HubLimits::default());
    source.run(100);
    let push = Push::start(Address::parse(&url).expect("an address"), "train.py", &source.hub, move |what| {
        tell.send(what.to_owned()).expect("the test listens");
    });
    let _push = push.expect("a thread");
    let said = told.recv_timeout(Duration::from_secs(10)).expect("it is told");
    assert!(said.contains("is the token right?") && !said.contains("wrong"), "{said}");
    assert_eq!(events(&hub), 0);
}

#[test]
fn the_environment_names_the_hub() {
    let check = |url: &str| push_from(Some(url.into())).map(|address| address.map(|address| address.to_string()));
    assert_eq!(push_from(None), Ok(None));
    assert_eq!(check(""), Ok(None));
    assert_eq!(check("ws://127.0.0.1:7791"), Ok(Some("http://127.0.0.1:7791/".to_owned())));
    let wrong = check("ftp://127.0.0.1/?token=secret").expect_err("it is none");
    assert!(wrong.starts_with("VRAMSCOPE_PUSH: not an address") && !wrong.contains("secret"), "{wrong}");
}
