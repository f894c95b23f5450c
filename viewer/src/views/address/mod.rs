//! Every allocation that used an address, and the free time between them.

use vramscope_insight::allocations::{AllocationOrder, AllocationSource, ListedAllocation, Scope, SortKey};
use vramscope_insight::group::Grouping;
use vramscope_insight::query::Query;
use vramscope_trace::{ByteSize, Count};

use crate::ui::{Attribute, Element};
use crate::units;

use super::ViewKind;
use super::events::{known, stream_cell};
use super::list::{ROWS_PER_FRAME, category_cell, is_selected, select_command, site_grouping};
use crate::view::caches::SharedCaches;
use crate::view::context::{Context, ViewContent, ViewOptions};
use crate::view::controls::{progress_text, search_field};
use crate::view::searches::{AllocationRequest, Searches};
use crate::view::table::{Cell, Column, ColumnWidth, Row, Table};

/// Name of the view "Address history" in commands and links.
const VIEW: &str = ViewKind::Address.name();

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

/// Returns the content of the view "Address history": every allocation that used the typed address.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut SharedCaches) -> ViewContent {
    let content = ViewContent::with_controls([
        search_field(
            "search",
            "Address",
            "address, such as 0x7f1a2c000000",
            &options.filter,
            &format!("filter {VIEW}"),
        ),
        Element::button("Current", format!("reveal {VIEW}"))
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
    let (summary, table) = history_of(context, options, caches, address);
    let nothing = if caches.is_unfinished { "Searching…" } else { "No allocation of this device used the address." };
    content.with_list(summary, table, nothing)
}

/// Returns a summary of the allocations that used an address, and a table of the allocations in
/// view.
fn history_of(
    context: &Context<'_>,
    options: &ViewOptions,
    caches: &mut SharedCaches,
    address: u64,
) -> (String, Table) {
    let query = Query::containing(address);
    let order = AllocationOrder { key: SortKey::Start, is_descending: false };
    let request = AllocationRequest::new(context, &query, Scope::All, order);
    let source = AllocationSource { history: context.history, definitions: context.definitions() };
    let matcher = || query.compile(context.recording, &[]);
    let Searches { address: search, address_row, .. } = &mut caches.searches;
    let mut found = search.advance(&request, context.moment, matcher, source, ROWS_PER_FRAME);
    caches.is_unfinished |= !found.is_current();
    let is_known = context.history.until() >= context.moment;
    let current = context.lifetimes().filter(|_| is_known).and_then(|known| known.find(address, context.moment));
    let current_row = current.and_then(|(row, _)| found.position_of(row));
    let (first, count) = match options.limit {
        Some(_) => options.window(),
        None => {
            current_row.into_iter().for_each(|row| address_row.follow(row));
            address_row.window(options.window())
        }
    };
    // The free time before the first row needs the allocation before it.
    let has_before = first > 0;
    // Scripts wait for the requested list.
    let count = if options.limit.is_none() || found.is_current() { count } else { 0 };
    let rows = found.rows(first - u64::from(has_before), count.saturating_add(u64::from(has_before)));
    let total = found.count().unwrap_or(0);
    let mut table = Table::new(VIEW, format!("Allocations that used {}", units::address(address)), columns());
    table.window = Some((total, first.min(total)));
    table.scroll_to = address_row.request();
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
    let grouping = site_grouping(&mut caches.groupings, context);
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
        known(one.allocated_until, Cell::Event),
        known(listed.lifetime_ns, |ns| context.duration(ns)),
        known(free_ns, |free_ns| Cell::labeled(free_text(free_ns), context.duration(free_ns))),
        category_cell(grouping, one),
        Cell::Address(one.address),
        Cell::Bytes(one.requested),
        stream_cell(one.stream),
    ];
    Row {
        is_selected: is_selected(context, one),
        hidden: vec![
            ("free_before_events", known(free_events, Cell::Count)),
            ("free_completed_at", known(one.active_until, Cell::Event)),
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
