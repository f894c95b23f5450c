//! The page's state, and its exchange of frames with the engine.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::rc::Rc;

use js_sys::{Function, JSON, Promise};
use wasm_bindgen::prelude::*;
use web_sys::{Document, Element, Event, EventTarget, File, MessagePort, ResizeObserver};

use super::super::browser::{now_ms, window};
use super::super::listener::Listener;
use super::super::port::Port;
use super::controls_view::Controls;
use super::early_search::EarlySearch;
use super::list_scroll::ListScroll;
use super::page::Page;
use super::page_history::PageHistory;
use super::panel::Panel;
use super::render::COMMAND;
use super::screen::{Display, register_font, show_picture};
use crate::command::Command;
use crate::pane_sizes::PaneSizes;
use crate::protocol::{Action, Call, FrameRequest, FromEngine, PageStage, PageUpdate, ToEngine};

/// The browser's callback that requests a frame; it gets the page's clock in milliseconds.
type FrameClosure = Closure<dyn FnMut(f64)>;

/// Requests a frame when a picture changes its size; keeps the browser's observer and its callback
/// alive.
struct SizeObserver {
    _observer: ResizeObserver,
    _closure: Closure<dyn FnMut()>,
}

/// The state of the page: pictures, texts, and input that the engine has not received.
#[derive(Default)]
pub(super) struct PageState {
    pub(super) display: Display,
    panel: Panel,
    /// The views in the panes, and how their lists are scrolled.
    lists: [(String, ListScroll); 2],
    /// The user's actions since the last frame was requested.
    actions: Vec<Action>,
    /// Number of lanes of devices for which the timeline has room.
    lanes: u8,
    pub(super) controls: Controls,
    /// Whether the page shows a running program, or one whose connection has ended.
    is_live: bool,
    /// Whether the program is connected.
    pub(super) is_connected: bool,
    /// The state for `window.vramscope.state()`, in JSON.
    pub(super) state_json: String,
    pub(super) history: PageHistory,
    /// The sizes of timeline, panes and details that the user has set.
    pub(super) sizes: PaneSizes,
}

/// A handle to the running page. Clones share one page.
#[derive(Clone)]
pub(super) struct App {
    pub(super) page: Rc<Page>,
    inner: Rc<Inner>,
}

impl Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

/// The running page that all [`App`] handles share.
#[derive(Default)]
pub(super) struct Inner {
    pub(super) state: RefCell<PageState>,
    port: RefCell<Option<Port>>,
    /// Whether the engine knows the sizes of the pictures and the colors.
    is_measured: Cell<bool>,
    /// Whether the browser will call back for a frame.
    is_frame_requested: Cell<bool>,
    /// Whether the engine is drawing a frame.
    is_frame_in_flight: Cell<bool>,
    /// Whether a frame is wanted after the one in flight.
    is_frame_wanted: Cell<bool>,
    /// Whether a script waits for the frame after the one in flight.
    is_frame_urgent: Cell<bool>,
    /// The promises of unanswered calls, by number.
    calls: RefCell<HashMap<u32, (Function, Function)>>,
    last_call: Cell<u32>,
    /// Whether the file that the user chooses next is compared with the recording on the page.
    pub(super) is_choosing_second: Cell<bool>,
    /// The search that the user has begun before its field is on the page.
    pub(super) early_search: RefCell<Option<EarlySearch>>,
    /// The second of several dropped files, and their number, until the first one is open.
    pub(super) second_file: RefCell<Option<(File, u32)>>,
    /// The text of the memory that is lit because the pointer or the focus is on a linked element.
    pub(super) lit: RefCell<Option<String>>,
    /// Whether the key before was the first one of two.
    pub(super) has_prefix_key: Cell<bool>,
    /// Executes the commands of the start page; `None` on an exported page.
    pub(super) start_script: RefCell<Option<Function>>,
    /// Resolves the promise of [`super::start`].
    pub(super) on_ready: RefCell<Option<Function>>,
    request: RefCell<Option<FrameClosure>>,
    /// Buffers of pixels that have been shown; the engine gets them back with the next request.
    pub(super) shown_pixels: RefCell<Vec<JsValue>>,
    listeners: RefCell<Vec<Listener>>,
    size_observer: RefCell<Option<SizeObserver>>,
}

impl App {
    /// Creates the page on the elements of a document. The engine is at the other end of `port`;
    /// `react` is called for each of its messages, with the objects beside it.
    pub(super) fn new(
        document: &Document,
        port: MessagePort,
        react: impl Fn(&Self, FromEngine, Vec<JsValue>) + 'static,
    ) -> Result<Self, JsValue> {
        let app = Self { page: Rc::new(Page::find(document)?), inner: Rc::default() };
        register_font(&app.page)?;
        app.state.borrow_mut().state_json = "{}".to_owned();
        let receiving = app.clone();
        let port = Port::new(port, move |message, objects| react(&receiving, message, objects))?;
        *app.port.borrow_mut() = Some(port);
        let requesting = app.clone();
        *app.request.borrow_mut() = Some(Closure::new(move |clock_ms| requesting.request_frame(clock_ms)));
        app.observe_size()?;
        Ok(app)
    }

    /// Calls `react` for every event `name` on `target`, as long as the page lives. `E` is the
    /// event's type.
    pub(super) fn on<E: JsCast + 'static>(
        &self,
        target: &impl AsRef<EventTarget>,
        name: &'static str,
        mut react: impl FnMut(&Self, E) + 'static,
    ) -> Result<(), JsValue> {
        let app = self.clone();
        let listener = Listener::new(target.as_ref(), name, move |event: E| react(&app, event))?;
        self.listeners.borrow_mut().push(listener);
        Ok(())
    }

    /// Calls `action` when the button with element id `id` is pressed.
    pub(super) fn on_button(&self, id: &str, action: impl Fn(&Self) + 'static) -> Result<(), JsValue> {
        let button = self.page.element(id)?;
        self.on(&button, "click", move |app: &Self, _: Event| action(app))
    }

    /// Sends a message to the engine with objects beside it.
    pub(super) fn send_with(&self, message: &ToEngine, objects: &[JsValue]) {
        if let Some(port) = self.port.borrow().as_ref() {
            port.send(message, objects, &[]);
        }
    }

    /// Sends a call to the engine with objects beside it; the promise resolves with its answer.
    pub(super) fn call(&self, call: Call, objects: &[JsValue]) -> Promise {
        let number = self.last_call.get().wrapping_add(1);
        self.last_call.set(number);
        let promise = Promise::new(&mut |resolve, reject| {
            self.calls.borrow_mut().insert(number, (resolve, reject));
        });
        let actions = std::mem::take(&mut self.state.borrow_mut().actions);
        if !actions.is_empty() {
            self.send_with(&ToEngine::Actions(actions, now_ms()), &[]);
        }
        self.send_with(&ToEngine::Call(number, call), objects);
        // At once, because the caller may wait for the picture.
        if self.is_frame_in_flight.get() {
            self.is_frame_urgent.set(true);
        } else {
            self.request_frame(now_ms());
        }
        promise
    }

    /// Adds an action of the user to the next frame's request, and requests that frame.
    pub(super) fn act(&self, action: Action) {
        self.state.borrow_mut().actions.push(action);
        self.want_frame();
    }

    /// Makes the engine execute a command in the next frame.
    pub(super) fn command(&self, command: Command) {
        self.act(Action::Command(command));
    }

    /// Requests a frame before the browser's next repaint, or after the one in flight.
    pub(super) fn want_frame(&self) {
        if self.is_frame_in_flight.get() {
            self.is_frame_wanted.set(true);
            return;
        }
        if self.is_frame_requested.replace(true) {
            return;
        }
        if let (Ok(window), Some(request)) = (window(), self.request.borrow().as_ref()) {
            // Fails only while the page is being closed.
            let _ = window.request_animation_frame(request.as_ref().unchecked_ref());
        }
    }

    /// Sends the engine the request for a frame: the user's actions, and the sizes of the pictures
    /// if they have changed. If a frame is in flight, requests the next one after it.
    fn request_frame(&self, clock_ms: f64) {
        self.is_frame_requested.set(false);
        if self.is_frame_in_flight.get() {
            return self.is_frame_wanted.set(true);
        }
        let mut state = self.state.borrow_mut();
        let screen = (!self.is_measured.replace(true)).then(|| state.display.measure(&self.page));
        let actions = std::mem::take(&mut state.actions);
        self.is_frame_in_flight.set(true);
        let buffers = self.shown_pixels.take();
        if let Some(port) = self.port.borrow().as_ref() {
            port.send(&ToEngine::Frame(FrameRequest { clock_ms, screen, actions }), &buffers, &buffers);
        }
    }

    /// Shows a frame that the engine has drawn, and updates the browser's history.
    pub(super) fn show_frame(&self, mut update: PageUpdate, pixels: &[JsValue]) {
        let (link, entry) = (std::mem::take(&mut update.link), update.entry);
        let lit = std::mem::take(&mut update.lit);
        let is_wanted = self.show_content(update, pixels) | self.is_frame_wanted.take();
        if self.is_frame_urgent.take() {
            self.request_frame(now_ms());
        } else if is_wanted {
            self.want_frame();
        }
        if self.early_search.borrow().is_some() {
            self.finish_early_search();
        }
        self.page.mark_lit(&lit);
        self.update_history(link, entry);
    }

    /// Shows the pictures, texts and contents of a frame. Returns true if another frame is wanted.
    fn show_content(&self, update: PageUpdate, pixels: &[JsValue]) -> bool {
        let mut state = self.state.borrow_mut();
        if let Err(error) = state.show_frame(&self.page, &update, pixels) {
            self.page.show_message(&format!("{error:?}"));
        }
        state.state_json = update.state;
        // A pane that appears or gets a picture has another size.
        if self.page.set_pane_count(update.pane_count) || state.display.is_outdated(&self.page) {
            self.is_measured.set(false);
        }
        self.is_frame_in_flight.set(false);
        update.is_animated || !self.is_measured.get() || !state.actions.is_empty()
    }

    /// Moves the focus to the filter field for which the user has pressed the search key, with the
    /// text typed meanwhile, once the field is on the page.
    fn finish_early_search(&self) {
        if !self.focus_search_field() {
            return;
        }
        let Some(search) = self.early_search.take() else { return };
        let field = self.page.search_field();
        if let Some(field) = field.filter(|_| !search.text.is_empty()) {
            field.set_value(&search.text);
            // Browsers report no change of a text that a script has set, not even after Enter.
            let command = field.get_attribute(COMMAND).unwrap_or_default();
            if let Ok(command) = Command::parse(&format!("{command} {}", search.text)) {
                self.command(command);
            }
        }
    }

    /// Moves the focus to the filter field of a pane and selects its text. Returns false if no pane
    /// has one.
    pub(super) fn focus_search_field(&self) -> bool {
        // Listeners for the focus may need the state.
        let Some(field) = self.page.search_field() else { return false };
        // In a narrow pane the field is in a menu.
        if let Ok(Some(menu)) = field.closest("details") {
            let _ = menu.set_attribute("open", "");
        }
        field.select();
        field.focus().is_ok()
    }

    /// Tells the engine which rows of a pane's long list are in view, after the user has scrolled
    /// the pane.
    pub(super) fn scrolled(&self, pane: usize) {
        // Content that changes while a frame is shown is measured at its end.
        let Ok(mut state) = self.state.try_borrow_mut() else { return };
        let rows = state.lists[pane].1.scrolled(&self.page.panes[pane].content);
        state.tell_rows(pane, rows);
        if rows.is_some() {
            self.want_frame();
        }
    }

    /// Resolves or rejects the promise of call `number` with the engine's answer.
    pub(super) fn settle(&self, number: u32, result: Result<String, String>) {
        let Some((resolve, reject)) = self.calls.borrow_mut().remove(&number) else { return };
        let _ = match result {
            Ok(json) => resolve.call1(&JsValue::UNDEFINED, &JSON::parse(&json).unwrap_or_default()),
            Err(error) => reject.call1(&JsValue::UNDEFINED, &error.into()),
        };
    }

    /// Registers observers that request a frame with new sizes when the page's size or color scheme
    /// changes.
    fn observe_size(&self) -> Result<(), JsValue> {
        let app = self.clone();
        let closure = Closure::<dyn FnMut()>::new(move || {
            app.update_lists();
            app.remeasure();
        });
        let observer = ResizeObserver::new(closure.as_ref().unchecked_ref())?;
        self.page.pictures.iter().for_each(|canvas| observer.observe(canvas));
        self.page.panes.iter().for_each(|pane| observer.observe(&pane.content));
        *self.size_observer.borrow_mut() = Some(SizeObserver { _observer: observer, _closure: closure });
        self.on(&window()?, "resize", |app: &Self, _: Event| app.remeasure())?;
        if let Some(colors) = window()?.match_media("(prefers-color-scheme: dark)")? {
            self.on(&colors, "change", |app: &Self, _: Event| app.remeasure())?;
        }
        Ok(())
    }

    /// Scrolls long lists so that their requested rows stay in view after the panes' sizes have
    /// changed.
    fn update_lists(&self) {
        let Ok(mut state) = self.state.try_borrow_mut() else { return };
        for pane in 0..state.lists.len() {
            state.update_list(&self.page, pane);
        }
    }

    /// Makes the next frame's request contain the current sizes and color scheme.
    pub(super) fn remeasure(&self) {
        self.is_measured.set(false);
        self.want_frame();
    }

    /// Shows the message of a panic without the page's state, which may be borrowed at this moment.
    pub(super) fn report_panic(&self, text: &str) {
        if let Ok(element) = self.page.element("message-text") {
            element.set_text_content(Some(text));
        }
        self.page.set_hidden("message", false);
    }
}

impl PageState {
    /// Shows pictures, texts and contents of a frame. `pixels` has the pixels of its pictures.
    fn show_frame(&mut self, page: &Page, update: &PageUpdate, pixels: &[JsValue]) -> Result<(), JsValue> {
        for (&(surface, width, height), pixels) in update.pictures.iter().zip(pixels) {
            show_picture(page, surface, width, height, pixels)?;
        }
        if let Some(texts) = &update.texts {
            if texts.has_content {
                page.set_stage(PageStage::Content, "", "");
            }
            self.panel.show(page, texts)?;
        }
        if std::mem::replace(&mut self.lanes, update.lanes) != update.lanes {
            page.element("app")?.style().set_property("--lanes", &update.lanes.to_string())?;
        }
        if let Some(bar) = &update.timeline_bar {
            self.panel.timeline_bar.show(&page.document, &page.timeline_bar, bar)?;
        }
        if let Some(tooltip) = &update.tooltip {
            self.panel.show_tooltip(page, tooltip, self.display.ratio())?;
        }
        if let Some(verdict) = &update.verdict {
            self.panel.verdict.show(&page.document, &page.verdict, verdict)?;
        }
        if let Some(details) = &update.details {
            self.panel.details.show(&page.document, &page.details, details)?;
        }
        for (pane, content) in update.panes.iter().enumerate() {
            if let Some(content) = content {
                self.panel.show_pane(page, pane, content)?;
                let (view, list) = &mut self.lists[pane];
                if *view != content.view {
                    // On a narrow screen, one pane is beside the screen.
                    if !view.is_empty() {
                        page.panes[pane].content.parent_element().inspect(Element::scroll_into_view);
                    }
                    view.clone_from(&content.view);
                    list.reset(&page.panes[pane].content);
                }
                self.update_list(page, pane);
            }
        }
        (self.is_live, self.is_connected) = (update.is_live, update.is_connected);
        self.show_controls(page);
        Ok(())
    }

    /// Scrolls the list of a pane to the row that the engine requests.
    fn update_list(&mut self, page: &Page, pane: usize) {
        let rows = self.lists[pane].1.updated(&page.panes[pane].content);
        self.tell_rows(pane, rows);
    }

    /// Adds to the next frame's request which rows of a pane's list are in view: the first one and
    /// their number; `None` if the engine knows them.
    fn tell_rows(&mut self, pane: usize, rows: Option<(u64, u64)>) {
        if let Some((first, count)) = rows {
            self.actions.push(Action::Command(Command::Scroll(pane, first, count)));
        }
    }

    /// Shows the commands that the running program offers in their panel.
    pub(super) fn show_controls(&self, page: &Page) {
        self.controls.show(page, self.is_live, self.is_connected);
    }
}
