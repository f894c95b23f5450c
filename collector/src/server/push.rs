//! What programs push: a socket each, whose recording goes to the others.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use axum::extract::{State, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::access::Rights;
use super::guard::UNAUTHORIZED;
use super::routes::{Site, not_found};
use super::sockets;
use crate::gather::{Aggregator, Pushed};
use crate::process::Process;
use crate::push::transport::{Answer, Note};

/// The largest message: a full state is the largest chunk there is, and a program sends a larger message only for one such.
const MAX_MESSAGE_BYTES: usize = 65 << 20;
/// The most bytes of a message that is text.
const MAX_TEXT_BYTES: usize = 4 << 10;
/// After so long without a word a program is gone. It asks every 15 s whether the hub is there.
const SILENCE: Duration = Duration::from_secs(45);
/// The longest reason that a socket can be closed with, in bytes.
const MAX_REASON_BYTES: usize = 123;
/// How long a program may take to answer the closing of its socket.
const CLOSING_TIME: Duration = Duration::from_millis(500);

/// Opens the socket of a program that wants to push.
pub(super) async fn push(
    State(site): State<Arc<Site>>,
    Extension(rights): Extension<Rights>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let Some(gather) = site.content.gather.clone() else { return not_found() };
    // Not in the first message: nobody may send as much as a state is before he has shown his right.
    if !rights.watch || rights.is_wrong {
        return (StatusCode::UNAUTHORIZED, UNAUTHORIZED).into_response();
    }
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return rejection.into_response(),
    };
    let place = site.place();
    let upgrade = upgrade.max_message_size(MAX_MESSAGE_BYTES).max_frame_size(MAX_MESSAGE_BYTES);
    upgrade.on_upgrade(async move |mut socket| {
        let Some(_place) = place else {
            return sockets::close(socket, close_code::AGAIN, sockets::TOO_MANY).await;
        };
        let mut stopping = site.stopping.clone();
        let mut program = Program { gather, pushed: None };
        let taken = take(&mut socket, &mut program, site.limits.patience, &mut stopping).await;
        program.leave().await;
        let (code, reason) = match taken {
            Ok(()) => (close_code::NORMAL, "that was all".to_owned()),
            Err(Left::Gone) => return,
            Err(Left::Stopping) => (close_code::AWAY, "the hub stops".to_owned()),
            Err(Left::Wrong(why)) => (close_code::POLICY, why),
        };
        close(socket, code, &reason).await;
    })
}

/// Why a program is not listened to any more.
enum Left {
    Gone,
    Stopping,
    Wrong(String),
}

fn wrong(why: &str) -> Left {
    Left::Wrong(why.to_owned())
}

/// What is done about a program. All of it may have to wait for what is done about another, or be work, and so none of it is done on the
/// server's one thread: the others who watch are not to wait.
struct Program {
    gather: Aggregator,
    pushed: Option<Pushed>,
}

impl Program {
    /// It is there; the answer is what it should go on with.
    async fn join(&mut self, process: Process) -> Result<u64, Left> {
        let gather = self.gather.clone();
        let joined = tokio::task::spawn_blocking(move || gather.join(process)).await;
        let pushed = self.pushed.insert(joined.map_err(|_| failed())?.map_err(Left::Wrong)?);
        Ok(pushed.resume())
    }

    async fn with<T: Send + 'static>(
        &mut self,
        act: impl FnOnce(&mut Pushed) -> T + Send + 'static,
    ) -> Result<T, Left> {
        let mut pushed = self.pushed.take().ok_or(Left::Gone)?;
        let work = move || {
            let done = act(&mut pushed);
            (pushed, done)
        };
        let (pushed, done) = tokio::task::spawn_blocking(work).await.map_err(|_| failed())?;
        self.pushed = Some(pushed);
        Ok(done)
    }

    async fn leave(mut self) {
        let pushed = self.pushed.take();
        // What became of it was said.
        let _ = tokio::task::spawn_blocking(move || drop(pushed)).await;
    }
}

/// The panic was printed when it happened; it concerns this program alone.
fn failed() -> Left {
    wrong("the hub cannot take this")
}

impl Drop for Program {
    fn drop(&mut self) {
        // Where the server stops in the midst of it.
        if let Some(pushed) = self.pushed.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn_blocking(move || drop(pushed));
        }
    }
}

/// Takes what a program says until that was all.
async fn take(
    socket: &mut WebSocket,
    program: &mut Program,
    patience: Duration,
    stopping: &mut watch::Receiver<bool>,
) -> Result<(), Left> {
    let Said::Text(hello) = hear(socket, patience, stopping).await? else {
        return Err(wrong("the first message says which process this is"));
    };
    let process = Process::parse(&hello).map_err(Left::Wrong)?;
    let resume = program.join(process).await?;
    say(socket, &Answer { resume: Some(resume), taken: None }).await?;
    let mut next = None;
    loop {
        match hear(socket, SILENCE, stopping).await? {
            Said::Text(text) => {
                let note: Note = serde_json::from_str(&text).map_err(|_| wrong("a text message is a note"))?;
                if note.end {
                    return program.with(Pushed::end).await;
                }
                next = note.next.or(next);
            }
            Said::Bytes(bytes) => {
                let next =
                    next.take().ok_or_else(|| wrong("a note with `next` comes before every message of chunks"))?;
                program.with(move |pushed| pushed.take(&bytes, next)).await?.map_err(Left::Wrong)?;
                say(socket, &Answer { taken: Some(next), resume: None }).await?;
            }
        }
    }
}

enum Said {
    Text(String),
    Bytes(axum::body::Bytes),
}

/// The next message that says something.
async fn hear(socket: &mut WebSocket, patience: Duration, stopping: &mut watch::Receiver<bool>) -> Result<Said, Left> {
    loop {
        let message = tokio::select! {
            _ = stopping.wait_for(|&stopping| stopping) => return Err(Left::Stopping),
            message = tokio::time::timeout(patience, socket.recv()) => message,
        };
        match message {
            Ok(Some(Ok(Message::Text(text)))) if text.len() <= MAX_TEXT_BYTES => {
                return Ok(Said::Text(text.as_str().to_owned()));
            }
            Ok(Some(Ok(Message::Text(_)))) => return Err(wrong("a text message has at most 4096 bytes")),
            Ok(Some(Ok(Message::Binary(bytes)))) => return Ok(Said::Bytes(bytes)),
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
            _ => return Err(Left::Gone),
        }
    }
}

async fn say(socket: &mut WebSocket, answer: &impl Serialize) -> Result<(), Left> {
    let text = serde_json::to_string(answer).expect("numbers always serialize");
    let sent = tokio::time::timeout(SILENCE, socket.send(Message::Text(text.into()))).await;
    sent.ok().and_then(Result::ok).ok_or(Left::Gone)
}

/// Says why, and leaves.
async fn close(mut socket: WebSocket, code: u16, reason: &str) {
    let mut end = reason.len().min(MAX_REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let frame = CloseFrame { code, reason: reason[..end].into() };
    let closing = async {
        if socket.send(Message::Close(Some(frame))).await.is_ok() {
            while let Some(Ok(_)) = socket.recv().await {}
        }
    };
    // A program that does not answer is simply left.
    let _ = tokio::time::timeout(CLOSING_TIME, closing).await;
}
