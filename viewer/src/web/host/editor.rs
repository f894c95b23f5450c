//! The dialog for the editor that opens files and lines.

use wasm_bindgen::prelude::*;
use web_sys::{Event, HtmlDialogElement, HtmlInputElement};

use super::app::App;
use super::storage;
use crate::command::Command;
use crate::editor_link::EditorTemplate;

/// Name of the browser's stored setting with the template for editor links.
const SETTING: &str = "editor";

/// Returns the dialog for the user's editor and its text field.
fn elements(app: &App) -> Result<(HtmlDialogElement, HtmlInputElement), JsValue> {
    let page = &app.0.state.borrow().page;
    Ok((page.element("editor")?.dyn_into()?, page.element("editor-template")?.dyn_into()?))
}

/// Applies the stored template for editor links, and registers the listeners of its dialog.
pub(super) fn listen(app: &App) -> Result<(), JsValue> {
    if let Ok(template) = EditorTemplate::parse(&storage::load(SETTING)) {
        app.command(Command::EditorTemplate(Some(template)));
    }
    let (dialog, field) = elements(app)?;
    let form = app.0.state.borrow().page.element("editor-form")?;
    app.on(&form, "submit", move |app: &App, event: Event| {
        event.prevent_default();
        let typed = field.value();
        match EditorTemplate::parse(&typed) {
            Ok(template) => use_template(app, Some(template)),
            Err(_) if typed.trim().is_empty() => use_template(app, None),
            Err(message) => return app.0.state.borrow().page.set_text("editor-error", &message),
        }
        dialog.close();
    })?;
    app.on_button("editor-cancel", |app| {
        if let Ok((dialog, _)) = elements(app) {
            dialog.close();
        }
    })
}

/// Stores and applies a template for editor links; `None` means no links.
fn use_template(app: &App, template: Option<EditorTemplate>) {
    storage::store(SETTING, template.as_ref().map_or("", EditorTemplate::text));
    app.command(Command::EditorTemplate(template));
}

/// Opens the dialog for the user's editor with the stored template.
pub(super) fn show(app: &App) {
    let Ok((dialog, field)) = elements(app) else { return };
    field.set_value(&storage::load(SETTING));
    app.0.state.borrow().page.set_text("editor-error", "");
    // Fails only if it is open already.
    let _ = dialog.show_modal();
    field.select();
}
