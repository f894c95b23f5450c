//! Linked elements: while the pointer or the focus is on one, the memory that it stands for is lit.

use wasm_bindgen::prelude::*;
use web_sys::{Element, Event, EventTarget, FocusEvent};

use super::super::browser::run_after;
use super::app::App;
use super::render::closest;
use crate::command::Command;
use crate::ui::Attribute;

/// Registers the listeners of a part of the page whose elements may stand for memory.
pub(super) fn listen(app: &App, root: &EventTarget) -> Result<(), JsValue> {
    for event in ["pointerover", "focusin"] {
        app.on(root, event, |app: &App, event: Event| light(app, linked_text(&event)))?;
    }
    app.on(root, "pointerleave", |app: &App, _: Event| light(app, None))?;
    app.on(root, "focusout", |app: &App, event: FocusEvent| {
        let next = event.related_target().and_then(|next| next.dyn_into::<Element>().ok());
        if next.is_none_or(|next| next.closest(&format!("[{}]", Attribute::Light.name())).ok().flatten().is_none()) {
            light(app, None);
        }
    })
}

/// Returns the text of the memory that the element of an event stands for.
fn linked_text(event: &Event) -> Option<String> {
    let name = Attribute::Light.name();
    closest(event, &format!("[{name}]"))?.get_attribute(name)
}

/// Lights up memory, given by its text, in pictures and elements.
fn light(app: &App, text: Option<String>) {
    // A picture under the pointer may have lit other memory since.
    let is_shown = || text.is_none() || app.page.query(".lit").is_some();
    if *app.lit.borrow() == text && is_shown() {
        return;
    }
    let memory = text.as_deref().and_then(|text| text.parse().ok());
    *app.lit.borrow_mut() = text;
    // Browsers also report a lost focus while a frame changes the page.
    let app = app.clone();
    run_after(0, move || app.command(Command::Light(memory)));
}
