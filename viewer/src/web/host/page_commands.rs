//! Runs commands: the page's commands here, all others in the engine.

use js_sys::{Function, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::HtmlElement;

use super::super::browser::{error_text, run_after, window};
use super::app::App;
use super::page::Page;
use super::{controls, controls_view, dialogs, editor, history, splitters, start_page, storage};
use crate::command::{Command, PageCommand};
use crate::open::SaveFormat;
use crate::protocol::ToEngine;

/// Time in milliseconds for which a button shows that it has copied something.
const COPIED_MS: i32 = 1500;
/// Message to the user after something was copied by a key.
const COPIED: &str = "Copied to the clipboard";

/// Runs the command with this text; an invalid one is reported.
pub(super) fn run_text(app: &App, text: &str) {
    match Command::parse(text) {
        Ok(command) => run(app, command),
        Err(message) => app.page.show_message(&message),
    }
}

/// Runs a command. A message about an earlier command is hidden, and an open menu is closed.
pub(super) fn run(app: &App, command: Command) {
    if command != Command::Page(PageCommand::Escape) {
        close_menu(app);
        app.page.hide_message();
    }
    let Command::Page(command) = command else { return app.command(command) };
    match command {
        PageCommand::Open => choose_file(app),
        PageCommand::Compare => show_file_dialog(app, true),
        PageCommand::Save(format) => save(app, format),
        PageCommand::CopyLink => {
            let address = window().and_then(|window| window.location().href());
            copy(app, address.unwrap_or_default());
        }
        PageCommand::SaveExcerpt(is_range, is_redacted) => {
            app.send_with(&ToEngine::SaveExcerpt { is_range, is_redacted }, &[]);
        }
        PageCommand::CopyLines => copy_lines(app),
        PageCommand::Copy(text) => copy(app, text),
        PageCommand::Help => toggle_help(&app.page),
        PageCommand::Commands => dialogs::show_command_list(app),
        PageCommand::Search => dialogs::focus_search(app),
        PageCommand::MarkNow => {
            if !controls::edit_mark(app) {
                app.command(Command::RangeOfSelection);
            }
        }
        PageCommand::Theme => switch_theme(app),
        PageCommand::Escape => escape(app),
        PageCommand::Editor => editor::show(app),
        PageCommand::History(direction) => history::go(direction),
        PageCommand::Size(splitter, percent) => splitters::change(app, splitter, percent),
        PageCommand::ResetSizes => splitters::reset(app),
        PageCommand::StartPage(name, argument) => start_page::run(app, name, &argument),
    }
}

/// Requests the recording's bytes from the engine, to save them as a file.
pub(super) fn save(app: &App, format: SaveFormat) {
    app.send_with(&ToEngine::Save(format), &[]);
}

/// Copies the start page's lines of code that record a PyTorch program.
fn copy_lines(app: &App) {
    let lines = app.page.element("record-lines").ok().and_then(|lines| lines.text_content());
    copy(app, lines.unwrap_or_default());
}

/// Opens a file that the user has chosen.
pub(super) fn open_file(app: &App, file: &JsValue) {
    let number = app.state.borrow_mut().history.keep_file(file);
    app.send_with(&ToEngine::OpenFile(number), std::slice::from_ref(file));
    app.want_frame();
}

/// Opens or closes the help dialog.
pub(super) fn toggle_help(page: &Page) {
    if page.help.open() {
        page.help.close();
    } else {
        // Fails only if it is open already.
        let _ = page.help.show_modal();
    }
}

/// Opens the browser's dialog for choosing a file to show.
pub(super) fn choose_file(app: &App) {
    if !start_page::choose(app, open_file) {
        show_file_dialog(app, false);
    }
}

/// Opens the browser's dialog for choosing a file, to show it or to compare with it (`is_second`).
fn show_file_dialog(app: &App, is_second: bool) {
    app.is_choosing_second.set(is_second);
    // Cleared, so that choosing this file again counts as a change.
    app.page.file.set_value("");
    app.page.file.click();
}

/// Copies a text to the clipboard. The focused button shows for a moment that this is done; if no
/// button has the focus, a message says so.
pub(super) fn copy(app: &App, text: String) {
    let app = app.clone();
    spawn_local(async move {
        match write_to_clipboard(&text).await {
            Ok(()) => {
                let focused = app.page.document.active_element();
                match focused.filter(|element| element.tag_name() == "BUTTON") {
                    Some(button) => {
                        // Fails only for invalid attribute names.
                        let _ = button.set_attribute("data-done", "true");
                        run_after(COPIED_MS, move || drop(button.remove_attribute("data-done")));
                    }
                    None => {
                        app.page.show_message(COPIED);
                        run_after(COPIED_MS, move || app.page.hide_message_of(COPIED));
                    }
                }
            }
            Err(error) => {
                let error = error_text(&error);
                app.page.show_message(&format!("cannot copy: the browser refused access to the clipboard ({error})"));
            }
        }
    });
}

/// Writes a text to the clipboard.
async fn write_to_clipboard(text: &str) -> Result<(), JsValue> {
    let navigator = window()?.navigator();
    // Browsers have no clipboard for pages that are neither local nor encrypted.
    if Reflect::get(&navigator, &"clipboard".into())?.is_undefined() {
        return Err("the page is not served by https".into());
    }
    JsFuture::from(navigator.clipboard().write_text(text)).await.map(|_| ())
}

/// Name of the browser's stored setting for the color scheme.
const THEME: &str = "theme";

/// Switches to the next color scheme: the system's, light, dark. The browser stores the choice.
fn switch_theme(app: &App) {
    let root = app.page.document.document_element();
    let theme = match root.and_then(|root| root.get_attribute("data-theme")).as_deref() {
        None => "light",
        Some("light") => "dark",
        Some(_) => "",
    };
    storage::store(THEME, theme);
    apply_theme(app, theme);
}

/// Applies the stored color scheme, and registers the listener of its button.
pub(super) fn listen_to_theme(app: &App) -> Result<(), JsValue> {
    apply_theme(app, &storage::load(THEME));
    app.on_button("theme", switch_theme)
}

/// Applies the light or the dark color scheme, or the system's if `theme` is empty.
fn apply_theme(app: &App, theme: &str) {
    let page = &app.page;
    if let Some(root) = page.document.document_element() {
        // Fails only for invalid attribute names.
        let _ = match theme {
            "light" | "dark" => root.set_attribute("data-theme", theme),
            _ => root.remove_attribute("data-theme"),
        };
    }
    let label = format!("Colors: {} (Shift+T)", if theme.is_empty() { "as the system" } else { theme });
    page.set_attribute("theme", "title", &label);
    page.set_attribute("theme", "aria-label", &label);
    app.remeasure();
}

/// Executes the command `escape`: closes the menu, the start page, the message or the panel of the
/// program's commands; if none is open, clears the selection.
fn escape(app: &App) {
    let page = &app.page;
    if !(close_menu(app) || start_page::close(app) || page.hide_message() || controls_view::close(page)) {
        app.command(Command::Deselect);
    }
}

/// Closes the menu for saving, or the export menu of a pane, and moves the focus to the menu's
/// button. Returns true if one was open.
fn close_menu(app: &App) -> bool {
    if let Some(menu) = app.page.query(".export[open]") {
        let button = app.page.query(".export[open]:focus-within summary");
        if let Some(button) = button.and_then(|button| button.dyn_into().ok()) {
            // Fails only in documents without a window.
            let _ = HtmlElement::focus(&button);
        }
        return menu.remove_attribute("open").is_ok();
    }
    let menu = app.page.query("#save-menu:popover-open");
    let close =
        menu.as_ref().and_then(|menu| Reflect::get(menu, &"hidePopover".into()).ok()?.dyn_into::<Function>().ok());
    menu.zip(close).is_some_and(|(menu, close)| close.call0(&menu).is_ok())
}
