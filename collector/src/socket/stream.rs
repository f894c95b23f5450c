//! The bytes below a WebSocket: TCP, with TLS or without.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use super::{Address, trust};

/// A connection.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// Tries each address that the host has, none for longer than `patience`, which is then how long any waiting may take.
    pub(super) fn connect(address: &Address, ca: Option<&Path>, patience: Duration) -> io::Result<Self> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        let mut connected = None;
        for socket in (address.host(), address.port()).to_socket_addrs()? {
            match TcpStream::connect_timeout(&socket, patience) {
                Ok(stream) => {
                    connected = Some(stream);
                    break;
                }
                Err(error) => failure = error,
            }
        }
        let tcp = connected.ok_or(failure)?;
        tcp.set_read_timeout(Some(patience))?;
        tcp.set_write_timeout(Some(patience))?;
        // What is small is to be there at once.
        tcp.set_nodelay(true)?;
        if !address.is_tls() {
            return Ok(Self::Plain(tcp));
        }
        let name = ServerName::try_from(address.host().to_owned()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::new(trust::config(ca)?), name).map_err(io::Error::other)?;
        let mut tls = StreamOwned::new(connection, tcp);
        // All of the handshake here, so that what is wrong with a certificate is said as that.
        while tls.conn.is_handshaking() {
            tls.conn.complete_io(&mut tls.sock)?;
        }
        Ok(Self::Tls(Box::new(tls)))
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => tls.get_ref(),
        }
    }

    /// How long a wait for bytes may last.
    pub(super) fn set_read_timeout(&self, wait: Duration) -> io::Result<()> {
        self.tcp().set_read_timeout(Some(wait.max(Duration::from_millis(1))))
    }

    /// How long the other side may take nothing.
    pub(super) fn set_write_timeout(&self, wait: Duration) -> io::Result<()> {
        self.tcp().set_write_timeout(Some(wait))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(tcp) => tcp.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}
