//! The address of a server, as a user writes it.

use std::fmt;

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

/// Returns the error that text is not an address, for this reason.
fn invalid(reason: impl fmt::Display) -> AddressError {
    AddressError { reason: reason.to_string() }
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
        let query = self.parameters.iter().chain(parameters).map(String::as_str).collect::<Vec<_>>().join("&");
        let separator = if query.is_empty() { "" } else { "?" };
        format!("{scheme}://{}{}/{path}{separator}{query}", self.authority, self.path_prefix)
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
    fn invalid_addresses_are_refused() {
        for invalid in ["", "ftp://127.0.0.1/", "http://", "http://:1/", "http://a b/"] {
            assert!(Address::parse(invalid).is_err(), "{invalid}");
        }
    }
}
