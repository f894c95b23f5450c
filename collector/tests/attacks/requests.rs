//! Requests that should not be answered as they would like.

use crate::house::{Door, House, TOKEN};
use crate::{Attack, check};

/// What was asked, and the status of the answer; 0 where there is none.
type Asked = (&'static str, u16);

/// A kind of request that is refused: what it is, through which door it comes, and some of the kind.
struct Kind(&'static str, Door, &'static [Asked]);

const HEAD: &str = "Host: {host}\r\nConnection: close\r\n";
const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";

/// `HEAD`, `UPGRADE` and `KEY` stand for those, `OPENING` for a head that asks for another protocol; every request ends with an empty line, unless it has one.
const KINDS: &[Kind] = &[
    Kind(
        "no token",
        Door::Closed,
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
    Kind(
        "no token, on a server that other machines can reach",
        Door::Everywhere,
        &[
            ("GET / HTTP/1.1\r\nHEAD", 401),
            ("GET /trace.vram HTTP/1.1\r\nHEAD", 401),
            ("GET /trace.vram HTTP/1.1\r\nHost: 192.0.2.1:7791\r\nConnection: close\r\n", 401),
        ],
    ),
    Kind("no token, over TLS", Door::Tls, &[("GET /trace.vram HTTP/1.1\r\nHEAD", 401)]),
    Kind(
        "a wrong token",
        Door::Closed,
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
    Kind(
        "a foreign `Host`: DNS rebinding",
        Door::Open,
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
    Kind(
        "a foreign `Host`, on a server that listens on all addresses",
        Door::Everywhere,
        &[("GET /trace.vram?token={token} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n", 403)],
    ),
    Kind(
        "no `Host`, or two of them",
        Door::Open,
        &[
            ("GET /trace.vram HTTP/1.1\r\nConnection: close\r\n", 403),
            ("GET /trace.vram HTTP/1.0\r\nConnection: close\r\n", 403),
            ("GET /trace.vram HTTP/1.1\r\nHost: evil.example\r\nHEAD", 403),
            ("GET /trace.vram HTTP/1.1\r\nHEADHost: evil.example\r\n", 403),
        ],
    ),
    Kind(
        "a foreign `Origin`",
        Door::Open,
        &[
            ("GET /trace.vram HTTP/1.1\r\nOrigin: http://evil.example\r\nHEAD", 403),
            ("GET /trace.vram HTTP/1.1\r\nOrigin: null\r\nHEAD", 403),
            ("GET /trace.vram HTTP/1.1\r\nOrigin: http://localhost:1\r\nHEAD", 403),
            ("GET /trace.vram HTTP/1.1\r\nOrigin: file://{host}\r\nHEAD", 403),
            ("GET /trace.vram HTTP/1.1\r\nOrigin: http://{host}\r\nOrigin: http://evil.example\r\nHEAD", 403),
        ],
    ),
    Kind(
        "a request from another site without an `Origin`: an image, a script, a download",
        Door::Open,
        &[
            ("GET /trace.vram HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nHEAD", 403),
            ("GET /trace.vram HTTP/1.1\r\nSec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\nHEAD", 403),
            ("GET /trace.vram HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nHEAD", 403),
            ("GET /metrics HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nHEAD", 403),
            ("GET / HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nHEAD", 403),
            ("HEAD /trace.vram HTTP/1.1\r\nSec-Fetch-Site: cross-site\r\nHEAD", 403),
        ],
    ),
    Kind(
        "a WebSocket opened by another site's page",
        Door::Closed,
        &[
            ("GET /ws HTTP/1.1\r\nHost: {host}\r\nOrigin: http://evil.example\r\nUPGRADE", 403),
            ("GET /ws?token={token} HTTP/1.1\r\nHost: {host}\r\nOrigin: https://evil.example\r\nUPGRADE", 403),
            ("GET /push?token={token} HTTP/1.1\r\nHost: {host}\r\nOrigin: https://evil.example\r\nUPGRADE", 403),
        ],
    ),
    Kind(
        "path traversal: `..`, encoded once and twice",
        Door::Open,
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
    Kind(
        "a request to a proxy: an absolute URL, `CONNECT`",
        Door::Open,
        &[
            ("GET http://evil.example/ HTTP/1.1\r\nHEAD", 403),
            ("CONNECT evil.example:443 HTTP/1.1\r\nHEAD", 405),
            ("CONNECT {host} HTTP/1.1\r\nHEAD", 405),
            ("TRACE / HTTP/1.1\r\nHEAD", 405),
            ("OPTIONS * HTTP/1.1\r\nHEAD", 405),
            ("PUT /index.html HTTP/1.1\r\nHEAD", 405),
        ],
    ),
    Kind(
        "request smuggling: a body with two lengths",
        Door::Closed,
        &[
            (
                "POST /healthz HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nPOST /commands/mark?token={token} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 12\r\n\r\n{\"name\":\"a\"}",
                411,
            ),
            (
                "POST /healthz HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\nPOST /commands/mark?token={token} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 12\r\n\r\n{\"name\":\"a\"}",
                411,
            ),
            ("POST /healthz HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
            ("POST /healthz HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd", 400),
            ("POST /healthz HTTP/1.1\r\nHost: {host}\r\nContent-Length: +4\r\n\r\nabcd", 400),
            ("GET /healthz HTTP/1.1\r\nHost: {host}\r\nContent-Length : 4\r\n\r\n", 400),
        ],
    ),
    Kind(
        "an invalid WebSocket handshake: no key, an older version, HTTP/1.0, another protocol, not `GET`",
        Door::Open,
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
    Kind(
        "a malformed range, a range far beyond the end, or a thousand ranges",
        Door::Open,
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
    Kind(
        "bytes that are not HTTP",
        Door::Open,
        &[
            ("\x16\x03\x01\x02\0\x01\0\x01\u{fc}\r\n\r\n", 400),
            ("GET\r\n\r\n", 400),
            ("GET / HTTP/9.9\r\n\r\n", 400),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0),
            ("GET /\u{1} HTTP/1.1\r\nHEAD", 400),
            ("GET / HTTP/1.1\r\nHost: {host}\r\n a folded: line\r\n\r\n", 400),
        ],
    ),
    Kind(
        "a command without the token",
        Door::Commands,
        &[
            ("POST /commands/mark HTTP/1.1\r\nContent-Length: 12\r\nHEAD\r\n{\"name\":\"a\"}", 401),
            ("POST /commands/mark?token=wrong HTTP/1.1\r\nContent-Length: 12\r\nHEAD\r\n{\"name\":\"a\"}", 401),
            ("GET /commands/mark?token={token} HTTP/1.1\r\nHEAD", 405),
            ("HEAD /commands/mark?token={token} HTTP/1.1\r\nHEAD", 405),
        ],
    ),
    Kind(
        "a command from another site's page, with the cookie",
        Door::Commands,
        &[
            (
                "POST /commands/mark HTTP/1.1\r\nOrigin: http://evil.example\r\nCookie: COOKIE\r\nContent-Length: 12\r\nHEAD\r\n{\"name\":\"a\"}",
                403,
            ),
            (
                "POST /commands/mark?token={token} HTTP/1.1\r\nOrigin: null\r\nContent-Length: 12\r\nHEAD\r\n{\"name\":\"a\"}",
                403,
            ),
        ],
    ),
    Kind(
        "a command that is not offered or does not exist",
        Door::Closed,
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

/// The names of everything that is tried here.
pub(crate) fn tried() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.0).chain(ATTACKS.iter().map(|attack| attack.what))
}

fn status(answer: &str) -> u16 {
    let status = answer.strip_prefix("HTTP/1.1 ").or_else(|| answer.strip_prefix("HTTP/1.0 "));
    status.and_then(|rest| rest.get(..3)).map_or(0, |status| status.parse().expect("a status"))
}

/// Asks, and looks at the answer.
#[track_caller]
fn ask(house: &House, request: &str, expected: u16) -> String {
    let cookie = format!("vramscope_{}={{token}}", house.address().port());
    let mut request = request.replace("HEAD\r\n{", &format!("{HEAD}\r\n{{")).replace("COOKIE", &cookie);
    request = request.replace("\r\nHEAD", &format!("\r\n{HEAD}")).replace("UPGRADE", UPGRADE).replace("KEY", KEY);
    request = request.replace("OPENING", "Host: {host}\r\nConnection: Upgrade, close\r\n");
    request = request.replace("THOUSAND", &"0-,".repeat(1000));
    if !request.contains("\r\n\r\n") {
        request.push_str("\r\n");
    }
    let answer = house.say(&request);
    assert_eq!(status(&answer), expected, "{request:?} got {answer:?}");
    assert!(!answer.contains(TOKEN) && !answer.to_lowercase().contains("access-control"), "{answer}");
    // One answer and no more, whatever was put behind the request.
    assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{answer}");
    answer
}

#[test]
fn requests_that_have_no_right() {
    let folder = tempfile::tempdir().expect("a folder");
    for Kind(what, door, asked) in KINDS {
        println!("{what} ({door:?})");
        let mut house = House::new(*door, folder.path());
        for (request, expected) in *asked {
            ask(&house, request, *expected);
        }
        house.check_honest(what);
        assert_eq!(*house.marks.lock().unwrap(), [""; 0], "{what}: a command was obeyed");
    }
}

fn too_large(house: &House) {
    let mark = |body: &str| {
        let len = body.len();
        format!("POST /commands/mark?token={{token}} HTTP/1.1\r\nContent-Length: {len}\r\nHEAD\r\n{body}")
    };
    ask(house, &mark(&format!("{{\"name\":\"{}\"}}", "a".repeat(201))), 400);
    ask(house, &mark(&format!("{{\"name\":\"a\",\"more\":\"{}\"}}", "a".repeat(5000))), 413);
    let promised = "POST /commands/mark?token={token} HTTP/1.1\r\nContent-Length: 1000000000000\r\nHEAD\r\n{";
    ask(house, promised, 413);
    ask(house, &format!("GET /healthz HTTP/1.1\r\nX: {}\r\nHEAD", "a".repeat(100_000)), 431);
    let many: String = (0..1000).map(|n| format!("X-{n}: a\r\n")).collect();
    ask(house, &format!("GET /healthz HTTP/1.1\r\n{many}HEAD"), 431);
    ask(house, &format!("GET /{} HTTP/1.1\r\nHEAD", "a".repeat(100_000)), 431);
    ask(house, &format!("GET /healthz?{} HTTP/1.1\r\nHEAD", "a".repeat(10_000)), 200);
}

/// What a program or a mark is called is text, whatever it looks like.
fn markup(house: &House) {
    let name = "<img src=x onerror=alert(1)>\"\\\u{2028}\r\nSet-Cookie: a=b\u{0}";
    let body = serde_json::json!({ "name": name }).to_string();
    let len = body.len();
    let request = format!("POST /commands/mark?token={{token}} HTTP/1.1\r\nContent-Length: {len}\r\nHEAD\r\n{body}");
    let answer = ask(house, &request, 200);
    assert!(answer.contains("content-type: application/json\r\n") && !answer.contains("\r\nSet-Cookie"), "{answer}");
    assert!(answer.contains("x-content-type-options: nosniff\r\n"), "{answer}");
    let said: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    assert_eq!(said["done"], format!("marked {name}"));
    assert_eq!(std::mem::take(&mut *house.marks.lock().unwrap()), [name]);
    let metrics = ask(house, "GET /metrics?token={token} HTTP/1.1\r\nHEAD", 200);
    assert!(metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{metrics}");
    // An address is not told back, nor is a name in it.
    for path in ["/<script>alert(1)</script>", "/commands/<script>", "/?token=<script>", "/files/<script>/a"] {
        let answer = house.say(&format!("GET {path} HTTP/1.1\r\nHost: {{host}}\r\nConnection: close\r\n\r\n"));
        assert!(!answer.contains("<script>") && !answer.contains("%3Cscript"), "{answer}");
    }
}

const ATTACKS: &[Attack] = &[
    Attack { what: "a body, a name, a request head or a header line that is too large", door: Door::Closed, attempt: too_large },
    Attack { what: "markup and line breaks in names", door: Door::Commands, attempt: markup },
];

#[test]
fn requests_that_ask_too_much() {
    check(ATTACKS);
}
