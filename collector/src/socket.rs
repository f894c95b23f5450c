//! A blocking WebSocket client, for following a recording and for pushing one.
//!
//! Every call has a time limit.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use tungstenite::client::IntoClientRequest;
use tungstenite::error::ProtocolError;
use tungstenite::handshake::client::ClientHandshake;
use tungstenite::http::{HeaderValue, StatusCode, header};
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Bytes, Error, HandshakeError, Message, WebSocket};

mod address;
mod stream;
#[cfg(feature = "tls")]
mod trust;

pub use address::{Address, AddressError};
use stream::Stream;

/// The most time for connecting and for each step of the handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that has been silent for this long is pinged.
const PING_AFTER: Duration = Duration::from_secs(15);
/// A server that has been silent, or has received nothing, for this long counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(45);
/// The most bytes of a received message. A message holds at least one chunk, and a full state is
/// the largest chunk.
const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// The server's close code for a wrong token.
const WRONG_TOKEN: u16 = 4401;
/// What a user reads when the server closes the connection with [`WRONG_TOKEN`].
const WRONG_TOKEN_TEXT: &str = "the token is wrong or missing: use the full address that the program printed";

/// Why a connection cannot be made, or is lost.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// Trying again will fail in the same way.
    #[error("{0}")]
    Permanent(String),
    /// Trying again later may succeed.
    #[error("{0}")]
    Temporary(String),
}

/// Returns an error after which connecting again may succeed.
fn temporary(reason: impl fmt::Display) -> SocketError {
    SocketError::Temporary(reason.to_string())
}

/// The result of waiting for a message.
#[derive(Debug)]
pub(crate) enum Received {
    #[cfg_attr(not(feature = "follow"), expect(dead_code, reason = "only a follower reads chunks"))]
    Binary(Bytes),
    Text(String),
    /// The server closed the socket, with this code and reason.
    Closed(u16, String),
    /// No message arrived in time.
    Nothing,
}

/// An open WebSocket.
pub(crate) struct Socket {
    inner: WebSocket<Stream>,
    /// When the last message or pong arrived.
    last_received: Instant,
    /// When the last ping was sent.
    last_pinged: Instant,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("last_received", &self.last_received).finish_non_exhaustive()
    }
}

impl Socket {
    /// Connects to the endpoint `path` below the address, with the query `parameters`. `ca` is a
    /// file with additional CA certificates.
    pub(crate) fn connect(
        address: &Address,
        path: &str,
        parameters: &[String],
        ca: Option<&Path>,
    ) -> Result<Self, SocketError> {
        let stream = Stream::connect(address, ca, CONNECT_TIMEOUT).map_err(|error| connect_error(&error))?;
        let request = address.url(path, parameters).into_client_request();
        let mut request = request.map_err(|error| SocketError::Permanent(error.to_string()))?;
        if let Some(token) = address.token() {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut value = value
                .map_err(|_| SocketError::Permanent("the token has characters that a header cannot have".to_owned()))?;
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        let config = WebSocketConfig::default();
        let config = config.max_message_size(Some(MAX_MESSAGE_BYTES)).max_frame_size(Some(MAX_MESSAGE_BYTES));
        let handshake = tungstenite::client::client_with_config(request, stream, Some(config));
        let (inner, _) = handshake.map_err(handshake_error)?;
        let now = Instant::now();
        let socket = Self { inner, last_received: now, last_pinged: now };
        socket.inner.get_ref().set_write_timeout(LOST_AFTER).map_err(temporary)?;
        Ok(socket)
    }

    /// Waits for the next message, at most for `timeout`.
    pub(crate) fn receive(&mut self, timeout: Duration) -> Result<Received, SocketError> {
        self.inner.get_ref().set_read_timeout(timeout).map_err(temporary)?;
        match self.inner.read() {
            Ok(message) => {
                self.last_received = Instant::now();
                Ok(match message {
                    Message::Binary(bytes) => Received::Binary(bytes),
                    Message::Text(text) => Received::Text(text.as_str().to_owned()),
                    Message::Close(frame) => {
                        // Sends the answering close frame if the server still waits for it.
                        let _ = self.inner.flush();
                        let frame = frame.map(|frame| (u16::from(frame.code), frame.reason.as_str().to_owned()));
                        let (code, reason) = frame.unwrap_or((1005, String::new()));
                        if code == WRONG_TOKEN {
                            return Err(SocketError::Permanent(WRONG_TOKEN_TEXT.to_owned()));
                        }
                        Received::Closed(code, reason)
                    }
                    _ => Received::Nothing,
                })
            }
            Err(Error::Io(error)) if is_timeout(&error) => {
                self.keep_alive()?;
                Ok(Received::Nothing)
            }
            Err(Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => {
                Err(temporary("the server closed the connection unexpectedly"))
            }
            Err(error) => Err(temporary(error)),
        }
    }

    /// Pings a server that has been silent. Fails if it has been silent for too long.
    fn keep_alive(&mut self) -> Result<(), SocketError> {
        if self.last_received.elapsed() > LOST_AFTER {
            return Err(temporary(format_args!("the server has sent nothing for {} s", LOST_AFTER.as_secs())));
        }
        if self.last_received.max(self.last_pinged).elapsed() > PING_AFTER {
            self.last_pinged = Instant::now();
            self.send(Message::Ping(Bytes::new()))?;
        }
        Ok(())
    }

    /// Sends a message. Returns once the operating system has it.
    pub(crate) fn send(&mut self, message: Message) -> Result<(), SocketError> {
        self.inner.send(message).map_err(|error| match error {
            Error::Io(error) if is_timeout(&error) => temporary("timed out sending: the server receives nothing"),
            error => temporary(error),
        })
    }

    /// Sets how long the server may receive nothing before sending fails.
    #[cfg(feature = "push")]
    pub(crate) fn set_send_timeout(&mut self, timeout: Duration) {
        // If setting it fails, the previous timeout stays in effect.
        let _ = self.inner.get_ref().set_write_timeout(timeout.max(Duration::from_millis(1)));
    }

    /// Closes the socket, and waits for the server's close frame, at most for `timeout`.
    #[cfg(feature = "push")]
    pub(crate) fn close(mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        if self.inner.close(None).is_err() || self.inner.flush().is_err() {
            return;
        }
        while let Some(remaining) = deadline.checked_duration_since(Instant::now()) {
            match self.receive(remaining) {
                Ok(Received::Closed(..)) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}

/// Returns true if an operation took longer than the socket's timeout.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// Converts an error of connecting: permanent if another attempt cannot succeed.
fn connect_error(error: &io::Error) -> SocketError {
    #[cfg(feature = "tls")]
    if let Some(rustls::Error::InvalidCertificate(reason)) =
        error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>())
    {
        return SocketError::Permanent(format!("the server's certificate is not trusted: {reason}"));
    }
    #[cfg(feature = "tls")]
    if let Some(rustls::Error::InvalidMessage(_)) = error.get_ref().and_then(|error| error.downcast_ref()) {
        return temporary("the server does not use TLS: use http:// instead of https://");
    }
    match error.kind() {
        io::ErrorKind::Unsupported => SocketError::Permanent(error.to_string()),
        io::ErrorKind::ConnectionRefused => temporary(format_args!("{error}: is the program running?")),
        _ if is_timeout(error) => temporary("timed out: the server does not answer"),
        _ => temporary(error),
    }
}

/// Converts an error of the WebSocket handshake: permanent if the server refuses access or has no
/// such endpoint.
fn handshake_error(error: HandshakeError<ClientHandshake<Stream>>) -> SocketError {
    match error {
        HandshakeError::Failure(Error::Http(response)) => match response.status() {
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                SocketError::Permanent(format!("the server denied access ({status}): check the token"))
            }
            status if status.is_server_error() => temporary(status),
            status => SocketError::Permanent(format!("the address serves no live recording ({status})")),
        },
        HandshakeError::Failure(error @ Error::Protocol(_)) => {
            temporary(format_args!("the address serves no live recording ({error})"))
        }
        HandshakeError::Failure(error) => temporary(error),
        HandshakeError::Interrupted(_) => temporary("timed out: the server does not answer"),
    }
}
