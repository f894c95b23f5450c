//! Linked elements: while the pointer or the focus is on one, the memory that it stands for is lit.

use wasm_bindgen::prelude::*;
use web_sys::{Element, Event, EventTarget, FocusEvent};

use super::app::App;
use super::render::closest;
use crate::command::Command;
use crate::ui::Attribute;

/// The class of lit elements.
const LIT: &str = "lit";

/// Registers the listeners of a part of the page whose elements may stand for memory.
pub(super) fn listen(app: &App, root: &EventTarget) -> Result<(), JsValue> {
    for event in ["pointerover", "focusin"] {
        app.on(root, event, |app: &App, event: Event| light(app, linked_text(&event)))?;
    }
    app.on(root, "pointerleave", |app: &App, _: Event| light(app, None))?;
    app.on(root, "focusout", |app: &App, event: FocusEvent| {
        if event.related_target().is_none() {
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
    if *app.lit.borrow() == text {
        return;
    }
    mark(app, text.as_deref());
    let memory = text.as_deref().and_then(|text| text.parse().ok());
    *app.lit.borrow_mut() = text;
    app.command(Command::Light(memory));
}

/// Marks the elements that stand for a memory, and no others.
fn mark(app: &App, text: Option<&str>) {
    let elements = |selector: &str| {
        let list = app.page.document.query_selector_all(selector).ok();
        let count = list.as_ref().map_or(0, web_sys::NodeList::length);
        (0..count).filter_map(move |index| list.as_ref()?.item(index)?.dyn_into::<Element>().ok()).collect::<Vec<_>>()
    };
    for element in elements(&format!(".{LIT}")) {
        let _ = element.class_list().remove_1(LIT);
    }
    let Some(text) = text else { return };
    let name = Attribute::Light.name();
    for element in elements(&format!("[{name}]")) {
        if element.get_attribute(name).as_deref() == Some(text) {
            let _ = element.class_list().add_1(LIT);
        }
    }
}
