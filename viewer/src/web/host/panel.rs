//! Copies the engine's texts and contents into the page's elements.

use wasm_bindgen::prelude::*;

use super::page::Page;
use super::render::Rendered;
use crate::page_texts::{CounterTexts, PageTexts, TransportTexts};
use crate::playback::SPEEDS;
use crate::protocol::{PaneContent, Tooltip};

/// Ids of the header's elements for each band, in the order of `Band::ALL`: the entry, its button,
/// its number.
pub(super) const BANDS: [[&str; 3]; 2] =
    [["band-outside", "show-outside", "count-outside"], ["band-others", "show-others", "count-others"]];

/// The content of a pane that is on the page: controls, legend and content.
#[derive(Default)]
struct RenderedPane {
    controls: Rendered,
    legend: Rendered,
    content: Rendered,
}

/// Writer of texts and contents to the page. It keeps copies of the displayed content, so that only
/// changes are written.
#[derive(Default)]
pub(super) struct Panel {
    /// The details panel.
    pub(super) details: Rendered,
    /// The bar with the verdict.
    pub(super) verdict: Rendered,
    /// The bar above the timeline.
    pub(super) timeline_bar: Rendered,
    tooltip: Rendered,
    panes: [RenderedPane; 2],
    devices: Vec<(u16, String)>,
}

impl Panel {
    /// Updates the texts of the header and the playback controls.
    pub(super) fn show(&mut self, page: &Page, texts: &PageTexts) -> Result<(), JsValue> {
        show_source(page, texts);
        show_counters(page, &texts.counters);
        show_bands(page, texts)?;
        show_transport(page, &texts.transport);
        self.show_devices(page, texts)?;
        page.set_hidden("save", !texts.can_save);
        page.set_text("moment-title", &texts.moment_title);
        page.set_text("moment-event", &texts.moment_event);
        Ok(())
    }

    /// Shows the timeline's tooltip beside the pointer, or hides it if it has no content. `ratio`
    /// is the number of the picture's pixels per CSS pixel.
    pub(super) fn show_tooltip(&mut self, page: &Page, tooltip: &Tooltip, ratio: f64) -> Result<(), JsValue> {
        /// Distance between pointer and tooltip in CSS pixels.
        const DISTANCE: f64 = 14.0;
        let element = &page.timeline_tooltip;
        element.set_hidden(tooltip.content.is_empty());
        self.tooltip.show(&page.document, element, &tooltip.content)?;
        let x = f64::from(tooltip.x) / ratio.max(0.1);
        let (width, whole) = (f64::from(element.offset_width()), f64::from(page.pictures[0].client_width()));
        // Left of the pointer where there is no room right of it.
        let left = if x + DISTANCE + width > whole { (x - DISTANCE - width).max(0.0) } else { x + DISTANCE };
        element.style().set_property("left", &format!("{left:.0}px"))
    }

    /// Updates the content of the left (0) or right (1) pane.
    pub(super) fn show_pane(&mut self, page: &Page, pane: usize, content: &PaneContent) -> Result<(), JsValue> {
        let (rendered, elements) = (&mut self.panes[pane], &page.panes[pane]);
        let (id, picture) =
            [("pane-left", "picture-left"), ("pane-right", "picture-right")].get(pane).copied().unwrap_or_default();
        page.set_attribute(id, "data-view", &content.view);
        page.set_attribute(id, "data-picture", bool_name(content.has_picture));
        page.set_attribute(picture, "aria-label", &content.picture_label);
        rendered.controls.show(&page.document, &elements.controls, &content.controls)?;
        rendered.legend.show(&page.document, &elements.legend, &content.legend)?;
        rendered.content.show(&page.document, &elements.content, &content.content)
    }

    /// Updates the page's list of devices, which is hidden if there is only one.
    fn show_devices(&mut self, page: &Page, texts: &PageTexts) -> Result<(), JsValue> {
        page.set_hidden("device", texts.devices.len() < 2);
        // A process that joins adds devices and changes names.
        if self.devices != texts.devices {
            self.devices.clone_from(&texts.devices);
            page.device.set_text_content(None);
            for (device, name) in &texts.devices {
                let option = page.create("option", name)?;
                option.set_attribute("value", &device.to_string())?;
                page.device.append_child(&option)?;
            }
        }
        let device = texts.device.to_string();
        if page.device.value() != device {
            page.device.set_value(&device);
        }
        Ok(())
    }
}

/// Returns `true` or `false` as the text of an HTML attribute.
fn bool_name(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

/// Shows the recording's name, the connection badge and the number of missed events.
fn show_source(page: &Page, texts: &PageTexts) {
    page.set_text("source", &texts.source);
    let (kind, badge) =
        texts.badge.as_ref().map(|(kind, text)| (format!("{kind:?}"), text.as_str())).unwrap_or_default();
    page.set_optional_text("badge", badge);
    page.set_attribute("badge", "data-kind", &kind.to_ascii_lowercase());
    page.set_optional_text("rate", &texts.rate);
    page.set_optional_text("missed", texts.counters.missed.as_deref().unwrap_or_default());
    if page.document.title() != texts.title {
        page.document.set_title(&texts.title);
    }
}

/// Shows the counters in the header.
fn show_counters(page: &Page, counters: &CounterTexts) {
    page.set_text("count-allocated", &counters.allocated);
    page.set_text("count-active", &counters.active);
    page.set_text("count-reserved", &counters.reserved);
    page.set_text("count-stuck", &counters.stuck);
    page.set_text("count-releasable", &counters.releasable);
    page.set_text("count-segments", &counters.segments);
    page.set_text("count-blocks", &counters.blocks);
    page.set_text("count-events", &counters.events);
    page.set_text("count-lost", counters.lost.as_deref().unwrap_or("0"));
    page.set_hidden("lost", counters.lost.is_none());
}

/// Shows the bytes of both bands (memory outside the pool, and of other processes), each with a
/// button that shows or hides it on the timeline. Without memory samples, both are hidden.
fn show_bands(page: &Page, texts: &PageTexts) -> Result<(), JsValue> {
    for (index, [entry, button, value]) in BANDS.into_iter().enumerate() {
        let band = texts.bands.as_ref().map(|bands| &bands[index]);
        page.set_hidden(entry, band.is_none());
        page.set_text(value, band.map_or("–", |band| &band.bytes));
        page.element(button)?.set_attribute("aria-pressed", bool_name(band.is_some_and(|band| band.is_shown)))?;
    }
    Ok(())
}

/// Shows play or pause, speed, live, event number and time.
fn show_transport(page: &Page, transport: &TransportTexts) {
    page.set_attribute("play", "data-playing", bool_name(transport.is_playing));
    page.set_attribute("play", "aria-label", if transport.is_playing { "Pause" } else { "Play" });
    page.set_attribute("live", "data-following", bool_name(transport.is_following));
    page.set_hidden("live", !transport.has_live);
    if page.speed.options().length() == 0 {
        for speed in SPEEDS {
            if let Ok(option) = page.create("option", &speed.text()) {
                let _ = page.speed.append_child(&option);
            }
        }
    }
    page.speed.set_selected_index(transport.speed as i32);
    let is_edited = page.document.active_element().is_some_and(|active| active.id() == "event");
    if !is_edited && page.event.value() != transport.event {
        page.event.set_value(&transport.event);
    }
    page.set_hidden("since", transport.since.is_none());
    page.set_text("since-event", transport.since.as_deref().unwrap_or_default());
    page.set_text("event-of", &transport.event_count);
    page.set_text("time", &transport.time);
}
