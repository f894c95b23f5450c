//! How a server is reached, and by whom.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::access::Token;

/// How a server is reached, and by whom. The default is the next free port of this machine's own address, for everyone on it.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// The address to listen on, port 0 being any free one; `None` is this machine's own at [`DEFAULT_PORT`](super::DEFAULT_PORT). Where
    /// the port is taken, it is the next free one after it.
    pub listen: Option<SocketAddr>,
    /// What whoever asks for anything must say. Where there is none, one is made for an address that other machines reach, and one
    /// for commands alone where [`Content`](super::Content) has controls.
    pub token: Option<Token>,
    /// Names, beside its address, under which browsers reach the server: that of a proxy, for example.
    pub allow_hosts: Vec<String>,
    /// The certificate to serve HTTPS with.
    pub tls: Option<TlsFiles>,
    /// How much it takes on.
    pub limits: ServerLimits,
}

/// A certificate and its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and behind it those that vouch for it.
    pub certificate: PathBuf,
    /// The key that belongs to it.
    pub key: PathBuf,
}

/// How much a server takes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections at once. Of those that have asked for nothing yet the oldest makes room for the next; when all are busy, the next is sent
    /// away.
    pub connections: usize,
    /// WebSockets at once.
    pub sockets: usize,
    /// How long a client may take over a TLS handshake, the head of a request, its body, and to say its token.
    pub patience: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self { connections: 256, sockets: 224, patience: Duration::from_secs(5) }
    }
}
