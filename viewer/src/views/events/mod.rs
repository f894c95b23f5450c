//! The list of all events, or of the events that match a filter.

use std::sync::Arc;

use vramscope_insight::events::{EventListError, EventRow};
use vramscope_insight::group::{GroupBy, Grouping, pool_name};
use vramscope_insight::query::Query;
use vramscope_trace::{AllocationOrigin, Count, EventType, StreamId, site_name};

use crate::timeline::moment_text;
use crate::ui::{Attribute, Element};

use super::ViewKind;
use crate::view::caches::SharedCaches;
use crate::view::context::{Context, ViewContent, ViewOptions};
use crate::view::controls::{choice, filter_field, parse_filter, progress_text};
use crate::view::searches::{FoundEvents, Searches, uses_steps};
use crate::view::table::{Cell, Column, ColumnWidth, Row, Sorting, Table};
use crate::view::table_builder::TableBuilder;

/// Name of the view "Events" in commands and links.
const VIEW: &str = ViewKind::Events.name();
/// Maximum number of events that a search in the list of events visits in a frame, at 0.1 to 0.3 µs
/// each; it continues in the next frame.
const EVENTS_PER_FRAME: u64 = 4096;
/// The modes of the view "Events", each with a description of the listed events.
const MODES: [(&str, &str); 2] = [("range", "in the selected range"), ("all", "all events")];

/// The part of the events found by a filter that the list of events shows, and their order.
struct Listed {
    /// Position of the first one among the found events.
    first: u64,
    /// Number of events.
    count: u64,
    /// Whether the newest event comes first.
    is_descending: bool,
}

impl Listed {
    /// Returns the row (from 0) of the event at a position among the found events; for an event
    /// that is not listed, the nearest row. `None` if no event is listed.
    fn row_of(&self, position: u64) -> Option<u64> {
        let last = self.count.checked_sub(1)?;
        let row = position.saturating_sub(self.first).min(last);
        Some(if self.is_descending { last - row } else { row })
    }

    /// Returns the event numbers in the rows `first` to `first + count`, in the order of the rows.
    fn numbers(&self, found: &mut FoundEvents<'_>, first: u64, count: u64) -> Result<Vec<u64>, EventListError> {
        let first = first.min(self.count);
        let count = count.min(self.count - first);
        if !self.is_descending {
            return found.numbers(self.first + first, count);
        }
        let mut numbers = found.numbers(self.first + self.count - first - count, count)?;
        numbers.reverse();
        Ok(numbers)
    }
}

/// Returns the content of the view "Events": all events, or the events that match the filter.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut SharedCaches) -> ViewContent {
    let mode = options.mode.as_deref().unwrap_or(if context.has_range { "range" } else { "all" });
    let mut content = ViewContent::with_controls([filter_field(VIEW, &options.filter)]);
    content.controls.extend(context.has_range.then(|| choice("show", &format!("mode {VIEW}"), mode, MODES).into()));
    let reveal = Element::button("Current event", format!("reveal {VIEW}"));
    content.controls.push(reveal.with(Attribute::Title, "Scroll to the event of this moment").into());
    let query = match parse_filter(&options.filter) {
        Ok(query) => query,
        Err(error) => return content.with_element(error),
    };
    let sorting = match &options.sort {
        Some((column, is_descending)) if column == "event" => *is_descending,
        Some((column, _)) => {
            let text = format!("Events are listed by their number; they cannot be sorted by {column:?}.");
            return content.with_message(text);
        }
        None => false,
    };
    // The events of a range come after its first moment.
    let range = (context.range.0.saturating_add(1), context.range.1);
    match events_table(context, options, caches, &query, (mode == "range").then_some(range), sorting) {
        Ok((summary, table)) => {
            let nothing = if query.is_empty() { "No event was recorded here." } else { "No event matches the filter." };
            content.with_list(summary, table, nothing)
        }
        Err(EventListError::NotLoaded { missing }) => {
            caches.missing.extend(missing);
            content.with_message("Loading the events…")
        }
        Err(EventListError::Damaged(error)) => content.with_message(format!("The events cannot be read: {error}")),
    }
}

/// Returns the moments at which training steps begin if a query counts in steps; else an empty
/// list.
pub fn step_starts(context: &Context<'_>, searches: &mut Searches, query: &Query) -> Arc<[u64]> {
    if uses_steps(query) {
        searches.step_starts.get(context.recording, context.marks, context.history, context.device)
    } else {
        Arc::default()
    }
}

/// Limits `query` to events whose numbers are in a range, both ends included; `None` limits
/// nothing.
fn within(query: Query, range: Option<(u64, u64)>) -> Query {
    let Some((from, to)) = range else { return query };
    Query::parse(&format!("{} event:{from}..{to}", query.text())).unwrap_or(query)
}

/// Returns a summary of the found events, and a table of the events in view.
fn events_table(
    context: &Context<'_>,
    options: &ViewOptions,
    caches: &mut SharedCaches,
    query: &Query,
    range: Option<(u64, u64)>,
    is_descending: bool,
) -> Result<(String, Table), EventListError> {
    let recording = context.recording;
    let steps = step_starts(context, &mut caches.searches, query);
    let searched = if query.is_empty() { query.clone() } else { within(query.clone(), range) };
    let Searches { events, events_row, .. } = &mut caches.searches;
    let mut found = events.found_events(recording, &searched, steps, context.moment);
    let events_per_step = if options.limit.is_some() { u64::MAX } else { EVENTS_PER_FRAME };
    let progress = match found.step(events_per_step) {
        Ok(progress) => progress,
        Err(EventListError::NotLoaded { missing }) if options.limit.is_none() => {
            // What was found so far is shown meanwhile.
            caches.missing.extend(missing);
            found.progress()
        }
        Err(error) => return Err(error),
    };
    let is_searching = !progress.is_finished() && caches.missing.is_empty();
    if is_searching {
        found.want_all();
    }
    let listed = match range.filter(|_| query.is_empty()) {
        Some((from, to)) => {
            let (first, end) = (recording.first_event().saturating_add(1), recording.end_event());
            let (from, to) = (from.max(first), to.min(end));
            Listed { first: from - first, count: to.saturating_add(1).saturating_sub(from), is_descending }
        }
        None => Listed { first: 0, count: found.count(), is_descending },
    };
    let current = found.position_at(context.moment)?.and_then(|position| listed.row_of(position));
    let (first, count) = match options.limit {
        Some(_) => options.window(),
        None => {
            current.into_iter().for_each(|row| events_row.follow(row));
            events_row.window(options.window())
        }
    };
    let numbers = listed.numbers(&mut found, first, count)?;
    let rows = match found.rows(context.history, &numbers) {
        Ok(rows) => rows,
        Err(EventListError::NotLoaded { missing }) if options.limit.is_none() => {
            caches.missing.extend(missing);
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let scroll_to = events_row.request();
    let grouping = caches.groupings.get(GroupBy::Site, recording);
    let mut table = table_of(context, grouping, &rows);
    table.window = Some((listed.count, first.min(listed.count)));
    table.scroll_to = scroll_to;
    table.sorting = Some(Sorting { column: "event", is_descending });
    if rows.is_empty() {
        table.rows = numbers.iter().map(|&number| Row::new(vec![Cell::Count(number), "loading…".into()])).collect();
    }
    let events = Count(listed.count).of("event", "events");
    let summary = match (query.is_empty(), range) {
        (true, None) => format!("{events} in this recording"),
        (true, Some(_)) => format!("{events} in the selected range"),
        (false, _) => {
            let progress = progress_text("searched", progress.done, progress.total);
            let place = if range.is_some() { " in the selected range" } else { "" };
            format!("{events}{place}: {}{progress}", query.describe())
        }
    };
    Ok((summary, table))
}

/// Returns the cell of a stream's handle.
pub(super) fn stream_cell(stream: StreamId) -> Cell {
    Cell::labeled(stream.0.to_string(), Cell::Count(stream.0))
}

/// Returns the cell that `cell` creates for a known value; an empty cell for `None`.
pub(super) fn known<T>(value: Option<T>, cell: impl FnOnce(T) -> Cell) -> Cell {
    value.map_or(Cell::Empty, cell)
}

/// Returns the name of the site at which the block that an event frees was allocated, or why that
/// site is unknown; `None` if the event frees no known block.
fn name_of_allocation(context: &Context<'_>, grouping: &mut Grouping, row: &EventRow) -> Option<String> {
    let first_moment = row.number.saturating_sub(row.age_events?);
    let origin = AllocationOrigin { site: row.freed_site?, stream: row.stream?, pool: row.pool.unwrap_or_default() };
    let group = grouping.group_of_origin(&origin, row.size?, grouping.is_older(first_moment));
    Some(grouping.cached_name(context.definitions(), group).to_string())
}

/// Returns the name of an event's site. If the site of an allocation is unknown, the name says why.
fn name_of_site(context: &Context<'_>, grouping: &mut Grouping, row: &EventRow) -> Option<String> {
    let site = row.site?;
    if row.event_type() != Some(EventType::BlockAllocated) {
        return Some(site_name(context.definitions(), site));
    }
    let origin =
        AllocationOrigin { site, stream: row.stream.unwrap_or(StreamId(0)), pool: row.pool.unwrap_or_default() };
    let group = grouping.group_of_origin(&origin, row.size.unwrap_or(0), false);
    Some(grouping.cached_name(context.definitions(), group).to_string())
}

/// Returns the cell with an event's site; for a mark, with its text.
fn site_cell(context: &Context<'_>, grouping: &mut Grouping, row: &EventRow) -> Cell {
    let site = name_of_site(context, grouping, row);
    let allocation = name_of_allocation(context, grouping, row);
    let has_stack = row.site.is_some_and(|site| {
        let definitions = context.definitions();
        definitions.stack_definition(definitions.site(site).stack).is_some()
    });
    let text = match (&site, row.text.as_str()) {
        // A free whose stack was not recorded.
        (Some(site), "") if !has_stack && allocation.as_ref().is_some_and(|other| other != site) => {
            format!("from {}", allocation.as_deref().unwrap_or_default())
        }
        (Some(site), "") => site.clone(),
        // Marks without a call stack.
        (None, text) => text.to_owned(),
        (Some(site), text) => format!("{text} · {site}"),
    };
    Cell::labeled(text, known(site, Cell::Text))
}

/// Returns the table of events with a row for each of `rows`.
fn table_of(context: &Context<'_>, grouping: &mut Grouping, rows: &[EventRow]) -> Table {
    use ColumnWidth::{Label, Name, Narrow, Number, Wide};
    let number = |name, title| Column::number(name, title).with_width(Number);
    let name = |name, title| Column::text(name, title).with_width(Name);
    let has_devices = context.recording.devices().count() > 1;
    let time = |time_ns| Cell::labeled(moment_text(context.recording, time_ns), context.duration(time_ns));
    TableBuilder::new(VIEW, "Events", rows)
        .column(number("event", "event").sortable(), |row| Cell::Count(row.number))
        .column(Column::number("time_ns", "time").with_width(Label), |row| known(row.time_ns(), time))
        .column(name("kind", "kind"), |row| row.kind_name().into())
        .column_if(has_devices, Column::text("device", "device").with_width(Number), |row| {
            known(row.device(), |device| Cell::labeled(device.to_string(), Cell::Count(device.0.into())))
        })
        .column(number("bytes", "size"), |row| known(row.size, Cell::Bytes))
        .column(Column::text("site", "site").with_width(Wide), |row| site_cell(context, grouping, row))
        .column(Column::number("address", "address").with_width(Name), |row| known(row.address, Cell::Address))
        .column(number("age_ns", "age"), |row| known(row.age_ns, |ns| context.duration(ns)))
        .column(number("requested_bytes", "requested"), |row| known(row.requested, Cell::Bytes))
        .column(Column::number("stream", "stream").with_width(Narrow), |row| known(row.stream, stream_cell))
        .column(name("pool", "pool"), |row| known(row.pool, |pool| pool_name(pool).into()))
        .hidden("age_events", |row| known(row.age_events, Cell::Count))
        .hidden("allocation_site", |row| known(name_of_allocation(context, grouping, row), Cell::Text))
        .hidden("text", |row| known(Some(&row.text).filter(|text| !text.is_empty()), |text| text.as_str().into()))
        .rows(|event, row| row.is_selected = event.number == context.moment)
        .commands(|row| format!("seek {}", row.number))
        .build()
}
