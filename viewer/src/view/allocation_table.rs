//! The table of single allocations, which several views show.

use vramscope_insight::allocations::{AllocationOrder, AllocationSource, ListedAllocation, Scope, SortKey};
use vramscope_insight::group::{GroupBy, Grouping, Groupings, pool_name};
use vramscope_insight::incremental::{AllocationRequest, AllocationSearch};
use vramscope_insight::query::Query;
use vramscope_trace::{Allocation, ByteSize, Count, StreamId};

use super::caches::SharedCaches;
use super::context::Context;
use super::options::Options;
use super::table::{Cell, Column, ColumnWidth, Sorting, Table};
use super::table_builder::{TableBuilder, group_cell};
use crate::command::Command;
use crate::linked_memory::LinkedMemory;

/// Maximum number of allocations that a search of the list visits in one frame, at about 25 ns
/// each.
pub(crate) const ROWS_PER_FRAME: u64 = 131_072;
/// The columns by which the list of allocations can be sorted, with their sort keys.
pub(crate) const SORT_COLUMNS: [(&str, SortKey); 8] = [
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
pub(crate) fn order_of(column: &str, is_descending: bool) -> Option<AllocationOrder> {
    let known = SORT_COLUMNS.iter().find(|(name, key)| *name == column || key.name() == column);
    known.map(|&(_, key)| AllocationOrder { key, is_descending })
}

/// Returns a summary of the allocations that are live at the moment, and a table of the allocations
/// in view, for another view: the largest first, unless the user has chosen another order.
pub(crate) fn live_allocations<M>(
    view: &'static str,
    context: &Context<'_>,
    options: &Options<M>,
    (shared, search): (&mut SharedCaches, &mut AllocationSearch),
) -> (String, Table) {
    let which = "live at this moment";
    let found = FoundTable { view, query: &Query::default(), scope: Scope::Live, moment: Some(context.moment), which };
    let (total, bytes, table) = found.advance(context, options, (shared, search));
    (format!("{} {which}, {}", Count(total).of("allocation", "allocations"), ByteSize(bytes)), table)
}

/// A search for allocations whose table a view shows: the largest first, unless the user has chosen
/// another order.
pub(crate) struct FoundTable<'a> {
    /// Name of the view.
    pub(crate) view: &'static str,
    /// The filter.
    pub(crate) query: &'a Query,
    /// The allocations to which the filter is applied.
    pub(crate) scope: Scope,
    /// The moment, if the result depends on it.
    pub(crate) moment: Option<u64>,
    /// Describes the allocations in the table's caption.
    pub(crate) which: &'a str,
}

impl FoundTable<'_> {
    /// Continues the search for one frame. Returns the number of allocations found, their bytes,
    /// and the table of those in view.
    pub(crate) fn advance<M>(
        &self,
        context: &Context<'_>,
        options: &Options<M>,
        (shared, search): (&mut SharedCaches, &mut AllocationSearch),
    ) -> (u64, u64, Table) {
        let Self { view, query, scope, moment, which } = *self;
        let chosen = options.sort.as_ref().and_then(|(column, is_descending)| order_of(column, *is_descending));
        let order = chosen.unwrap_or_default();
        let request = AllocationRequest {
            moment,
            ..AllocationRequest::new(context.history, context.device, query, scope, order)
        };
        let source = AllocationSource { history: context.history, definitions: context.definitions() };
        let matcher = || query.compile(context.recording, &[], context.history.inferred_categories());
        let mut found = search.advance(&request, context.moment, matcher, source, ROWS_PER_FRAME);
        shared.is_unfinished |= !found.is_current();
        let (first, count) = options.rows.window();
        let (rows, total) = (found.rows(first, count), found.count().unwrap_or(0));
        let bytes = found.bytes().0;
        let grouping = site_grouping(&mut shared.groupings, context);
        let table = table_of((view, which), context, grouping, &rows, order);
        (total, bytes, Table { window: Some((total, first.min(total))), ..table })
    }
}

/// Returns the grouping of blocks by site, which has the names and categories of sites.
pub(crate) fn site_grouping<'a>(groupings: &'a mut Groupings, context: &Context<'_>) -> &'a mut Grouping {
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
pub(crate) fn is_selected(context: &Context<'_>, one: &Allocation) -> bool {
    context.selection == Some((one.address, Some(one.first_moment)))
}

/// Returns the command that selects an allocation.
pub(crate) fn select_command(one: &Allocation) -> Command {
    Command::select_allocation(one.address, one.first_moment)
}

/// Returns the cell of an allocation's category: the page shows its short name, and under the
/// pointer how the category is known.
pub(crate) fn allocation_category(grouping: &mut Grouping, one: &Allocation) -> Cell {
    let category = grouping.category_of_allocation(one);
    Cell::labeled(category.category.name(), category.name().into())
}

/// Returns the table of these allocations for the view called `view`; `which` describes them in its
/// caption.
pub(crate) fn table_of(
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
            cell_or_empty(is_made(&row.allocation).then(|| until_ns.saturating_sub(row.start_ns)), |ns| {
                context.duration(ns)
            })
        })
        .column(Column::text("category", "category").with_width(Label), |row| {
            allocation_category(grouping, &row.allocation)
        })
        .column(number("lifetime_ns", "lifetime"), |row| cell_or_empty(row.lifetime_ns, |ns| context.duration(ns)))
        .column(number("allocated_at", "allocated at"), |row| Cell::Event(row.allocation.first_moment))
        .column(number("freed_at", "freed at"), |row| cell_or_empty(row.allocation.allocated_until, Cell::Event))
        .column(Column::number("address", "address").sortable().with_width(Name), |row| {
            Cell::Address(row.allocation.address)
        })
        .column(number("requested_bytes", "requested"), |row| Cell::Bytes(row.allocation.requested))
        .column(Column::number("stream", "stream").with_width(Narrow), |row| stream_cell(row.allocation.stream))
        .hidden("state", |row| state_at(&row.allocation, context.moment).into())
        .hidden("free_completed_at", |row| cell_or_empty(row.allocation.active_until, Cell::Event))
        .hidden("age_events", |ListedAllocation { allocation: one, .. }| {
            cell_or_empty(is_made(one).then(|| age_until(one)), |until| events(one, until))
        })
        .hidden("lifetime_events", |ListedAllocation { allocation: one, .. }| {
            cell_or_empty(one.allocated_until, |until| events(one, until))
        })
        .hidden("start_observed", |row| Cell::Flag(row.allocation.start_observed))
        .hidden("pool", |row| pool_name(row.allocation.pool).into())
        .hidden("device", |_| Cell::Count(context.device.0.into()))
        .rows(|one, row| {
            row.is_selected = is_selected(context, &one.allocation);
            row.light = Some(LinkedMemory::Group(GroupBy::Site, grouping.group_of_allocation(&one.allocation)));
        })
        .commands(|row| select_command(&row.allocation))
        .build();
    let sorted = SORT_COLUMNS.iter().find(|(_, key)| *key == order.key);
    table.sorting = sorted.map(|&(column, _)| Sorting { column, is_descending: order.is_descending });
    table
}

/// Returns the cell of a stream's handle.
pub(crate) fn stream_cell(stream: StreamId) -> Cell {
    Cell::labeled(stream.0.to_string(), Cell::Count(stream.0))
}

/// Returns the cell that `cell` creates for a known value; an empty cell for `None`.
pub(crate) fn cell_or_empty<T>(value: Option<T>, cell: impl FnOnce(T) -> Cell) -> Cell {
    value.map_or(Cell::Empty, cell)
}
