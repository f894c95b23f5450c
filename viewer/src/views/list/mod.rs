//! The list of allocations: live, made in the selected range, or all.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use vramscope_insight::allocations::{AllocationOrder, AllocationSource, Scope, SortKey};
use vramscope_insight::incremental::{AllocationRequest, AllocationSearch};
use vramscope_insight::query::Query;
use vramscope_trace::{ByteSize, Count};

use crate::view::{
    Context, KeptInView, Options, ROWS_PER_FRAME, Registered, SORT_COLUMNS, SharedCaches, StoredOptions, Table, Topic,
    View, ViewContent, ViewInfo, depends_on_moment, filter_field, mode_choice, modes, order_of, parse_filter,
    progress_text, site_grouping, step_starts, table_of,
};

/// The view "List of allocations".
#[derive(Default)]
pub struct AllocationList {
    options: Options<Mode>,
    search: AllocationSearch,
    row: KeptInView,
}

impl Registered for AllocationList {
    const INFO: ViewInfo = ViewInfo {
        needs_history: true,
        topic: Some(Topic::Allocations),
        row_names: &["allocations"],
        is_searched: true,
        outlines_matches: true,
        ..ViewInfo::new("list", "List of allocations", ("List allocations", &["b"]))
    };
}

impl View for AllocationList {
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

    fn rows_changed(&mut self) {
        self.options.rows.in_view.0 = 0;
        self.row.show(0);
    }
}

modes! {
    /// The listed allocations.
    Mode {
        /// Live ones.
        Live = "live", "live now";
        /// Those made in the selected range.
        Range = "range", "made in the range";
        /// All.
        All = "all", "all";
    }
}

/// Name of the view in commands and links.
const VIEW: &str = AllocationList::INFO.name;

/// The shared results, the search of the list, and the row that it keeps in view.
type Caches<'a> = (&'a mut SharedCaches, &'a mut AllocationSearch, &'a mut KeptInView);

/// Returns the content of the view "List of allocations": live ones, those made in the selected
/// range, or all.
fn content(context: &Context<'_>, options: &Options<Mode>, caches: Caches<'_>) -> ViewContent {
    let mode = options.mode.unwrap_or(if context.has_range { Mode::Range } else { Mode::Live });
    let content =
        ViewContent::with_controls([mode_choice("show", VIEW, &mode, Mode::MENU), filter_field(VIEW, &options.filter)]);
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
        Mode::Range if context.has_range => (Scope::MadeIn { from, to }, "made in the selected range"),
        Mode::Range => (Scope::MadeIn { from, to }, "made in this recording"),
        Mode::All => (Scope::All, "in this recording"),
        Mode::Live => (Scope::Live, "live at this moment"),
    };
    if scope == Scope::Live && context.history.until() < context.moment {
        return content.with_message("Reading the recording…");
    }
    let (shared, search, row) = caches;
    let (summary, table) = allocations_table(context, options, (shared, search, row), &query, scope, order, which);
    let nothing = match scope {
        _ if shared.is_unfinished => "Searching…",
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
    options: &Options<Mode>,
    (shared, search, kept_row): Caches<'_>,
    query: &Query,
    scope: Scope,
    order: AllocationOrder,
    which: &str,
) -> (String, Table) {
    let steps = step_starts(context, &mut shared.searches, query);
    let is_of_moment = scope == Scope::Live || order.key == SortKey::Age || depends_on_moment(query);
    let request = AllocationRequest {
        steps: steps.len(),
        moment: is_of_moment.then_some(context.moment),
        ..AllocationRequest::new(context.history, context.device, query, scope, order)
    };
    let source = AllocationSource { history: context.history, definitions: context.definitions() };
    let matcher = || query.compile(context.recording, &steps, context.history.inferred_categories());
    let mut found = search.advance(&request, context.moment, matcher, source, ROWS_PER_FRAME);
    shared.is_unfinished |= !found.is_current();
    let (first, count) = match options.rows.limit {
        Some(_) => options.rows.window(),
        None => kept_row.window(options.rows.window()),
    };
    // Scripts wait for the requested list.
    let rows = if options.rows.limit.is_none() || found.is_current() { found.rows(first, count) } else { Vec::new() };
    let total = found.count().unwrap_or(0);
    let scroll_to = kept_row.request();
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
    let grouping = site_grouping(&mut shared.groupings, context);
    let table = table_of((VIEW, which), context, grouping, &rows, order);
    (summary, Table { window: Some((total, first.min(total))), scroll_to, ..table })
}
