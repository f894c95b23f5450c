//! Scrolling of long lists, of which only the rows around the view are in the page.

use wasm_bindgen::prelude::*;
use web_sys::HtmlElement;

use super::super::browser::window;
use crate::virtual_scroll::{ListSize, VirtualScroll};

/// Height of a row in multiples of the page's font size; the style sheet has the same number.
const ROW_HEIGHT: f64 = 1.7;

/// The list in a pane: where it is scrolled to, and what the engine knows of it.
#[derive(Default)]
pub(super) struct ListScroll {
    scroll: VirtualScroll,
    /// The last request of the engine to scroll to a row.
    request: String,
    /// First row and number of rows in view that the engine knows.
    sent: Option<(u64, u64)>,
}

/// The elements of a list in a pane, and its size.
struct List {
    element: HtmlElement,
    /// Position of the list in the pane's content.
    top: f64,
    size: ListSize,
}

impl List {
    /// Finds the long list in a pane's content.
    fn find(content: &HtmlElement) -> Option<Self> {
        let element: HtmlElement = content.query_selector(".virtual").ok().flatten()?.dyn_into().ok()?;
        let rows = element.get_attribute("data-rows")?.parse().ok()?;
        let heading = element.query_selector("thead").ok().flatten().and_then(|head| head.dyn_into().ok());
        let heading_height = heading.map_or(0.0, |head: HtmlElement| f64::from(head.offset_height()));
        let style = window().ok()?.get_computed_style(&content.owner_document()?.document_element()?).ok()??;
        let font_size: f64 = style.get_property_value("font-size").ok()?.trim_end_matches("px").parse().ok()?;
        let top = f64::from(element.offset_top() - content.offset_top());
        let view_height = f64::from(content.client_height());
        let size = ListSize { rows, row_height: ROW_HEIGHT * font_size, heading_height, view_height };
        Some(Self { element, top, size })
    }
}

impl ListScroll {
    /// Begins again, for another view: its content is scrolled to its start.
    pub(super) fn reset(&mut self, content: &HtmlElement) {
        *self = Self::default();
        content.set_scroll_top(0);
    }

    /// Notes that the user has scrolled the content of a pane. Returns the rows in view (the first
    /// one and their number) if the engine does not know them.
    pub(super) fn scrolled(&mut self, content: &HtmlElement) -> Option<(u64, u64)> {
        let list = List::find(content)?;
        if let Some(position) = self.scroll.scrolled(&list.size, f64::from(content.scroll_top()) - list.top) {
            content.set_scroll_top((position + list.top).round() as i32);
        }
        self.finish(&list)
    }

    /// Scrolls to the row that the engine asks for, after the content of a pane has changed.
    /// Returns the rows in view if the engine does not know them.
    pub(super) fn updated(&mut self, content: &HtmlElement) -> Option<(u64, u64)> {
        let Some(list) = List::find(content) else {
            self.sent = None;
            return None;
        };
        let request = list.element.get_attribute("data-scroll-to").unwrap_or_default();
        if request != self.request {
            let row = request.split_once(' ').and_then(|(row, _)| row.parse().ok());
            if let Some(position) = row.and_then(|row| self.scroll.reveal(&list.size, row)) {
                let position = if position < 1.0 { 0.0 } else { position + list.top };
                content.set_scroll_top(position.round() as i32);
            }
            self.request = request;
        }
        self.finish(&list)
    }

    /// Moves the rows to where the list is scrolled to, and returns those in view if the engine
    /// does not know them.
    fn finish(&mut self, list: &List) -> Option<(u64, u64)> {
        // Fails only for invalid names of properties.
        let _ = list.element.style().set_property("--offset", &format!("{}px", self.scroll.offset()));
        let rows = self.scroll.rows(&list.size);
        (self.sent.replace(rows) != Some(rows)).then_some(rows)
    }
}
