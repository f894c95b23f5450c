//! Who may ask, and what a browser may do with the answer.
//!
//! Three things are looked at in every request. `Host`: a page of somebody else can send requests here under a name of its own that it
//! made point to this machine (DNS rebinding), so only names that are known to be this machine's are answered. `Origin`: such a page
//! can open a WebSocket or post a form, so what comes from another page is refused; where browsers say no `Origin`, for an image say, `Sec-Fetch-Site`
//! tells the same. And the token, where there is one.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::uri::{Authority, Uri};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::accept::Heard;
use super::access::Access;

/// Nothing but this server's own files is loaded, run, connected to or framed.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; \
     img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; worker-src 'self'; manifest-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const SECURITY_HEADERS: [(&str, &str); 5] = [
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];

/// What can be had without a token: whether the server lives, and what asks for the token itself.
const OPEN: [&str; 2] = ["/healthz", "/ws"];

/// What a browser shows that was not given the token.
const WANTED: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>vramscope</title>\
    <h1>This page wants its token</h1><p>The program that serves it has printed a line that begins with \
    <code>listening:</code>. Open the whole address that stands there, with <code>?token=\u{2026}</code> at its end.</p></html>\n";

/// What every request has to pass.
#[derive(Debug)]
pub(super) struct Guard {
    pub(super) hosts: Hosts,
    pub(super) access: Arc<Access>,
    /// Whether browsers come by HTTPS.
    pub(super) is_secure: bool,
}

/// Answers a request, if it may be asked, with the security headers on the answer.
pub(super) async fn guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match guard.refuse(&request) {
        Some(refused) => refused,
        None => guard.pass(request, next).await,
    };
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    // What is served changes with the program that serves it, so nothing is ever kept.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

impl Guard {
    /// What a request gets whose kind is none of this server's, or that somebody else's page has made.
    fn refuse(&self, request: &Request) -> Option<Response> {
        if !matches!(*request.method(), Method::GET | Method::HEAD | Method::POST) {
            let allowed = [(header::ALLOW, "GET, HEAD, POST")];
            return Some((StatusCode::METHOD_NOT_ALLOWED, allowed, "there is no such method here\n").into_response());
        }
        if request.headers().contains_key(header::TRANSFER_ENCODING) {
            // Bodies are small, and one whose length is told twice may hold a request that a proxy before this has not seen.
            let close = [(header::CONNECTION, "close")];
            let refused = (StatusCode::LENGTH_REQUIRED, close, "a body here has a Content-Length\n");
            return Some(refused.into_response());
        }
        let checked = self.hosts.check(request.uri(), request.headers());
        let why = checked.and_then(|()| check_site(request)).err()?;
        Some((StatusCode::FORBIDDEN, format!("{why}\n")).into_response())
    }

    /// Answers those who have the right, and tells the others what they lack.
    async fn pass(&self, mut request: Request, next: Next) -> Response {
        let rights = self.access.rights(request.uri(), request.headers());
        let (is_post, path) = (request.method() == Method::POST, request.uri().path());
        if matches!(path, "/" | "/index.html")
            && !is_post
            && let Some(address) = self.access.address_without_token(request.uri())
            && let Some(cookie) = self.access.cookie(request.headers(), self.is_secure)
        {
            let headers = [(header::LOCATION, address), (header::SET_COOKIE, cookie)];
            return (StatusCode::SEE_OTHER, headers).into_response();
        }
        if !rights.watch && !OPEN.contains(&path) {
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            let page = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
            return match path {
                "/" | "/index.html" => (StatusCode::UNAUTHORIZED, challenge, page, WANTED).into_response(),
                _ => (StatusCode::UNAUTHORIZED, challenge, UNAUTHORIZED).into_response(),
            };
        }
        if rights.watch
            && let Some(heard) = request.extensions().get::<Heard>()
        {
            heard.has_the_right();
        }
        request.extensions_mut().insert(rights);
        next.run(request).await
    }
}

/// What a program is told that asks without the token.
pub(super) const UNAUTHORIZED: &str =
    "this takes the token that the program printed: as `Authorization: Bearer TOKEN` or as `?token=TOKEN`\n";

/// Under which names the server may be asked.
#[derive(Debug)]
pub(super) struct Hosts {
    listening: IpAddr,
    allowed: Vec<String>,
}

impl Hosts {
    /// Those of `listening`, and `allowed`; or that of them which is no name.
    pub(super) fn new(listening: SocketAddr, allowed: &[String]) -> Result<Self, String> {
        let is_name = |name: &str| {
            let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            without_brackets(name).parse::<IpAddr>().is_ok()
                || (!name.is_empty() && name.len() < 254 && name.bytes().all(is_fine))
        };
        match allowed.iter().find(|name| !is_name(name)) {
            Some(wrong) => Err(wrong.clone()),
            None => {
                let allowed = allowed.iter().map(|name| without_brackets(name).to_ascii_lowercase()).collect();
                Ok(Self { listening: listening.ip(), allowed })
            }
        }
    }

    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
        let mut hosts = headers.get_all(header::HOST).into_iter().map(authority);
        let (Some(Some(host)), None) = (hosts.next(), hosts.next()) else {
            return Err("the request does not name one host");
        };
        // Who asks as one asks a proxy names it twice, and the one in the address is the one that counts.
        if !self.is_own(host.host()) || !uri.authority().is_none_or(|asked| self.is_own(asked.host())) {
            return Err("this server answers to localhost, to the address it listens on and to names given by \
                        --allow-host, and to no other name");
        }
        let mut origins = headers.get_all(header::ORIGIN).into_iter();
        // The port is not compared with the server's own: it may be reached through a forwarded one.
        let is_same = match (origins.next(), origins.next()) {
            (None, _) => true,
            (Some(origin), None) => origin.to_str().is_ok_and(|origin| self.is_own_origin(origin, &host)),
            (Some(_), Some(_)) => false,
        };
        if is_same { Ok(()) } else { Err("the request comes from a page of another origin") }
    }

    fn is_own(&self, host: &str) -> bool {
        let host = without_brackets(host);
        let is_allowed = self.allowed.iter().any(|name| name.eq_ignore_ascii_case(host));
        is_allowed
            || match host.parse::<IpAddr>() {
                // Where every address is listened on, any may be this machine's; only names can be made to point here.
                Ok(ip) => ip.is_loopback() || ip == self.listening || self.listening.is_unspecified(),
                Err(_) => host.eq_ignore_ascii_case("localhost"),
            }
    }

    fn is_own_origin(&self, origin: &str, host: &Authority) -> bool {
        let Some(("http" | "https", from)) = origin.split_once("://") else { return false };
        // A proxy may tell its own name as `Host` without the port that the browser sees.
        let from_allowed = || {
            let from = from.parse::<Authority>().ok().filter(|from| !from.as_str().contains('@'));
            from.is_some_and(|from| {
                self.allowed.iter().any(|name| name.eq_ignore_ascii_case(without_brackets(from.host())))
            })
        };
        from.eq_ignore_ascii_case(host.as_str()) || from_allowed()
    }
}

/// Refuses what a page of another site makes a browser ask for without an `Origin`, as for an image or a script. A link to the page is good wherever it
/// stands, and who is no browser says nothing of this.
fn check_site(request: &Request) -> Result<(), &'static str> {
    let headers = request.headers();
    let says = |name: &str, value: &str| headers.get_all(name).iter().any(|said| said == value);
    let is_foreign = says("sec-fetch-site", "cross-site") || says("sec-fetch-site", "same-site");
    // An origin that was looked at may be of another site: a name that is allowed.
    let has_origin = headers.contains_key(header::ORIGIN);
    let is_link = says("sec-fetch-mode", "navigate") && request.method() == Method::GET && request.uri().path() == "/";
    if !is_foreign || has_origin || is_link { Ok(()) } else { Err("the request comes from a page of another site") }
}

/// The host that a header names, and its port; nobody has a user's name before it.
fn authority(header: &HeaderValue) -> Option<Authority> {
    let host = header.to_str().ok()?.parse::<Authority>().ok()?;
    (!host.as_str().contains('@')).then_some(host)
}

fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(listening: &str, allowed: &[&str], uri: &str, headers: &[(HeaderName, &str)]) -> bool {
        let allowed: Vec<String> = allowed.iter().map(|&name| name.to_owned()).collect();
        let hosts = Hosts::new(listening.parse().expect("an address"), &allowed).expect("names");
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, HeaderValue::from_str(value).expect("a header value"));
        }
        hosts.check(&uri.parse().expect("an address"), &map).is_ok()
    }

    #[track_caller]
    fn check_request(host: &str, origin: Option<&str>, allowed: bool) {
        let headers: Vec<_> =
            [(header::HOST, host)].into_iter().chain(origin.map(|origin| (header::ORIGIN, origin))).collect();
        assert_eq!(answers("127.0.0.1:7791", &[], "/ws", &headers), allowed, "host {host}, origin {origin:?}");
    }

    #[test]
    fn only_this_machine_is_a_host() {
        check_request("127.0.0.1:7791", None, true);
        check_request("localhost:7791", None, true);
        check_request("LOCALHOST", None, true);
        check_request("localhost:9000", None, true);
        check_request("[::1]:7791", None, true);
        check_request("127.1.2.3:7791", None, true);
        check_request("evil.example:7791", None, false);
        check_request("localhost.evil.example:7791", None, false);
        check_request("127.0.0.1.evil.example", None, false);
        check_request("evil.example@localhost", None, false);
        check_request("192.168.1.5:7791", None, false);
        check_request("", None, false);
        check_request("a b", None, false);
    }

    #[test]
    fn only_the_own_origin_may_ask() {
        check_request("localhost:7791", Some("http://localhost:7791"), true);
        check_request("localhost:7791", Some("http://localhost:7792"), false);
        check_request("localhost:7791", Some("http://127.0.0.1:7791"), false);
        check_request("localhost:7791", Some("http://evil.example"), false);
        check_request("localhost:7791", Some("null"), false);
        check_request("localhost:7791", Some("file://localhost:7791"), false);
        check_request("evil.example", Some("http://evil.example"), false);
    }

    #[test]
    fn names_that_are_allowed_are_hosts_and_origins() {
        let allowed = ["gpu1.example.org", "192.0.2.7", "[2001:db8::1]"];
        let check = |listening: &str, host: &str, origin: Option<&str>, expected: bool| {
            let headers: Vec<_> =
                [(header::HOST, host)].into_iter().chain(origin.map(|origin| (header::ORIGIN, origin))).collect();
            assert_eq!(answers(listening, &allowed, "/", &headers), expected, "{listening} {host} {origin:?}");
        };
        for listening in ["127.0.0.1:7791", "192.168.1.5:7791"] {
            check(listening, "GPU1.example.org", None, true);
            check(listening, "gpu1.example.org:8443", Some("https://gpu1.example.org:8443"), true);
            check(listening, "gpu1.example.org", Some("https://gpu1.example.org:8443"), true);
            check(listening, "127.0.0.1:7791", Some("https://gpu1.example.org"), true);
            check(listening, "192.0.2.7", None, true);
            check(listening, "[2001:db8::1]:80", None, true);
            check(listening, "gpu1.example.org", Some("https://evil.example"), false);
            check(listening, "gpu1.example.org", Some("https://gpu1.example.org@evil.example"), false);
            check(listening, "gpu1.example.org", Some("https://evil.example@gpu1.example.org"), false);
            check(listening, "gpu1.example.org.evil.example", None, false);
            check(listening, "gpu2.example.org", None, false);
            check(listening, "192.168.1.6", None, false);
        }
        check("192.168.1.5:7791", "192.168.1.5:7791", Some("http://192.168.1.5:7791"), true);
        check("0.0.0.0:7791", "192.168.1.5:7791", Some("http://192.168.1.5:7791"), true);
        check("[::]:7791", "[2001:db8::2]:7791", None, true);
        check("0.0.0.0:7791", "rebound.example:7791", None, false);
        for wrong in ["", "http://a.example", "a.example/", "a b", "a.example:443", "*"] {
            let refused = Hosts::new("127.0.0.1:1".parse().expect("an address"), &[wrong.to_owned()]);
            assert_eq!(refused.err().as_deref(), Some(wrong));
        }
    }

    #[test]
    fn from_another_site_only_links_to_the_page_lead_here() {
        let check = |asked: &str, site: &str, mode: &str, origin: Option<&str>, expected: bool| {
            let (method, path) = asked.split_once(' ').expect("a method and a path");
            let mut request = Request::builder().method(method).uri(path);
            for (name, value) in [("sec-fetch-site", site), ("sec-fetch-mode", mode)] {
                request = if value.is_empty() { request } else { request.header(name, value) };
            }
            let request = origin.into_iter().fold(request, |request, origin| request.header(header::ORIGIN, origin));
            let request = request.body(axum::body::Body::empty()).expect("a request");
            assert_eq!(check_site(&request).is_ok(), expected, "{asked} {site} {mode} {origin:?}");
        };
        for site in ["cross-site", "same-site"] {
            check("GET /", site, "navigate", None, true);
            check("GET /?trace=files/0/a.vram", site, "navigate", None, true);
            check("GET /trace.vram", site, "no-cors", None, false);
            check("GET /trace.vram", site, "navigate", None, false);
            check("GET /healthz", site, "", None, false);
            check("GET /", site, "no-cors", None, false);
            check("HEAD /", site, "navigate", None, false);
            check("POST /commands/mark", site, "navigate", None, false);
            check("POST /commands/mark", site, "cors", Some("https://gpu1.example.org"), true);
        }
        for site in ["same-origin", "none", ""] {
            check("GET /trace.vram", site, "cors", None, true);
            check("POST /commands/mark", site, "cors", None, true);
        }
    }

    #[test]
    fn one_host_is_named_once() {
        let own = (header::HOST, "localhost:7791");
        let check = |uri: &str, headers: &[(HeaderName, &str)], expected: bool| {
            assert_eq!(answers("127.0.0.1:7791", &[], uri, headers), expected, "{uri} {headers:?}");
        };
        check("/", &[], false);
        check("/", &[own.clone(), (header::HOST, "evil.example")], false);
        check("http://localhost:7791/", std::slice::from_ref(&own), true);
        check("http://evil.example/", std::slice::from_ref(&own), false);
        let origin = (header::ORIGIN, "http://localhost:7791");
        check("/", &[own.clone(), origin.clone(), (header::ORIGIN, "http://evil.example")], false);
        check("/", &[own, origin], true);
    }
}
