//! The running viewer: its state, and the frame loop input → model → scene → pixels.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use js_sys::Function;
use wasm_bindgen::prelude::*;
use web_sys::{AbortController, Document, Event, EventTarget, ResizeObserver};

use super::browser::{now_ms, run_after, window};
use super::byte_source::ByteSource;
use super::controls_view::Controls;
use super::listener::Listener;
use super::message_queue::MessageQueue;
use super::page::Page;
use super::panel::Panel;
use super::recording_bytes::RecordingBytes;
use super::screen::Screen;
use super::socket::Socket;
use crate::connection::Connection;
use crate::lateness::Lateness;
use crate::model::{Changes, Model, Origin};
use crate::page_texts::LiveStatus;
use crate::scene::Scene;

/// Delay in milliseconds between a change of the view and updating the page's address. Browsers
/// limit the rate of updates.
const LINK_DELAY_MS: i32 = 400;

/// Shortest and longest time in milliseconds between two frames that only show new live events.
/// Within these limits the time is twice what the last frame took.
const LIVE_FRAME_INTERVAL_MS: [f64; 2] = [16.0, 60.0];

/// Position of the pointer, in pixels from the canvas's upper left corner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pointer {
    pub(super) x: f64,
    pub(super) y: f64,
}

/// Input since the last frame: scrubbing, pointer position, changed size. Frequent events such as
/// pointer moves are combined.
#[derive(Default)]
pub(super) struct PendingInput {
    /// Where the timeline is scrubbed to, in pixels.
    pub(super) scrub_x: Option<f64>,
    /// Position of the pointer on the heatmap.
    pub(super) hover: Option<Pointer>,
    pub(super) hover_changed: bool,
    pub(super) resized: bool,
}

/// A running request for a byte range. Dropping it aborts the request.
pub(super) struct InFlight {
    pub(super) number: u64,
    pub(super) range: Range<u64>,
    pub(super) abort: AbortController,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

/// Where the recording on the page is read from, and the running requests.
#[derive(Default)]
pub(super) struct Fetches {
    /// Where to read; `None` if the whole recording is loaded.
    pub(super) source: Option<Rc<ByteSource>>,
    pub(super) in_flight: Vec<InFlight>,
    /// Number of fetches started, which numbers them.
    pub(super) started: u64,
}

impl Fetches {
    /// Aborts the running requests and sets the source of the next ones; `None` if the whole
    /// recording is loaded.
    pub(super) fn reset(&mut self, source: Option<Rc<ByteSource>>) {
        self.source = source;
        self.in_flight.clear();
    }
}

/// Which parts of the page to draw in this frame.
#[derive(Clone, Copy, Default)]
struct Redraw {
    changes: Changes,
    hover_changed: bool,
}

/// The state of the page: model, scene, elements, connection, and input that is not processed yet.
pub(super) struct State {
    pub(super) model: Model,
    pub(super) scene: Scene,
    pub(super) page: Page,
    pub(super) screen: Screen,
    panel: Panel,
    pub(super) input: PendingInput,
    redraw: Redraw,
    /// Duration of the last frame.
    pub(super) frame_ms: f64,
    /// When the last frame began, by the page's clock.
    frame_began_ms: f64,
    pub(super) bytes: RecordingBytes,
    pub(super) fetches: Fetches,
    /// Called once the requested moment is on the screen (first) or cannot be loaded (second).
    pub(super) drawn_callbacks: Vec<(Function, Function)>,
    /// The fragment in the address.
    written_link: String,
    pub(super) connection: Connection,
    pub(super) messages: MessageQueue,
    pub(super) controls: Controls,
    pub(super) lateness: Lateness,
}

/// The browser's callback that draws a frame; it gets the page's clock in milliseconds.
type FrameClosure = Closure<dyn FnMut(f64)>;

/// Requests a redraw when a canvas changes its size; keeps the browser's observer and its callback
/// alive.
struct SizeObserver {
    _observer: ResizeObserver,
    _closure: Closure<dyn FnMut()>,
}

/// A handle to the running viewer, which lives as long as the page. Clones share one viewer.
#[derive(Clone)]
pub(super) struct App(pub(super) Rc<Inner>);

/// The running viewer that all [`App`] handles share: state, socket, listeners and scheduled work.
pub(super) struct Inner {
    pub(super) state: RefCell<State>,
    is_frame_requested: Cell<bool>,
    /// Whether a timer will request a frame.
    is_frame_scheduled: Cell<bool>,
    is_link_scheduled: Cell<bool>,
    /// Counts files opened, so that a slow earlier one is not shown.
    pub(super) openings: Cell<u64>,
    pub(super) socket: RefCell<Option<Socket>>,
    /// Resolves the promise of the page's first connection attempt.
    pub(super) on_settled: RefCell<Option<Function>>,
    draw: RefCell<Option<FrameClosure>>,
    /// The page's event listeners.
    listeners: RefCell<Vec<Listener>>,
    size_observer: RefCell<Option<SizeObserver>>,
}

impl App {
    /// Creates the viewer on the elements of a document.
    pub(super) fn new(document: &Document) -> Result<Self, JsValue> {
        let page = Page::find(document)?;
        let screen = Screen::new(&page)?;
        let state = State {
            model: Model::default(),
            scene: Scene::default(),
            page,
            screen,
            panel: Panel::default(),
            input: PendingInput { resized: true, ..PendingInput::default() },
            redraw: Redraw::default(),
            frame_ms: 0.0,
            frame_began_ms: 0.0,
            bytes: RecordingBytes::default(),
            fetches: Fetches::default(),
            drawn_callbacks: Vec::new(),
            written_link: String::new(),
            connection: Connection::default(),
            messages: MessageQueue::default(),
            controls: Controls::default(),
            lateness: Lateness::default(),
        };
        let app = Self(Rc::new(Inner {
            state: RefCell::new(state),
            is_frame_requested: Cell::new(false),
            is_frame_scheduled: Cell::new(false),
            is_link_scheduled: Cell::new(false),
            openings: Cell::new(0),
            socket: RefCell::new(None),
            on_settled: RefCell::new(None),
            draw: RefCell::new(None),
            listeners: RefCell::new(Vec::new()),
            size_observer: RefCell::new(None),
        }));
        let drawing = app.clone();
        *app.0.draw.borrow_mut() = Some(Closure::new(move |clock_ms| drawing.frame(clock_ms)));
        app.observe_size()?;
        app.want_frame();
        Ok(app)
    }

    /// Calls `react` for every event `name` on `target`, as long as the page lives. `E` is the
    /// event's type.
    pub(super) fn on<E: JsCast + 'static>(
        &self,
        target: &EventTarget,
        name: &'static str,
        mut react: impl FnMut(&Self, E) + 'static,
    ) -> Result<(), JsValue> {
        let app = self.clone();
        let listener = Listener::new(target, name, move |event: E| react(&app, event))?;
        self.0.listeners.borrow_mut().push(listener);
        Ok(())
    }

    /// Calls `action` when the button with element id `id` is pressed.
    pub(super) fn on_button(&self, id: &str, action: impl Fn(&Self) + 'static) -> Result<(), JsValue> {
        let button = self.0.state.borrow().page.element(id)?;
        self.on(&button, "click", move |app: &Self, _: Event| action(app))
    }

    /// Changes the state and requests a frame. An error is shown as a message, and the picture
    /// stays.
    pub(super) fn change<E: std::fmt::Display>(&self, change: impl FnOnce(&mut State) -> Result<(), E>) {
        let mut state = self.0.state.borrow_mut();
        if let Err(error) = change(&mut state) {
            state.page.show_message(&error.to_string());
        }
        self.fetch_needed(&mut state);
        drop(state);
        self.want_frame();
    }

    /// Applies a change that cannot fail to the model, and redraws everything that depends on the
    /// moment.
    pub(super) fn change_model(&self, change: impl FnOnce(&mut Model)) {
        self.change(|state| {
            change(&mut state.model);
            state.model.moment_changed();
            Ok::<_, String>(())
        });
    }

    /// Requests a call of `frame` before the browser's next repaint.
    pub(super) fn want_frame(&self) {
        if self.0.is_frame_requested.replace(true) {
            return;
        }
        if let (Ok(window), Some(draw)) = (window(), self.0.draw.borrow().as_ref()) {
            // Fails only while the page is being closed.
            let _ = window.request_animation_frame(draw.as_ref().unchecked_ref());
        }
    }

    /// Requests a frame that shows new live events, later if the last frame was recent, so that
    /// time is left for other work.
    pub(super) fn want_live_frame(&self) {
        let (began_ms, frame_ms) = {
            let state = self.0.state.borrow();
            (state.frame_began_ms, state.frame_ms)
        };
        let [shortest, longest] = LIVE_FRAME_INTERVAL_MS;
        let delay_ms = began_ms + (2.0 * frame_ms).clamp(shortest, longest) - now_ms();
        if delay_ms <= 1.0 {
            self.want_frame();
        } else if !self.0.is_frame_scheduled.replace(true) {
            let app = self.clone();
            run_after(delay_ms as i32, move || {
                app.0.is_frame_scheduled.set(false);
                app.want_frame();
            });
        }
    }

    /// Updates and draws one frame, and requests the next one while playing. `clock_ms` is the
    /// page's clock in milliseconds.
    fn frame(&self, clock_ms: f64) {
        self.0.is_frame_requested.set(false);
        let mut state = self.0.state.borrow_mut();
        let state = &mut *state;
        let began_ms = now_ms();
        let is_animated = state.update(clock_ms);
        self.fetch_needed(state);
        if let Err(error) = state.draw() {
            state.page.show_message(&format!("{error:?}"));
        }
        state.frame_ms = now_ms() - began_ms;
        state.frame_began_ms = began_ms;
        if state.measure_lateness() {
            state.model.moment_changed();
            self.want_frame();
        }
        if !state.model.is_loading() {
            for (resolve, _) in state.drawn_callbacks.drain(..) {
                let _ = resolve.call0(&JsValue::UNDEFINED);
            }
        }
        if is_animated {
            self.want_frame();
        }
        self.schedule_link(state);
    }

    /// Redraws everything when the page's size or the color scheme changes.
    fn observe_size(&self) -> Result<(), JsValue> {
        let resized = |app: &Self| {
            app.0.state.borrow_mut().input.resized = true;
            app.want_frame();
        };
        let app = self.clone();
        let closure = Closure::<dyn FnMut()>::new(move || resized(&app));
        let observer = ResizeObserver::new(closure.as_ref().unchecked_ref())?;
        {
            let state = self.0.state.borrow();
            observer.observe(&state.page.timeline);
            observer.observe(&state.page.heatmap);
        }
        *self.0.size_observer.borrow_mut() = Some(SizeObserver { _observer: observer, _closure: closure });
        self.on(window()?.as_ref(), "resize", move |app: &Self, _: Event| resized(app))?;
        if let Some(colors) = window()?.match_media("(prefers-color-scheme: dark)")? {
            self.on(&colors, "change", move |app: &Self, _: Event| resized(app))?;
        }
        Ok(())
    }

    /// Schedules an update of the fragment in the page's address if the view has changed.
    fn schedule_link(&self, state: &State) {
        if state.model.link().fragment() == state.written_link || self.0.is_link_scheduled.replace(true) {
            return;
        }
        let app = self.clone();
        run_after(LINK_DELAY_MS, move || app.write_link());
    }

    /// Writes the current view to the fragment in the page's address.
    fn write_link(&self) {
        self.0.is_link_scheduled.set(false);
        let mut state = self.0.state.borrow_mut();
        if state.model.origin() == Origin::Empty {
            return;
        }
        let fragment = state.model.link().fragment();
        if let Ok(window) = window()
            && let (Ok(history), Ok(path)) = (window.history(), window.location().pathname())
        {
            let search = window.location().search().unwrap_or_default();
            let address = if fragment.is_empty() { path + &search } else { format!("{path}{search}#{fragment}") };
            // Fails for a page embedded in another document, which works without.
            let _ = history.replace_state_with_url(&JsValue::NULL, "", Some(&address));
        }
        state.written_link = fragment;
    }
}

impl State {
    /// Applies input and received data to the model, and computes the scene. Returns true while the
    /// recording plays, so that another frame is needed.
    fn update(&mut self, clock_ms: f64) -> bool {
        if std::mem::take(&mut self.input.resized) {
            self.screen.measure(&self.page);
            self.model.everything_changed();
        }
        let mut result = self.model.apply_received();
        if let Some(notice) = self.model.take_notice() {
            self.page.show_message(notice);
        }
        if let Some(x) = self.input.scrub_x.take()
            && let Some(timeline) = &self.scene.timeline
        {
            result = result.and(self.model.seek_time(timeline.geometry.time_ns(x)));
        }
        let is_playing = self.model.tick(clock_ms);
        if let Err(error) = result.and(is_playing.clone().map(|_| ())) {
            self.page.show_message(&error.to_string());
        }
        self.update_scene();
        is_playing.unwrap_or(false)
    }

    /// Recomputes the parts of the scene that have changed, and notes what to redraw.
    fn update_scene(&mut self) {
        let changes = self.model.take_changes();
        let hover_changed = std::mem::take(&mut self.input.hover_changed);
        self.redraw = Redraw { changes, hover_changed };
        if changes.timeline || changes.moment || hover_changed {
            let pointer = self.input.hover.map(|hover| (hover.x as i32, hover.y as i32));
            let status = LiveStatus { connection: self.connection.state(), behind_s: self.lateness.behind_s() };
            let viewport = self.screen.viewport();
            self.scene.update(&mut self.model, changes, &viewport, pointer, status, self.screen.typesetter());
        }
    }

    /// Draws what [`update`](Self::update) has changed.
    fn draw(&mut self) -> Result<(), JsValue> {
        let Redraw { changes, hover_changed } = std::mem::take(&mut self.redraw);
        let has_changed = changes.timeline || changes.moment;
        if has_changed {
            self.screen.draw_timeline(&self.scene, changes.timeline)?;
        }
        if has_changed || hover_changed {
            self.screen.draw_heatmap(&self.scene, has_changed)?;
            self.panel.show(&self.page, &self.scene.texts, self.screen.theme())?;
            self.controls.show(&self.page, self.model.origin());
        }
        Ok(())
    }

    /// Measures how late the drawn live events are. Returns true if the delay shown in the badge
    /// has changed.
    fn measure_lateness(&mut self) -> bool {
        let behind_s = self.lateness.behind_s();
        if self.model.origin() == Origin::Live {
            self.lateness.frame_drawn(self.model.recording(), js_sys::Date::now());
        } else {
            self.lateness = Lateness::default();
        }
        self.lateness.behind_s() != behind_s
    }
}
