//! The keyboard.

use wasm_bindgen::prelude::*;
use web_sys::{HtmlInputElement, KeyboardEvent};

use super::super::browser::window;
use super::app::App;
use super::page_commands;
use crate::commands::{KeyPress, for_key};

/// Registers the listener for all key presses on the page.
pub(super) fn listen(app: &App) -> Result<(), JsValue> {
    app.on(window()?.as_ref(), "keydown", |app: &App, event: KeyboardEvent| {
        let key = event.key();
        if key == "Escape" && leave_field_of_pane(app) {
            event.prevent_default();
            return;
        }
        let press = KeyPress { key: &key, shift: event.shift_key(), ctrl: event.ctrl_key() || event.meta_key() };
        let Some(command) = for_key(press).filter(|_| !event.alt_key()) else { return };
        // Text fields keep their keys; commands with Ctrl work everywhere unless they edit text
        // there.
        let edits_text = matches!(command.name, "undo" | "redo") || command.name.starts_with("size ");
        if (press.ctrl && !edits_text) || !is_for_focused_element(app, &event) {
            event.prevent_default();
            page_commands::run(app, command.name);
        }
    })
}

/// Takes the focus from a field above a pane, so that keys are commands again. Returns false if no
/// such field has the focus.
fn leave_field_of_pane(app: &App) -> bool {
    let active = app.0.state.borrow().page.document.active_element();
    let field = active.filter(|element| element.closest(".pane-controls").is_ok_and(|controls| controls.is_some()));
    let Some(field) = field.and_then(|element| element.dyn_into::<HtmlInputElement>().ok()) else { return false };
    // The field's listener for changes borrows the state.
    field.blur().is_ok()
}

/// Returns true if the focused element, such as a text field, uses the key itself, so that the key
/// is no command.
fn is_for_focused_element(app: &App, event: &KeyboardEvent) -> bool {
    let state = app.0.state.borrow();
    if state.page.help.open() {
        return event.key() != "?";
    }
    if state.page.document.query_selector("dialog[open]").is_ok_and(|dialog| dialog.is_some()) {
        return true;
    }
    let Some(active) = state.page.document.active_element() else { return false };
    match active.tag_name().as_str() {
        "INPUT" => true,
        // A list has no text to undo changes of.
        "SELECT" => !(event.ctrl_key() || event.meta_key()),
        "BUTTON" => matches!(event.key().as_str(), " " | "Enter"),
        _ => false,
    }
}
