//! The elements of `www/index.html`, found by their ids.

use std::cell::RefCell;
use std::collections::HashMap;

use wasm_bindgen::prelude::*;
use web_sys::{
    CanvasRenderingContext2d, Document, Element, HtmlCanvasElement, HtmlDialogElement, HtmlElement, HtmlInputElement,
    HtmlSelectElement,
};

use crate::protocol::PageStage;
use crate::ui::Attribute;

/// Heading of the page before a recording is opened.
const START_TITLE: &str = "Drop a recording here";
/// Text below the heading of the page before a recording is opened.
const START_TEXT: &str =
    "or choose one. Nothing leaves this machine. When a running program serves this page, it shows live memory.";

/// The class of elements whose memory is lit.
const LIT: &str = "lit";

/// The elements of a pane.
pub(super) struct PaneElements {
    /// Controls.
    pub(super) controls: HtmlElement,
    /// Meaning of the picture's colors.
    pub(super) legend: HtmlElement,
    /// Tables and texts.
    pub(super) content: HtmlElement,
}

/// The HTML elements of the page, found by their ids.
pub(super) struct Page {
    pub(super) document: Document,
    /// The pictures, in the order of `Surface::ALL`.
    pub(super) pictures: [HtmlCanvasElement; 3],
    /// The drawing contexts of the pictures.
    pub(super) contexts: [CanvasRenderingContext2d; 3],
    /// The bar with the verdict.
    pub(super) verdict: HtmlElement,
    /// The bar above the timeline.
    pub(super) timeline_bar: HtmlElement,
    /// The tooltip of the timeline.
    pub(super) timeline_tooltip: HtmlElement,
    /// The left and the right pane.
    pub(super) panes: [PaneElements; 2],
    pub(super) device: HtmlSelectElement,
    pub(super) speed: HtmlSelectElement,
    pub(super) event: HtmlInputElement,
    pub(super) file: HtmlInputElement,
    pub(super) help: HtmlDialogElement,
    pub(super) command_list: HtmlDialogElement,
    /// The field of the list of commands.
    pub(super) command_text: HtmlInputElement,
    pub(super) mark_name: HtmlInputElement,
    pub(super) editor: HtmlDialogElement,
    pub(super) editor_template: HtmlInputElement,
    pub(super) details: HtmlElement,
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

/// Returns the drawing context of a canvas.
pub(super) fn context_2d(canvas: &HtmlCanvasElement) -> Result<CanvasRenderingContext2d, JsValue> {
    let context = canvas.get_context("2d")?.ok_or("the browser does not support 2D canvases")?;
    context.dyn_into().map_err(JsValue::from)
}

impl Page {
    /// Finds the page's elements in a document; an error names an element that is missing.
    pub(super) fn find(document: &Document) -> Result<Self, JsValue> {
        let pane = |name: &str| {
            Ok::<_, JsValue>(PaneElements {
                controls: find(document, &format!("controls-{name}"))?,
                legend: find(document, &format!("legend-{name}"))?,
                content: find(document, &format!("content-{name}"))?,
            })
        };
        let pictures = [find(document, "timeline")?, find(document, "picture-left")?, find(document, "picture-right")?];
        let [timeline, left, right] = &pictures;
        Ok(Self {
            document: document.clone(),
            contexts: [context_2d(timeline)?, context_2d(left)?, context_2d(right)?],
            pictures,
            verdict: find(document, "verdict")?,
            timeline_bar: find(document, "timeline-bar")?,
            timeline_tooltip: find(document, "timeline-tooltip")?,
            panes: [pane("left")?, pane("right")?],
            device: find(document, "device")?,
            speed: find(document, "speed")?,
            event: find(document, "event")?,
            file: find(document, "file")?,
            help: find(document, "help")?,
            command_list: find(document, "command-list")?,
            command_text: find(document, "command-text")?,
            mark_name: find(document, "mark-name")?,
            editor: find(document, "editor")?,
            editor_template: find(document, "editor-template")?,
            details: find(document, "details")?,
            drop_overlay: find(document, "veil")?,
            message: find(document, "message")?,
            texts: RefCell::default(),
        })
    }

    /// Returns the element `id`; an error if it is missing.
    pub(super) fn element(&self, id: &str) -> Result<HtmlElement, JsValue> {
        find(&self.document, id)
    }

    /// Returns the first element that a CSS selector matches.
    pub(super) fn query(&self, selector: &str) -> Option<Element> {
        self.document.query_selector(selector).ok().flatten()
    }

    /// Marks the elements that stand for memory with one of these texts, and no others.
    pub(super) fn mark_lit(&self, texts: &[String]) {
        let elements = |selector: &str| {
            let list = self.document.query_selector_all(selector).ok();
            let count = list.as_ref().map_or(0, web_sys::NodeList::length);
            (0..count)
                .filter_map(move |index| list.as_ref()?.item(index)?.dyn_into::<Element>().ok())
                .collect::<Vec<_>>()
        };
        let name = Attribute::Light.name();
        let is_lit = |element: &Element| element.get_attribute(name).is_some_and(|text| texts.contains(&text));
        for element in elements(&format!(".{LIT}")).iter().filter(|element| !is_lit(element)) {
            let _ = element.class_list().remove_1(LIT);
        }
        if !texts.is_empty() {
            for element in elements(&format!("[{name}]")).iter().filter(|element| is_lit(element)) {
                let _ = element.class_list().add_1(LIT);
            }
        }
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

    /// Sets the text of the element `id`, or hides the element if the text is empty; does nothing
    /// if it is missing.
    pub(super) fn set_optional_text(&self, id: &'static str, text: &str) {
        self.set_text(id, text);
        self.set_hidden(id, text.is_empty());
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
        let (name, title, text) = match stage {
            PageStage::Loading => ("loading", title, text),
            PageStage::StartPage => ("empty", START_TITLE, START_TEXT),
            // The start page can be opened over the recording.
            PageStage::Content => ("shown", START_TITLE, START_TEXT),
        };
        self.set_attribute("app", "data-stage", name);
        self.set_text("empty-title", title);
        self.set_text("empty-text", text);
    }

    /// Returns true if the page shows a recording.
    pub(super) fn has_content(&self) -> bool {
        self.query("#app[data-stage=shown]").is_some()
    }

    /// Returns the filter field of the pane with the focus, else of the right pane, where views
    /// open, else of the left one; `None` if no pane has one. The filter of the view "Who holds it"
    /// is only used in the pane with the focus, because other searches are for allocations.
    pub(super) fn search_field(&self) -> Option<HtmlInputElement> {
        /// Selector of filter fields, except the filter of sites.
        const OF_ALLOCATIONS: &str = "input[data-key=search]:not([data-command='filter sites'])";
        let focused = self.document.active_element().and_then(|active| active.closest(".pane").ok().flatten());
        let own = focused.and_then(|pane| pane.query_selector("input[data-key=search]").ok().flatten());
        if let Some(own) = own {
            return own.dyn_into().ok();
        }
        let pane = |id: &str| self.element(id).ok().filter(|pane| !pane.hidden()).map(Element::from);
        let panes = [pane("pane-right"), pane("pane-left")];
        let field = |pane: Element| pane.query_selector(OF_ALLOCATIONS).ok().flatten();
        panes.into_iter().flatten().find_map(field)?.dyn_into().ok()
    }

    /// Shows one pane or two. Returns true if the number has changed.
    pub(super) fn set_pane_count(&self, count: u8) -> bool {
        let is_single = count == 1;
        let changes = self.element("pane-right").is_ok_and(|pane| pane.hidden() != is_single);
        self.set_hidden("pane-right", is_single);
        changes
    }

    /// Shows the progress of an opening, 0 to 1, with a text; `None` hides it.
    pub(super) fn show_progress(&self, progress: Option<(f64, String)>) {
        self.set_hidden("progress", progress.is_none());
        if let Some((share, text)) = progress {
            self.set_attribute("progress-bar", "value", &share.to_string());
            self.set_text("progress-text", &text);
        }
    }

    /// Shows a message to the user until it is closed or replaced.
    pub(super) fn show_message(&self, text: &str) {
        self.set_text("message-text", text);
        self.message.set_hidden(false);
    }

    /// Hides the message to the user if its text is `text`.
    pub(super) fn hide_message_of(&self, text: &str) {
        if self.element("message-text").is_ok_and(|message| message.text_content().as_deref() == Some(text)) {
            self.hide_message();
        }
    }

    /// Hides the message to the user. Returns true if one was shown.
    pub(super) fn hide_message(&self) -> bool {
        let was_shown = !self.message.hidden();
        self.message.set_hidden(true);
        was_shown
    }

    /// Creates an element of type `tag` with a text; the caller adds it to the page.
    pub(super) fn create(&self, tag: &str, text: &str) -> Result<Element, JsValue> {
        let element = self.document.create_element(tag)?;
        element.set_text_content(Some(text));
        Ok(element)
    }
}
