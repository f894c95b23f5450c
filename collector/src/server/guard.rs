//! Checks every request before it is handled, and adds the security headers to every response.
//!
//! - `Host`: a foreign page can make its own host name resolve to this machine (DNS rebinding), so
//!   only host names of this server are accepted.
//! - `Origin`: a foreign page can open a WebSocket or submit a form, so requests from other origins
//!   are refused. Browsers send no `Origin` for images and scripts; then `Sec-Fetch-Site` is
//!   checked.
//! - The token, if the server has one.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::uri::{Authority, Uri};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::accept::ConnectionHandle;
use super::access::Access;
use super::options::ANY_HOST;

/// A `Content-Security-Policy` that lets the page load, run, connect to and embed this server's own
/// files only, and lets only pages of the same origin embed it: a notebook, if the page comes
/// through the proxy of the notebook's server.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; \
     img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; worker-src 'self'; manifest-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'self'";

/// Names and values of the security headers, which every response has.
const SECURITY_HEADERS: [(&str, &str); 5] = [
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];

/// Paths that need no token in the request. `/healthz` is open to all; `/ws` takes the token in the
/// request or in its first message.
const PATHS_WITHOUT_TOKEN: [&str; 2] = ["/healthz", "/ws"];

/// HTML page shown to a browser that opened the page without the token.
const TOKEN_REQUIRED_PAGE: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>vramscope</title>\
    <h1>This server needs a token</h1><p>Open the full address that the program printed: the line that begins with \
    <code>listening:</code>, including <code>?token=\u{2026}</code> at its end.</p></html>\n";

/// Text sent to a client that needs the token and did not send it, except to a browser that opens
/// the page.
pub(super) const TOKEN_REQUIRED: &str = "this server needs the token that the program printed: \
    send it as `Authorization: Bearer TOKEN` or `?token=TOKEN`\n";

/// Paths of pages. A browser that opens one without the token gets [`TOKEN_REQUIRED_PAGE`].
const PAGES: [&str; 3] = ["/", "/index.html", FLEET_PAGE];

/// The path of the fleet page.
const FLEET_PAGE: &str = "/fleet/";

/// The checks that every request must pass: host, origin and token.
#[derive(Debug)]
pub(super) struct Guard {
    pub(super) hosts: HostPolicy,
    pub(super) access: Arc<Access>,
    /// True if the server itself speaks HTTPS.
    pub(super) is_https: bool,
}

/// Checks a request, passes it on if it is allowed, and adds the security headers to the response.
pub(super) async fn check_request(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match guard.refusal(&request) {
        Some(refusal) => refusal,
        None => guard.authorize(request, next).await,
    };
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    // Another program may listen at this address later, so the browser may cache nothing.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

impl Guard {
    /// Returns the response that refuses a request for its method, its `Transfer-Encoding`, its
    /// host or its origin; `None` if the request passes.
    fn refusal(&self, request: &Request) -> Option<Response> {
        if !matches!(*request.method(), Method::GET | Method::HEAD | Method::POST) {
            let allowed = [(header::ALLOW, "GET, HEAD, POST")];
            return Some((StatusCode::METHOD_NOT_ALLOWED, allowed, "method not allowed\n").into_response());
        }
        if request.headers().contains_key(header::TRANSFER_ENCODING) {
            // Bodies are small and need no chunked encoding. A body with two lengths could smuggle
            // in a second request that a proxy in front of this server has not checked.
            let close = [(header::CONNECTION, "close")];
            let refusal = (StatusCode::LENGTH_REQUIRED, close, "a request body needs a Content-Length\n");
            return Some(refusal.into_response());
        }
        let checked = self.hosts.check(request.uri(), request.headers());
        let reason = checked.and_then(|()| check_fetch_site(request)).err()?;
        Some((StatusCode::FORBIDDEN, format!("{reason}\n")).into_response())
    }

    /// Passes a request on if it has the token or needs no token; otherwise asks for the token. A
    /// browser that sent the token in the page's URL is redirected and gets a cookie.
    async fn authorize(&self, mut request: Request, next: Next) -> Response {
        let rights = self.access.rights(request.uri(), request.headers());
        let (is_post, path) = (request.method() == Method::POST, request.uri().path());
        if matches!(path, "/" | "/index.html")
            && !is_post
            && let Some(address) = self.access.address_without_token(request.uri())
            && let Some(cookie) = self.access.cookie(request.headers(), self.is_https)
        {
            let headers = [(header::LOCATION, address), (header::SET_COOKIE, cookie)];
            return (StatusCode::SEE_OTHER, headers).into_response();
        }
        if path == FLEET_PAGE
            && !is_post
            && let Some(parameter) = self.access.token_parameter(request.uri())
        {
            // A cookie set at `/` applies to all paths; one set at `/fleet/` only to `/fleet/`.
            let headers = [(header::LOCATION, format!("../?{parameter}&fleet"))];
            return (StatusCode::SEE_OTHER, headers).into_response();
        }
        if !rights.can_view && !PATHS_WITHOUT_TOKEN.contains(&path) {
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            let html = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
            return match path {
                path if PAGES.contains(&path) => {
                    (StatusCode::UNAUTHORIZED, challenge, html, TOKEN_REQUIRED_PAGE).into_response()
                }
                _ => (StatusCode::UNAUTHORIZED, challenge, TOKEN_REQUIRED).into_response(),
            };
        }
        if rights.can_view
            && let Some(connection) = request.extensions().get::<ConnectionHandle>()
        {
            connection.mark_authorized();
        }
        request.extensions_mut().insert(rights);
        next.run(request).await
    }
}

/// The host names and origins that requests may have, as a protection against DNS rebinding.
#[derive(Debug)]
pub(super) struct HostPolicy {
    listening: IpAddr,
    /// Additional names, in lower case and without the brackets of an IPv6 address.
    allowed: Vec<String>,
    /// True if any name is accepted, because every request needs the token.
    allows_any: bool,
}

impl HostPolicy {
    /// Accepts the address `listening` and the names `allowed`, or any name if one of them is
    /// [`ANY_HOST`]. Returns the first of them that is not a host name as an error.
    pub(super) fn new(listening: SocketAddr, allowed: &[String]) -> Result<Self, String> {
        let is_name = |name: &str| {
            let is_allowed_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            without_brackets(name).parse::<IpAddr>().is_ok()
                || (!name.is_empty() && name.len() < 254 && name.bytes().all(is_allowed_byte))
        };
        let (any, names): (Vec<&String>, Vec<&String>) = allowed.iter().partition(|name| *name == ANY_HOST);
        match names.iter().find(|name| !is_name(name)) {
            Some(invalid) => Err((*invalid).clone()),
            None => {
                let allowed = names.iter().map(|name| without_brackets(name).to_ascii_lowercase()).collect();
                Ok(Self { listening: listening.ip(), allowed, allows_any: !any.is_empty() })
            }
        }
    }

    /// Checks that the request's `Host` and `Origin` name this server. The error says why the
    /// request is refused.
    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
        let mut hosts = headers.get_all(header::HOST).into_iter().map(parse_authority);
        let (Some(Some(host)), None) = (hosts.next(), hosts.next()) else {
            return Err("the request must have exactly one Host header");
        };
        // A request in absolute form, as clients send it to proxies, also has the host in its URL,
        // which takes precedence over the header.
        let is_own_url = uri.authority().is_none_or(|authority| self.is_own_host(authority.host()));
        if !self.is_own_host(host.host()) || !is_own_url {
            return Err("unknown host name: use localhost, the address that the server listens on, or a name \
                        given with --allow-host");
        }
        let mut origins = headers.get_all(header::ORIGIN).into_iter();
        // The origin must equal the Host header. Its port may differ from the listening port, for
        // example behind an SSH tunnel.
        let is_same = match (origins.next(), origins.next()) {
            (None, _) => true,
            (Some(origin), None) => origin.to_str().is_ok_and(|origin| self.is_own_origin(origin, &host)),
            (Some(_), Some(_)) => false,
        };
        if is_same { Ok(()) } else { Err("the request comes from a page of another origin") }
    }

    /// Returns true if `host`, a name or an IP address, is one by which clients may reach this
    /// server.
    fn is_own_host(&self, host: &str) -> bool {
        let host = without_brackets(host);
        let is_allowed = self.allowed.iter().any(|name| name.eq_ignore_ascii_case(host));
        self.allows_any
            || is_allowed
            || match host.parse::<IpAddr>() {
                // A server on the unspecified address accepts any IP address: only names can be
                // rebound to this machine.
                Ok(ip) => ip.is_loopback() || ip == self.listening || self.listening.is_unspecified(),
                Err(_) => host.eq_ignore_ascii_case("localhost"),
            }
    }

    /// Returns true if the header `Origin` names the request's `host` or an allowed name, false if
    /// a page of another server made the request.
    fn is_own_origin(&self, origin: &str, host: &Authority) -> bool {
        let Some(("http" | "https", origin)) = origin.split_once("://") else { return false };
        // A proxy may send its name as `Host` without the port that the browser sees.
        let is_allowed = || {
            let origin = origin.parse::<Authority>().ok().filter(|origin| !origin.as_str().contains('@'));
            origin.is_some_and(|origin| {
                self.allowed.iter().any(|name| name.eq_ignore_ascii_case(without_brackets(origin.host())))
            })
        };
        origin.eq_ignore_ascii_case(host.as_str()) || is_allowed()
    }
}

/// Refuses requests without `Origin` that a page of another site caused, for example by an image.
/// Allows links to the page, and clients other than browsers, which do not send the headers
/// `Sec-Fetch-Site` and `Sec-Fetch-Mode`.
fn check_fetch_site(request: &Request) -> Result<(), &'static str> {
    let headers = request.headers();
    let has = |name: &str, value: &str| headers.get_all(name).iter().any(|sent| sent == value);
    let is_foreign = has("sec-fetch-site", "cross-site") || has("sec-fetch-site", "same-site");
    // `HostPolicy` has checked the origin, and allows origins of other sites with an allowed name.
    let has_origin = headers.contains_key(header::ORIGIN);
    let is_link = has("sec-fetch-mode", "navigate")
        && request.method() == Method::GET
        && ["/", FLEET_PAGE].contains(&request.uri().path());
    if !is_foreign || has_origin || is_link { Ok(()) } else { Err("the request comes from a page of another site") }
}

/// Parses a header value with a host and an optional port. `None` if it is invalid or has user
/// information before the host.
fn parse_authority(header: &HeaderValue) -> Option<Authority> {
    let host = header.to_str().ok()?.parse::<Authority>().ok()?;
    (!host.as_str().contains('@')).then_some(host)
}

/// Returns `host` without the brackets around an IPv6 address; other hosts are returned unchanged.
fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(listening: &str, allowed: &[&str], uri: &str, headers: &[(HeaderName, &str)]) -> bool {
        let allowed: Vec<String> = allowed.iter().map(|&name| name.to_owned()).collect();
        let address = listening.parse().expect("a valid address");
        let hosts = HostPolicy::new(address, &allowed).expect("valid host names");
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, HeaderValue::from_str(value).expect("a valid header value"));
        }
        hosts.check(&uri.parse().expect("a valid URI"), &map).is_ok()
    }

    #[track_caller]
    fn check_request(host: &str, origin: Option<&str>, allowed: bool) {
        let headers: Vec<_> =
            [(header::HOST, host)].into_iter().chain(origin.map(|origin| (header::ORIGIN, origin))).collect();
        assert_eq!(is_allowed("127.0.0.1:7791", &[], "/ws", &headers), allowed, "host {host}, origin {origin:?}");
    }

    #[test]
    fn only_host_names_of_this_machine_are_accepted() {
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
    fn only_the_servers_own_origin_is_accepted() {
        check_request("localhost:7791", Some("http://localhost:7791"), true);
        check_request("localhost:7791", Some("http://localhost:7792"), false);
        check_request("localhost:7791", Some("http://127.0.0.1:7791"), false);
        check_request("localhost:7791", Some("http://evil.example"), false);
        check_request("localhost:7791", Some("null"), false);
        check_request("localhost:7791", Some("file://localhost:7791"), false);
        check_request("evil.example", Some("http://evil.example"), false);
    }

    #[test]
    fn allowed_host_names_are_accepted_as_hosts_and_origins() {
        let allowed = ["gpu1.example.org", "192.0.2.7", "[2001:db8::1]"];
        let check = |listening: &str, host: &str, origin: Option<&str>, expected: bool| {
            let headers: Vec<_> =
                [(header::HOST, host)].into_iter().chain(origin.map(|origin| (header::ORIGIN, origin))).collect();
            assert_eq!(is_allowed(listening, &allowed, "/", &headers), expected, "{listening} {host} {origin:?}");
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
        for invalid in ["", "http://a.example", "a.example/", "a b", "a.example:443", "*.example"] {
            let hosts = HostPolicy::new("127.0.0.1:1".parse().expect("a valid address"), &[invalid.to_owned()]);
            assert_eq!(hosts.err().as_deref(), Some(invalid));
        }
    }

    #[test]
    fn any_host_name_may_be_allowed_but_no_other_origin() {
        let check = |host: &str, origin: Option<&str>, expected: bool| {
            let headers: Vec<_> =
                [(header::HOST, host)].into_iter().chain(origin.map(|origin| (header::ORIGIN, origin))).collect();
            let allowed = [ANY_HOST, "gpu1.example.org"];
            assert_eq!(is_allowed("127.0.0.1:7791", &allowed, "/", &headers), expected, "{host} {origin:?}");
        };
        check("hub.example.org", None, true);
        check("192.0.2.7:8888", Some("http://192.0.2.7:8888"), true);
        check("hub.example.org", Some("https://hub.example.org"), true);
        check("hub.example.org", Some("https://gpu1.example.org"), true);
        check("hub.example.org", Some("https://evil.example"), false);
        check("hub.example.org", Some("null"), false);
        check("a b", None, false);
    }

    #[test]
    fn other_sites_may_only_link_to_the_page() {
        let check = |method_and_path: &str, site: &str, mode: &str, origin: Option<&str>, expected: bool| {
            let (method, path) = method_and_path.split_once(' ').expect("a method and a path");
            let mut request = Request::builder().method(method).uri(path);
            for (name, value) in [("sec-fetch-site", site), ("sec-fetch-mode", mode)] {
                request = if value.is_empty() { request } else { request.header(name, value) };
            }
            let request = origin.into_iter().fold(request, |request, origin| request.header(header::ORIGIN, origin));
            let request = request.body(axum::body::Body::empty()).expect("a valid request");
            assert_eq!(check_fetch_site(&request).is_ok(), expected, "{method_and_path} {site} {mode} {origin:?}");
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
    fn request_must_have_exactly_one_host() {
        let own_host = (header::HOST, "localhost:7791");
        let check = |uri: &str, headers: &[(HeaderName, &str)], expected: bool| {
            assert_eq!(is_allowed("127.0.0.1:7791", &[], uri, headers), expected, "{uri} {headers:?}");
        };
        check("/", &[], false);
        check("/", &[own_host.clone(), (header::HOST, "evil.example")], false);
        check("http://localhost:7791/", std::slice::from_ref(&own_host), true);
        check("http://evil.example/", std::slice::from_ref(&own_host), false);
        let origin = (header::ORIGIN, "http://localhost:7791");
        check("/", &[own_host.clone(), origin.clone(), (header::ORIGIN, "http://evil.example")], false);
        check("/", &[own_host, origin], true);
    }
}
