//! "What fits": where the allocator would place a request of a size that the user types.

use vramscope_insight::placement::{Placement, PlacementOutcome, PlacementRequest, placement};
use vramscope_pool::Settings;
use vramscope_trace::{ByteSize, Counters, DeviceId, site_name};

use crate::command::{Command, Field};
use crate::ui::{Element, Tag};

use super::context::Context;
use super::controls::search_field;

/// Maximum number of blocks in the way of a request that are listed.
const BLOCKS_IN_THE_WAY: usize = 8;

/// The inputs of the placement of a typed request, which is computed again when they change.
#[derive(Clone, Debug, PartialEq)]
struct PlacementKey {
    device: DeviceId,
    moment: u64,
    counters: Counters,
    cap_bytes: Option<u64>,
    size: String,
}

/// The last computed placement of a typed request, with its inputs.
#[derive(Default)]
pub struct FitCache(Option<(PlacementKey, Result<Placement, String>)>);

/// Returns where the allocator would place a request of the typed `size` at the moment; `None` if
/// nothing was typed. The result is cached until the moment or the size changes.
///
/// # Errors
/// If the size is invalid, or the request cannot be placed: a message for the user.
pub(crate) fn fit<'a>(
    context: &Context<'_>,
    size: &str,
    settings: &Settings,
    cache: &'a mut FitCache,
) -> Option<Result<&'a Placement, &'a str>> {
    if size.is_empty() {
        return None;
    }
    let key = PlacementKey {
        device: context.device,
        moment: context.moment,
        counters: context.state.counters(),
        cap_bytes: settings.limit_bytes,
        size: size.to_owned(),
    };
    let kept = cache.0.take().filter(|(known, _)| *known == key);
    let (_, result) = cache.0.insert(kept.unwrap_or_else(|| {
        let result = size.parse::<ByteSize>().map_err(|error| error.to_string()).and_then(|ByteSize(bytes)| {
            let request = PlacementRequest::new(context.state, bytes);
            placement(context.state, &request, settings).map_err(|error| error.to_string())
        });
        (key, result)
    }));
    Some(result.as_ref().map_err(String::as_str))
}

/// Returns the address and size of the memory that a request would get, or, if no free block fits,
/// of the region in which the fewest live bytes are in its way.
pub(crate) fn outlined_range(placement: &Placement) -> Option<(u64, u64)> {
    match placement.outcome {
        PlacementOutcome::FreeBlock { address, .. } => Some((address, placement.block_bytes)),
        _ => placement.blocking.as_ref().map(|region| (region.address, region.bytes)),
    }
}

/// Creates the field in which the user types the size of a request to place, for the controls of a
/// view.
pub(crate) fn size_field(view: &'static str, size: &str) -> Element {
    search_field("fit", "Size of a request", "what fits: 500MiB", size, Field::Filter(view.into()))
}

/// Creates the card that shows where a request would be placed and which blocks are in its way, or
/// why it cannot be placed.
pub(crate) fn fit_card(context: &Context<'_>, fit: Result<&Placement, &str>) -> Element {
    let placement = match fit {
        Ok(placement) => placement,
        Err(message) => return Element::text(Tag::P, message).with_class("nothing"),
    };
    let fits = matches!(placement.outcome, PlacementOutcome::FreeBlock { .. });
    let class = if fits { "card" } else { "card current" };
    let mut card = Element::new(Tag::Div).with_class(class).with_child(Element::text(Tag::P, placement.summary()));
    if placement.blocking.is_some() {
        let list = Element::new(Tag::Ul).with_class("holders").with_children(blocks_in_the_way(context, placement));
        card = card.with_child(Element::text(Tag::H2, "In the way")).with_child(list);
    }
    card
}

/// Creates a list item for each block in the way of a request, at most [`BLOCKS_IN_THE_WAY`]; a
/// click selects the block.
fn blocks_in_the_way(context: &Context<'_>, placement: &Placement) -> impl Iterator<Item = Element> {
    let blocks = placement.blocking.iter().flat_map(|region| &region.blocks).take(BLOCKS_IN_THE_WAY);
    blocks.map(|block| {
        let text = format!("{}  {}", ByteSize(block.bytes), site_name(context.definitions(), block.site));
        let command = Command::select_allocation(block.address, block.allocated_at);
        Element::new(Tag::Li).with_child(Element::button(text, command).with_class("link"))
    })
}
