//! Following what is served, however the connection breaks.

use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tungstenite::protocol::CloseFrame;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message, accept_hdr};

use super::*;
use crate::hub::Hub;
use crate::server::{Content, Server, ServerOptions, TlsFiles};

/// What a server does on a connection, one after the other.
#[derive(Clone, Debug)]
enum Does {
    /// Answers the request with an error.
    Refuse(u16),
    Says(&'static str),
    Sends(&'static [u8]),
    Closes(u16, &'static str),
    /// Is gone, as a network is.
    Breaks,
}
use Does::{Breaks, Closes, Refuse, Says, Sends};

const A: &str = "0123456789abcdef0123456789abcdef";
const B: &str = "ffffffffffffffffffffffffffffffff";
const BEGIN: Does = Says(r#"{"recording": "0123456789abcdef0123456789abcdef", "resumed": false}"#);
const RESUME: Does = Says(r#"{"recording": "0123456789abcdef0123456789abcdef", "resumed": true}"#);
const OTHER: Does = Says(r#"{"recording": "ffffffffffffffffffffffffffffffff", "resumed": false}"#);

/// A server that does so, on one connection after the other; what it was asked each time: the target and the `Authorization`.
fn serve(connections: Vec<Vec<Does>>) -> (String, Receiver<(String, Option<String>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (send, asked) = channel();
    std::thread::spawn(move || {
        for does in connections {
            let (stream, _) = listener.accept().expect("somebody comes");
            let refusal = if let Some(Refuse(status)) = does.first() { Some(*status) } else { None };
            #[expect(clippy::result_large_err, reason = "tungstenite calls it so")]
            let look = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
                let token =
                    request.headers().get("authorization").map(|value| value.to_str().expect("text").to_owned());
                send.send((request.uri().to_string(), token)).expect("the test listens");
                let Some(status) = refusal else { return Ok(response) };
                let mut refused = ErrorResponse::new(None);
                *refused.status_mut() = status.try_into().expect("a status");
                Err(refused)
            };
            let Ok(mut socket) = accept_hdr(stream, look) else { continue };
            for step in does {
                match step {
                    Refuse(_) => unreachable!("it was refused"),
                    Says(text) => socket.send(Message::text(text)).expect("somebody listens"),
                    Sends(bytes) => socket.send(Message::binary(bytes)).expect("somebody listens"),
                    Closes(code, reason) => {
                        let (code, reason) = (CloseCode::from(code), reason.into());
                        socket.close(Some(CloseFrame { code, reason })).expect("somebody listens");
                        while socket.read().is_ok() {}
                    }
                    Breaks => {}
                }
            }
        }
    });
    (format!("http://{address}/prefix/?token=secret"), asked)
}

fn options(url: &str) -> FollowOptions {
    let address = Address::parse(url).expect("an address");
    FollowOptions { address, from: FollowFrom::All, ca: None, patience: Duration::from_secs(5) }
}

/// Everything that is told until it is over, the reasons of breaks left out.
fn told(follower: &mut Follower) -> Vec<Followed> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut all = Vec::new();
    loop {
        assert!(Instant::now() < deadline, "it does not end: {all:?}");
        match follower.next(Duration::from_millis(20)) {
            FollowEvent::Nothing => {}
            FollowEvent::Disconnected(_) => all.push(FollowEvent::Disconnected(String::new())),
            over @ (FollowEvent::Ended | FollowEvent::GaveUp(_)) => {
                all.push(over);
                return all;
            }
            other => all.push(other),
        }
    }
}

fn chunks(bytes: &'static [u8]) -> Followed {
    FollowEvent::Chunks(Bytes::from_static(bytes))
}

fn broken() -> Followed {
    FollowEvent::Disconnected(String::new())
}

/// Checks what is told, and what was asked from the second connection on.
#[track_caller]
fn check(connections: Vec<Vec<Does>>, expected: &[Followed], asked_again: &[&str]) {
    let (url, asked) = serve(connections);
    let mut follower = Follower::connect(options(&url)).expect("it is served");
    assert_eq!(told(&mut follower), expected);
    assert_eq!(follower.next(Duration::ZERO), FollowEvent::Nothing);
    let asked: Vec<_> = asked.try_iter().collect();
    assert_eq!(asked[0].0, "/prefix/ws?notes=1&history=all");
    assert!(asked.iter().all(|(_, token)| token.as_deref() == Some("Bearer secret")), "{asked:?}");
    let again: Vec<_> = asked[1..].iter().map(|(target, _)| target.as_str()).collect();
    assert_eq!(again, asked_again);
}

#[test]
fn it_goes_on_where_it_was() {
    check(
        vec![
            vec![BEGIN, Says(r#"{"next": 3}"#), Sends(b"one"), Says(r#"{"next": 9}"#), Breaks],
            vec![RESUME, Says(r#"{"next": 5, "news": {}}"#), Sends(b"two"), Closes(1001, "the server stops")],
            vec![RESUME, Says("not even a note"), Closes(1000, "the recording has ended")],
        ],
        &[chunks(b"one"), broken(), FollowEvent::Resumed, chunks(b"two"), broken(), FollowEvent::Resumed, FollowEvent::Ended],
        &[&format!("/prefix/ws?notes=1&resume={A}:3"), &format!("/prefix/ws?notes=1&resume={A}:5")],
    );
}

#[test]
fn what_is_missing_is_told() {
    check(
        vec![
            vec![BEGIN, Says(r#"{"next": 3}"#), Sends(b"one"), Breaks],
            vec![BEGIN, Says(r#"{"next": 50, "missed": 7}"#), Sends(b"state"), Closes(1000, "")],
        ],
        &[chunks(b"one"), broken(), FollowEvent::ResumedWithGap, FollowEvent::Missed(7), chunks(b"state"), FollowEvent::Ended],
        &[&format!("/prefix/ws?notes=1&resume={A}:3")],
    );
}

#[test]
fn a_program_that_was_started_again_is_another() {
    check(
        vec![
            vec![BEGIN, Says(r#"{"next": 3}"#), Sends(b"one"), Breaks],
            vec![OTHER, Says(r#"{"next": 2}"#), Sends(b"new"), Breaks],
            vec![OTHER, Closes(1000, "")],
        ],
        &[chunks(b"one"), broken(), FollowEvent::NewRecording, chunks(b"new"), broken(), FollowEvent::ResumedWithGap, FollowEvent::Ended],
        &[&format!("/prefix/ws?notes=1&resume={A}:3"), &format!("/prefix/ws?notes=1&resume={B}:2")],
    );
}

#[test]
fn who_has_nothing_yet_begins_anew() {
    check(
        vec![
            vec![BEGIN, Breaks],
            vec![BEGIN, Says(r#"{"next": 0}"#), Sends(b"definitions"), Breaks],
            vec![BEGIN, Closes(1000, "")],
        ],
        &[broken(), chunks(b"definitions"), broken(), FollowEvent::ResumedWithGap, FollowEvent::Ended],
        &["/prefix/ws?notes=1&history=all"; 2],
    );
}

#[test]
fn a_server_that_says_nothing_of_what_it_serves_is_not_tried_again() {
    let (url, _asked) = serve(vec![vec![Sends(b"one"), Breaks]]);
    let told = told(&mut Follower::connect(options(&url)).expect("it is served"));
    assert_eq!(told[0], chunks(b"one"));
    assert!(matches!(told.as_slice(), [_, FollowEvent::GaveUp(_)]), "{told:?}");
}

#[test]
fn what_will_not_change_is_not_tried_again() {
    let check = |connections: Vec<Vec<Does>>, expected: &str| {
        let (url, _asked) = serve(connections);
        let why = match Follower::connect(options(&url)) {
            Err(error) => error.to_string(),
            Ok(mut follower) => match told(&mut follower).pop() {
                Some(FollowEvent::GaveUp(why)) => why,
                other => panic!("{other:?}"),
            },
        };
        assert!(why.contains(expected), "{why}");
        assert!(!why.contains("secret"), "{why}");
    };
    check(vec![vec![Refuse(404)]], "no live recording is served there");
    check(vec![vec![Refuse(401)]], "is the token right?");
    check(vec![vec![Closes(4401, "the token is wrong")]], "the token is wrong");
    check(vec![vec![Closes(1013, "there are too many clients")]], "too many clients");
    check(vec![vec![BEGIN, Breaks], vec![Refuse(403)]], "is the token right?");
}

#[test]
fn patience_has_an_end() {
    let (url, _asked) = serve(vec![vec![BEGIN, Says(r#"{"next": 3}"#), Sends(b"one"), Breaks]]);
    let options = FollowOptions { patience: Duration::from_millis(700), ..options(&url) };
    let began = Instant::now();
    let told = told(&mut Follower::connect(options).expect("it is served"));
    assert!(matches!(told.as_slice(), [_, FollowEvent::Disconnected(_), FollowEvent::GaveUp(_)]), "{told:?}");
    assert!((Duration::from_millis(700)..Duration::from_secs(5)).contains(&began.elapsed()));
}

#[test]
fn a_server_that_greets_and_is_gone_is_not_tried_for_ever() {
    let mut connections = vec![vec![BEGIN, Says(r#"{"next": 3}"#), Sends(b"one"), Breaks]];
    connections.extend((0..50).map(|_| vec![RESUME, Closes(1011, "broken")]));
    let (url, asked) = serve(connections);
    let options = FollowOptions { patience: Duration::from_secs(1), ..options(&url) };
    let told = told(&mut Follower::connect(options).expect("it is served"));
    assert!(matches!(told.as_slice(), [_, .., FollowEvent::GaveUp(_)]), "{told:?}");
    let count = |what: &Followed| told.iter().filter(|told| *told == what).count();
    assert_eq!(count(&broken()), count(&FollowEvent::Resumed), "{told:?}");
    // After 0.2 s, and 0.4 s, and 0.8 s.
    assert_eq!(asked.try_iter().count(), 4, "{told:?}");
}

#[test]
fn tls_is_believed_where_its_maker_is() {
    let names = || vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let check = |params: rcgen::CertificateParams, expected: Result<(), &str>| {
        let folder = tempfile::tempdir().expect("a folder");
        let signing_key = rcgen::KeyPair::generate().expect("a key");
        let made = params.self_signed(&signing_key).expect("a certificate");
        let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        std::fs::write(&certificate, made.pem()).expect("room");
        std::fs::write(&key, signing_key.serialize_pem()).expect("room");
        let hub = Hub::default();
        let tls = Some(TlsFiles { certificate: certificate.clone(), key });
        let listen = Some(([127, 0, 0, 1], 0).into());
        let server = ServerOptions { listen, tls, ..ServerOptions::default() };
        let server = Server::start(server, Content::live(hub.clone())).expect("it serves");
        let mut encoder = vramscope_trace::Encoder::new(&vramscope_trace::RecordingInfo::default());
        let head: Vec<_> = encoder.take_output().into_iter().map(std::sync::Arc::new).collect();
        hub.publish(&head);
        hub.end();
        assert!(server.url().starts_with("https://"), "{}", server.url());
        let error = Follower::connect(options(&server.url())).expect_err("nobody knows who made it");
        assert!(error.to_string().contains("its certificate is not believed"), "{error}");
        let options = FollowOptions { ca: Some(certificate), ..options(&server.url()) };
        match (Follower::connect(options), expected) {
            (Ok(mut follower), Ok(())) => {
                let expected = [FollowEvent::Chunks(Bytes::copy_from_slice(&head[0].bytes)), FollowEvent::Ended];
                assert_eq!(told(&mut follower), expected);
            }
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (followed, expected) => panic!("{followed:?} is not {expected:?}"),
        }
    };
    let made = |names: Vec<String>, is_ca: bool| {
        let mut params = rcgen::CertificateParams::new(names).expect("names");
        let vouches = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.is_ca = if is_ca { vouches } else { rcgen::IsCa::NoCa };
        params
    };
    check(made(names(), false), Ok(()));
    // As `openssl req -x509` makes them.
    check(made(names(), true), Ok(()));
    check(made(vec!["gpu1.example.org".to_owned()], true), Err("its certificate is not believed"));
    let mut expired = made(names(), true);
    expired.not_after = rcgen::date_time_ymd(2020, 1, 1);
    check(expired, Err("its certificate is not believed: certificate expired"));
}
