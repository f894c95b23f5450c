//! The dialog for the editor that opens files and lines.

use wasm_bindgen::prelude::*;
use web_sys::Event;

use super::app::App;
use super::storage;
use crate::command::Command;
use crate::editor_link::EditorTemplate;

/// Name of the browser's stored setting with the template for editor links.
const SETTING: &str = "editor";

/// Applies the stored template for editor links, and registers the listeners of its dialog.
pub(super) fn listen(app: &App) -> Result<(), JsValue> {
    if let Ok(template) = EditorTemplate::parse(&storage::load(SETTING)) {
        app.command(Command::EditorTemplate(Some(template)));
    }
    app.on(&app.page.element("editor-form")?, "submit", |app: &App, event: Event| {
        event.prevent_default();
        let typed = app.page.editor_template.value();
        match EditorTemplate::parse(&typed) {
            Ok(template) => use_template(app, Some(template)),
            Err(_) if typed.trim().is_empty() => use_template(app, None),
            Err(message) => return app.page.set_text("editor-error", &message),
        }
        app.page.editor.close();
    })?;
    app.on_button("editor-cancel", |app| app.page.editor.close())
}

/// Stores and applies a template for editor links; `None` means no links.
fn use_template(app: &App, template: Option<EditorTemplate>) {
    storage::store(SETTING, template.as_ref().map_or("", EditorTemplate::text));
    app.command(Command::EditorTemplate(template));
}

/// Opens the dialog for the user's editor with the stored template.
pub(super) fn show(app: &App) {
    let field = &app.page.editor_template;
    field.set_value(&storage::load(SETTING));
    app.page.set_text("editor-error", "");
    // Fails only if it is open already.
    let _ = app.page.editor.show_modal();
    field.select();
}
