//! What can be said at `/push` that should not be, and that it concerns nobody else.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tungstenite::client::IntoClientRequest;
use tungstenite::{Message, WebSocket};
use vramscope_collector::{Content, Aggregator, Hub, Outputs, Server, ServerOptions, Token};
use vramscope_trace::{DeviceId, Encoder, Event, EventKind, RecordingInfo, Recording, Sink, SiteId, AnnotationStage, StringId};

const IDENTITY: &str = "0123456789abcdef0123456789abcdef";

/// A hub with a token, and what it said of those who came.
struct House {
    gather: Aggregator,
    hub: Hub,
    server: Server,
    told: Arc<Mutex<Vec<String>>>,
}

fn house() -> House {
    let told = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&told);
    let gather = Aggregator::new(move |sentence| theirs.lock().expect("no panic").push(sentence.to_owned()));
    let hub = Hub::default();
    gather.begin(Outputs { hub: Some(hub.clone()), ..Outputs::default() }).expect("a thread");
    let options = ServerOptions {
        listen: Some(([127, 0, 0, 1], 0).into()),
        token: Some(Token::new("secret").expect("a token")),
        ..ServerOptions::default()
    };
    let content = Content { aggregator: Some(gather.clone()), ..Content::live(hub.clone()) };
    let server = Server::start(options, content).expect("it serves");
    House { gather, hub, server, told }
}

impl House {
    fn connect(&self) -> WebSocket<TcpStream> {
        let address = self.server.address();
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time");
        let mut request = format!("ws://{address}/push").into_client_request().expect("an address");
        request.headers_mut().insert("authorization", "Bearer secret".parse().expect("a header"));
        tungstenite::client(request, stream).expect("it is let in").0
    }

    fn told(&self) -> Vec<String> {
        self.told.lock().expect("no panic").clone()
    }

    fn recording(&self) -> Recording {
        let mut recording = Recording::new();
        self.hub.everything().iter().for_each(|chunk| recording.push(&chunk.bytes).expect("a recording"));
        recording
    }
}

fn hello(identity: &str) -> Message {
    Message::text(format!(r#"{{"process": "{identity}", "program": "train.py", "pid": 7, "rank": 1}}"#))
}

/// A recording of so many marks.
fn marks(count: u64) -> Vec<u8> {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let kind = EventKind::Mark { stage: AnnotationStage::Instant, name: StringId(0), address: 0, site: SiteId(0) };
    (0..count).for_each(|time_ns| encoder.event(&Event { device: DeviceId(0), time_ns, kind }));
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

/// The next text that the hub says; or why it closes.
fn answer(socket: &mut WebSocket<TcpStream>) -> Result<String, (u16, String)> {
    loop {
        match socket.read() {
            Ok(Message::Text(text)) => return Ok(text.as_str().to_owned()),
            Ok(Message::Close(Some(frame))) => return Err((frame.code.into(), frame.reason.as_str().to_owned())),
            Ok(_) => {}
            Err(error) => return Err((0, error.to_string())),
        }
    }
}

#[test]
fn what_should_not_be_said_ends_the_one_who_says_it() {
    let house = house();
    let mut good = house.connect();
    good.send(hello(IDENTITY)).expect("it listens");
    assert_eq!(answer(&mut good), Ok(r#"{"resume":0}"#.to_owned()));
    let mut number = 0;
    let mut check = |said: &[Message], expected: (u16, &str)| {
        number += 1;
        let mut bad = house.connect();
        let mut said = said.to_vec();
        if let Some(Message::Text(text)) = said.first_mut()
            && text.as_str() == "hello"
        {
            said[0] = hello(&format!("{number:032x}"));
        }
        // It may close in the middle of what is said.
        said.into_iter().for_each(|message| drop(bad.send(message)));
        let closed = std::iter::repeat_with(|| answer(&mut bad)).find_map(Result::err).expect("it ends");
        assert_eq!(closed.0, expected.0, "{closed:?}");
        assert!(closed.1.contains(expected.1), "{closed:?}");
    };
    let begin = Message::text("hello");
    let next = Message::text(r#"{"next": 1}"#);
    const WRONG: u16 = 1008;
    check(&[Message::binary(marks(1))], (WRONG, "the first message says which process this is"));
    check(&[Message::text("")], (WRONG, "what it says of itself"));
    check(&[Message::text("[[[[")], (WRONG, "what it says of itself"));
    check(&[Message::text("{}")], (WRONG, "`process` is the recording's identity"));
    check(&[hello("../../etc/passwd")], (WRONG, "`process` is the recording's identity"));
    check(&[Message::text("x".repeat(5000))], (WRONG, "at most 4096 bytes"));
    check(&[begin.clone(), Message::binary(marks(1))], (WRONG, "a note with `next`"));
    check(&[begin.clone(), Message::text("next")], (WRONG, "a text message is a note"));
    check(&[begin.clone(), Message::text(r#"{"next": -1}"#)], (WRONG, "a text message is a note"));
    check(&[begin.clone(), next.clone(), Message::binary(vec![0; 100])], (WRONG, "not a vramscope recording"));
    check(&[begin.clone(), next.clone(), Message::binary(marks(9)[..60].to_vec())], (WRONG, "the recording ends"));
    check(
        &[begin.clone(), next.clone(), Message::binary(marks(1)), next.clone(), Message::binary(marks(1))],
        (WRONG, "a chunk that begins with event 0"),
    );
    // More than a state takes is not even read.
    check(&[begin.clone(), next, Message::binary(vec![0; 66 << 20])], (0, ""));
    check(&[begin, Message::text(r#"{"end": true, "more": "<script>"}"#)], (1000, "that was all"));

    good.send(Message::text(r#"{"next": 2}"#)).expect("it listens");
    good.send(Message::binary(marks(3))).expect("it listens");
    assert_eq!(answer(&mut good), Ok(r#"{"taken":2}"#.to_owned()));
    good.send(Message::text(r#"{"end": true}"#)).expect("it listens");
    assert_eq!(answer(&mut good), Err((1000, "that was all".to_owned())));
    assert!(house.gather.stop().is_some() && house.gather.stop().is_none());
    let recording = house.recording();
    let device = recording.info().devices.iter().find(|device| device.name == "rank 1 · device 0");
    let device = recording.end_state().device(DeviceId(device.expect("it is known").device)).expect("it did something");
    assert_eq!(device.events(), 4, "three marks, and that of its end");
    let refused = house.told().iter().filter(|said| said.contains("is not listened to any more: ")).count();
    assert_eq!(refused, 3, "{:?}", house.told());
}

#[test]
fn the_metrics_are_of_those_who_are_here() {
    let house = house();
    let mut program = house.connect();
    program.send(hello(IDENTITY)).expect("it listens");
    answer(&mut program).expect("where to begin");
    program.send(Message::text(r#"{"next": 2}"#)).expect("it listens");
    program.send(Message::binary(marks(3))).expect("it listens");
    let metrics = || {
        let mut stream = TcpStream::connect(house.server.address()).expect("it listens");
        let request = "GET /metrics?token=secret HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("it is small");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    };
    let wait_until = |is_there: bool| {
        let began = Instant::now();
        while metrics().contains("vramscope_segments{device=\"1\",name=\"rank 1 · device 0\"} 0") != is_there {
            assert!(began.elapsed() < Duration::from_secs(20), "{}", metrics());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_until(true);
    drop(program);
    wait_until(false);
    assert!(metrics().contains("vramscope_events_total "), "the recording goes on");
}

#[test]
fn who_says_nothing_is_let_go() {
    let house = house();
    let began = Instant::now();
    let mut silent = house.connect();
    assert!(answer(&mut silent).is_err());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(house.told(), [""; 0]);
}

#[test]
fn a_process_that_comes_twice_is_listened_to_where_it_came_last() {
    let house = house();
    let (mut first, mut second) = (house.connect(), house.connect());
    let note = || Message::text(r#"{"next": 5}"#);
    first.send(hello(IDENTITY)).expect("it listens");
    answer(&mut first).expect("where to begin");
    first.send(note()).expect("it listens");
    first.send(Message::binary(marks(3))).expect("it listens");
    assert_eq!(answer(&mut first), Ok(r#"{"taken":5}"#.to_owned()));
    second.send(hello(IDENTITY)).expect("it listens");
    assert_eq!(answer(&mut second), Ok(r#"{"resume":5}"#.to_owned()));
    first.send(note()).expect("it listens");
    first.send(Message::binary(marks(3))).expect("it listens");
    let (code, reason) = answer(&mut first).expect_err("it is not the newest");
    assert!(code == 1008 && reason.contains("another connection"), "{code} {reason}");
    second.send(Message::text(r#"{"end": true}"#)).expect("it listens");
    assert_eq!(answer(&mut second).expect_err("it has ended").0, 1000);
}
