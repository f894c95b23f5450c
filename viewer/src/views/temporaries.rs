//! Temporaries: allocations that are freed soon, by group.

use vramscope_insight::group::GroupBy;
use vramscope_trace::{Count, Percent};

use crate::ui::{Element, Tag};
use crate::units::unbroken_size;

use super::ViewKind;
use super::caches::Caches;
use super::computed::{TemporaryRows, TemporarySearch};
use super::context::{Context, ViewContent, ViewOptions};
use super::controls::{group_choice, group_title, number_field};
use super::groups::paint_groups;
use super::table::{Cell, Column, Row, Table};

/// Maximum number of events from an allocation to its free, unless the user says otherwise.
const DEFAULT_WITHIN_EVENTS: u64 = 2;
/// Maximum number of events from an allocation to its free that the user can choose.
const MAX_WITHIN_EVENTS: u64 = 100_000;

/// Returns the content of the view.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut Caches) -> ViewContent {
    const VIEW: &str = ViewKind::Temporaries.name();
    let by = options.by.unwrap_or(GroupBy::Line);
    let within_events = options.number.unwrap_or(DEFAULT_WITHIN_EVENTS).clamp(1, MAX_WITHIN_EVENTS);
    let mut content = ViewContent {
        controls: vec![
            group_choice(VIEW, by, &GroupBy::ALL).into(),
            number_field("freed at most", "events later", VIEW, within_events).into(),
        ],
        ..ViewContent::default()
    };
    let Some(source) = context.device_history() else {
        content.content = ViewContent::reading(context).content;
        return content;
    };
    let (from_event, to_event) = context.range;
    let search = TemporarySearch { from_event, to_event, within_events, by };
    let grouping = caches.groupings.get(by, context.recording);
    let rows = caches.temporaries.advance(&source, search, grouping);
    caches.is_unfinished |= rows.progress < 1.0;
    let mut table = table(context, &rows, by, |group| grouping.cached_name(context.definitions(), group).to_string());
    paint_groups(&mut caches.block_groups, context, grouping, &mut table);
    content.content.push(Element::text(Tag::P, summary(context, &rows, within_events)).with_class("summary").into());
    content.with_table(table)
}

/// Returns a sentence on the sum of the rows and on the limit of their lifetimes.
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

/// Returns the temporaries by group; `name` returns a group's name.
fn table(context: &Context<'_>, rows: &TemporaryRows, by: GroupBy, mut name: impl FnMut(u32) -> String) -> Table {
    let mut table = Table::new(
        ViewKind::Temporaries.name(),
        "Temporaries by group",
        vec![
            Column::text("name", group_title(by)),
            Column::bar("bytes", "allocated and freed"),
            Column::number("allocations", "count"),
            Column::number("largest_bytes", "largest"),
            Column::number("mean_lifetime_events", "mean life in events"),
            Column::number("mean_lifetime_ns", "mean life"),
            Column::text("category", "category"),
        ],
    );
    let largest = rows.groups.first().map_or(1, |(first, _)| first.churned_bytes.max(1));
    table.rows.extend(rows.groups.iter().map(|(one, category)| {
        Row::new(vec![
            name(one.group).into(),
            Cell::Bytes(one.churned_bytes),
            Cell::Count(one.allocations),
            Cell::Bytes(one.largest_bytes),
            Cell::Decimal(one.mean_lifetime_events()),
            Cell::Duration(one.mean_lifetime_ns()),
            category.map_or("mixed", |category| category.name()).into(),
        ])
        .with_share(one.churned_bytes as f64 / largest as f64)
        .with_group(context.selected_group, by, one.group)
    }));
    table
}
