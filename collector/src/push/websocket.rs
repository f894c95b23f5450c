//! Pushing over a WebSocket.

use std::time::{Duration, Instant};

use tungstenite::Message;
use vramscope_trace::live_protocol::StreamNote;

use super::transport::{PushMessage, Transport};
use crate::process::Process;
use crate::push_protocol::PushReply;
use crate::socket::{Address, Received, Socket};

/// The most time that the server may take to answer the description of the process; then connecting
/// fails.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// The most time that sending waits while the server receives nothing; then it fails. Short, so
/// that the program's end does not wait for a server that hangs.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// The most time that closing waits for the server's close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// A [`Transport`] over a WebSocket to the endpoint `/push` of a server.
#[derive(Debug)]
pub(super) struct WebSocketTransport {
    address: Address,
    socket: Option<Socket>,
}

impl WebSocketTransport {
    pub(super) fn new(address: Address) -> Self {
        Self { address, socket: None }
    }

    /// Returns the open socket, or an error if the transport is not connected. Does not connect.
    fn socket(&mut self) -> Result<&mut Socket, String> {
        self.socket.as_mut().ok_or_else(|| "not connected".to_owned())
    }

    /// Sends a message. An error closes the socket.
    fn send_message(&mut self, message: Message) -> Result<(), String> {
        let sent = self.socket()?.send(message).map_err(|error| error.to_string());
        if sent.is_err() {
            self.socket = None;
        }
        sent
    }

    /// Waits for the server's next reply. Returns `None` if no reply arrives within `timeout`. An
    /// error closes the socket.
    fn receive_reply(&mut self, timeout: Duration) -> Result<Option<PushReply>, String> {
        let received = self.socket()?.receive(timeout).map_err(|error| error.to_string());
        let result = match received {
            Ok(Received::Text(text)) => {
                serde_json::from_str(&text).map(Some).map_err(|error| format!("invalid reply of the server: {error}"))
            }
            Ok(Received::Nothing | Received::Binary(_)) => Ok(None),
            Ok(Received::Closed(code, reason)) if reason.is_empty() => {
                Err(format!("the server closed the connection with code {code}"))
            }
            Ok(Received::Closed(_, reason)) => Err(reason),
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
        socket.set_send_timeout(SEND_TIMEOUT);
        self.socket = Some(socket);
        let hello = serde_json::to_string(process).expect("strings and numbers always serialize");
        self.send_message(Message::text(hello))?;
        let deadline = Instant::now() + REPLY_TIMEOUT;
        while let Some(remaining) = deadline.checked_duration_since(Instant::now()) {
            if let Some(resume) = self.receive_reply(remaining)?.and_then(|reply| reply.resume) {
                return Ok(resume);
            }
        }
        self.socket = None;
        Err("timed out: the server does not reply".to_owned())
    }

    fn send(&mut self, message: PushMessage<'_>) -> Result<(), String> {
        let PushMessage { chunks, next, missed_events, .. } = message;
        let note = StreamNote { next: Some(next), missed: missed_events, ..StreamNote::default() };
        self.send_message(Message::text(note.to_json()))?;
        let mut bytes = Vec::with_capacity(chunks.iter().map(|chunk| chunk.bytes.len()).sum());
        for chunk in chunks {
            bytes.extend_from_slice(&chunk.bytes);
        }
        self.send_message(Message::binary(bytes))
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<u64>, String> {
        Ok(self.receive_reply(timeout)?.and_then(|reply| reply.taken))
    }

    fn finish(&mut self) -> Result<(), String> {
        let note = StreamNote { end: true, ..StreamNote::default() };
        self.send_message(Message::text(note.to_json()))
    }

    fn close(&mut self) {
        if let Some(socket) = self.socket.take() {
            socket.close(CLOSE_TIMEOUT);
        }
    }
}
