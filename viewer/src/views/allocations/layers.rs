//! The groups of allocations that share a color, and the view's layouts.

use std::sync::Arc;

use vramscope_draw::GroupStyle;
use vramscope_insight::composition::{CompositionColumn, OTHER_LAYER};
use vramscope_insight::group::{GroupBy, Groupings};
use vramscope_trace::Allocation;

use crate::command::Command;
use crate::linked_memory::LinkedMemory;
use crate::view::{Context, Options, SharedCaches, group_called, group_styles, modes, site_grouping};

modes! {
    /// The layout of the picture.
    Layout {
        /// The live allocations above each other.
        Stacked = "stacked", "stacked";
        /// Every allocation at its address.
        ByAddress = "address", "by address";
    }
}

/// Returns the grouping that the options of the view "Allocations over time" set: by site unless
/// the user chose another.
pub(super) fn grouping_of(options: &Options<Layout>) -> GroupBy {
    options.by.unwrap_or(GroupBy::Site)
}

/// Returns true if the picture shows allocations by address.
pub(super) fn is_by_address(options: &Options<Layout>) -> bool {
    options.mode == Some(Layout::ByAddress)
}

/// A layer of the stacked picture of all allocations: the name, color and texture of its group.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) name: Arc<str>,
    pub(super) style: GroupStyle,
}

/// Returns the layers of the stacked picture, without the layer of all other groups; empty until
/// the composition has been built.
pub(super) fn layers(context: &Context<'_>, by: GroupBy, caches: &mut SharedCaches) -> Vec<Layer> {
    let SharedCaches { compositions, block_groups, .. } = caches;
    let Some(composition) = compositions.get(context.device, by) else { return Vec::new() };
    let groups = composition.groups().to_vec();
    let grouping = composition.grouping();
    let styles = group_styles(block_groups, (context.recording, context.all_devices), grouping, &groups);
    let mut name = |group: u32| grouping.cached_name(context.definitions(), group);
    groups.into_iter().zip(styles).map(|(group, style)| Layer { name: name(group), style }).collect()
}

/// Returns the index of the layer that shows the lit group, else the selected one: its own layer,
/// or the layer of all other groups. `None` if that is no group of this grouping.
pub(super) fn selected_layer(
    context: &Context<'_>,
    by: GroupBy,
    caches: &mut SharedCaches,
    layers: &[Layer],
) -> Option<u8> {
    let group = match context.lit.filter(|memory| !memory.is_whole()) {
        Some(LinkedMemory::Group(of, group)) => Some((of, group)),
        Some(_) => None,
        None => context.selected_group,
    };
    let (_, group) = group.filter(|(of, _)| *of == by)?;
    // The composition has its own numbers of groups.
    let name = caches.groupings.get(by, context.recording).cached_name(context.definitions(), group);
    let layer = (0..OTHER_LAYER).zip(layers).find(|(_, layer)| layer.name == name);
    Some(layer.map_or(OTHER_LAYER, |(layer, _)| layer))
}

/// Returns the live bytes of every layer at the moment on the screen; `None` until the composition
/// has been built.
pub(super) fn composition_now(
    context: &Context<'_>,
    by: GroupBy,
    caches: &mut SharedCaches,
) -> Option<CompositionColumn> {
    let composition = caches.compositions.get(context.device, by)?;
    let (columns, _) = composition.columns(context.history, context.device, &[context.moment; 2])?;
    columns.first().copied()
}

/// Returns the command that selects the group called `name`; `None` if there is no such group among
/// the live blocks.
pub(super) fn group_command(
    context: &Context<'_>,
    by: GroupBy,
    caches: &mut SharedCaches,
    name: &str,
) -> Option<Command> {
    let (definitions, grouping) = (context.definitions(), caches.groupings.get(by, context.recording));
    let known = (0..grouping.len() as u32).find(|&group| *grouping.cached_name(definitions, group) == *name);
    let group = known.or_else(|| group_called(name, grouping, definitions, context.state))?;
    Some(Command::Group(by, group, None))
}

/// Returns the name of an allocation's site as lists show it.
pub(super) fn site_name(context: &Context<'_>, groupings: &mut Groupings, one: &Allocation) -> Arc<str> {
    let grouping = site_grouping(groupings, context);
    let group = grouping.group_of_allocation(one);
    grouping.cached_name(context.definitions(), group)
}

/// Returns the name of a layer; `all others` for the last one.
pub(super) fn layer_name(layers: &[Layer], layer: u8) -> &str {
    layers.get(usize::from(layer)).map_or("all others", |layer| &layer.name)
}
