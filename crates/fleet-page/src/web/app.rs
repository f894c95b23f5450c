//! The running page: passes input and messages to the model, and draws when something has changed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use wasm_bindgen::prelude::*;
use web_sys::{Event, HtmlElement, HtmlSelectElement, KeyboardEvent, MouseEvent, PointerEvent, Window};

use super::canvas::{Canvas, PADDING};
use super::elements::{by_id, document};
use super::events::on;
use super::page::{Page, set_choice, set_palette};
use super::socket::{Received, Socket};
use crate::frame_times::FrameTimes;
use crate::layout::Direction;
use crate::metric::Metric;
use crate::model::FleetModel;
use crate::palette::Palette;
use crate::scene::Scene;
use crate::settings::{GroupBy, Settings, SortBy, find};
use crate::texts;

/// Ids of the page's lists in which the user chooses metric, grouping and order.
const LISTS: [&str; 3] = ["color", "group", "sort"];

/// A function that the browser calls with the time of a frame, in milliseconds.
type FrameCallback = Closure<dyn FnMut(f64)>;

/// The canvas and the inputs of its last drawing: scene, palette, size and pixel ratio.
struct Drawing {
    canvas: Canvas,
    scene: Scene,
    palette: Palette,
    size: (f32, f32),
    pixel_ratio: f64,
}

/// The measured times of the page's frames.
#[derive(Default)]
struct Times {
    /// The time of the last drawn frame, in milliseconds, until the browser's next frame.
    drawn_ms: Option<f64>,
    /// Time in milliseconds that the page's code has taken since the last frame.
    spent_ms: f64,
    frames: FrameTimes,
    draws: FrameTimes,
}

/// The running page: its model, elements, canvas and connection.
pub(super) struct App {
    window: Window,
    /// The scrolled area around the canvas.
    area: HtmlElement,
    model: RefCell<FleetModel>,
    page: RefCell<Page>,
    drawing: RefCell<Drawing>,
    times: RefCell<Times>,
    socket: RefCell<Option<Rc<Socket>>>,
    is_frame_requested: Cell<bool>,
    /// True if the model may have changed since the last frame.
    is_changed: Cell<bool>,
    /// The function that draws the next frame.
    frame: RefCell<Option<FrameCallback>>,
}

impl App {
    /// Starts the page: registers the listeners and connects to the server.
    pub(super) fn start() -> Result<Rc<Self>, JsValue> {
        let window = web_sys::window().ok_or("no window")?;
        let settings = Settings::parse(&window.location().hash()?);
        let palette = Palette::LIGHT;
        let drawing =
            Drawing { canvas: Canvas::new()?, scene: Scene::default(), palette, size: (0.0, 0.0), pixel_ratio: 0.0 };
        set_palette(&palette)?;
        let app = Rc::new(Self {
            window,
            area: by_id("area")?,
            model: RefCell::new(FleetModel::new(settings)),
            page: RefCell::new(Page::new()?),
            drawing: RefCell::new(drawing),
            times: RefCell::default(),
            socket: RefCell::default(),
            is_frame_requested: Cell::default(),
            is_changed: Cell::default(),
            frame: RefCell::default(),
        });
        let this = Rc::clone(&app);
        *app.frame.borrow_mut() = Some(Closure::new(move |now_ms| this.frame(now_ms)));
        app.listen()?;
        let this = Rc::clone(&app);
        *app.socket.borrow_mut() = Some(Socket::start(move |received| this.receive(&received))?);
        app.change();
        Ok(app)
    }

    /// Returns the page's state for scripts as JSON.
    pub(super) fn state(&self) -> String {
        let times = self.times.borrow();
        let state = self.model.borrow().state(times.frames.p95_ms(), times.draws.p95_ms());
        serde_json::to_string(&state).unwrap_or_default()
    }

    /// Returns the browser's clock in milliseconds; 0 if there is none.
    fn now_ms(&self) -> f64 {
        self.window.performance().map_or(0.0, |performance| performance.now())
    }

    /// Records that the model may have changed, and requests a frame.
    fn change(&self) {
        self.is_changed.set(true);
        self.request_frame();
    }

    /// Requests a frame from the browser unless one is requested already.
    fn request_frame(&self) {
        if let Some(frame) = &*self.frame.borrow()
            && !self.is_frame_requested.replace(true)
        {
            // Fails only without a window.
            let _ = self.window.request_animation_frame(frame.as_ref().unchecked_ref());
        }
    }

    /// Handles an event of the connection to the server.
    fn receive(&self, received: &Received) {
        let start_ms = self.now_ms();
        match received {
            Received::Opened => self.model.borrow_mut().connect(),
            Received::Lost => self.model.borrow_mut().disconnect(),
            Received::Text(text) => {
                let failure = self.model.borrow_mut().receive_text(text);
                if let Some(reason) = failure {
                    self.page.borrow_mut().show_message(&reason);
                }
            }
            Received::View(message) => {
                let received = self.model.borrow_mut().receive_view(message);
                if let Err(error) = received {
                    self.page.borrow_mut().show_message(&error.to_string());
                    if let Some(socket) = &*self.socket.borrow() {
                        socket.restart();
                    }
                }
                self.send(self.model.borrow_mut().open_again());
            }
        }
        self.times.borrow_mut().spent_ms += self.now_ms() - start_ms;
        self.change();
    }

    /// Draws a frame if the model may have changed, and measures the time until the browser's next
    /// frame.
    fn frame(&self, now_ms: f64) {
        self.is_frame_requested.set(false);
        let drawn_ms = self.times.borrow_mut().drawn_ms.take();
        if let Some(drawn_ms) = drawn_ms {
            self.times.borrow_mut().frames.add(now_ms - drawn_ms);
        }
        if !self.is_changed.replace(false) {
            return;
        }
        let start_ms = self.now_ms();
        // Fails only if elements are missing, which `start` has found.
        let _ = self.draw();
        let mut times = self.times.borrow_mut();
        let spent_ms = std::mem::take(&mut times.spent_ms) + self.now_ms() - start_ms;
        times.draws.add(spent_ms);
        times.drawn_ms = Some(now_ms);
        drop(times);
        self.request_frame();
    }

    /// Draws the cells if they have changed, and updates the texts. Goes to the main page once it
    /// can show the rank that is being opened.
    fn draw(&self) -> Result<(), JsValue> {
        let mut drawing = self.drawing.borrow_mut();
        let size = (self.area.client_width() as f32, self.area.client_height() as f32);
        let palette = self.palette()?;
        let pixel_ratio = self.window.device_pixel_ratio();
        let mut model = self.model.borrow_mut();
        model.resize(size.0 - 2.0 * PADDING, size.1 - 2.0 * PADDING);
        let scene = model.scene();
        let is_same_look = (drawing.palette, drawing.size) == (palette, size)
            && drawing.pixel_ratio.to_bits() == pixel_ratio.to_bits();
        if !is_same_look || drawing.scene != scene {
            if drawing.palette != palette {
                set_palette(&palette)?;
            }
            drawing.canvas.draw(&scene, &palette, size, pixel_ratio)?;
            (drawing.palette, drawing.size, drawing.pixel_ratio) = (palette, size, pixel_ratio);
            drawing.scene = scene;
        }
        self.page.borrow_mut().update(&model)?;
        set_choice("group", model.group_by().id())?;
        if let Some(device) = model.opened_device() {
            model.cancel_opening();
            self.window.location().assign(&format!("../#device={device}"))?;
        }
        Ok(())
    }

    /// Returns the palette of the page's color scheme, light or dark.
    fn palette(&self) -> Result<Palette, JsValue> {
        let root = document()?.document_element().ok_or("no root element")?;
        let is_dark = match root.get_attribute("data-theme").as_deref() {
            Some("dark") => true,
            Some("light") => false,
            _ => self.window.match_media("(prefers-color-scheme: dark)")?.is_some_and(|query| query.matches()),
        };
        Ok(if is_dark { Palette::DARK } else { Palette::LIGHT })
    }

    /// Calls `react` for each event `name` on `target`, and requests a frame afterwards.
    fn on<E: JsCast + 'static>(
        self: &Rc<Self>,
        target: &web_sys::EventTarget,
        name: &str,
        react: impl Fn(&Self, E) + 'static,
    ) -> Result<(), JsValue> {
        let this = Rc::clone(self);
        on(target, name, move |event| {
            react(&this, event);
            this.change();
        })
    }

    /// Registers the listeners for pointer, keys, lists and buttons, and for changes of the page's
    /// size or color scheme.
    fn listen(self: &Rc<Self>) -> Result<(), JsValue> {
        let canvas = self.drawing.borrow().canvas.element.clone();
        let point = |event: &MouseEvent| (event.offset_x() as f32 - PADDING, event.offset_y() as f32 - PADDING);
        self.on(&canvas, "pointermove", move |app: &Self, event: PointerEvent| {
            app.model.borrow_mut().hover(Some(point(&event)));
        })?;
        self.on(&canvas, "pointerleave", |app: &Self, _: PointerEvent| {
            app.model.borrow_mut().hover(None);
        })?;
        self.on(&canvas, "click", move |app: &Self, event: MouseEvent| {
            let (x, y) = point(&event);
            let is_cell = app.model.borrow_mut().select_at(x, y);
            if is_cell {
                app.announce();
                if !event.shift_key() {
                    app.open();
                }
            }
        })?;
        self.on(&canvas, "keydown", |app: &Self, event: KeyboardEvent| {
            if app.press(&event) {
                event.prevent_default();
            }
        })?;
        for list in LISTS {
            self.on(&by_id(list)?, "change", |app: &Self, _: Event| {
                // Fails only if a list is missing, which the loop has found.
                let _ = app.choose();
            })?;
        }
        let settings = self.model.borrow().settings();
        set_choice("color", settings.metric.id())?;
        set_choice("sort", settings.sort_by.id())?;
        self.on(&by_id("open")?, "click", |app: &Self, _: Event| {
            if app.model.borrow().opening().is_some() {
                app.model.borrow_mut().cancel_opening();
            } else {
                app.open();
            }
        })?;
        self.on(&by_id("events")?, "click", |app: &Self, _: Event| app.switch_events())?;
        self.on(&by_id("message-close")?, "click", |app: &Self, _: Event| app.page.borrow_mut().show_message(""))?;
        self.on(&by_id("marked-list")?, "click", |app: &Self, event: Event| {
            let target = event.target().and_then(|target| target.dyn_into::<web_sys::Element>().ok());
            let row = target.and_then(|target| target.closest("[data-identity]").ok().flatten());
            if let Some(identity) = row.and_then(|row| row.get_attribute("data-identity")) {
                app.model.borrow_mut().select(&identity);
                app.show_selection();
            }
        })?;
        self.on(&self.window, "resize", |_: &Self, _: Event| {})?;
        if let Some(colors) = self.window.match_media("(prefers-color-scheme: dark)")? {
            self.on(&colors, "change", |_: &Self, _: Event| {})?;
        }
        Ok(())
    }

    /// Executes the function of a key. Returns false for a key without one.
    fn press(&self, event: &KeyboardEvent) -> bool {
        if event.ctrl_key() || event.alt_key() || event.meta_key() {
            return false;
        }
        let direction = match event.key().as_str() {
            "ArrowLeft" => Direction::Left,
            "ArrowRight" => Direction::Right,
            "ArrowUp" => Direction::Up,
            "ArrowDown" => Direction::Down,
            "Home" => Direction::First,
            "End" => Direction::Last,
            other => {
                match other {
                    "Enter" => self.open(),
                    "e" => self.switch_events(),
                    "n" => {
                        self.model.borrow_mut().select_next_outlier();
                        self.show_selection();
                    }
                    "Escape" => {
                        self.model.borrow_mut().cancel_opening();
                        self.page.borrow_mut().show_message("");
                    }
                    _ => return false,
                }
                return true;
            }
        };
        self.model.borrow_mut().move_selection(direction);
        self.show_selection();
        true
    }

    /// Scrolls to the selected cell and announces its rank to screen readers.
    fn show_selection(&self) {
        if let Some((top, bottom)) = self.model.borrow().selected_span() {
            let (above, height) = (self.area.scroll_top() as f32, self.area.client_height() as f32);
            let least = bottom + 2.0 * PADDING - height;
            if top < above {
                self.area.set_scroll_top(top as i32);
            } else if above < least {
                self.area.set_scroll_top(least.ceil() as i32);
            }
        }
        self.announce();
    }

    /// Announces the selected rank to screen readers.
    fn announce(&self) {
        let text = self.model.borrow().selected().map(texts::announcement).unwrap_or_default();
        self.page.borrow_mut().announce(&text);
    }

    /// Sends a command to the server; does nothing for `None`.
    fn send(&self, command: Option<String>) {
        if let (Some(socket), Some(command)) = (&*self.socket.borrow(), command) {
            socket.send(&command);
        }
    }

    /// Opens the selected rank on the main page.
    fn open(&self) {
        self.send(self.model.borrow_mut().open_selected());
    }

    /// Makes the server start or stop reading the events of the selected rank.
    fn switch_events(&self) {
        self.send(self.model.borrow().switch_events());
    }

    /// Applies the settings that are chosen in the lists, and writes them to the page's address.
    fn choose(&self) -> Result<(), JsValue> {
        let [metric, group, sort] = LISTS.map(|id| by_id::<HtmlSelectElement>(id).map(|list| list.value()));
        let mut model = self.model.borrow_mut();
        let group_by = find(GroupBy::ALL, GroupBy::id, &group?);
        // The default grouping is not written to the address.
        let is_chosen = model.settings().group_by.is_some() || group_by != Some(model.group_by());
        model.set_settings(Settings {
            metric: find(Metric::ALL, Metric::id, &metric?).unwrap_or_default(),
            group_by: group_by.filter(|_| is_chosen),
            sort_by: find(SortBy::ALL, SortBy::id, &sort?).unwrap_or_default(),
        });
        let fragment = format!("#{}", model.settings().fragment());
        self.window.history()?.replace_state_with_url(&JsValue::NULL, "", Some(&fragment))
    }
}
