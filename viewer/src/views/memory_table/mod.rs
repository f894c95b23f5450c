//! The table of `vramscope table`: live bytes, peaks and allocations by phase, line, operation and
//! more, and the memory around phases and spans.

use vramscope_insight::group::GroupBy;
use vramscope_insight::sites::{groups_at, live_groups};
use vramscope_insight::tables::{GroupTable, SpanRow};

use crate::ui::{Element, Tag};

use super::ViewKind;
use crate::view::caches::SharedCaches;
use crate::view::context::{Context, ViewContent, ViewOptions};
use crate::view::controls::{choice, group_choice, group_title};
use crate::view::groups::paint_groups;
use crate::view::table::{Cell, Column, Table};
use crate::view::table_builder::TableBuilder;

/// Name of the view "Memory table" in commands and links.
const VIEW: &str = ViewKind::Table.name();
/// The moments whose live bytes the view "Memory table" can show: the mode's name and its text.
const MODES: [(&str, &str); 2] = [("moment", "this moment"), ("peak", "the peak")];

/// Returns the content of the view "Memory table": live bytes, peaks and allocations by group.
/// Scripts get the table of phases with the mode `phases`, and the table of spans with `spans`.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut SharedCaches) -> ViewContent {
    let by = options.by.unwrap_or(GroupBy::Phase);
    let mode = options.mode.as_deref().unwrap_or("moment");
    let mut content = ViewContent::with_controls([
        group_choice(VIEW, by, &GroupBy::ALL),
        choice("at", &format!("mode {VIEW}"), mode, MODES),
    ]);
    let SharedCaches { groupings, block_groups, tables, is_unfinished, .. } = caches;
    let grouping = groupings.get(by, context.recording);
    let source = context.device_history();
    let scans = source.as_ref().and_then(|source| {
        let scans = tables.advance(source, by, grouping, is_unfinished)?;
        Some((source.lifetimes, scans))
    });
    let Some((lifetimes, (groups, spans))) = scans else {
        return content.with_message(context.reading_text());
    };
    let definitions = context.definitions();
    let peak = context.recording.series(context.device).map_or(0, |series| series.peak_allocated().event);
    let is_at_peak = mode == "peak";
    let live = if is_at_peak {
        groups_at(lifetimes, peak, definitions, grouping)
    } else {
        live_groups(context.state, definitions, grouping)
    };
    let sites: &mut dyn Iterator<Item = _> = if is_at_peak {
        &mut lifetimes.live_at(peak).map(|one| (one.site, one.size))
    } else {
        &mut context.state.blocks().map(|block| (block.site, block.size))
    };
    let groups = groups.table(definitions, grouping, &live, sites);
    let when = if is_at_peak { "live at the peak of the allocated bytes" } else { "live at this moment" };
    content = content.with_summary(&live, when);
    let mut table = group_table(context, &groups, by, options);
    paint_groups(block_groups, context, grouping, &mut table);
    content = content.with_table(table);
    for (name, title, rows) in [("phases", "phase", spans.phases()), ("spans", "span", spans.rows())] {
        let table = span_table(title, rows);
        if !table.rows.is_empty() {
            content.content.push(Element::text(Tag::H2, &*table.caption).into());
            content.content.push(table.element().into());
        }
        if mode == name {
            content.table = Some(table);
        }
    }
    content
}

/// Returns the table of live bytes, peaks and allocations by group.
fn group_table(context: &Context<'_>, groups: &GroupTable, by: GroupBy, options: &ViewOptions) -> Table {
    let number = |name, title| Column::number(name, title).sortable();
    let mut table = TableBuilder::new(VIEW, "Memory by group", &groups.rows)
        .text("name", group_title(by), |row| Cell::from(&*row.name))
        .bar_column(Column::bar("bytes", "live").sortable(), |row| Cell::Bytes(row.bytes));
    if by == GroupBy::Operation {
        table = table.column(number("nested_bytes", "nested"), |row| Cell::Bytes(row.nested_bytes));
    }
    table
        .column(number("blocks", "blocks"), |row| Cell::Count(row.blocks))
        .column(number("peak_bytes", "peak"), |row| Cell::Bytes(row.peak_bytes))
        .column(number("allocated_bytes", "allocated"), |row| Cell::Bytes(row.allocated_bytes))
        .column(number("allocations", "allocations"), |row| Cell::Count(row.allocations))
        .groups(context.selected_group, by, |row| row.group)
        .sorted(options.sort.as_ref())
        .build()
}

/// Returns the table of phases or spans; `title` is the singular, `phase` or `span`. A click on a
/// row goes to the beginning of its phase or span with the highest peak.
fn span_table(title: &'static str, spans: &[SpanRow]) -> Table {
    TableBuilder::new(VIEW, format!("Each {title} at its highest peak"), spans)
        .text("name", title, |span| Cell::from(&*span.name))
        .bytes("before_bytes", "before", |span| span.before_bytes)
        .bytes("peak_bytes", "peak", |span| span.peak_bytes)
        .bytes("after_bytes", "after", |span| span.after_bytes)
        .number("kept_bytes", "kept", |span| Cell::BytesChange(span.kept_bytes()))
        .count("count", "count", |span| span.count)
        .hidden("from_event", |span| Cell::Event(span.from_event))
        .hidden("to_event", |span| Cell::Event(span.to_event))
        .commands(|span| format!("seek {}", span.from_event))
        .build()
}
