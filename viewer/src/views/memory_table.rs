//! The table of `vramscope table`: live bytes, peaks and allocations by phase, line, operation and
//! more, and the memory around phases and spans.

use vramscope_insight::group::GroupBy;
use vramscope_insight::sites::{groups_at, live_groups};
use vramscope_insight::tables::{GroupTable, SpanRow};
use vramscope_trace::sort::sort_by_key;

use crate::ui::{Element, Tag};

use super::ViewKind;
use super::caches::Caches;
use super::context::{Context, ViewContent, ViewOptions};
use super::controls::{choice, group_choice, group_title};
use super::groups::paint_groups;
use super::table::{Cell, Column, Row, Sorting, Table};

const VIEW: &str = ViewKind::Table.name();
/// The moments of the live bytes, by the name of the view's mode.
const MODES: [(&str, &str); 2] = [("moment", "this moment"), ("peak", "the peak")];

/// Returns the content of the view. Scripts get the table of phases with the mode `phases`, and
/// that of spans with `spans`.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut Caches) -> ViewContent {
    let by = options.by.unwrap_or(GroupBy::Phase);
    let mode = options.mode.as_deref().unwrap_or("moment");
    let mut content = ViewContent {
        controls: vec![
            group_choice(VIEW, by, &GroupBy::ALL).into(),
            choice("at", &format!("mode {VIEW}"), mode, MODES).into(),
        ],
        ..ViewContent::default()
    };
    let Caches { groupings, block_groups, tables, is_unfinished, .. } = caches;
    let grouping = groupings.get(by, context.recording);
    let source = context.device_history();
    let scans = source.as_ref().and_then(|source| {
        let scans = tables.advance(source, by, grouping, is_unfinished)?;
        Some((source.lifetimes, scans))
    });
    let Some((lifetimes, (groups, spans))) = scans else {
        content.content = ViewContent::reading(context).content;
        return content;
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

/// Returns the table of groups.
fn group_table(context: &Context<'_>, groups: &GroupTable, by: GroupBy, options: &ViewOptions) -> Table {
    let mut columns = vec![
        Column::text("name", group_title(by)),
        Column::bar("bytes", "live").sortable(),
        Column::number("blocks", "blocks").sortable(),
        Column::number("peak_bytes", "peak").sortable(),
        Column::number("allocated_bytes", "allocated").sortable(),
        Column::number("allocations", "allocations").sortable(),
    ];
    let has_nested = by == GroupBy::Operation;
    if has_nested {
        columns.insert(2, Column::number("nested_bytes", "nested").sortable());
    }
    let sorting = options.sort.as_ref().and_then(|(name, is_descending)| {
        let column = columns.iter().find(|column| column.is_sortable && column.name == name)?;
        Some(Sorting { column: column.name, is_descending: *is_descending })
    });
    let mut table = Table { sorting, ..Table::new(VIEW, "Memory by group", columns) };
    let mut rows: Vec<_> = groups.rows.iter().collect();
    if let Some(Sorting { column, is_descending }) = sorting {
        sort_by_key(&mut rows, |row| {
            let value = match column {
                "blocks" => row.blocks,
                "nested_bytes" => row.nested_bytes,
                "peak_bytes" => row.peak_bytes,
                "allocated_bytes" => row.allocated_bytes,
                "allocations" => row.allocations,
                _ => row.bytes,
            };
            if is_descending { !value } else { value }
        });
    }
    let largest = groups.rows.iter().map(|row| row.bytes).max().unwrap_or(0).max(1);
    table.rows.extend(rows.into_iter().map(|row| {
        let mut cells = vec![
            Cell::from(&*row.name),
            Cell::Bytes(row.bytes),
            Cell::Count(row.blocks),
            Cell::Bytes(row.peak_bytes),
            Cell::Bytes(row.allocated_bytes),
            Cell::Count(row.allocations),
        ];
        if has_nested {
            cells.insert(2, Cell::Bytes(row.nested_bytes));
        }
        let share = row.bytes as f64 / largest as f64;
        Row::new(cells).with_share(share).with_group(context.selected_group, by, row.group)
    }));
    table
}

/// Returns the table of phases or spans, as `title` says in the singular; a click goes to the
/// beginning of the one with the highest peak.
fn span_table(title: &'static str, spans: &[SpanRow]) -> Table {
    let columns = vec![
        Column::text("name", title),
        Column::number("before_bytes", "before"),
        Column::number("peak_bytes", "peak"),
        Column::number("after_bytes", "after"),
        Column::number("kept_bytes", "kept"),
        Column::number("count", "count"),
    ];
    let mut table = Table::new(VIEW, format!("Each {title} at its highest peak"), columns);
    table.rows.extend(spans.iter().map(|span| {
        let cells = vec![
            Cell::from(&*span.name),
            Cell::Bytes(span.before_bytes),
            Cell::Bytes(span.peak_bytes),
            Cell::Bytes(span.after_bytes),
            Cell::BytesChange(span.kept_bytes()),
            Cell::Count(span.count),
        ];
        let hidden = vec![("from_event", Cell::Event(span.from_event)), ("to_event", Cell::Event(span.to_event))];
        Row { hidden, ..Row::new(cells) }.with_command(format!("seek {}", span.from_event))
    }));
    table
}
