//! Elements of the page and their texts.

use wasm_bindgen::prelude::*;
use web_sys::{Document, Element, HtmlElement};

/// Returns the browser's document; an error if there is none.
pub(super) fn document() -> Result<Document, JsValue> {
    web_sys::window().and_then(|window| window.document()).ok_or_else(|| JsValue::from_str("no document"))
}

/// Returns the element with this id; an error if it is missing or of another type.
pub(super) fn by_id<E: JsCast>(id: &str) -> Result<E, JsValue> {
    let found = document()?.get_element_by_id(id).and_then(|element| element.dyn_into::<E>().ok());
    found.ok_or_else(|| JsValue::from_str(&format!("the page has no element {id}")))
}

/// Creates an element of kind `tag` and appends it to `parent`.
pub(super) fn append(parent: &Element, tag: &str) -> Result<HtmlElement, JsValue> {
    let element = document()?.create_element(tag)?;
    parent.append_child(&element)?;
    Ok(element.unchecked_into())
}

/// An element with a changing text, which the document gets only when it differs.
#[derive(Debug)]
pub(super) struct TextElement {
    pub(super) element: HtmlElement,
    text: String,
}

impl TextElement {
    /// Wraps an element that has no text.
    pub(super) fn new(element: HtmlElement) -> Self {
        Self { element, text: String::new() }
    }

    /// Wraps the element with this id; an error if it is missing.
    pub(super) fn by_id(id: &str) -> Result<Self, JsValue> {
        let element: HtmlElement = by_id(id)?;
        let text = element.text_content().unwrap_or_default();
        Ok(Self { element, text })
    }

    /// Sets the element's text.
    pub(super) fn set(&mut self, text: &str) {
        if self.text != text {
            self.element.set_text_content(Some(text));
            text.clone_into(&mut self.text);
        }
    }
}

/// Shows or hides an element.
pub(super) fn set_hidden(element: &HtmlElement, is_hidden: bool) {
    if element.hidden() != is_hidden {
        element.set_hidden(is_hidden);
    }
}
