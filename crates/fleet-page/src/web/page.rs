//! The elements beside the cells: counters, legend, details, and the lists.

use wasm_bindgen::prelude::*;
use web_sys::{HtmlButtonElement, HtmlElement, HtmlSelectElement};

use super::elements::{TextElement, append, by_id, document, set_hidden};
use crate::model::FleetModel;
use crate::palette::{LEVELS, Palette};
use crate::texts;

/// Maximum number of rows in the list of ranks that differ.
const MAX_LISTED: usize = 50;
/// Title of the buttons that are disabled because the page's address lacks the token.
const NO_COMMANDS: &str = "Open this page by the address that the program printed, with its token";

/// The elements of a row in the list of ranks that differ, and the identity of its rank.
struct ListedRank {
    row: HtmlElement,
    button: TextElement,
    cells: Vec<TextElement>,
    identity: String,
}

/// The elements of a row in the list of pipeline stages.
struct ListedStage {
    row: HtmlElement,
    name: TextElement,
    bar: HtmlElement,
    share: f64,
    median: TextElement,
    imbalance: TextElement,
}

/// The elements of the page around the cells: counters, legend, details and lists.
pub(super) struct Page {
    run: TextElement,
    badge: TextElement,
    counters: Vec<TextElement>,
    least: TextElement,
    most: TextElement,
    empty: TextElement,
    title: TextElement,
    difference: TextElement,
    facts: Vec<TextElement>,
    open: (TextElement, HtmlButtonElement),
    events: (TextElement, HtmlButtonElement),
    marked_title: TextElement,
    marked_headings: HtmlElement,
    marked_list: HtmlElement,
    marked: Vec<ListedRank>,
    stages_section: HtmlElement,
    stages_list: HtmlElement,
    stages: Vec<ListedStage>,
    announcement: TextElement,
    message: (HtmlElement, TextElement),
}

impl Page {
    /// Finds the page's elements, and adds the counters and details, whose number is fixed.
    pub(super) fn new() -> Result<Self, JsValue> {
        let described = |list: &HtmlElement, name: &str, is_wrapped: bool| {
            let parent = if is_wrapped { append(list, "div")? } else { list.clone() };
            append(&parent, "dt")?.set_text_content(Some(name));
            append(&parent, "dd").map(TextElement::new)
        };
        let (counters, facts): (HtmlElement, HtmlElement) = (by_id("counters")?, by_id("facts")?);
        let button = |id| Ok::<_, JsValue>((TextElement::by_id(id)?, by_id(id)?));
        Ok(Self {
            run: TextElement::by_id("run")?,
            badge: TextElement::by_id("badge")?,
            counters: texts::COUNTERS.iter().map(|name| described(&counters, name, true)).collect::<Result<_, _>>()?,
            least: TextElement::by_id("least")?,
            most: TextElement::by_id("most")?,
            empty: TextElement::by_id("empty")?,
            title: TextElement::by_id("details-title")?,
            difference: TextElement::by_id("difference")?,
            facts: texts::FACTS.iter().map(|name| described(&facts, name, false)).collect::<Result<_, _>>()?,
            open: button("open")?,
            events: button("events")?,
            marked_title: TextElement::by_id("marked-title")?,
            marked_headings: by_id("marked-headings")?,
            marked_list: by_id("marked-list")?,
            marked: Vec::new(),
            stages_section: by_id("stages")?,
            stages_list: by_id("stages-list")?,
            stages: Vec::new(),
            announcement: TextElement::by_id("announcement")?,
            message: (by_id("message")?, TextElement::by_id("message-text")?),
        })
    }

    /// Updates all texts to the model's newest view.
    pub(super) fn update(&mut self, model: &FleetModel) -> Result<(), JsValue> {
        self.run.set(model.run());
        let (badge, kind) = match (model.is_connected(), model.run().is_empty()) {
            (true, _) => ("live", "live"),
            (false, true) => ("connecting", "waiting"),
            (false, false) => ("connection lost; reconnecting", "lost"),
        };
        self.badge.set(badge);
        self.badge.element.set_attribute("data-kind", kind)?;
        for (element, text) in self.counters.iter_mut().zip(texts::counters(model.view())) {
            element.set(&text);
        }
        let (metric, scale) = (model.settings().metric, model.scale());
        self.least.set(&metric.text(scale.least));
        self.most.set(&metric.text(scale.most));
        let is_empty = model.view().ranks.is_empty();
        set_hidden(&self.empty.element, !is_empty);
        self.empty.set(if model.is_connected() && model.view().time_unix_ns > 0 {
            "No rank has sent a summary yet. Ranks appear here when they start."
        } else {
            "Connecting to the server…"
        });
        self.update_details(model);
        self.update_marked(model)?;
        self.update_stages(model)
    }

    /// Updates the details of the rank under the pointer, or of the selected rank.
    fn update_details(&mut self, model: &FleetModel) {
        let shown = model.shown();
        self.title.set(&shown.map_or_else(|| "No rank selected".to_owned(), texts::name));
        let difference = shown.map(texts::difference).unwrap_or_default();
        self.difference.set(&difference);
        let facts = shown.map(texts::facts);
        for (index, element) in self.facts.iter_mut().enumerate() {
            element.set(facts.as_ref().map_or("–", |facts| &facts[index]));
        }
        let selected = model.selected();
        let name = selected.map_or_else(|| "rank".to_owned(), texts::name);
        let is_opening = model.opening().is_some();
        self.open.0.set(&match model.opening() {
            Some(row) => format!("Waiting for {}… Cancel", texts::name(row)),
            None => format!("Open {name}"),
        });
        let is_closed = selected.is_none_or(|row| row.events == vramscope_insight::fleet::EventsState::Closed);
        self.events.0.set(if is_closed { "Read its events" } else { "Stop its events" });
        let reason = if model.may_command() { "" } else { NO_COMMANDS };
        for (button, is_disabled) in [
            (&self.open.1, !is_opening && (selected.is_none() || !model.may_command())),
            (&self.events.1, selected.is_none() || !model.may_command()),
        ] {
            if button.disabled() != is_disabled {
                button.set_disabled(is_disabled);
                button.set_title(reason);
            }
        }
    }

    /// Updates the list of ranks that differ.
    fn update_marked(&mut self, model: &FleetModel) -> Result<(), JsValue> {
        let outliers = model.view().outliers();
        self.marked_title.set(&match outliers.len() {
            0 => "No rank differs from those like it".to_owned(),
            1 => "1 rank differs from those like it".to_owned(),
            count if count > MAX_LISTED => format!("{count} ranks differ from those like them; the first {MAX_LISTED}"),
            count => format!("{count} ranks differ from those like them"),
        });
        let selected = model.selected().map(|row| row.identity.0.as_str());
        let listed = outliers.iter().take(MAX_LISTED).filter_map(|row| Some((row, row.outlier?)));
        let mut count = 0;
        for (row, outlier) in listed {
            if self.marked.len() == count {
                self.marked.push(ListedRank::new(&self.marked_list)?);
            }
            let listed = &mut self.marked[count];
            count += 1;
            let [rank, rest @ ..] = texts::outlier_texts(row, &outlier);
            listed.button.set(&rank);
            for (cell, text) in listed.cells.iter_mut().zip(rest) {
                cell.set(&text);
            }
            if listed.identity != row.identity.0 {
                row.identity.0.clone_into(&mut listed.identity);
                listed.row.set_attribute("data-identity", &listed.identity)?;
            }
            let is_selected = if selected == Some(&row.identity.0) { "true" } else { "false" };
            if listed.row.get_attribute("aria-selected").as_deref() != Some(is_selected) {
                listed.row.set_attribute("aria-selected", is_selected)?;
            }
        }
        self.marked.drain(count..).for_each(|listed| listed.row.remove());
        set_hidden(&self.marked_headings, count == 0);
        Ok(())
    }

    /// Updates the list of pipeline stages.
    fn update_stages(&mut self, model: &FleetModel) -> Result<(), JsValue> {
        let stages = texts::stages(&model.view().stages);
        set_hidden(&self.stages_section, stages.is_empty());
        while self.stages.len() < stages.len() {
            self.stages.push(ListedStage::new(&self.stages_list)?);
        }
        self.stages.drain(stages.len()..).for_each(|stage| stage.row.remove());
        for (listed, stage) in self.stages.iter_mut().zip(stages) {
            listed.name.set(&stage.name);
            listed.median.set(&stage.median);
            listed.imbalance.set(&stage.imbalance);
            if listed.share.to_bits() != stage.share.to_bits() {
                listed.share = stage.share;
                listed.bar.style().set_property("width", &format!("{:.1}%", 100.0 * stage.share))?;
            }
        }
        Ok(())
    }

    /// Makes screen readers speak `text`.
    pub(super) fn announce(&mut self, text: &str) {
        self.announcement.set(text);
    }

    /// Shows a message to the user; an empty one hides it.
    pub(super) fn show_message(&mut self, text: &str) {
        self.message.1.set(text);
        set_hidden(&self.message.0, text.is_empty());
    }
}

impl ListedRank {
    fn new(list: &HtmlElement) -> Result<Self, JsValue> {
        let row = append(list, "tr")?;
        let button = append(append(&row, "td")?.as_ref(), "button")?;
        button.set_attribute("type", "button")?;
        button.set_class_name("link");
        // The host and what differs are names, the others are numbers.
        let cell = |index: usize| append_cell(&row, if index > 1 { "number" } else { "" });
        let cells = (0..texts::OUTLIER_HEADINGS.len() - 1).map(cell).collect::<Result<_, _>>()?;
        Ok(Self { row, button: TextElement::new(button), cells, identity: String::new() })
    }
}

impl ListedStage {
    fn new(list: &HtmlElement) -> Result<Self, JsValue> {
        let row = append(list, "tr")?;
        let name = append_cell(&row, "")?;
        let bar = append(&append_cell(&row, "track")?.element, "div")?;
        let (median, imbalance) = (append_cell(&row, "number")?, append_cell(&row, "number")?);
        Ok(Self { row, name, bar, share: -1.0, median, imbalance })
    }
}

/// Appends a cell with a class of the style sheet to a table's row.
fn append_cell(row: &HtmlElement, class: &str) -> Result<TextElement, JsValue> {
    let cell = append(row, "td")?;
    cell.set_class_name(class);
    Ok(TextElement::new(cell))
}

/// Selects the entry `value` in the page's list with this id.
pub(super) fn set_choice(id: &str, value: &str) -> Result<(), JsValue> {
    by_id::<HtmlSelectElement>(id).map(|list| list.set_value(value))
}

/// Sets the style sheet's variables to the colors of the cells.
pub(super) fn set_palette(palette: &Palette) -> Result<(), JsValue> {
    let root: HtmlElement = document()?.document_element().ok_or("no root element")?.dyn_into()?;
    let stops = (0..5).map(|stop| palette.level((stop * (LEVELS - 1) / 4) as u8).to_string());
    root.style().set_property("--ramp", &stops.collect::<Vec<_>>().join(", "))?;
    for (name, color) in [("--marked", palette.marked), ("--ended", palette.ended)] {
        root.style().set_property(name, &color.to_string())?;
    }
    Ok(())
}
