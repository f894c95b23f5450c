//! Malicious and malformed HTTP requests.

use crate::attacks::server::{Protection, TOKEN, TestServer};
use crate::attacks::{Attack, check};

/// A request, and the status of its response; 0 if the server sends no response.
type Case = (&'static str, u16);

/// A kind of request that is refused: its name in `docs/security.md`, the server's protection, and
/// the cases.
struct RequestAttack(&'static str, Protection, &'static [Case]);

const HEAD: &str = "Host: {host}\r\nConnection: close\r\n";
const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
/// A request after which the server closes the connection.
const LAST_REQUEST: &str = "GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n";
const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";

/// In the cases, `HEAD`, `UPGRADE` and `KEY` are replaced by the constants above, and `OPENING` by
/// the headers of a WebSocket handshake. An empty line is appended to requests that have none.
const REQUEST_ATTACKS: &[RequestAttack] = &[
    RequestAttack(
        "no token",
        Protection::Token,
        &[
            ("GET / HTTP/1.1\r\nHEAD", 401),
            ("GET /index.html HTTP/1.1\r\nHEAD", 401),
            ("GET /trace.vram HTTP/1.1\r\nHEAD", 401),
            ("GET /metrics HTTP/1.1\r\nHEAD", 401),
            ("GET /commands HTTP/1.1\r\nHEAD", 401),
            ("GET /push HTTP/1.1\r\nHost: {host}\r\nUPGRADE", 401),
            ("GET /nothing HTTP/1.1\r\nHEAD", 401),
            ("HEAD /trace.vram HTTP/1.1\r\nHEAD", 401),
        ],
    ),
    RequestAttack(
        "no token, on a server that other machines can reach",
        Protection::AllAddresses,
        &[
            ("GET / HTTP/1.1\r\nHEAD", 401),
            ("GET /trace.vram HTTP/1.1\r\nHEAD", 401),
            ("GET /trace.vram HTTP/1.1\r\nHost: 192.0.2.1:7791\r\nConnection: close\r\n", 401),
        ],
    ),
    RequestAttack("no token, over TLS", Protection::Tls, &[("GET /trace.vram HTTP/1.1\r\nHEAD", 401)]),
    RequestAttack(
        "a wrong token",
        Protection::Token,
        &[
            ("GET /?token=wrong HTTP/1.1\r\nHEAD", 401),
            ("GET /?token= HTTP/1.1\r\nHEAD", 401),
            ("GET /trace.vram?token=the-right-toke HTTP/1.1\r\nHEAD", 401),
            ("GET /trace.vram?token=the-right-token1 HTTP/1.1\r\nHEAD", 401),
            ("GET /trace.vram?token=THE-RIGHT-TOKEN HTTP/1.1\r\nHEAD", 401),
            ("GET /trace.vram?token=the-right-token%00 HTTP/1.1\r\nHEAD", 401),
            ("GET /trace.vram HTTP/1.1\r\nAuthorization: Bearer wrong\r\nHEAD", 401),
            ("GET /trace.vram HTTP/1.1\r\nAuthorization: Basic {token}\r\nHEAD", 401),
            ("GET /trace.vram HTTP/1.1\r\nCookie: vramscope={token}\r\nHEAD", 401),
            ("GET /trace.vram HTTP/1.1\r\nCookie: vramscope_1={token}\r\nHEAD", 401),
        ],
    ),
    RequestAttack(
        "a foreign `Host`: DNS rebinding",
        Protection::None,
        &[
            ("GET /trace.vram HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n", 403),
            ("GET /trace.vram HTTP/1.1\r\nHost: evil.example:7791\r\nConnection: close\r\n", 403),
            ("GET / HTTP/1.1\r\nHost: localhost.evil.example\r\nConnection: close\r\n", 403),
            ("GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\nConnection: close\r\n", 403),
            ("GET / HTTP/1.1\r\nHost: localhost@evil.example\r\nConnection: close\r\n", 403),
            ("GET / HTTP/1.1\r\nHost: evil.example@localhost\r\nConnection: close\r\n", 403),
            ("GET /ws HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nUPGRADE", 403),
        ],
    ),
    RequestAttack(
        "a foreign `Host`, on a server that listens on all addresses",
        Protection::AllAddresses,
        &[("GET /trace.vram?token={token} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n", 403)],
    ),
    RequestAttack(
        "a foreign `Host` without the token, on a server that accepts any `Host`",
        Protection::AnyHost,
        &[
            ("GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n", 401),
            ("GET /trace.vram HTTP/1.1\r\nHost: evil.example:7791\r\nConnection: close\r\n", 401),
            ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n", 401),
            ("GET /trace.vram?token=wrong HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n", 401),
            ("GET /push HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nUPGRADE", 401),
            // This also holds without a name in the path: whether a URL needs the token depends on
            // the server, not on the request.
            ("GET /trace.vram HTTP/1.1\r\nHEAD", 401),
        ],
    ),
    RequestAttack(
        "a foreign `Origin`, on a server that accepts any `Host`",
        Protection::AnyHost,
        &[
            ("GET /trace.vram?token={token} HTTP/1.1\r\nOrigin: http://evil.example\r\nHEAD", 403),
            ("GET /ws?token={token} HTTP/1.1\r\nHost: hub.example\r\nOrigin: http://evil.example\r\nUPGRADE", 403),
            ("GET /trace.vram?token={token} HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\nHEAD", 403),
        ],
    ),
    RequestAttack(
        "no `Host`, or two of them",
        Protection::None,
        &[
            ("GET /trace.vram HTTP/1.1\r\nConnection: close\r\n", 403),
            ("GET /trace.vram HTTP/1.0\r\nConnection: close\r\n", 403),
            ("GET /trace.vram HTTP/1.1\r\nHost: evil.example\r\nHEAD", 403),
            ("GET /trace.vram HTTP/1.1\r\nHEADHost: evil.example\r\n", 403),
        ],
    ),
    RequestAttack(
        "a foreign `Origin`",
        Protection::None,
        &[
            ("GET /trace.vram HTTP/1.1\r\nOrigin: http://evil.example\r\nHEAD", 403),
            ("GET /trace.vram HTTP/1.1\r\nOrigin: null\r\nHEAD", 403),
            ("GET /trace.vram HTTP/1.1\r\nOrigin: http://localhost:1\r\nHEAD", 403),
            ("GET /trace.vram HTTP/1.1\r\nOrigin: file://{host}\r\nHEAD", 403),
            ("GET /trace.vram HTTP/1.1\r\nOrigin: http://{host}\r\nOrigin: http://evil.example\r\nHEAD", 403),
        ],
    ),
    RequestAttack(
        "a request from another site without an `Origin`: an image, a script, a download",
        Protection::None,
        &[
            ("GET /trace.vram HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nHEAD", 403),
            ("GET /trace.vram HTTP/1.1\r\nSec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\nHEAD", 403),
            ("GET /trace.vram HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nHEAD", 403),
            ("GET /metrics HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nHEAD", 403),
            ("GET / HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nHEAD", 403),
            ("HEAD /trace.vram HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\nHEAD", 403),
        ],
    ),
    RequestAttack(
        "a WebSocket opened by another site's page",
        Protection::Token,
        &[
            ("GET /ws HTTP/1.1\r\nHost: {host}\r\nOrigin: http://evil.example\r\nUPGRADE", 403),
            ("GET /ws?token={token} HTTP/1.1\r\nHost: {host}\r\nOrigin: https://evil.example\r\nUPGRADE", 403),
            ("GET /push?token={token} HTTP/1.1\r\nHost: {host}\r\nOrigin: https://evil.example\r\nUPGRADE", 403),
        ],
    ),
    RequestAttack(
        "path traversal: `..`, encoded once and twice",
        Protection::None,
        &[
            ("GET /../Cargo.toml HTTP/1.1\r\nHEAD", 404),
            ("GET /pkg/../../Cargo.toml HTTP/1.1\r\nHEAD", 404),
            ("GET /..%2f..%2fetc/passwd HTTP/1.1\r\nHEAD", 404),
            ("GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHEAD", 404),
            ("GET /%252e%252e%252fetc/passwd HTTP/1.1\r\nHEAD", 404),
            ("GET /..\\..\\etc\\passwd HTTP/1.1\r\nHEAD", 404),
            ("GET //etc/passwd HTTP/1.1\r\nHEAD", 404),
            ("GET /files/0/..%2f..%2fetc%2fpasswd HTTP/1.1\r\nHEAD", 404),
            ("GET /files/99999999999999999999/a HTTP/1.1\r\nHEAD", 404),
            ("GET /index.html%00.css HTTP/1.1\r\nHEAD", 404),
        ],
    ),
    RequestAttack(
        "a request to a proxy: an absolute URL, `CONNECT`",
        Protection::None,
        &[
            ("GET http://evil.example/ HTTP/1.1\r\nHEAD", 403),
            ("CONNECT evil.example:443 HTTP/1.1\r\nHEAD", 405),
            ("CONNECT {host} HTTP/1.1\r\nHEAD", 405),
            ("TRACE / HTTP/1.1\r\nHEAD", 405),
            ("OPTIONS * HTTP/1.1\r\nHEAD", 405),
            ("PUT /index.html HTTP/1.1\r\nHEAD", 405),
        ],
    ),
    RequestAttack(
        "request smuggling: a body with two lengths",
        Protection::Token,
        &[
            (
                "POST /healthz HTTP/1.1\r\nHost: {host}\r\n\
                 Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\
                 POST /commands/mark?token={token} HTTP/1.1\r\nHost: {host}\r\n\
                 Content-Length: 12\r\n\r\n{\"name\":\"a\"}",
                411,
            ),
            (
                "POST /healthz HTTP/1.1\r\nHost: {host}\r\n\
                 Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n\
                 POST /commands/mark?token={token} HTTP/1.1\r\nHost: {host}\r\n\
                 Content-Length: 12\r\n\r\n{\"name\":\"a\"}",
                411,
            ),
            ("POST /healthz HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
            ("POST /healthz HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd", 400),
            ("POST /healthz HTTP/1.1\r\nHost: {host}\r\nContent-Length: +4\r\n\r\nabcd", 400),
            ("GET /healthz HTTP/1.1\r\nHost: {host}\r\nContent-Length : 4\r\n\r\n", 400),
        ],
    ),
    RequestAttack(
        "an invalid WebSocket handshake: no key, an older version, HTTP/1.0, another protocol, not `GET`",
        Protection::None,
        &[
            ("GET /ws HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nOPENING", 400),
            ("GET /ws HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\nKEY\r\nOPENING", 400),
            ("GET /ws HTTP/1.1\r\nUpgrade: websocket\r\nKEY\r\nOPENING", 400),
            ("GET /ws HTTP/1.1\r\nUpgrade: h2c\r\nSec-WebSocket-Version: 13\r\nKEY\r\nOPENING", 400),
            ("GET /ws HTTP/1.1\r\nSec-WebSocket-Version: 13\r\nKEY\r\nOPENING", 400),
            ("GET /ws HTTP/1.0\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nKEY\r\nOPENING", 426),
            ("POST /ws HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nKEY\r\nOPENING", 405),
        ],
    ),
    RequestAttack(
        "a malformed range, a range far beyond the end, or a thousand ranges",
        Protection::None,
        &[
            ("GET /trace.vram HTTP/1.1\r\nRange: bytes=99999999999999999999-\r\nHEAD", 416),
            ("GET /trace.vram HTTP/1.1\r\nRange: bytes=18446744073709551615-18446744073709551615\r\nHEAD", 416),
            ("GET /trace.vram HTTP/1.1\r\nRange: bytes=-0\r\nHEAD", 416),
            ("GET /trace.vram HTTP/1.1\r\nRange: bytes=9-5\r\nHEAD", 200),
            ("GET /trace.vram HTTP/1.1\r\nRange: bytes=--1\r\nHEAD", 200),
            ("GET /trace.vram HTTP/1.1\r\nRange: bytes=THOUSAND0-\r\nHEAD", 200),
            ("GET /trace.vram HTTP/1.1\r\nRange: bytes=0-\r\nIf-Range: \"\r\nHEAD", 200),
        ],
    ),
    RequestAttack(
        "bytes that are not HTTP",
        Protection::None,
        &[
            ("\x16\x03\x01\x02\0\x01\0\x01\u{fc}\r\n\r\n", 400),
            ("GET\r\n\r\n", 400),
            ("GET / HTTP/9.9\r\n\r\n", 400),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0),
            ("GET /\u{1} HTTP/1.1\r\nHEAD", 400),
            ("GET / HTTP/1.1\r\nHost: {host}\r\n a folded: line\r\n\r\n", 400),
        ],
    ),
    RequestAttack(
        "a command without the token",
        Protection::CommandToken,
        &[
            ("POST /commands/mark HTTP/1.1\r\nContent-Length: 12\r\nHEAD\r\n{\"name\":\"a\"}", 401),
            ("POST /commands/mark?token=wrong HTTP/1.1\r\nContent-Length: 12\r\nHEAD\r\n{\"name\":\"a\"}", 401),
            ("GET /commands/mark?token={token} HTTP/1.1\r\nHEAD", 405),
            ("HEAD /commands/mark?token={token} HTTP/1.1\r\nHEAD", 405),
        ],
    ),
    RequestAttack(
        "a command from another site's page, with the cookie",
        Protection::CommandToken,
        &[
            (
                "POST /commands/mark HTTP/1.1\r\nOrigin: http://evil.example\r\nCookie: COOKIE\r\n\
                 Content-Length: 12\r\nHEAD\r\n{\"name\":\"a\"}",
                403,
            ),
            (
                "POST /commands/mark?token={token} HTTP/1.1\r\nOrigin: null\r\n\
                 Content-Length: 12\r\nHEAD\r\n{\"name\":\"a\"}",
                403,
            ),
        ],
    ),
    RequestAttack(
        "a command that is not offered or does not exist",
        Protection::Token,
        &[
            ("POST /commands/empty-cache?token={token} HTTP/1.1\r\nContent-Length: 0\r\nHEAD", 404),
            ("POST /commands/rm?token={token} HTTP/1.1\r\nContent-Length: 0\r\nHEAD", 404),
            ("POST /commands/..%2fmark?token={token} HTTP/1.1\r\nContent-Length: 0\r\nHEAD", 404),
            ("POST /commands/mark?token={token} HTTP/1.1\r\nContent-Length: 0\r\nHEAD", 400),
            ("POST /commands/mark?token={token} HTTP/1.1\r\nContent-Length: 11\r\nHEAD\r\n{\"name\":\"\"}", 400),
            ("POST /commands/mark?token={token} HTTP/1.1\r\nContent-Length: 13\r\nHEAD\r\n{\"name\":[[[[[", 400),
            ("POST /?token={token} HTTP/1.1\r\nContent-Length: 0\r\nHEAD", 405),
        ],
    ),
];

/// Returns the names of all attacks in this file.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    REQUEST_ATTACKS.iter().map(|attack| attack.0).chain(ATTACKS.iter().map(|attack| attack.name))
}

fn status(response: &str) -> u16 {
    let status = response.strip_prefix("HTTP/1.1 ").or_else(|| response.strip_prefix("HTTP/1.0 "));
    status.and_then(|rest| rest.get(..3)).map_or(0, |status| status.parse().expect("the status is a number"))
}

/// Sends a request, checks the response and returns it.
#[track_caller]
fn check_request(server: &TestServer, request: &str, expected: u16) -> String {
    let cookie = format!("vramscope_{}={{token}}", server.address().port());
    let mut request = request.replace("HEAD\r\n{", &format!("{HEAD}\r\n{{")).replace("COOKIE", &cookie);
    request = request.replace("\r\nHEAD", &format!("\r\n{HEAD}")).replace("UPGRADE", UPGRADE).replace("KEY", KEY);
    request = request.replace("OPENING", "Host: {host}\r\nConnection: Upgrade, close\r\n");
    request = request.replace("THOUSAND", &"0-,".repeat(1000));
    if !request.contains("\r\n\r\n") {
        request.push_str("\r\n");
    }
    // If the server has read the whole request, it waits for another one, which ends the
    // connection.
    let is_kept_open = !request.contains("close\r\n");
    let response = server.request(&if is_kept_open { format!("{request}{LAST_REQUEST}") } else { request.clone() });
    let last = response.rfind("HTTP/1.1 200 ").filter(|_| is_kept_open && response.ends_with("ok\n"));
    let response = response[..last.unwrap_or(response.len())].to_owned();
    assert_eq!(status(&response), expected, "{request:?} got {response:?}");
    assert!(!response.contains(TOKEN) && !response.to_lowercase().contains("access-control"), "{response}");
    // A second response would mean that a smuggled request was seen.
    assert!(response.matches("HTTP/1.1 ").count() <= 1, "{response}");
    response
}

#[test]
fn unauthorized_and_malformed_requests_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for RequestAttack(name, protection, cases) in REQUEST_ATTACKS {
        println!("{name} ({protection:?})");
        let mut server = TestServer::new(*protection, folder.path());
        for (request, expected) in *cases {
            check_request(&server, request, *expected);
        }
        server.check_viewers(name);
        assert_eq!(*server.marks.lock().unwrap(), [""; 0], "{name}: a command was run");
    }
}

fn too_large(server: &TestServer) {
    let mark = |body: &str| {
        let len = body.len();
        format!("POST /commands/mark?token={{token}} HTTP/1.1\r\nContent-Length: {len}\r\nHEAD\r\n{body}")
    };
    check_request(server, &mark(&format!("{{\"name\":\"{}\"}}", "a".repeat(201))), 400);
    check_request(server, &mark(&format!("{{\"name\":\"a\",\"more\":\"{}\"}}", "a".repeat(5000))), 413);
    let promised = "POST /commands/mark?token={token} HTTP/1.1\r\nContent-Length: 1000000000000\r\nHEAD\r\n{";
    check_request(server, promised, 413);
    check_request(server, &format!("GET /healthz HTTP/1.1\r\nX: {}\r\nHEAD", "a".repeat(100_000)), 431);
    let many: String = (0..1000).map(|n| format!("X-{n}: a\r\n")).collect();
    check_request(server, &format!("GET /healthz HTTP/1.1\r\n{many}HEAD"), 431);
    check_request(server, &format!("GET /{} HTTP/1.1\r\nHEAD", "a".repeat(100_000)), 431);
    check_request(server, &format!("GET /healthz?{} HTTP/1.1\r\nHEAD", "a".repeat(10_000)), 200);
}

/// Names of programs and marks are text, even if they look like markup or headers.
fn markup(server: &TestServer) {
    let name = "<img src=x onerror=alert(1)>\"\\\u{2028}\r\nSet-Cookie: a=b\u{0}";
    let body = serde_json::json!({ "name": name }).to_string();
    let len = body.len();
    let request = format!("POST /commands/mark?token={{token}} HTTP/1.1\r\nContent-Length: {len}\r\nHEAD\r\n{body}");
    let response = check_request(server, &request, 200);
    assert!(
        response.contains("content-type: application/json\r\n") && !response.contains("\r\nSet-Cookie"),
        "{response}"
    );
    assert!(response.contains("x-content-type-options: nosniff\r\n"), "{response}");
    let json: serde_json::Value =
        serde_json::from_str(response.split_once("\r\n\r\n").expect("the response has a body").1)
            .expect("the body is JSON");
    assert_eq!(json["done"], format!("marked {name}"));
    assert_eq!(std::mem::take(&mut *server.marks.lock().unwrap()), [name]);
    let metrics = check_request(server, "GET /metrics?token={token} HTTP/1.1\r\nHEAD", 200);
    assert!(metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{metrics}");
    // Error responses do not repeat the URL.
    for path in ["/<script>alert(1)</script>", "/commands/<script>", "/?token=<script>", "/files/<script>/a"] {
        let response = server.request(&format!("GET {path} HTTP/1.1\r\nHost: {{host}}\r\nConnection: close\r\n\r\n"));
        assert!(!response.contains("<script>") && !response.contains("%3Cscript"), "{response}");
    }
}

const ATTACKS: &[Attack] = &[
    Attack {
        name: "a body, a name, a request head or a header line that is too large",
        protection: Protection::Token,
        run: too_large,
    },
    Attack { name: "markup and line breaks in names", protection: Protection::CommandToken, run: markup },
];

#[test]
fn oversized_requests_and_markup_do_no_harm() {
    check(ATTACKS);
}
