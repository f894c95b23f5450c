//! The connection to the server. It is restored after a failure.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use wasm_bindgen::prelude::*;
use web_sys::{BinaryType, Event, MessageEvent, WebSocket};

use super::events::on;

/// Time in milliseconds before a lost connection is tried again: at first, and at most.
const RETRY_MS: (i32, i32) = (500, 4000);

/// An event of the connection to the server: opened, lost, or a message.
pub(super) enum Received<'a> {
    Opened,
    Lost,
    Text(&'a str),
    View(&'a [u8]),
}

/// The WebSocket connection to the server, which reconnects after a failure.
pub(super) struct Socket {
    url: String,
    socket: RefCell<Option<WebSocket>>,
    retry_ms: Cell<i32>,
    receive: Box<dyn Fn(Received)>,
}

impl Socket {
    /// Begins to connect to the server; `receive` is called for each event of the connection.
    pub(super) fn start(receive: impl Fn(Received) + 'static) -> Result<Rc<Self>, JsValue> {
        let location = web_sys::window().ok_or("no window")?.location();
        let address = location.href()?;
        let folder = address.split(['?', '#']).next().and_then(|path| path.rsplit_once('/'));
        let (folder, _) = folder.ok_or("the page has no address")?;
        let url = format!("{}/ws", folder.replacen("http", "ws", 1));
        let (socket, retry_ms) = (RefCell::default(), Cell::new(RETRY_MS.0));
        let this = Rc::new(Self { url, socket, retry_ms, receive: Box::new(receive) });
        this.connect()?;
        Ok(this)
    }

    /// Sends a command to the server; does nothing while the connection is lost.
    pub(super) fn send(&self, command: &str) {
        if let Some(socket) = &*self.socket.borrow() {
            // Fails only before the connection is open, when there is nothing to command.
            let _ = socket.send_with_str(command);
        }
    }

    /// Closes the connection, after which it is opened again.
    pub(super) fn restart(&self) {
        if let Some(socket) = &*self.socket.borrow() {
            // Fails only for invalid close codes.
            let _ = socket.close();
        }
    }

    /// Opens a WebSocket and registers its listeners.
    fn connect(self: &Rc<Self>) -> Result<(), JsValue> {
        let socket = WebSocket::new(&self.url)?;
        socket.set_binary_type(BinaryType::Arraybuffer);
        let this = Rc::clone(self);
        on(&socket, "open", move |_: Event| {
            this.retry_ms.set(RETRY_MS.0);
            (this.receive)(Received::Opened);
        })?;
        let this = Rc::clone(self);
        on(&socket, "message", move |message: MessageEvent| {
            let data = message.data();
            if let Some(text) = data.as_string() {
                (this.receive)(Received::Text(&text));
            } else if let Ok(bytes) = data.dyn_into::<js_sys::ArrayBuffer>() {
                (this.receive)(Received::View(&js_sys::Uint8Array::new(&bytes).to_vec()));
            }
        })?;
        let this = Rc::clone(self);
        on(&socket, "close", move |_: Event| {
            (this.receive)(Received::Lost);
            this.retry();
        })?;
        *self.socket.borrow_mut() = Some(socket);
        Ok(())
    }

    /// Schedules the next attempt to connect; each attempt waits twice as long as the one before,
    /// up to a maximum.
    fn retry(self: &Rc<Self>) {
        let after_ms = self.retry_ms.get();
        self.retry_ms.set((after_ms * 2).min(RETRY_MS.1));
        let this = Rc::clone(self);
        // Fails only for an invalid address, which has been used before.
        let connect = Closure::once_into_js(move || drop(this.connect()));
        if let Some(window) = web_sys::window() {
            let _ = window.set_timeout_with_callback_and_timeout_and_arguments_0(connect.unchecked_ref(), after_ms);
        }
    }
}
