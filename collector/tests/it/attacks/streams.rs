//! Idle, slow and too many connections.

use std::io::{Read, Write};
use std::iter;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::attacks::server::{
    MAX_CONNECTIONS, Protection, SHORT_CLIENT_TIMEOUT, SOCKET_TIMEOUT, Stream, TestServer, read_all,
};
use crate::attacks::{Attack, check};

/// Number of connections in a flood, more than may be open at once.
const FLOOD_CONNECTIONS: usize = 5 * MAX_CONNECTIONS;

/// Opens many connections that send `first` and nothing more.
fn flood(server: &TestServer, first: &[u8]) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = server.connect();
        // The server closes the oldest connections while new ones are opened.
        let _ = stream.write_all(first);
        stream
    };
    (0..FLOOD_CONNECTIONS).map(connect).collect()
}

/// Checks that other clients are served during a flood, and that all its connections are closed.
fn check_flood(server: &TestServer, first: &[u8]) {
    // This server waits for the clients that it has accepted.
    let connections = flood(server, first);
    let health = server.request("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
    drop(connections);
    let impatient = server.impatient();
    for mut stream in flood(&impatient, first) {
        let response = read_all(&mut stream);
        assert!(!response.contains(" 200 "), "{response}");
    }
}

fn silent(server: &TestServer) {
    check_flood(server, b"");
}

fn half_open_tls(server: &TestServer) {
    // The header of a handshake record, and the start of its content.
    check_flood(server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
}

fn half_a_head(server: &TestServer) {
    check_flood(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ");
}

fn without_a_token(server: &TestServer) {
    check_flood(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

/// Sends `text` and then one letter repeatedly, byte by byte, until the server closes the
/// connection. Returns the response.
fn send_slowly(stream: &mut Box<dyn Stream>, text: &str) -> String {
    let start = Instant::now();
    for byte in text.bytes().chain(iter::repeat(b'a')) {
        if stream.write_all(&[byte]).and_then(|()| stream.flush()).is_err() {
            break;
        }
        assert!(start.elapsed() < SOCKET_TIMEOUT, "the connection stays open");
        thread::sleep(SHORT_CLIENT_TIMEOUT / 20);
    }
    read_all(stream)
}

fn slow_head(server: &TestServer) {
    let response = send_slowly(&mut server.impatient().open(), "GET / HTTP/1.1\r\nHost: localhost\r\nX: ");
    assert!(!response.contains(" 200 "), "{response}");
}

fn slow_body(server: &TestServer) {
    let head = "POST /commands/mark?token={token} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\n";
    let server = server.impatient();
    for has_body in [false, true] {
        let mut stream = server.open();
        stream.write_all(server.fill_in(head).as_bytes()).expect("the head is sent");
        let response = if has_body { send_slowly(&mut stream, "{\"name\": \"") } else { read_all(&mut stream) };
        assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
    }
}

fn idle_keep_alive(server: &TestServer) {
    let server = server.impatient();
    let mut stream = server.open();
    stream
        .write_all(server.fill_in("GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
        .expect("the request is sent");
    let response = read_all(&mut stream);
    assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with("ok\n"), "{response}");
}

/// Checks the Content-Length of a response that the server writes without hyper. A refused client
/// may not receive it.
#[track_caller]
fn check_length(response: &str) {
    if let Some((head, body)) = response.split_once("\r\n\r\n") {
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{response}");
    }
}

fn http_to_https_server(server: &TestServer) {
    let mut stream = server.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the request is sent");
    let response = read_all(&mut stream);
    assert!(response.starts_with("HTTP/1.1 400 ") && response.contains("https://"), "{response}");
    check_length(&response);
}

/// All of these clients are authorized. At the limit a further one is refused at once; it is served
/// once a connection is closed.
fn at_the_limit(server: &TestServer) {
    let request = server.fill_in("GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let open = |_| {
        let mut stream = server.connect();
        stream.write_all(request.as_bytes()).expect("the request is sent");
        // Waits until the server has authorized the connection.
        stream.read_exact(&mut [0; 12]).expect("a response arrives");
        stream
    };
    let open_connections: Vec<TcpStream> = (0..MAX_CONNECTIONS).map(open).collect();
    let request = || server.request("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    for _ in 0..3 {
        let response = request();
        assert!(response.is_empty() || response.starts_with("HTTP/1.1 503 "), "{response}");
        check_length(&response);
    }
    drop(open_connections);
    let start = Instant::now();
    while !request().starts_with("HTTP/1.1 200 ") {
        assert!(start.elapsed() < SOCKET_TIMEOUT, "the server does not notice the closed connections");
        thread::sleep(Duration::from_millis(20));
    }
}

/// All attacks in this file.
pub(crate) const ATTACKS: &[Attack] = &[
    Attack { name: "hundreds of idle connections", protection: Protection::Token, run: silent },
    Attack { name: "hundreds of unfinished TLS handshakes", protection: Protection::Tls, run: half_open_tls },
    Attack { name: "hundreds of unfinished requests", protection: Protection::Token, run: half_a_head },
    Attack {
        name: "hundreds of requests without a token on kept-alive connections",
        protection: Protection::Token,
        run: without_a_token,
    },
    Attack { name: "a request head sent byte by byte", protection: Protection::Token, run: slow_head },
    Attack { name: "a body sent byte by byte, or not at all", protection: Protection::Token, run: slow_body },
    Attack { name: "an idle kept-alive connection", protection: Protection::None, run: idle_keep_alive },
    Attack { name: "plain HTTP to an HTTPS server", protection: Protection::Tls, run: http_to_https_server },
    Attack {
        name: "more authorized clients than connections are allowed",
        protection: Protection::None,
        run: at_the_limit,
    },
];

#[test]
fn slow_and_numerous_connections_do_not_delay_viewers() {
    check(ATTACKS);
}
