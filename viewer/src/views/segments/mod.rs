//! Free memory by pool and stream, what private pools hold, and where a request would fit.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use vramscope_insight::group::{pool_name, stream_name};
use vramscope_insight::pools::{PoolUsage, pool_rows, private_pools, releasable_by_device};
use vramscope_trace::{ByteSize, Count, site_name};

use crate::command::Command;
use crate::ui::{Element, Node, Tag};

use crate::view::{
    Cell, Column, Context, Options, Registered, SharedCaches, StoredOptions, Table, TableBuilder, Topic, View,
    ViewContent, ViewInfo, fit,
};

/// The view "Pools and segments". Its filter is a size: it shows where a request would fit.
#[derive(Default)]
pub struct Segments {
    options: Options,
}

impl Registered for Segments {
    const INFO: ViewInfo = ViewInfo {
        topic: Some(Topic::Pools),
        ..ViewInfo::new("segments", "Pools and segments", ("List pools and segments", &["v"]))
    };
}

impl View for Segments {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, &self.options, shared)
    }
}

/// Name of the view in commands and links.
const VIEW: &str = Segments::INFO.name;

/// Maximum number of sites that the view "Pools and segments" lists for a private pool.
const HOLDERS: usize = 8;

/// Returns the content of the view "Pools and segments": free memory by pool and stream, private
/// pools, and where a request would fit.
fn content(context: &Context<'_>, options: &Options, caches: &mut SharedCaches) -> ViewContent {
    let settings = caches.failures.settings(context.recording, context.device);
    let field = fit::size_field(VIEW, &options.filter);
    let mut content = ViewContent::with_controls([field]);
    content.content.extend(fit::fit_card(context, &options.filter, caches).map(Node::from));
    let rows = pool_rows(context.state, &settings);
    let total: PoolUsage = rows.iter().map(|row| &row.usage).sum();
    let mut usages: Vec<([String; 2], &PoolUsage)> =
        rows.iter().map(|row| ([pool_name(row.pool), stream_name(row.stream)], &row.usage)).collect();
    usages.push((["all", "all"].map(str::to_owned), &total));
    let mut table = usage_table(&usages, total.pending_bytes > 0);
    content.content.push(table.element().into());
    // Scripts get no row with the sums.
    table.rows.pop();
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
        let memory = context.all_devices.memory();
        let counters = |device| memory.device(device).map(|one| one.counters()).unwrap_or_default();
        let devices = TableBuilder::new(VIEW, "Bytes by device", &releasable_by_device(memory, &settings))
            .text("device", "device", |(device, _)| context.recording.info().device_label(*device))
            .bytes("releasable_bytes", "releasable", |(_, bytes)| *bytes)
            .bytes("allocated_bytes", "allocated", |(device, _)| counters(*device).allocated)
            .bytes("reserved_bytes", "reserved", |(device, _)| counters(*device).reserved)
            .commands(|(device, _)| Command::Device(*device))
            .build();
        content.content.push(devices.element().into());
    }
    content
}

/// Returns the table of memory by pool and stream. Each row has the names of a pool and a stream,
/// and their memory.
fn usage_table(rows: &[([String; 2], &PoolUsage)], has_pending: bool) -> Table {
    TableBuilder::new(VIEW, "Memory by pool and stream", rows)
        .text("pool", "pool", |([pool, _], _)| pool.clone())
        .text("stream", "stream", |([_, stream], _)| stream.clone())
        .count("segments", "segments", |(_, usage)| usage.segments)
        .bytes("reserved_bytes", "reserved", |(_, usage)| usage.reserved_bytes)
        .bytes("allocated_bytes", "allocated", |(_, usage)| usage.allocated_bytes)
        .bytes("free_bytes", "free", |(_, usage)| usage.free.total)
        .bytes("releasable_bytes", "releasable", |(_, usage)| usage.releasable_bytes)
        .bytes("stuck_bytes", "stuck", |(_, usage)| usage.stuck_bytes)
        .bytes("largest_free_bytes", "largest free", |(_, usage)| usage.free.largest)
        .number("fragmentation", "frag", |(_, usage)| Cell::Share(usage.fragmentation()))
        .column_if(has_pending, Column::number("pending_bytes", "pending free"), |(_, usage)| {
            Cell::Bytes(usage.pending_bytes)
        })
        .build()
}
