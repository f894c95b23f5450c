//! A failed request on the map: where it was tried, what is in its way, and how much is missing.

use vramscope_insight::failures::Failure;
use vramscope_insight::placement::Placement;
use vramscope_trace::{ByteSize, Count, DurationNs, PoolKind, site_name};

use crate::command::Command;
use crate::ui::{Attribute, Element, Tag};
use crate::view::{Context, SharedCaches};

/// Maximum number of blocks in the way of the request that are listed.
const MAX_BLOCKS: usize = 6;

/// A request that failed at the moment on the screen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FailedRequest {
    /// Number of the out-of-memory event.
    pub(super) event: u64,
    /// Size in bytes of the block that it needed.
    pub(super) bytes: u64,
    /// The kind of pool that it was made from.
    pub(super) pool: PoolKind,
    /// Address and size of the region that it would have got, if the blocks in it were free.
    pub(super) region: Option<(u64, u64)>,
    /// Address and size of each block in the region.
    pub(super) blocks: Vec<(u64, u64)>,
}

/// Returns the failure of the device at the moment, and where its request was tried.
fn at_moment<'a>(context: &Context<'_>, shared: &'a mut SharedCaches) -> Option<(&'a Failure, Option<&'a Placement>)> {
    let (recording, device) = (context.recording, context.device);
    shared.failures.at(recording, device, context.moment).ok().flatten()
}

/// Returns the request that failed at the moment; `None` if none did.
pub(super) fn failed_request(context: &Context<'_>, shared: &mut SharedCaches) -> Option<FailedRequest> {
    let (failure, placement) = at_moment(context, shared)?;
    let blocking = placement.and_then(|placement| placement.blocking.as_ref());
    Some(FailedRequest {
        event: failure.event,
        bytes: failure.rounded_bytes,
        pool: failure.pool.kind,
        region: blocking.map(|region| (region.address, region.bytes)),
        blocks: blocking.iter().flat_map(|region| &region.blocks).map(|block| (block.address, block.bytes)).collect(),
    })
}

/// Returns the card about the request that failed at the moment: how much the largest free block
/// lacks, the blocks in its way, and what could have been released; `None` if none failed.
pub(super) fn failure_card(context: &Context<'_>, shared: &mut SharedCaches) -> Option<Element> {
    let (failure, placement) = at_moment(context, shared)?;
    let size = ByteSize(failure.rounded_bytes);
    let largest = match failure.largest_own_bytes {
        0 => "no block is free in its pool and stream".to_owned(),
        bytes if bytes >= failure.rounded_bytes => format!("a free block of {} would fit", ByteSize(bytes)),
        bytes => {
            let missing = ByteSize(failure.rounded_bytes - bytes);
            format!("the largest free block, {}, is too small by {missing}", ByteSize(bytes))
        }
    };
    let free = ByteSize(failure.own_free_bytes);
    let title = format!("{size} failed here: {largest}; {free} are free in its pool and stream.");
    let mut card = Element::new(Tag::Div)
        .with_class("card current")
        .with(Attribute::Key, failure.event.to_string())
        .with_child(Element::text(Tag::P, title));
    let cap = placement.and_then(|placement| placement.cap_bytes);
    let usage = &failure.usage;
    let mut facts = vec![format!("{} reserved", ByteSize(usage.reserved_bytes))];
    facts.extend(cap.map(|cap| format!("a cap of about {}", ByteSize(cap))));
    facts.push(format!("{} in whole free segments could be released", ByteSize(usage.releasable_bytes)));
    facts.push(format!("{} free on the device", ByteSize(failure.device_free_bytes)));
    card = card.with_child(Element::text(Tag::P, facts.join(" · ")).with_class("note"));
    if let Some(region) = placement.and_then(|placement| placement.blocking.as_ref()) {
        let (blocks, live) = (Count(region.blocks.len() as u64).of("block", "blocks"), ByteSize(region.live_bytes));
        let together = if region.blocks.len() > 1 { " together" } else { "" };
        let title = format!("Outlined: it would have fit if {blocks} of {live}{together} had been freed");
        let items = region.blocks.iter().take(MAX_BLOCKS).map(|block| {
            let age = failure.time_ns.saturating_sub(context.history.time_ns(block.allocated_at));
            let age = match context.recording.info().lacks_times || context.lifetimes().is_none() {
                true => format!("{} events old", Count(failure.event.saturating_sub(block.allocated_at))),
                false => format!("{} old", DurationNs(age)),
            };
            let text = format!("{}  {}  {age}", ByteSize(block.bytes), site_name(context.definitions(), block.site));
            let command = Command::select_allocation(block.address, block.allocated_at);
            Element::new(Tag::Li).with_child(Element::button(text, command).with_class("link"))
        });
        let list = Element::new(Tag::Ul).with_class("holders").with_children(items);
        card = card.with_child(Element::text(Tag::H2, title)).with_child(list);
    }
    let verdict = &context.jobs.findings.verdict;
    let is_about = verdict["device"] == u64::from(context.device.0)
        && verdict["cause"].as_str().is_some_and(|cause| cause.starts_with("oom."));
    let line = verdict["remedy_lines"][0].as_str().filter(|_| is_about).unwrap_or_default();
    if let Some((_, setting)) = line.split_once("PYTORCH_CUDA_ALLOC_CONF=") {
        let setting = setting.trim_matches('"');
        let command = Command::Try(setting.to_owned());
        let title = format!("Show this moment with {setting}, simulated");
        card =
            card.with_child(Element::button(format!("Show it with {setting}"), command).with(Attribute::Title, title));
    }
    Some(card)
}
