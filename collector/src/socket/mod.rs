//! A blocking WebSocket client, for following a recording and for pushing one, and a download over
//! HTTP.
//!
//! Every call has a time limit.

use std::error::Error as StdError;
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
use vramscope_trace::live_protocol::WRONG_TOKEN;

mod address;
#[cfg(feature = "follow")]
pub(crate) mod http;
mod stream;
#[cfg(feature = "tls")]
mod trust;

pub use address::{Address, AddressError};
use stream::Stream;

/// The most time for connecting to one IP address, and for each read or write of the handshakes;
/// then connecting fails.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a message from the server after which the client pings it.
const PING_AFTER: Duration = Duration::from_secs(15);
/// Time without sent or without received data after which the connection counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(45);
/// The most bytes of a received message; a larger one ends the connection. A message holds at least
/// one chunk, and a full state is the largest chunk.
const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// The error message for a connection that the server closed with [`WRONG_TOKEN`].
const WRONG_TOKEN_TEXT: &str = "the token is wrong or missing: use the full address that the program printed";

/// Why a connection cannot be made, or is lost; and whether another attempt may succeed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct SocketError {
    message: String,
    /// True if another attempt would fail, too; false if trying again later may succeed.
    is_permanent: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl SocketError {
    /// Creates an error after which another attempt would fail, too.
    fn permanent(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), is_permanent: true, source: None }
    }

    /// Creates an error after which connecting again may succeed.
    pub(crate) fn temporary(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), is_permanent: false, source: None }
    }

    /// Creates an error with `error` as its source and with the message of `error`. Connecting
    /// again may succeed.
    fn lost(error: impl StdError + Send + Sync + 'static) -> Self {
        Self::temporary(&error).with_source(error)
    }

    /// Sets the error that caused this one.
    fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        Self { source: Some(Box::new(source)), ..self }
    }

    /// Returns this error as a permanent one, whose message is `describe` applied to this message.
    #[cfg(feature = "follow")]
    pub(crate) fn into_permanent(self, describe: impl FnOnce(&str) -> String) -> Self {
        Self { message: describe(&self.message), is_permanent: true, ..self }
    }

    /// Returns true if another attempt would fail, too; false if it may succeed.
    #[cfg(feature = "follow")]
    pub(crate) fn is_permanent(&self) -> bool {
        self.is_permanent
    }
}

/// The result of waiting for the server: a binary or text message, the closing of the socket, or
/// nothing in time.
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

/// An open WebSocket to a server. Every call has a time limit.
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
    /// Connects to the endpoint `path` of the server at `address` and sends the address's token.
    /// `parameters` (`name=value`) go into the URL's query; `ca` is a PEM file with additional CA
    /// certificates.
    pub(crate) fn connect(
        address: &Address,
        path: &str,
        parameters: &[String],
        ca: Option<&Path>,
    ) -> Result<Self, SocketError> {
        let stream = Stream::connect(address, ca, CONNECT_TIMEOUT).map_err(connect_error)?;
        let request = address.url(path, parameters).into_client_request();
        let mut request = request.map_err(|error| SocketError::permanent(&error).with_source(error))?;
        if let Some(token) = address.token() {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut value = value.map_err(|error| {
                SocketError::permanent("the token has characters that a header cannot have").with_source(error)
            })?;
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        let config = WebSocketConfig::default();
        let config = config.max_message_size(Some(MAX_MESSAGE_BYTES)).max_frame_size(Some(MAX_MESSAGE_BYTES));
        let handshake = tungstenite::client::client_with_config(request, stream, Some(config));
        let (inner, _) = handshake.map_err(handshake_error)?;
        let now = Instant::now();
        let socket = Self { inner, last_received: now, last_pinged: now };
        socket.inner.get_ref().set_write_timeout(LOST_AFTER).map_err(SocketError::lost)?;
        Ok(socket)
    }

    /// Waits for the next message, at most for `timeout`. Pings the server if it is silent, and
    /// fails if it counts as lost.
    pub(crate) fn receive(&mut self, timeout: Duration) -> Result<Received, SocketError> {
        self.inner.get_ref().set_read_timeout(timeout).map_err(SocketError::lost)?;
        match self.inner.read() {
            Ok(message) => {
                self.last_received = Instant::now();
                Ok(match message {
                    Message::Binary(bytes) => Received::Binary(bytes),
                    Message::Text(text) => Received::Text(text.as_str().to_owned()),
                    Message::Close(frame) => {
                        // Flushing sends the answering close frame, which the server may wait for.
                        let _ = self.inner.flush();
                        let frame = frame.map(|frame| (u16::from(frame.code), frame.reason.as_str().to_owned()));
                        let (code, reason) = frame.unwrap_or((1005, String::new()));
                        if code == WRONG_TOKEN {
                            return Err(SocketError::permanent(WRONG_TOKEN_TEXT));
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
            Err(error @ Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => {
                Err(SocketError::temporary("the server closed the connection unexpectedly").with_source(error))
            }
            Err(error) => Err(SocketError::lost(error)),
        }
    }

    /// Pings a server that has been silent for [`PING_AFTER`]. Fails if it has been silent for
    /// [`LOST_AFTER`].
    fn keep_alive(&mut self) -> Result<(), SocketError> {
        if self.last_received.elapsed() > LOST_AFTER {
            let seconds = LOST_AFTER.as_secs();
            return Err(SocketError::temporary(format_args!("the server has sent nothing for {seconds} s")));
        }
        if self.last_received.max(self.last_pinged).elapsed() > PING_AFTER {
            self.last_pinged = Instant::now();
            self.send(Message::Ping(Bytes::new()))?;
        }
        Ok(())
    }

    /// Sends a message. Returns once the operating system has it, not when it arrives.
    pub(crate) fn send(&mut self, message: Message) -> Result<(), SocketError> {
        self.inner.send(message).map_err(|error| match error {
            Error::Io(error) if is_timeout(&error) => {
                SocketError::temporary("timed out sending: the server receives nothing").with_source(error)
            }
            error => SocketError::lost(error),
        })
    }

    /// Sets how long sending waits while the server receives nothing; then sending fails.
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

/// Returns true if an operation failed because it took longer than the socket's timeout.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// Converts an error of connecting. The result is permanent if another attempt cannot succeed.
fn connect_error(error: io::Error) -> SocketError {
    #[cfg(feature = "tls")]
    let error = match error.downcast() {
        Ok(error) => return tls_error(error),
        Err(error) => error,
    };
    let converted = match error.kind() {
        io::ErrorKind::Unsupported => SocketError::permanent(&error),
        io::ErrorKind::ConnectionRefused => SocketError::temporary(format_args!("{error}: is the program running?")),
        _ if is_timeout(&error) => SocketError::temporary("timed out: the server does not answer"),
        _ => SocketError::temporary(&error),
    };
    converted.with_source(error)
}

/// Converts an error of the TLS handshake. The result is permanent if the server's certificate is
/// not trusted.
#[cfg(feature = "tls")]
fn tls_error(error: rustls::Error) -> SocketError {
    let converted = match &error {
        rustls::Error::InvalidCertificate(reason) => {
            SocketError::permanent(format_args!("the server's certificate is not trusted: {reason}"))
        }
        rustls::Error::InvalidMessage(_) => {
            SocketError::temporary("the server does not use TLS: use http:// instead of https://")
        }
        _ => SocketError::temporary(&error),
    };
    converted.with_source(error)
}

/// Converts an error of the WebSocket handshake. The result is permanent if the server refuses
/// access or does not have the endpoint.
fn handshake_error(error: HandshakeError<ClientHandshake<Stream>>) -> SocketError {
    let HandshakeError::Failure(error) = error else {
        return SocketError::temporary("timed out: the server does not answer");
    };
    let converted = match &error {
        Error::Http(response) => match response.status() {
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                SocketError::permanent(format_args!("the server denied access ({status}): check the token"))
            }
            status if status.is_server_error() => SocketError::temporary(status),
            status => SocketError::permanent(format_args!("the address serves no live recording ({status})")),
        },
        Error::Protocol(_) => SocketError::temporary(format_args!("the address serves no live recording ({error})")),
        _ => SocketError::temporary(&error),
    };
    converted.with_source(error)
}
