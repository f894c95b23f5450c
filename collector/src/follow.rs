//! Follows a live recording that another program serves, from Rust and without a browser: `vramscope record` does.
//!
//! A connection that breaks is made again, and goes on where it was if the server still holds what came between. What comes is whole
//! chunks of the [recording's format](vramscope_trace).

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tungstenite::Bytes;

use crate::hub::{Identity, Position};
use crate::socket::{Address, Heard, Socket, SocketError};

/// How soon a broken connection is tried again, at first and at last.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// The code of a socket that is closed because the recording has ended.
const ENDED: u16 = 1000;

/// Where a newcomer begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FollowFrom {
    /// With the recording's first event, as far as it is held.
    #[default]
    All,
    /// With the newest full state.
    Newest,
}

/// What is to be followed, and how.
#[derive(Clone, Debug)]
pub struct FollowOptions {
    /// Where it is served.
    pub address: Address,
    /// Where to begin.
    pub from: FollowFrom,
    /// A file of certificates to believe, beside those that the system believes.
    pub ca: Option<PathBuf>,
    /// For how long a broken connection is tried again.
    pub patience: Duration,
}

/// What has become of the recording since the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// Its next whole chunks.
    Chunks(Bytes),
    /// So many events were left out before what follows, because this side or the connection was too slow.
    Missed(u64),
    /// The connection is gone, for this reason; it is being tried again.
    Broken(String),
    /// The connection is back, and nothing was lost.
    Resumed,
    /// The connection is back. Of what came between some is not to be had any more; a full state follows.
    Rejoined,
    /// Another recording is served there now: the program was started again. What follows is of that one.
    Another,
    /// The recording has ended.
    Ended,
    /// The connection is gone, for this reason, and is not tried any more.
    GivenUp(String),
    /// Nothing yet.
    Nothing,
}

/// Why nothing can be followed there.
#[derive(Debug)]
pub struct FollowError(String);

impl fmt::Display for FollowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FollowError {}

/// What the server says beside the recording.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Note {
    recording: Option<String>,
    resumed: Option<bool>,
    next: Option<u64>,
    missed: u64,
}

/// The connection that is to come.
#[derive(Debug)]
struct Broken {
    since: Instant,
    /// When to try next, and how long to wait after that.
    try_at: Instant,
    wait: Duration,
    /// When it was last made, though nothing of the recording has come by it yet.
    made: Option<Instant>,
}

/// Follows a recording.
#[derive(Debug)]
pub struct Follower {
    options: FollowOptions,
    socket: Option<Socket>,
    broken: Option<Broken>,
    /// Which recording it is, and what to resume with; unknown where the server does not say.
    recording: Option<Identity>,
    next: u64,
    /// What to resume with after the next chunks.
    then: u64,
    has_chunks: bool,
    /// Whether this is the same recording as before the break is yet to be said.
    is_uncertain: bool,
    told: VecDeque<Followed>,
    is_over: bool,
}

impl Follower {
    /// Connects.
    ///
    /// # Errors
    /// If there is nothing to follow.
    pub fn connect(options: FollowOptions) -> Result<Self, FollowError> {
        let mut follower = Self {
            options,
            socket: None,
            broken: None,
            recording: None,
            next: 0,
            then: 0,
            has_chunks: false,
            is_uncertain: false,
            told: VecDeque::new(),
            is_over: false,
        };
        follower.socket = Some(follower.open().map_err(|error| FollowError(error.to_string()))?);
        Ok(follower)
    }

    fn open(&self) -> Result<Socket, SocketError> {
        let mut parameters = vec!["notes=1".to_owned()];
        match self.recording.filter(|_| self.next > 0) {
            // Without `history`: where it cannot go on the newest full state is next, for the events before are here already.
            Some(recording) => parameters.push(format!("resume={}", Position { recording, next: self.next })),
            None if self.options.from == FollowFrom::All => parameters.push("history=all".to_owned()),
            None => {}
        }
        Socket::connect(&self.options.address, "ws", &parameters, self.options.ca.as_deref())
    }

    /// What comes next; waits for it, not much longer than `wait`. After [`FollowEvent::Ended`] and [`FollowEvent::GaveUp`] nothing comes.
    pub fn next(&mut self, wait: Duration) -> Followed {
        if let Some(told) = self.told.pop_front() {
            return told;
        }
        if self.is_over {
            return FollowEvent::Nothing;
        }
        let Some(socket) = &mut self.socket else { return self.mend(wait) };
        match socket.hear(wait) {
            Ok(Heard::Binary(bytes)) => {
                if std::mem::take(&mut self.is_uncertain) {
                    // A server that says nothing of what it sends may send anything.
                    self.told.push_back(FollowEvent::NewRecording);
                }
                (self.next, self.has_chunks, self.broken) = (self.then, true, None);
                self.told.push_back(FollowEvent::Chunks(bytes));
            }
            // What is no note is of a server of later days.
            Ok(Heard::Text(text)) => {
                if let Ok(note) = serde_json::from_str(&text) {
                    self.take(&note);
                }
            }
            Ok(Heard::Closed(ENDED, _)) => self.end(FollowEvent::Ended),
            Ok(Heard::Closed(code, reason)) => {
                let reason = if reason.is_empty() { format!("it was closed with code {code}") } else { reason };
                self.fall(SocketError::Passing(reason));
            }
            Ok(Heard::Nothing) => {}
            Err(error) => self.fall(error),
        }
        self.told.pop_front().unwrap_or(FollowEvent::Nothing)
    }

    fn end(&mut self, how: Followed) {
        (self.is_over, self.socket) = (true, None);
        self.told.push_back(how);
    }

    fn take(&mut self, note: &Note) {
        if let Some(recording) = note.recording.as_ref().and_then(|identity| identity.parse().ok()) {
            let is_same = self.recording == Some(recording);
            if std::mem::take(&mut self.is_uncertain) && self.has_chunks {
                self.told.push_back(match note.resumed {
                    _ if !is_same => FollowEvent::NewRecording,
                    Some(true) => FollowEvent::Resumed,
                    _ => FollowEvent::ResumedWithGap,
                });
            }
            if !is_same {
                (self.recording, self.next, self.then) = (Some(recording), 0, 0);
            }
        }
        if let Some(next) = note.next {
            self.then = next;
        }
        if note.missed > 0 {
            self.told.push_back(FollowEvent::Missed(note.missed));
        }
    }

    /// The connection is gone.
    fn fall(&mut self, error: SocketError) {
        self.socket = None;
        // A server that never said what it serves cannot go on with it.
        if self.recording.is_none() || matches!(error, SocketError::Lasting(_)) {
            self.end(FollowEvent::GaveUp(error.to_string()));
            return;
        }
        let now = Instant::now();
        let has_lasted = |broken: &mut Broken| broken.made.is_some_and(|made| made.elapsed() >= RETRY_AFTER.1);
        // A program that does nothing says nothing.
        self.broken.take_if(has_lasted);
        match &self.broken {
            // It was made, and brought nothing.
            Some(broken) if broken.since.elapsed() >= self.options.patience => {
                self.end(FollowEvent::GaveUp(error.to_string()));
            }
            // It was said that it is back.
            Some(_) if !self.is_uncertain && self.has_chunks => {
                self.told.push_back(FollowEvent::Disconnected(error.to_string()))
            }
            Some(_) => {}
            None => {
                let wait = RETRY_AFTER.0;
                self.broken = Some(Broken { since: now, try_at: now + wait, wait, made: None });
                self.told.push_back(FollowEvent::Disconnected(error.to_string()));
            }
        }
    }

    /// Tries the connection again when it is time.
    fn mend(&mut self, wait: Duration) -> Followed {
        let now = Instant::now();
        let Some(broken) = &mut self.broken else { return FollowEvent::Nothing };
        if let Some(left) = broken.try_at.checked_duration_since(now).filter(|left| !left.is_zero()) {
            std::thread::sleep(left.min(wait));
            return FollowEvent::Nothing;
        }
        broken.wait = (broken.wait * 2).min(RETRY_AFTER.1);
        broken.try_at = now + broken.wait;
        let is_hopeless = broken.since.elapsed() >= self.options.patience;
        let opened = self.open();
        if let Some(broken) = &mut self.broken {
            broken.made = opened.is_ok().then(Instant::now);
        }
        match opened {
            Ok(socket) => {
                (self.socket, self.is_uncertain, self.then) = (Some(socket), true, self.next);
            }
            Err(SocketError::Lasting(why)) => self.end(FollowEvent::GaveUp(why)),
            Err(SocketError::Passing(why)) if is_hopeless => {
                let patience = self.options.patience.as_secs();
                self.end(FollowEvent::GaveUp(format!("it did not come back within {patience} s ({why})")));
            }
            Err(_) => {}
        }
        self.told.pop_front().unwrap_or(FollowEvent::Nothing)
    }
}

#[cfg(test)]
mod tests;
