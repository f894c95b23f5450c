//! A WebSocket to a server: what follows a recording, or pushes one, speaks through it. Everything waits, and nothing for longer than it was
//! told to.
//!
//! `address.rs` is where the server is, `stream.rs` the bytes below, `trust.rs` whose certificates are believed.

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
mod trust;

pub use address::Address;
use stream::Stream;

/// How long a server may take to answer, and to take anything at all.
const PATIENCE: Duration = Duration::from_secs(5);
/// After so long without a word it is asked whether it is still there.
const ASK_AFTER: Duration = Duration::from_secs(15);
/// And after so long it is not.
const GONE_AFTER: Duration = Duration::from_secs(45);
/// The largest message that is taken: a full state is the largest chunk there is, and a message holds at least one.
const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// The server's answer to a wrong token on an open socket.
const WRONG_TOKEN: u16 = 4401;

/// Why there is no connection, or none any more.
#[derive(Debug)]
pub(crate) enum SocketError {
    /// It will be the same when it is tried again.
    Lasting(String),
    /// It may be over soon.
    Passing(String),
}

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Lasting(what) | Self::Passing(what)) = self;
        f.write_str(what)
    }
}

fn passing(what: impl fmt::Display) -> SocketError {
    SocketError::Passing(what.to_string())
}

/// What the server says.
#[derive(Debug)]
pub(crate) enum Heard {
    Binary(Bytes),
    Text(String),
    /// The socket was closed, with a code and a reason.
    Closed(u16, String),
    /// Nothing for as long as was waited.
    Nothing,
}

/// An open WebSocket.
pub(crate) struct Socket {
    inner: WebSocket<Stream>,
    /// When anything was last heard, and when it was asked for.
    heard: Instant,
    asked: Instant,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("heard", &self.heard).finish_non_exhaustive()
    }
}

impl Socket {
    /// Connects to the `step` below the address. `ca` is a file of certificates to believe beside the system's.
    pub(crate) fn connect(
        address: &Address,
        step: &str,
        parameters: &[String],
        ca: Option<&Path>,
    ) -> Result<Self, SocketError> {
        let stream = Stream::connect(address, ca, PATIENCE).map_err(|error| unreachable(&error))?;
        let request = address.target(step, parameters).into_client_request();
        let mut request = request.map_err(|error| SocketError::Lasting(error.to_string()))?;
        if let Some(token) = address.token() {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut value = value.map_err(|_| SocketError::Lasting("the token has odd characters".to_owned()))?;
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        let config = WebSocketConfig::default();
        let config = config.max_message_size(Some(MAX_MESSAGE_BYTES)).max_frame_size(Some(MAX_MESSAGE_BYTES));
        let (inner, _) = tungstenite::client::client_with_config(request, stream, Some(config)).map_err(refusal)?;
        let now = Instant::now();
        let socket = Self { inner, heard: now, asked: now };
        socket.inner.get_ref().set_write_timeout(GONE_AFTER).map_err(passing)?;
        Ok(socket)
    }

    /// Waits for the next message.
    pub(crate) fn hear(&mut self, wait: Duration) -> Result<Heard, SocketError> {
        self.inner.get_ref().set_read_timeout(wait).map_err(passing)?;
        match self.inner.read() {
            Ok(message) => {
                self.heard = Instant::now();
                Ok(match message {
                    Message::Binary(bytes) => Heard::Binary(bytes),
                    Message::Text(text) => Heard::Text(text.as_str().to_owned()),
                    Message::Close(frame) => {
                        // The answer to it goes out with the next write, if anyone still waits for it.
                        let _ = self.inner.flush();
                        let frame = frame.map(|frame| (u16::from(frame.code), frame.reason.as_str().to_owned()));
                        let (code, reason) = frame.unwrap_or((1005, String::new()));
                        if code == WRONG_TOKEN {
                            return Err(SocketError::Lasting("the token is wrong or missing".to_owned()));
                        }
                        Heard::Closed(code, reason)
                    }
                    _ => Heard::Nothing,
                })
            }
            Err(Error::Io(error)) if is_pause(&error) => {
                self.ask()?;
                Ok(Heard::Nothing)
            }
            Err(Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => {
                Err(passing("the other side went away without a word"))
            }
            Err(error) => Err(passing(error)),
        }
    }

    /// Whoever says nothing is asked whether he is there.
    fn ask(&mut self) -> Result<(), SocketError> {
        if self.heard.elapsed() > GONE_AFTER {
            return Err(passing(format_args!("nothing was heard for {} s", GONE_AFTER.as_secs())));
        }
        if self.heard.max(self.asked).elapsed() > ASK_AFTER {
            self.asked = Instant::now();
            self.say(Message::Ping(Bytes::new()))?;
        }
        Ok(())
    }

    /// Sends a message; returns when it is with the operating system.
    pub(crate) fn say(&mut self, message: Message) -> Result<(), SocketError> {
        self.inner.send(message).map_err(|error| match error {
            Error::Io(error) if is_pause(&error) => {
                passing(format_args!("nothing was taken for {} s", GONE_AFTER.as_secs()))
            }
            error => passing(error),
        })
    }

    /// How long the other side may take nothing before a message counts as not sent.
    pub(crate) fn set_send_patience(&mut self, wait: Duration) {
        // Where it cannot be set it stays as it was.
        let _ = self.inner.get_ref().set_write_timeout(wait.max(Duration::from_millis(1)));
    }

    /// Says goodbye, and waits for the answer for a moment.
    pub(crate) fn close(mut self, wait: Duration) {
        let until = Instant::now() + wait;
        if self.inner.close(None).is_err() || self.inner.flush().is_err() {
            return;
        }
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            match self.hear(left) {
                Ok(Heard::Closed(..)) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn unreachable(error: &io::Error) -> SocketError {
    let wrong = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    if let Some(rustls::Error::InvalidCertificate(why)) = wrong {
        return SocketError::Lasting(format!("its certificate is not believed: {why}"));
    }
    if is_pause(error) {
        return passing("no answer");
    }
    passing(error)
}

fn refusal(error: HandshakeError<ClientHandshake<Stream>>) -> SocketError {
    match error {
        HandshakeError::Failure(Error::Http(answer)) => match answer.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                SocketError::Lasting(format!("it does not let us in ({}): is the token right?", answer.status()))
            }
            StatusCode::NOT_FOUND => {
                SocketError::Lasting("no live recording is served there (404 Not Found)".to_owned())
            }
            status if status.is_server_error() => passing(status),
            status => SocketError::Lasting(format!("no live recording is served there ({status})")),
        },
        HandshakeError::Failure(error) => passing(error),
        HandshakeError::Interrupted(_) => passing("no answer"),
    }
}
