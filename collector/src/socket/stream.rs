//! The byte stream below a WebSocket: TCP, with or without TLS.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
#[cfg(feature = "tls")]
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "tls")]
use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};

use super::address::Address;
#[cfg(feature = "tls")]
use super::trust;
use crate::wait_check::Wait;

/// A connection to a server: TCP, with or without TLS.
pub(super) enum Stream {
    Plain(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// Connects to `address`, at the first of the host's IP addresses that accepts. `timeout`
    /// applies to each attempt, and to every read and write until another timeout is set.
    pub(super) fn connect(address: &Address, ca: Option<&Path>, timeout: Duration) -> io::Result<Self> {
        Wait::Network.begin();
        let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the host name has no IP address");
        let mut connected = None;
        for socket in (address.host(), address.port()).to_socket_addrs()? {
            match TcpStream::connect_timeout(&socket, timeout) {
                Ok(stream) => {
                    connected = Some(stream);
                    break;
                }
                Err(error) => last_error = error,
            }
        }
        let tcp = connected.ok_or(last_error)?;
        tcp.set_read_timeout(Some(timeout))?;
        tcp.set_write_timeout(Some(timeout))?;
        // Nagle's algorithm would delay small messages.
        tcp.set_nodelay(true)?;
        if address.is_tls() { Self::handshake(tcp, address, ca) } else { Ok(Self::Plain(tcp)) }
    }

    /// Performs the TLS handshake over `tcp`. `ca` is a file with additional CA certificates. Fails
    /// if this build has no TLS.
    #[cfg(feature = "tls")]
    fn handshake(tcp: TcpStream, address: &Address, ca: Option<&Path>) -> io::Result<Self> {
        let name = ServerName::try_from(address.host().to_owned()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::new(trust::config(ca)?), name).map_err(io::Error::other)?;
        let mut tls = StreamOwned::new(connection, tcp);
        // Completes the handshake here, so that connecting reports a certificate error.
        while tls.conn.is_handshaking() {
            tls.conn.complete_io(&mut tls.sock)?;
        }
        Ok(Self::Tls(Box::new(tls)))
    }

    /// Performs the TLS handshake over `tcp`. `ca` is a file with additional CA certificates. Fails
    /// if this build has no TLS.
    #[cfg(not(feature = "tls"))]
    fn handshake(_: TcpStream, _: &Address, _: Option<&Path>) -> io::Result<Self> {
        let reason = "https:// needs the `tls` feature of vramscope-collector";
        Err(io::Error::new(io::ErrorKind::Unsupported, reason))
    }

    /// Returns the TCP connection, which is below TLS if TLS is used.
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.get_ref(),
        }
    }

    /// Sets how long a read may wait before it fails. Timeouts below 1 ms become 1 ms.
    pub(super) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.tcp().set_read_timeout(Some(timeout.max(Duration::from_millis(1))))
    }

    /// Sets how long a write may wait before it fails.
    pub(super) fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.tcp().set_write_timeout(Some(timeout))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Wait::Network.begin();
        match self {
            Self::Plain(tcp) => tcp.read(buffer),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Wait::Network.begin();
        match self {
            Self::Plain(tcp) => tcp.write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Wait::Network.begin();
        match self {
            Self::Plain(tcp) => tcp.flush(),
            #[cfg(feature = "tls")]
            Self::Tls(tls) => tls.flush(),
        }
    }
}
