//! Who may ask, and what a browser may do with the answer.
//!
//! The server has no password: it listens on this machine only, and what keeps other people out is that they are not on it. What
//! remains is a browser on this machine that shows somebody else's page. Such a page can send requests here under a name of its
//! own that it made point to this machine (DNS rebinding), which the `Host` header tells, or open a WebSocket, which the `Origin`
//! header tells.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{StatusCode, uri::Authority};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

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

/// Answers a request, if it may be asked, with the security headers on the answer.
pub(super) async fn guard(listening: SocketAddr, request: Request, next: Next) -> Response {
    let mut response = match check(listening, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(why) => (StatusCode::FORBIDDEN, format!("{why}\n")).into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    // What is served changes with the program that serves it, so nothing is ever kept.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn check(listening: SocketAddr, headers: &HeaderMap) -> Result<(), &'static str> {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let host = host.and_then(|host| host.parse::<Authority>().ok()).ok_or("the request names no host")?;
    if !is_this_machine(listening, host.host()) {
        return Err("this server answers to localhost and to the address it listens on, and to no other name");
    }
    // The port is not compared with the server's own: it may be reached through a forwarded one.
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    if origin
        .is_some_and(|(scheme, from)| matches!(scheme, "http" | "https") && from.eq_ignore_ascii_case(host.as_str()))
    {
        return Ok(());
    }
    Err("the request comes from a page of another origin")
}

fn is_this_machine(listening: SocketAddr, host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    match address.parse::<IpAddr>() {
        Ok(ip) => ip.is_loopback() || ip == listening.ip(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_request(host: &str, origin: Option<&str>, allowed: bool) {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).expect("a header value"));
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, HeaderValue::from_str(origin).expect("a header value"));
        }
        let listening = SocketAddr::from(([127, 0, 0, 1], 7791));
        assert_eq!(check(listening, &headers).is_ok(), allowed, "host {host}, origin {origin:?}");
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
    fn a_request_without_a_host_is_refused() {
        assert!(check(SocketAddr::from(([127, 0, 0, 1], 1)), &HeaderMap::new()).is_err());
    }
}
