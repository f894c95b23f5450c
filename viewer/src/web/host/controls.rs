//! Commands for the running program: record to a file, mark a moment, empty the cache.

use js_sys::{Array, Reflect};
use serde_json::json;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{Event, Headers, KeyboardEvent, RequestInit, Response};

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
        let mut state = app.state.borrow_mut();
        state.controls = controls;
        state.show_controls(&app.page);
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
    let state = app.state.borrow();
    let can_mark = state.controls.offers(MARK) && state.is_connected;
    drop(state);
    if can_mark {
        set_open(&app.page, true);
        // A disabled field takes no focus; the panel then says why it is disabled.
        let _ = app.page.mark_name.focus();
    }
    can_mark
}

/// Registers the listeners of the panel with the running program's commands.
pub(super) fn listen(app: &App) -> Result<(), JsValue> {
    app.on_button("program", |app| {
        if !close(&app.page) {
            set_open(&app.page, true);
        }
    })?;
    app.on_button("record-now", |app| send(app, RECORD, None))?;
    app.on_button("empty-cache", |app| set_confirming(&app.page, true))?;
    app.on_button("empty-cache-cancel", |app| set_confirming(&app.page, false))?;
    app.on_button("empty-cache-now", |app| {
        set_confirming(&app.page, false);
        send(app, EMPTY_CACHE, None);
    })?;
    app.on(&app.page.element("control-mark")?, "submit", |app: &App, event: Event| {
        event.prevent_default();
        let name = app.page.mark_name.value();
        match name.trim() {
            "" => show_result(&app.page, "Enter a name for the mark.", false),
            name => {
                send(app, MARK, Some(name));
                app.page.mark_name.set_value("");
            }
        }
    })?;
    app.on(&app.page.element("controls")?, "keydown", |app: &App, event: KeyboardEvent| {
        if event.key() == "Escape" {
            event.stop_propagation();
            set_open(&app.page, false);
        }
    })
}

/// Sends a command to the running program and shows the result in the panel. `name` is the name of
/// a mark, `None` for other commands.
fn send(app: &App, command: &'static str, name: Option<&str>) {
    let request = request(name);
    let set_busy = |app: &App, is_busy: bool| {
        let mut state = app.state.borrow_mut();
        state.controls.is_busy = is_busy;
        state.show_controls(&app.page);
    };
    set_busy(app, true);
    show_result(&app.page, "…", true);
    let app = app.clone();
    spawn_local(async move {
        let answer = match request {
            Ok(request) => post(command, &request).await,
            Err(error) => Err(error),
        };
        set_busy(&app, false);
        match answer {
            Ok(text) => show_result(&app.page, &text, true),
            Err(error) => show_result(&app.page, &error_text(&error), false),
        }
    });
}

/// Returns a POST request for a command, with the name of a mark as JSON body if `name` is given.
fn request(name: Option<&str>) -> Result<RequestInit, JsValue> {
    let request = RequestInit::new();
    request.set_method("POST");
    if let Some(name) = name {
        request.set_body(&json!({ "name": name }).to_string().into());
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
