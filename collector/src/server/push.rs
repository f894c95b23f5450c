//! `/push`: receives the recordings of other processes, one WebSocket each.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, Utf8Bytes, WebSocket, close_code};
use axum::extract::{State, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::watch;
use vramscope_trace::live_protocol::StreamNote;

use super::access::Rights;
use super::guard::TOKEN_REQUIRED;
use super::sockets::{self, TOO_MANY_CLIENTS};
use super::state::AppState;
use crate::aggregator::{Aggregator, ProcessConnection};
use crate::process::Process;
use crate::push_protocol::PushReply;

/// The most bytes of a message from a process; a larger one ends the connection. A full state is
/// the largest chunk, and only a message with a full state comes near this limit.
const MAX_MESSAGE_BYTES: usize = 65 << 20;
/// The most bytes of a text message from a process; a longer one ends the connection.
const MAX_TEXT_BYTES: usize = 4 << 10;
/// A process that sends nothing for this long is disconnected. A working process pings the server
/// every 15 s.
const SILENCE_TIME: Duration = Duration::from_secs(45);
/// The most bytes of a close reason; the rest is cut off. WebSocket control frames have room for no
/// more.
const MAX_REASON_BYTES: usize = 123;

/// Answers `GET /push`: opens the WebSocket of a process that pushes its recording.
pub(super) async fn push(
    State(state): State<Arc<AppState>>,
    Extension(rights): Extension<Rights>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, WebSocketUpgradeRejection> {
    let Some(aggregator) = state.content.aggregator.clone().filter(|_| state.content.accepts_push) else {
        return Ok((StatusCode::NOT_FOUND, "this server does not take pushed recordings\n").into_response());
    };
    // Unlike at `/ws`, the first message cannot bring the token: messages here may be large, so
    // unauthorized clients must not get a socket.
    if !rights.can_view || rights.has_wrong_token {
        return Ok((StatusCode::UNAUTHORIZED, TOKEN_REQUIRED).into_response());
    }
    let upgrade = upgrade?.max_message_size(MAX_MESSAGE_BYTES).max_frame_size(MAX_MESSAGE_BYTES);
    let permit = state.socket_permit();
    Ok(upgrade.on_upgrade(async move |mut socket| {
        let Some(_permit) = permit else {
            return sockets::close(socket, close_code::AGAIN, TOO_MANY_CLIENTS.into()).await;
        };
        let mut stopping = state.stopping.clone();
        let mut client = PushClient { aggregator, connection: None };
        let received = receive_all(&mut socket, &mut client, state.limits.client_timeout, &mut stopping).await;
        client.disconnect().await;
        let (code, reason) = match received {
            Ok(()) => (close_code::NORMAL, "the recording is complete".to_owned()),
            Err(Disconnect::Lost) => return,
            Err(Disconnect::Stopping) => (close_code::AWAY, "the server is stopping".to_owned()),
            Err(Disconnect::Invalid(reason)) => (close_code::POLICY, reason),
        };
        sockets::close(socket, code, close_reason(&reason)).await;
    }))
}

/// Why a process is disconnected before its recording has ended.
enum Disconnect {
    /// The connection is lost.
    Lost,
    /// The server stops.
    Stopping,
    /// The process sent something invalid, for this reason.
    Invalid(String),
}

/// Returns [`Disconnect::Invalid`] with this reason.
fn invalid(reason: &str) -> Disconnect {
    Disconnect::Invalid(reason.to_owned())
}

/// A process's connection to the aggregator.
///
/// Calls into the aggregator may wait for other processes or take long, so they run on blocking
/// threads: the server's one thread must stay free for viewers.
struct PushClient {
    aggregator: Aggregator,
    connection: Option<ProcessConnection>,
}

impl PushClient {
    /// Connects the process to the aggregator. Returns the number of the first chunk that the
    /// process must send.
    async fn join(&mut self, process: Process) -> Result<u64, Disconnect> {
        let aggregator = self.aggregator.clone();
        let joined = tokio::task::spawn_blocking(move || aggregator.join(process)).await;
        let connection = joined.map_err(|_| panicked())?.map_err(|error| invalid(&error.to_string()))?;
        Ok(self.connection.insert(connection).resume())
    }

    /// Runs `act` on the aggregator's connection, on a blocking thread. Fails if the process is not
    /// connected or `act` panics.
    async fn with_connection<T: Send + 'static>(
        &mut self,
        act: impl FnOnce(&mut ProcessConnection) -> T + Send + 'static,
    ) -> Result<T, Disconnect> {
        let mut connection = self.connection.take().ok_or(Disconnect::Lost)?;
        let call = move || {
            let result = act(&mut connection);
            (connection, result)
        };
        let (connection, result) = tokio::task::spawn_blocking(call).await.map_err(|_| panicked())?;
        self.connection = Some(connection);
        Ok(result)
    }

    /// Disconnects the process from the aggregator, on a blocking thread.
    async fn disconnect(mut self) {
        let connection = self.connection.take();
        // The panic hook has already reported a panic.
        let _ = tokio::task::spawn_blocking(move || drop(connection)).await;
    }
}

/// Returns [`Disconnect::Invalid`] for a process whose recording made the aggregator panic. The
/// panic hook has already reported the panic.
fn panicked() -> Disconnect {
    invalid("internal error in the aggregator; see its output")
}

impl Drop for PushClient {
    fn drop(&mut self) {
        // Only reached with a connection if the server stops and drops this task.
        if let Some(connection) = self.connection.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn_blocking(move || drop(connection));
        }
    }
}

/// Receives a process's recording until it ends. The first message, which describes the process,
/// must arrive within `timeout`.
async fn receive_all(
    socket: &mut WebSocket,
    client: &mut PushClient,
    timeout: Duration,
    stopping: &mut watch::Receiver<bool>,
) -> Result<(), Disconnect> {
    let Received::Text(hello) = receive(socket, timeout, stopping).await? else {
        return Err(invalid("the first message must identify the process"));
    };
    let process = Process::parse(&hello).map_err(Disconnect::Invalid)?;
    let resume = client.join(process).await?;
    send(socket, &PushReply { resume: Some(resume), taken: None }).await?;
    let mut next = None;
    loop {
        match receive(socket, SILENCE_TIME, stopping).await? {
            Received::Text(text) => {
                let note: StreamNote =
                    serde_json::from_str(&text).map_err(|_| invalid("a text message must be a note"))?;
                if note.end {
                    return client.with_connection(ProcessConnection::end).await;
                }
                next = note.next.or(next);
            }
            Received::Chunks(bytes) => {
                let next =
                    next.take().ok_or_else(|| invalid("a note with `next` must precede every message with chunks"))?;
                let taken = client.with_connection(move |connection| connection.push(&bytes, next)).await?;
                taken.map_err(Disconnect::Invalid)?;
                send(socket, &PushReply { taken: Some(next), resume: None }).await?;
            }
        }
    }
}

/// A message from a pushing process: JSON text or chunks.
enum Received {
    Text(String),
    Chunks(Bytes),
}

/// Receives the next message that is not a ping or pong. Fails if no message arrives within
/// `timeout` or the server stops.
async fn receive(
    socket: &mut WebSocket,
    timeout: Duration,
    stopping: &mut watch::Receiver<bool>,
) -> Result<Received, Disconnect> {
    loop {
        let message = tokio::select! {
            _ = stopping.wait_for(|&stopping| stopping) => return Err(Disconnect::Stopping),
            message = tokio::time::timeout(timeout, socket.recv()) => message,
        };
        match message {
            Ok(Some(Ok(Message::Text(text)))) if text.len() <= MAX_TEXT_BYTES => {
                return Ok(Received::Text(text.as_str().to_owned()));
            }
            Ok(Some(Ok(Message::Text(_)))) => return Err(invalid("a text message may have at most 4096 bytes")),
            Ok(Some(Ok(Message::Binary(bytes)))) => return Ok(Received::Chunks(bytes)),
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
            _ => return Err(Disconnect::Lost),
        }
    }
}

/// Sends `reply` as JSON to the process. Fails if the process does not receive it within
/// [`SILENCE_TIME`].
async fn send(socket: &mut WebSocket, reply: &impl Serialize) -> Result<(), Disconnect> {
    let text = serde_json::to_string(reply).expect("numbers always serialize");
    let sent = tokio::time::timeout(SILENCE_TIME, socket.send(Message::Text(text.into()))).await;
    sent.ok().and_then(Result::ok).ok_or(Disconnect::Lost)
}

/// Returns `reason`, cut to [`MAX_REASON_BYTES`].
fn close_reason(reason: &str) -> Utf8Bytes {
    reason[..reason.floor_char_boundary(MAX_REASON_BYTES)].into()
}
