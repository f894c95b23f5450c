//! The page: the one module that knows of a browser. It turns what a person does into calls of the [`Model`], and what the model shows
//! into pixels on two canvases and text in elements. A frame is drawn only when something has changed.

mod age;
mod api;
mod arrivals;
mod controls;
mod input;
mod keys;
mod live;
mod page;
mod panel;
mod ranges;
mod save;
mod screen;
mod source;
mod stopped;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::{Function, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;
use web_sys::{Document, File, ResizeObserver, Window};

use crate::following::Following;
use crate::model::{Model, Origin};
use age::Age;
use arrivals::Arrivals;
use controls::Controls;
use live::Connection;
use page::Page;
use ranges::Reads;
use save::Kept;
use screen::Screen;

/// How long after a change the address is brought up to date. Browsers refuse more than a few changes a second.
const LINK_DELAY_MS: i32 = 400;

/// How long after a frame the next one is begun at the earliest and at the latest, where only what comes live asks for it: twice as long as it took.
const FRAMES_APART_MS: [f64; 2] = [16.0, 60.0];

/// Starts the viewer on the page's document. The promise resolves when `file` is open; where there is none, when what the address names
/// is, or the live connection.
#[wasm_bindgen]
pub fn start(file: Option<File>) -> Promise {
    stopped::say_when_stopped();
    future_to_promise(async {
        let document = window()?.document().ok_or("there is no document")?;
        let app = App::new(&document)?;
        match file {
            Some(file) => app.open_what_the_page_holds(file).await,
            None => app.open_what_the_address_says().await,
        }
        Ok(JsValue::UNDEFINED)
    })
}

fn window() -> Result<Window, JsValue> {
    web_sys::window().ok_or_else(|| "there is no window".into())
}

/// Where the pointer is, in pixels of the canvas that it is over.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pointer {
    x: f64,
    y: f64,
}

/// What the person has done since the last frame; however often a pointer moves, a frame follows it once.
#[derive(Default)]
struct Pending {
    scrub: Option<f64>,
    hover: Option<Pointer>,
    hover_changed: bool,
    resized: bool,
}

struct State {
    model: Model,
    page: Page,
    screen: Screen,
    pending: Pending,
    frame_ms: f64,
    /// The recording's bytes, for whoever wants to keep them.
    kept: Kept,
    /// What reads it.
    reads: Reads,
    /// Called when the moment that is looked at is on the screen, or cannot be.
    waiting: Vec<(Function, Function)>,
    link_written: String,
    /// What is known of the live recording and of the way to it.
    following: Following,
    connection: Connection,
    arrivals: Arrivals,
    controls: Controls,
    /// Whether the newest event was followed when the connection ended.
    followed: bool,
    age: Age,
    /// When the last frame was begun, by the browser's clock.
    drawn_ms: f64,
}

/// What the browser calls to have a frame drawn, with its clock.
type OnFrame = Closure<dyn FnMut(f64)>;

/// The running viewer; a handle to it.
#[derive(Clone)]
struct App(Rc<Inner>);

struct Inner {
    state: RefCell<State>,
    frame_wanted: Cell<bool>,
    /// Whether one will be wanted soon.
    frame_due: Cell<bool>,
    link_wanted: Cell<bool>,
    /// Counts what was opened, so that what comes late from an earlier one is not shown.
    opening: Cell<u64>,
    /// Counts live connections.
    connections: Cell<u64>,
    /// Counts reads.
    reads: Cell<u64>,
    draw: RefCell<Option<OnFrame>>,
    write_link: RefCell<Option<Closure<dyn FnMut()>>>,
    live: RefCell<Option<live::Live>>,
}

impl App {
    fn new(document: &Document) -> Result<Self, JsValue> {
        let page = Page::find(document)?;
        let screen = Screen::new(&page)?;
        let state = State {
            model: Model::default(),
            page,
            screen,
            pending: Pending { resized: true, ..Pending::default() },
            frame_ms: 0.0,
            kept: Kept::default(),
            reads: Reads::default(),
            waiting: Vec::new(),
            link_written: String::new(),
            following: Following::default(),
            connection: Connection::default(),
            arrivals: Arrivals::default(),
            controls: Controls::default(),
            followed: true,
            age: Age::default(),
            drawn_ms: 0.0,
        };
        let app = Self(Rc::new(Inner {
            state: RefCell::new(state),
            frame_wanted: Cell::new(false),
            frame_due: Cell::new(false),
            link_wanted: Cell::new(false),
            opening: Cell::new(0),
            connections: Cell::new(0),
            reads: Cell::new(0),
            draw: RefCell::new(None),
            write_link: RefCell::new(None),
            live: RefCell::new(None),
        }));
        let on = app.clone();
        *app.0.draw.borrow_mut() = Some(Closure::new(move |clock_ms| on.frame(clock_ms)));
        let on = app.clone();
        *app.0.write_link.borrow_mut() = Some(Closure::new(move || on.write_link()));
        app.watch_size()?;
        input::listen(&app)?;
        api::publish(&app)?;
        app.want_frame();
        Ok(app)
    }

    /// Changes something and has it drawn. An error of the recording is shown, and what was on the screen stays.
    fn change<E: std::fmt::Display>(&self, change: impl FnOnce(&mut State) -> Result<(), E>) {
        let mut state = self.0.state.borrow_mut();
        if let Err(error) = change(&mut state) {
            state.page.show_message(&error.to_string());
        }
        self.read_on(&mut state);
        drop(state);
        self.want_frame();
    }

    fn want_frame(&self) {
        if self.0.frame_wanted.replace(true) {
            return;
        }
        if let (Ok(window), Some(draw)) = (window(), self.0.draw.borrow().as_ref()) {
            // It fails only where there is no document to draw on any more.
            let _ = window.request_animation_frame(draw.as_ref().unchecked_ref());
        }
    }

    fn frame(&self, clock_ms: f64) {
        self.0.frame_wanted.set(false);
        let mut state = self.0.state.borrow_mut();
        let state = &mut *state;
        let begun = now_ms();
        let again = state.update(clock_ms);
        self.read_on(state);
        let drawn = state.draw();
        if let Err(error) = drawn {
            state.page.show_message(&format!("{error:?}"));
        }
        state.frame_ms = now_ms() - begun;
        state.drawn_ms = begun;
        let behind_s = state.age.behind_s();
        state.age.drawn(&state.model);
        if state.age.behind_s() != behind_s {
            state.model.redraw_moment();
            self.want_frame();
        }
        if !state.model.is_waiting() {
            for (resolve, _) in state.waiting.drain(..) {
                let _ = resolve.call0(&JsValue::UNDEFINED);
            }
        }
        if again {
            self.want_frame();
        }
        self.want_link(state);
    }

    /// Has a frame drawn, but not so often that the page does nothing else: what comes live comes all the time.
    fn want_frame_soon(&self) {
        let (drawn_ms, frame_ms) = {
            let state = self.0.state.borrow();
            (state.drawn_ms, state.frame_ms)
        };
        let [least, most] = FRAMES_APART_MS;
        let wait_ms = drawn_ms + (2.0 * frame_ms).clamp(least, most) - now_ms();
        if wait_ms <= 1.0 {
            self.want_frame();
        } else if !self.0.frame_due.replace(true) {
            let app = self.clone();
            live::after(wait_ms as i32, move || {
                app.0.frame_due.set(false);
                app.want_frame();
            });
        }
    }

    fn watch_size(&self) -> Result<(), JsValue> {
        let app = self.clone();
        let resized = Closure::<dyn FnMut()>::new(move || {
            app.0.state.borrow_mut().pending.resized = true;
            app.want_frame();
        });
        let state = self.0.state.borrow();
        let observer = ResizeObserver::new(resized.as_ref().unchecked_ref())?;
        observer.observe(&state.page.timeline);
        observer.observe(&state.page.heatmap);
        let colors = window()?.match_media("(prefers-color-scheme: dark)")?;
        window()?.add_event_listener_with_callback("resize", resized.as_ref().unchecked_ref())?;
        if let Some(colors) = colors {
            colors.add_event_listener_with_callback("change", resized.as_ref().unchecked_ref())?;
        }
        resized.forget();
        Ok(())
    }

    fn want_link(&self, state: &State) {
        if state.model.link().fragment() == state.link_written || self.0.link_wanted.replace(true) {
            return;
        }
        if let (Ok(window), Some(write)) = (window(), self.0.write_link.borrow().as_ref()) {
            let write = write.as_ref().unchecked_ref();
            let _ = window.set_timeout_with_callback_and_timeout_and_arguments_0(write, LINK_DELAY_MS);
        }
    }

    fn write_link(&self) {
        self.0.link_wanted.set(false);
        let mut state = self.0.state.borrow_mut();
        if state.model.origin() == Origin::Nowhere {
            return;
        }
        let fragment = state.model.link().fragment();
        if let Ok(window) = window()
            && let (Ok(history), Ok(address)) = (window.history(), window.location().pathname())
        {
            let search = window.location().search().unwrap_or_default();
            let address = if fragment.is_empty() { address + &search } else { format!("{address}{search}#{fragment}") };
            // A page inside of another document may not change its address; the view is the same without.
            let _ = history.replace_state_with_url(&JsValue::NULL, "", Some(&address));
        }
        state.link_written = fragment;
    }
}

impl State {
    /// Takes in what happened since the last frame. Says whether the next frame will differ by itself.
    fn update(&mut self, clock_ms: f64) -> bool {
        if std::mem::take(&mut self.pending.resized) {
            self.screen.measure(&self.page);
            self.model.redraw();
        }
        let mut result = self.model.settle();
        if let Some(notice) = self.model.take_notice() {
            self.page.show_message(notice);
        }
        if let Some(x) = self.pending.scrub.take()
            && let Some(geometry) = self.screen.geometry()
        {
            result = result.and(self.model.seek_time(geometry.time_ns(x)));
        }
        let again = self.model.tick(clock_ms);
        if let Err(error) = result.and(again.clone().map(|_| ())) {
            self.page.show_message(&error.to_string());
        }
        again.unwrap_or(false)
    }

    fn draw(&mut self) -> Result<(), JsValue> {
        let stale = self.model.take_stale();
        let hover_changed = std::mem::take(&mut self.pending.hover_changed);
        if stale.timeline || stale.moment {
            self.screen.draw_timeline(&mut self.model, stale.timeline)?;
        }
        if stale.timeline || stale.moment || hover_changed {
            let hover = self.pending.hover.map(|at| (at.x as i32, at.y as i32));
            let hit = self.screen.draw_heatmap(&mut self.model, hover, stale.timeline || stale.moment)?;
            panel::show(&self.page, &mut self.model, hit, &self.screen, (self.connection, self.age.behind_s()))?;
            controls::show(&self.page, &self.controls, self.model.origin());
        }
        Ok(())
    }
}

fn now_ms() -> f64 {
    window().ok().and_then(|window| window.performance()).map_or(0.0, |performance| performance.now())
}
