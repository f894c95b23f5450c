//! Options for starting a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::access::Token;

/// The entry of [`ServerOptions::allow_hosts`] that accepts every host name.
pub const ANY_HOST: &str = "*";

/// Options for starting a server.
///
/// The default listens on loopback, at [`DEFAULT_PORT`](super::DEFAULT_PORT) or the next free
/// port, without a token.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// The address to listen on; port 0 takes any free port. `None` is loopback at
    /// [`DEFAULT_PORT`](super::DEFAULT_PORT). If the port is in use, the next free one is taken.
    pub listen: Option<SocketAddr>,
    /// Secret that clients must send.
    ///
    /// With `None`, a random token is generated if other machines can reach the address. On
    /// loopback, one is generated for commands only, if [`ServedContent`](super::ServedContent) has
    /// controls.
    pub token: Option<Token>,
    /// Host names under which browsers reach the server besides its address, such as a proxy's.
    ///
    /// [`ANY_HOST`] accepts every name, for a proxy whose name is unknown. Then every request needs
    /// the token, which is generated if `token` is `None`.
    pub allow_hosts: Vec<String>,
    /// Certificate and key for HTTPS. `None` serves plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Limits on connections.
    pub limits: ServerLimits,
}

/// Paths of the PEM files with a TLS certificate and its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by its intermediate certificates.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
}

/// Limits on the number of a server's connections, and on the time that a client may take for a TLS
/// handshake, for a request, or to send its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// The most connections at once.
    ///
    /// At the limit, a new connection replaces the oldest that has not been authorized yet; if
    /// all are authorized, the new one is refused.
    pub connections: usize,
    /// The most WebSockets at once; a further one is closed at once.
    pub sockets: usize,
    /// The most time that a client may take for each of: TLS handshake, a request's head, its body,
    /// and sending its token. Then the server closes the connection or refuses the request.
    pub client_timeout: Duration,
}

impl ServerOptions {
    /// Returns true if requests may have any host name and therefore need the token.
    #[must_use]
    pub fn allows_any_host(&self) -> bool {
        self.allow_hosts.iter().any(|name| name == ANY_HOST)
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self { connections: 256, sockets: 224, client_timeout: Duration::from_secs(5) }
    }
}
