//! The elements of `www/index.html`, by their ids.

use std::cell::RefCell;
use std::collections::HashMap;

use wasm_bindgen::prelude::*;
use web_sys::{
    Document, Element, HtmlCanvasElement, HtmlDialogElement, HtmlElement, HtmlInputElement, HtmlSelectElement,
};

/// What the page as a whole is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Loading,
    Empty,
    Shown,
}

/// The page's elements.
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
    pub(super) veil: HtmlElement,
    message: HtmlElement,
    details_shown: RefCell<String>,
    devices_shown: RefCell<Vec<String>>,
    /// What elements say now, so that only what changes is set.
    texts: RefCell<HashMap<&'static str, (Element, String)>>,
}

fn find<T: JsCast>(document: &Document, id: &str) -> Result<T, JsValue> {
    let element = document.get_element_by_id(id).ok_or_else(|| format!("the page has no #{id}"))?;
    element.dyn_into().map_err(|_| format!("#{id} is another kind of element than expected").into())
}

impl Page {
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
            veil: find(document, "veil")?,
            message: find(document, "message")?,
            details_shown: RefCell::default(),
            devices_shown: RefCell::default(),
            texts: RefCell::default(),
        })
    }

    pub(super) fn element(&self, id: &str) -> Result<HtmlElement, JsValue> {
        find(&self.document, id)
    }

    /// Says `text` in the element `id`; as text, whatever it looks like.
    pub(super) fn set_text(&self, id: &'static str, text: &str) {
        let mut texts = self.texts.borrow_mut();
        if !texts.contains_key(id)
            && let Some(element) = self.document.get_element_by_id(id)
        {
            let said = element.text_content().unwrap_or_default();
            texts.insert(id, (element, said));
        }
        if let Some((element, said)) = texts.get_mut(id)
            && said != text
        {
            element.set_text_content(Some(text));
            text.clone_into(said);
        }
    }

    /// Sets the attribute `data-name` of the element `id`.
    pub(super) fn set_data(&self, id: &str, name: &str, value: &str) {
        self.set_attribute(id, &format!("data-{name}"), value);
    }

    /// Sets an attribute of the element `id`.
    pub(super) fn set_attribute(&self, id: &str, name: &str, value: &str) {
        if let Some(element) = self.document.get_element_by_id(id)
            && element.get_attribute(name).as_deref() != Some(value)
        {
            // It fails only for a name that is none.
            let _ = element.set_attribute(name, value);
        }
    }

    pub(super) fn set_hidden(&self, id: &str, hidden: bool) {
        if let Ok(element) = self.element(id)
            && element.hidden() != hidden
        {
            element.set_hidden(hidden);
        }
    }

    pub(super) fn set_stage(&self, stage: Stage, title: &str, text: &str) {
        let name = match stage {
            Stage::Loading => "loading",
            Stage::Empty => "empty",
            Stage::Shown => "shown",
        };
        self.set_data("app", "stage", name);
        self.set_text("empty-title", title);
        self.set_text("empty-text", text);
    }

    /// Remembers what the details say; whether they have said it before.
    pub(super) fn details_shown(&self, what: &str) -> bool {
        let before = self.details_shown.replace(what.to_owned());
        before == what
    }

    /// Remembers what the device chooser offers; whether it has offered that before.
    pub(super) fn devices_shown(&self, names: &[String]) -> bool {
        let before = self.devices_shown.replace(names.to_vec());
        before == names
    }

    pub(super) fn show_message(&self, text: &str) {
        self.set_text("message-text", text);
        self.message.set_hidden(false);
    }

    /// Says whether there was one.
    pub(super) fn hide_message(&self) -> bool {
        let was_shown = !self.message.hidden();
        self.message.set_hidden(true);
        was_shown
    }

    /// A new element with a class and a text.
    pub(super) fn make(&self, tag: &str, class: &str, text: &str) -> Result<Element, JsValue> {
        let element = self.document.create_element(tag)?;
        if !class.is_empty() {
            element.set_class_name(class);
        }
        element.set_text_content(Some(text));
        Ok(element)
    }
}
