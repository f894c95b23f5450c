//! "Who holds it": live bytes by site, function, line, module, category and more.

use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::query::Now;
use vramscope_insight::sites::{GroupRow, RangeRow, groups_in_range, groups_of, groups_of_allocations, live_groups};
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Allocation, ByteSize, Count};

use crate::ui::{Element, Tag};

use super::caches::Caches;
use super::context::{Context, ViewContent, ViewOptions};
use super::controls::{category_cell, choice, filter_field, group_choice, parse_filter};
use super::events::step_starts;
use super::groups::paint_groups;
use super::kind::ViewKind;
use super::table::{Cell, Column, Row, Table};

/// The moments that the view can show, by the name of its mode: at the moment on the screen, at the
/// peak, or what was allocated in the selected range.
const MODES: [(&str, &str); 3] = [("moment", "this moment"), ("peak", "the peak"), ("range", "allocated in the range")];

/// Returns the content of the view.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut Caches) -> ViewContent {
    const VIEW: &str = ViewKind::Sites.name();
    let by = options.by.unwrap_or(GroupBy::Line);
    let mode = options.mode.as_deref().unwrap_or("moment");
    let mut content = ViewContent {
        controls: vec![
            group_choice(VIEW, by, &GroupBy::ALL).into(),
            choice("at", &format!("mode {VIEW}"), mode, MODES).into(),
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
    let steps = step_starts(context, &mut caches.searches, &query);
    let matcher = caches.searches.matchers.get(context.recording, &query, &steps);
    let described = if query.is_empty() { String::new() } else { format!(": {}", query.describe()) };
    let now = Now { moment: context.moment, time_ns: context.time_ns, history: context.history };
    let Caches { groupings, block_groups, .. } = caches;
    let grouping = groupings.get(by, context.recording);
    let mut painted = |content: ViewContent, mut table: Table, grouping: &Grouping| {
        paint_groups(block_groups, context, grouping, &mut table);
        content.with_table(table)
    };
    match (mode, context.lifetimes()) {
        ("peak", Some(lifetimes)) => {
            let peak = context.recording.series(context.device).map_or(0, |series| series.peak_allocated().event);
            let now = Now::new(peak, context.history);
            let keep = |one: &Allocation| query.is_empty() || matcher.matches_allocation(context.device, one, &now);
            let live = lifetimes.live_at(peak).filter(keep);
            let rows = groups_of_allocations(live, peak, context.definitions(), grouping);
            let when = format!("live at the peak of the allocated bytes{described}");
            painted(content.with_summary(&rows, &when), live_table(context, &rows, grouping), grouping)
        }
        ("range", Some(lifetimes)) => {
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
        ("peak" | "range", None) => {
            content.content = ViewContent::message("Reading the recording…").content;
            content
        }
        _ => {
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

impl ViewContent {
    /// Appends the sums of the rows of live groups.
    pub(super) fn with_summary(mut self, groups: &[GroupRow], when: &str) -> Self {
        let sum = |value: fn(&GroupRow) -> u64| groups.iter().map(value).fold(0, u64::saturating_add);
        let (bytes, pending, blocks) = (sum(|row| row.bytes), sum(|row| row.pending_bytes), sum(|row| row.blocks));
        let mut text = format!("{} in {} {when}", ByteSize(bytes), Count(blocks).of("block", "blocks"));
        if pending > 0 {
            text += &format!(", of which {} are pending free", ByteSize(pending));
        }
        self.content.push(Element::text(Tag::P, text).with_class("summary").into());
        self
    }
}

/// Returns the table of allocations in a range.
fn range_table(context: &Context<'_>, groups: &[RangeRow], grouping: &Grouping) -> Table {
    let by = grouping.by();
    let mut table = Table::new(
        ViewKind::Sites.name(),
        "Allocations made in the selected range",
        vec![
            Column::text("name", super::controls::group_title(by)),
            Column::bar("bytes", "allocated"),
            Column::number("allocations", "count"),
            Column::number("mean_lifetime_ns", "mean life"),
            Column::number("live_bytes_at_end", "live at end"),
            Column::text("category", "category"),
        ],
    );
    let largest = groups.iter().map(|row| row.share).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    table.rows.extend(groups.iter().map(|row| {
        let life = if row.freed == 0 { Cell::Empty } else { Cell::Duration(row.mean_lifetime_ns as u64) };
        let cells = vec![
            Cell::from(&*row.name),
            Cell::Bytes(row.bytes),
            Cell::Count(row.allocations),
            life,
            Cell::Bytes(row.live_bytes_at_end),
            category_cell(&row.categories),
        ];
        let file_link = file_link(context, grouping, row.group);
        Row { file_link, ..Row::new(cells) }.with_share(row.share / largest).with_group(
            context.selected_group,
            by,
            row.group,
        )
    }));
    table
}

/// Returns the table of live groups.
pub(super) fn live_table(context: &Context<'_>, groups: &[GroupRow], grouping: &Grouping) -> Table {
    let by = grouping.by();
    let mut columns = vec![
        Column::text("name", super::controls::group_title(by)),
        Column::bar("bytes", "live"),
        Column::number("share", "share"),
        Column::number("blocks", "blocks"),
    ];
    // The name of a category is in the first column already.
    let has_category = by != GroupBy::Category;
    if has_category {
        columns.push(Column::text("category", "category"));
    }
    let mut table = Table::new(ViewKind::Sites.name(), "Live bytes by group", columns);
    let largest = groups.iter().map(|row| row.share).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    table.rows.extend(groups.iter().map(|row| {
        let mut hidden = vec![
            ("pending_bytes", Cell::Bytes(row.pending_bytes)),
            ("requested_bytes", Cell::Bytes(row.requested_bytes)),
        ];
        let mut cells =
            vec![Cell::from(&*row.name), Cell::Bytes(row.bytes), Cell::Share(row.share), Cell::Count(row.blocks)];
        let category = category_cell(&row.categories);
        if has_category {
            cells.push(category);
        } else {
            hidden.push(("category", category));
        }
        Row {
            file_link: file_link(context, grouping, row.group),
            hidden,
            ..Row::new(cells).with_share(row.share / largest).with_group(context.selected_group, by, row.group)
        }
    }));
    table
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
#[must_use]
pub fn blocks_table(context: &Context<'_>, grouping: &mut Grouping, limit: Option<u64>) -> Table {
    let mut table = Table::new(
        "blocks",
        "Live blocks",
        vec![
            Column::number("address", "address"),
            Column::number("bytes", "size"),
            Column::number("requested_bytes", "requested"),
            Column::text("state", "state"),
            Column::text("site", "site"),
            Column::text("category", "category"),
            Column::number("stream", "stream"),
            Column::number("device", "device"),
            Column::number("allocated_at", "allocated at"),
        ],
    );
    let mut blocks: Vec<_> = context.state.blocks().collect();
    sort_by_key(&mut blocks, |block| (std::cmp::Reverse(block.size), block.address));
    blocks.truncate(limit.map_or(usize::MAX, |limit| limit as usize));
    for block in blocks {
        let group = grouping.group_of(block);
        table.rows.push(Row::new(vec![
            Cell::Address(block.address),
            Cell::Bytes(block.size),
            Cell::Bytes(block.requested),
            if block.pending_free { "pending" } else { "allocated" }.into(),
            Cell::from(&*grouping.cached_name(context.definitions(), group)),
            grouping.category_of(block).name().into(),
            Cell::Count(block.stream.0),
            Cell::Count(u64::from(context.device.0)),
            Cell::Event(block.since_event.saturating_add(1)),
        ]));
    }
    table
}
