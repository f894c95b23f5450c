//! The live connection to a running program.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{ArrayBuffer, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{BinaryType, Event, MessageEvent, Url, WebSocket};

use super::input::on;
use super::page::Stage;
use super::{App, window};
use crate::model::Origin;

/// How long after a lost connection the next is tried.
const RETRY_MS: i32 = 1500;

/// How long bytes are collected before they are shown: as often as the eye can follow, and no oftener.
const BATCH_MS: i32 = 50;

/// A connection; it is closed when this is dropped.
pub(super) struct Live {
    socket: WebSocket,
    /// Which connection it is, counted from the page's first.
    number: u64,
}

impl Drop for Live {
    fn drop(&mut self) {
        // A socket that is closed already cannot be closed, and need not be.
        let _ = self.socket.close();
    }
}

fn address() -> Result<String, JsValue> {
    let page = window()?.location().href()?;
    let url = Url::new_with_base("ws", &page)?;
    url.set_protocol(if url.protocol() == "https:" { "wss:" } else { "ws:" });
    Ok(url.href())
}

/// Connects, and shows what comes.
pub(super) fn connect(app: &App) {
    let app = app.clone();
    spawn_local(async move { connect_first(&app).await });
}

/// Connects; resolves once it is known whether there is anything to connect to.
pub(super) async fn connect_first(app: &App) {
    let promise = Promise::new(&mut |resolve, _| {
        if let Err(error) = listen(app, resolve.clone()) {
            app.0.state.borrow().page.show_message(&format!("no live connection: {error:?}"));
            let _ = resolve.call0(&JsValue::UNDEFINED);
        }
    });
    let _ = JsFuture::from(promise).await;
}

impl App {
    /// Whether what this connection brings is to be shown: not if another has replaced it, or a file has.
    fn is_connection(&self, number: u64) -> bool {
        self.0.live.borrow().as_ref().is_some_and(|live| live.number == number)
    }

    /// Ends the live connection: something else is shown.
    pub(super) fn hang_up(&self) {
        // Dropped when it is no longer the connection, so that its end is nobody's concern.
        let live = self.0.live.borrow_mut().take();
        drop(live);
    }
}

fn listen(app: &App, settled: js_sys::Function) -> Result<(), JsValue> {
    let number = app.0.connections.get() + 1;
    app.0.connections.set(number);
    let socket = WebSocket::new(&address()?)?;
    socket.set_binary_type(BinaryType::Arraybuffer);
    let settled = Rc::new(move || {
        let _ = settled.call0(&JsValue::UNDEFINED);
    });

    let (on_open, open_settled) = (app.clone(), settled.clone());
    on(&socket, "open", move |_: Event| {
        if on_open.is_connection(number) {
            on_open.change(|state| {
                state.model.begin("live", Origin::Live);
                state.page.set_stage(Stage::Loading, "Connected", "Waiting for the first events…");
                Ok::<_, String>(())
            });
        }
        open_settled();
    })?;
    let batch = Batch { app: app.clone(), connection: number, bytes: Rc::default() };
    let on_message = batch.clone();
    on(&socket, "message", move |event: MessageEvent| {
        if let Ok(buffer) = event.data().dyn_into::<ArrayBuffer>() {
            on_message.take(&Uint8Array::new(&buffer).to_vec());
        }
    })?;
    let on_close = app.clone();
    on(&socket, "close", move |_: Event| {
        if on_close.is_connection(number) {
            batch.show();
            closed(&on_close);
        }
        settled();
    })?;
    app.hang_up();
    *app.0.live.borrow_mut() = Some(Live { socket, number });
    Ok(())
}

/// What has come and is not shown yet.
#[derive(Clone)]
struct Batch {
    app: App,
    connection: u64,
    bytes: Rc<RefCell<Vec<u8>>>,
}

impl Batch {
    fn take(&self, bytes: &[u8]) {
        let is_first = self.bytes.borrow().is_empty();
        self.bytes.borrow_mut().extend_from_slice(bytes);
        if is_first {
            let batch = self.clone();
            after(BATCH_MS, move || batch.show());
        }
    }

    fn show(&self) {
        let bytes = self.bytes.take();
        if !bytes.is_empty() && self.app.is_connection(self.connection) {
            self.app.change(|state| state.model.push(&bytes));
        }
    }
}

/// Calls `then` after a while.
fn after(delay_ms: i32, then: impl FnOnce() + 'static) {
    if let Ok(window) = window() {
        let then = Closure::once_into_js(then);
        // It fails only where the page is going away.
        let _ = window.set_timeout_with_callback_and_timeout_and_arguments_0(then.unchecked_ref(), delay_ms);
    }
}

fn closed(app: &App) {
    let (was_live, followed) = {
        let state = app.0.state.borrow();
        (state.model.origin() == Origin::Live, state.model.is_following())
    };
    app.change(|state| {
        state.model.disconnect();
        if state.model.recording().end_event() == 0 {
            state.page.set_stage(Stage::Empty, "Drop a recording here", super::source::EMPTY);
        }
        Ok::<_, String>(())
    });
    // Whoever looks at an earlier moment keeps it; the button connects again. Whoever followed wants to go on.
    if was_live && followed {
        retry(app);
    }
}

fn retry(app: &App) {
    let (app, number) = (app.clone(), app.0.connections.get());
    after(RETRY_MS, move || {
        let is_waiting = app.0.state.borrow().model.origin() == Origin::Disconnected;
        if app.is_connection(number) && is_waiting {
            reconnect(&app);
        }
    });
}

/// Tries until there is a connection, or something else is opened.
fn reconnect(app: &App) {
    let app = app.clone();
    spawn_local(async move {
        connect_first(&app).await;
        if app.0.state.borrow().model.origin() == Origin::Disconnected {
            retry(&app);
        }
    });
}
