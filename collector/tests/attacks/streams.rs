//! Connections that say too little, too slowly, or come in hundreds.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::house::{CONNECTIONS, Door, House, PATIENCE, Stream, read_all};
use crate::{Attack, check};

/// More than may be open at once.
const HUNDREDS: usize = 5 * CONNECTIONS;

/// Connections that have all said `first`, and nothing after it.
fn crowd(house: &House, first: &[u8]) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = house.connect();
        // The oldest are sent away while the newest come.
        let _ = stream.write_all(first);
        stream
    };
    (0..HUNDREDS).map(connect).collect()
}

/// Those who watch are served while the crowd is there; then it is gone.
fn stand(house: &House, crowd: Vec<TcpStream>) {
    let began = Instant::now();
    let health = house.say("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
    assert!(began.elapsed() < PATIENCE, "an honest client waited {:?}", began.elapsed());
    for mut stream in crowd {
        let answer = read_all(&mut stream);
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    assert!(began.elapsed() < 3 * PATIENCE, "the last was sent away after {:?}", began.elapsed());
}

fn silent(house: &House) {
    stand(house, crowd(house, b""));
}

fn half_open_tls(house: &House) {
    // The head of a handshake's record, and the beginning of what it should hold.
    stand(house, crowd(house, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"));
}

fn half_a_head(house: &House) {
    stand(house, crowd(house, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "));
}

fn without_a_token(house: &House) {
    stand(house, crowd(house, house.filled("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()));
}

/// Says `text` a byte at a time until it is cut off; returns what was answered, and after how long.
fn drip(stream: &mut Box<dyn Stream>, text: &str) -> (String, Duration) {
    let began = Instant::now();
    for byte in text.bytes() {
        if stream.write_all(&[byte]).and_then(|()| stream.flush()).is_err() || began.elapsed() > 3 * PATIENCE {
            break;
        }
        thread::sleep(PATIENCE / 20);
    }
    (read_all(stream), began.elapsed())
}

fn slow_head(house: &House) {
    let head = "GET / HTTP/1.1\r\nHost: localhost\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    let (answer, took) = drip(&mut house.open(), head);
    assert!(!answer.contains(" 200 ") && took < 3 * PATIENCE + PATIENCE, "{answer} after {took:?}");
}

fn slow_body(house: &House) {
    let head = "POST /commands/mark?token={token} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\n";
    for body in ["", "{\"name\": \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"] {
        let mut stream = house.open();
        stream.write_all(house.filled(head).as_bytes()).expect("a head");
        let (answer, took) = drip(&mut stream, body);
        assert!(answer.starts_with("HTTP/1.1 408 ") && took < 4 * PATIENCE, "{answer} after {took:?}");
    }
}

fn idle(house: &House) {
    let mut stream = house.open();
    stream.write_all(house.filled("GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).expect("a request");
    let began = Instant::now();
    let answer = read_all(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok\n"), "{answer}");
    assert!(began.elapsed() < 3 * PATIENCE, "kept for {:?}", began.elapsed());
}

/// Whether an answer that was written by hand is as long as it says, where there is one: who is sent away may not get to see it.
#[track_caller]
fn check_length(answer: &str) {
    if let Some((head, body)) = answer.split_once("\r\n\r\n") {
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{answer}");
    }
}

fn plain_on_tls(house: &House) {
    let mut stream = house.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("a request");
    let answer = read_all(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"), "{answer}");
    check_length(&answer);
}

/// Everybody here may watch; who comes when all places are taken is told so at once, and served when there is one again.
fn full(house: &House) {
    let request = house.filled("GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let keep = |_| {
        let mut stream = house.connect();
        stream.write_all(request.as_bytes()).expect("a request");
        // Until it is known to have been heard.
        stream.read_exact(&mut [0; 12]).expect("an answer");
        stream
    };
    let kept: Vec<TcpStream> = (0..CONNECTIONS).map(keep).collect();
    for _ in 0..3 {
        let answer = house.say("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 503 "), "{answer}");
        check_length(&answer);
    }
    drop(kept);
    // The server learns of it when it looks.
    thread::sleep(PATIENCE / 5);
}

/// Everything that is tried here.
pub(crate) const ATTACKS: &[Attack] = &[
    Attack { what: "hundreds of idle connections", door: Door::Closed, attempt: silent },
    Attack { what: "hundreds of unfinished TLS handshakes", door: Door::Tls, attempt: half_open_tls },
    Attack { what: "hundreds of unfinished requests", door: Door::Closed, attempt: half_a_head },
    Attack {
        what: "hundreds of requests without a token on kept-alive connections",
        door: Door::Closed,
        attempt: without_a_token,
    },
    Attack { what: "a request head sent byte by byte", door: Door::Closed, attempt: slow_head },
    Attack { what: "a body sent byte by byte, or not at all", door: Door::Closed, attempt: slow_body },
    Attack { what: "an idle kept-alive connection", door: Door::Open, attempt: idle },
    Attack { what: "plain HTTP to an HTTPS server", door: Door::Tls, attempt: plain_on_tls },
    Attack { what: "more authorized clients than connections are allowed", door: Door::Open, attempt: full },
];

#[test]
fn connections_that_hold_others_up() {
    check(ATTACKS);
}
