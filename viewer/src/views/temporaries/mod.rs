//! Temporaries: allocations that are freed soon, by group.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use vramscope_insight::group::GroupBy;
use vramscope_insight::incremental::{TemporaryRows, TemporaryScan, TemporarySearch};
use vramscope_trace::{Count, Percent};

use crate::ui::{Element, Tag};
use crate::units::unbroken_size;

use crate::view::{
    Cell, Context, Options, Registered, SharedCaches, StoredOptions, Table, TableBuilder, Topic, View, ViewContent,
    ViewInfo, group_choice, group_title, number_field, paint_groups,
};

/// The view "Temporaries".
#[derive(Default)]
pub struct Temporaries {
    options: Options,
    scan: TemporaryScan,
}

impl Registered for Temporaries {
    const INFO: ViewInfo = ViewInfo {
        needs_history: true,
        is_about_events: true,
        topic: Some(Topic::Temporaries),
        ..ViewInfo::new("temporaries", "Temporaries", ("Show what is freed at once", &["t"]))
    };
}

impl View for Temporaries {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, &self.options, shared, &mut self.scan)
    }

    fn forget(&mut self) {
        self.scan = TemporaryScan::default();
    }
}

/// Name of the view in commands and links.
const VIEW: &str = Temporaries::INFO.name;

/// Default maximum number of events from the allocation of a temporary to its free.
const DEFAULT_WITHIN_EVENTS: u64 = 2;
/// Largest value that the user can set for the maximum number of events from the allocation of a
/// temporary to its free.
const MAX_WITHIN_EVENTS: u64 = 100_000;

/// Returns the content of the view "Temporaries": allocations that are freed soon, by group.
fn content(
    context: &Context<'_>,
    options: &Options,
    caches: &mut SharedCaches,
    scan: &mut TemporaryScan,
) -> ViewContent {
    let by = options.by.unwrap_or(GroupBy::Line);
    let within_events = options.number.unwrap_or(DEFAULT_WITHIN_EVENTS).clamp(1, MAX_WITHIN_EVENTS);
    let mut content = ViewContent::with_controls([
        group_choice(VIEW, by, &GroupBy::ALL),
        number_field("freed at most", "events later", VIEW, within_events),
    ]);
    let Some(source) = context.device_history() else {
        return content.with_message(context.reading_text());
    };
    let (from_event, to_event) = context.range;
    let search = TemporarySearch { from_event, to_event, within_events, by };
    let grouping = caches.groupings.get(by, context.recording);
    let rows = scan.advance(&source, search, grouping);
    caches.is_unfinished |= rows.progress < 1.0;
    let mut table = table(context, &rows, by, |group| grouping.cached_name(context.definitions(), group).to_string());
    paint_groups(&mut caches.block_groups, context, grouping, &mut table);
    content.content.push(Element::text(Tag::P, summary(context, &rows, within_events)).with_class("summary").into());
    content.with_table(table)
}

/// Returns a sentence with the number and bytes of all temporaries, and with the maximum number of
/// events that they live.
fn summary(context: &Context<'_>, rows: &TemporaryRows, within_events: u64) -> String {
    let sum = rows.groups.iter().fold((0u64, 0u64), |(count, bytes), (one, _)| {
        (count + one.allocations, bytes.saturating_add(one.churned_bytes))
    });
    let whole = if context.has_range { "the selected range" } else { "the recording" };
    let events = if within_events == 1 {
        "by the next event".to_owned()
    } else {
        format!("at most {} events later", Count(within_events))
    };
    let mut text = if sum.0 == 0 {
        format!("Nothing that was allocated in {whole} was freed {events}.")
    } else {
        format!(
            "{}, {} in all, were freed {events}: {} of the allocations and {} of the bytes allocated in {whole}.",
            Count(sum.0).of("allocation", "allocations"),
            unbroken_size(sum.1),
            Percent::of(sum.0, rows.all_allocations),
            Percent::of(sum.1, rows.all_bytes),
        )
    };
    if rows.progress < 1.0 {
        text += &format!(" Counting: {}", Percent(rows.progress));
    }
    text
}

/// Returns the table of temporaries by group; `name` returns the name of a group.
fn table(context: &Context<'_>, rows: &TemporaryRows, by: GroupBy, mut name: impl FnMut(u32) -> String) -> Table {
    TableBuilder::new(VIEW, "Temporaries by group", &rows.groups)
        .text("name", group_title(by), |(one, _)| name(one.group))
        .bar("bytes", "allocated and freed", |(one, _)| one.churned_bytes)
        .count("allocations", "count", |(one, _)| one.allocations)
        .bytes("largest_bytes", "largest", |(one, _)| one.largest_bytes)
        .number("mean_lifetime_events", "mean life in events", |(one, _)| Cell::Decimal(one.mean_lifetime_events()))
        .number("mean_lifetime_ns", "mean life", |(one, _)| context.duration(one.mean_lifetime_ns()))
        .text("category", "category", |(_, category)| category.map_or("mixed", |category| category.name()))
        .groups(context.selected_group, by, |(one, _)| one.group)
        .build()
}
