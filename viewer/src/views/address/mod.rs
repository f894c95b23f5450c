//! Every allocation that used an address, and the free time between them.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use vramscope_insight::allocations::{AllocationOrder, AllocationSource, ListedAllocation, Scope, SortKey};
use vramscope_insight::group::Grouping;
use vramscope_insight::incremental::{AllocationRequest, AllocationSearch};
use vramscope_insight::query::Query;
use vramscope_trace::{ByteSize, Count};

use crate::command::{Command, Field};
use crate::ui::{Attribute, Element};
use crate::units;

use crate::view::{
    Cell, Column, ColumnWidth, Context, KeptInView, Options, ROWS_PER_FRAME, Registered, Row, SharedCaches,
    StoredOptions, Table, Topic, View, ViewContent, ViewInfo, allocation_category, cell_or_empty, is_selected,
    progress_text, search_field, select_command, site_grouping, stream_cell,
};

/// The view "Address history".
#[derive(Default)]
pub struct AddressHistory {
    options: Options,
    search: AllocationSearch,
    row: KeptInView,
}

impl Registered for AddressHistory {
    const INFO: ViewInfo = ViewInfo {
        needs_history: true,
        topic: Some(Topic::AddressUses),
        is_searched: true,
        ..ViewInfo::new("address", "Address history", ("Show all uses of the selected address", &["h"]))
    };
}

impl View for AddressHistory {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, &self.options, (shared, &mut self.search, &mut self.row))
    }

    fn forget(&mut self) {
        self.search = AllocationSearch::default();
    }

    fn kept_row(&mut self) -> Option<&mut KeptInView> {
        Some(&mut self.row)
    }

    fn accepts_filter(&self, filter: &str) -> bool {
        filter.trim().is_empty() || parse_address(filter).is_some()
    }
}

/// Name of the view in commands and links.
const VIEW: &str = AddressHistory::INFO.name;

/// Parses a typed address: hexadecimal with `0x`, with letters among its digits, or after `addr:`;
/// else decimal. `None` if the text is no address.
pub fn parse_address(text: &str) -> Option<u64> {
    let text = text.trim();
    let text = text.strip_prefix("addr:").unwrap_or(text).trim();
    let hexadecimal = |digits: &str| u64::from_str_radix(digits, 16).ok();
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return hexadecimal(digits);
    }
    if text.bytes().all(|digit| digit.is_ascii_digit()) { text.parse().ok() } else { hexadecimal(text) }
}

/// The shared results, the search of the list, and the row that it keeps in view.
type Caches<'a> = (&'a mut SharedCaches, &'a mut AllocationSearch, &'a mut KeptInView);

/// Returns the content of the view "Address history": every allocation that used the typed address.
fn content(context: &Context<'_>, options: &Options, caches: Caches<'_>) -> ViewContent {
    let content = ViewContent::with_controls([
        search_field(
            "search",
            "Address",
            "address, such as 0x7f1a2c000000",
            &options.filter,
            Field::Filter(VIEW.into()),
        ),
        Element::button("Current", Command::Reveal(Some(VIEW.into())))
            .with(Attribute::Title, "Scroll to the allocation of this moment"),
    ]);
    let typed = options.filter.trim();
    let address = match (parse_address(typed), context.selection) {
        (Some(address), _) => address,
        (None, _) if !typed.is_empty() => {
            let text = format!("{typed:?} is not an address. Use hexadecimal digits, such as 0x7f1a2c000000.");
            return content.with_message(text);
        }
        (None, Some((address, _))) => address,
        (None, None) => {
            let text = "Select a block, or type an address, to see every allocation that used it.";
            return content.with_message(text);
        }
    };
    let (shared, search, row) = caches;
    let (summary, table) = history_of(context, options, (shared, search, row), address);
    let nothing = if shared.is_unfinished { "Searching…" } else { "No allocation of this device used the address." };
    content.with_list(summary, table, nothing)
}

/// Returns a summary of the allocations that used an address, and a table of the allocations in
/// view.
fn history_of(
    context: &Context<'_>,
    options: &Options,
    (shared, search, kept_row): Caches<'_>,
    address: u64,
) -> (String, Table) {
    let query = Query::containing(address);
    let order = AllocationOrder { key: SortKey::Start, is_descending: false };
    let request = AllocationRequest::new(context.history, context.device, &query, Scope::All, order);
    let source = AllocationSource { history: context.history, definitions: context.definitions() };
    let matcher = || query.compile(context.recording, &[], None);
    let mut found = search.advance(&request, context.moment, matcher, source, ROWS_PER_FRAME);
    shared.is_unfinished |= !found.is_current();
    let is_known = context.history.until() >= context.moment;
    let current = context.lifetimes().filter(|_| is_known).and_then(|known| known.find(address, context.moment));
    let current_row = current.and_then(|(row, _)| found.position_of(row));
    let (first, count) = match options.rows.limit {
        Some(_) => options.rows.window(),
        None => {
            current_row.into_iter().for_each(|row| kept_row.follow(row));
            kept_row.window(options.rows.window())
        }
    };
    // The free time before the first row needs the allocation before it.
    let has_before = first > 0;
    // Scripts wait for the requested list.
    let count = if options.rows.limit.is_none() || found.is_current() { count } else { 0 };
    let rows = found.rows(first - u64::from(has_before), count.saturating_add(u64::from(has_before)));
    let total = found.count().unwrap_or(0);
    let mut table = Table::new(VIEW, format!("Allocations that used {}", units::address(address)), columns());
    table.window = Some((total, first.min(total)));
    table.scroll_to = kept_row.request();
    let mut summary = format!("{} used {}", Count(total).of("allocation", "allocations"), units::address(address));
    summary += &match current {
        Some((_, one)) if one.is_allocated_at(context.moment) => {
            format!("; {} are allocated there now, by event {}", ByteSize(one.size), Count(one.first_moment))
        }
        Some((_, one)) => format!("; {} are pending free there now", ByteSize(one.size)),
        None if is_known => "; it is free at this moment".to_owned(),
        None => String::new(),
    };
    summary += &progress_text("searched", found.progress.done, found.progress.total);
    let grouping = site_grouping(&mut shared.groupings, context);
    let mut before: Option<&ListedAllocation> = None;
    for (index, one) in rows.iter().enumerate() {
        if index > 0 || !has_before {
            let number = first + (index as u64) + u64::from(!has_before);
            let row = use_row(context, grouping, one, before, number);
            let is_current = current.is_some_and(|(current, _)| current == one.row);
            table.rows.push(Row { is_current, ..row });
        }
        before = Some(one);
    }
    (summary, table)
}

/// Returns the columns of the table of allocations that used an address.
fn columns() -> Vec<Column> {
    use ColumnWidth::{Label, Name, Narrow, Number, Wide};
    vec![
        Column::number("number", "use").with_width(Narrow),
        Column::number("bytes", "size").with_width(Number),
        Column::text("site", "site").with_width(Wide),
        Column::number("allocated_at", "allocated at").with_width(Number),
        Column::number("freed_at", "freed at").with_width(Number),
        Column::number("lifetime_ns", "lifetime").with_width(Number),
        Column::number("free_before_ns", "free before").with_width(Number),
        Column::text("category", "category").with_width(Label),
        Column::number("address", "address").with_width(Name),
        Column::number("requested_bytes", "requested").with_width(Number),
        Column::number("stream", "stream").with_width(Narrow),
    ]
}

/// Returns the row of an allocation that is use `number` (from 1) of the address; `before` is the
/// previous use, for the free time between them.
fn use_row(
    context: &Context<'_>,
    grouping: &mut Grouping,
    listed: &ListedAllocation,
    before: Option<&ListedAllocation>,
    number: u64,
) -> Row {
    let one = &listed.allocation;
    let group = grouping.group_of_allocation(one);
    let site = grouping.cached_name(context.definitions(), group);
    let free_since = before.map(|before| before.allocation.active_until.unwrap_or(one.first_moment));
    let free_ns = free_since.map(|since| listed.start_ns.saturating_sub(context.history.time_ns(since)));
    let free_events = free_since.map(|since| one.first_moment.saturating_sub(since));
    let free_text = |free_ns: u64| {
        if free_ns == 0 && free_events == Some(0) {
            "none".to_owned()
        } else {
            context.recording.info().duration_text(free_ns)
        }
    };
    let cells = vec![
        Cell::Count(number),
        Cell::Bytes(one.size),
        Cell::from(&*site),
        Cell::Event(one.first_moment),
        cell_or_empty(one.allocated_until, Cell::Event),
        cell_or_empty(listed.lifetime_ns, |ns| context.duration(ns)),
        cell_or_empty(free_ns, |free_ns| Cell::labeled(free_text(free_ns), context.duration(free_ns))),
        allocation_category(grouping, one),
        Cell::Address(one.address),
        Cell::Bytes(one.requested),
        stream_cell(one.stream),
    ];
    Row {
        is_selected: is_selected(context, one),
        hidden: vec![
            ("free_before_events", cell_or_empty(free_events, Cell::Count)),
            ("free_completed_at", cell_or_empty(one.active_until, Cell::Event)),
            ("is_current", Cell::Flag(one.is_active_at(context.moment))),
            ("start_observed", Cell::Flag(one.start_observed)),
        ],
        ..Row::new(cells).with_command(select_command(one))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hexadecimal_or_decimal() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(parse_address(text), expected, "{text}");
        check("0x7f00", Some(0x7f00));
        check("addr:0x7f00", Some(0x7f00));
        check(" 7f1a2c000000 ", Some(0x7f1a_2c00_0000));
        check("139637976727552", Some(0x7f00_0000_0000));
        check("adam", None);
        check("", None);
    }
}
