//! The table of `vramscope table`: live bytes, peaks and allocations by phase, line, operation and
//! more, and the memory around phases and spans.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use vramscope_insight::group::GroupBy;
use vramscope_insight::incremental::TableAnalysis;
use vramscope_insight::sites::{groups_at, live_groups};
use vramscope_insight::tables::{GroupTable, SpanRow, TableRow};

use crate::command::Command;
use crate::ui::{Element, Tag};
use crate::view::{
    Cell, Column, Context, Options, Registered, SharedCaches, StoredOptions, Table, TableBuilder, View, ViewContent,
    ViewInfo, group_choice, group_title, mode_choice, modes, paint_groups,
};

/// The view "Memory table".
#[derive(Default)]
pub struct MemoryTable {
    options: Options<Mode>,
    tables: TableAnalysis,
}

impl Registered for MemoryTable {
    const INFO: ViewInfo = ViewInfo {
        needs_history: true,
        ..ViewInfo::new("table", "Memory table", ("Show memory by phase, line or operation", &["; t"]))
    };
}

impl View for MemoryTable {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, &self.options, shared, &mut self.tables)
    }

    fn forget(&mut self) {
        self.tables = TableAnalysis::default();
    }
}

modes! {
    /// The memory that the view shows, and the table that scripts get.
    Mode {
        /// Memory at the moment on the screen.
        Moment = "moment", "this moment";
        /// Memory at the peak of the allocated bytes.
        Peak = "peak", "the peak";
        /// Scripts get the table of phases.
        Phases = "phases", "phases";
        /// Scripts get the table of spans.
        Spans = "spans", "spans";
    }
}

/// Name of the view in commands and links.
const VIEW: &str = MemoryTable::INFO.name;

/// Returns the content of the view "Memory table": live bytes, peaks and allocations by group.
/// Scripts get the table of phases with the mode `phases`, and the table of spans with `spans`.
fn content(
    context: &Context<'_>,
    options: &Options<Mode>,
    caches: &mut SharedCaches,
    tables: &mut TableAnalysis,
) -> ViewContent {
    let by = options.by.unwrap_or(GroupBy::Phase);
    let mode = options.mode.unwrap_or(Mode::Moment);
    let mut content = ViewContent::with_controls([
        group_choice(VIEW, by, &GroupBy::ALL),
        mode_choice("at", VIEW, &mode, &Mode::MENU[..2]),
    ]);
    let SharedCaches { groupings, block_groups, is_unfinished, .. } = caches;
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
    let is_at_peak = mode == Mode::Peak;
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
    for (name, title, rows) in [(Mode::Phases, "phase", spans.phases()), (Mode::Spans, "span", spans.rows())] {
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
fn group_table(context: &Context<'_>, groups: &GroupTable, by: GroupBy, options: &Options<Mode>) -> Table {
    let number = |name, title| Column::number(name, title).sortable();
    let mut table = TableBuilder::new(VIEW, "Memory by group", &groups.rows)
        .text("name", group_title(by), |row| Cell::from(&*row.name))
        .bar_column(Column::bar("bytes", "live").sortable(), |row| Cell::Bytes(row.bytes));
    if by == GroupBy::Operation {
        table = table.column(number("nested_bytes", "nested"), |row| Cell::Bytes(row.nested_bytes));
    }
    table = table
        .column(number("blocks", "blocks"), |row| Cell::Count(row.blocks))
        .column(number("peak_bytes", "peak"), |row| Cell::Bytes(row.peak_bytes))
        .column(number("allocated_bytes", "allocated"), |row| Cell::Bytes(row.allocated_bytes))
        .column(number("allocations", "allocations"), |row| Cell::Count(row.allocations));
    if groups.rows.iter().any(|row| row.model_calls.is_some()) {
        let call = |row: &TableRow| row.model_calls.as_deref().map_or(Cell::Empty, Cell::from);
        table = table.text("model_called_at", "model called at", call);
    }
    table.groups(context.selected_group, by, |row| row.group).sorted(options.sort.as_ref()).build()
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
        .commands(|span| Command::seek(span.from_event))
        .build()
}
