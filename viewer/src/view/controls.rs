//! Controls that several views have.

use std::ops::Range;

use vramscope_insight::group::{GroupBy, MemoryCategory};
use vramscope_insight::query::Query;
use vramscope_insight::sites::common_category;
use vramscope_trace::Count;
use vramscope_trace::Percent;

use crate::command::{Command, Field};
use crate::linked_memory::LinkedMemory;
use crate::ui::{Attribute, Element, Tag};

use super::options::ViewMode;
use super::table::Cell;

/// Creates a field for choosing one of `choices`, each a value and its text; `current` is the
/// chosen value, which a change of the field sets.
pub(crate) fn choice<'a>(
    label: &str,
    field: Field,
    current: &str,
    choices: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Element {
    let key = field.to_string();
    let select = select(label, field, current, choices).with(Attribute::Key, key);
    Element::new(Tag::Label).with_text(format!("{label} ")).with_child(select)
}

/// Creates a menu like [`choice`], with a label for screen readers only.
pub(crate) fn select<'a>(
    label: &str,
    field: Field,
    current: &str,
    choices: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Element {
    let option = |(value, text): (&str, &str)| {
        let option = Element::text(Tag::Option, text).with(Attribute::Value, value);
        if value == current { option.with(Attribute::Selected, "") } else { option }
    };
    Element::new(Tag::Select)
        .with(Attribute::AriaLabel, label)
        .with_command(field)
        .with_children(choices.into_iter().map(option))
}

/// Creates the field that sets the grouping of a view's rows to one of `choices`.
pub(crate) fn group_choice(view: &'static str, current: GroupBy, choices: &[GroupBy]) -> Element {
    let choices = choices.iter().map(|by| (by.name(), group_title(*by)));
    choice("by", Field::By(view.into()), current.name(), choices)
}

/// Creates the field that sets the variant of a view; `menu` has its variants with their names and
/// texts.
pub(crate) fn mode_choice<M: ViewMode>(
    label: &str,
    view: &'static str,
    current: &M,
    menu: &[(M, &'static str, &'static str)],
) -> Element {
    let choices = menu.iter().map(|(_, name, text)| (*name, *text));
    choice(label, Field::Mode(view.into()), &current.name(), choices)
}

/// Creates a field for a whole number, with `label` before it and `unit` after it. A change sets
/// the view's number.
pub(crate) fn number_field(label: &str, unit: &str, view: &'static str, value: u64) -> Element {
    let field = Element::new(Tag::Input)
        .with_class("short")
        .with(Attribute::Type, "number")
        .with(Attribute::Key, "number")
        .with(Attribute::AriaLabel, format!("{label} ({unit})"))
        .with(Attribute::Value, value.to_string())
        .with_command(Field::Number(view.into()));
    Element::new(Tag::Label).with_text(format!("{label} ")).with_child(field).with_text(format!(" {unit}"))
}

/// Creates a link to a moment, for use within a sentence: `event 1,234`.
pub(crate) fn event_link(event: u64) -> Element {
    Element::button(format!("event {}", Count(event)), Command::seek(event))
        .with_class("link")
        .with(Attribute::Title, "Go to this moment")
}

/// Returns the name of a grouping in menus.
pub(crate) const fn group_title(by: GroupBy) -> &'static str {
    match by {
        GroupBy::Stack => "call stack",
        GroupBy::Operation => "operation",
        _ => by.name(),
    }
}

/// Creates a field for a text; while it is empty, it shows `placeholder`. A change sets
/// the field's option.
pub(crate) fn search_field(key: &str, label: &str, placeholder: &str, value: &str, field: Field) -> Element {
    Element::new(Tag::Input)
        .with(Attribute::Type, "search")
        .with(Attribute::Key, key)
        .with(Attribute::AriaLabel, label)
        .with(Attribute::Placeholder, placeholder)
        .with(Attribute::Value, value)
        .with_command(field)
}

/// Creates a search field that sets the filter of the view called `view`.
pub(crate) fn filter_field(view: &'static str, filter: &str) -> Element {
    let placeholder = "filter: text, 0x7f…, >100MiB, age>10s";
    search_field("search", "Filter", placeholder, filter, Field::Filter(view.into()))
}

/// Parses the filter that the user typed.
///
/// # Errors
/// If the filter is invalid: a message, to show in place of the view's rows.
pub(crate) fn parse_filter(filter: &str) -> Result<Query, Element> {
    Query::parse(filter).map_err(|error| {
        let range = error.range();
        let part = |range: Range<usize>| filter.get(range).unwrap_or_default().to_owned();
        let position = filter.get(..range.start).map_or(1, |before| before.chars().count() + 1);
        let text =
            format!("The filter cannot be used: at character {position}, {}. Use {}.", error.reason(), error.allowed());
        let marked = Element::new(Tag::Code)
            .with_text(part(0..range.start))
            .with_child(Element::text(Tag::Span, part(range.clone())).with_class("wrong"))
            .with_text(part(range.end..filter.len()));
        Element::new(Tag::P)
            .with_class("filter-error")
            .with(Attribute::Role, "alert")
            .with_text(text)
            .with_child(marked)
    })
}

/// Creates an entry of a legend: a color sample and a name. If the entry stands for memory, the
/// name is a button that keeps it lit; `kept` is what is kept lit.
pub(crate) fn linked_item(sample: Element, name: &str, memory: Option<LinkedMemory>, kept: &[LinkedMemory]) -> Element {
    let item = Element::new(Tag::Li).with_child(sample);
    let (item, name) = match memory {
        Some(memory) => {
            let button = Element::button(name, Command::KeepLight(memory)).with_class("name plain");
            let is_kept = kept.contains(&memory).to_string();
            (item.with_light(memory), button.with(Attribute::Title, name).with(Attribute::AriaPressed, is_kept))
        }
        None => (item, Element::text(Tag::Span, name).with_class("name").with(Attribute::Title, name)),
    };
    item.with_child(name)
}

/// Returns a cell with the category of a row's memory, given its bytes by category. If there are
/// several, the page shows their shares, largest first, and scripts read `mixed`.
pub(crate) fn category_cell(bytes: &[(MemoryCategory, u64)]) -> Cell {
    if let Some(category) = common_category(bytes) {
        return category.name().into();
    }
    let total = bytes.iter().fold(0u64, |total, (_, bytes)| total.saturating_add(*bytes));
    let part = |(category, bytes): &(MemoryCategory, u64)| {
        let share = Percent::of(*bytes, total);
        // Not "100.0%" of a mix.
        let text = match share.0 {
            0.9995.. => ">99.9%".to_owned(),
            ..0.0005 => "<0.1%".to_owned(),
            _ => share.to_string(),
        };
        format!("{} {text}", category.name())
    };
    let parts: Vec<String> = bytes.iter().map(part).collect();
    Cell::labeled(format!("mixed: {}", parts.join(", ")), "mixed".into())
}

/// Returns how far a search has got, as in ` (searched 45.0%)` for the verb `searched`; empty once
/// it is complete.
pub(crate) fn progress_text(verb: &str, done: u64, total: u64) -> String {
    if done >= total { String::new() } else { format!(" ({verb} {})", Percent::of(done, total)) }
}
