//! "What fits": where the allocator would place a request of a size that the user types.

use vramscope_insight::placement::{Placement, PlacementOutcome};
use vramscope_trace::{ByteSize, site_name};

use crate::command::{Command, Field};
use crate::ui::{Element, Tag};

use super::caches::SharedCaches;
use super::context::Context;
use super::controls::search_field;

/// Maximum number of blocks in the way of a request that are listed.
const BLOCKS_IN_THE_WAY: usize = 8;

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

/// Creates the card that shows where a request of the typed `size` would be placed and which blocks
/// are in its way, or why it cannot be placed; `None` if nothing was typed.
pub(crate) fn fit_card(context: &Context<'_>, size: &str, caches: &mut SharedCaches) -> Option<Element> {
    let placement = match caches.placement_of(context, size)? {
        Ok(placement) => placement,
        Err(message) => return Some(Element::text(Tag::P, message).with_class("nothing")),
    };
    let fits = matches!(placement.outcome, PlacementOutcome::FreeBlock { .. });
    let class = if fits { "card" } else { "card current" };
    let mut card = Element::new(Tag::Div).with_class(class).with_child(Element::text(Tag::P, placement.summary()));
    if placement.blocking.is_some() {
        let list = Element::new(Tag::Ul).with_class("holders").with_children(blocks_in_the_way(context, placement));
        card = card.with_child(Element::text(Tag::H2, "In the way")).with_child(list);
    }
    Some(card)
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
