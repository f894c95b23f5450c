//! WebSockets that say what they should not.

use std::io::{Read, Write};
use std::time::Instant;

use tungstenite::{Message, WebSocket};

use crate::house::{Door, House, PATIENCE, Stream};
use crate::{Attack, check};

const OPENING: &str = "GET /ws?token={token} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// A socket without a token.
fn stranger(house: &House, query: &str) -> WebSocket<Box<dyn Stream>> {
    let url = format!("ws://{}/ws{query}", house.address());
    tungstenite::client(url, house.open()).expect("it is told in the socket what it lacks").0
}

/// The code with which it is closed, before anything of the recording was sent.
fn close_code(socket: &mut WebSocket<Box<dyn Stream>>) -> u16 {
    loop {
        match socket.read().expect("a closing") {
            Message::Close(Some(frame)) => return frame.code.into(),
            Message::Binary(_) => panic!("a stranger is given the recording"),
            _ => {}
        }
    }
}

fn strangers(house: &House) {
    let began = Instant::now();
    for first in ["{\"token\": \"wrong\"}", "{\"token\": 1}", "the-right-token", "[[[[[[[[", ""] {
        let mut socket = stranger(house, "");
        socket.send(Message::text(first)).expect("a message");
        assert_eq!(close_code(&mut socket), 4401, "{first}");
    }
    let mut binary = stranger(house, "");
    binary.send(Message::binary(&b"{\"token\": \"the-right-token\"}"[..])).expect("a message");
    assert_eq!(close_code(&mut binary), 4401);
    assert_eq!(close_code(&mut stranger(house, "?token=wrong")), 4401);
    assert!(began.elapsed() < PATIENCE, "a wrong token took {:?}", began.elapsed());
    assert_eq!(close_code(&mut stranger(house, "")), 4401);
    assert!(began.elapsed() < 3 * PATIENCE, "silence took {:?}", began.elapsed());
    // The right one is all that helps.
    let mut socket = stranger(house, "");
    socket.send(Message::text("{\"token\": \"the-right-token\"}")).expect("a message");
    assert!(matches!(socket.read(), Ok(Message::Binary(_))));
}

fn crowd(house: &House) {
    let began = Instant::now();
    let crowd: Vec<_> = (0..300).map(|_| stranger(house, "")).collect();
    let mut honest = house.newcomer();
    assert!(matches!(honest.read(), Ok(Message::Binary(_))));
    let codes: Vec<u16> = crowd.into_iter().map(|mut socket| close_code(&mut socket)).collect();
    assert!(codes.iter().all(|code| matches!(code, 4401 | 1013)) && codes.contains(&1013), "{codes:?}");
    assert!(began.elapsed() < 8 * PATIENCE, "the last was sent away after {:?}", began.elapsed());
}

/// Says these bytes over a socket that is open; it is to be closed then.
#[track_caller]
fn break_off(house: &House, what: &str, frames: &[u8]) {
    let mut stream = house.open();
    stream.write_all(house.filled(OPENING).as_bytes()).expect("an opening");
    // The server may close before all is said.
    let _ = stream.write_all(frames).and_then(|()| stream.flush());
    let began = Instant::now();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "{what}: {:?}", String::from_utf8_lossy(&answer));
    assert!(began.elapsed() < 2 * PATIENCE, "{what}: closed after {:?}", began.elapsed());
}

/// A masked frame with this first byte.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        len @ 0..126 => frame.push(0x80 | len as u8),
        len => {
            frame.push(0x80 | 127);
            frame.extend((len as u64).to_be_bytes());
        }
    }
    // Masked with nothing.
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}

fn large(house: &House) {
    break_off(house, "5 KiB of text", &frame(0x81, &[b'a'; 5 << 10]));
    break_off(house, "1 MiB of bytes", &frame(0x82, &vec![0; 1 << 20]));
    for len in [5 << 10, u64::from(u32::MAX), u64::MAX >> 1, u64::MAX] {
        let head = [&[0x82, 0xff][..], &len.to_be_bytes(), &[0; 4]].concat();
        break_off(house, &format!("{len} bytes promised"), &head);
    }
}

fn malformed(house: &House) {
    break_off(house, "not masked", b"\x81\x02hi");
    break_off(house, "reserved bits", &frame(0xf1, b"hi"));
    break_off(house, "a compressed one", &frame(0xc1, b"hi"));
    break_off(house, "an unknown kind", &frame(0x83, b"hi"));
    break_off(house, "an unknown control kind", &frame(0x8f, b"hi"));
    break_off(house, "no UTF-8", &frame(0x81, b"\xff\xfe"));
    break_off(house, "a ping in pieces", &frame(0x09, b"hi"));
    break_off(house, "a ping that is too long", &frame(0x89, &[0; 200]));
    break_off(house, "a piece of nothing", &frame(0x80, b"hi"));
    break_off(house, "a message in a message", &[frame(0x01, b"a"), frame(0x81, b"b")].concat());
    break_off(house, "a closing with half a code", &frame(0x88, &[3]));
    break_off(house, "a closing with no code that there is", &frame(0x88, &[0, 0]));
    break_off(house, "garbage", &[0xff; 100]);
}

fn endless(house: &House) {
    let pieces: Vec<u8> =
        std::iter::once(frame(0x01, b"a")).chain((0..10_000).map(|_| frame(0, b"a"))).flatten().collect();
    break_off(house, "a message in 10,000 pieces", &pieces);
}

fn nowhere(house: &House) {
    let of_nobody = "0".repeat(32);
    let wrong =
        ["", ":", "x:1", "%00", &of_nobody, &format!("{of_nobody}:-1"), &format!("{of_nobody}:18446744073709551616")];
    for place in wrong
        .map(|place| format!("resume={place}"))
        .iter()
        .map(String::as_str)
        .chain(["history=../../etc/passwd", "notes=2"])
    {
        assert_eq!(close_code(&mut stranger(house, &format!("?{place}"))), 1008, "{place}");
    }
    for next in [0, 1, 1 << 52, u64::MAX] {
        let mut socket = stranger(house, &format!("?resume={of_nobody}:{next}"));
        let Ok(Message::Binary(bytes)) = socket.read() else { panic!("nothing at {next}") };
        assert!(bytes.starts_with(b"\x89VRAM"), "a recording begins anew");
    }
}

/// One who says nothing as often as can be, with the token and without; whoever asks meanwhile is answered.
fn chatter(house: &House) {
    let answers = frame(0x8a, b"").repeat(20_000);
    let pieces = [frame(0x02, b""), frame(0, b"").repeat(20_000)].concat();
    let stranger = OPENING.replace("?token={token}", "");
    for (opening, said) in [(OPENING, &answers), (OPENING, &pieces), (&stranger, &answers)] {
        let mut stream = house.connect();
        let connection = stream.try_clone().expect("the same connection");
        stream.write_all(house.filled(opening).as_bytes()).expect("an opening");
        let said = said.clone();
        let talker = std::thread::spawn(move || while stream.write_all(&said).is_ok() {});
        let began = Instant::now();
        while began.elapsed() < PATIENCE / 2 {
            let asked = Instant::now();
            let health = house.say("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
            assert!(asked.elapsed() < PATIENCE / 2, "an answer took {:?}", asked.elapsed());
        }
        // A stranger has been sent away by now.
        let _ = connection.shutdown(std::net::Shutdown::Both);
        talker.join().expect("it only talks");
    }
}

/// Everything that is tried here.
pub(crate) const ATTACKS: &[Attack] = &[
    Attack {
        what: "a WebSocket with no token, a wrong token, or no message at all",
        door: Door::Closed,
        attempt: strangers,
    },
    Attack { what: "hundreds of WebSockets that do not send a token", door: Door::Closed, attempt: crowd },
    Attack { what: "a frame that is too large, or announces that it is", door: Door::Open, attempt: large },
    Attack {
        what: "a malformed frame: not masked, reserved bits, an unknown opcode, invalid UTF-8, a fragmented control frame",
        door: Door::Open,
        attempt: malformed,
    },
    Attack { what: "a message that never ends", door: Door::Open, attempt: endless },
    Attack { what: "a resume position that never existed", door: Door::Open, attempt: nowhere },
    Attack {
        what: "unsolicited pongs and empty fragments, as fast as they can be sent",
        door: Door::Closed,
        attempt: chatter,
    },
];

#[test]
fn sockets_that_say_what_they_should_not() {
    check(ATTACKS);
}
