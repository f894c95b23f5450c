//! Following recordings over connections that break.

use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tungstenite::protocol::CloseFrame;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message, accept_hdr};

use super::*;
use crate::hub::Hub;
use crate::server::{ServedContent, Server, ServerOptions, TlsFiles};

/// Maximum time that a test waits for an event, which a slow machine must not exceed.
const TIMEOUT: Duration = Duration::from_secs(120);

/// One action of a scripted server on a connection.
#[derive(Clone, Debug)]
enum Action {
    /// Refuses the handshake with this status.
    Refuse(u16),
    SendText(&'static str),
    SendBinary(&'static [u8]),
    Close(u16, &'static str),
    /// Drops the connection without a close frame.
    Break,
}
use Action::{Break, Close, Refuse, SendBinary, SendText};

const A: &str = "0123456789abcdef0123456789abcdef";
const B: &str = "ffffffffffffffffffffffffffffffff";
const NEW_A: Action = SendText(r#"{"recording": "0123456789abcdef0123456789abcdef", "resumed": false}"#);
const RESUMED_A: Action = SendText(r#"{"recording": "0123456789abcdef0123456789abcdef", "resumed": true}"#);
const NEW_B: Action = SendText(r#"{"recording": "ffffffffffffffffffffffffffffffff", "resumed": false}"#);

/// Starts a server that runs one script for each connection in turn. The receiver gets the target
/// and the `Authorization` header of each request.
fn serve(connections: Vec<Vec<Action>>) -> (String, Receiver<(String, Option<String>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("a bound socket has an address");
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for actions in connections {
            let (stream, _) = listener.accept().expect("the follower connects");
            let refusal = if let Some(Refuse(status)) = actions.first() { Some(*status) } else { None };
            #[expect(clippy::result_large_err, reason = "tungstenite defines the callback")]
            let on_request = |request: &Request, response: Response| -> Result<Response, ErrorResponse> {
                let token = request
                    .headers()
                    .get("authorization")
                    .map(|value| value.to_str().expect("the header is text").to_owned());
                sender.send((request.uri().to_string(), token)).expect("the test receives");
                let Some(status) = refusal else { return Ok(response) };
                let mut refused = ErrorResponse::new(None);
                *refused.status_mut() = status.try_into().expect("a valid status");
                Err(refused)
            };
            let Ok(mut socket) = accept_hdr(stream, on_request) else { continue };
            for action in actions {
                match action {
                    Refuse(_) => unreachable!("the handshake was refused"),
                    SendText(text) => socket.send(Message::text(text)).expect("the follower is connected"),
                    SendBinary(bytes) => socket.send(Message::binary(bytes)).expect("the follower is connected"),
                    Close(code, reason) => {
                        let (code, reason) = (CloseCode::from(code), reason.into());
                        socket.close(Some(CloseFrame { code, reason })).expect("the follower is connected");
                        while socket.read().is_ok() {}
                    }
                    Break => {}
                }
            }
        }
    });
    (format!("http://{address}/prefix/?token=secret"), requests)
}

fn options(url: &str) -> FollowOptions {
    let address = Address::parse(url).expect("a valid address");
    FollowOptions { address, from: FollowFrom::All, ca: None, retry_time: TIMEOUT }
}

/// Returns all events until the end, without the reasons of `Disconnected`.
fn all_events(follower: &mut Follower) -> Vec<FollowEvent> {
    let deadline = Instant::now() + TIMEOUT;
    let mut all = Vec::new();
    loop {
        assert!(Instant::now() < deadline, "the follower does not finish: {all:?}");
        match follower.next(Duration::from_millis(20)) {
            FollowEvent::Nothing => {}
            FollowEvent::Disconnected(_) => all.push(disconnected()),
            last @ (FollowEvent::Ended | FollowEvent::GaveUp(_)) => {
                all.push(last);
                return all;
            }
            other => all.push(other),
        }
    }
}

fn chunks(bytes: &'static [u8]) -> FollowEvent {
    FollowEvent::Chunks(Bytes::from_static(bytes))
}

fn disconnected() -> FollowEvent {
    FollowEvent::Disconnected(SocketError::temporary("").into())
}

/// Follows a scripted server to the end. Asserts the reported events, and the targets of all
/// requests after the first.
#[track_caller]
fn check(connections: Vec<Vec<Action>>, expected: &[FollowEvent], later_targets: &[&str]) {
    let (url, requests) = serve(connections);
    let mut follower = Follower::connect(options(&url)).expect("the server accepts");
    assert_eq!(all_events(&mut follower), expected);
    assert_eq!(follower.next(Duration::ZERO), FollowEvent::Nothing);
    let requests: Vec<_> = requests.try_iter().collect();
    assert_eq!(requests[0].0, "/prefix/ws?notes=1&history=all");
    assert!(requests.iter().all(|(_, token)| token.as_deref() == Some("Bearer secret")), "{requests:?}");
    let targets: Vec<_> = requests[1..].iter().map(|(target, _)| target.as_str()).collect();
    assert_eq!(targets, later_targets);
}

#[test]
fn reconnect_resumes_at_the_position() {
    check(
        vec![
            vec![NEW_A, SendText(r#"{"next": 3}"#), SendBinary(b"one"), SendText(r#"{"next": 9}"#), Break],
            vec![
                RESUMED_A,
                SendText(r#"{"next": 5, "news": {}}"#),
                SendBinary(b"two"),
                Close(1001, "the server is stopping"),
            ],
            vec![RESUMED_A, SendText("not even a note"), Close(1000, "the recording has ended")],
        ],
        &[
            chunks(b"one"),
            disconnected(),
            FollowEvent::Resumed,
            chunks(b"two"),
            disconnected(),
            FollowEvent::Resumed,
            FollowEvent::Ended,
        ],
        &[&format!("/prefix/ws?notes=1&resume={A}:3"), &format!("/prefix/ws?notes=1&resume={A}:5")],
    );
}

#[test]
fn missed_events_are_reported() {
    check(
        vec![
            vec![NEW_A, SendText(r#"{"next": 3}"#), SendBinary(b"one"), Break],
            vec![NEW_A, SendText(r#"{"next": 50, "missed": 7}"#), SendBinary(b"state"), Close(1000, "")],
        ],
        &[
            chunks(b"one"),
            disconnected(),
            FollowEvent::ResumedWithGap,
            FollowEvent::Missed(7),
            chunks(b"state"),
            FollowEvent::Ended,
        ],
        &[&format!("/prefix/ws?notes=1&resume={A}:3")],
    );
}

#[test]
fn restarted_program_is_a_new_recording() {
    check(
        vec![
            vec![NEW_A, SendText(r#"{"next": 3}"#), SendBinary(b"one"), Break],
            vec![NEW_B, SendText(r#"{"next": 2}"#), SendBinary(b"new"), Break],
            vec![NEW_B, Close(1000, "")],
        ],
        &[
            chunks(b"one"),
            disconnected(),
            FollowEvent::NewRecording,
            chunks(b"new"),
            disconnected(),
            FollowEvent::ResumedWithGap,
            FollowEvent::Ended,
        ],
        &[&format!("/prefix/ws?notes=1&resume={A}:3"), &format!("/prefix/ws?notes=1&resume={B}:2")],
    );
}

#[test]
fn follower_without_chunks_starts_over() {
    check(
        vec![
            vec![NEW_A, Break],
            vec![NEW_A, SendText(r#"{"next": 0}"#), SendBinary(b"definitions"), Break],
            vec![NEW_A, Close(1000, "")],
        ],
        &[disconnected(), chunks(b"definitions"), disconnected(), FollowEvent::ResumedWithGap, FollowEvent::Ended],
        &["/prefix/ws?notes=1&history=all"; 2],
    );
}

#[test]
fn recording_without_identity_is_not_resumed() {
    let (url, _requests) = serve(vec![vec![SendBinary(b"one"), Break]]);
    let events = all_events(&mut Follower::connect(options(&url)).expect("the server accepts"));
    assert_eq!(events[0], chunks(b"one"));
    assert!(matches!(events.as_slice(), [_, FollowEvent::GaveUp(_)]), "{events:?}");
}

#[test]
fn permanent_errors_are_not_retried() {
    let check = |connections: Vec<Vec<Action>>, expected: &str| {
        let (url, _requests) = serve(connections);
        let reason = match Follower::connect(options(&url)) {
            Err(error) => error.to_string(),
            Ok(mut follower) => match all_events(&mut follower).pop() {
                Some(FollowEvent::GaveUp(reason)) => reason.to_string(),
                other => panic!("{other:?}"),
            },
        };
        assert!(reason.contains(expected), "{reason}");
        assert!(!reason.contains("secret"), "{reason}");
    };
    check(vec![vec![Refuse(404)]], "serves no live recording");
    check(vec![vec![Refuse(401)]], "check the token");
    check(vec![vec![Close(4401, "the token is wrong")]], "the token is wrong");
    check(vec![vec![Close(1013, "there are too many clients")]], "too many clients");
    check(vec![vec![NEW_A, Break], vec![Refuse(403)]], "check the token");
}

#[test]
fn follower_gives_up_after_the_retry_time() {
    let (url, _requests) = serve(vec![vec![NEW_A, SendText(r#"{"next": 3}"#), SendBinary(b"one"), Break]]);
    let options = FollowOptions { retry_time: Duration::from_millis(700), ..options(&url) };
    let start = Instant::now();
    let events = all_events(&mut Follower::connect(options).expect("the server accepts"));
    let [_, FollowEvent::Disconnected(_), FollowEvent::GaveUp(error)] = events.as_slice() else { panic!("{events:?}") };
    let (message, kind) = (error.to_string(), error.kind());
    assert!(message.starts_with("could not reconnect within 0 s (Connection refused"), "{message}");
    assert!(message.ends_with(": is the program running?)"), "{message}");
    assert_eq!(kind, FollowErrorKind::ConnectionRefused);
    // A busy machine only makes it give up later.
    assert!(start.elapsed() >= Duration::from_millis(700), "{:?}", start.elapsed());
}

#[test]
fn refused_connection_has_the_systems_error_as_source() {
    // Nothing listens on port 1.
    let error = Follower::connect(options("http://127.0.0.1:1/")).expect_err("the connection is refused");
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    let source = source.expect("the source is the error of the operating system");
    assert_eq!(source.kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(error.kind(), FollowErrorKind::ConnectionRefused);
    assert_eq!(error.to_string(), format!("{source}: is the program running?"));
}

#[test]
fn refused_handshake_has_the_response_as_source() {
    let (url, _requests) = serve(vec![vec![Refuse(401)]]);
    let error = Follower::connect(options(&url)).expect_err("the handshake is refused");
    let source = error.source().and_then(|source| source.downcast_ref::<tungstenite::Error>());
    assert!(matches!(source, Some(tungstenite::Error::Http(response)) if response.status() == 401), "{source:?}");
    assert_eq!(error.kind(), FollowErrorKind::Other);
}

#[test]
fn connections_without_chunks_do_not_extend_the_retry_time() {
    let mut connections = vec![vec![NEW_A, SendText(r#"{"next": 3}"#), SendBinary(b"one"), Break]];
    connections.extend((0..50).map(|_| vec![RESUMED_A, Close(1011, "broken")]));
    let (url, requests) = serve(connections);
    let options = FollowOptions { retry_time: Duration::from_secs(1), ..options(&url) };
    let events = all_events(&mut Follower::connect(options).expect("the server accepts"));
    assert!(matches!(events.as_slice(), [_, .., FollowEvent::GaveUp(_)]), "{events:?}");
    let count = |kind: &FollowEvent| events.iter().filter(|event| *event == kind).count();
    assert_eq!(count(&disconnected()), count(&FollowEvent::Resumed), "{events:?}");
    // The first connection, and attempts 0.2 s, 0.6 s and 1.4 s later. A busy machine delays an
    // attempt, after which there may be fewer.
    assert!((2..=4).contains(&requests.try_iter().count()), "{events:?}");
}

#[test]
fn tls_certificates_are_verified_against_the_given_ca() {
    let names = || vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let check = |params: rcgen::CertificateParams, expected: Result<(), &str>| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let signing_key = rcgen::KeyPair::generate().expect("a key can be generated");
        let signed = params.self_signed(&signing_key).expect("a certificate can be made");
        let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        std::fs::write(&certificate, signed.pem()).expect("the folder is writable");
        std::fs::write(&key, signing_key.serialize_pem()).expect("the folder is writable");
        let hub = Hub::default();
        let tls = Some(TlsFiles { certificate: certificate.clone(), key });
        let listen = Some(([127, 0, 0, 1], 0).into());
        let server = ServerOptions { listen, tls, ..ServerOptions::default() };
        let server = Server::start(server, ServedContent::live(hub.clone())).expect("the server starts");
        let mut encoder = vramscope_trace::Encoder::new(&vramscope_trace::RecordingInfo::default());
        let head: Vec<_> = encoder.take_output().into_iter().map(std::sync::Arc::new).collect();
        hub.publish(&head);
        hub.end();
        assert!(server.url().starts_with("https://"), "{}", server.url());
        let error = Follower::connect(options(&server.url())).expect_err("the certificate is self-signed");
        assert!(error.to_string().contains("certificate is not trusted"), "{error}");
        assert!(error.source().is_some_and(|source| source.is::<rustls::Error>()), "{error:?}");
        let is_unknown_issuer = error.to_string().contains("UnknownIssuer");
        assert_eq!(error.kind() == FollowErrorKind::UnknownIssuer, is_unknown_issuer, "{error:?}");
        let options = FollowOptions { ca: Some(certificate), ..options(&server.url()) };
        match (Follower::connect(options), expected) {
            (Ok(mut follower), Ok(())) => {
                let expected = [FollowEvent::Chunks(Bytes::copy_from_slice(&head[0].bytes)), FollowEvent::Ended];
                assert_eq!(all_events(&mut follower), expected);
            }
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (followed, expected) => panic!("got {followed:?}, expected {expected:?}"),
        }
    };
    let certificate_params = |names: Vec<String>, is_ca: bool| {
        let mut params = rcgen::CertificateParams::new(names).expect("valid names");
        let ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.is_ca = if is_ca { ca } else { rcgen::IsCa::NoCa };
        params
    };
    check(certificate_params(names(), false), Ok(()));
    // `openssl req -x509` makes self-signed certificates like this.
    check(certificate_params(names(), true), Ok(()));
    check(certificate_params(vec!["gpu1.example.org".to_owned()], true), Err("certificate is not trusted"));
    let mut expired = certificate_params(names(), true);
    expired.not_after = rcgen::date_time_ymd(2020, 1, 1);
    check(expired, Err("certificate is not trusted: certificate expired"));
}
