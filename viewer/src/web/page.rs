//! The elements of `www/index.html`, found by their ids.

use std::cell::RefCell;
use std::collections::HashMap;

use wasm_bindgen::prelude::*;
use web_sys::{
    Document, Element, HtmlCanvasElement, HtmlDialogElement, HtmlElement, HtmlInputElement, HtmlSelectElement,
};

/// What the page as a whole shows: a text while loading, the start page, or a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageStage {
    /// A file is being opened, or the live connection has no events yet.
    Loading,
    /// Nothing is open.
    StartPage,
    /// A recording.
    Content,
}

/// Heading of the page before a recording is opened.
const START_TITLE: &str = "Drop a recording here";
/// Text below the heading of the page before a recording is opened.
const START_TEXT: &str =
    "or choose one. Nothing leaves this machine. When a running program serves this page, it shows live memory.";

/// The HTML elements of the page, found by their ids.
pub(super) struct Page {
    pub(super) document: Document,
    pub(super) timeline: HtmlCanvasElement,
    pub(super) heatmap: HtmlCanvasElement,
    pub(super) device: HtmlSelectElement,
    pub(super) speed: HtmlSelectElement,
    pub(super) event: HtmlInputElement,
    pub(super) file: HtmlInputElement,
    pub(super) help: HtmlDialogElement,
    pub(super) details: HtmlElement,
    pub(super) legend: HtmlElement,
    /// Shown while a file is dragged over the page.
    pub(super) drop_overlay: HtmlElement,
    message: HtmlElement,
    /// Current texts of elements, so that only changes are set.
    texts: RefCell<HashMap<&'static str, (Element, String)>>,
}

/// Returns the element `id`; an error if it is missing or not of type `T`.
fn find<T: JsCast>(document: &Document, id: &str) -> Result<T, JsValue> {
    let element = document.get_element_by_id(id).ok_or_else(|| format!("the page has no #{id}"))?;
    element.dyn_into().map_err(|_| format!("#{id} is an element of an unexpected type").into())
}

impl Page {
    /// Finds the page's elements in a document; an error names an element that is missing.
    pub(super) fn find(document: &Document) -> Result<Self, JsValue> {
        Ok(Self {
            document: document.clone(),
            timeline: find(document, "timeline")?,
            heatmap: find(document, "heatmap")?,
            device: find(document, "device")?,
            speed: find(document, "speed")?,
            event: find(document, "event")?,
            file: find(document, "file")?,
            help: find(document, "help")?,
            details: find(document, "details")?,
            legend: find(document, "legend")?,
            drop_overlay: find(document, "veil")?,
            message: find(document, "message")?,
            texts: RefCell::default(),
        })
    }

    /// Returns the element `id`; an error if it is missing.
    pub(super) fn element(&self, id: &str) -> Result<HtmlElement, JsValue> {
        find(&self.document, id)
    }

    /// Sets the text of the element `id`; does nothing if it is missing. Markup in the text is not
    /// interpreted.
    pub(super) fn set_text(&self, id: &'static str, text: &str) {
        let mut texts = self.texts.borrow_mut();
        if !texts.contains_key(id)
            && let Some(element) = self.document.get_element_by_id(id)
        {
            let current = element.text_content().unwrap_or_default();
            texts.insert(id, (element, current));
        }
        if let Some((element, current)) = texts.get_mut(id)
            && current != text
        {
            element.set_text_content(Some(text));
            text.clone_into(current);
        }
    }

    /// Sets the attribute `data-{name}` of the element `id`; does nothing if the element is
    /// missing.
    pub(super) fn set_data(&self, id: &str, name: &str, value: &str) {
        self.set_attribute(id, &format!("data-{name}"), value);
    }

    /// Sets an attribute of the element `id`; does nothing if the element is missing.
    pub(super) fn set_attribute(&self, id: &str, name: &str, value: &str) {
        if let Some(element) = self.document.get_element_by_id(id)
            && element.get_attribute(name).as_deref() != Some(value)
        {
            // Fails only for invalid attribute names.
            let _ = element.set_attribute(name, value);
        }
    }

    /// Hides the element `id`, or shows it (`hidden` is false); does nothing if it is missing.
    pub(super) fn set_hidden(&self, id: &str, hidden: bool) {
        if let Ok(element) = self.element(id)
            && element.hidden() != hidden
        {
            element.set_hidden(hidden);
        }
    }

    /// Switches the whole page to another stage; `title` and `text` are shown in place of a
    /// recording.
    pub(super) fn set_stage(&self, stage: PageStage, title: &str, text: &str) {
        let name = match stage {
            PageStage::Loading => "loading",
            PageStage::StartPage => "empty",
            PageStage::Content => "shown",
        };
        self.set_data("app", "stage", name);
        self.set_text("empty-title", title);
        self.set_text("empty-text", text);
    }

    /// Shows the page on which a file can be opened.
    pub(super) fn show_start_page(&self) {
        self.set_stage(PageStage::StartPage, START_TITLE, START_TEXT);
    }

    /// Shows a message to the user until it is closed or replaced.
    pub(super) fn show_message(&self, text: &str) {
        self.set_text("message-text", text);
        self.message.set_hidden(false);
    }

    /// Hides the message. Returns true if one was shown.
    pub(super) fn hide_message(&self) -> bool {
        let was_shown = !self.message.hidden();
        self.message.set_hidden(true);
        was_shown
    }

    /// Creates an element of type `tag` with a class (empty: none) and a text; the caller adds it
    /// to the page.
    pub(super) fn create(&self, tag: &str, class: &str, text: &str) -> Result<Element, JsValue> {
        let element = self.document.create_element(tag)?;
        if !class.is_empty() {
            element.set_class_name(class);
        }
        element.set_text_content(Some(text));
        Ok(element)
    }
}
