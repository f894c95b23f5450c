//! The live connection to a running program.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::{ArrayBuffer, Promise, Uint8Array};
use vramscope_trace::{Info, Recording};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{BinaryType, Event, MessageEvent, Url, WebSocket};

use super::input::on;
use super::page::Stage;
use super::ranges::Reads;
use super::save::Kept;
use super::{App, window};
use crate::link::Link;
use crate::model::Origin;

/// How long after a lost connection the next is tried.
const RETRY_MS: i32 = 1500;

/// How long bytes are collected before they are shown: as often as the eye can follow, and no oftener.
const BATCH_MS: i32 = 50;

/// What a page says that follows a program which has ended, when it finds another in its place.
const ANOTHER: &str =
    "The program ended; what it recorded stays on the page. Another one runs here now: Live goes to it.";

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

/// What a connection is made for.
#[derive(Clone)]
pub(super) enum Purpose {
    /// To show whatever program runs, and there what a link says.
    Show(Link),
    /// To go on with the program that this was said of. Another may have taken its place.
    Resume(Info),
}

/// Connects because somebody asks for it, and shows what comes.
pub(super) fn connect(app: &App) {
    let app = app.clone();
    spawn_local(async move {
        connect_for(&app, Purpose::Show(Link::default())).await;
        let state = app.0.state.borrow();
        if state.model.origin() == Origin::Disconnected {
            state.page.show_message("No program is running here now. What the last one recorded stays on the page.");
        }
    });
}

/// Connects; resolves once it is known whether there is anything to connect to, and whether it is what was looked for.
pub(super) async fn connect_for(app: &App, purpose: Purpose) {
    let promise = Promise::new(&mut |resolve, _| {
        if let Err(error) = listen(app, purpose.clone(), resolve.clone()) {
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

fn listen(app: &App, purpose: Purpose, settled: js_sys::Function) -> Result<(), JsValue> {
    let number = app.0.connections.get() + 1;
    app.0.connections.set(number);
    let socket = WebSocket::new(&address()?)?;
    socket.set_binary_type(BinaryType::Arraybuffer);
    let incoming = Incoming { app: app.clone(), number, purpose, settled, begun: Rc::default(), bytes: Rc::default() };

    let on_open = incoming.clone();
    on(&socket, "open", move |_: Event| on_open.opened())?;
    let on_message = incoming.clone();
    on(&socket, "message", move |event: MessageEvent| {
        if let Ok(buffer) = event.data().dyn_into::<ArrayBuffer>() {
            on_message.take(&Uint8Array::new(&buffer).to_vec());
        }
    })?;
    on(&socket, "close", move |_: Event| incoming.closed())?;
    app.hang_up();
    *app.0.live.borrow_mut() = Some(Live { socket, number });
    Ok(())
}

/// What comes over one connection.
#[derive(Clone)]
struct Incoming {
    app: App,
    number: u64,
    purpose: Purpose,
    /// To be called when it is known what the connection is good for.
    settled: js_sys::Function,
    /// Whether it is shown.
    begun: Rc<Cell<bool>>,
    /// What has come and is not shown yet.
    bytes: Rc<RefCell<Vec<u8>>>,
}

impl Incoming {
    fn is_wanted(&self) -> bool {
        self.app.is_connection(self.number)
    }

    fn settle(&self) {
        let _ = self.settled.call0(&JsValue::UNDEFINED);
    }

    fn opened(&self) {
        // Whoever resumes is told by the first bytes who is there.
        if let Purpose::Show(link) = &self.purpose {
            if self.is_wanted() {
                self.begin(link);
            }
            self.settle();
        }
    }

    fn begin(&self, link: &Link) {
        self.begun.set(true);
        self.app.change(|state| {
            state.model.begin("live", Origin::Live);
            state.kept = Kept::default();
            state.reads = Reads::default();
            state.page.hide_message();
            state.page.set_stage(Stage::Loading, "Connected", "Waiting for the first events…");
            state.model.go_to_link(link)
        });
    }

    fn take(&self, bytes: &[u8]) {
        let is_first = self.bytes.borrow().is_empty();
        self.bytes.borrow_mut().extend_from_slice(bytes);
        if is_first {
            let incoming = self.clone();
            after(BATCH_MS, move || incoming.show());
        }
    }

    fn show(&self) {
        let bytes = self.bytes.take();
        if bytes.is_empty() || !self.is_wanted() || !self.resume(&bytes) {
            return;
        }
        self.app.change(|state| {
            state.kept.push(&Uint8Array::from(bytes.as_slice()));
            state.model.push(&bytes)
        });
    }

    /// Begins, if that is still to be done, where these first bytes are of the program that was looked for. Says whether they are.
    fn resume(&self, first: &[u8]) -> bool {
        let Purpose::Resume(expected) = &self.purpose else { return true };
        if self.begun.get() {
            return true;
        }
        let mut begun = Recording::new();
        // What is wrong with it is said when it is shown.
        let _ = begun.push(first);
        let found = begun.info() == expected;
        if found {
            // The server holds what it sent before, so nothing is lost by beginning again.
            let link = self.app.0.state.borrow().model.link_to_resume();
            self.begin(&link);
        } else {
            self.app.hang_up();
            self.app.0.state.borrow().page.show_message(ANOTHER);
        }
        self.settle();
        found
    }

    fn closed(&self) {
        if self.is_wanted() {
            self.show();
        }
        // Not the same: the last bytes may have been another program's.
        if self.is_wanted() {
            disconnected(&self.app);
        }
        self.settle();
    }
}

/// Calls `then` after a while.
pub(super) fn after(delay_ms: i32, then: impl FnOnce() + 'static) {
    if let Ok(window) = window() {
        let then = Closure::once_into_js(then);
        // It fails only where the page is going away.
        let _ = window.set_timeout_with_callback_and_timeout_and_arguments_0(then.unchecked_ref(), delay_ms);
    }
}

fn disconnected(app: &App) {
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

/// Tries until the program is there again, or something else is.
fn reconnect(app: &App) {
    let app = app.clone();
    spawn_local(async move {
        let info = app.0.state.borrow().model.recording().info().clone();
        connect_for(&app, Purpose::Resume(info)).await;
        if app.0.state.borrow().model.origin() == Origin::Disconnected {
            retry(&app);
        }
    });
}
