//! The way to the hub by a WebSocket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tungstenite::Message;
use vramscope_trace::Chunk;

use super::transport::{Answer, Note, Transport};
use crate::process::Process;
use crate::socket::{Address, Heard, Socket};

/// How long the hub may take to answer when it is told who this is.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// How long the hub may take nothing. Far below what would make a program's end wait.
const SEND_TIME: Duration = Duration::from_secs(10);
/// How long its goodbye is waited for.
const CLOSING_TIME: Duration = Duration::from_millis(200);

/// A WebSocket at a hub's `/push`.
#[derive(Debug)]
pub(super) struct WebSocketTransport {
    address: Address,
    socket: Option<Socket>,
}

impl WebSocketTransport {
    pub(super) fn new(address: Address) -> Self {
        Self { address, socket: None }
    }

    fn socket(&mut self) -> Result<&mut Socket, String> {
        self.socket.as_mut().ok_or_else(|| "there is no connection".to_owned())
    }

    fn say(&mut self, message: Message) -> Result<(), String> {
        let said = self.socket()?.say(message).map_err(|error| error.to_string());
        if said.is_err() {
            self.socket = None;
        }
        said
    }

    /// The next answer of the hub, if there is one in time.
    fn answer(&mut self, wait: Duration) -> Result<Option<Answer>, String> {
        let heard = self.socket()?.hear(wait).map_err(|error| error.to_string());
        let result = match heard {
            Ok(Heard::Text(text)) => {
                serde_json::from_str(&text).map(Some).map_err(|error| format!("its answer: {error}"))
            }
            Ok(Heard::Nothing | Heard::Binary(_)) => Ok(None),
            Ok(Heard::Closed(code, reason)) if reason.is_empty() => Err(format!("it was closed with code {code}")),
            Ok(Heard::Closed(_, reason)) => Err(reason),
            Err(error) => Err(error),
        };
        if result.is_err() {
            self.socket = None;
        }
        result
    }
}

impl Transport for WebSocketTransport {
    fn connect(&mut self, process: &Process) -> Result<u64, String> {
        let mut socket = Socket::connect(&self.address, "push", &[], None).map_err(|error| error.to_string())?;
        socket.set_send_patience(SEND_TIME);
        self.socket = Some(socket);
        let hello = serde_json::to_string(process).expect("plain strings and numbers always serialize");
        self.say(Message::text(hello))?;
        let until = Instant::now() + ANSWER_TIME;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if let Some(resume) = self.answer(left)?.and_then(|answer| answer.resume) {
                return Ok(resume);
            }
        }
        self.socket = None;
        Err("it does not say where to begin".to_owned())
    }

    fn send(&mut self, note: Note, chunks: &[Arc<Chunk>]) -> Result<(), String> {
        let note = serde_json::to_string(&note).expect("numbers always serialize");
        self.say(Message::text(note))?;
        if chunks.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(chunks.iter().map(|chunk| chunk.bytes.len()).sum());
        for chunk in chunks {
            bytes.extend_from_slice(&chunk.bytes);
        }
        self.say(Message::binary(bytes))
    }

    fn receive(&mut self, wait: Duration) -> Result<Option<u64>, String> {
        Ok(self.answer(wait)?.and_then(|answer| answer.taken))
    }

    fn close(&mut self) {
        if let Some(socket) = self.socket.take() {
            socket.close(CLOSING_TIME);
        }
    }
}
