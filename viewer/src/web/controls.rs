//! What a running program can be asked to do: write its recording, mark a moment, empty its cache.

use js_sys::{Array, JSON, Object, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{Event, Headers, HtmlButtonElement, HtmlInputElement, KeyboardEvent, RequestInit, Response};

use super::input::{on, on_button};
use super::page::Page;
use super::source::text_of;
use super::{App, State, window};
use crate::model::Origin;

/// Where the server says what is offered, and below which it takes it.
const COMMANDS: &str = "commands";

/// What can be asked for, with the element that holds its controls.
const OFFERS: [(&str, &str); 3] =
    [(RECORD, "control-record"), (MARK, "control-mark"), (EMPTY_CACHE, "control-empty-cache")];
const RECORD: &str = "record";
const MARK: &str = "mark";
const EMPTY_CACHE: &str = "empty-cache";

/// Everything that acts, to be taken out of action together.
const ACTING: [&str; 5] = ["record-now", "mark-name", "mark-now", "empty-cache", "empty-cache-now"];

/// Why none of it can be used.
const NOT_ALLOWED: &str = "To use these, open the page by the address that the program printed, with its token.";
const NOT_CONNECTED: &str = "There is no connection to the program, so nothing can be asked of it.";

/// What the program offers.
#[derive(Debug, Default)]
pub(super) struct Controls {
    offered: Vec<String>,
    /// Whether this page has the right to any of it.
    is_allowed: bool,
    /// Whether an answer is waited for.
    is_busy: bool,
}

impl Controls {
    fn offers(&self, command: &str) -> bool {
        self.offered.iter().any(|offered| offered == command)
    }
}

/// Asks the server what the program offers.
pub(super) fn ask(app: &App) {
    let app = app.clone();
    spawn_local(async move {
        // A server that knows nothing of commands offers none.
        let controls = offered().await.unwrap_or_default();
        app.change(|state| {
            state.controls = controls;
            state.model.redraw_moment();
            Ok::<_, String>(())
        });
    });
}

async fn offered() -> Result<Controls, JsValue> {
    let response: Response = JsFuture::from(window()?.fetch_with_str(COMMANDS)).await?.dyn_into()?;
    if !response.ok() {
        return Ok(Controls::default());
    }
    let answer = JsFuture::from(response.json()?).await?;
    let commands: Array = Reflect::get(&answer, &"commands".into())?.dyn_into()?;
    let is_allowed = Reflect::get(&answer, &"allowed".into())?.is_truthy();
    let offered = commands.iter().filter_map(|command| command.as_string()).collect();
    Ok(Controls { offered, is_allowed, is_busy: false })
}

/// Brings the controls up to date.
pub(super) fn show(page: &Page, controls: &Controls, origin: Origin) {
    let is_any = OFFERS.iter().any(|(command, _)| controls.offers(command));
    let is_live = matches!(origin, Origin::Live | Origin::Disconnected);
    page.set_hidden("program", !is_any || !is_live);
    if !is_any || !is_live {
        page.set_hidden("controls", true);
    }
    for (command, element) in OFFERS {
        page.set_hidden(element, !controls.offers(command));
    }
    let why = match origin {
        _ if !controls.is_allowed => NOT_ALLOWED,
        Origin::Live => "",
        _ => NOT_CONNECTED,
    };
    page.set_text("controls-why", why);
    page.set_hidden("controls-why", why.is_empty());
    let disabled = !controls.is_allowed || controls.is_busy || origin != Origin::Live;
    for id in ACTING {
        let Ok(element) = page.element(id) else { continue };
        if let Some(button) = element.dyn_ref::<HtmlButtonElement>() {
            button.set_disabled(disabled);
        } else if let Some(input) = element.dyn_ref::<HtmlInputElement>() {
            input.set_disabled(disabled);
        }
    }
}

/// Opens the panel, or closes it.
fn toggle(app: &App) {
    let state = app.0.state.borrow();
    if !close(&state) {
        set_open(&state, true);
    }
}

fn set_open(state: &State, open: bool) {
    state.page.set_hidden("controls", !open);
    state.page.set_text("control-said", "");
    confirm_emptying(state, false);
    if let Ok(button) = state.page.element("program") {
        // It fails only for a name that is none.
        let _ = button.set_attribute("aria-expanded", if open { "true" } else { "false" });
        if !open {
            let _ = button.focus();
        }
    }
}

/// Closes the panel. Says whether it was open.
pub(super) fn close(state: &State) -> bool {
    let is_open = state.page.element("controls").is_ok_and(|panel| !panel.hidden());
    if is_open {
        set_open(state, false);
    }
    is_open
}

/// Asks for the name of a mark. Says whether the program takes any.
pub(super) fn ask_for_mark(app: &App) -> bool {
    let field = {
        let state = app.0.state.borrow();
        if !state.controls.offers(MARK) || state.model.origin() != Origin::Live {
            return false;
        }
        set_open(&state, true);
        state.page.element("mark-name")
    };
    if let Ok(field) = field {
        // Where it may not be used, the panel says why.
        let _ = field.focus();
    }
    true
}

fn confirm_emptying(state: &State, ask: bool) {
    state.page.set_hidden("empty-cache", ask);
    state.page.set_hidden("empty-cache-sure", !ask);
}

/// Listens to the controls.
pub(super) fn listen(app: &App) -> Result<(), JsValue> {
    on_button(app, "program", toggle)?;
    on_button(app, "record-now", |app| command(app, RECORD, None))?;
    on_button(app, "empty-cache", |app| confirm_emptying(&app.0.state.borrow(), true))?;
    on_button(app, "empty-cache-not", |app| confirm_emptying(&app.0.state.borrow(), false))?;
    on_button(app, "empty-cache-now", |app| {
        confirm_emptying(&app.0.state.borrow(), false);
        command(app, EMPTY_CACHE, None);
    })?;
    let (form, field, panel) = {
        let page = &app.0.state.borrow().page;
        (page.element("control-mark")?, page.element("mark-name")?, page.element("controls")?)
    };
    let field: HtmlInputElement = field.dyn_into()?;
    let on_mark = app.clone();
    on(&form, "submit", move |event: Event| {
        event.prevent_default();
        let name = field.value();
        match name.trim() {
            "" => say(&on_mark.0.state.borrow(), "Give the moment a name first.", false),
            name => {
                command(&on_mark, MARK, Some(name));
                field.set_value("");
            }
        }
    })?;
    let on_key = app.clone();
    on(&panel, "keydown", move |event: KeyboardEvent| {
        if event.key() == "Escape" {
            event.stop_propagation();
            set_open(&on_key.0.state.borrow(), false);
        }
    })
}

fn say(state: &State, text: &str, is_done: bool) {
    state.page.set_text("control-said", text);
    state.page.set_data("control-said", "kind", if is_done { "done" } else { "wrong" });
}

/// Has the program do something; its answer is shown.
fn command(app: &App, command: &'static str, name: Option<&str>) {
    let request = request(name);
    let busy = |app: &App, is_busy: bool| {
        app.change(|state| {
            state.controls.is_busy = is_busy;
            state.model.redraw_moment();
            Ok::<_, String>(())
        });
    };
    busy(app, true);
    say(&app.0.state.borrow(), "…", true);
    let app = app.clone();
    spawn_local(async move {
        let answer = match request {
            Ok(request) => answer(command, &request).await,
            Err(error) => Err(error),
        };
        busy(&app, false);
        let state = app.0.state.borrow();
        match answer {
            Ok(done) => say(&state, &done, true),
            Err(error) => say(&state, &text_of(&error), false),
        }
    });
}

fn request(name: Option<&str>) -> Result<RequestInit, JsValue> {
    let request = RequestInit::new();
    request.set_method("POST");
    if let Some(name) = name {
        let body = Object::new();
        Reflect::set(&body, &"name".into(), &name.into())?;
        request.set_body(&JSON::stringify(&body)?.into());
        let headers = Headers::new()?;
        headers.set("content-type", "application/json")?;
        request.set_headers(&headers);
    }
    Ok(request)
}

/// The sentence that the server answers with.
async fn answer(command: &str, request: &RequestInit) -> Result<String, JsValue> {
    let fetched = window()?.fetch_with_str_and_init(&format!("{COMMANDS}/{command}"), request);
    let response: Response = JsFuture::from(fetched).await?.dyn_into()?;
    let unsaid = format!("the server answers {} {}", response.status(), response.status_text());
    let answer = JsFuture::from(response.json()?).await.map_err(|_| JsValue::from(unsaid.as_str()))?;
    let field = |name: &str| Reflect::get(&answer, &name.into()).ok().and_then(|value| value.as_string());
    match field("done") {
        Some(done) if response.ok() => Ok(done),
        _ => Err(field("error").unwrap_or(unsaid).into()),
    }
}
