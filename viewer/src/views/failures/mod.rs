//! Out-of-memory errors: why each request failed, and who held the memory.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use serde_json::Value;
use vramscope_insight::failures::{FailureCard, OomCause, ReservedCap};
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::placement::BlockingRegion;
use vramscope_trace::{AllocationOrigin, ByteSize, Count, DeviceId, site_name};

use crate::command::{AllocationId, Command};
use crate::timeline::moment_text;
use crate::ui::{Attribute, Element, Node, Tag, facts};
use crate::units;

use crate::details::findings;
use crate::view::{
    Cell, Context, Options, Registered, SharedCaches, StoredOptions, Table, TableBuilder, Topic, View, ViewContent,
    ViewInfo, event_link,
};

/// The view "Out of memory".
#[derive(Default)]
pub struct FailuresView {
    options: Options,
}

impl Registered for FailuresView {
    const INFO: ViewInfo = ViewInfo {
        is_about_events: true,
        topic: Some(Topic::Failures),
        row_names: &["ooms"],
        ..ViewInfo::new("failures", "Out of memory", ("Explain out-of-memory errors", &["0"]))
    };
}

impl View for FailuresView {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, shared)
    }
}

/// Name of the view in commands and links.
const VIEW: &str = FailuresView::INFO.name;

/// Maximum number of sites that the card of an out-of-memory error lists as holders of memory.
const HOLDERS: usize = 6;

/// Returns the content of the view "Out of memory": a card for every out-of-memory error of the
/// recording.
fn content(context: &Context<'_>, caches: &mut SharedCaches) -> ViewContent {
    let cards = match caches.failures.failures(context.recording) {
        Ok(failures) => failures.cards(context.recording),
        Err(error) => return ViewContent::message(format!("The failures cannot be read: {error}")),
    };
    if cards.is_empty() {
        let content = ViewContent::message("No request failed in this recording.");
        return ViewContent { table: Some(table(context, &cards)), ..content };
    }
    let placements = caches.failures.placements(context.recording).map(<[_]>::to_vec).unwrap_or_default();
    let summary = format!("{} in this recording", Count(cards.len() as u64).of("failed request", "failed requests"));
    let mut content = vec![Element::text(Tag::P, summary).with_class("summary").into()];
    let by_site = caches.groupings.get(GroupBy::Site, context.recording);
    content.extend(cards.iter().enumerate().map(|(index, card)| {
        let placement = placements.get(index).and_then(Option::as_ref);
        card_node(context, card, placement.and_then(|placement| placement.blocking.as_ref()), by_site)
    }));
    ViewContent { content, table: Some(table(context, &cards)), ..ViewContent::default() }
}

/// Returns the out-of-memory errors as a table, for scripts.
fn table(context: &Context<'_>, cards: &[FailureCard]) -> Table {
    let cap = |card: &FailureCard| match card.cap {
        ReservedCap::None => Cell::Empty,
        ReservedCap::Exact { bytes } | ReservedCap::Bounds { below_bytes: bytes, .. } => Cell::Bytes(bytes),
    };
    TableBuilder::new(VIEW, "Out-of-memory errors", cards)
        .number("event", "event", |card| Cell::Event(card.failure.event))
        .count("device", "device", |card| card.failure.device.0.into())
        .bytes("requested_bytes", "requested", |card| card.failure.requested_bytes)
        .text("cause", "cause", |card| cause_text(context, card))
        .bytes("largest_free_bytes", "largest free", |card| card.failure.largest_own_bytes)
        .bytes("releasable_bytes", "releasable", |card| card.failure.usage.releasable_bytes)
        .bytes("stuck_bytes", "stuck", |card| card.failure.usage.stuck_bytes)
        .bytes("reserved_bytes", "reserved", |card| card.failure.usage.reserved_bytes)
        .bytes("allocated_bytes", "allocated", |card| card.failure.usage.allocated_bytes)
        .number("cap_bytes", "cap", cap)
        .text("site", "site", |card| site_name(context.definitions(), card.failure.site))
        .text("summary", "summary", |card| card.summary.clone())
        .build()
}

/// Returns the finding about a failure, which weighs the program's growth and needs, too.
fn finding<'a>(context: &'a Context<'_>, card: &FailureCard) -> Option<&'a Value> {
    findings::of_failure(context.jobs, card.failure.device, card.failure.event)
}

/// Returns why a request failed, in a few words: as the findings say, or else what the allocator's
/// state alone shows.
fn cause_text(context: &Context<'_>, card: &FailureCard) -> String {
    let id = finding(context, card).and_then(|finding| finding["id"].as_str());
    let cause = id.and_then(|id| OomCause::from_id(id.strip_prefix("oom.")?)).unwrap_or(card.cause);
    cause.name().to_owned()
}

/// Returns ` on ` and a device's name; empty in a recording of one device.
fn device_text(context: &Context<'_>, device: DeviceId) -> String {
    let name = || context.recording.info().device_short_label(device);
    if context.recording.devices().count() > 1 { format!(" on {}", name()) } else { String::new() }
}

/// Creates the card of an out-of-memory error. `blocking` is the region in which the fewest live
/// bytes would have had to be freed for the request.
fn card_node(
    context: &Context<'_>,
    card: &FailureCard,
    blocking: Option<&BlockingRegion>,
    by_site: &mut Grouping,
) -> Node {
    let failure = &card.failure;
    let size = |bytes: u64| Node::from(units::rounded_and_exact_size(bytes));
    let is_current = failure.event.abs_diff(context.moment) <= 1;
    let title = format!("{} failed{}", ByteSize(failure.requested_bytes), device_text(context, failure.device));
    let heading = Element::text(Tag::H2, title)
        .with_child(event_link(failure.event))
        .with_child(Element::text(Tag::Span, moment_text(context.recording, failure.time_ns)).with_class("pinned"))
        .with_child(Element::text(Tag::Span, cause_text(context, card)).with_class("cause"));
    let summary = finding(context, card).and_then(|finding| finding["summary"].as_str());
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
        let command = Command::Group(GroupBy::Site, group, Some(failure.event));
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
        .with_child(Element::text(Tag::P, summary.unwrap_or(&card.summary)))
        .with_child(facts(rows));
    if let Some(blocking) = blocking {
        let blocks = Count(blocking.blocks.len() as u64).of("block", "blocks");
        let live = ByteSize(blocking.live_bytes);
        let together = if blocking.blocks.len() > 1 { " together" } else { "" };
        let title = format!("In the way: it would have fit if {blocks} of {live}{together} had been freed");
        let mut list = Element::new(Tag::Ul).with_class("holders");
        for block in blocking.blocks.iter().take(HOLDERS) {
            let text = format!("{}  {}", ByteSize(block.bytes), site_name(context.definitions(), block.site));
            let command = Command::SelectAllocation(AllocationId {
                address: block.address,
                since: block.allocated_at,
                moment: Some(failure.event),
            });
            let is_selected = context.selection == Some((block.address, Some(block.allocated_at)));
            list = list.with_child(link_item(text, command, "Select this block at this moment", is_selected));
        }
        node = node.with_child(Element::text(Tag::H3, title)).with_child(list);
    }
    node.with_child(Element::text(Tag::H3, "Largest holders")).with_child(holders).into()
}

/// Creates a list item with a link that runs a command.
fn link_item(text: String, command: Command, title: &str, is_selected: bool) -> Element {
    let link = Element::button(text, command)
        .with_class("link")
        .with(Attribute::Title, title)
        .with(Attribute::AriaPressed, is_selected.to_string());
    Element::new(Tag::Li).with_child(link)
}
