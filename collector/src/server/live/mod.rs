//! A live recording over HTTP: the WebSocket at `/ws` and the download at `/trace.vram`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket, close_code};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::response::Response;
use percent_encoding::percent_decode_str;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use vramscope_trace::Chunk;
use vramscope_trace::live_protocol::StreamNote;

use super::ranges::{self, ChunkBytes, RecordingBytes};
use super::sockets;
use crate::hub::{Hub, StreamPosition, ViewFrom, Viewer, ViewerChunks};

/// The most bytes of chunks in one message, unless a single chunk is larger. With larger messages a
/// new viewer waits longer for its first picture; smaller ones cost more time for each byte.
const MESSAGE_BYTES: usize = 256 << 10;
/// The most bytes of the recording's newest part that a client receives first if its request to
/// `/ws` has the parameter `history=recent`.
const RECENT_BYTES: u64 = 16 << 20;
/// The ping interval, and the time without activity after which a client is disconnected. Tests use
/// other times.
const KEEPALIVE: Keepalive = Keepalive { ping_interval: Duration::from_secs(15), timeout: Duration::from_secs(45) };
/// How long a client may still receive data after the server begins to shut down; then its
/// connection is closed.
const FINAL_SEND_TIME: Duration = Duration::from_secs(1);

/// How often a client is pinged, and after how long without activity it is disconnected.
#[derive(Clone, Copy, Debug)]
struct Keepalive {
    ping_interval: Duration,
    /// A client that neither sends nor receives anything for this long is disconnected.
    timeout: Duration,
}

/// The parameters of a request to `/ws`: where to begin or resume, and whether to send notes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FollowQuery {
    begin: ViewFrom,
    resume: Option<StreamPosition>,
    /// True if the client wants a [`StreamNote`] before each message with chunks.
    notes: bool,
}

impl FollowQuery {
    /// Parses a URL's query. Returns `None` for an invalid value of a known parameter; unknown
    /// parameters are ignored.
    fn parse(query: &str) -> Option<Self> {
        let mut parsed = Self::default();
        for parameter in query.split('&') {
            match parameter.split_once('=') {
                Some(("history", "recent")) => parsed.begin = ViewFrom::Recent(RECENT_BYTES),
                Some(("history", "all")) => parsed.begin = ViewFrom::Oldest,
                Some(("notes", flag @ ("0" | "1"))) => parsed.notes = flag == "1",
                // Some clients percent-encode the colon.
                Some(("resume", position)) => {
                    let position = percent_decode_str(position).decode_utf8().ok()?;
                    parsed.resume = Some(position.parse().ok()?);
                }
                Some(("history" | "notes", _)) => return None,
                _ => {}
            }
        }
        Some(parsed)
    }

    /// Creates the hub's viewer that begins or resumes where these parameters say.
    fn viewer(&self, hub: &Hub) -> Viewer {
        self.resume.map_or_else(|| hub.viewer(self.begin), |position| hub.resume(position, self.begin))
    }
}

/// Sends the recording to a client until it ends, the client disconnects or the server stops.
/// `query` is the query of the request's URL.
pub(super) async fn follow(socket: WebSocket, hub: Hub, query: Option<String>, stopping: watch::Receiver<bool>) {
    let Some(query) = FollowQuery::parse(query.as_deref().unwrap_or_default()) else {
        let reason = "invalid query: history is `recent` or `all`, resume is RECORDING:CHUNK, notes is 0 or 1";
        return sockets::close(socket, close_code::POLICY, reason.into()).await;
    };
    let mut client = Client::new(socket, stopping, KEEPALIVE);
    if let Err(Finish::Close(code, reason)) = client.send_all(&query, &hub).await {
        sockets::close(client.socket, code, reason.into()).await;
    }
}

/// Why sending to a client ends: its connection is lost, or must be closed for a reason.
enum Finish {
    /// The connection is lost.
    Lost,
    /// The socket is to be closed with this code and reason.
    Close(u16, &'static str),
}

/// Ends sending to a client because the server stops.
const SERVER_STOPPING: Finish = Finish::Close(close_code::AWAY, "the server is stopping");

/// The server's side of the connection to one viewer or follower.
struct Client {
    socket: WebSocket,
    stopping: watch::Receiver<bool>,
    timeout: Duration,
    pings: Interval,
    /// When the client last sent or received something.
    last_active: Instant,
    /// Deadline for sending data once the server is stopping.
    final_deadline: Option<Instant>,
}

impl Client {
    fn new(socket: WebSocket, stopping: watch::Receiver<bool>, keepalive: Keepalive) -> Self {
        let now = Instant::now();
        let mut pings = interval_at(now + keepalive.ping_interval, keepalive.ping_interval);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { socket, stopping, timeout: keepalive.timeout, pings, last_active: now, final_deadline: None }
    }

    /// Sends chunks until the recording ends or the connection must be closed. Always returns an
    /// error, which says why sending ended.
    async fn send_all(&mut self, query: &FollowQuery, hub: &Hub) -> Result<(), Finish> {
        let mut viewer = query.viewer(hub);
        if query.notes {
            let (recording, resumed) = (Some(hub.identity().to_string()), Some(viewer.is_resumed()));
            let note = StreamNote { recording, resumed, ..StreamNote::default() };
            self.send(Message::Text(note.to_json().into())).await?;
        }
        loop {
            let taken;
            (viewer, taken) = take_chunks(viewer).await?;
            if !taken.chunks.is_empty() {
                if query.notes {
                    let (next, missed) = (Some(taken.next), taken.missed_events);
                    let note = StreamNote { next, missed, ..StreamNote::default() };
                    self.send(Message::Text(note.to_json().into())).await?;
                }
                self.send(Message::Binary(concatenated(&taken.chunks))).await?;
                self.check_final_deadline()?;
            } else if !self.wait(&mut viewer).await? {
                return Err(match viewer.failure() {
                    Some(_) => Finish::Close(close_code::ERROR, "the recording's file cannot be read"),
                    None => Finish::Close(close_code::NORMAL, "the recording has ended"),
                });
            }
            self.handle_pending().await?;
        }
    }

    /// Waits until the viewer has more to send (returns true) or the recording has ended (false).
    async fn wait(&mut self, viewer: &mut Viewer) -> Result<bool, Finish> {
        loop {
            tokio::select! {
                // In this order, so that the end of the recording is sent before the socket is
                // closed because the server stops.
                biased;
                more = viewer.wait() => return Ok(more),
                message = self.socket.recv() => self.handle_message(message)?,
                _ = self.pings.tick() => self.ping().await?,
                () = wait_until_stopping(&mut self.stopping) => return Err(SERVER_STOPPING),
            }
        }
    }

    /// Handles one message from the client if one has arrived, and pings the client if that is due.
    /// Does not wait for messages.
    async fn handle_pending(&mut self) -> Result<(), Finish> {
        tokio::select! {
            biased;
            _ = self.pings.tick() => self.ping().await,
            message = self.socket.recv() => self.handle_message(message),
            () = std::future::ready(()) => Ok(()),
        }
    }

    /// Updates when the client was last active; fails if it has disconnected. Ignores the message's
    /// content.
    fn handle_message(&mut self, message: Option<Result<Message, axum::Error>>) -> Result<(), Finish> {
        self.last_active = Instant::now();
        match message {
            Some(Ok(message)) if !matches!(message, Message::Close(_)) => Ok(()),
            _ => Err(Finish::Lost),
        }
    }

    /// Pings the client. Fails if it has been inactive for [`Keepalive::timeout`].
    async fn ping(&mut self) -> Result<(), Finish> {
        if self.last_active.elapsed() >= self.timeout {
            return Err(Finish::Lost);
        }
        self.send(Message::Ping(Bytes::new())).await
    }

    /// Fails once the server has been stopping for [`FINAL_SEND_TIME`]; succeeds before that and
    /// while the server runs.
    fn check_final_deadline(&mut self) -> Result<(), Finish> {
        if !*self.stopping.borrow() {
            return Ok(());
        }
        let deadline = *self.final_deadline.get_or_insert_with(|| Instant::now() + FINAL_SEND_TIME);
        if Instant::now() < deadline { Ok(()) } else { Err(SERVER_STOPPING) }
    }

    /// Sends a message. Waits while the client's connection is blocked.
    ///
    /// A stalled write ends with an error of the stream. If the server stops in the middle of a
    /// message, the connection is dropped: a close frame cannot be sent before the message's end.
    async fn send(&mut self, message: Message) -> Result<(), Finish> {
        let stopping = &mut self.stopping;
        let stop_deadline = async {
            wait_until_stopping(stopping).await;
            tokio::time::sleep(FINAL_SEND_TIME).await;
        };
        let mut sending = std::pin::pin!(self.socket.send(message));
        let mut was_blocked = false;
        let sent = tokio::select! {
            biased;
            sent = &mut sending => sent,
            () = std::future::ready(()) => {
                was_blocked = true;
                tokio::select! {
                    sent = sending => sent,
                    () = stop_deadline => return Err(Finish::Lost),
                }
            }
        };
        if was_blocked {
            // The send buffer was full and has space again, so the client is receiving.
            self.last_active = Instant::now();
        }
        sent.map_err(|_| Finish::Lost)
    }
}

/// Waits until the server begins to stop.
pub(super) async fn wait_until_stopping(stopping: &mut watch::Receiver<bool>) {
    // An error means that the sender was dropped, and the server with it.
    let _ = stopping.wait_for(|&stopping| stopping).await;
}

/// Takes the viewer's next chunks, about [`MESSAGE_BYTES`], without blocking this thread. Returns
/// the viewer for further use.
async fn take_chunks(mut viewer: Viewer) -> Result<(Viewer, ViewerChunks), Finish> {
    let may_block = viewer.reads_file();
    let take = move || {
        let taken = viewer.take(MESSAGE_BYTES);
        (viewer, taken)
    };
    // Reading may wait for a disk, so it runs on a blocking thread.
    if may_block { tokio::task::spawn_blocking(take).await.map_err(|_| Finish::Lost) } else { Ok(take()) }
}

/// Returns the bytes of the chunks one after another, without a copy if there is one chunk.
fn concatenated(chunks: &[Arc<Chunk>]) -> Bytes {
    if let [chunk] = chunks {
        return Bytes::from_owner(ChunkBytes(Arc::clone(chunk)));
    }
    let mut bytes = Vec::with_capacity(chunks.iter().map(|chunk| chunk.bytes.len()).sum());
    for chunk in chunks {
        bytes.extend_from_slice(&chunk.bytes);
    }
    bytes.into()
}

/// Returns the response for `/trace.vram` with everything recorded so far: the recording's file, or
/// what the hub holds if there is no file.
pub(super) fn download(hub: &Hub, method: &Method, headers: &HeaderMap) -> Response {
    let if_range = headers.get(header::IF_RANGE).and_then(|tag| tag.to_str().ok());
    let version = if_range.and_then(|tag| Version::parse(tag, hub));
    let (bytes, version) = version.and_then(|version| version.bytes(hub)).unwrap_or_else(|| Version::newest(hub));
    // `Range` applies to GET only, and only if `If-Range` names the version that is sent.
    let honors_range = *method == Method::GET && (if_range.is_none() || if_range == Some(version.tag(hub).as_str()));
    let mut response = ranges::respond(&bytes, headers.get(header::RANGE).filter(|_| honors_range));
    let tag = HeaderValue::try_from(version.tag(hub)).expect("a tag has only digits, hyphens and quotation marks");
    // Without a file name, so that browsers use the one that the page states.
    let disposition = HeaderValue::from_static("attachment");
    response.headers_mut().extend([(header::ETAG, tag), (header::CONTENT_DISPOSITION, disposition)]);
    response
}

/// Identifies the bytes of a download while the recording grows, so that an interrupted download
/// can be resumed. It becomes the `ETag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// The first bytes of the recording's file, this many.
    File(u64),
    /// The chunks from the first number up to the second, with the definitions before them.
    History(u64, u64),
}

impl Version {
    /// Returns the bytes of everything recorded so far, and the version that identifies them.
    fn newest(hub: &Hub) -> (RecordingBytes, Self) {
        if let Some(view) = hub.file() {
            let len = view.written_bytes();
            return (RecordingBytes::from_view(&view, len), Self::File(len));
        }
        let held = hub.history_view(None).expect("the hub never drops its newest version");
        let (first, end) = held.version();
        (RecordingBytes::from_history(held), Self::History(first, end))
    }

    /// Returns the recording up to the end that this version (an HTTP `ETag`) stands for, and the
    /// version itself, for the response's header; `None` if the hub has dropped some of the bytes.
    fn bytes(self, hub: &Hub) -> Option<(RecordingBytes, Self)> {
        let bytes = match self {
            Self::File(len) => {
                hub.file().filter(|view| len <= view.written_bytes()).map(|view| RecordingBytes::from_view(&view, len))
            }
            Self::History(first, end) => hub.history_view(Some((first, end))).map(RecordingBytes::from_history),
        };
        bytes.map(|bytes| (bytes, self))
    }

    /// Returns the version as an `ETag`, in quotation marks.
    fn tag(self, hub: &Hub) -> String {
        let recording = hub.identity();
        match self {
            Self::File(len) => format!("\"{recording}-{len}\""),
            Self::History(first, end) => format!("\"{recording}-{first}-{end}\""),
        }
    }

    /// Parses an `ETag` made by [`tag`](Self::tag); `None` if it is invalid or belongs to another
    /// recording.
    fn parse(tag: &str, hub: &Hub) -> Option<Self> {
        let numbers =
            tag.strip_prefix('"')?.strip_suffix('"')?.strip_prefix(&hub.identity().to_string())?.strip_prefix('-')?;
        let number = |text: &str| text.parse().ok();
        match numbers.split_once('-') {
            None => number(numbers).map(Self::File),
            Some((first, end)) => number(first).zip(number(end)).map(|(first, end)| Self::History(first, end)),
        }
    }
}

#[cfg(test)]
mod tests;
