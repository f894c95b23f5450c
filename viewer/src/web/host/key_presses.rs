//! The keyboard.

use wasm_bindgen::prelude::*;
use web_sys::{HtmlInputElement, KeyboardEvent};

use super::super::browser::window;
use super::app::App;
use super::page_commands;
use crate::command::{Command, PageCommand};
use crate::key_bindings::{KeyPress, PREFIX_KEY, for_key};

/// Registers the listener for all key presses on the page.
pub(super) fn listen(app: &App) -> Result<(), JsValue> {
    app.on(&window()?, "keydown", |app: &App, event: KeyboardEvent| {
        let key = event.key();
        let has_modifier = event.ctrl_key() || event.meta_key() || event.alt_key();
        if !has_modifier && is_for_early_search(app, &key) || key == "Escape" && leave_field_of_pane(app) {
            event.prevent_default();
            return;
        }
        let press = KeyPress { key: &key, shift: event.shift_key(), ctrl: event.ctrl_key() || event.meta_key() };
        // Shift is pressed before the second of two keys, too.
        if matches!(key.as_str(), "Shift" | "Control" | "Alt" | "Meta") {
            return;
        }
        let is_second = app.has_prefix_key.take();
        if press.notation() == PREFIX_KEY && !is_second && !is_for_focused_element(app, &event) {
            event.prevent_default();
            app.has_prefix_key.set(true);
            return;
        }
        let Some(command) = for_key(press, is_second).filter(|_| !event.alt_key()) else { return };
        // Text fields keep their keys; commands with Ctrl work everywhere unless they edit text
        // there.
        let Ok(command) = command.command() else { return };
        let edits_text = matches!(
            command,
            Command::Undo | Command::Redo | Command::Page(PageCommand::Size(..) | PageCommand::ResetSizes)
        );
        if (press.ctrl && !edits_text) || !is_for_focused_element(app, &event) {
            event.prevent_default();
            page_commands::run(app, command);
        }
    })
}

/// Returns true if a key is added to a search whose field is not on the page yet. Otherwise that
/// search, if any, ends.
fn is_for_early_search(app: &App, key: &str) -> bool {
    let mut search = app.early_search.borrow_mut();
    let is_taken = search.as_mut().is_some_and(|search| search.press(key));
    if !is_taken {
        *search = None;
    }
    is_taken
}

/// Removes the focus from a field in a pane's header, so that keys are commands again. Returns
/// false if no such field has the focus.
fn leave_field_of_pane(app: &App) -> bool {
    let active = app.page.document.active_element();
    let field = active.filter(|element| element.closest(".pane-controls").is_ok_and(|controls| controls.is_some()));
    let field = field.and_then(|element| element.dyn_into::<HtmlInputElement>().ok());
    field.is_some_and(|field| field.blur().is_ok())
}

/// Returns true if the focused element, such as a text field, uses the key itself, so that the key
/// is no command.
fn is_for_focused_element(app: &App, event: &KeyboardEvent) -> bool {
    if app.page.help.open() {
        return event.key() != "?";
    }
    if app.page.query("dialog[open]").is_some() {
        return true;
    }
    let Some(active) = app.page.document.active_element() else { return false };
    match active.tag_name().as_str() {
        "INPUT" => true,
        // A list has no text to undo changes of.
        "SELECT" => !(event.ctrl_key() || event.meta_key()),
        "BUTTON" | "SUMMARY" => matches!(event.key().as_str(), " " | "Enter"),
        _ => false,
    }
}
