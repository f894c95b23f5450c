//! Scrolling of long lists, of which only the rows around the view are in the page.

use wasm_bindgen::prelude::*;
use web_sys::HtmlElement;

use super::super::browser::window;
use crate::virtual_scroll::{ListSize, VirtualScroll};

/// Height of a row in multiples of the page's font size; the style sheet has this number, too.
const ROW_HEIGHT: f64 = 1.7;

/// The scroll state of a pane's long list: its position, and the rows that the engine knows to be
/// in view.
#[derive(Default)]
pub(super) struct ListScroll {
    scroll: VirtualScroll,
    /// The last request of the engine to scroll to a row.
    request: String,
    /// The requested row, until the user scrolls the list.
    revealed: Option<Revealed>,
    /// First row and number of rows in view that the engine knows.
    sent: Option<(u64, u64)>,
}

/// A row that a long list was scrolled to on the engine's request.
struct Revealed {
    row: u64,
    /// Where the list was scrolled to before.
    from: VirtualScroll,
    /// The layout in which the row was scrolled to; in another one, the list scrolls to it again.
    layout: Option<Layout>,
}

/// The sizes that determine the scroll position at which a row of a long list is in view.
#[derive(Clone, Copy, PartialEq)]
struct Layout {
    /// Position of the list in the pane's content, in CSS pixels.
    top: f64,
    size: ListSize,
}

/// The element of a long list in a pane, and its layout.
struct List {
    element: HtmlElement,
    layout: Layout,
}

impl List {
    /// Finds the long list in a pane's content; `None` if it has none.
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
        Some(Self { element, layout: Layout { top, size } })
    }
}

impl ListScroll {
    /// Resets the state for another view, and scrolls the pane's content to its start.
    pub(super) fn reset(&mut self, content: &HtmlElement) {
        *self = Self::default();
        content.set_scroll_top(0);
    }

    /// Handles that the content of a pane was scrolled. Returns the rows in view (the first one and
    /// their number) if the engine does not know them; else `None`.
    pub(super) fn scrolled(&mut self, content: &HtmlElement) -> Option<(u64, u64)> {
        let list = List::find(content)?;
        let Layout { top, size } = list.layout;
        let position = f64::from(content.scroll_top()) - top;
        // Browsers also report when the page scrolls, and scroll content that has become shorter.
        let is_at_end = content.scroll_top() + content.client_height() >= content.scroll_height();
        let has_layout_changed = self.revealed.as_ref().is_some_and(|revealed| revealed.layout != Some(list.layout));
        if is_at_end && has_layout_changed {
            return self.updated(content);
        }
        if !self.scroll.is_at(&size, position) {
            self.revealed = None;
        }
        if let Some(position) = self.scroll.scrolled(&size, position) {
            content.set_scroll_top((position + top).round() as i32);
        }
        self.finish(&list)
    }

    /// Scrolls to the row that the engine requests, after the content or the size of a pane has
    /// changed. Returns the rows in view (the first one and their number) if the engine does not
    /// know them.
    pub(super) fn updated(&mut self, content: &HtmlElement) -> Option<(u64, u64)> {
        let Some(list) = List::find(content) else {
            self.sent = None;
            return None;
        };
        let Layout { top, size } = list.layout;
        let request = list.element.get_attribute("data-scroll-to").unwrap_or_default();
        if request != self.request {
            let row = request.split_once(' ').and_then(|(row, _)| row.parse().ok());
            self.revealed = row.map(|row| Revealed { row, from: self.scroll, layout: None });
            self.request = request;
        }
        if let Some(revealed) = self.revealed.as_mut().filter(|revealed| revealed.layout != Some(list.layout)) {
            revealed.layout = Some(list.layout);
            let shown = std::mem::replace(&mut self.scroll, revealed.from);
            if self.scroll.reveal(&size, revealed.row).is_some() || self.scroll != shown {
                let position = self.scroll.position();
                let position = if position < 1.0 { 0.0 } else { position + top };
                content.set_scroll_top(position.round() as i32);
            }
        }
        self.finish(&list)
    }

    /// Positions the rows according to the list's scroll position. Returns the rows in view (the
    /// first one and their number) if the engine does not know them.
    fn finish(&mut self, list: &List) -> Option<(u64, u64)> {
        let (style, offset) = (list.element.style(), format!("{}px", self.scroll.offset()));
        // Setting the property, even to its value, makes the browser compute the styles of all
        // rows.
        if style.get_property_value("--offset").as_ref() != Ok(&offset) {
            // Fails only for invalid names of properties.
            let _ = style.set_property("--offset", &offset);
        }
        let rows = self.scroll.rows(&list.layout.size);
        (self.sent.replace(rows) != Some(rows)).then_some(rows)
    }
}
