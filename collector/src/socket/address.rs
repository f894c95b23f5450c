//! The address of a server, as a user writes it.

use std::fmt;
use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use tungstenite::http::Uri;

/// The address of a server, for example `http://127.0.0.1:7791/?token=…`.
///
/// It may have the path prefix of a proxy, and the token that the program printed. `https` and
/// `wss` use TLS; without a scheme it is `http`. Neither `{}` nor `{:?}` shows the token.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    is_tls: bool,
    authority: String,
    host: String,
    port: u16,
    /// The server's path prefix, without a trailing slash.
    path_prefix: String,
    /// Parameters other than the token, which are sent with every request.
    parameters: Vec<String>,
    token: Option<String>,
}

/// Error for text that is not the address of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address: {reason}")]
pub struct AddressError {
    reason: String,
}

impl AddressError {
    /// Creates the error that text is not an address, for this reason, which must not contain
    /// secrets of the address.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self { reason: reason.to_string() }
    }
}

/// Returns the error that text is not an address, for this reason.
fn invalid(reason: impl fmt::Display) -> AddressError {
    AddressError::new(reason)
}

impl Address {
    /// Parses an address. If the path ends with the endpoint `ws` or `push`, that part is left out.
    ///
    /// # Errors
    /// If the text is not a URL with a host and one of the schemes `http`, `https`, `ws` and `wss`.
    pub fn parse(url: &str) -> Result<Self, AddressError> {
        let url = url.split('#').next().unwrap_or_default();
        let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = with_scheme.parse().map_err(invalid)?;
        let is_tls = match uri.scheme_str() {
            Some("http" | "ws") => false,
            Some("https" | "wss") => true,
            _ => return Err(invalid("the scheme must be http, https, ws or wss")),
        };
        let authority = uri.authority().ok_or_else(|| invalid("the host is missing"))?;
        // User information before the host is dropped: the server does not use it.
        let authority = authority.as_str().rsplit('@').next().unwrap_or_default().to_owned();
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(invalid("the host is missing"));
        }
        let path = uri.path().trim_end_matches('/');
        let prefix = path.strip_suffix("/ws").or_else(|| path.strip_suffix("/push")).unwrap_or(path);
        let (mut parameters, mut token) = (Vec::new(), None);
        for parameter in uri.query().unwrap_or_default().split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                // Only percent-decoded: form decoding would turn a `+` of the token into a space.
                Some(("token", value)) => token = Some(percent_decode_str(value).decode_utf8_lossy().into_owned()),
                _ => parameters.push(parameter.to_owned()),
            }
        }
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let path_prefix = prefix.trim_end_matches('/').to_owned();
        Ok(Self { is_tls, authority, host, port, path_prefix, parameters, token })
    }

    /// Returns the WebSocket URL of the server's endpoint `path`, without the token. `parameters`
    /// (`name=value`) are added to the address's own.
    pub(super) fn url(&self, path: &str, parameters: &[String]) -> String {
        let scheme = if self.is_tls { "wss" } else { "ws" };
        format!("{scheme}://{}{}", self.authority, self.target_with(path, parameters))
    }

    /// Returns the target of an HTTP request for the server's file `path`, without the token.
    #[cfg(feature = "follow")]
    pub(super) fn target(&self, path: &str) -> String {
        self.target_with(path, &[])
    }

    /// Returns path and query for the server's endpoint `path` with additional parameters.
    fn target_with(&self, path: &str, parameters: &[String]) -> String {
        let query = self.parameters.iter().chain(parameters).map(String::as_str).collect::<Vec<_>>().join("&");
        let separator = if query.is_empty() { "" } else { "?" };
        format!("{}/{path}{separator}{query}", self.path_prefix)
    }

    /// Returns host and port as the `Host` header has them.
    #[cfg(feature = "follow")]
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the host name or IP address, without the brackets of an IPv6 address.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port, or the scheme's default: 80 or 443.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Returns true if the connection uses TLS (`https`, `wss`), false for plain TCP.
    pub(super) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Returns true if the host is this machine: `localhost`, or an IP address of the loopback
    /// interface.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let is_loopback_ip = self.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        is_loopback_ip || self.host.eq_ignore_ascii_case("localhost")
    }

    /// Returns true if this address has the scheme, host and port of `prefix`, and the path of
    /// `prefix` or one below it.
    #[must_use]
    pub fn is_below(&self, prefix: &Self) -> bool {
        let rest = self.path_prefix.strip_prefix(&prefix.path_prefix);
        self.is_tls == prefix.is_tls
            && self.host.eq_ignore_ascii_case(&prefix.host)
            && self.port == prefix.port
            // A server or proxy may resolve dots in the path.
            && !self.path_prefix.contains("..")
            && !self.path_prefix.contains('%')
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Returns the token in the address; `None` if the address has no token.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Returns the address with this token. If `token` is `None`, keeps the address's own.
    #[must_use]
    pub fn with_token(self, token: Option<String>) -> Self {
        Self { token: token.or(self.token), ..self }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}/", if self.is_tls { "https" } else { "http" }, self.authority, self.path_prefix)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_address_gives_socket_url_display_text_and_token() {
        let check = |page: &str, url: &str, displayed: &str, token: Option<&str>| {
            let address = Address::parse(page).expect("a valid address");
            assert_eq!(address.url("ws", &["notes=1".to_owned()]), url);
            assert_eq!((address.to_string().as_str(), address.token()), (displayed, token));
        };
        let local = ("ws://127.0.0.1:7791/ws?notes=1", "http://127.0.0.1:7791/");
        check("http://127.0.0.1:7791/", local.0, local.1, None);
        check("http://127.0.0.1:7791", local.0, local.1, None);
        check("127.0.0.1:7791", local.0, local.1, None);
        check("127.0.0.1:7791/#view=timeline", local.0, local.1, None);
        check("ws://127.0.0.1:7791/push", local.0, local.1, None);
        check("ws://localhost:1/ws", "ws://localhost:1/ws?notes=1", "http://localhost:1/", None);
        check("http://[::1]:9/gpu/?token=x", "ws://[::1]:9/gpu/ws?notes=1", "http://[::1]:9/gpu/", Some("x"));
        check("https://a.b/c/ws?k=v&token=x", "wss://a.b/c/ws?k=v&notes=1", "https://a.b/c/", Some("x"));
        check("http://a.b/?token=a%2Bb%2fc%3D%3D", "ws://a.b/ws?notes=1", "http://a.b/", Some("a+b/c=="));
        check("http://a.b/?token=a+b/c==", "ws://a.b/ws?notes=1", "http://a.b/", Some("a+b/c=="));
        check("wss://me:secret@a.b/", "wss://a.b/ws?notes=1", "https://a.b/", None);
    }

    #[test]
    fn loopback_addresses_are_of_this_machine() {
        let check = |url: &str, expected: bool| {
            let address = Address::parse(url).expect("a valid address");
            assert_eq!(address.is_loopback(), expected, "{url}");
        };
        for url in ["http://127.0.0.1:7791/", "http://127.9.9.9/", "http://[::1]:9/", "https://LOCALHOST/"] {
            check(url, true);
        }
        for url in [
            "http://10.0.0.1/",
            "http://0.0.0.0/",
            "http://localhost.example/",
            "http://127.0.0.1.example/",
            "http://127.0.0.1@a.b/",
            "http://[::ffff:10.0.0.1]/",
        ] {
            check(url, false);
        }
    }

    #[test]
    fn prefix_of_an_address_has_its_host_and_whole_parts_of_its_path() {
        let address = |url: &str| Address::parse(url).expect("a valid address");
        let check = |url: &str, prefix: &str, expected: bool| {
            assert_eq!(address(url).is_below(&address(prefix)), expected, "{url} below {prefix}");
        };
        check("https://a.b/gpu/?token=x", "https://a.b/", true);
        check("https://a.b/gpu/1/", "https://a.b/gpu", true);
        check("https://A.b:443/gpu", "https://a.b/gpu/", true);
        check("https://a.b/gpus/", "https://a.b/gpu", false);
        check("https://a.b/gpu/../admin/", "https://a.b/gpu", false);
        check("https://a.b/gpu/%2e%2e/admin/", "https://a.b/gpu", false);
        check("https://a.b.evil/gpu/", "https://a.b/", false);
        check("https://a.b@evil/gpu/", "https://a.b/", false);
        check("http://a.b/gpu/", "https://a.b/", false);
        check("https://a.b:8443/", "https://a.b/", false);
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for invalid in ["", "ftp://127.0.0.1/", "http://", "http://:1/", "http://a b/"] {
            assert!(Address::parse(invalid).is_err(), "{invalid}");
        }
    }
}
