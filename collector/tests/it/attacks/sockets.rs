//! Malicious and malformed WebSockets.

use std::io::Write;

use tungstenite::{Message, WebSocket};

use crate::attacks::server::{Protection, Stream, TestServer, read_all};
use crate::attacks::{Attack, check};

const HANDSHAKE: &str = "GET /ws?token={token} HTTP/1.1\r\nHost: {host}\r\n\
    Connection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Opens a WebSocket without a token.
fn open_without_token(server: &TestServer, query: &str) -> WebSocket<Box<dyn Stream>> {
    let url = format!("ws://{}/ws{query}", server.address());
    tungstenite::client(url, server.open()).expect("the handshake succeeds without a token").0
}

/// Returns the close code, and checks that nothing of the recording was sent.
fn close_code(socket: &mut WebSocket<Box<dyn Stream>>) -> u16 {
    loop {
        match socket.read().expect("a close frame arrives") {
            Message::Close(Some(frame)) => return frame.code.into(),
            Message::Binary(_) => panic!("an unauthorized client received the recording"),
            _ => {}
        }
    }
}

fn wrong_tokens(server: &TestServer) {
    for first in ["{\"token\": \"wrong\"}", "{\"token\": 1}", "the-right-token", "[[[[[[[[", ""] {
        let mut socket = open_without_token(server, "");
        socket.send(Message::text(first)).expect("the message is sent");
        assert_eq!(close_code(&mut socket), 4401, "{first}");
    }
    let mut binary = open_without_token(server, "");
    binary.send(Message::binary(&b"{\"token\": \"the-right-token\"}"[..])).expect("the message is sent");
    assert_eq!(close_code(&mut binary), 4401);
    assert_eq!(close_code(&mut open_without_token(server, "?token=wrong")), 4401);
    let impatient = server.impatient();
    assert_eq!(close_code(&mut open_without_token(&impatient, "")), 4401);
    // The right token is accepted.
    let mut socket = open_without_token(server, "");
    socket.send(Message::text("{\"token\": \"the-right-token\"}")).expect("the message is sent");
    assert!(matches!(socket.read(), Ok(Message::Binary(_))));
}

fn many_without_token(server: &TestServer) {
    let open = |server: &TestServer| -> Vec<_> { (0..300).map(|_| open_without_token(server, "")).collect() };
    let mut clients = open(server);
    let mut viewer = server.open_viewer();
    assert!(matches!(viewer.read(), Ok(Message::Binary(_))));
    // The server waits for the tokens of the first sockets, and closes the last ones, which exceed
    // the limit.
    assert_eq!(close_code(&mut clients[299]), 1013);
    let impatient = server.impatient();
    let codes: Vec<u16> = open(&impatient).into_iter().map(|mut socket| close_code(&mut socket)).collect();
    assert!(codes.iter().all(|code| matches!(code, 4401 | 1013)), "{codes:?}");
}

/// Opens a WebSocket, sends these bytes, and checks that the server closes the connection.
#[track_caller]
fn check_closed(server: &TestServer, name: &str, frames: &[u8]) {
    let mut stream = server.open();
    stream.write_all(server.fill_in(HANDSHAKE).as_bytes()).expect("the handshake is sent");
    // The server may close before everything is sent.
    let _ = stream.write_all(frames).and_then(|()| stream.flush());
    let response = read_all(&mut stream);
    assert!(response.starts_with("HTTP/1.1 101 "), "{name}: {response:?}");
}

/// Returns a masked frame with this first byte.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        len @ 0..126 => frame.push(0x80 | len as u8),
        len => {
            frame.push(0x80 | 127);
            frame.extend((len as u64).to_be_bytes());
        }
    }
    // The mask is zero.
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}

fn too_large(server: &TestServer) {
    check_closed(server, "5 KiB of text", &frame(0x81, &[b'a'; 5 << 10]));
    check_closed(server, "1 MiB of bytes", &frame(0x82, &vec![0; 1 << 20]));
    for len in [5 << 10, u64::from(u32::MAX), u64::MAX >> 1, u64::MAX] {
        let head = [&[0x82, 0xff][..], &len.to_be_bytes(), &[0; 4]].concat();
        check_closed(server, &format!("{len} bytes promised"), &head);
    }
}

fn malformed(server: &TestServer) {
    check_closed(server, "not masked", b"\x81\x02hi");
    check_closed(server, "reserved bits", &frame(0xf1, b"hi"));
    check_closed(server, "a compressed frame", &frame(0xc1, b"hi"));
    check_closed(server, "an unknown opcode", &frame(0x83, b"hi"));
    check_closed(server, "an unknown control opcode", &frame(0x8f, b"hi"));
    check_closed(server, "invalid UTF-8", &frame(0x81, b"\xff\xfe"));
    check_closed(server, "a fragmented ping", &frame(0x09, b"hi"));
    check_closed(server, "a ping that is too long", &frame(0x89, &[0; 200]));
    check_closed(server, "a continuation without a start", &frame(0x80, b"hi"));
    check_closed(server, "a message within a message", &[frame(0x01, b"a"), frame(0x81, b"b")].concat());
    check_closed(server, "a close frame with half a code", &frame(0x88, &[3]));
    check_closed(server, "a close frame with an invalid code", &frame(0x88, &[0, 0]));
    check_closed(server, "garbage", &[0xff; 100]);
}

fn endless_message(server: &TestServer) {
    let fragments: Vec<u8> =
        std::iter::once(frame(0x01, b"a")).chain((0..10_000).map(|_| frame(0, b"a"))).flatten().collect();
    check_closed(server, "a message in 10,000 fragments", &fragments);
}

fn unknown_positions(server: &TestServer) {
    let unknown = "0".repeat(32);
    let invalid =
        ["", ":", "x:1", "%00", &unknown, &format!("{unknown}:-1"), &format!("{unknown}:18446744073709551616")];
    for query in invalid
        .map(|position| format!("resume={position}"))
        .iter()
        .map(String::as_str)
        .chain(["history=../../etc/passwd", "notes=2"])
    {
        assert_eq!(close_code(&mut open_without_token(server, &format!("?{query}"))), 1008, "{query}");
    }
    for next in [0, 1, 1 << 52, u64::MAX] {
        let mut socket = open_without_token(server, &format!("?resume={unknown}:{next}"));
        let Ok(Message::Binary(bytes)) = socket.read() else { panic!("nothing received at {next}") };
        assert!(bytes.starts_with(b"\x89VRAM"), "the recording must start over");
    }
}

/// Sends empty frames as fast as possible, with the token and without. Other clients must be served
/// meanwhile.
fn floods(server: &TestServer) {
    let pongs = frame(0x8a, b"").repeat(20_000);
    let fragments = [frame(0x02, b""), frame(0, b"").repeat(20_000)].concat();
    let without_token = HANDSHAKE.replace("?token={token}", "");
    for (handshake, frames) in [(HANDSHAKE, &pongs), (HANDSHAKE, &fragments), (&without_token, &pongs)] {
        let mut stream = server.connect();
        let connection = stream.try_clone().expect("the socket can be cloned");
        stream.write_all(server.fill_in(handshake).as_bytes()).expect("the handshake is sent");
        let frames = frames.clone();
        let sender = std::thread::spawn(move || while stream.write_all(&frames).is_ok() {});
        for _ in 0..20 {
            let health = server.request("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
        }
        // The server has already closed the connection without a token.
        let _ = connection.shutdown(std::net::Shutdown::Both);
        sender.join().expect("the sender does not panic");
    }
}

/// All attacks in this file.
pub(crate) const ATTACKS: &[Attack] = &[
    Attack {
        name: "a WebSocket with no token, a wrong token, or no message at all",
        protection: Protection::Token,
        run: wrong_tokens,
    },
    Attack {
        name: "hundreds of WebSockets that do not send a token",
        protection: Protection::Token,
        run: many_without_token,
    },
    Attack { name: "a frame that is too large, or announces that it is", protection: Protection::None, run: too_large },
    Attack {
        name: "a malformed frame: not masked, reserved bits, an unknown opcode, invalid UTF-8, \
               a fragmented control frame",
        protection: Protection::None,
        run: malformed,
    },
    Attack { name: "a message that never ends", protection: Protection::None, run: endless_message },
    Attack { name: "a resume position that never existed", protection: Protection::None, run: unknown_positions },
    Attack {
        name: "unsolicited pongs and empty fragments, as fast as they can be sent",
        protection: Protection::Token,
        run: floods,
    },
];

#[test]
fn malicious_websockets_do_not_disturb_viewers() {
    check(ATTACKS);
}
