//! Follows a live recording that another program serves; `vramscope record` uses this.
//!
//! After a lost connection the follower reconnects and continues at its position, if the
//! server still holds what was recorded since. The received bytes are whole chunks of the
//! [recording format](vramscope_trace).

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tungstenite::Bytes;
use vramscope_trace::live_protocol::{RECORDING_ENDED, StreamNote};

use crate::hub::{RecordingIdentity, StreamPosition};
use crate::socket::{Address, Received, Socket, SocketError};

/// The delay before the first attempt to reconnect, and the longest delay: each failed attempt
/// doubles the delay.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Where in a live recording a new follower starts: at the oldest event that the server has, or at
/// the newest full state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FollowFrom {
    /// The recording's first event, or the first that the server still holds.
    #[default]
    All,
    /// The newest full state.
    Newest,
}

/// Options of a [`Follower`]: the server, where to start, and how long to try to reconnect.
#[derive(Clone, Debug)]
pub struct FollowOptions {
    /// The server's address.
    pub address: Address,
    /// Where in the recording to start.
    pub from: FollowFrom,
    /// A PEM file with CA certificates to trust besides the system's.
    pub ca: Option<PathBuf>,
    /// How long to try to reconnect after the connection was lost.
    pub retry_time: Duration,
}

/// An event that [`Follower::next`] reports: chunks, missed events, or a change of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowEvent {
    /// The next whole chunks of the recording arrived.
    Chunks(Bytes),
    /// This many events are missing before the next chunks, because this client or the connection
    /// was too slow.
    Missed(u64),
    /// The connection is lost, for this reason; the follower tries to reconnect.
    Disconnected(FollowError),
    /// The follower reconnected, and nothing is missing.
    Resumed,
    /// The follower reconnected, but the server has dropped some of the chunks in between. A full
    /// state follows.
    ResumedWithGap,
    /// The server now serves another recording, because the program was restarted. What follows
    /// belongs to the new recording.
    NewRecording,
    /// The recording has ended.
    Ended,
    /// The connection is lost, for this reason, and the follower no longer tries to reconnect.
    GaveUp(FollowError),
    /// Nothing happened within the time to wait.
    Nothing,
}

/// Why a follower cannot start, or its connection is lost: the server cannot be reached, refuses
/// access, serves no live recording or closed the connection.
///
/// Two errors are equal if their messages are. Clones share the error.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct FollowError(Arc<SocketError>);

/// The cause of a [`FollowError`]: connection refused, unknown certificate issuer, or any other. A
/// program may handle each cause differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FollowErrorKind {
    /// No program listens at the address.
    ConnectionRefused,
    /// The server's certificate was issued by none of the trusted CAs; see [`FollowOptions::ca`].
    UnknownIssuer,
    /// Any other error.
    Other,
}

impl FollowError {
    /// Returns the cause of the error, as far as a program may want to distinguish it.
    #[must_use]
    pub fn kind(&self) -> FollowErrorKind {
        let Some(source) = self.source() else { return FollowErrorKind::Other };
        #[cfg(feature = "tls")]
        if let Some(rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer)) = source.downcast_ref()
        {
            return FollowErrorKind::UnknownIssuer;
        }
        match source.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionRefused) => FollowErrorKind::ConnectionRefused,
            _ => FollowErrorKind::Other,
        }
    }
}

impl From<SocketError> for FollowError {
    fn from(error: SocketError) -> Self {
        Self(Arc::new(error))
    }
}

impl PartialEq for FollowError {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for FollowError {}

/// When a connection was lost and when to try to reconnect next. Kept until the new connection
/// delivers chunks or has lasted for the longest retry delay.
#[derive(Debug)]
struct Reconnect {
    /// When the connection was lost.
    lost_at: Instant,
    /// When to try next.
    next_attempt: Instant,
    /// The delay after the next attempt.
    delay: Duration,
    /// When the last attempt succeeded, if no chunks have arrived since.
    connected_at: Option<Instant>,
}

/// A client that receives a live recording from a server, and reconnects when the connection is
/// lost.
///
/// ```no_run
/// use std::time::Duration;
/// use vramscope_collector::{Address, FollowEvent, FollowFrom, FollowOptions, Follower};
///
/// let mut follower = Follower::connect(FollowOptions {
///     address: Address::parse("http://127.0.0.1:7791/?token=secret")?,
///     from: FollowFrom::All,
///     ca: None,
///     retry_time: Duration::from_secs(60),
/// })?;
/// let mut recording = Vec::new();
/// loop {
///     match follower.next(Duration::from_millis(100)) {
///         FollowEvent::Chunks(bytes) => recording.extend_from_slice(&bytes),
///         FollowEvent::Ended | FollowEvent::GaveUp(_) => break,
///         _ => {}
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Follower {
    options: FollowOptions,
    socket: Option<Socket>,
    reconnect: Option<Reconnect>,
    /// The recording's identity, if the server sent it.
    recording: Option<RecordingIdentity>,
    /// The position to resume with.
    next: u64,
    /// The position to resume with after the next chunks.
    next_after_chunks: u64,
    has_chunks: bool,
    /// True after reconnecting, until the server has named its recording.
    awaits_identity: bool,
    /// Events that `next` has not returned yet.
    events: VecDeque<FollowEvent>,
    is_finished: bool,
}

impl Follower {
    /// Connects to the server at `options.address` and creates the follower.
    ///
    /// # Errors
    /// If the server cannot be reached, refuses access or serves no live recording.
    pub fn connect(options: FollowOptions) -> Result<Self, FollowError> {
        let mut follower = Self {
            options,
            socket: None,
            reconnect: None,
            recording: None,
            next: 0,
            next_after_chunks: 0,
            has_chunks: false,
            awaits_identity: false,
            events: VecDeque::new(),
            is_finished: false,
        };
        follower.socket = Some(follower.open()?);
        Ok(follower)
    }

    /// Opens a connection that continues after the chunks received so far. Before the first chunk,
    /// it begins where [`FollowOptions::from`] says.
    fn open(&self) -> Result<Socket, SocketError> {
        let mut parameters = vec!["notes=1".to_owned()];
        match self.recording.filter(|_| self.next > 0) {
            // Without `history`: if the position is unavailable, the newest full state comes next.
            // Sending the history again would repeat events.
            Some(recording) => parameters.push(format!("resume={}", StreamPosition { recording, next: self.next })),
            None if self.options.from == FollowFrom::All => parameters.push("history=all".to_owned()),
            None => {}
        }
        Socket::connect(&self.options.address, "ws", &parameters, self.options.ca.as_deref())
    }

    /// Waits for the next event and returns it, or [`FollowEvent::Nothing`] if nothing happens
    /// within about `timeout`.
    ///
    /// After [`FollowEvent::Ended`] or [`FollowEvent::GaveUp`] it returns `Nothing` at once.
    pub fn next(&mut self, timeout: Duration) -> FollowEvent {
        if let Some(event) = self.events.pop_front() {
            return event;
        }
        if self.is_finished {
            return FollowEvent::Nothing;
        }
        let Some(socket) = &mut self.socket else { return self.try_reconnect(timeout) };
        match socket.receive(timeout) {
            Ok(Received::Binary(bytes)) => {
                if std::mem::take(&mut self.awaits_identity) {
                    // Without an identity this may be any recording.
                    self.events.push_back(FollowEvent::NewRecording);
                }
                (self.next, self.has_chunks, self.reconnect) = (self.next_after_chunks, true, None);
                self.events.push_back(FollowEvent::Chunks(bytes));
            }
            // Other text messages are ignored: a newer server may send them.
            Ok(Received::Text(text)) => {
                if let Ok(note) = serde_json::from_str(&text) {
                    self.handle_note(&note);
                }
            }
            Ok(Received::Closed(RECORDING_ENDED, _)) => self.finish(FollowEvent::Ended),
            Ok(Received::Closed(code, reason)) => {
                let reason = if reason.is_empty() {
                    format!("the server closed the connection with code {code}")
                } else {
                    reason
                };
                self.connection_lost(SocketError::temporary(reason));
            }
            Ok(Received::Nothing) => {}
            Err(error) => self.connection_lost(error),
        }
        self.events.pop_front().unwrap_or(FollowEvent::Nothing)
    }

    /// Closes the connection without reconnecting, and queues `event` as the last that
    /// [`next`](Self::next) reports.
    fn finish(&mut self, event: FollowEvent) {
        (self.is_finished, self.socket) = (true, None);
        self.events.push_back(event);
    }

    /// Handles a note of the server: reports whether the connection continues the recording so far,
    /// and how many events the server skipped.
    fn handle_note(&mut self, note: &StreamNote) {
        if let Some(recording) = note.recording.as_ref().and_then(|identity| identity.parse().ok()) {
            let is_same = self.recording == Some(recording);
            if std::mem::take(&mut self.awaits_identity) && self.has_chunks {
                self.events.push_back(match note.resumed {
                    _ if !is_same => FollowEvent::NewRecording,
                    Some(true) => FollowEvent::Resumed,
                    _ => FollowEvent::ResumedWithGap,
                });
            }
            if !is_same {
                (self.recording, self.next, self.next_after_chunks) = (Some(recording), 0, 0);
            }
        }
        if let Some(next) = note.next {
            self.next_after_chunks = next;
        }
        if note.missed > 0 {
            self.events.push_back(FollowEvent::Missed(note.missed));
        }
    }

    /// Queues a report of the lost connection and schedules an attempt to reconnect. Gives up if
    /// `error` is permanent, the recording's identity is unknown, or [`FollowOptions::retry_time`]
    /// is over.
    fn connection_lost(&mut self, error: SocketError) {
        self.socket = None;
        // Without the recording's identity it cannot be resumed.
        if self.recording.is_none() || error.is_permanent() {
            self.finish(FollowEvent::GaveUp(error.into()));
            return;
        }
        let now = Instant::now();
        let is_stable = |reconnect: &mut Reconnect| {
            reconnect.connected_at.is_some_and(|connected_at| connected_at.elapsed() >= RETRY_DELAY.1)
        };
        // A connection that lasted counts as restored even without chunks: an idle program records
        // nothing.
        self.reconnect.take_if(is_stable);
        match &self.reconnect {
            // The new connection was lost before any chunks arrived.
            Some(reconnect) if reconnect.lost_at.elapsed() >= self.options.retry_time => {
                self.finish(FollowEvent::GaveUp(error.into()));
            }
            // Reconnecting was reported, for example as `Resumed`, so the loss is reported again.
            Some(_) if !self.awaits_identity && self.has_chunks => {
                self.events.push_back(FollowEvent::Disconnected(error.into()));
            }
            Some(_) => {}
            None => {
                let delay = RETRY_DELAY.0;
                let next_attempt = now + delay;
                self.reconnect = Some(Reconnect { lost_at: now, next_attempt, delay, connected_at: None });
                self.events.push_back(FollowEvent::Disconnected(error.into()));
            }
        }
    }

    /// Reconnects if the next attempt is due; otherwise waits for it, at most for `timeout`.
    /// Returns the event to report, or [`FollowEvent::Nothing`].
    fn try_reconnect(&mut self, timeout: Duration) -> FollowEvent {
        let now = Instant::now();
        let Some(reconnect) = &mut self.reconnect else { return FollowEvent::Nothing };
        let remaining = reconnect.next_attempt.saturating_duration_since(now);
        if !remaining.is_zero() {
            std::thread::sleep(remaining.min(timeout));
            return FollowEvent::Nothing;
        }
        reconnect.delay = (reconnect.delay * 2).min(RETRY_DELAY.1);
        reconnect.next_attempt = now + reconnect.delay;
        let is_last_attempt = reconnect.lost_at.elapsed() >= self.options.retry_time;
        let opened = self.open();
        if let Some(reconnect) = &mut self.reconnect {
            reconnect.connected_at = opened.is_ok().then(Instant::now);
        }
        match opened {
            Ok(socket) => {
                (self.socket, self.awaits_identity, self.next_after_chunks) = (Some(socket), true, self.next);
            }
            Err(error) if error.is_permanent() => self.finish(FollowEvent::GaveUp(error.into())),
            Err(error) if is_last_attempt => {
                let seconds = self.options.retry_time.as_secs();
                let describe = |reason: &str| format!("could not reconnect within {seconds} s ({reason})");
                self.finish(FollowEvent::GaveUp(error.into_permanent(describe).into()));
            }
            Err(_) => {}
        }
        self.events.pop_front().unwrap_or(FollowEvent::Nothing)
    }
}

#[cfg(test)]
mod tests;
