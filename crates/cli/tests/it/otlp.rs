//! Tests of `vramscope serve --otlp` with a fake OpenTelemetry collector.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use crate::process::{Server, run, vramscope};

/// Accepts one request and returns its head and its body.
fn one_request(listener: &TcpListener) -> (String, Vec<u8>) {
    let (stream, _) = listener.accept().expect("a client connects");
    let (mut reader, mut head) = (BufReader::new(&stream), String::new());
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).expect("the head is text") > 0, "{head}");
    }
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.expect("the length is stated")];
    reader.read_exact(&mut body).expect("the body arrives");
    (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").expect("sent");
    (head, body)
}

#[test]
fn metrics_are_exported_at_the_end_with_the_headers_of_the_environment() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = format!("http://{}", listener.local_addr().expect("it is bound"));
    let collector = thread::spawn(move || one_request(&listener));
    let mut command = vramscope(["serve", "--otlp", &address]);
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer secret");
    let mut server = Server::start_command(command);
    let (status, stderr) = server.interrupt();
    assert!(status.success() && !stderr.contains("secret"), "{stderr}");
    let (head, body) = collector.join().expect("a request arrives");
    assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
    for header in ["content-type: application/x-protobuf\r\n", "authorization: Bearer secret\r\n"] {
        assert!(head.to_ascii_lowercase().contains(&header.to_ascii_lowercase()), "{head}");
    }
    for name in ["vramscope.events", "vramscope.viewers", "process.resident_memory", "service.name"] {
        assert!(body.windows(name.len()).any(|window| window == name.as_bytes()), "{name}");
    }
}

#[test]
fn unreachable_collector_is_one_message_and_no_failure() {
    let mut server = Server::start(["serve", "--otlp", "http://127.0.0.1:1"]);
    let (status, stderr) = server.interrupt();
    assert!(status.success(), "{stderr}");
    assert_eq!(stderr.matches("cannot export metrics").count(), 1, "{stderr}");
    let wrong = run(["serve", "--otlp", "collector:4318"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("--otlp needs the address"), "{}", wrong.stderr);
}
