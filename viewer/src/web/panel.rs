//! Everything on the page that is text: counters, transport, legend, details.

use vramscope_trace::{Category, DeviceId};
use wasm_bindgen::prelude::*;

use super::live::Connection;
use super::page::{Page, Stage};
use super::screen::{Screen, css};
use crate::bands::Band;
use crate::details::{self, Details, Subject};
use crate::heatmap::{self, ColorBy, Hit};
use crate::model::{Model, Origin};
use crate::playback::SPEEDS;
use crate::timeline;
use crate::units;

/// The elements of a band in the page's header: the entry, the button in it, the figure in it.
pub(super) const BANDS: [[&str; 3]; 2] =
    [["band-outside", "show-outside", "count-outside"], ["band-others", "show-others", "count-others"]];

/// Brings all text up to date; `hit` is what is under the pointer, and what comes live comes so many seconds late.
pub(super) fn show(
    page: &Page,
    model: &mut Model,
    hit: Option<Hit>,
    screen: &Screen,
    (connection, behind_s): (Connection, u64),
) -> Result<(), JsValue> {
    // A live recording without events is still being waited for; a file without any is shown as what it is.
    if model.origin() == Origin::File || model.recording().devices().next().is_some() {
        page.set_stage(Stage::Shown, "", "");
    }
    show_source(page, model, connection, behind_s);
    show_counters(page, model);
    show_bands(page, model)?;
    show_transport(page, model);
    show_devices(page, model)?;
    show_chosen_device(page, model);
    show_legend(page, model, screen)?;
    page.set_hidden("save", model.origin() == Origin::Nowhere);
    show_moment(page, model);
    show_details(page, model, hit)
}

fn show_source(page: &Page, model: &Model, connection: Connection, behind_s: u64) {
    page.set_text("source", model.source());
    let late = format!("Live · {behind_s} s behind");
    let (badge, kind) = match (connection, model.is_following()) {
        _ if model.origin() == Origin::File => ("", ""),
        (Connection::None, _) => ("", ""),
        (Connection::Live, true) if behind_s > 0 => (&*late, "lost"),
        (Connection::Live, true) => ("Live", "live"),
        (Connection::Live, false) => ("Live · held", "held"),
        (Connection::Reconnecting, _) => ("Reconnecting…", "lost"),
        (Connection::Ended, _) => ("Ended", "ended"),
        (Connection::Disconnected, _) => ("Disconnected", "lost"),
    };
    page.set_text("badge", badge);
    page.set_data("badge", "kind", kind);
    page.set_hidden("badge", badge.is_empty());
    let missed = model.missed_events();
    page.set_text("missed", &format!("{} missed", units::count(missed)));
    page.set_hidden("missed", missed == 0 || model.origin() == Origin::File);
    let title =
        if model.source().is_empty() { "vramscope".to_owned() } else { format!("{} · vramscope", model.source()) };
    if page.document.title() != title {
        page.document.set_title(&title);
    }
}

fn show_counters(page: &Page, model: &Model) {
    let device = model.device_state();
    let counters = device.counters();
    page.set_text("count-allocated", &units::bytes(counters.allocated));
    page.set_text("count-active", &units::bytes(counters.active));
    page.set_text("count-reserved", &units::bytes(counters.reserved));
    page.set_text("count-fragmentation", &units::percent(device.free_space().fragmentation()));
    page.set_text("count-segments", &units::count(device.segments().len() as u64));
    page.set_text("count-blocks", &units::count(device.blocks().len() as u64));
    page.set_text("count-events", &units::count(model.recording().end_event()));
    // In a file nobody knows who left them out; of what is followed live the page knows which it did not get.
    let missed = if model.origin() == Origin::File { 0 } else { model.missed_events() };
    let lost = model.lost_events() - missed;
    page.set_text("count-lost", &units::count(lost));
    page.set_hidden("lost", lost == 0);
}

/// The legend of the bands: what each is at the moment, and whether it is drawn. Nothing where the driver was not asked.
fn show_bands(page: &Page, model: &Model) -> Result<(), JsValue> {
    let series = model.recording().series(model.device());
    let sampled = series.is_some_and(|series| series.used_peaks().is_some());
    let sample = model.device_state().sample();
    for (band, [entry, button, value]) in Band::ALL.into_iter().zip(BANDS) {
        page.set_hidden(entry, !sampled);
        page.set_text(value, &sample.map_or("–".to_owned(), |sample| units::bytes(band.bytes(&sample))));
        let drawn = if model.bands().shows(band) { "true" } else { "false" };
        page.element(button)?.set_attribute("aria-pressed", drawn)?;
    }
    Ok(())
}

fn show_transport(page: &Page, model: &Model) {
    let is_playing = model.playback.is_playing();
    page.set_data("play", "playing", if is_playing { "true" } else { "false" });
    page.set_attribute("play", "aria-label", if is_playing { "Pause" } else { "Play" });
    page.set_data("live", "following", if model.is_following() { "true" } else { "false" });
    let has_live = matches!(model.origin(), Origin::Live | Origin::Disconnected);
    page.set_hidden("live", !has_live);
    if page.speed.options().length() == 0 {
        for speed in SPEEDS {
            if let Ok(option) = page.make("option", "", &format!("×{speed}")) {
                let _ = page.speed.append_child(&option);
            }
        }
    }
    page.speed.set_selected_index(model.playback.speed() as i32);
    let event = model.state().event().to_string();
    let being_typed = page.document.active_element().is_some_and(|active| active.id() == "event");
    if !being_typed && page.event.value() != event {
        page.event.set_value(&event);
    }
    let first = model.recording().first_event();
    let begins_late = model.origin() == Origin::Live && first > 0;
    page.set_hidden("since", !begins_late);
    page.set_text("since-event", &format!("since event {}", units::count(first)));
    page.set_text("event-of", &format!("of {}", units::count(model.recording().end_event())));
    page.set_text("time", &timeline::moment(model.recording(), model.time_ns()));
}

fn show_devices(page: &Page, model: &Model) -> Result<(), JsValue> {
    let devices: Vec<DeviceId> = model.recording().devices().collect();
    page.set_hidden("device", devices.len() < 2);
    // A process that joins brings devices, and names for them.
    let names: Vec<String> = devices.iter().map(|&device| details::name_of_device(model.recording(), device)).collect();
    if page.devices_shown(&names) {
        return Ok(());
    }
    page.device.set_text_content(None);
    for (DeviceId(device), name) in devices.iter().zip(&names) {
        let option = page.make("option", "", name)?;
        option.set_attribute("value", &device.to_string())?;
        page.device.append_child(&option)?;
    }
    Ok(())
}

fn show_chosen_device(page: &Page, model: &Model) {
    let value = model.device().0.to_string();
    if page.device.value() != value {
        page.device.set_value(&value);
    }
}

fn show_legend(page: &Page, model: &Model, screen: &Screen) -> Result<(), JsValue> {
    let by_category = model.color_by == ColorBy::Category;
    let definitions = model.recording().definitions();
    // Their number stands for the categories, which are looked for only when there are more.
    let sites = if by_category { definitions.site_count() } else { 0 };
    let shown = format!("{by_category} {sites} {}", css(screen.theme().background));
    if page.legend.get_attribute("data-shown").as_deref() == Some(&shown) {
        return Ok(());
    }
    page.legend.set_attribute("data-shown", &shown)?;
    page.legend.set_text_content(None);
    let add = |class: &str, color: Option<String>, text: &str| -> Result<(), JsValue> {
        let item = page.make("li", "", "")?;
        let swatch = page.make("i", &format!("swatch {class}"), "")?;
        if let (Some(color), Some(swatch)) = (color, swatch.dyn_ref::<web_sys::HtmlElement>()) {
            swatch.style().set_property("--swatch", &color)?;
        }
        item.append_child(&swatch)?;
        item.append_child(&page.document.create_text_node(text))?;
        page.legend.append_child(&item).map(|_| ())
    };
    if by_category {
        let theme = screen.theme();
        let found = heatmap::categories(definitions);
        for (category, color) in Category::ALL.iter().zip(theme.categories).filter(|(one, _)| found.contains(one)) {
            add("", Some(css(color)), category.name())?;
        }
        add("", Some(css(theme.waste(theme.categories[0]))), "rounding")?;
    } else {
        add("swatch-allocated", None, "allocated")?;
        add("swatch-waste", None, "rounding")?;
        add("swatch-pending", None, "pending free")?;
    }
    add("swatch-free", None, "free inside segments")?;
    add("swatch-cached", None, "free segment")?;
    if !by_category {
        add("swatch-heat", None, "fragmentation 0–100%")?;
    }
    page.element("color")?.set_attribute("aria-pressed", if by_category { "true" } else { "false" })
}

fn show_moment(page: &Page, model: &mut Model) {
    let now = units::count(model.state().event());
    page.set_text("moment-title", &format!("After event {now} of {}", units::count(model.recording().end_event())));
    let text = match model.last_event() {
        Some((_, event)) => {
            let text = details::of_event(&event, model.recording().definitions());
            if event.device == model.device() { text } else { format!("GPU {}: {text}", event.device.0) }
        }
        // Its events are being read.
        None if model.state().event() > model.recording().first_event() => "…".to_owned(),
        None => details::of_beginning(model.recording()).to_owned(),
    };
    page.set_text("moment-event", &text);
}

fn show_details(page: &Page, model: &Model, hit: Option<Hit>) -> Result<(), JsValue> {
    let device = model.device_state();
    let selected = model.selected();
    // What is selected stays; the pointer shows the rest.
    let (details, pinned) = match selected.or(hit) {
        Some(hit) => {
            (details::of_hit(&hit, model.state(), device, model.recording().definitions()), selected.is_some())
        }
        None => (details::of_device(model.device(), model.recording(), device, model.notes()), false),
    };
    let shown = format!("{details:?}{pinned}");
    if page.details_shown(&shown) {
        return Ok(());
    }
    build_details(page, &details, pinned)
}

fn build_details(page: &Page, details: &Details, pinned: bool) -> Result<(), JsValue> {
    let root = &page.details;
    root.set_text_content(None);
    let heading = page.make("h2", "subject", "")?;
    let class = match details.subject {
        Subject::Allocated => "swatch swatch-allocated",
        Subject::Pending => "swatch swatch-pending",
        Subject::Free => "swatch swatch-free",
        Subject::Cached => "swatch swatch-cached",
        Subject::Device => "",
    };
    if !class.is_empty() {
        heading.append_child(&*page.make("i", class, "")?)?;
    }
    heading.append_child(&page.document.create_text_node(details.subject.title()))?;
    if pinned {
        heading.append_child(&*page.make("span", "pinned", "selected · Esc lets go")?)?;
    }
    root.append_child(&heading)?;
    for section in &details.sections {
        if !section.heading.is_empty() {
            root.append_child(&*page.make("h3", "", section.heading)?)?;
        }
        let list = page.make("dl", "facts", "")?;
        for (name, value) in &section.rows {
            list.append_child(&*page.make("dt", "", name)?)?;
            list.append_child(&*page.make("dd", "", value)?)?;
        }
        root.append_child(&list)?;
    }
    if details.stack.is_empty() {
        return Ok(());
    }
    root.append_child(&*page.make("h3", "", "Call stack")?)?;
    let list = page.make("ol", "stack", "")?;
    for (function, place) in &details.stack {
        let item = page.make("li", "", function)?;
        // A call location alone has no function to stand under.
        item.append_child(&*page.make("span", if function.is_empty() { "" } else { "place" }, place)?)?;
        list.append_child(&item)?;
    }
    root.append_child(&list).map(|_| ())
}
