//! The list of allocations: live, made in the selected range, or all.

use vramscope_insight::allocations::{AllocationOrder, AllocationSource, ListedAllocation, Scope, SortKey};
use vramscope_insight::group::{GroupBy, Grouping, pool_name};
use vramscope_insight::query::{Condition, Query};
use vramscope_trace::{Allocation, ByteSize, Count};

use super::ViewKind;
use super::caches::Caches;
use super::context::{Context, Groupings, ViewContent, ViewOptions};
use super::controls::{choice, filter_field, parse_filter, progress_text};
use super::events::{known, step_starts, stream_cell};
use super::searches::{AllocationRequest, Searches, ShownFilter};
use super::table::{Cell, Column, ColumnWidth, Row, Sorting, Table};

/// Name of the view.
const VIEW: &str = ViewKind::List.name();
/// Number of allocations that a search visits in one frame, at about 25 ns each.
pub(super) const ROWS_PER_FRAME: u64 = 131_072;
/// The modes of the view, each with a description of the listed allocations.
const MODES: [(&str, &str); 3] = [("live", "live now"), ("range", "made in the range"), ("all", "all")];
/// The columns by which the list is sorted, with the sort key of each.
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

/// Returns the order for a column, or for the name of a sort key.
fn order_of(column: &str, is_descending: bool) -> Option<AllocationOrder> {
    let known = SORT_COLUMNS.iter().find(|(name, key)| *name == column || key.name() == column);
    known.map(|&(_, key)| AllocationOrder { key, is_descending })
}

/// Returns true if the allocations that match a query depend on the moment.
fn depends_on_moment(query: &Query) -> bool {
    query.terms().iter().any(|term| matches!(term.condition, Condition::Age(_) | Condition::Use(_)))
}

/// Returns the filter of a list, prepared for the recording; `None` if none is typed, or it is
/// invalid.
pub fn shown_filter(context: &Context<'_>, options: &ViewOptions, caches: &mut Caches) -> Option<ShownFilter> {
    let query = options.query().ok().filter(|query| !query.is_empty())?;
    let steps = step_starts(context, &mut caches.searches, &query);
    let matcher = caches.searches.matchers.get(context.recording, &query, &steps);
    let moment = if depends_on_moment(&query) { context.moment } else { 0 };
    Some(ShownFilter::new(matcher, query.text(), moment))
}

/// Returns the content of the view.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut Caches) -> ViewContent {
    let mode = options.mode.as_deref().unwrap_or(if context.has_range { "range" } else { "live" });
    let mut content = ViewContent {
        controls: vec![
            choice("show", &format!("mode {VIEW}"), mode, MODES).into(),
            filter_field(VIEW, &options.filter).into(),
        ],
        ..ViewContent::default()
    };
    let query = match parse_filter(&options.filter) {
        Ok(query) => query,
        Err(error) => {
            content.content.push(error.into());
            return content;
        }
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
            content.content.extend(ViewContent::message(text).content);
            return content;
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
        content.content.extend(ViewContent::message("Reading the recording…").content);
        return content;
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

/// Returns a summary of the found allocations, and a table of the allocations in view; `which`
/// describes the scope.
fn allocations_table(
    context: &Context<'_>,
    options: &ViewOptions,
    caches: &mut Caches,
    query: &Query,
    scope: Scope,
    order: AllocationOrder,
    which: &str,
) -> (String, Table) {
    let steps = step_starts(context, &mut caches.searches, query);
    let is_of_moment = scope == Scope::Live || order.key == SortKey::Age || depends_on_moment(query);
    let request = AllocationRequest {
        device: context.device,
        filter: query.text().to_owned(),
        scope,
        order,
        steps: steps.len(),
        moment: is_of_moment.then_some(context.moment),
        until: context.history.until(),
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
    let mut table = table_of(VIEW, which, order, (total, first));
    table.scroll_to = allocations_row.request();
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
    table.rows = rows.iter().map(|one| allocation_row(context, grouping, one)).collect();
    (summary, table)
}

/// Returns a table without rows of the allocations that `which` describes, in `view`. The last
/// argument is the number of all rows and of the first one in view.
fn table_of(view: &'static str, which: &str, order: AllocationOrder, (total, first): (u64, u64)) -> Table {
    let mut table = Table::new(view, format!("Allocations {which}"), columns());
    table.window = Some((total, first.min(total)));
    let sorted = SORT_COLUMNS.iter().find(|(_, key)| *key == order.key);
    table.sorting = sorted.map(|&(column, _)| Sorting { column, is_descending: order.is_descending });
    table
}

/// Returns a summary of the allocations that are live at the moment, and a table of the allocations
/// in view, for another view: the largest first, unless the user has chosen another order.
pub(super) fn live(
    view: &'static str,
    context: &Context<'_>,
    options: &ViewOptions,
    caches: &mut Caches,
) -> (String, Table) {
    let chosen = options.sort.as_ref().and_then(|(column, is_descending)| order_of(column, *is_descending));
    let order = chosen.unwrap_or_default();
    let query = Query::default();
    let request = AllocationRequest {
        device: context.device,
        filter: String::new(),
        scope: Scope::Live,
        order,
        steps: 0,
        moment: Some(context.moment),
        until: context.history.until(),
    };
    let source = AllocationSource { history: context.history, definitions: context.definitions() };
    let matcher = || query.compile(context.recording, &[]);
    let mut found = caches.searches.live.advance(&request, context.moment, matcher, source, ROWS_PER_FRAME);
    caches.is_unfinished |= !found.is_current();
    let (first, count) = options.window();
    let (rows, total) = (found.rows(first, count), found.count().unwrap_or(0));
    let which = "live at this moment";
    let mut table = table_of(view, which, order, (total, first));
    let summary = format!("{} {which}, {}", Count(total).of("allocation", "allocations"), ByteSize(found.bytes().0));
    let grouping = site_grouping(&mut caches.groupings, context);
    table.rows = rows.iter().map(|one| allocation_row(context, grouping, one)).collect();
    (summary, table)
}

/// Returns the grouping that names sites and their categories.
pub(super) fn site_grouping<'a>(groupings: &'a mut Groupings, context: &Context<'_>) -> &'a mut Grouping {
    groupings.get(GroupBy::Site, context.recording)
}

/// Returns the columns of the list.
fn columns() -> Vec<Column> {
    use ColumnWidth::{Label, Name, Narrow, Number, Wide};
    vec![
        Column::number("bytes", "size").sortable().with_width(Number),
        Column::text("site", "site").sortable().with_width(Wide),
        Column::number("age_ns", "age").sortable().with_width(Number),
        Column::text("category", "category").with_width(Label),
        Column::number("lifetime_ns", "lifetime").sortable().with_width(Number),
        Column::number("allocated_at", "allocated at").sortable().with_width(Number),
        Column::number("freed_at", "freed at").sortable().with_width(Number),
        Column::number("address", "address").sortable().with_width(Name),
        Column::number("requested_bytes", "requested").sortable().with_width(Number),
        Column::number("stream", "stream").with_width(Narrow),
    ]
}

/// Returns the state of an allocation at a moment.
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

/// Returns the cell of an allocation's category: its name without where it comes from, which the
/// pointer shows.
pub(super) fn category_cell(grouping: &mut Grouping, one: &Allocation) -> Cell {
    let category = grouping.category_of_allocation(one);
    Cell::labeled(category.category.name(), category.name().into())
}

/// Returns the row of an allocation.
fn allocation_row(context: &Context<'_>, grouping: &mut Grouping, listed: &ListedAllocation) -> Row {
    let one = &listed.allocation;
    let group = grouping.group_of_allocation(one);
    let site = grouping.cached_name(context.definitions(), group);
    // The list may have been made at another moment, if it does not depend on it.
    let age_until = one.allocated_until.map_or(context.moment, |until| until.min(context.moment));
    let has_age = one.first_moment <= context.moment;
    let age_ns = context.history.time_ns(age_until).saturating_sub(listed.start_ns);
    let lifetime_events = one.allocated_until.map(|until| until.saturating_sub(one.first_moment));
    let cells = vec![
        Cell::Bytes(one.size),
        Cell::from(&*site),
        known(Some(age_ns).filter(|_| has_age), Cell::Duration),
        category_cell(grouping, one),
        known(listed.lifetime_ns, Cell::Duration),
        Cell::Event(one.first_moment),
        known(one.allocated_until, Cell::Event),
        Cell::Address(one.address),
        Cell::Bytes(one.requested),
        stream_cell(one.stream),
    ];
    Row {
        is_selected: is_selected(context, one),
        hidden: vec![
            ("state", state_at(one, context.moment).into()),
            ("free_completed_at", known(one.active_until, Cell::Event)),
            ("age_events", known(Some(age_until.saturating_sub(one.first_moment)).filter(|_| has_age), Cell::Count)),
            ("lifetime_events", known(lifetime_events, Cell::Count)),
            ("start_observed", Cell::Flag(one.start_observed)),
            ("pool", pool_name(one.pool).into()),
            ("device", Cell::Count(u64::from(context.device.0))),
        ],
        ..Row::new(cells).with_command(select_command(one))
    }
}
