//! Commands for the running program: record to a file, mark a moment, empty the cache.

use js_sys::{Array, JSON, Object, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{Event, Headers, HtmlInputElement, KeyboardEvent, RequestInit, Response};

use super::super::browser::{error_text, window};
use super::app::App;
use super::controls_view::{Controls, EMPTY_CACHE, MARK, RECORD, close, set_confirming, set_open, show_result};

/// URL, relative to the page, of the list of the running program's commands; each command's own URL
/// is below it.
const COMMANDS_URL: &str = "commands";

/// Loads the commands that the running program offers, and shows them in their panel.
pub(super) fn load_commands(app: &App) {
    let app = app.clone();
    spawn_local(async move {
        // A server without the list offers no commands.
        let controls = fetch_commands().await.unwrap_or_default();
        let mut state = app.0.state.borrow_mut();
        state.controls = controls;
        state.show_controls();
    });
}

/// Loads the list of the running program's commands; a server that refuses the list offers no
/// commands.
async fn fetch_commands() -> Result<Controls, JsValue> {
    let response: Response = JsFuture::from(window()?.fetch_with_str(COMMANDS_URL)).await?.dyn_into()?;
    if !response.ok() {
        return Ok(Controls::default());
    }
    let answer = JsFuture::from(response.json()?).await?;
    let commands: Array = Reflect::get(&answer, &"commands".into())?.dyn_into()?;
    let is_allowed = Reflect::get(&answer, &"allowed".into())?.is_truthy();
    let commands = commands.iter().filter_map(|command| command.as_string()).collect();
    Ok(Controls { commands, is_allowed, is_busy: false })
}

/// Opens the panel of the program's commands and moves the focus to the field for a mark's name.
/// Returns false if the program accepts no marks or is not connected.
pub(super) fn edit_mark(app: &App) -> bool {
    let field = {
        let state = app.0.state.borrow();
        if !state.controls.offers(MARK) || !state.is_connected {
            return false;
        }
        set_open(&state.page, true);
        state.page.element("mark-name")
    };
    if let Ok(field) = field {
        // A disabled field takes no focus; the panel then says why it is disabled.
        let _ = field.focus();
    }
    true
}

/// Registers the listeners of the panel with the running program's commands.
pub(super) fn listen(app: &App) -> Result<(), JsValue> {
    app.on_button("program", |app| {
        let state = app.0.state.borrow();
        if !close(&state.page) {
            set_open(&state.page, true);
        }
    })?;
    app.on_button("record-now", |app| send(app, RECORD, None))?;
    app.on_button("empty-cache", |app| set_confirming(&app.0.state.borrow().page, true))?;
    app.on_button("empty-cache-cancel", |app| set_confirming(&app.0.state.borrow().page, false))?;
    app.on_button("empty-cache-now", |app| {
        set_confirming(&app.0.state.borrow().page, false);
        send(app, EMPTY_CACHE, None);
    })?;
    let (form, field, panel) = {
        let page = &app.0.state.borrow().page;
        (page.element("control-mark")?, page.element("mark-name")?, page.element("controls")?)
    };
    let field: HtmlInputElement = field.dyn_into()?;
    app.on(&form, "submit", move |app: &App, event: Event| {
        event.prevent_default();
        let name = field.value();
        match name.trim() {
            "" => show_result(&app.0.state.borrow().page, "Enter a name for the mark.", false),
            name => {
                send(app, MARK, Some(name));
                field.set_value("");
            }
        }
    })?;
    app.on(&panel, "keydown", move |app: &App, event: KeyboardEvent| {
        if event.key() == "Escape" {
            event.stop_propagation();
            set_open(&app.0.state.borrow().page, false);
        }
    })
}

/// Sends a command to the running program and shows the result in the panel. `name` is the name of
/// a mark, `None` for other commands.
fn send(app: &App, command: &'static str, name: Option<&str>) {
    let request = request(name);
    let set_busy = |app: &App, is_busy: bool| {
        let mut state = app.0.state.borrow_mut();
        state.controls.is_busy = is_busy;
        state.show_controls();
    };
    set_busy(app, true);
    show_result(&app.0.state.borrow().page, "…", true);
    let app = app.clone();
    spawn_local(async move {
        let answer = match request {
            Ok(request) => post(command, &request).await,
            Err(error) => Err(error),
        };
        set_busy(&app, false);
        let state = app.0.state.borrow();
        match answer {
            Ok(text) => show_result(&state.page, &text, true),
            Err(error) => show_result(&state.page, &error_text(&error), false),
        }
    });
}

/// Returns a POST request for a command, with the name of a mark as JSON body if `name` is given.
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

/// Sends a command to the running program and returns the sentence that describes its result; an
/// error contains the server's reason.
async fn post(command: &str, request: &RequestInit) -> Result<String, JsValue> {
    let fetched = window()?.fetch_with_str_and_init(&format!("{COMMANDS_URL}/{command}"), request);
    let response: Response = JsFuture::from(fetched).await?.dyn_into()?;
    let status = format!("the server answered {} {}", response.status(), response.status_text());
    let answer = JsFuture::from(response.json()?).await.map_err(|_| JsValue::from(status.as_str()))?;
    let field = |name: &str| Reflect::get(&answer, &name.into()).ok().and_then(|value| value.as_string());
    match field("done") {
        Some(done) if response.ok() => Ok(done),
        _ => Err(field("error").unwrap_or(status).into()),
    }
}
