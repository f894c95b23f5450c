//! A native viewer: it follows a live recording over its WebSocket by what `docs/live.md` promises, and knows nothing of the code behind it.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use tungstenite::{Error, Message, WebSocket};
use vramscope_trace::Recording;

/// How often a viewer that hears nothing looks whether it is to do something else.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the server may take to answer a newcomer.
const HANDSHAKE_TIME: Duration = Duration::from_millis(1000);
/// How long after a lost connection the next is tried.
const RETRY: Duration = Duration::from_millis(40);

/// How a viewer follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// What it asks to begin with; empty for the newest state.
    pub history: &'static str,
    /// Whether it goes on where it was when the connection breaks.
    pub resumes: bool,
}

impl Manner {
    /// All there ever was, without a gap.
    pub const WHOLE: Self = Self { history: "all", resumes: true };
    /// From the newest state on.
    pub const NEWEST: Self = Self { history: "", resumes: false };
}

/// What a viewer has seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// What it holds; from its newest connection that was not resumed.
    pub recording: Recording,
    /// Bytes of messages.
    pub bytes: u64,
    /// Connections that the server took.
    pub connections: u64,
    /// Those that went on where the one before them was.
    pub resumed: u64,
    /// Events that it was told that it missed, since its newest connection that was not resumed.
    pub missed: u64,
    /// The same since it first connected.
    pub missed_ever: u64,
    /// Whether the server has closed the last connection because the recording has ended.
    pub ended: bool,
    /// What was wrong with what the server sent.
    pub wrong: Option<String>,
    /// The recording's identity.
    identity: String,
    /// The chunk to go on with.
    next: Option<u64>,
}

enum Order {
    Stall(Duration),
    Reconnect,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    more: Condvar,
    leaving: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A viewer on a thread of its own. It leaves when this is dropped.
pub struct Watcher {
    shared: Arc<Shared>,
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Follows what is at the address of a page, from now on, however often the connection breaks.
    ///
    /// # Panics
    /// Where the machine has no thread.
    #[must_use]
    pub fn start(page: &str, manner: Manner) -> Self {
        let shared = Arc::new(Shared::default());
        let (orders, theirs) = channel();
        let mut follower = Follower { url: stream_url(page), manner, shared: Arc::clone(&shared), orders: theirs };
        let thread = thread::spawn(move || follower.run());
        Self { shared, orders, thread: Some(thread) }
    }

    /// It reads nothing for so long.
    pub fn stall(&self, time: Duration) {
        let _ = self.orders.send(Order::Stall(time));
    }

    /// It hangs up, and connects again.
    pub fn reconnect(&self) {
        let _ = self.orders.send(Order::Reconnect);
    }

    /// What it has seen so far; it waits meanwhile.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.shared.lock()
    }

    /// What it has seen once `wanted` is true of it.
    ///
    /// # Errors
    /// Where that is not so in `patience`.
    pub fn wait(&self, patience: Duration, wanted: impl Fn(&Seen) -> bool) -> Result<MutexGuard<'_, Seen>, String> {
        let deadline = Instant::now() + patience;
        let mut seen = self.seen();
        while !wanted(&seen) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let at = (seen.recording.end_event(), seen.connections, &seen.wrong);
                return Err(format!("waited {patience:?}; at event, connections, wrong: {at:?}"));
            }
            seen = self.shared.more.wait_timeout(seen, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(seen)
    }

    /// What it has seen once that goes up to an event.
    ///
    /// # Errors
    /// Where that is not so in `patience`.
    pub fn wait_for_event(&self, event: u64, patience: Duration) -> Result<MutexGuard<'_, Seen>, String> {
        self.wait(patience, |seen| seen.recording.end_event() >= event)
            .map_err(|error| format!("not at event {event}: {error}"))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.leaving.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The address of the stream of a page, with its token.
#[must_use]
pub fn stream_url(page: &str) -> String {
    let (address, query) = page.split_once('?').unwrap_or((page, ""));
    let address = address.trim_end_matches('/').replacen("http", "ws", 1);
    format!("{address}/ws?{query}")
}

type Socket = WebSocket<TcpStream>;

struct Follower {
    url: String,
    manner: Manner,
    shared: Arc<Shared>,
    orders: Receiver<Order>,
}

impl Follower {
    fn run(&mut self) {
        while !self.is_leaving() {
            let ended = self.connect().is_some_and(|socket| self.follow(socket));
            let mut seen = self.shared.lock();
            seen.ended = ended;
            self.shared.more.notify_all();
            let is_over = ended || seen.wrong.is_some();
            drop(seen);
            if is_over {
                return;
            }
            thread::sleep(RETRY);
        }
    }

    fn is_leaving(&self) -> bool {
        self.shared.leaving.load(Ordering::Relaxed)
    }

    fn connect(&self) -> Option<Socket> {
        let mut url = format!("{}&notes=1", self.url);
        if !self.manner.history.is_empty() {
            url += &format!("&history={}", self.manner.history);
        }
        let seen = self.shared.lock();
        if let Some(next) = seen.next.filter(|_| self.manner.resumes) {
            url += &format!("&resume={}:{next}", seen.identity);
        }
        drop(seen);
        let address = url.split('/').nth(2)?.to_owned();
        let stream = TcpStream::connect(address).ok()?;
        // A network that falls silent during the handshake has lost it.
        stream.set_read_timeout(Some(HANDSHAKE_TIME)).ok()?;
        let (socket, _) = tungstenite::client(url, stream).ok()?;
        socket.get_ref().set_read_timeout(Some(LOOK_EVERY)).ok()?;
        let mut seen = self.shared.lock();
        seen.connections += 1;
        // What says nothing of itself is a new beginning.
        if !(self.manner.resumes && seen.next.is_some()) {
            begin(&mut seen);
        }
        Some(socket)
    }

    /// Follows until the connection ends; says whether that is because the recording has.
    fn follow(&mut self, mut socket: Socket) -> bool {
        let mut next = None;
        while !self.is_leaving() {
            match self.orders.try_recv() {
                Ok(Order::Stall(time)) => self.sleep(time),
                Ok(Order::Reconnect) => return false,
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

    /// Sleeps, but for as long as it may.
    fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.is_leaving() {
            thread::sleep(LOOK_EVERY.min(time));
        }
    }

    fn take(&self, bytes: &[u8], next: &mut Option<u64>) {
        let mut seen = self.shared.lock();
        seen.bytes += bytes.len() as u64;
        if let Err(error) = seen.recording.push(bytes) {
            seen.wrong = Some(error.to_string());
        }
        seen.next = next.take().or(seen.next);
        self.shared.more.notify_all();
    }

    fn note(&self, text: &str, next: &mut Option<u64>) {
        let mut seen = self.shared.lock();
        let Ok(note) = serde_json::from_str::<Value>(text) else {
            seen.wrong = Some(format!("{text:?} is no JSON"));
            return;
        };
        if let Some(identity) = note["recording"].as_str() {
            if note["resumed"] == true {
                seen.resumed += 1;
            } else {
                begin(&mut seen);
            }
            seen.identity = identity.to_owned();
        }
        *next = note["next"].as_u64().or(*next);
        let missed = note["missed"].as_u64().unwrap_or(0);
        seen.missed += missed;
        seen.missed_ever += missed;
    }
}

fn begin(seen: &mut Seen) {
    (seen.recording, seen.missed, seen.next) = (Recording::passing_by(None), 0, None);
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_beside_the_page() {
        assert_eq!(stream_url("http://127.0.0.1:7575/"), "ws://127.0.0.1:7575/ws?");
        assert_eq!(stream_url("http://a/b/?token=c"), "ws://a/b/ws?token=c");
    }
}
