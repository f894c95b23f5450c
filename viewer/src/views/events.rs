//! The list of all events, or of the events that match a filter.

use std::sync::Arc;

use vramscope_insight::events::{EventListError, EventRow};
use vramscope_insight::group::{GroupBy, Grouping, pool_name};
use vramscope_insight::query::Query;
use vramscope_trace::{AllocationOrigin, Count, EventType, StreamId, site_name};

use crate::timeline::moment_text;
use crate::ui::{Attribute, Element};

use super::ViewKind;
use super::caches::Caches;
use super::context::{Context, ViewContent, ViewOptions};
use super::controls::{choice, filter_field, parse_filter, progress_text};
use super::searches::{FoundEvents, Searches, uses_steps};
use super::table::{Cell, Column, ColumnWidth, Row, Sorting, Table};

/// Name of the view.
const VIEW: &str = ViewKind::Events.name();
/// Number of events that a search visits in a frame, at 0.1 to 0.3 µs each; it goes on between
/// frames.
const EVENTS_PER_FRAME: u64 = 4096;
/// The modes of the view, each with a description of the listed events.
const MODES: [(&str, &str); 2] = [("range", "in the selected range"), ("all", "all events")];

/// The part of the found events that the view lists, and their order.
struct Listed {
    /// Position of the first one among the found events.
    first: u64,
    /// Number of events.
    count: u64,
    /// Whether the newest event comes first.
    is_descending: bool,
}

impl Listed {
    /// Returns the row (from 0) of the event at a position among the found ones, or of the nearest;
    /// `None` if no event is listed.
    fn row_of(&self, position: u64) -> Option<u64> {
        let last = self.count.checked_sub(1)?;
        let row = position.saturating_sub(self.first).min(last);
        Some(if self.is_descending { last - row } else { row })
    }

    /// Returns the numbers of the events in the rows `first` to `first + count`, in their order.
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

/// Returns the content of the view.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut Caches) -> ViewContent {
    let mode = options.mode.as_deref().unwrap_or(if context.has_range { "range" } else { "all" });
    let mut content = ViewContent { controls: vec![filter_field(VIEW, &options.filter).into()], ..Default::default() };
    if context.has_range {
        content.controls.push(choice("show", &format!("mode {VIEW}"), mode, MODES).into());
    }
    let reveal = Element::button("Current event", format!("reveal {VIEW}"));
    content.controls.push(reveal.with(Attribute::Title, "Scroll to the event of this moment").into());
    let query = match parse_filter(&options.filter) {
        Ok(query) => query,
        Err(error) => {
            content.content.push(error.into());
            return content;
        }
    };
    let sorting = match &options.sort {
        Some((column, is_descending)) if column == "event" => *is_descending,
        Some((column, _)) => {
            let text = format!("Events are listed by their number; they cannot be sorted by {column:?}.");
            content.content.extend(ViewContent::message(text).content);
            return content;
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
            content.content.extend(ViewContent::message("Loading the events…").content);
            content
        }
        Err(EventListError::Damaged(error)) => {
            content.content.extend(ViewContent::message(format!("The events cannot be read: {error}")).content);
            content
        }
    }
}

/// Returns the moments at which steps begin, if a query needs them.
pub(super) fn step_starts(context: &Context<'_>, searches: &mut Searches, query: &Query) -> Arc<[u64]> {
    if uses_steps(query) {
        searches.step_starts.get(context.recording, context.marks, context.history, context.device)
    } else {
        Arc::default()
    }
}

/// Returns the query for the events of `query` whose numbers are in a range, both ends included.
fn within(query: Query, range: Option<(u64, u64)>) -> Query {
    let Some((from, to)) = range else { return query };
    Query::parse(&format!("{} event:{from}..{to}", query.text())).unwrap_or(query)
}

/// Returns a summary of the found events, and a table of the events in view.
fn events_table(
    context: &Context<'_>,
    options: &ViewOptions,
    caches: &mut Caches,
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
    let mut table = Table::new(VIEW, "Events", columns(context));
    table.window = Some((listed.count, first.min(listed.count)));
    table.scroll_to = events_row.request();
    table.sorting = Some(Sorting { column: "event", is_descending });
    table.rows = if rows.is_empty() {
        numbers.iter().map(|&number| Row::new(vec![Cell::Count(number), "loading…".into()])).collect()
    } else {
        let grouping = caches.groupings.get(GroupBy::Site, recording);
        rows.iter().map(|row| event_row(context, grouping, row)).collect()
    };
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

/// Returns true if the list shows the device of each event.
fn shows_devices(context: &Context<'_>) -> bool {
    context.recording.devices().count() > 1
}

/// Returns the columns of the list.
fn columns(context: &Context<'_>) -> Vec<Column> {
    use ColumnWidth::{Label, Name, Narrow, Number, Wide};
    let mut columns = vec![
        Column::number("event", "event").sortable().with_width(Number),
        Column::number("time_ns", "time").with_width(Label),
        Column::text("kind", "kind").with_width(Name),
    ];
    if shows_devices(context) {
        columns.push(Column::text("device", "device").with_width(Number));
    }
    columns.extend([
        Column::number("bytes", "size").with_width(Number),
        Column::text("site", "site").with_width(Wide),
        Column::number("address", "address").with_width(Name),
        Column::number("age_ns", "age").with_width(Number),
        Column::number("requested_bytes", "requested").with_width(Number),
        Column::number("stream", "stream").with_width(Narrow),
        Column::text("pool", "pool").with_width(Name),
    ]);
    columns
}

/// Returns the cell of a stream's handle.
pub(super) fn stream_cell(stream: StreamId) -> Cell {
    Cell::labeled(stream.0.to_string(), Cell::Count(stream.0))
}

/// Returns a cell, or an empty one if the value is unknown.
pub(super) fn known<T>(value: Option<T>, cell: impl FnOnce(T) -> Cell) -> Cell {
    value.map_or(Cell::Empty, cell)
}

/// Returns the name of the site where the block that an event frees was allocated, which says why
/// it is unknown; `None` if the event frees no known block.
fn name_of_allocation(context: &Context<'_>, grouping: &mut Grouping, row: &EventRow) -> Option<String> {
    let first_moment = row.number.saturating_sub(row.age_events?);
    let origin = AllocationOrigin { site: row.freed_site?, stream: row.stream?, pool: row.pool.unwrap_or_default() };
    let group = grouping.group_of_origin(&origin, row.size?, grouping.is_older(first_moment));
    Some(grouping.cached_name(context.definitions(), group).to_string())
}

/// Returns the name of an event's site; that of an allocation is the name of its group, which says
/// why a site is unknown.
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

/// Returns the row of an event.
fn event_row(context: &Context<'_>, grouping: &mut Grouping, row: &EventRow) -> Row {
    let recording = context.recording;
    let site = name_of_site(context, grouping, row);
    let allocation = name_of_allocation(context, grouping, row);
    let has_stack = row.site.is_some_and(|site| {
        let definitions = recording.definitions();
        definitions.stack_definition(definitions.site(site).stack).is_some()
    });
    let site_text = match (&site, row.text.as_str()) {
        // A free whose stack was not recorded.
        (Some(site), "") if !has_stack && allocation.as_ref().is_some_and(|other| other != site) => {
            format!("from {}", allocation.as_deref().unwrap_or_default())
        }
        (Some(site), "") => site.clone(),
        // Marks without a call stack.
        (None, text) => text.to_owned(),
        (Some(site), text) => format!("{text} · {site}"),
    };
    let time = |time_ns| Cell::labeled(moment_text(recording, time_ns), Cell::Duration(time_ns));
    let device = row.device().map_or(Cell::Empty, |device| {
        let label = device.to_string();
        Cell::labeled(label, Cell::Count(u64::from(device.0)))
    });
    let mut cells = vec![Cell::Count(row.number), known(row.time_ns(), time), row.kind_name().into()];
    let mut hidden = vec![
        ("age_events", known(row.age_events, Cell::Count)),
        ("allocation_site", known(allocation, Cell::Text)),
        ("text", if row.text.is_empty() { Cell::Empty } else { row.text.as_str().into() }),
    ];
    if shows_devices(context) {
        cells.push(device);
    } else {
        hidden.push(("device", device));
    }
    cells.extend([
        known(row.size, Cell::Bytes),
        Cell::labeled(site_text, known(site, Cell::Text)),
        known(row.address, Cell::Address),
        known(row.age_ns, Cell::Duration),
        known(row.requested, Cell::Bytes),
        known(row.stream, stream_cell),
        known(row.pool, |pool| pool_name(pool).into()),
    ]);
    Row {
        is_selected: row.number == context.moment,
        hidden,
        ..Row::new(cells).with_command(format!("seek {}", row.number))
    }
}
