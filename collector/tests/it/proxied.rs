//! The page behind a proxy that adds a path prefix, as nginx and Jupyter servers do.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use tungstenite::Message;
use vramscope_collector::{Controls, Hub, ServedContent, Server, ServerOptions, Token};
use vramscope_trace::{Encoder, RecordingInfo};

const PREFIX: &str = "/user/me/proxy/7791";
const TOKEN: &str = "a+b/c=";
const NAME: &str = "hub.example.org";

/// Starts a proxy that removes the prefix and forwards everything else unchanged. Its threads end
/// with their connections.
fn proxy(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("a valid address");
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || forward(client, to));
        }
    });
    address
}

fn forward(mut client: TcpStream, to: SocketAddr) -> Option<()> {
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

struct Browser {
    proxy: SocketAddr,
    cookie: Option<String>,
}

impl Browser {
    /// Requests a path below the prefix. Returns the head and the body of the response.
    fn request(&self, method: &str, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.proxy).expect("the proxy listens");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("the socket can be configured");
        let cookie = self.cookie.as_ref().map(|cookie| format!("Cookie: {cookie}\r\n")).unwrap_or_default();
        let origin =
            if method == "POST" { format!("Origin: https://{NAME}\r\nContent-Length: 0\r\n") } else { String::new() };
        let request =
            format!("{method} {PREFIX}{path} HTTP/1.1\r\nHost: {NAME}\r\n{cookie}{origin}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("the request is sent");
        let mut response = Vec::new();
        stream.read_to_end(&mut response).expect("a response arrives");
        let response = String::from_utf8_lossy(&response).into_owned();
        let (head, body) = response.split_once("\r\n\r\n").expect("the response has a head");
        (head.to_owned(), body.to_owned())
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn serve() -> (Server, Browser) {
    let hub = Hub::default();
    let mut encoder = Encoder::new(&RecordingInfo::default());
    encoder.flush();
    let chunks: Vec<_> = encoder.take_output().into_iter().map(std::sync::Arc::new).collect();
    hub.publish(&chunks);
    let controls = Controls::default();
    controls.offer_record(|| Ok("written".to_owned()));
    let options = ServerOptions {
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        token: Some(Token::new(TOKEN).expect("a valid token")),
        allow_hosts: vec![NAME.to_owned()],
        ..ServerOptions::default()
    };
    let server = Server::start(options, ServedContent { controls: Some(controls), ..ServedContent::live(hub) })
        .expect("a port is free");
    let proxy = proxy(server.address());
    (server, Browser { proxy, cookie: None })
}

#[test]
fn token_becomes_a_cookie_below_the_prefix() {
    let (_server, mut browser) = serve();
    assert!(browser.request("GET", "/").0.starts_with("HTTP/1.1 401 "));
    let (head, body) = browser.request("GET", "/?trace=a%2520b&token=a%2Bb%2Fc%3D");
    assert!(head.starts_with("HTTP/1.1 303 ") && body.is_empty(), "{head}");
    assert_eq!(header(&head, "location"), Some("./?trace=a%2520b"));
    let cookie = header(&head, "set-cookie").expect("the browser has a cookie");
    assert_eq!(cookie, format!("vramscope={TOKEN}; HttpOnly; SameSite=Lax"));
    browser.cookie = cookie.split(';').next().map(str::to_owned);
    let (head, body) = browser.request("GET", "/?trace=a%2520b");
    assert!(head.starts_with("HTTP/1.1 200 ") && body.starts_with("<!doctype html>"), "{head}");
    assert!(browser.request("GET", "/metrics").0.starts_with("HTTP/1.1 200 "));
    assert_eq!(browser.request("GET", "/commands").1, "{\"allowed\":true,\"commands\":[\"record\"]}\n");
    assert_eq!(browser.request("POST", "/commands/record").1, "{\"done\":\"written\"}\n");

    let mut request = tungstenite::client::IntoClientRequest::into_client_request(format!("ws://{NAME}{PREFIX}/ws"))
        .expect("a valid address");
    let cookie = browser.cookie.as_ref().expect("the browser has a cookie").parse().expect("a valid header value");
    request.headers_mut().insert("Cookie", cookie);
    request.headers_mut().insert("Origin", format!("https://{NAME}").parse().expect("a valid header value"));
    let stream = TcpStream::connect(browser.proxy).expect("the proxy listens");
    let (mut socket, _) = tungstenite::client(request, stream).expect("the WebSocket opens through the proxy");
    assert!(matches!(socket.read(), Ok(Message::Binary(_))));
}

/// Returns the texts between `before` and the next quote or parenthesis.
fn quoted<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let until_end = |rest: &'a str| rest.split(['"', '\'', ')']).next().unwrap_or(rest);
    text.split(before).skip(1).map(until_end).collect()
}

#[test]
fn every_url_in_the_page_is_relative() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../www");
    let mut found = 0;
    for (name, prefixes) in [
        ("index.html", &["href=\"", "src=\""][..]),
        ("main.js", &["from \"", "fetch(\"", "import(\""]),
        ("style.css", &["url(", "url(\""]),
        ("panels.css", &["url(", "url(\""]),
    ] {
        let text = std::fs::read_to_string(folder.join(name)).expect("the page has the file");
        for address in prefixes.iter().flat_map(|prefix| quoted(&text, prefix)).filter(|address| !address.is_empty()) {
            assert!(address.starts_with("./") || address.starts_with("data:"), "{name}: {address:?} is not relative");
            found += 1;
        }
    }
    assert!(found >= 4, "only {found} URLs were found");
}
