//! A live recording over HTTP: the WebSocket that follows it, and everything so far as one file.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket, close_code};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::response::Response;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use vramscope_trace::Chunk;

use super::ranges::{self, RecordingBytes};
use super::sockets;
use crate::hub::{Begin, Hub, Position, Taken, Viewer};

/// Bytes of chunks in one message. A larger one makes a newcomer wait for its first picture, smaller ones cost more each.
const MESSAGE_BYTES: usize = 256 << 10;
/// Bytes that `history=recent` begins with.
const RECENT_BYTES: u64 = 16 << 20;
const PATIENCE: Patience = Patience { ping_every: Duration::from_secs(15), silence: Duration::from_secs(45) };
/// How long clients are given what there is to have after the server was told to stop.
const LAST_TIME: Duration = Duration::from_secs(1);

/// How long a client may say nothing.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// How often it is asked whether it is there.
    ping_every: Duration,
    /// After so long without a sign of life it is let go.
    silence: Duration,
}

/// What a client wants to follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Asked {
    begin: Begin,
    resume: Option<Position>,
    notes: bool,
}

impl Asked {
    /// Reads the part of an address behind the question mark; `None` where it asks for what there is not.
    fn read(query: &str) -> Option<Self> {
        let mut asked = Self::default();
        for parameter in query.split('&') {
            match parameter.split_once('=') {
                Some(("history", "recent")) => asked.begin = Begin::Recent(RECENT_BYTES),
                Some(("history", "all")) => asked.begin = Begin::Oldest,
                Some(("notes", flag @ ("0" | "1"))) => asked.notes = flag == "1",
                // A browser may write the colon in either way.
                Some(("resume", at)) => {
                    asked.resume = Some(at.replace("%3A", ":").replace("%3a", ":").parse().ok()?);
                }
                Some(("history" | "notes", _)) => return None,
                _ => {}
            }
        }
        Some(asked)
    }

    fn viewer(&self, hub: &Hub) -> Viewer {
        self.resume.map_or_else(|| hub.viewer(self.begin), |at| hub.resume(at, self.begin))
    }
}

/// A text message, which speaks of the binary message behind it.
#[derive(Debug, Default, Serialize)]
struct Note {
    #[serde(skip_serializing_if = "Option::is_none")]
    recording: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resumed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missed: Option<u64>,
}

impl Note {
    fn message(&self) -> Message {
        Message::Text(serde_json::to_string(self).expect("numbers and text always serialize").into())
    }
}

/// Sends a client the recording until that ends, the client leaves or the server stops. `query` says what it wants.
pub(super) async fn follow(socket: WebSocket, hub: Hub, query: Option<String>, stopping: watch::Receiver<bool>) {
    let Some(asked) = Asked::read(query.as_deref().unwrap_or_default()) else {
        return sockets::close(socket, close_code::POLICY, "history is recent or all, resume RECORDING:CHUNK").await;
    };
    let mut client = Client::new(socket, stopping, PATIENCE);
    if let Err(Left::Because(code, reason)) = client.send_all(&asked, &hub).await {
        sockets::close(client.socket, code, reason).await;
    }
}

/// Why nothing more is sent.
enum Left {
    /// It is no longer there, or as good as that.
    Gone,
    /// It is to be told.
    Because(u16, &'static str),
}

const STOPPED: Left = Left::Because(close_code::AWAY, "the server stops");

/// The other end of a socket.
struct Client {
    socket: WebSocket,
    stopping: watch::Receiver<bool>,
    silence: Duration,
    pings: Interval,
    /// When it last gave a sign of life.
    alive_at: Instant,
    /// When it is told that the server stops, whatever else there is for it.
    stops_at: Option<Instant>,
}

impl Client {
    fn new(socket: WebSocket, stopping: watch::Receiver<bool>, patience: Patience) -> Self {
        let now = Instant::now();
        let mut pings = interval_at(now + patience.ping_every, patience.ping_every);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { socket, stopping, silence: patience.silence, pings, alive_at: now, stops_at: None }
    }

    async fn send_all(&mut self, asked: &Asked, hub: &Hub) -> Result<(), Left> {
        let mut viewer = asked.viewer(hub);
        if asked.notes {
            let (recording, resumed) = (Some(hub.identity().to_string()), Some(viewer.is_resumed()));
            self.send(Note { recording, resumed, ..Note::default() }.message()).await?;
        }
        loop {
            let taken;
            (viewer, taken) = take(viewer).await?;
            if !taken.chunks.is_empty() {
                if asked.notes {
                    let missed = Some(taken.missed).filter(|&missed| missed > 0);
                    self.send(Note { next: Some(taken.next), missed, ..Note::default() }.message()).await?;
                }
                self.send(Message::Binary(joined(&taken.chunks))).await?;
                self.look_up()?;
            } else if !self.wait(&mut viewer).await? {
                return Err(match viewer.failure() {
                    Some(_) => Left::Because(close_code::ERROR, "the recording's file cannot be read"),
                    None => Left::Because(close_code::NORMAL, "the recording has ended"),
                });
            }
            self.hear_now().await?;
        }
    }

    /// Waits until there is more for the viewer; says whether there ever will be.
    async fn wait(&mut self, viewer: &mut Viewer) -> Result<bool, Left> {
        loop {
            tokio::select! {
                // In this order, so that a viewer is given the last of a recording before it is told that the server stops.
                biased;
                more = viewer.wait() => return Ok(more),
                message = self.socket.recv() => self.hear(message)?,
                _ = self.pings.tick() => self.ping().await?,
                () = stopped(&mut self.stopping) => return Err(STOPPED),
            }
        }
    }

    /// Hears what has come while something was sent, and asks for a sign of life if it is time.
    async fn hear_now(&mut self) -> Result<(), Left> {
        tokio::select! {
            biased;
            _ = self.pings.tick() => self.ping().await,
            message = self.socket.recv() => self.hear(message),
            () = std::future::ready(()) => Ok(()),
        }
    }

    /// Nothing that a viewer says is of interest but that it is there; pings are answered below this.
    fn hear(&mut self, message: Option<Result<Message, axum::Error>>) -> Result<(), Left> {
        self.alive_at = Instant::now();
        match message {
            Some(Ok(message)) if !matches!(message, Message::Close(_)) => Ok(()),
            _ => Err(Left::Gone),
        }
    }

    async fn ping(&mut self) -> Result<(), Left> {
        if self.alive_at.elapsed() >= self.silence {
            return Err(Left::Gone);
        }
        self.send(Message::Ping(Bytes::new())).await
    }

    /// Whether there is still time for what there is to have.
    fn look_up(&mut self) -> Result<(), Left> {
        if !*self.stopping.borrow() {
            return Ok(());
        }
        let stops_at = *self.stops_at.get_or_insert_with(|| Instant::now() + LAST_TIME);
        if Instant::now() < stops_at { Ok(()) } else { Err(STOPPED) }
    }

    /// Sends a message. A connection whose client takes nothing for too long ends by itself. One that is in the midst of a message when
    /// the server stops is simply left: nothing can be said there before the message has been taken.
    async fn send(&mut self, message: Message) -> Result<(), Left> {
        let stopping = &mut self.stopping;
        let is_late = async {
            stopped(stopping).await;
            tokio::time::sleep(LAST_TIME).await;
        };
        let mut sending = std::pin::pin!(self.socket.send(message));
        let mut has_waited = false;
        let sent = tokio::select! {
            biased;
            sent = &mut sending => sent,
            () = std::future::ready(()) => {
                has_waited = true;
                tokio::select! {
                    sent = sending => sent,
                    () = is_late => return Err(Left::Gone),
                }
            }
        };
        if has_waited {
            // There was no room for it, and now there is: the other end takes what it is sent.
            self.alive_at = Instant::now();
        }
        sent.map_err(|_| Left::Gone)
    }
}

async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // Without anyone who could say so the server is gone, too.
    let _ = stopping.wait_for(|&stopping| stopping).await;
}

/// The next chunks for a viewer.
async fn take(mut viewer: Viewer) -> Result<(Viewer, Taken), Left> {
    let is_slow = viewer.reads_file();
    let take = move || {
        let taken = viewer.take(MESSAGE_BYTES);
        (viewer, taken)
    };
    // A disk may take its time, and the server has but one thread.
    if is_slow { tokio::task::spawn_blocking(take).await.map_err(|_| Left::Gone) } else { Ok(take()) }
}

fn joined(chunks: &[Arc<Chunk>]) -> Bytes {
    if let [chunk] = chunks {
        return Bytes::from_owner(ranges::Shared(Arc::clone(chunk)));
    }
    let mut bytes = Vec::with_capacity(chunks.iter().map(|chunk| chunk.bytes.len()).sum());
    for chunk in chunks {
        bytes.extend_from_slice(&chunk.bytes);
    }
    bytes.into()
}

/// Answers a request for everything so far: for the file that it is written to, as far as that goes, or for what is held in memory.
pub(super) fn download(hub: &Hub, method: &Method, headers: &HeaderMap) -> Response {
    let asked = headers.get(header::IF_RANGE).and_then(|tag| tag.to_str().ok());
    let version = asked.and_then(|tag| Version::read(tag, hub));
    let (bytes, version) = version.and_then(|version| version.bytes(hub)).unwrap_or_else(|| Version::newest(hub));
    // Whoever only asks what there is asks for no range of it, and a part of something else is of no use.
    let counts = *method == Method::GET && (asked.is_none() || asked == Some(version.tag(hub).as_str()));
    let mut response = ranges::answer(&bytes, headers.get(header::RANGE).filter(|_| counts));
    let tag = HeaderValue::try_from(version.tag(hub)).expect("digits and quotes");
    let named = HeaderValue::from_static("attachment; filename=\"trace.vram\"");
    response.headers_mut().extend([(header::ETAG, tag), (header::CONTENT_DISPOSITION, named)]);
    response
}

/// Which bytes of a recording that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// So many from the beginning of its file.
    File(u64),
    /// These chunks, and the definitions before them.
    Held(u64, u64),
}

impl Version {
    /// What there is now.
    fn newest(hub: &Hub) -> (RecordingBytes, Self) {
        if let Some(view) = hub.file() {
            let len = view.written_bytes();
            return (RecordingBytes::of_view(&view, len), Self::File(len));
        }
        let held = hub.held(None).expect("everything that is held is held");
        let (first, end) = held.version();
        (RecordingBytes::of_held(held), Self::Held(first, end))
    }

    /// The same bytes again; `None` where they are gone. What comes after them does not change them.
    fn bytes(self, hub: &Hub) -> Option<(RecordingBytes, Self)> {
        let bytes = match self {
            Self::File(len) => {
                hub.file().filter(|view| len <= view.written_bytes()).map(|view| RecordingBytes::of_view(&view, len))
            }
            Self::Held(first, end) => hub.held(Some((first, end))).map(RecordingBytes::of_held),
        };
        bytes.map(|bytes| (bytes, self))
    }

    fn tag(self, hub: &Hub) -> String {
        let recording = hub.identity();
        match self {
            Self::File(len) => format!("\"{recording}-{len}\""),
            Self::Held(first, end) => format!("\"{recording}-{first}-{end}\""),
        }
    }

    fn read(tag: &str, hub: &Hub) -> Option<Self> {
        let numbers =
            tag.strip_prefix('"')?.strip_suffix('"')?.strip_prefix(&hub.identity().to_string())?.strip_prefix('-')?;
        let number = |text: &str| text.parse().ok();
        match numbers.split_once('-') {
            None => number(numbers).map(Self::File),
            Some((first, end)) => number(first).zip(number(end)).map(|(first, end)| Self::Held(first, end)),
        }
    }
}

#[cfg(test)]
mod tests;
