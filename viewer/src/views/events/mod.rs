//! The list of all events, or of the events that match a filter.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use vramscope_insight::events::{EventListError, EventRow, MatchSearch};
use vramscope_insight::group::{GroupBy, Grouping, pool_name};
use vramscope_insight::incremental::{EventSearch, FoundEvents};
use vramscope_insight::query::Query;
use vramscope_trace::{AllocationOrigin, Count, EventType, FormatError, StreamId, site_name};

use crate::command::{Command, Direction};
use crate::timeline::moment_text;
use crate::ui::{Attribute, Element};

use crate::view::{
    Cell, Column, ColumnWidth, Context, KeptInView, Options, Registered, Row, SharedCaches, Sorting, StoredOptions,
    Table, TableBuilder, Topic, View, ViewContent, ViewInfo, Work, cell_or_empty, filter_field, mode_choice, modes,
    parse_filter, progress_text, step_starts, stream_cell,
};

/// The view "Events".
#[derive(Default)]
pub struct Events {
    options: Options<Mode>,
    search: EventSearch,
    row: KeptInView,
}

impl Registered for Events {
    const INFO: ViewInfo = ViewInfo {
        needs_history: true,
        is_about_events: true,
        topic: Some(Topic::Events),
        is_searched: true,
        ..ViewInfo::new("events", "Events", ("List the events", &["9"]))
    };
}

impl View for Events {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, &self.options, (shared, &mut self.search, &mut self.row))
    }

    fn forget(&mut self) {
        self.search = EventSearch::default();
    }

    fn work(
        &mut self,
        context: &Context<'_>,
        _shared: &mut SharedCaches,
        max_events: u64,
    ) -> Result<Work, FormatError> {
        let (has_more, has_changed) = self.search.work(context.recording, max_events);
        Ok(Work { has_more, has_changed })
    }

    fn find_match(
        &mut self,
        context: &Context<'_>,
        shared: &mut SharedCaches,
        direction: Direction,
    ) -> Result<MatchSearch, String> {
        let query = parse_filter(&self.options.filter).map_err(|error| error.text_content())?;
        let steps = step_starts(context, &mut shared.searches, &query);
        let mut found = self.search.found_events((context.recording, context.history), &query, steps, context.moment);
        match found.neighbor(context.moment, direction.is_forward(), EVENTS_PER_STEP) {
            Err(EventListError::NotLoaded { missing }) => {
                shared.missing.extend(missing);
                Ok(MatchSearch::Unfinished)
            }
            result => result.map_err(|error| error.to_string()),
        }
    }

    fn kept_row(&mut self) -> Option<&mut KeptInView> {
        Some(&mut self.row)
    }
}

modes! {
    /// The listed events.
    Mode {
        /// Events of the selected range.
        Range = "range", "in the selected range";
        /// All events.
        All = "all", "all events";
    }
}

/// Name of the view in commands and links.
const VIEW: &str = Events::INFO.name;

/// Maximum number of events that a search in the list of events visits in a frame, at 0.1 to 0.3 µs
/// each; it continues in the next frame.
const EVENTS_PER_FRAME: u64 = 4096;

/// Number of events that a search for the next match visits in one step, at about 50 ns each.
const EVENTS_PER_STEP: u64 = 65_536;

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

/// The shared results, the search of the list, and the row that it keeps in view.
type Caches<'a> = (&'a mut SharedCaches, &'a mut EventSearch, &'a mut KeptInView);

/// Returns the content of the view "Events": all events, or the events that match the filter.
fn content(context: &Context<'_>, options: &Options<Mode>, caches: Caches<'_>) -> ViewContent {
    let (shared, search, row) = caches;
    let mode = options.mode.unwrap_or(if context.has_range { Mode::Range } else { Mode::All });
    let mut content = ViewContent::with_controls([filter_field(VIEW, &options.filter)]);
    content.controls.extend(context.has_range.then(|| mode_choice("show", VIEW, &mode, Mode::MENU).into()));
    let reveal = Element::button("Current event", Command::Reveal(Some(VIEW.into())));
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
    match events_table(context, options, (shared, search, row), &query, (mode == Mode::Range).then_some(range), sorting)
    {
        Ok((summary, table)) => {
            let nothing = if query.is_empty() { "No event was recorded here." } else { "No event matches the filter." };
            content.with_list(summary, table, nothing)
        }
        Err(EventListError::NotLoaded { missing }) => {
            shared.missing.extend(missing);
            content.with_message("Loading the events…")
        }
        Err(EventListError::Damaged(error)) => content.with_message(format!("The events cannot be read: {error}")),
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
    options: &Options<Mode>,
    (shared, search, kept_row): Caches<'_>,
    query: &Query,
    range: Option<(u64, u64)>,
    is_descending: bool,
) -> Result<(String, Table), EventListError> {
    let recording = context.recording;
    let steps = step_starts(context, &mut shared.searches, query);
    let searched = if query.is_empty() { query.clone() } else { within(query.clone(), range) };
    let mut found = search.found_events((recording, context.history), &searched, steps, context.moment);
    let events_per_step = if options.rows.limit.is_some() { u64::MAX } else { EVENTS_PER_FRAME };
    let progress = match found.step(events_per_step) {
        Ok(progress) => progress,
        Err(EventListError::NotLoaded { missing }) if options.rows.limit.is_none() => {
            // What was found so far is shown meanwhile.
            shared.missing.extend(missing);
            found.progress()
        }
        Err(error) => return Err(error),
    };
    let is_searching = !progress.is_finished() && shared.missing.is_empty();
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
    let (first, count) = match options.rows.limit {
        Some(_) => options.rows.window(),
        None => {
            current.into_iter().for_each(|row| kept_row.follow(row));
            kept_row.window(options.rows.window())
        }
    };
    let numbers = listed.numbers(&mut found, first, count)?;
    let rows = match found.rows(context.history, &numbers) {
        Ok(rows) => rows,
        Err(EventListError::NotLoaded { missing }) if options.rows.limit.is_none() => {
            shared.missing.extend(missing);
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let scroll_to = kept_row.request();
    let grouping = shared.groupings.get(GroupBy::Site, recording);
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
    Cell::labeled(text, cell_or_empty(site, Cell::Text))
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
        .column(Column::number("time_ns", "time").with_width(Label), |row| cell_or_empty(row.time_ns(), time))
        .column(name("kind", "kind"), |row| row.kind_name().into())
        .column_if(has_devices, Column::text("device", "device").with_width(Number), |row| {
            cell_or_empty(row.device(), |device| Cell::labeled(device.to_string(), Cell::Count(device.0.into())))
        })
        .column(number("bytes", "size"), |row| cell_or_empty(row.size, Cell::Bytes))
        .column(Column::text("site", "site").with_width(Wide), |row| site_cell(context, grouping, row))
        .column(Column::number("address", "address").with_width(Name), |row| cell_or_empty(row.address, Cell::Address))
        .column(number("age_ns", "age"), |row| cell_or_empty(row.age_ns, |ns| context.duration(ns)))
        .column(number("requested_bytes", "requested"), |row| cell_or_empty(row.requested, Cell::Bytes))
        .column(Column::number("stream", "stream").with_width(Narrow), |row| cell_or_empty(row.stream, stream_cell))
        .column(name("pool", "pool"), |row| cell_or_empty(row.pool, |pool| pool_name(pool).into()))
        .hidden("age_events", |row| cell_or_empty(row.age_events, Cell::Count))
        .hidden("allocation_site", |row| cell_or_empty(name_of_allocation(context, grouping, row), Cell::Text))
        .hidden("text", |row| {
            cell_or_empty(Some(&row.text).filter(|text| !text.is_empty()), |text| text.as_str().into())
        })
        .rows(|event, row| row.is_selected = event.number == context.moment)
        .commands(|row| Command::seek(row.number))
        .build()
}
