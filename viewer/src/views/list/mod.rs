//! The list of allocations: live, made in the selected range, or all.

use vramscope_insight::allocations::{AllocationOrder, AllocationSource, ListedAllocation, Scope, SortKey};
use vramscope_insight::group::{GroupBy, Grouping, pool_name};
use vramscope_insight::query::{Condition, Query};
use vramscope_trace::{Allocation, ByteSize, Count};

use super::ViewKind;
use super::events::{known, step_starts, stream_cell};
use crate::view::caches::SharedCaches;
use crate::view::context::{Context, Groupings, ViewContent, ViewOptions};
use crate::view::controls::{choice, filter_field, parse_filter, progress_text};
use crate::view::searches::{AllocationRequest, Searches, ShownFilter};
use crate::view::table::{Cell, Column, ColumnWidth, Sorting, Table};
use crate::view::table_builder::{TableBuilder, group_cell};

/// Name of the view "List of allocations" in commands and links.
const VIEW: &str = ViewKind::List.name();
/// Maximum number of allocations that a search of the list visits in one frame, at about 25 ns
/// each.
pub(super) const ROWS_PER_FRAME: u64 = 131_072;
/// The modes of the view "List of allocations", each with a description of the listed allocations.
const MODES: [(&str, &str); 3] = [("live", "live now"), ("range", "made in the range"), ("all", "all")];
/// The columns by which the list of allocations can be sorted, with their sort keys.
const SORT_COLUMNS: [(&str, SortKey); 8] = [
    ("bytes", SortKey::Size),
    ("requested_bytes", SortKey::Requested),
    ("address", SortKey::Address),
    ("allocated_at", SortKey::Start),
    ("freed_at", SortKey::End),
    ("lifetime_ns", SortKey::Lifetime),
    ("age_ns", SortKey::Age),
    ("site", SortKey::Site),
];

/// Returns the order of the list of allocations for a column's name or a sort key's name; `None`
/// for another name.
fn order_of(column: &str, is_descending: bool) -> Option<AllocationOrder> {
    let known = SORT_COLUMNS.iter().find(|(name, key)| *name == column || key.name() == column);
    known.map(|&(_, key)| AllocationOrder { key, is_descending })
}

/// Returns true if the allocations that match a query depend on the moment on the screen.
fn depends_on_moment(query: &Query) -> bool {
    query.terms().iter().any(|term| matches!(term.condition, Condition::Age(_) | Condition::Use(_)))
}

/// Returns the filter that the user has typed in a list, prepared for the recording; `None` if none
/// is typed, or it is invalid.
pub fn shown_filter(context: &Context<'_>, options: &ViewOptions, caches: &mut SharedCaches) -> Option<ShownFilter> {
    let query = options.query().ok().filter(|query| !query.is_empty())?;
    let steps = step_starts(context, &mut caches.searches, &query);
    let matcher = caches.searches.matchers.get(context.recording, &query, &steps);
    let moment = if depends_on_moment(&query) { context.moment } else { 0 };
    Some(ShownFilter::new(matcher, query.text(), moment))
}

/// Returns the content of the view "List of allocations": live ones, those made in the selected
/// range, or all.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut SharedCaches) -> ViewContent {
    let mode = options.mode.as_deref().unwrap_or(if context.has_range { "range" } else { "live" });
    let content = ViewContent::with_controls([
        choice("show", &format!("mode {VIEW}"), mode, MODES),
        filter_field(VIEW, &options.filter),
    ]);
    let query = match parse_filter(&options.filter) {
        Ok(query) => query,
        Err(error) => return content.with_element(error),
    };
    let order = match &options.sort {
        None => Ok(AllocationOrder::default()),
        Some((column, is_descending)) => order_of(column, *is_descending).ok_or(column),
    };
    let order = match order {
        Ok(order) => order,
        Err(column) => {
            let names = SORT_COLUMNS.map(|(name, _)| name).join(", ");
            let text = format!("Allocations cannot be sorted by {column:?}. Use one of {names}.");
            return content.with_message(text);
        }
    };
    // What happened in a range came after its first moment.
    let (from, to) = (context.range.0.saturating_add(1), context.range.1);
    let (scope, which) = match mode {
        "range" if context.has_range => (Scope::MadeIn { from, to }, "made in the selected range"),
        "range" => (Scope::MadeIn { from, to }, "made in this recording"),
        "all" => (Scope::All, "in this recording"),
        _ => (Scope::Live, "live at this moment"),
    };
    if scope == Scope::Live && context.history.until() < context.moment {
        return content.with_message("Reading the recording…");
    }
    let (summary, table) = allocations_table(context, options, caches, &query, scope, order, which);
    let nothing = match scope {
        _ if caches.is_unfinished => "Searching…",
        Scope::Live if !query.is_empty() => {
            "No live allocation matches the filter. Show “all” to search the whole recording."
        }
        _ if !query.is_empty() => "No allocation matches the filter.",
        Scope::Live => "No allocation is live at this moment.",
        _ => "No allocation was recorded here.",
    };
    content.with_list(summary, table, nothing)
}

/// Returns a summary of the found allocations, and a table of the allocations in view; `scope`
/// selects the allocations that are searched, and `which` describes it in the summary.
fn allocations_table(
    context: &Context<'_>,
    options: &ViewOptions,
    caches: &mut SharedCaches,
    query: &Query,
    scope: Scope,
    order: AllocationOrder,
    which: &str,
) -> (String, Table) {
    let steps = step_starts(context, &mut caches.searches, query);
    let is_of_moment = scope == Scope::Live || order.key == SortKey::Age || depends_on_moment(query);
    let request = AllocationRequest {
        steps: steps.len(),
        moment: is_of_moment.then_some(context.moment),
        ..AllocationRequest::new(context, query, scope, order)
    };
    let Searches { allocations, allocations_row, .. } = &mut caches.searches;
    let source = AllocationSource { history: context.history, definitions: context.definitions() };
    let matcher = || query.compile(context.recording, &steps);
    let mut found = allocations.advance(&request, context.moment, matcher, source, ROWS_PER_FRAME);
    caches.is_unfinished |= !found.is_current();
    let (first, count) = match options.limit {
        Some(_) => options.window(),
        None => allocations_row.window(options.window()),
    };
    // Scripts wait for the requested list.
    let rows = if options.limit.is_none() || found.is_current() { found.rows(first, count) } else { Vec::new() };
    let total = found.count().unwrap_or(0);
    let scroll_to = allocations_row.request();
    let (bytes, pending_bytes) = found.bytes();
    let mut summary = format!("{} {which}, {}", Count(total).of("allocation", "allocations"), ByteSize(bytes));
    if scope == Scope::Live && pending_bytes > 0 {
        summary += &format!(", of which {} are pending free", ByteSize(pending_bytes));
    }
    if !query.is_empty() {
        summary += &format!(": {}", query.describe());
    }
    summary += &progress_text("searched", found.progress.done, found.progress.total);
    if !context.is_history_complete {
        let until = context.history.until().saturating_sub(context.recording.first_event());
        summary += &progress_text("read", until, context.recording.events().max(until + 1));
    }
    let grouping = site_grouping(&mut caches.groupings, context);
    let table = table_of((VIEW, which), context, grouping, &rows, order);
    (summary, Table { window: Some((total, first.min(total))), scroll_to, ..table })
}

/// Returns a summary of the allocations that are live at the moment, and a table of the allocations
/// in view, for another view: the largest first, unless the user has chosen another order.
pub(super) fn live(
    view: &'static str,
    context: &Context<'_>,
    options: &ViewOptions,
    caches: &mut SharedCaches,
) -> (String, Table) {
    let chosen = options.sort.as_ref().and_then(|(column, is_descending)| order_of(column, *is_descending));
    let order = chosen.unwrap_or_default();
    let query = Query::default();
    let request = AllocationRequest {
        moment: Some(context.moment),
        ..AllocationRequest::new(context, &query, Scope::Live, order)
    };
    let source = AllocationSource { history: context.history, definitions: context.definitions() };
    let matcher = || query.compile(context.recording, &[]);
    let mut found = caches.searches.live.advance(&request, context.moment, matcher, source, ROWS_PER_FRAME);
    caches.is_unfinished |= !found.is_current();
    let (first, count) = options.window();
    let (rows, total) = (found.rows(first, count), found.count().unwrap_or(0));
    let which = "live at this moment";
    let summary = format!("{} {which}, {}", Count(total).of("allocation", "allocations"), ByteSize(found.bytes().0));
    let grouping = site_grouping(&mut caches.groupings, context);
    let table = table_of((view, which), context, grouping, &rows, order);
    (summary, Table { window: Some((total, first.min(total))), ..table })
}

/// Returns the grouping of blocks by site, which has the names and categories of sites.
pub(super) fn site_grouping<'a>(groupings: &'a mut Groupings, context: &Context<'_>) -> &'a mut Grouping {
    groupings.get(GroupBy::Site, context.recording)
}

/// Returns the name of an allocation's state at a moment, such as `allocated`.
fn state_at(one: &Allocation, moment: u64) -> &'static str {
    if one.is_allocated_at(moment) {
        "allocated"
    } else if one.is_active_at(moment) {
        "pending"
    } else if one.first_moment > moment {
        "later"
    } else {
        "freed"
    }
}

/// Returns true if an allocation is the selected one.
pub(super) fn is_selected(context: &Context<'_>, one: &Allocation) -> bool {
    context.selection == Some((one.address, Some(one.first_moment)))
}

/// Returns the command that selects an allocation.
pub(super) fn select_command(one: &Allocation) -> String {
    format!("select-allocation {:#x} {}", one.address, one.first_moment)
}

/// Returns the cell of an allocation's category: the page shows its short name, and under the
/// pointer how the category is known.
pub(super) fn category_cell(grouping: &mut Grouping, one: &Allocation) -> Cell {
    let category = grouping.category_of_allocation(one);
    Cell::labeled(category.category.name(), category.name().into())
}

/// Returns the table of these allocations for the view called `view`; `which` describes them in its
/// caption.
fn table_of(
    (view, which): (&'static str, &str),
    context: &Context<'_>,
    grouping: &mut Grouping,
    rows: &[ListedAllocation],
    order: AllocationOrder,
) -> Table {
    use ColumnWidth::{Label, Name, Narrow, Number, Wide};
    let number = |name, title| Column::number(name, title).sortable().with_width(Number);
    // The list may have been made at another moment, if it does not depend on it.
    let is_made = |one: &Allocation| one.first_moment <= context.moment;
    let age_until = |one: &Allocation| one.allocated_until.map_or(context.moment, |until| until.min(context.moment));
    let events = |one: &Allocation, until: u64| Cell::Count(until.saturating_sub(one.first_moment));
    let mut table = TableBuilder::new(view, format!("Allocations {which}"), rows)
        .column(number("bytes", "size"), |row| Cell::Bytes(row.allocation.size))
        .column(Column::text("site", "site").sortable().with_width(Wide), |row| {
            let group = grouping.group_of_allocation(&row.allocation);
            group_cell(context, grouping, group)
        })
        .column(number("age_ns", "age"), |row| {
            let until_ns = context.history.time_ns(age_until(&row.allocation));
            known(is_made(&row.allocation).then(|| until_ns.saturating_sub(row.start_ns)), |ns| context.duration(ns))
        })
        .column(Column::text("category", "category").with_width(Label), |row| category_cell(grouping, &row.allocation))
        .column(number("lifetime_ns", "lifetime"), |row| known(row.lifetime_ns, |ns| context.duration(ns)))
        .column(number("allocated_at", "allocated at"), |row| Cell::Event(row.allocation.first_moment))
        .column(number("freed_at", "freed at"), |row| known(row.allocation.allocated_until, Cell::Event))
        .column(Column::number("address", "address").sortable().with_width(Name), |row| {
            Cell::Address(row.allocation.address)
        })
        .column(number("requested_bytes", "requested"), |row| Cell::Bytes(row.allocation.requested))
        .column(Column::number("stream", "stream").with_width(Narrow), |row| stream_cell(row.allocation.stream))
        .hidden("state", |row| state_at(&row.allocation, context.moment).into())
        .hidden("free_completed_at", |row| known(row.allocation.active_until, Cell::Event))
        .hidden("age_events", |ListedAllocation { allocation: one, .. }| {
            known(is_made(one).then(|| age_until(one)), |until| events(one, until))
        })
        .hidden("lifetime_events", |ListedAllocation { allocation: one, .. }| {
            known(one.allocated_until, |until| events(one, until))
        })
        .hidden("start_observed", |row| Cell::Flag(row.allocation.start_observed))
        .hidden("pool", |row| pool_name(row.allocation.pool).into())
        .hidden("device", |_| Cell::Count(context.device.0.into()))
        .rows(|one, row| row.is_selected = is_selected(context, &one.allocation))
        .commands(|row| select_command(&row.allocation))
        .build();
    let sorted = SORT_COLUMNS.iter().find(|(_, key)| *key == order.key);
    table.sorting = sorted.map(|&(column, _)| Sorting { column, is_descending: order.is_descending });
    table
}
