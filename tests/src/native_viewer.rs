//! A native viewer that follows a live recording over its WebSocket.
//!
//! It implements the protocol of `docs/live.md` on its own, without the collector's client.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use tungstenite::{Error, Message, WebSocket};
use vramscope_trace::Recording;

/// Interval at which an idle viewer checks for commands.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest wait for the server's handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(1000);
/// Delay before reconnecting.
const RETRY_DELAY: Duration = Duration::from_millis(40);

/// Options of following a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowOptions {
    /// The `history` parameter; empty to begin with the newest state.
    pub history: &'static str,
    /// True to resume after a lost connection.
    pub resumes: bool,
}

impl FollowOptions {
    /// The whole history, without a gap.
    pub const WHOLE: Self = Self { history: "all", resumes: true };
    /// From the newest state on, without resuming.
    pub const NEWEST: Self = Self { history: "", resumes: false };
}

/// What a viewer has received.
#[derive(Debug, Default)]
pub struct ViewerState {
    /// The recording since the last connection that was not resumed.
    pub recording: Recording,
    /// Bytes of binary messages.
    pub bytes: u64,
    /// Connections that the server accepted.
    pub connections: u64,
    /// Connections that resumed the one before.
    pub resumed: u64,
    /// Events that the server reported as missed since the last connection that was not resumed.
    pub missed: u64,
    /// Events that the server reported as missed since the first connection.
    pub missed_ever: u64,
    /// True if the server closed the last connection because the recording has ended.
    pub ended: bool,
    /// The first error in what the server sent.
    pub error: Option<String>,
    /// The recording's identity.
    identity: String,
    /// Position to resume at.
    next: Option<u64>,
}

enum ViewerCommand {
    Stall(Duration),
    Reconnect,
}

/// State that a [`NativeViewer`] shares with its thread.
#[derive(Default)]
struct SharedViewerState {
    state: Mutex<ViewerState>,
    changed: Condvar,
    stopping: AtomicBool,
}

impl SharedViewerState {
    fn lock(&self) -> MutexGuard<'_, ViewerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A viewer on its own thread. Dropping it disconnects.
pub struct NativeViewer {
    shared: Arc<SharedViewerState>,
    commands: Sender<ViewerCommand>,
    thread: Option<JoinHandle<()>>,
}

impl NativeViewer {
    /// Starts to follow the program at a page's URL; reconnects until it is dropped.
    ///
    /// # Panics
    /// Panics if no thread can be started.
    #[must_use]
    pub fn start(page: &str, options: FollowOptions) -> Self {
        let shared = Arc::new(SharedViewerState::default());
        let (commands, received) = channel();
        let mut follower = Follower { url: stream_url(page), options, shared: Arc::clone(&shared), commands: received };
        let thread = thread::spawn(move || follower.run());
        Self { shared, commands, thread: Some(thread) }
    }

    /// Stops reading for this long.
    pub fn stall(&self, time: Duration) {
        let _ = self.commands.send(ViewerCommand::Stall(time));
    }

    /// Closes the connection and connects again.
    pub fn reconnect(&self) {
        let _ = self.commands.send(ViewerCommand::Reconnect);
    }

    /// Locks and returns the state; the viewer waits until the guard is dropped.
    pub fn state(&self) -> MutexGuard<'_, ViewerState> {
        self.shared.lock()
    }

    /// Waits until `wanted` returns true for the state.
    ///
    /// # Errors
    /// Returns the reason if that takes longer than `timeout`.
    pub fn wait(
        &self,
        timeout: Duration,
        wanted: impl Fn(&ViewerState) -> bool,
    ) -> Result<MutexGuard<'_, ViewerState>, String> {
        let deadline = Instant::now() + timeout;
        let mut state = self.state();
        while !wanted(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let now = (state.recording.end_event(), state.connections, &state.error);
                return Err(format!("waited {timeout:?}; event, connections, error: {now:?}"));
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state)
    }

    /// Waits until the recording reaches an event.
    ///
    /// # Errors
    /// Returns the reason if that takes longer than `timeout`.
    pub fn wait_for_event(&self, event: u64, timeout: Duration) -> Result<MutexGuard<'_, ViewerState>, String> {
        self.wait(timeout, |state| state.recording.end_event() >= event)
            .map_err(|error| format!("not at event {event}: {error}"))
    }
}

impl Drop for NativeViewer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the URL of a page's stream, with its token.
#[must_use]
pub fn stream_url(page: &str) -> String {
    let (address, query) = page.split_once('?').unwrap_or((page, ""));
    let address = address.trim_end_matches('/').replacen("http", "ws", 1);
    format!("{address}/ws?{query}")
}

type Socket = WebSocket<TcpStream>;

struct Follower {
    url: String,
    options: FollowOptions,
    shared: Arc<SharedViewerState>,
    commands: Receiver<ViewerCommand>,
}

impl Follower {
    fn run(&mut self) {
        while !self.is_stopping() {
            let ended = self.connect().is_some_and(|socket| self.follow(socket));
            let mut state = self.shared.lock();
            state.ended = ended;
            self.shared.changed.notify_all();
            let is_over = ended || state.error.is_some();
            drop(state);
            if is_over {
                return;
            }
            thread::sleep(RETRY_DELAY);
        }
    }

    fn is_stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Relaxed)
    }

    fn connect(&self) -> Option<Socket> {
        let mut url = format!("{}&notes=1", self.url);
        if !self.options.history.is_empty() {
            url += &format!("&history={}", self.options.history);
        }
        let state = self.shared.lock();
        if let Some(next) = state.next.filter(|_| self.options.resumes) {
            url += &format!("&resume={}:{next}", state.identity);
        }
        drop(state);
        let address = url.split('/').nth(2)?.to_owned();
        let stream = TcpStream::connect(address).ok()?;
        // A handshake over a stalled network counts as failed.
        stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT)).ok()?;
        let (socket, _) = tungstenite::client(url, stream).ok()?;
        socket.get_ref().set_read_timeout(Some(POLL_INTERVAL)).ok()?;
        let mut state = self.shared.lock();
        state.connections += 1;
        // Without a resume request the stream starts over.
        if !(self.options.resumes && state.next.is_some()) {
            start_over(&mut state);
        }
        Some(socket)
    }

    /// Follows until the connection ends. Returns true if the recording has ended.
    fn follow(&mut self, mut socket: Socket) -> bool {
        let mut next = None;
        while !self.is_stopping() {
            match self.commands.try_recv() {
                Ok(ViewerCommand::Stall(time)) => self.sleep(time),
                Ok(ViewerCommand::Reconnect) => return false,
                Err(_) => {}
            }
            match socket.read() {
                Ok(Message::Binary(bytes)) => self.take(&bytes, &mut next),
                Ok(Message::Text(text)) => self.note(&text, &mut next),
                Ok(Message::Close(frame)) => return frame.is_some_and(|frame| u16::from(frame.code) == 1000),
                Ok(_) => {}
                Err(Error::Io(error)) if is_timeout(&error) => {}
                Err(_) => return false,
            }
        }
        let _ = socket.close(None).and_then(|()| socket.flush());
        false
    }

    /// Sleeps, but stops early when the viewer is dropped.
    fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.is_stopping() {
            thread::sleep(POLL_INTERVAL.min(time));
        }
    }

    fn take(&self, bytes: &[u8], next: &mut Option<u64>) {
        let mut state = self.shared.lock();
        state.bytes += bytes.len() as u64;
        if let Err(error) = state.recording.push(bytes) {
            state.error = Some(error.to_string());
        }
        state.next = next.take().or(state.next);
        self.shared.changed.notify_all();
    }

    fn note(&self, text: &str, next: &mut Option<u64>) {
        let mut state = self.shared.lock();
        let Ok(note) = serde_json::from_str::<Value>(text) else {
            state.error = Some(format!("{text:?} is not JSON"));
            return;
        };
        if let Some(identity) = note["recording"].as_str() {
            if note["resumed"] == true {
                state.resumed += 1;
            } else {
                start_over(&mut state);
            }
            state.identity = identity.to_owned();
        }
        *next = note["next"].as_u64().or(*next);
        let missed = note["missed"].as_u64().unwrap_or(0);
        state.missed += missed;
        state.missed_ever += missed;
    }
}

fn start_over(state: &mut ViewerState) {
    (state.recording, state.missed, state.next) = (Recording::overview_only(None), 0, None);
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_url_keeps_path_and_token() {
        assert_eq!(stream_url("http://127.0.0.1:7575/"), "ws://127.0.0.1:7575/ws?");
        assert_eq!(stream_url("http://a/b/?token=c"), "ws://a/b/ws?token=c");
    }
}
