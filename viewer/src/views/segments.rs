//! Free memory by pool and stream, what private pools hold, and where a request would fit.

use vramscope_insight::group::{pool_name, stream_name};
use vramscope_insight::pools::{PoolUsage, pool_rows, private_pools, releasable_by_device};
use vramscope_trace::{ByteSize, Count, site_name};

use crate::ui::{Element, Tag};

use super::caches::Caches;
use super::context::{Context, ViewContent, ViewOptions};
use super::fit;
use super::kind::ViewKind;
use super::table::{Cell, Column, Row, Table};

/// Maximum number of sites listed for a private pool.
const HOLDERS: usize = 8;

/// Returns the content of the view.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut Caches) -> ViewContent {
    const VIEW: &str = ViewKind::Segments.name();
    let settings = caches.settings(context);
    let field = fit::size_field(VIEW, &options.filter);
    let mut content = ViewContent { controls: vec![field.into()], ..ViewContent::default() };
    if let Some(found) = fit::fit(context, &options.filter, &settings, &mut caches.fit) {
        content.content.push(fit::fit_card(context, found).into());
    }
    let rows = pool_rows(context.state, &settings);
    let total: PoolUsage = rows.iter().map(|row| &row.usage).sum();
    let has_pending = total.pending_bytes > 0;
    let mut table = Table::new(ViewKind::Segments.name(), "Memory by pool and stream", usage_columns(has_pending));
    table.rows.extend(
        rows.iter().map(|row| usage_row([pool_name(row.pool), stream_name(row.stream)], &row.usage, has_pending)),
    );
    let mut shown = table.clone();
    shown.rows.push(usage_row(["all", "all"].map(str::to_owned), &total, has_pending));
    content.content.push(shown.element().into());
    content.table = Some(table);
    for pool in private_pools(context.state, &settings) {
        let title = format!("Private pool ({}, {})", pool.owner.0, pool.owner.1);
        let usage = &pool.usage;
        let text = format!(
            "{} live in {}, {} free; held by",
            ByteSize(usage.allocated_bytes.saturating_add(usage.pending_bytes)),
            Count(usage.blocks).of("block", "blocks"),
            ByteSize(usage.free.total)
        );
        let mut list = Element::new(Tag::Ul).with_class("holders");
        for holding in pool.holdings.iter().take(HOLDERS) {
            let text = format!("{}  {}", ByteSize(holding.bytes), site_name(context.definitions(), holding.site));
            list = list.with_child(Element::text(Tag::Li, text));
        }
        content.content.push(Element::text(Tag::H2, title).into());
        content.content.push(Element::text(Tag::P, text).into());
        content.content.push(list.into());
    }
    if context.recording.devices().nth(1).is_some() {
        content.content.push(Element::text(Tag::H2, "What each device could release").into());
        let columns = vec![
            Column::text("device", "device"),
            Column::number("releasable_bytes", "releasable"),
            Column::number("allocated_bytes", "allocated"),
            Column::number("reserved_bytes", "reserved"),
        ];
        let mut devices = Table::new(ViewKind::Segments.name(), "Bytes by device", columns);
        let memory = context.all_devices.memory();
        for (device, bytes) in releasable_by_device(memory, &settings) {
            let counters = memory.device(device).map(|one| one.counters()).unwrap_or_default();
            let name = context.recording.info().device_label(device);
            let sizes = [bytes, counters.allocated, counters.reserved].map(Cell::Bytes);
            let row = Row::new(std::iter::once(name.into()).chain(sizes).collect());
            devices.rows.push(row.with_command(format!("device {}", device.0)));
        }
        content.content.push(devices.element().into());
    }
    content
}

/// Returns the columns of the table of pools; `has_pending` if some memory is pending free.
fn usage_columns(has_pending: bool) -> Vec<Column> {
    let mut columns = vec![
        Column::text("pool", "pool"),
        Column::text("stream", "stream"),
        Column::number("segments", "segments"),
        Column::number("reserved_bytes", "reserved"),
        Column::number("allocated_bytes", "allocated"),
        Column::number("free_bytes", "free"),
        Column::number("releasable_bytes", "releasable"),
        Column::number("stuck_bytes", "stuck"),
        Column::number("largest_free_bytes", "largest free"),
        Column::number("fragmentation", "frag"),
    ];
    if has_pending {
        columns.push(Column::number("pending_bytes", "pending free"));
    }
    columns
}

/// Returns the row of a pool and stream, with the columns of [`usage_columns`].
fn usage_row(names: [String; 2], usage: &PoolUsage, has_pending: bool) -> Row {
    let mut cells: Vec<Cell> = names.map(Cell::from).into();
    cells.extend([
        Cell::Count(usage.segments),
        Cell::Bytes(usage.reserved_bytes),
        Cell::Bytes(usage.allocated_bytes),
        Cell::Bytes(usage.free.total),
        Cell::Bytes(usage.releasable_bytes),
        Cell::Bytes(usage.stuck_bytes),
        Cell::Bytes(usage.free.largest),
        Cell::Share(usage.fragmentation()),
    ]);
    let pending = Cell::Bytes(usage.pending_bytes);
    if has_pending {
        cells.push(pending);
        return Row::new(cells);
    }
    Row { hidden: vec![("pending_bytes", pending)], ..Row::new(cells) }
}
