//! The live connection to a running program: made, lost, made again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::{ArrayBuffer, JSON, Promise, Reflect, Uint8Array};
use vramscope_trace::{Info, Recording};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{BinaryType, CloseEvent, Event, MessageEvent, Url, WebSocket};

use super::arrivals::{Arrivals, decode};
use super::input::on;
use super::page::Stage;
use super::ranges::Reads;
use super::save::Kept;
use super::{App, controls, window};
use crate::following::{Following, History, Note, Reunion};
use crate::link::Link;
use crate::model::{LIVE_LIMIT_BYTES, Origin, WHOLE_LIMIT_BYTES};

/// How long a resumed stream may be silent before it counts as live: a recording that has ended is closed at once.
const SILENCE_MS: i32 = 700;
/// Bytes of a first message in which the recording's head is looked for.
const HEAD_BYTES: u32 = 256 << 10;

/// What a page says that follows a program which has ended, when it finds another in its place.
const ANOTHER: &str =
    "The program ended; what it recorded stays on the page. Another one runs here now: Live goes to it.";
/// What it says where going on would replace what somebody looks at.
const NOT_RESUMED: &str = "The connection is back, but it cannot go on where it ended. What is on the page stays; Live begins with what the server holds.";
/// What it says before anything has come.
const WAITING: &str = "Waiting for the first events. A program sends them when it asks for memory; to vramscope serve, the programs that were started with VRAMSCOPE_PUSH.";
const NO_TOKEN: &str = "The server wants its token: open the page by the address that the program printed.";
const TOO_MANY: &str = "So many pages follow this program that the server takes no more; trying again.";
const TOO_SLOW: &str =
    "This page could not keep up with the program. It goes on with what is newest; what it missed is counted.";

/// What the badge tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Connection {
    /// There was none.
    #[default]
    None,
    Live,
    /// It was lost, and is tried again.
    Reconnecting,
    /// The recording has ended.
    Ended,
    /// It was lost and is not tried again by itself.
    Disconnected,
}

impl Connection {
    /// Its name for scripts.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Live => "live",
            Self::Reconnecting => "reconnecting",
            Self::Ended => "ended",
            Self::Disconnected => "disconnected",
        }
    }
}

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

fn address(query: &str) -> Result<String, JsValue> {
    let page = window()?.location().href()?;
    let url = Url::new_with_base("ws", &page)?;
    url.set_protocol(if url.protocol() == "https:" { "wss:" } else { "ws:" });
    url.set_search(query);
    Ok(url.href())
}

/// What a connection is made for.
#[derive(Clone)]
pub(super) enum Purpose {
    /// To show whatever program runs, and there what a link says.
    Show(Link, History),
    /// To go on with the program that this was said of. Another may have taken its place.
    Resume(Info),
}

/// Goes to what runs because somebody asks for it: on with the program that was followed, if it is still there and no other was found.
pub(super) fn connect(app: &App) {
    let app = app.clone();
    spawn_local(async move {
        let purpose = {
            let mut state = app.0.state.borrow_mut();
            state.followed = true;
            match state.following.is_known() {
                true => Purpose::Resume(state.model.recording().info().clone()),
                false => Purpose::Show(Link::default(), History::Recent),
            }
        };
        connect_for(&app, purpose).await;
        let state = app.0.state.borrow();
        if state.model.origin() == Origin::Disconnected && state.connection != Connection::Live {
            state.page.show_message("No program is running here now. What the last one recorded stays on the page.");
        }
    });
}

/// Begins again with everything that was recorded.
pub(super) fn load_everything(app: &App) {
    let app = app.clone();
    spawn_local(async move {
        let link = app.0.state.borrow().model.link_to_resume();
        connect_for(&app, Purpose::Show(link, History::All)).await;
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
    let query = match &purpose {
        Purpose::Show(_, history) => Following::new(*history).query(),
        Purpose::Resume(_) => app.0.state.borrow().following.query(),
    };
    let socket = WebSocket::new(&address(&query)?)?;
    socket.set_binary_type(BinaryType::Arraybuffer);
    let incoming = Incoming {
        app: app.clone(),
        number,
        purpose,
        settled,
        begun: Rc::default(),
        next: Rc::default(),
        note: Rc::default(),
    };
    let on_open = incoming.clone();
    on(&socket, "open", move |_: Event| on_open.opened())?;
    let on_message = incoming.clone();
    on(&socket, "message", move |event: MessageEvent| {
        let data = event.data();
        if let Some(text) = data.as_string() {
            on_message.noted(&text);
        } else if let Ok(buffer) = data.dyn_into::<ArrayBuffer>() {
            on_message.take(Uint8Array::new(&buffer));
        }
    })?;
    on(&socket, "close", move |event: CloseEvent| incoming.closed(event.code()))?;
    app.hang_up();
    *app.0.live.borrow_mut() = Some(Live { socket, number });
    Ok(())
}

/// What a text message says; nothing where it is not the object that it should be.
fn parse_note(text: &str) -> Option<Note> {
    let object = JSON::parse(text).ok().filter(JsValue::is_object)?;
    let field = |name: &str| Reflect::get(&object, &name.into()).unwrap_or_default();
    let number = |name: &str| field(name).as_f64().filter(|number| *number >= 0.0).map(|number| number as u64);
    Some(Note {
        recording: field("recording").as_string(),
        resumed: field("resumed").is_truthy(),
        next: number("next"),
    })
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
    /// The number of the chunk after the next message.
    next: Rc<Cell<Option<u64>>>,
    /// What was said of the recording before the first bytes.
    note: Rc<RefCell<Option<Note>>>,
}

impl Incoming {
    fn is_wanted(&self) -> bool {
        self.app.is_connection(self.number)
    }

    fn settle(&self) {
        let _ = self.settled.call0(&JsValue::UNDEFINED);
    }

    fn opened(&self) {
        // Whoever resumes is told by the first message who is there.
        if let Purpose::Show(link, history) = &self.purpose {
            if self.is_wanted() {
                self.begin(link, Following::new(*history), false);
            }
            self.settle();
        }
    }

    /// Shows what comes from now on, from its beginning; `again` where it is the recording that is on the page.
    fn begin(&self, link: &Link, following: Following, again: bool) {
        self.begun.set(true);
        self.app.change(|state| {
            match again {
                true => state.model.begin_again(),
                false => state.model.begin("live", Origin::Live),
            }
            let is_whole = following.history == History::All;
            state.model.hold_at_most(if is_whole { WHOLE_LIMIT_BYTES } else { LIVE_LIMIT_BYTES });
            state.following = following;
            state.arrivals = Arrivals::default();
            state.kept = Kept::Live;
            state.reads = Reads::default();
            state.page.hide_message();
            state.page.set_stage(Stage::Loading, "Connected", WAITING);
            state.connect();
            state.model.go_to_link(link)
        });
        controls::ask(&self.app);
    }

    /// Goes on where the connection before ended.
    fn go_on(&self) {
        if self.begun.replace(true) || !self.is_wanted() {
            return;
        }
        self.app.change(|state| {
            let followed = state.followed;
            state.model.reconnect(followed);
            state.page.hide_message();
            state.connect();
            Ok::<_, String>(())
        });
        controls::ask(&self.app);
    }

    fn noted(&self, text: &str) {
        let Some(note) = parse_note(text).filter(|_| self.is_wanted()) else { return };
        if note.next.is_some() {
            self.next.set(note.next);
        }
        if note.recording.is_none() {
            return;
        }
        if self.begun.get() {
            self.app.0.state.borrow_mut().following.identify(&note);
            return;
        }
        let reunion = self.app.0.state.borrow().following.reunion(Some(&note));
        *self.note.borrow_mut() = Some(note);
        match reunion {
            // What has ended is told so at once, and is not live for a blink.
            Reunion::GoesOn if self.app.0.state.borrow().connection == Connection::Ended => {
                let incoming = self.clone();
                after(SILENCE_MS, move || {
                    incoming.go_on();
                    incoming.settle();
                });
                return;
            }
            Reunion::GoesOn => self.go_on(),
            Reunion::BeginsAgain => self.begin_again(),
            Reunion::Another => self.refuse(ANOTHER),
            Reunion::Unsaid => {}
        }
        self.settle();
    }

    /// Begins again, unless somebody looks at what is here.
    fn begin_again(&self) {
        let (followed, link, following) = {
            let state = self.app.0.state.borrow();
            let mut following = Following::new(state.following.history);
            if let Some(note) = self.note.borrow().as_ref() {
                following.identify(note);
            }
            let has_nothing = state.model.recording().end_event() == 0;
            (state.followed || has_nothing, state.model.link_to_resume(), following)
        };
        match followed {
            true => self.begin(&link, following, true),
            false => self.refuse(NOT_RESUMED),
        }
    }

    /// Leaves what is on the page, and says why.
    fn refuse(&self, why: &str) {
        self.app.hang_up();
        self.app.change(|state| {
            state.connection = Connection::Disconnected;
            // Whoever asks again wants what is there.
            state.following = Following::default();
            state.page.show_message(why);
            state.model.redraw_moment();
            Ok::<_, String>(())
        });
    }

    fn take(&self, bytes: Uint8Array) {
        if !self.is_wanted() {
            return;
        }
        if !self.begun.get() {
            self.meet(&bytes);
        }
        // It may have been found to be another program's.
        if !self.is_wanted() || !self.begun.get() {
            return;
        }
        let came_bytes = bytes.length();
        let has_room = self.app.0.state.borrow_mut().arrivals.push(bytes, self.next.take());
        if !has_room {
            skip_forward(&self.app);
            return;
        }
        decode(&self.app, came_bytes);
    }

    /// Finds out by the first bytes whether they are of the program that was looked for, where nobody has said so, and shows them.
    fn meet(&self, bytes: &Uint8Array) {
        let Purpose::Resume(expected) = &self.purpose else { return };
        let reunion = self.app.0.state.borrow().following.reunion(self.note.borrow().as_ref());
        if reunion == Reunion::GoesOn {
            self.go_on();
            return;
        }
        let mut begun = Recording::new();
        // What is wrong with it is said when it is shown.
        let _ = begun.push(&bytes.subarray(0, bytes.length().min(HEAD_BYTES)).to_vec());
        if begun.info() == expected {
            self.begin_again();
        } else {
            self.refuse(ANOTHER);
        }
        self.settle();
    }

    fn closed(&self, code: u16) {
        // Nothing begins with it any more.
        self.begun.set(true);
        if self.is_wanted() {
            let mut state = self.app.0.state.borrow_mut();
            state.arrivals.closed = Some(code);
            drop(state);
            // What has come is shown first.
            decode(&self.app, 0);
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

impl super::State {
    /// There is a connection.
    fn connect(&mut self) {
        self.connection = Connection::Live;
        self.following.succeeded();
        self.model.redraw_moment();
    }
}

/// More has come than can be decoded or held: all of it is left out, and what is newest shown.
pub(super) fn skip_forward(app: &App) {
    app.hang_up();
    app.0.state.borrow_mut().arrivals.clear();
    let app = app.clone();
    spawn_local(async move {
        let info = {
            let mut state = app.0.state.borrow_mut();
            let following = state.model.is_following();
            state.followed = following;
            state.model.disconnect();
            state.connection = Connection::Reconnecting;
            state.following.leave_out();
            state.model.recording().info().clone()
        };
        connect_for(&app, Purpose::Resume(info)).await;
        app.0.state.borrow().page.show_message(TOO_SLOW);
    });
}

/// Ends the connection after something that another try would not mend.
pub(super) fn give_up(app: &App) {
    app.hang_up();
    app.change(|state| {
        state.model.disconnect();
        state.connection = Connection::Disconnected;
        Ok::<_, String>(())
    });
}

/// The connection has ended, and all that came over it is in the recording.
pub(super) fn lost(app: &App, code: u16) {
    let mut again = false;
    app.change(|state| {
        if state.model.origin() == Origin::Live {
            state.followed = state.model.is_following();
        }
        state.model.disconnect();
        if state.model.origin() != Origin::Disconnected {
            return Ok(());
        }
        let before = state.connection;
        let has_ended = code == 1000 || before == Connection::Ended;
        // Without the recording's identity going on means to begin again, which is not what somebody wants who looks at an earlier moment.
        again = state.following.is_known() || (state.followed && !has_ended);
        state.connection = match has_ended {
            true => Connection::Ended,
            false if again => Connection::Reconnecting,
            false => Connection::Disconnected,
        };
        match code {
            4401 => {
                (again, state.connection) = (false, Connection::Disconnected);
                state.page.show_message(NO_TOKEN);
            }
            1013 => state.page.show_message(TOO_MANY),
            _ => {}
        }
        if state.model.recording().end_event() == 0 && !again {
            state.page.set_stage(Stage::Empty, "Drop a recording here", super::source::EMPTY);
        }
        Ok::<_, String>(())
    });
    if again {
        retry(app);
    }
}

fn retry(app: &App) {
    let delay_ms = app.0.state.borrow_mut().following.retry_ms(js_sys::Math::random());
    let (app, number) = (app.clone(), app.0.connections.get());
    after(delay_ms, move || {
        let is_waiting = app.0.state.borrow().model.origin() == Origin::Disconnected;
        if app.is_connection(number) && is_waiting {
            let app = app.clone();
            spawn_local(async move {
                let info = app.0.state.borrow().model.recording().info().clone();
                // Where there is nothing to connect to, its end leads back to the next try.
                connect_for(&app, Purpose::Resume(info)).await;
            });
        }
    });
}
