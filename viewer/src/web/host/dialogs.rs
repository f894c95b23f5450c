//! The help and the list of commands, both made from [`all`] commands.

use wasm_bindgen::prelude::*;
use web_sys::{Element, Event, KeyboardEvent};

use super::app::App;
use super::early_search::EarlySearch;
use super::page::Page;
use super::render::{COMMAND, Rendered, command_of};
use crate::command::Command;
use crate::key_bindings::{Group, ListedCommand, all, key_name, matching};
use crate::ui::{self, Node, Tag};

/// Fills the help dialog, and registers the listeners of the dialog with the list of commands,
/// which run a command by `run`.
pub(super) fn listen(app: &App, run: fn(&App, &str)) -> Result<(), JsValue> {
    fill_help(&app.page)?;
    let field = &app.page.command_text;
    app.on(field, "input", |app: &App, _: Event| fill_command_list(app, &app.page.command_text.value()))?;
    app.on(field, "keydown", move |app: &App, event: KeyboardEvent| match event.key().as_str() {
        "Enter" => {
            event.prevent_default();
            app.page.command_list.close();
            if let Some(command) = selected(app).and_then(|item| item.get_attribute(COMMAND)) {
                run(app, &command);
            }
        }
        "ArrowDown" | "ArrowUp" => {
            event.prevent_default();
            move_selection(app, event.key() == "ArrowDown");
        }
        _ => {}
    })?;
    app.on(&app.page.element("commands")?, "click", move |app: &App, event: Event| {
        if let Some((_, command)) = command_of(&event) {
            app.page.command_list.close();
            run(app, &command);
        }
    })
}

/// Opens the dialog with the list of all commands and moves the focus to its text field.
pub(super) fn show_command_list(app: &App) {
    fill_command_list(app, "");
    // Fails only if it is open already.
    let _ = app.page.command_list.show_modal();
    app.page.command_text.set_value("");
    let _ = app.page.command_text.focus();
}

/// Moves the focus to the filter field of a pane. If no pane has one, opens the list of
/// allocations, whose filter field gets the focus once it is on the page.
pub(super) fn focus_search(app: &App) {
    if !app.focus_search_field() {
        *app.early_search.borrow_mut() = Some(EarlySearch::new());
        app.command(Command::SearchView);
    }
}

/// Fills the help dialog with all commands and their keys.
fn fill_help(page: &Page) -> Result<(), JsValue> {
    let entry = |command: ListedCommand| {
        let keys = command.keys.iter().map(|key| ui::Element::text(Tag::Kbd, key_name(key)));
        let title = ui::Element::text(Tag::Dd, command.title);
        ui::Element::new(Tag::Div).with_children([ui::Element::new(Tag::Dt).with_children(keys), title])
    };
    let section = |group: Group| {
        let commands = all().into_iter().filter(|command| command.group == group).map(entry);
        let list = ui::Element::new(Tag::Dl).with_children(commands);
        Node::from(ui::Element::new(Tag::Section).with_children([ui::Element::text(Tag::H3, group.title()), list]))
    };
    Rendered::default().show(&page.document, &*page.element("help-keys")?, &Group::ALL.map(section))
}

/// Fills the list of commands with those that match a text, and selects the first one.
fn fill_command_list(app: &App, text: &str) {
    let Ok(list) = app.page.element("commands") else { return };
    list.set_text_content(None);
    for (index, command) in matching(text).enumerate() {
        let Ok(item) = app.page.create("li", command.title) else { continue };
        // Fails only for invalid attribute names.
        let _ = item.set_attribute(COMMAND, &command.name);
        let _ = item.set_attribute("role", "option");
        item.set_id(&format!("command-{index}"));
        let _ = item.set_attribute("aria-selected", if index == 0 { "true" } else { "false" });
        let keys = command.keys.iter().map(|key| key_name(key)).collect::<Vec<_>>().join(" or ");
        if let Ok(keys) = app.page.create("kbd", &keys)
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
    let id = selected(app).map(|item| item.id()).unwrap_or_default();
    // Fails only for invalid attribute names.
    let _ = app.page.command_text.set_attribute("aria-activedescendant", &id);
}

/// Returns the entry of the command that is selected in the list of commands; `None` if the list is
/// empty.
fn selected(app: &App) -> Option<Element> {
    app.page.query("#commands [aria-selected=true]")
}

/// Selects the next (`forward`) or previous command in the list of commands.
fn move_selection(app: &App, forward: bool) {
    let Some(item) = selected(app) else { return };
    let other = if forward { item.next_element_sibling() } else { item.previous_element_sibling() };
    if let Some(other) = other {
        let _ = item.set_attribute("aria-selected", "false");
        let _ = other.set_attribute("aria-selected", "true");
        other.scroll_into_view();
    }
    announce_selected(app);
}
