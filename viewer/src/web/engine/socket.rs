//! The WebSocket to the server, with its listeners.

use std::cell::RefCell;

use js_sys::{ArrayBuffer, Function, Uint8Array};
use vramscope_trace::live_protocol::StreamNote;
use wasm_bindgen::prelude::*;
use web_sys::{BinaryType, CloseEvent, Event, MessageEvent, Url, WebSocket};

use super::super::listener::Listener;

/// An event of the live connection's WebSocket: it has opened, a text message, a binary message, or
/// it has closed.
pub(super) enum SocketEvent {
    Opened,
    Note(StreamNote),
    Bytes(Uint8Array),
    /// The close code.
    Closed(u16),
}

/// The WebSocket of the live connection. Dropping it removes its listeners and closes it.
pub(super) struct Socket {
    socket: WebSocket,
    /// Called once the result of the connection attempt is known, or the socket is dropped.
    on_settled: RefCell<Option<Function>>,
    /// Removed on drop, so that a replaced socket delivers nothing.
    _listeners: [Listener; 3],
}

impl Socket {
    /// Connects to the server of the page at `address`, with the query string `query`. `react` is
    /// called for every event; `on_settled` once it is known whether there is a program, or when
    /// the socket is dropped.
    pub(super) fn open(
        address: &str,
        query: &str,
        on_settled: Option<Function>,
        react: impl Fn(SocketEvent) + Clone + 'static,
    ) -> Result<Self, JsValue> {
        let socket = WebSocket::new(&socket_url(address, query)?)?;
        socket.set_binary_type(BinaryType::Arraybuffer);
        let (on_open, on_message, on_close) = (react.clone(), react.clone(), react);
        let listeners = [
            Listener::new(&socket, "open", move |_: Event| on_open(SocketEvent::Opened))?,
            Listener::new(&socket, "message", move |event: MessageEvent| {
                let data = event.data();
                if let Some(text) = data.as_string() {
                    // Other text messages are ignored: a newer server may send them.
                    if let Ok(note) = serde_json::from_str(&text) {
                        on_message(SocketEvent::Note(note));
                    }
                } else if let Ok(buffer) = data.dyn_into::<ArrayBuffer>() {
                    on_message(SocketEvent::Bytes(Uint8Array::new(&buffer)));
                }
            })?,
            Listener::new(&socket, "close", move |event: CloseEvent| on_close(SocketEvent::Closed(event.code())))?,
        ];
        Ok(Self { socket, on_settled: RefCell::new(on_settled), _listeners: listeners })
    }

    /// Calls `on_settled`, because it is known whether the server has a running program. Only the
    /// first call has an effect.
    pub(super) fn settle(&self) {
        if let Some(on_settled) = self.on_settled.take() {
            let _ = on_settled.call0(&JsValue::UNDEFINED);
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Fails only for invalid close codes.
        let _ = self.socket.close();
        self.settle();
    }
}

/// Returns the URL of the server's live WebSocket, next to the page at `address`, with the query
/// string `query`.
fn socket_url(address: &str, query: &str) -> Result<String, JsValue> {
    let url = Url::new_with_base("ws", address)?;
    url.set_protocol(if url.protocol() == "https:" { "wss:" } else { "ws:" });
    url.set_search(query);
    Ok(url.href())
}
