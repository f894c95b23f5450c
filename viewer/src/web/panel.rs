//! Copies the scene's texts into the page's elements.

use vramscope_trace::DeviceId;
use wasm_bindgen::prelude::*;
use web_sys::HtmlElement;

use super::page::{Page, PageStage};
use super::screen::css;
use crate::details::{Details, DetailsKind};
use crate::page_texts::{BadgeKind, CounterTexts, PageTexts, Swatch, TransportTexts};
use crate::playback::SPEEDS;
use crate::theme::Theme;

/// Ids of the header's elements for each band, in the order of `Band::ALL`: the entry, its button,
/// its number.
pub(super) const BANDS: [[&str; 3]; 2] =
    [["band-outside", "show-outside", "count-outside"], ["band-others", "show-others", "count-others"]];

/// Writes texts to the page. Keeps copies of the shown details, devices and legend, whose elements
/// are rebuilt only if they change.
#[derive(Default)]
pub(super) struct Panel {
    details: Option<(Details, bool)>,
    devices: Vec<(DeviceId, String)>,
    legend: Option<(Vec<(Swatch, &'static str)>, Theme)>,
}

impl Panel {
    /// Updates all texts on the page.
    pub(super) fn show(&mut self, page: &Page, texts: &PageTexts, theme: &Theme) -> Result<(), JsValue> {
        if texts.has_content {
            page.set_stage(PageStage::Content, "", "");
        }
        show_source(page, texts);
        show_counters(page, &texts.counters);
        show_bands(page, texts)?;
        show_transport(page, &texts.transport);
        self.show_devices(page, texts)?;
        self.show_legend(page, texts, theme)?;
        page.set_hidden("save", !texts.can_save);
        page.set_text("moment-title", &texts.moment_title);
        page.set_text("moment-event", &texts.moment_event);
        self.show_details(page, texts)
    }

    /// Updates the page's list of devices, which is hidden if there is only one.
    fn show_devices(&mut self, page: &Page, texts: &PageTexts) -> Result<(), JsValue> {
        page.set_hidden("device", texts.devices.len() < 2);
        // A process that joins adds devices and changes names.
        if self.devices != texts.devices {
            self.devices.clone_from(&texts.devices);
            page.device.set_text_content(None);
            for (DeviceId(device), name) in &texts.devices {
                let option = page.create("option", "", name)?;
                option.set_attribute("value", &device.to_string())?;
                page.device.append_child(&option)?;
            }
        }
        let device = texts.device.0.to_string();
        if page.device.value() != device {
            page.device.set_value(&device);
        }
        Ok(())
    }

    /// Rebuilds the heatmap's legend if its entries or the colors have changed.
    fn show_legend(&mut self, page: &Page, texts: &PageTexts, theme: &Theme) -> Result<(), JsValue> {
        if self.legend.as_ref().is_some_and(|(legend, shown_theme)| *legend == texts.legend && shown_theme == theme) {
            return Ok(());
        }
        self.legend = Some((texts.legend.clone(), *theme));
        page.legend.set_text_content(None);
        for &(swatch, name) in &texts.legend {
            let item = page.create("li", "", "")?;
            item.append_child(&*create_swatch(page, swatch, theme)?)?;
            item.append_child(&page.document.create_text_node(name))?;
            page.legend.append_child(&item)?;
        }
        page.element("color")?.set_attribute("aria-pressed", bool_name(texts.is_by_category))
    }

    /// Rebuilds the details panel if its content has changed.
    fn show_details(&mut self, page: &Page, texts: &PageTexts) -> Result<(), JsValue> {
        let Some(details) = &texts.details else { return Ok(()) };
        if self.details.as_ref().is_some_and(|shown| (&shown.0, shown.1) == (details, texts.is_selection)) {
            return Ok(());
        }
        self.details = Some((details.clone(), texts.is_selection));
        build_details(page, details, texts.is_selection)
    }
}

/// Returns `true` or `false` as text, for attributes.
fn bool_name(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

/// Shows the recording's name, the connection badge and the number of missed events.
fn show_source(page: &Page, texts: &PageTexts) {
    page.set_text("source", &texts.source);
    let (kind, badge) = texts.badge.as_ref().map_or(("", ""), |(kind, text)| (badge_kind_name(*kind), text));
    page.set_text("badge", badge);
    page.set_data("badge", "kind", kind);
    page.set_hidden("badge", badge.is_empty());
    let missed = texts.counters.missed.as_deref();
    page.set_text("missed", missed.unwrap_or_default());
    page.set_hidden("missed", missed.is_none());
    if page.document.title() != texts.title {
        page.document.set_title(&texts.title);
    }
}

/// Returns the name of the connection badge's appearance in the style sheet.
fn badge_kind_name(kind: BadgeKind) -> &'static str {
    match kind {
        BadgeKind::Live => "live",
        BadgeKind::Paused => "paused",
        BadgeKind::Lost => "lost",
        BadgeKind::Ended => "ended",
    }
}

/// Shows the counters in the header.
fn show_counters(page: &Page, counters: &CounterTexts) {
    page.set_text("count-allocated", &counters.allocated);
    page.set_text("count-active", &counters.active);
    page.set_text("count-reserved", &counters.reserved);
    page.set_text("count-fragmentation", &counters.fragmentation);
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
    page.set_data("play", "playing", bool_name(transport.is_playing));
    page.set_attribute("play", "aria-label", if transport.is_playing { "Pause" } else { "Play" });
    page.set_data("live", "following", bool_name(transport.is_following));
    page.set_hidden("live", !transport.has_live);
    if page.speed.options().length() == 0 {
        for speed in SPEEDS {
            if let Ok(option) = page.create("option", "", &format!("×{speed}")) {
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

/// Creates the colored square of a legend entry.
fn create_swatch(page: &Page, swatch: Swatch, theme: &Theme) -> Result<HtmlElement, JsValue> {
    let (class, color) = match swatch {
        Swatch::Allocated => ("swatch-allocated", None),
        Swatch::Rounding => ("swatch-waste", None),
        Swatch::Pending => ("swatch-pending", None),
        Swatch::Category(index) => ("", theme.categories.get(index).copied()),
        Swatch::CategoryRounding => ("", Some(theme.rounding(theme.categories[0]))),
        Swatch::Free => ("swatch-free", None),
        Swatch::FreeSegment => ("swatch-cached", None),
        Swatch::Fragmentation => ("swatch-heat", None),
    };
    let element: HtmlElement = page.create("i", &format!("swatch {class}"), "")?.dyn_into()?;
    if let Some(color) = color {
        element.style().set_property("--swatch", &css(color))?;
    }
    Ok(element)
}

/// Replaces the content of the details panel; with `is_selection`, the panel says that its block or
/// range is selected.
fn build_details(page: &Page, details: &Details, is_selection: bool) -> Result<(), JsValue> {
    let root = &page.details;
    root.set_text_content(None);
    let heading = page.create("h2", "subject", "")?;
    let class = match details.kind {
        DetailsKind::AllocatedBlock => "swatch swatch-allocated",
        DetailsKind::PendingBlock => "swatch swatch-pending",
        DetailsKind::FreeRange => "swatch swatch-free",
        DetailsKind::FreeSegment => "swatch swatch-cached",
        DetailsKind::Device => "",
    };
    if !class.is_empty() {
        heading.append_child(&*page.create("i", class, "")?)?;
    }
    heading.append_child(&page.document.create_text_node(details.kind.title()))?;
    if is_selection {
        heading.append_child(&*page.create("span", "pinned", "selected (Esc to deselect)")?)?;
    }
    root.append_child(&heading)?;
    for section in &details.sections {
        if !section.heading.is_empty() {
            root.append_child(&*page.create("h3", "", section.heading)?)?;
        }
        let list = page.create("dl", "facts", "")?;
        for (name, value) in &section.rows {
            list.append_child(&*page.create("dt", "", name)?)?;
            list.append_child(&*page.create("dd", "", value)?)?;
        }
        root.append_child(&list)?;
    }
    if details.stack.is_empty() {
        return Ok(());
    }
    root.append_child(&*page.create("h3", "", "Call stack")?)?;
    let list = page.create("ol", "stack", "")?;
    for (function, location) in &details.stack {
        let item = page.create("li", "", function)?;
        // A frame without a function shows its location like a function.
        let class = if function.is_empty() { "" } else { "place" };
        item.append_child(&*page.create("span", class, location)?)?;
        list.append_child(&item)?;
    }
    root.append_child(&list).map(|_| ())
}
