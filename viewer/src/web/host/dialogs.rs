//! The help and the list of commands, both made from [`all`] commands.

use wasm_bindgen::prelude::*;
use web_sys::{Event, HtmlInputElement, KeyboardEvent};

use super::app::App;
use super::early_search::EarlySearch;
use super::render::COMMAND;
use crate::command::Command;
use crate::key_bindings::{Group, ListedCommand, all, key_name, matching};

/// Fills the help dialog, and registers the listeners of the dialog with the list of commands,
/// which run a command by `run`.
pub(super) fn listen(app: &App, run: fn(&App, &str)) -> Result<(), JsValue> {
    fill_help(app)?;
    let (dialog, field, list) = {
        let page = &app.0.state.borrow().page;
        (page.command_list.clone(), page.element("command-text")?, page.element("commands")?)
    };
    let field: HtmlInputElement = field.dyn_into()?;
    let typed = field.clone();
    app.on(&field, "input", move |app: &App, _: Event| fill_command_list(app, &typed.value()))?;
    let chosen = dialog.clone();
    app.on(&field, "keydown", move |app: &App, event: KeyboardEvent| match event.key().as_str() {
        "Enter" => {
            event.prevent_default();
            chosen.close();
            if let Some(command) = selected(app) {
                run(app, &command);
            }
        }
        "ArrowDown" | "ArrowUp" => {
            event.prevent_default();
            move_selection(app, event.key() == "ArrowDown");
        }
        _ => {}
    })?;
    app.on(&list, "click", move |app: &App, event: Event| {
        let target = event.target().and_then(|target| target.dyn_into::<web_sys::Element>().ok());
        let item = target.and_then(|target| target.closest(&format!("[{COMMAND}]")).ok().flatten());
        if let Some(command) = item.and_then(|item| item.get_attribute(COMMAND)) {
            dialog.close();
            run(app, &command);
        }
    })
}

/// Opens the dialog with the list of all commands and moves the focus to its text field.
pub(super) fn show_command_list(app: &App) {
    fill_command_list(app, "");
    let state = app.0.state.borrow();
    // Fails only if it is open already.
    let _ = state.page.command_list.show_modal();
    if let Ok(field) = state.page.element("command-text").and_then(|field| Ok(field.dyn_into::<HtmlInputElement>()?)) {
        field.set_value("");
        let _ = field.focus();
    }
}

/// Moves the focus to the filter field of a pane. If no pane has one, opens the list of
/// allocations, whose filter field gets the focus once it is on the page.
pub(super) fn focus_search(app: &App) {
    if !app.focus_search_field() {
        *app.0.early_search.borrow_mut() = Some(EarlySearch::new());
        app.command(Command::SearchView);
    }
}

/// Formats the keys of a command: `W or +`.
fn keys_text(command: &ListedCommand) -> String {
    command.keys.iter().map(|key| key_name(key)).collect::<Vec<_>>().join(" or ")
}

/// Fills the help dialog with all commands and their keys.
fn fill_help(app: &App) -> Result<(), JsValue> {
    let page = &app.0.state.borrow().page;
    let root = page.element("help-keys")?;
    root.set_text_content(None);
    for group in Group::ALL {
        let section = page.create("section", "", "")?;
        section.append_child(&*page.create("h3", "", group.title())?)?;
        let list = page.create("dl", "", "")?;
        for command in all().iter().filter(|command| command.group == group) {
            let entry = page.create("div", "", "")?;
            let keys = page.create("dt", "", "")?;
            for key in command.keys {
                keys.append_child(&*page.create("kbd", "", &key_name(key))?)?;
            }
            entry.append_child(&keys)?;
            entry.append_child(&*page.create("dd", "", command.title)?)?;
            list.append_child(&entry)?;
        }
        section.append_child(&list)?;
        root.append_child(&section)?;
    }
    Ok(())
}

/// Fills the list of commands with those that match a text, and selects the first one.
fn fill_command_list(app: &App, text: &str) {
    let state = app.0.state.borrow();
    let Ok(list) = state.page.element("commands") else { return };
    list.set_text_content(None);
    for (index, command) in matching(text).enumerate() {
        let Ok(item) = state.page.create("li", "", command.title) else { continue };
        // Fails only for invalid attribute names.
        let _ = item.set_attribute(COMMAND, &command.name);
        let _ = item.set_attribute("role", "option");
        item.set_id(&format!("command-{index}"));
        let _ = item.set_attribute("aria-selected", if index == 0 { "true" } else { "false" });
        if let Ok(keys) = state.page.create("kbd", "", &keys_text(&command))
            && !command.keys.is_empty()
        {
            let _ = item.append_child(&keys);
        }
        let _ = list.append_child(&item);
    }
    announce_selected(app);
}

/// Makes screen readers announce the selected command of the list while the focus stays on the text
/// field.
fn announce_selected(app: &App) {
    let page = &app.0.state.borrow().page;
    let Ok(field) = page.element("command-text") else { return };
    let item = page.document.query_selector("#commands [aria-selected=true]").ok().flatten();
    // Fails only for invalid attribute names.
    let _ = field.set_attribute("aria-activedescendant", &item.map(|item| item.id()).unwrap_or_default());
}

/// Returns the command that is selected in the list of commands; `None` if it is empty.
fn selected(app: &App) -> Option<String> {
    let state = app.0.state.borrow();
    let item = state.page.document.query_selector("#commands [aria-selected=true]").ok().flatten()?;
    item.get_attribute(COMMAND)
}

/// Selects the next (`forward`) or previous command in the list of commands.
fn move_selection(app: &App, forward: bool) {
    let state = app.0.state.borrow();
    let Some(item) = state.page.document.query_selector("#commands [aria-selected=true]").ok().flatten() else {
        return;
    };
    let other = if forward { item.next_element_sibling() } else { item.previous_element_sibling() };
    if let Some(other) = other {
        let _ = item.set_attribute("aria-selected", "false");
        let _ = other.set_attribute("aria-selected", "true");
        other.scroll_into_view();
    }
    drop(state);
    announce_selected(app);
}
