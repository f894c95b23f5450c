//! The page behind a proxy that has it below a path of its own, as nginx and a Jupyter server do.

#![allow(missing_docs)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use tungstenite::Message;
use vramscope_collector::{Content, Controls, Hub, Server, ServerOptions, Token};
use vramscope_trace::{Encoder, RecordingInfo};

const PREFIX: &str = "/user/me/proxy/7791";
const TOKEN: &str = "a+b/c=";
const NAME: &str = "hub.example.org";

/// A proxy that takes the prefix off, and passes everything else on as it is. Its threads end with their connections.
fn proxy(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || pass_on(client, to));
        }
    });
    address
}

fn pass_on(mut client: TcpStream, to: SocketAddr) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let (method, rest) = head.split_once(' ')?;
    let rest = rest.strip_prefix(PREFIX)?;
    let mut server = TcpStream::connect(to).ok()?;
    server.write_all(format!("{method} {rest}").as_bytes()).ok()?;
    let (mut from_client, mut to_server) = (client.try_clone().ok()?, server.try_clone().ok()?);
    thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
    std::io::copy(&mut server, &mut client).ok()?;
    let _ = client.shutdown(std::net::Shutdown::Both);
    Some(())
}

struct Visitor {
    proxy: SocketAddr,
    cookie: Option<String>,
}

impl Visitor {
    /// What is answered to a request for what is below the prefix: its head and body.
    fn ask(&self, method: &str, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.proxy).expect("the proxy listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
        let cookie = self.cookie.as_ref().map(|cookie| format!("Cookie: {cookie}\r\n")).unwrap_or_default();
        let origin =
            if method == "POST" { format!("Origin: https://{NAME}\r\nContent-Length: 0\r\n") } else { String::new() };
        let request =
            format!("{method} {PREFIX}{path} HTTP/1.1\r\nHost: {NAME}\r\n{cookie}{origin}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a request");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn serve() -> (Server, Visitor) {
    let hub = Hub::default();
    let mut encoder = Encoder::new(&RecordingInfo::default());
    encoder.flush();
    let chunks: Vec<_> = encoder.take_output().into_iter().map(std::sync::Arc::new).collect();
    hub.publish(&chunks);
    let controls = Controls::default();
    controls.offer_record(|| Ok("written".to_owned()));
    let options = ServerOptions {
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        token: Some(Token::new(TOKEN).expect("a token")),
        allow_hosts: vec![NAME.to_owned()],
        ..ServerOptions::default()
    };
    let server =
        Server::start(options, Content { controls: Some(controls), ..Content::live(hub) }).expect("a free port");
    let proxy = proxy(server.address());
    (server, Visitor { proxy, cookie: None })
}

#[test]
fn the_token_becomes_a_cookie_below_the_prefix() {
    let (_server, mut visitor) = serve();
    assert!(visitor.ask("GET", "/").0.starts_with("HTTP/1.1 401 "));
    let (head, body) = visitor.ask("GET", "/?trace=a%2520b&token=a%2Bb%2Fc%3D");
    assert!(head.starts_with("HTTP/1.1 303 ") && body.is_empty(), "{head}");
    assert_eq!(header(&head, "location"), Some("./?trace=a%2520b"));
    let cookie = header(&head, "set-cookie").expect("a cookie");
    assert_eq!(cookie, format!("vramscope={TOKEN}; HttpOnly; SameSite=Lax"));
    visitor.cookie = cookie.split(';').next().map(str::to_owned);
    let (head, body) = visitor.ask("GET", "/?trace=a%2520b");
    assert!(head.starts_with("HTTP/1.1 200 ") && body.starts_with("<!doctype html>"), "{head}");
    assert!(visitor.ask("GET", "/metrics").0.starts_with("HTTP/1.1 200 "));
    assert_eq!(visitor.ask("GET", "/commands").1, "{\"allowed\":true,\"commands\":[\"record\"]}\n");
    assert_eq!(visitor.ask("POST", "/commands/record").1, "{\"done\":\"written\"}\n");

    let mut request = tungstenite::client::IntoClientRequest::into_client_request(format!("ws://{NAME}{PREFIX}/ws"))
        .expect("an address");
    let cookie = visitor.cookie.as_ref().expect("a cookie").parse().expect("a header value");
    request.headers_mut().insert("Cookie", cookie);
    request.headers_mut().insert("Origin", format!("https://{NAME}").parse().expect("a header value"));
    let stream = TcpStream::connect(visitor.proxy).expect("the proxy listens");
    let (mut socket, _) = tungstenite::client(request, stream).expect("a socket through the proxy");
    assert!(matches!(socket.read(), Ok(Message::Binary(_))));
}

/// What stands in a text between `before` and the next quote.
fn quoted<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let ends = |rest: &'a str| rest.split(['"', '\'', ')']).next().unwrap_or(rest);
    text.split(before).skip(1).map(ends).collect()
}

#[test]
fn every_address_in_the_page_is_relative() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../www");
    let mut found = 0;
    for (name, marks) in [
        ("index.html", &["href=\"", "src=\""][..]),
        ("main.js", &["from \"", "fetch(\"", "import(\""]),
        ("style.css", &["url(", "url(\""]),
    ] {
        let text = std::fs::read_to_string(folder.join(name)).expect("a file of the page");
        for address in marks.iter().flat_map(|mark| quoted(&text, mark)).filter(|address| !address.is_empty()) {
            assert!(address.starts_with("./") || address.starts_with("data:"), "{name}: {address:?} is not relative");
            found += 1;
        }
    }
    assert!(found >= 4, "{found} addresses");
}
