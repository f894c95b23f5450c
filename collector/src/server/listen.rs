//! Binding the listening socket, and the URL under which a user opens the page.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use tokio::net::{TcpListener, TcpSocket};

use super::access::Token;
use super::options::{ANY_HOST, ServerOptions};
use super::tls::TlsError;
use super::urls::encode_component;

/// The TCP port on which the server listens by default.
pub const DEFAULT_PORT: u16 = 7791;
/// How many further ports are tried if the requested one is in use; if all are, starting fails.
pub(super) const PORTS_TRIED: u16 = 20;
/// The kernel's send buffer for each connection, in bytes. By default Linux grows it up to 4 MB,
/// and a slow client would see older data.
const SEND_BUFFER_BYTES: u32 = 512 << 10;
/// The most connections that the kernel holds until the server accepts them.
const BACKLOG: u32 = 1024;

/// Why a server could not start: its address, a host name, its certificate or key cannot be used,
/// or no random token can be generated.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The operating system refused the address.
    #[error("cannot listen on {0}: {1}")]
    Io(SocketAddr, #[source] io::Error),
    /// An entry of [`ServerOptions::allow_hosts`] is not a host name.
    #[error("{0:?} is not a host name such as gpu1.example.org")]
    Host(String),
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The operating system supplied no randomness for a token.
    #[error("cannot generate a token: {0}")]
    Random(#[source] io::Error),
}

/// Listens on `requested`, or on the first free one of the next [`PORTS_TRIED`] ports if that port
/// is in use.
///
/// Must be called in the context of a tokio runtime.
pub(super) fn bind(requested: SocketAddr) -> Result<TcpListener, StartError> {
    let last_port = if requested.port() == 0 { 0 } else { requested.port().saturating_add(PORTS_TRIED) };
    let mut address = requested;
    loop {
        match bind_to(address) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && address.port() < last_port => {
                address.set_port(address.port() + 1);
            }
            // Reports the requested port, which the user knows.
            Err(error) => return Err(StartError::Io(requested, error)),
        }
    }
}

/// Listens on exactly this address; fails if its port is in use.
fn bind_to(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // On Unix this reuses a port whose server has stopped, and still fails while one is listening.
    // On Windows it would allow two servers on one port.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    // Accepted connections inherit the size. A smaller buffer than requested does no harm.
    let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Returns the page's URL for a user to open, with the token if the server has one. `address` is
/// where the server listens.
pub(super) fn url(address: SocketAddr, options: &ServerOptions, token: Option<&Token>) -> String {
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let host = match options.allow_hosts.iter().find(|name| *name != ANY_HOST) {
        // A certificate is issued for a host name, not for an address.
        Some(name) if options.tls.is_some() => format!("{name}:{}", address.port()),
        _ => SocketAddr::new(reachable(address.ip()), address.port()).to_string(),
    };
    let query = token.map(|token| format!("?token={}", encode_component(token.secret()))).unwrap_or_default();
    format!("{scheme}://{host}/{query}")
}

/// Returns an IP address at which clients reach a server that listens on `listening`. For the
/// unspecified address (0.0.0.0), that is the address of this machine's default route.
fn reachable(listening: IpAddr) -> IpAddr {
    if !listening.is_unspecified() {
        return listening;
    }
    // Addresses reserved for documentation. Connecting a UDP socket only looks up the route and
    // sends nothing.
    let (any, remote): (IpAddr, IpAddr) = match listening {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()),
    };
    let local = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((remote, 9))?;
        socket.local_addr()
    });
    match (local, listening) {
        (Ok(local), _) if !local.ip().is_unspecified() => local.ip(),
        // A server that listens on every IPv6 address usually accepts IPv4 connections as well.
        (_, IpAddr::V6(_)) => match reachable(Ipv4Addr::UNSPECIFIED.into()) {
            IpAddr::V4(Ipv4Addr::LOCALHOST) => Ipv6Addr::LOCALHOST.into(),
            other => other,
        },
        (_, IpAddr::V4(_)) => Ipv4Addr::LOCALHOST.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::TlsFiles;
    use super::*;

    #[test]
    fn url_has_scheme_reachable_host_and_token() {
        let check = |listening: &str, options: &ServerOptions, token: Option<&str>, expected: &str| {
            let token = token.map(|token| Token::new(token).expect("a valid token"));
            let address = listening.parse().expect("a valid address");
            assert_eq!(url(address, options, token.as_ref()), expected);
        };
        let http = ServerOptions { allow_hosts: vec!["gpu1.example.org".into()], ..ServerOptions::default() };
        let tls = TlsFiles { certificate: "c.pem".into(), key: "k.pem".into() };
        let https = ServerOptions { tls: Some(tls), ..http.clone() };
        check("127.0.0.1:7791", &ServerOptions::default(), None, "http://127.0.0.1:7791/");
        check("127.0.0.1:7791", &http, Some("abc"), "http://127.0.0.1:7791/?token=abc");
        check("[::1]:7792", &http, Some("a+/="), "http://[::1]:7792/?token=a%2B%2F%3D");
        check("0.0.0.0:7791", &https, Some("abc"), "https://gpu1.example.org:7791/?token=abc");
        for unspecified in ["0.0.0.0:7791", "[::]:7791"] {
            let url = url(unspecified.parse().expect("a valid address"), &http, None);
            assert!(!url.contains("0.0.0.0") && !url.contains("[::]"), "{url}");
        }
    }

    #[test]
    fn bind_takes_the_next_free_port() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime starts");
        let _runtime_context = runtime.enter();
        let first = bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("some port is free");
        let used = first.local_addr().expect("a bound socket has an address");
        let next = bind(used).expect("a later port is free").local_addr().expect("a bound socket has an address");
        assert_eq!(next.ip(), used.ip());
        assert!((used.port() + 1..=used.port() + PORTS_TRIED).contains(&next.port()), "{next} after {used}");
        let foreign = SocketAddr::from(([192, 0, 2, 1], 7791));
        let error = bind(foreign).expect_err("this machine does not have the address");
        assert!(error.to_string().starts_with("cannot listen on 192.0.2.1:7791: "), "{error}");
    }
}
