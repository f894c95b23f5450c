//! The picture of all allocations, computed from the composition and the indexes.

use std::ops::Range;

use vramscope_draw::GroupStyle;
use vramscope_insight::address_map::AddressMap;
use vramscope_insight::bands::BandLayout;
use vramscope_insight::composition::{LAYERS, OTHER_LAYER};
use vramscope_insight::group::{GroupBy, Groupings};
use vramscope_insight::incremental::AllocationIndexes;
use vramscope_insight::query::Now;
use vramscope_trace::Allocation;

use super::geometry::Geometry;
use super::layers::{Layout, group_command, grouping_of, is_by_address, layer_name, layers, selected_layer, site_name};
use super::outline::Outline;
use super::scene::{AllocationsContent, AllocationsLayout, AllocationsScene, Target};
use crate::command::Command;
use crate::linked_memory::LinkedMemory;
use crate::view::{Context, LitBlocks, Options, SharedCaches, ShownFilter, memory_of, select_command};

/// Maximum number of allocations of the picture by address that are painted in one frame, at about
/// 100 ns each.
const MAP_ROWS: usize = 30_000;
/// Minimum length in bytes of the part of the vertical axis that the picture of all allocations
/// shows; zooming in stops there.
const LEAST_BYTES: u64 = 4096;

/// The indexes behind the picture, and the zoom of its vertical axis.
#[derive(Default)]
pub(super) struct PictureSource {
    pub(super) indexes: AllocationIndexes,
    /// Whether the layout is by address, and the part of its vertical axis that is shown, in bytes;
    /// `None` for all of it.
    pub(super) zoom: Option<(bool, Range<u64>)>,
}

impl PictureSource {
    /// Returns the part of the vertical axis, in bytes, that the layout by address
    /// (`is_by_address`) or the stacked layout shows; `None` for all of it.
    fn zoom(&self, is_by_address: bool) -> Option<Range<u64>> {
        self.zoom.as_ref().filter(|(of, _)| *of == is_by_address).map(|(_, range)| range.clone())
    }

    /// Returns true if the indexes that a layout needs have been complete once.
    fn is_ready(&self, context: &Context<'_>, is_by_address: bool) -> bool {
        context.device_history().is_some_and(|history| self.indexes.is_ready(&history, is_by_address))
    }
}

/// The inputs of the picture of all allocations, apart from its columns and size; the picture is
/// computed again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PictureKey {
    /// The user's choices, and the recording.
    pub chosen: Vec<u64>,
    /// The emphasized or outlined allocations, which do not change the layout.
    pub emphasis: [u64; 5],
    /// The moments up to which composition, index and reserved memory are complete.
    pub until: Vec<u64>,
}

/// Returns the inputs of the picture of all allocations; `None` until the picture can be computed.
pub(super) fn picture_key(
    context: &Context<'_>,
    options: &Options<Layout>,
    caches: &mut SharedCaches,
    source: &PictureSource,
) -> Option<PictureKey> {
    let (by, is_by_address) = (grouping_of(options), is_by_address(options));
    if !source.is_ready(context, is_by_address) {
        return None;
    }
    let composition = caches.compositions.get(context.device, by)?;
    composition.source(context.history, context.device)?;
    let version = composition.version();
    let layers = layers(context, by, caches);
    let selected = selected_layer(context, by, caches, &layers);
    let zoom = source.zoom(is_by_address).unwrap_or_default();
    let by = GroupBy::ALL.iter().position(|other| *other == by).unwrap_or(0) as u64;
    let selected = selected.map_or(u64::MAX, u64::from);
    let (device, generation) = (u64::from(context.device.0), context.history.generation());
    let filter = outlined_filter(context, caches).map_or(0, |filter| filter.key);
    let [lit, lit_kind, lit_number] = context.lit.map_or([u64::MAX; 3], LinkedMemory::numbers);
    let categories = if context.lit.is_some() { context.history.categories_generation() } else { 0 };
    let chosen = vec![device, generation, by, u64::from(is_by_address), zoom.start, zoom.end, categories];
    let emphasis = [selected, filter, lit, lit_kind, lit_number];
    Some(PictureKey { chosen, emphasis, until: version.into_iter().chain(source.indexes.until()).collect() })
}

/// Computes the picture of all allocations with a column between each two moments of `edges`;
/// `None` until it can be computed. A picture by address is then painted by calls of [`paint`].
pub(super) fn scene(
    context: &Context<'_>,
    options: &Options<Layout>,
    (caches, source): (&mut SharedCaches, &PictureSource),
    (edges, geometry): (&[u64], Geometry),
) -> Option<AllocationsScene> {
    let (by, is_by_address) = (grouping_of(options), is_by_address(options));
    if edges.len() < 2 || !source.is_ready(context, is_by_address) {
        return None;
    }
    let layers = layers(context, by, caches);
    let SharedCaches { compositions, groupings, .. } = caches;
    let (series, rows) = compositions.get(context.device, by)?.source(context.history, context.device)?;
    let columns = series.columns(&rows, edges);
    let zoom = source.zoom(is_by_address);
    let layout = if is_by_address {
        let moments = columns.iter().map(|column| column.moment).collect();
        let segments = source.indexes.segments.device(context.device);
        let mut map = AddressMap::new(segments, moments, zoom, geometry.height());
        map.step((&source.indexes.index, &rows), series, MAP_ROWS);
        AllocationsLayout::ByAddress(map)
    } else {
        let highest = columns.iter().map(|column| column.total).max().unwrap_or(0);
        let visible = zoom.unwrap_or(0..highest.saturating_add(highest / 12).max(1));
        let index = (&source.indexes.index, &rows);
        AllocationsLayout::Stacked(BandLayout::new(index, series, &columns, &visible, geometry.height()))
    };
    let mut styles = [GroupStyle::Other; LAYERS];
    for (style, layer) in styles.iter_mut().take(usize::from(OTHER_LAYER)).zip(&layers) {
        *style = layer.style;
    }
    let content = AllocationsContent {
        layout,
        styles,
        name_of: &mut |row| site_of(context, groupings, row),
        layer_name: &mut |layer| layer_name(&layers, layer).to_owned(),
    };
    let mut scene = AllocationsScene::new(content, geometry, context.typesetter);
    emphasize(context, options, caches, &mut scene);
    Some(scene)
}

/// Emphasizes the layer of the selected or lit group. If the lit memory is no layer, or a list has
/// a filter, outlines its allocations.
pub(super) fn emphasize(
    context: &Context<'_>,
    options: &Options<Layout>,
    caches: &mut SharedCaches,
    scene: &mut AllocationsScene,
) {
    let by = grouping_of(options);
    let layers = layers(context, by, caches);
    scene.emphasize(selected_layer(context, by, caches, &layers));
    outline_matches(context, caches, scene);
}

/// Returns the filter, typed in a list, whose matches the picture outlines; `None` while a group is
/// selected.
fn outlined_filter<'a>(context: &Context<'_>, caches: &'a SharedCaches) -> Option<&'a ShownFilter> {
    caches.searches.shown_filter.as_ref().filter(|_| context.selected_group.is_none())
}

/// Outlines the allocations that are lit, unless a layer is emphasized; else those that the filter
/// of a list matches.
fn outline_matches(context: &Context<'_>, caches: &mut SharedCaches, scene: &mut AllocationsScene) {
    let Some(lifetimes) = context.lifetimes() else { return };
    let lit = context.lit.filter(|memory| !memory.is_whole());
    if let Some(memory) = lit.filter(|_| scene.emphasized().is_none()) {
        let mut lit = LitBlocks::new(memory, context.recording, (&mut caches.groupings, &mut caches.lit_sites));
        scene.outline_matches(&mut |row| lifetimes.row(row).is_some_and(|one| lit.has(&one)));
        return;
    }
    let Some(filter) = outlined_filter(context, caches).filter(|_| lit.is_none()) else { return };
    let now = Now { moment: context.moment, time_ns: context.time_ns, history: context.history };
    let matches = |one: &Allocation| filter.matcher.matches_allocation(context.device, one, &now);
    scene.outline_matches(&mut |row| lifetimes.row(row).as_ref().is_some_and(matches));
}

/// Paints the next allocations of a picture by address into `scene`, with their names. Returns true
/// if more are left to paint.
pub(super) fn paint(
    context: &Context<'_>,
    options: &Options<Layout>,
    (caches, source): (&mut SharedCaches, &PictureSource),
    scene: &mut AllocationsScene,
) -> bool {
    let SharedCaches { compositions, groupings, .. } = caches;
    let composition = compositions.get(context.device, grouping_of(options));
    let rows = composition.and_then(|one| one.source(context.history, context.device));
    let (Some(map), Some((series, rows))) = (scene.map_mut(), rows) else { return false };
    let is_complete = map.step((&source.indexes.index, &rows), series, MAP_ROWS);
    scene.update_names(context.typesetter, &mut |row| site_of(context, groupings, row));
    outline_matches(context, caches, scene);
    !is_complete
}

/// Returns the name of the site of allocation `row` of the device; empty if it is not known.
fn site_of(context: &Context<'_>, groupings: &mut Groupings, row: u32) -> String {
    let allocation = context.lifetimes().and_then(|lifetimes| lifetimes.row(row));
    allocation.map(|one| site_name(context, groupings, &one).to_string()).unwrap_or_default()
}

/// Returns the outline of allocation `row` of the device in the picture of all allocations.
pub(super) fn outline(
    context: &Context<'_>,
    options: &Options<Layout>,
    caches: &mut SharedCaches,
    scene: &AllocationsScene,
    row: u32,
) -> Outline {
    let composition = caches.compositions.get(context.device, grouping_of(options));
    let source = composition.and_then(|one| one.source(context.history, context.device));
    source.map(|(_, rows)| scene.outline(&rows, row)).unwrap_or_default()
}

/// Returns the number of the selected allocation among the device's allocations; `None` if none is
/// selected.
pub(super) fn selected_row(context: &Context<'_>) -> Option<u32> {
    let (address, since) = context.selection?;
    let (row, one) = context.lifetimes()?.find(address, since?)?;
    (one.address == address).then_some(row)
}

/// Returns the command that a click on `target` runs: one that selects an allocation or a group of
/// small ones. `None` where a click goes to the moment, as on the timeline.
pub(super) fn command(
    context: &Context<'_>,
    options: &Options<Layout>,
    caches: &mut SharedCaches,
    target: Target,
) -> Option<Command> {
    match target {
        Target::Allocation { row } => {
            let allocation = context.lifetimes()?.row(row)?;
            let is_selected = selected_row(context) == Some(row);
            Some(if is_selected { Command::DeselectAllocation } else { select_command(&allocation) })
        }
        Target::Small { layer, .. } => {
            let by = grouping_of(options);
            let layers = layers(context, by, caches);
            let name = layers.get(usize::from(layer))?.name.clone();
            group_command(context, by, caches, &name)
        }
        Target::Free | Target::NotReserved => None,
    }
}

/// Returns the memory that `target` stands for.
pub(super) fn linked(
    context: &Context<'_>,
    options: &Options<Layout>,
    caches: &mut SharedCaches,
    target: Option<Target>,
) -> Option<Vec<LinkedMemory>> {
    match target? {
        Target::Allocation { row } => {
            let allocation = context.lifetimes()?.row(row)?;
            Some(memory_of(&mut caches.groupings, context.recording, &allocation))
        }
        Target::Small { layer, .. } => {
            let by = grouping_of(options);
            let name = layers(context, by, caches).get(usize::from(layer))?.name.clone();
            match group_command(context, by, caches, &name)? {
                Command::Group(by, group, _) => Some(vec![LinkedMemory::Group(by, group)]),
                _ => None,
            }
        }
        Target::Free | Target::NotReserved => None,
    }
}

/// Returns the shown part of the picture's vertical axis and the whole axis, in bytes.
fn vertical(scene: &AllocationsScene) -> (Range<u64>, Range<u64>) {
    match scene.layout() {
        AllocationsLayout::Stacked(layout) => {
            let columns = 0..layout.column_count();
            let highest = columns.filter_map(|column| layout.column(column)).map(|(_, total)| total).max();
            let highest = highest.unwrap_or(0);
            (layout.scale().range(), 0..highest.saturating_add(highest / 12).max(1))
        }
        AllocationsLayout::ByAddress(map) => (map.scale().range(), 0..map.axis().length()),
    }
}

/// Returns the part of the vertical axis, in bytes, that is `factor` times as long as the shown
/// one, with the byte at pixel row `y` unmoved; `None` for the whole axis.
pub(super) fn zoom_at(scene: &AllocationsScene, y: i32, factor: f64) -> Option<Range<u64>> {
    let (shown, all) = vertical(scene);
    let plot = scene.geometry.plot;
    let (length, whole) = ((shown.end - shown.start) as f64, (all.end - all.start) as f64);
    let part = (f64::from(plot.y1 - y) / f64::from(plot.height().max(1))).clamp(0.0, 1.0);
    let new = (length * factor).max(LEAST_BYTES as f64);
    if new >= whole {
        return None;
    }
    let start = (shown.start as f64 + (length - new) * part).clamp(0.0, whole - new);
    Some(start as u64..(start + new) as u64)
}

/// Returns the part of the vertical axis, in bytes, after scrolling up by `pixels`; `None` for the
/// whole axis.
pub(super) fn scroll_by(scene: &AllocationsScene, pixels: f64) -> Option<Range<u64>> {
    let (shown, all) = vertical(scene);
    let length = shown.end - shown.start;
    if length >= all.end - all.start {
        return None;
    }
    let bytes = pixels * length as f64 / f64::from(scene.geometry.plot.height().max(1));
    let start = (shown.start as f64 + bytes).clamp(0.0, (all.end - all.start - length) as f64) as u64;
    Some(start..start + length)
}
