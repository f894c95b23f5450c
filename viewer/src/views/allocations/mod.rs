//! Allocations over time: the index behind their picture, its controls, its legend and the table of
//! the live allocations.

mod cache;
mod draw;
mod geometry;
mod labels;
mod lines;
mod outline;
mod picture;
mod scene;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;

use std::sync::Arc;

use vramscope_insight::composition::{CompositionColumn, OTHER_LAYER};
use vramscope_insight::group::GroupBy;
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Allocation, ByteSize, FormatError};

use crate::draw::group_style::GroupStyle;
use crate::draw::theme::Theme;
use crate::ui::{Attribute, Element, Tag, swatch};

use super::ViewKind;
use super::list;
use crate::view::caches::SharedCaches;
use crate::view::context::{Context, Groupings, ViewContent, ViewOptions, is_nearly_read};
use crate::view::controls::{choice, group_choice};
use crate::view::groups::{group_called, group_styles};

pub use cache::AllocationsCache;
pub use draw::{draw, draw_outline};
pub use geometry::Geometry;
pub use lines::lines;
pub use outline::Outline;
pub use picture::{command, outline, paint, picture_key, scene, scroll_by, selected_row, zoom_at};
pub use scene::{AllocationsContent, AllocationsLayout, AllocationsScene, Target};

/// Name of the view "Allocations over time" in commands and links.
const VIEW: &str = ViewKind::Allocations.name();
/// The layouts of the view "Allocations over time": the mode's name and its text, the default
/// first.
const LAYOUTS: [(&str, &str); 2] = [("stacked", "stacked"), ("address", "by address")];
/// The groupings that the view "Allocations over time" offers.
const GROUPINGS: [GroupBy; 9] = [
    GroupBy::Site,
    GroupBy::Line,
    GroupBy::Function,
    GroupBy::File,
    GroupBy::Module,
    GroupBy::Category,
    GroupBy::Stream,
    GroupBy::Pool,
    GroupBy::Size,
];
/// Maximum number of groups in the legend of the picture of all allocations.
const LEGEND_GROUPS: usize = 10;
/// Text in place of the picture of all allocations before anything has been read.
const READING: &str = "Reading the recording…";

/// Returns the grouping that the options of the view "Allocations over time" set: by site unless
/// the user chose another.
fn grouping_of(options: &ViewOptions) -> GroupBy {
    options.by.unwrap_or(GroupBy::Site)
}

/// Returns true if the picture shows allocations by address.
#[must_use]
pub fn is_by_address(options: &ViewOptions) -> bool {
    options.mode.as_deref() == Some(LAYOUTS[1].0)
}

/// Returns the name of the layout (mode) that is not shown.
#[must_use]
pub fn other_layout(options: &ViewOptions) -> &'static str {
    LAYOUTS[usize::from(!is_by_address(options))].0
}

/// Advances the index behind the picture of all allocations by about `max_changes` changes of
/// allocations. Returns true if there are more changes that can be read at once.
///
/// # Errors
/// If an event cannot be read.
pub fn advance(
    context: &Context<'_>,
    options: &ViewOptions,
    (caches, cache): (&mut SharedCaches, &mut AllocationsCache),
    max_changes: usize,
) -> Result<bool, FormatError> {
    let Some(lifetimes) = context.lifetimes().filter(|_| is_nearly_read(context.history, context.recording)) else {
        return Ok(false);
    };
    let key = (context.device, grouping_of(options));
    let mut is_done = caches.compositions.step(context.recording, context.history, key, max_changes);
    is_done &= cache.step_index(context, lifetimes, max_changes);
    if is_by_address(options) {
        let (has_segments, missing) = cache.step_segments(context, max_changes as u64)?;
        is_done &= has_segments;
        if !missing.is_empty() {
            caches.missing = missing;
        }
    }
    Ok(!is_done)
}

/// A layer of the stacked picture of all allocations: the name, color and texture of its group.
#[derive(Clone, Debug)]
struct Layer {
    name: Arc<str>,
    style: GroupStyle,
}

/// Returns the layers of the stacked picture, without the layer of all other groups; empty until
/// the composition has been built.
fn layers(context: &Context<'_>, by: GroupBy, caches: &mut SharedCaches) -> Vec<Layer> {
    let SharedCaches { compositions, block_groups, .. } = caches;
    let Some(composition) = compositions.get(context.device, by) else { return Vec::new() };
    let groups = composition.groups().to_vec();
    let grouping = composition.grouping();
    let styles = group_styles(block_groups, (context.recording, context.all_devices), grouping, &groups);
    let mut name = |group: u32| grouping.cached_name(context.definitions(), group);
    groups.into_iter().zip(styles).map(|(group, style)| Layer { name: name(group), style }).collect()
}

/// Returns the index of the layer that shows the selected group: its own layer, or the layer of all
/// other groups. `None` if no group of this grouping is selected.
fn selected_layer(context: &Context<'_>, by: GroupBy, caches: &mut SharedCaches, layers: &[Layer]) -> Option<u8> {
    let (_, group) = context.selected_group.filter(|(of, _)| *of == by)?;
    // The composition has its own numbers of groups.
    let name = caches.groupings.get(by, context.recording).cached_name(context.definitions(), group);
    let layer = (0..OTHER_LAYER).zip(layers).find(|(_, layer)| layer.name == name);
    Some(layer.map_or(OTHER_LAYER, |(layer, _)| layer))
}

/// Returns the live bytes of every layer at the moment on the screen; `None` until the composition
/// has been built.
fn composition_now(context: &Context<'_>, by: GroupBy, caches: &mut SharedCaches) -> Option<CompositionColumn> {
    let composition = caches.compositions.get(context.device, by)?;
    let (columns, _) = composition.columns(context.history, context.device, &[context.moment; 2])?;
    columns.first().copied()
}

/// Returns the command that selects the group called `name`; `None` if there is no such group among
/// the live blocks.
fn group_command(context: &Context<'_>, by: GroupBy, caches: &mut SharedCaches, name: &str) -> Option<String> {
    let (definitions, grouping) = (context.definitions(), caches.groupings.get(by, context.recording));
    let known = (0..grouping.len() as u32).find(|&group| *grouping.cached_name(definitions, group) == *name);
    let group = known.or_else(|| group_called(name, grouping, definitions, context.state))?;
    Some(format!("group {} {group}", by.name()))
}

/// Returns the text that is shown in place of the picture of all allocations until that can be
/// computed; then `None`.
pub fn waiting_text(
    context: &Context<'_>,
    options: &ViewOptions,
    caches: &mut SharedCaches,
    cache: &AllocationsCache,
) -> Option<String> {
    let Some(lifetimes) = context.lifetimes() else {
        let text = if context.is_history_complete { "Nothing was allocated on this device." } else { READING };
        return Some(text.to_owned());
    };
    if !is_nearly_read(context.history, context.recording) {
        let first = context.recording.first_event();
        let read = context.history.until().saturating_sub(first);
        let known = context.recording.end_event().saturating_sub(first);
        return Some(format!("Reading the recording: {}", tenths(read, known)));
    }
    if picture_key(context, options, caches, cache).is_some() {
        return None;
    }
    let (done, total) = cache.progress(lifetimes);
    if done < total {
        return Some(format!("Arranging the allocations: {}", tenths(done, total)));
    }
    let (done, total) = cache.segment_progress(context);
    if is_by_address(options) && done < total {
        return Some(format!("Reading the segments: {}", tenths(done, total)));
    }
    Some("Grouping the allocations…".to_owned())
}

/// Formats a share in steps of 10%, so that the text changes only ten times.
fn tenths(done: u64, total: u64) -> String {
    format!("{}%", u128::from(done) * 10 / u128::from(total.max(1)) * 10)
}

/// Returns the content of the view "Allocations over time" beside its picture: controls, legend,
/// and the table of live allocations.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut SharedCaches) -> ViewContent {
    let by = grouping_of(options);
    let layout = LAYOUTS[usize::from(is_by_address(options))].0;
    let mut content = ViewContent::with_controls([
        choice("layout", &format!("mode {VIEW}"), layout, LAYOUTS),
        group_choice(VIEW, by, &GROUPINGS),
    ]);
    content.legend.push(legend(context, by, caches).into());
    if context.history.until() < context.moment || context.lifetimes().is_none() {
        return content;
    }
    let (summary, table) = list::live(VIEW, context, options, caches);
    content.content.push(Element::text(Tag::P, summary).with_class("summary").into());
    content.with_table(table)
}

/// Returns the legend: the largest groups at the moment on the screen with their bytes, which add
/// up to the live bytes. The list has its full height even before its groups are known.
fn legend(context: &Context<'_>, by: GroupBy, caches: &mut SharedCaches) -> Element {
    let list = Element::new(Tag::Ul).with_class("entries groups");
    let Some(now) = composition_now(context, by, caches) else { return list };
    let layers = layers(context, by, caches);
    let selected = selected_layer(context, by, caches, &layers);
    let mut shown: Vec<(u8, u64)> = (0..OTHER_LAYER).zip(now.layers).filter(|(_, bytes)| *bytes > 0).collect();
    sort_by_key(&mut shown, |&(layer, bytes)| (std::cmp::Reverse(bytes), layer));
    let rest: u64 = shown.iter().skip(LEGEND_GROUPS).map(|(_, bytes)| bytes).sum();
    let rest = rest.saturating_add(now.layers[usize::from(OTHER_LAYER)]);
    shown.truncate(LEGEND_GROUPS);
    let mut items = Vec::new();
    for (index, bytes) in shown {
        let Some(layer) = layers.get(usize::from(index)) else { continue };
        let name = match group_command(context, by, caches, &layer.name) {
            Some(command) => Element::button(&*layer.name, command).with_class("link name"),
            None => Element::text(Tag::Span, &*layer.name).with_class("name"),
        };
        let name = name.with(Attribute::Title, &*layer.name);
        let item = legend_item(sample(layer.style, context.theme), name, bytes);
        items.push(if selected == Some(index) { item.with_class("selected") } else { item });
    }
    if rest > 0 {
        let name = Element::text(Tag::Span, "all others").with_class("name");
        items.push(legend_item(sample(GroupStyle::Other, context.theme), name, rest));
    }
    list.with_children(items)
}

/// Creates an entry of a legend: color sample, name and live bytes.
fn legend_item(sample: Element, name: Element, bytes: u64) -> Element {
    let bytes = Element::text(Tag::Span, ByteSize(bytes).to_string()).with_class("bytes");
    Element::new(Tag::Li).with_child(sample).with_child(name).with_child(bytes)
}

/// Creates a sample of a layer's color and texture.
fn sample(style: GroupStyle, theme: &Theme) -> Element {
    swatch(style.color(theme)).with_texture(theme, style.texture(theme))
}

/// Returns the name of an allocation's site as lists show it.
fn site_name(context: &Context<'_>, groupings: &mut Groupings, one: &Allocation) -> Arc<str> {
    let grouping = list::site_grouping(groupings, context);
    let group = grouping.group_of_allocation(one);
    grouping.cached_name(context.definitions(), group)
}

/// Returns the name of a layer; `all others` for the last one.
fn layer_name(layers: &[Layer], layer: u8) -> &str {
    layers.get(usize::from(layer)).map_or("all others", |layer| &layer.name)
}
