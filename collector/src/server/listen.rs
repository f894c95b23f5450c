//! Where a server listens, and the address under which a person opens it.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use tokio::net::{TcpListener, TcpSocket};

use super::access::Token;
use super::escaped;
use super::options::ServerOptions;
use super::tls::TlsError;

/// How many ports are tried after one that is taken.
pub(super) const PORTS_TRIED: u16 = 20;
/// Bytes that the operating system holds for a connection until its client takes them. Left alone it holds up to 4 MB, which a
/// slow client would see all that much later.
const SEND_BYTES: u32 = 512 << 10;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Why a server could not start.
#[derive(Debug)]
pub enum StartError {
    /// The operating system refused the address.
    Io(SocketAddr, io::Error),
    /// A name under which browsers should reach the server is none.
    Host(String),
    /// The certificate or its key cannot be used.
    Tls(TlsError),
    /// The operating system gives no randomness for a token.
    Random(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(address, error) => write!(f, "cannot listen on {address}: {error}"),
            Self::Host(name) => write!(f, "{name:?} is not the name of a host, such as gpu1.example.org"),
            Self::Tls(error) => error.fmt(f),
            Self::Random(error) => write!(f, "no randomness for a token: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// Listens on an address; where its port is taken, on the next that is free. Wants to be called where there is
/// a runtime.
pub(super) fn bind(asked: SocketAddr) -> Result<TcpListener, StartError> {
    let last = if asked.port() == 0 { 0 } else { asked.port().saturating_add(PORTS_TRIED) };
    let mut address = asked;
    loop {
        match bind_to(address) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && address.port() < last => {
                address.set_port(address.port() + 1);
            }
            // The port that was asked for is the one that somebody has to look at.
            Err(error) => return Err(StartError::Io(asked, error)),
        }
    }
}

fn bind_to(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A port is free again as soon as its server is gone; where there still is one, Unix says so, and Windows would not.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    // Those that are accepted have it from the one that listens. A system that holds less is as good.
    let _ = socket.set_send_buffer_size(SEND_BYTES);
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The address of the page, for a person to open.
pub(super) fn url(address: SocketAddr, options: &ServerOptions, token: Option<&Token>) -> String {
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let host = match options.allow_hosts.first() {
        // A certificate is for a name.
        Some(name) if options.tls.is_some() => format!("{name}:{}", address.port()),
        _ => SocketAddr::new(reachable(address.ip()), address.port()).to_string(),
    };
    let query = token.map(|token| format!("?token={}", escaped(token.secret()))).unwrap_or_default();
    format!("{scheme}://{host}/{query}")
}

/// An address under which `listening` is reached; where it is every address of this machine, the one that it has for the world.
fn reachable(listening: IpAddr) -> IpAddr {
    if !listening.is_unspecified() {
        return listening;
    }
    // Addresses for documentation: nobody has them. Nothing is sent, for connecting a datagram's socket only looks up the way.
    let (any, elsewhere): (IpAddr, IpAddr) = match listening {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()),
    };
    let found = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((elsewhere, 9))?;
        socket.local_addr()
    });
    match (found, listening) {
        (Ok(found), _) if !found.ip().is_unspecified() => found.ip(),
        // Whoever listens on every address of the newer kind is mostly reached by those of the older, too.
        (_, IpAddr::V6(_)) => match reachable(Ipv4Addr::UNSPECIFIED.into()) {
            IpAddr::V4(Ipv4Addr::LOCALHOST) => Ipv6Addr::LOCALHOST.into(),
            other => other,
        },
        (_, IpAddr::V4(_)) => Ipv4Addr::LOCALHOST.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_how_the_page_is_opened() {
        let check = |listening: &str, options: &ServerOptions, token: Option<&str>, expected: &str| {
            let token = token.map(|token| Token::new(token).expect("a token"));
            let address = listening.parse().expect("an address");
            assert_eq!(url(address, options, token.as_ref()), expected);
        };
        let plain = ServerOptions { allow_hosts: vec!["gpu1.example.org".into()], ..ServerOptions::default() };
        let tls = super::super::TlsFiles { certificate: "c.pem".into(), key: "k.pem".into() };
        let encrypted = ServerOptions { tls: Some(tls), ..plain.clone() };
        check("127.0.0.1:7791", &ServerOptions::default(), None, "http://127.0.0.1:7791/");
        check("127.0.0.1:7791", &plain, Some("abc"), "http://127.0.0.1:7791/?token=abc");
        check("[::1]:7792", &plain, Some("a+/="), "http://[::1]:7792/?token=a%2B%2F%3D");
        check("0.0.0.0:7791", &encrypted, Some("abc"), "https://gpu1.example.org:7791/?token=abc");
        for everywhere in ["0.0.0.0:7791", "[::]:7791"] {
            let found = url(everywhere.parse().expect("an address"), &plain, None);
            assert!(!found.contains("0.0.0.0") && !found.contains("[::]"), "{found}");
        }
    }

    #[test]
    fn the_next_free_port_takes_the_place_of_one_that_is_taken() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        let _inside = runtime.enter();
        let first = bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("any port");
        let taken = first.local_addr().expect("an address");
        let next = bind(taken).expect("a port of many").local_addr().expect("an address");
        assert_eq!(next.ip(), taken.ip());
        assert!((taken.port() + 1..=taken.port() + PORTS_TRIED).contains(&next.port()), "{next} after {taken}");
        let elsewhere = SocketAddr::from(([192, 0, 2, 1], 7791));
        let error = bind(elsewhere).expect_err("no address of this machine");
        assert!(error.to_string().starts_with("cannot listen on 192.0.2.1:7791: "), "{error}");
    }
}
