//! "Who holds it": live bytes by site, function, line, module, category and more.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::query::Now;
use vramscope_insight::sites::{GroupRow, RangeRow, groups_in_range, groups_of, groups_of_allocations, live_groups};
use vramscope_trace::Allocation;
use vramscope_trace::sort::sort_by_key;

use crate::ui::{Element, Tag};

use crate::view::{
    Cell, Column, Context, Options, Registered, SharedCaches, StoredOptions, Table, TableBuilder, Topic, View,
    ViewContent, ViewInfo, category_cell, filter_field, group_cell, group_choice, group_title, mode_choice, modes,
    paint_groups, parse_filter, step_starts,
};

/// The view "Who holds it".
#[derive(Default)]
pub struct Sites {
    options: Options<Mode>,
}

impl Registered for Sites {
    const INFO: ViewInfo = ViewInfo {
        row_names: &["blocks"],
        topic: Some(Topic::Holders),
        outlines_matches: true,
        ..ViewInfo::new("sites", "Who holds it", ("Show who holds the memory", &["3"]))
    };
}

impl View for Sites {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, &self.options, shared)
    }

    fn rows(&mut self, name: &str, context: &Context<'_>, shared: &mut SharedCaches) -> Option<Table> {
        let grouping = shared.groupings.get(self.options.by.unwrap_or(GroupBy::Site), context.recording);
        (name == "blocks").then(|| blocks_table(context, grouping, self.options.rows.limit))
    }
}

modes! {
    /// The memory that the view shows.
    Mode {
        /// Memory at the moment on the screen.
        Moment = "moment", "this moment";
        /// Memory at the peak of the allocated bytes.
        Peak = "peak", "the peak";
        /// Memory allocated in the selected range.
        Range = "range", "allocated in the range";
    }
}

/// Name of the view in commands and links.
const VIEW: &str = Sites::INFO.name;

/// Returns the content of the view "Who holds it": live bytes by site, function, line or another
/// grouping.
fn content(context: &Context<'_>, options: &Options<Mode>, caches: &mut SharedCaches) -> ViewContent {
    let by = options.by.unwrap_or(GroupBy::Line);
    let mode = options.mode.unwrap_or(Mode::Moment);
    let mut content = ViewContent::with_controls([
        group_choice(VIEW, by, &GroupBy::ALL),
        mode_choice("at", VIEW, &mode, Mode::MENU),
        filter_field(VIEW, &options.filter),
    ]);
    let query = match parse_filter(&options.filter) {
        Ok(query) => query,
        Err(error) => return content.with_element(error),
    };
    let steps = step_starts(context, &mut caches.searches, &query);
    let matcher = caches.searches.matchers.get(context.recording, context.history, &query, &steps);
    let described = if query.is_empty() { String::new() } else { format!(": {}", query.describe()) };
    let now = Now { moment: context.moment, time_ns: context.time_ns, history: context.history };
    let SharedCaches { groupings, block_groups, .. } = caches;
    let grouping = groupings.get(by, context.recording);
    let mut painted = |content: ViewContent, mut table: Table, grouping: &Grouping| {
        paint_groups(block_groups, context, grouping, &mut table);
        content.with_table(table)
    };
    match (mode, context.lifetimes()) {
        (Mode::Peak, Some(lifetimes)) => {
            let peak = context.recording.series(context.device).map_or(0, |series| series.peak_allocated().event);
            let now = Now::new(peak, context.history);
            let keep = |one: &Allocation| query.is_empty() || matcher.matches_allocation(context.device, one, &now);
            let live = lifetimes.live_at(peak).filter(keep);
            let rows = groups_of_allocations(live, peak, context.definitions(), grouping);
            let when = format!("live at the peak of the allocated bytes{described}");
            painted(content.with_summary(&rows, &when), live_table(context, &rows, grouping), grouping)
        }
        (Mode::Range, Some(lifetimes)) => {
            let time_ns = |event| context.history.time_ns(event);
            let keep = |one: &Allocation| matcher.matches_allocation(context.device, one, &now);
            let keep: Option<&dyn Fn(&Allocation) -> bool> = if query.is_empty() { None } else { Some(&keep) };
            let rows = groups_in_range(lifetimes, context.definitions(), grouping, time_ns, context.range, keep);
            if !query.is_empty() {
                let text = format!("Allocations made in the selected range{described}");
                content.content.push(Element::text(Tag::P, text).with_class("summary").into());
            }
            painted(content, range_table(context, &rows, grouping), grouping)
        }
        (Mode::Peak | Mode::Range, None) => content.with_message("Reading the recording…"),
        (Mode::Moment, _) => {
            let rows = if query.is_empty() {
                live_groups(context.state, context.definitions(), grouping)
            } else {
                let blocks = context.state.blocks();
                let blocks = blocks.filter(|block| matcher.matches_block(context.device, block, &now));
                groups_of(blocks, context.definitions(), grouping)
            };
            let when = format!("live at this moment{described}");
            painted(content.with_summary(&rows, &when), live_table(context, &rows, grouping), grouping)
        }
    }
}

/// Returns the table of the allocations made in the selected range, by group.
fn range_table(context: &Context<'_>, groups: &[RangeRow], grouping: &Grouping) -> Table {
    let by = grouping.by();
    TableBuilder::new(VIEW, "Allocations made in the selected range", groups)
        .text("name", group_title(by), |row| Cell::from(&*row.name))
        .bar("bytes", "allocated", |row| row.bytes)
        .count("allocations", "count", |row| row.allocations)
        .number("mean_lifetime_ns", "mean life", |row| match row.freed {
            0 => Cell::Empty,
            _ => context.duration(row.mean_lifetime_ns as u64),
        })
        .bytes("live_bytes_at_end", "live at end", |row| row.live_bytes_at_end)
        .text("category", "category", |row| category_cell(&row.categories))
        .rows(|one, row| row.file_link = file_link(context, grouping, one.group))
        .groups(context.selected_group, by, |row| row.group)
        .build()
}

/// Returns the table of live bytes by group.
pub(super) fn live_table(context: &Context<'_>, groups: &[GroupRow], grouping: &Grouping) -> Table {
    let by = grouping.by();
    TableBuilder::new(VIEW, "Live bytes by group", groups)
        .text("name", group_title(by), |row| Cell::from(&*row.name))
        .bar("bytes", "live", |row| row.bytes)
        .number("share", "share", |row| Cell::Share(row.share))
        .count("blocks", "blocks", |row| row.blocks)
        .column_if(by != GroupBy::Category, Column::text("category", "category"), |row| category_cell(&row.categories))
        .hidden("pending_bytes", |row| Cell::Bytes(row.pending_bytes))
        .hidden("requested_bytes", |row| Cell::Bytes(row.requested_bytes))
        .rows(|one, row| row.file_link = file_link(context, grouping, one.group))
        .groups(context.selected_group, by, |row| row.group)
        .build()
}

/// Returns a link to the file of a group in the user's editor; `None` without a template, and for
/// groups of more than one file.
fn file_link(context: &Context<'_>, grouping: &Grouping, group: u32) -> Option<Element> {
    context.editor.filter(|_| matches!(grouping.by(), GroupBy::Line | GroupBy::File | GroupBy::Function))?;
    let details = grouping.group_details(context.definitions(), group);
    let link = Element::file_link("open", context.editor, &details.file, details.line).with_class("file-link");
    (link.tag == Tag::A).then_some(link)
}

/// Returns the live blocks of a device as a table, largest first.
pub fn blocks_table(context: &Context<'_>, grouping: &mut Grouping, limit: Option<u64>) -> Table {
    let mut blocks: Vec<_> = context.state.blocks().collect();
    sort_by_key(&mut blocks, |block| (std::cmp::Reverse(block.size), block.address));
    blocks.truncate(limit.map_or(usize::MAX, |limit| limit as usize));
    TableBuilder::new("blocks", "Live blocks", &blocks)
        .number("address", "address", |block| Cell::Address(block.address))
        .bytes("bytes", "size", |block| block.size)
        .bytes("requested_bytes", "requested", |block| block.requested)
        .text("state", "state", |block| if block.pending_free { "pending" } else { "allocated" })
        .text("site", "site", |block| {
            let group = grouping.group_of(block);
            group_cell(context, grouping, group)
        })
        .text("category", "category", |block| grouping.category_of(block).name())
        .count("stream", "stream", |block| block.stream.0)
        .count("device", "device", |_| context.device.0.into())
        .number("allocated_at", "allocated at", |block| Cell::Event(block.since_event.saturating_add(1)))
        .build()
}
