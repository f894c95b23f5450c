//! Where a server is, as a person writes it down.

use std::fmt;

use tungstenite::http::Uri;

use crate::server::unescaped;

/// The address of a server: `http://127.0.0.1:7791/`, with the path that a proxy puts before it and the token that was printed with it.
/// `https` and `wss` are TLS; without a scheme it is `http`. The token is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    is_tls: bool,
    authority: String,
    host: String,
    port: u16,
    /// Without a slash at its end.
    folder: String,
    /// What else is asked with every request.
    query: Vec<String>,
    token: Option<String>,
}

impl Address {
    /// Reads an address; its last step may be `ws` or `push`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(url: &str) -> Result<Self, String> {
        let url = url.split('#').next().unwrap_or_default();
        let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = with_scheme.parse().map_err(|error| format!("not an address: {error}"))?;
        let is_tls = match uri.scheme_str() {
            Some("http" | "ws") => false,
            Some("https" | "wss") => true,
            _ => return Err("not an address: it begins with none of http://, https://, ws:// and wss://".to_owned()),
        };
        let authority = uri.authority().ok_or("not an address: it names no host")?;
        // A name and password before the host are not for the request line either; nothing here has any.
        let authority = authority.as_str().rsplit('@').next().unwrap_or_default().to_owned();
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err("not an address: it names no host".to_owned());
        }
        let path = uri.path().trim_end_matches('/');
        let folder = path.strip_suffix("/ws").or_else(|| path.strip_suffix("/push")).unwrap_or(path);
        let (mut query, mut token) = (Vec::new(), None);
        for parameter in uri.query().unwrap_or_default().split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("token", value)) => token = Some(unescaped(value)),
                _ => query.push(parameter.to_owned()),
            }
        }
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        Ok(Self { is_tls, authority, host, port, folder: folder.trim_end_matches('/').to_owned(), query, token })
    }

    /// What is to be asked for at `step`, with these parameters.
    pub(super) fn target(&self, step: &str, parameters: &[String]) -> String {
        let scheme = if self.is_tls { "wss" } else { "ws" };
        let query = self.query.iter().chain(parameters).map(String::as_str).collect::<Vec<_>>().join("&");
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{scheme}://{}{}/{step}{mark}{query}", self.authority, self.folder)
    }

    /// The name or number of its host.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Whether it is reached through TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The token that came with it.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The same address with another token.
    #[must_use]
    pub fn with_token(self, token: Option<String>) -> Self {
        Self { token: token.or(self.token), ..self }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}/", if self.is_tls { "https" } else { "http" }, self.authority, self.folder)
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
    fn the_socket_is_beside_the_page() {
        let check = |page: &str, expected: &str, shown: &str, token: Option<&str>| {
            let address = Address::parse(page).expect("an address");
            assert_eq!(address.target("ws", &["notes=1".to_owned()]), expected);
            assert_eq!((address.to_string().as_str(), address.token()), (shown, token));
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
    fn what_cannot_be_followed_is_refused() {
        for wrong in ["", "ftp://127.0.0.1/", "http://", "http://:1/", "http://a b/"] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
