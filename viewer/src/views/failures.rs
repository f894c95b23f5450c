//! Out-of-memory errors: why each request failed, and who held the memory.

use vramscope_insight::failures::{FailureCard, ReservedCap};
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::placement::BlockingRegion;
use vramscope_trace::{AllocationOrigin, ByteSize, Count, DeviceId, site_name};

use crate::timeline::moment_text;
use crate::ui::{Attribute, Element, Node, Tag, facts};
use crate::units;

use super::caches::Caches;
use super::context::{Context, ViewContent};
use super::kind::ViewKind;
use super::table::{Cell, Column, Row, Table};

/// Maximum number of sites listed as holders of memory on a card.
const HOLDERS: usize = 6;

/// Returns the content of the view: a card for every failure of the recording.
#[must_use]
pub fn content(context: &Context<'_>, caches: &mut Caches) -> ViewContent {
    let cards = match caches.failures(context.recording) {
        Ok(failures) => failures.cards(context.recording),
        Err(error) => return ViewContent::message(format!("The failures cannot be read: {error}")),
    };
    if cards.is_empty() {
        let mut content = ViewContent::message("No request failed in this recording.");
        content.table = Some(table(context, &cards));
        return content;
    }
    let placements = caches.failed_placements(context.recording).map(<[_]>::to_vec).unwrap_or_default();
    let summary = format!("{} in this recording", Count(cards.len() as u64).of("failed request", "failed requests"));
    let mut content = vec![Element::text(Tag::P, summary).with_class("summary").into()];
    let by_site = caches.groupings.get(GroupBy::Site, context.recording);
    content.extend(cards.iter().enumerate().map(|(index, card)| {
        let placement = placements.get(index).and_then(Option::as_ref);
        card_node(context, card, placement.and_then(|placement| placement.blocking.as_ref()), by_site)
    }));
    ViewContent { content, table: Some(table(context, &cards)), ..ViewContent::default() }
}

/// Returns the failures as a table, for scripts.
fn table(context: &Context<'_>, cards: &[FailureCard]) -> Table {
    let columns = vec![
        Column::number("event", "event"),
        Column::number("device", "device"),
        Column::number("requested_bytes", "requested"),
        Column::text("cause", "cause"),
        Column::number("largest_free_bytes", "largest free"),
        Column::number("releasable_bytes", "releasable"),
        Column::number("stuck_bytes", "stuck"),
        Column::number("reserved_bytes", "reserved"),
        Column::number("allocated_bytes", "allocated"),
        Column::number("cap_bytes", "cap"),
        Column::text("site", "site"),
        Column::text("summary", "summary"),
    ];
    let mut table = Table::new(ViewKind::Failures.name(), "Out-of-memory errors", columns);
    table.rows.extend(cards.iter().map(|card| {
        let failure = &card.failure;
        let cap = match card.cap {
            ReservedCap::None => Cell::Empty,
            ReservedCap::Exact { bytes } => Cell::Bytes(bytes),
            ReservedCap::Bounds { below_bytes, .. } => Cell::Bytes(below_bytes),
        };
        Row::new(vec![
            Cell::Event(failure.event),
            Cell::Count(u64::from(failure.device.0)),
            Cell::Bytes(failure.requested_bytes),
            card.cause.name().into(),
            Cell::Bytes(failure.largest_own_bytes),
            Cell::Bytes(failure.usage.releasable_bytes),
            Cell::Bytes(failure.usage.stuck_bytes),
            Cell::Bytes(failure.usage.reserved_bytes),
            Cell::Bytes(failure.usage.allocated_bytes),
            cap,
            site_name(context.definitions(), failure.site).into(),
            card.summary.clone().into(),
        ])
    }));
    table
}

/// Returns the name of a device in a recording of several, or nothing.
fn device_text(context: &Context<'_>, device: DeviceId) -> String {
    let name = || context.recording.info().device_short_label(device);
    if context.recording.devices().count() > 1 { format!(" on {}", name()) } else { String::new() }
}

/// Returns the card of a failure; `blocking` is the region that would have served the request if
/// the fewest live bytes had been freed.
fn card_node(
    context: &Context<'_>,
    card: &FailureCard,
    blocking: Option<&BlockingRegion>,
    by_site: &mut Grouping,
) -> Node {
    let failure = &card.failure;
    let size = |bytes: u64| Node::from(units::rounded_and_exact_size(bytes));
    let is_current = failure.event.abs_diff(context.moment) <= 1;
    let event = Element::button(format!("event {}", Count(failure.event)), format!("seek {}", failure.event))
        .with_class("link")
        .with(Attribute::Title, "Go to this moment");
    let title = format!("{} failed{}", ByteSize(failure.requested_bytes), device_text(context, failure.device));
    let heading = Element::text(Tag::H2, title)
        .with_child(event)
        .with_child(Element::text(Tag::Span, moment_text(context.recording, failure.time_ns)).with_class("pinned"))
        .with_child(Element::text(Tag::Span, card.cause.name()).with_class("cause"));
    let own = format!(
        "{}, of {} free in its pool and stream",
        ByteSize(failure.largest_own_bytes),
        ByteSize(failure.own_free_bytes)
    );
    let rows = vec![
        ("requested", size(failure.requested_bytes)),
        ("requested at", Node::from(site_name(context.definitions(), failure.site))),
        ("largest free block", own.into()),
        ("releasable", size(failure.usage.releasable_bytes)),
        ("stuck between blocks", size(failure.usage.stuck_bytes)),
        ("allocated", size(failure.usage.allocated_bytes)),
        ("reserved", size(failure.usage.reserved_bytes)),
        ("cap", card.cap.label().into()),
        ("free on the device", size(failure.device_free_bytes)),
    ];
    let mut holders = Element::new(Tag::Ul).with_class("holders");
    for holding in failure.holdings.iter().take(HOLDERS) {
        let origin = AllocationOrigin { site: holding.site, stream: failure.stream, pool: failure.pool };
        let group = by_site.group_of_origin(&origin, 0, false);
        let command = format!("group {} {group} {}", GroupBy::Site.name(), failure.event);
        let blocks = Count(holding.blocks).of("block", "blocks");
        let text =
            format!("{} in {blocks}  {}", ByteSize(holding.bytes), site_name(context.definitions(), holding.site));
        let is_selected = context.selected_group == Some((GroupBy::Site, group));
        holders = holders.with_child(link_item(text, command, "Select its blocks at this moment", is_selected));
    }
    let mut node = Element::new(Tag::Div)
        .with_class(if is_current { "card current" } else { "card" })
        .with(Attribute::Key, failure.event.to_string())
        .with_child(heading)
        .with_child(Element::text(Tag::P, card.summary.as_str()))
        .with_child(facts(rows));
    if let Some(blocking) = blocking {
        let blocks = Count(blocking.blocks.len() as u64).of("block", "blocks");
        let live = ByteSize(blocking.live_bytes);
        let title = format!("In the way: it would have fit if {blocks} of {live} together had been freed");
        let mut list = Element::new(Tag::Ul).with_class("holders");
        for block in blocking.blocks.iter().take(HOLDERS) {
            let text = format!("{}  {}", ByteSize(block.bytes), site_name(context.definitions(), block.site));
            let command = format!("select-allocation {:#x} {} {}", block.address, block.allocated_at, failure.event);
            let is_selected = context.selection == Some((block.address, Some(block.allocated_at)));
            list = list.with_child(link_item(text, command, "Select this block at this moment", is_selected));
        }
        node = node.with_child(Element::text(Tag::H3, title)).with_child(list);
    }
    node.with_child(Element::text(Tag::H3, "Largest holders")).with_child(holders).into()
}

/// Returns an item of a list that runs a command.
fn link_item(text: String, command: String, title: &str, is_selected: bool) -> Element {
    let link = Element::button(text, command)
        .with_class("link")
        .with(Attribute::Title, title)
        .with(Attribute::AriaPressed, is_selected.to_string());
    Element::new(Tag::Li).with_child(link)
}
