//! The device map's scene, and input on it.

use std::cell::RefCell;
use std::collections::HashMap;

use vramscope_draw::{Canvas, Theme};
use vramscope_insight::group::GroupBy;
use vramscope_insight::placement::recorded_settings;
use vramscope_insight::pools::DeviceOwners;
use vramscope_insight::query::Now;
use vramscope_pool::Settings;
use vramscope_trace::{Block, ByteSize, Count, DeviceState, RecordingInfo};

use super::failure::{self, FailedRequest};
use super::requests::Requests;
use crate::command::{Command, OptionChange};
use crate::device_map::{
    self, AgeScale, AgeUnit, ColorBy, Highlight, Hit, Layout, LegendEntry, LineContent, MapContent, MapControl,
    MapScene, MapTexts, MemoryLine, SortBy, View as MapView,
};
use crate::link::PaneLink;
use crate::linked_memory::LinkedMemory;
use crate::view::{
    Context, LitBlocks, Options, PictureFrame, PictureInput, PictureKey, RowWindow, SharedCaches, StoredOptions, fit,
};

/// Exponent of the wheel's zoom factor: the map zooms faster than the timeline.
const ZOOM_SPEED: i32 = 2;

/// The device map's picture.
#[derive(Default)]
pub(super) struct Picture {
    pub(super) scene: Option<MapScene>,
    /// The memory of the device on one line.
    pub(super) line: MemoryLine,
    pub(super) legend: Vec<LegendEntry>,
    /// The inputs of `line` and `legend`.
    line_key: Vec<u64>,
    /// The inputs of `scene`.
    key: Option<PictureKey>,
    size: (u32, u32),
    /// The request that failed at the moment.
    failed: Option<FailedRequest>,
    /// Address and size of the memory where a request of the typed size would be placed, or that is
    /// in its way.
    proposed: Option<(u64, u64)>,
    /// The address to scroll to with the next picture.
    pub(super) revealed: Option<u64>,
    /// The typed size whose placement was last scrolled to.
    revealed_size: String,
    /// The control of the picture that the pressed pointer moves.
    grabbed: Option<MapControl>,
    hovered: Option<Hit>,
    selected: Option<Hit>,
}

/// The view "Device". Its filter is a size: it shows where a request of that size would fit.
#[derive(Default)]
pub struct Device {
    pub(super) options: MapOptions,
    pub(super) picture: Picture,
    pub(super) requests: Requests,
    /// The settings of the allocator, and their recorded text.
    settings: Option<(String, Settings)>,
    /// The property that colors show unless the user chooses one, and whether categories were
    /// inferred when it was chosen; `None` until blocks are known.
    usual_color: Option<(ColorBy, bool)>,
}

/// The options of the device map. Links state its colors, order and zoom apart from the panes.
#[derive(Default)]
pub(super) struct MapOptions {
    /// The property that colors show; `None` for the usual one.
    pub(super) color_by: Option<ColorBy>,
    /// Order of the segments, zoom and scroll position.
    pub(super) view: MapView,
    /// The options that every view has; the filter is the size of a request to place.
    pub(super) others: Options,
}

impl StoredOptions for MapOptions {
    fn pane_link(&self, view: &'static str) -> PaneLink {
        self.others.pane_link(view)
    }

    fn open(&mut self, pane: &PaneLink) -> bool {
        self.others.open(pane)
    }

    fn change(&mut self, change: OptionChange) -> Result<(), String> {
        match change {
            OptionChange::Sort(order) => {
                self.view.sort = SortBy::from_name(&order).ok_or_else(|| format!("the map has no order {order:?}"))?;
                self.view.scroll = 0;
            }
            change => return self.others.change(change),
        }
        Ok(())
    }

    fn filter(&self) -> &str {
        &self.others.filter
    }

    fn rows(&mut self) -> &mut RowWindow {
        &mut self.others.rows
    }
}

impl Device {
    /// Returns the property that colors show, as far as it is known.
    pub(super) fn known_color(&self) -> ColorBy {
        self.options.color_by.or(self.usual_color.map(|(color, _)| color)).unwrap_or_default()
    }

    /// Returns the property that colors show.
    pub(super) fn shown_color(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ColorBy {
        let is_inferred = context.history.inferred_categories().is_some();
        let usual = self.usual_color.filter(|(_, was_inferred)| *was_inferred == is_inferred);
        if let Some(known) = self.options.color_by.or(usual.map(|(color, _)| color)) {
            return known;
        }
        if is_inferring(context) {
            return ColorBy::Category;
        }
        let color = usual_color(context, shared);
        // Without blocks, nothing is known yet.
        if context.state.blocks().len() > 0 {
            self.usual_color = Some((color, is_inferred));
        }
        color
    }

    /// Returns numbers that change with the inputs of the memory line.
    fn line_key(&self, context: &Context<'_>, shared: &mut SharedCaches, color_by: ColorBy) -> Vec<u64> {
        let recording = context.recording;
        // Groups may be ordered anew when they are requested.
        if let Some(by) = color_by.group_by() {
            shared.block_groups.get(by, recording, context.all_devices);
        }
        let lit = lit_memory(context).map_or([u64::MAX; 3], LinkedMemory::numbers);
        let filter = shared.searches.shown_filter.as_ref().map_or(0, |filter| filter.key);
        // Ages are measured at the moment, on a scale as long as the recording; filters may use
        // the history.
        let depends_on_time = color_by.is_ordered() || filter != 0;
        let times = [context.time_ns, recording.end_event(), context.history.until()];
        [
            context.device.0.into(),
            context.moment,
            context.state.events(),
            context.state.counters().reserved,
            color_by as u64,
            self.options.view.sort as u64,
            context.counts_events.into(),
            shared.block_groups.revision(),
            filter,
            self.requests.are_of(context).into(),
            self.requests.shown.into(),
        ]
        .into_iter()
        .chain(lit)
        .chain(times.into_iter().filter(|_| depends_on_time))
        .collect()
    }

    /// Computes the map of the device at the moment, if an input has changed. Returns true if it
    /// has.
    pub(super) fn compute(
        &mut self,
        context: &Context<'_>,
        shared: &mut SharedCaches,
        frame: &PictureFrame<'_>,
    ) -> bool {
        let color_by = self.shown_color(context, shared);
        let line_key = self.line_key(context, shared, color_by);
        let is_same_line = self.picture.line_key == line_key;
        if !is_same_line {
            let old = std::mem::take(&mut self.picture.line);
            self.compute_line(context, shared, color_by);
            let known = self.picture.scene.as_ref().filter(|_| !self.picture.line_key.is_empty());
            if let Some(MapScene { layout, .. }) = known.filter(|scene| scene.layout.view == self.options.view) {
                self.options.view = layout.followed(&old, &self.picture.line, frame.size);
            }
            (self.picture.line_key, self.picture.key) = (line_key, None);
        }
        self.picture.size = frame.size;
        let has_other_failure = self.replay_failure(context, shared);
        self.propose(context, shared, frame);
        if has_other_failure {
            self.picture.key = None;
        }
        let key = frame.key(numbers(self.options.view));
        let revealed = self.picture.revealed.take();
        if self.picture.key.as_ref() == Some(&key) && revealed.is_none() {
            return false;
        }
        let mut layout = Layout::new(&self.picture.line, frame.size, frame.scale, self.options.view);
        if let Some(view) = revealed.and_then(|address| layout.reveal(&self.picture.line, address)) {
            layout = Layout::new(&self.picture.line, frame.size, frame.scale, view);
        }
        let lines = shared.groupings.get(GroupBy::Line, context.recording);
        let mut name = |block: &Block| {
            let group = lines.group_of(block);
            lines.cached_name(context.definitions(), group).to_string()
        };
        let is_ordered = color_by.is_ordered();
        let blocks = (context.state, is_ordered);
        let failed = self.picture.failed.as_ref().map(|failed| (failed.pool, failed.bytes));
        let texts = MapTexts { name: &mut name, failed };
        let (known, line) = (self.picture.scene.take().filter(|_| is_same_line), &self.picture.line);
        let scene = MapScene::new_after(known, line, layout, blocks, texts, context.typesetter);
        // The view is now within its bounds.
        self.options.view = scene.layout.view;
        self.picture.key = Some(frame.key(numbers(self.options.view)));
        self.picture.scene = Some(scene);
        true
    }

    /// Puts the memory of the device on a line, and computes the legend.
    fn compute_line(&mut self, context: &Context<'_>, shared: &mut SharedCaches, color_by: ColorBy) {
        let recording = context.recording;
        let counts_events = context.counts_events || recording.info().lacks_times;
        let unit = if counts_events { AgeUnit::Events } else { AgeUnit::Time };
        let free_moments = match color_by {
            ColorBy::LastChange => context.lifetimes().map(|lifetimes| {
                let freed =
                    lifetimes.live_at(context.moment).filter_map(|one| Some((one.address, one.allocated_until?)));
                freed.filter(|(_, freed_at)| *freed_at <= context.moment).collect::<HashMap<u64, u64>>()
            }),
            _ => None,
        };
        let freed_at = |block: &Block| {
            let event = *free_moments.as_ref()?.get(&block.address)?;
            Some(if unit == AgeUnit::Events { event } else { context.history.time_ns(event) })
        };
        let lit = lit_memory(context);
        let sources = (&mut shared.groupings, &mut shared.lit_sites);
        let blocks = lit.map(|lit| RefCell::new(LitBlocks::new(lit, recording, sources)));
        let filter = shared.searches.shown_filter.as_ref().map(|filter| &filter.matcher);
        let now = Now { moment: context.moment, time_ns: context.time_ns, history: context.history };
        let is_lit = |block: &Block| match &blocks {
            Some(blocks) => blocks.borrow_mut().has(block),
            None => filter.is_some_and(|filter| filter.matches_block(context.device, block, &now)),
        };
        let (now, longest) = match unit {
            AgeUnit::Events => (context.moment, recording.end_event().saturating_sub(recording.first_event())),
            AgeUnit::Time => (context.time_ns, recording.end_ns().saturating_sub(recording.start_ns())),
        };
        let groups = color_by.group_by().map(|by| shared.block_groups.get(by, recording, context.all_devices));
        let mut content = MapContent {
            color_by,
            ages: AgeScale { unit, now, longest },
            freed_at: Some(&freed_at),
            groups,
            highlight: (lit.is_some() || filter.is_some()).then_some(&is_lit),
            highlighted_part: lit.and_then(|lit| if let LinkedMemory::Part(part) = lit { Some(part) } else { None }),
            ..MapContent::new(context.state, context.definitions())
        };
        let owners = DeviceOwners::new(recording.info(), context.device, context.state);
        let unfit = self.requests.unfit_shares(context);
        let settings = self.recorded_settings(recording.info());
        let largest_pool = recording.series(context.device).map_or(0, |series| series.peak_reserved().bytes);
        let line = LineContent {
            owners,
            largest_pool_bytes: largest_pool,
            unfit: &unfit,
            settings: &settings,
            sort: self.options.view.sort,
        };
        let line = MemoryLine::new(&mut content, &line);
        self.picture.legend = device_map::legend(&content, &line);
        // Elements name groups by the numbers that all views share.
        for entry in &mut self.picture.legend {
            if let Some(LinkedMemory::Group(by, group)) = entry.memory {
                let shown = shared.block_groups.get(by, recording, context.all_devices);
                let known = shown.group_in(shared.groupings.get(by, recording), group);
                entry.memory = known.map(|group| LinkedMemory::Group(by, group));
            }
        }
        self.picture.line = line;
    }

    /// Finds the request that failed at the moment. Returns true if it is another one than before.
    fn replay_failure(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> bool {
        let failed = failure::failed_request(context, shared);
        let is_other = failed != self.picture.failed;
        if let Some((address, _)) = failed.as_ref().filter(|_| is_other).and_then(|failed| failed.region) {
            self.picture.revealed = Some(address);
        }
        self.picture.failed = failed;
        is_other
    }

    /// Finds the memory that a request of the typed size would get, or the region in its way, and
    /// scrolls to it when another size was typed.
    fn propose(&mut self, context: &Context<'_>, shared: &mut SharedCaches, frame: &PictureFrame<'_>) {
        let size = self.options.filter().to_owned();
        let is_new = self.picture.revealed_size != size;
        self.picture.proposed = shared.placement_of(context, &size).and_then(Result::ok).and_then(fit::outlined_range);
        if let Some((address, _)) = self.picture.proposed.filter(|_| is_new) {
            let layout = Layout::new(&self.picture.line, frame.size, frame.scale, self.options.view);
            self.options.view = layout.reveal(&self.picture.line, address).unwrap_or(self.options.view);
        }
        self.picture.revealed_size = size;
    }

    /// Returns the settings of the allocator, which are read once for a recording.
    fn recorded_settings(&mut self, info: &RecordingInfo) -> Settings {
        if self.settings.as_ref().is_none_or(|(text, _)| *text != info.alloc_conf) {
            self.settings = Some((info.alloc_conf.clone(), recorded_settings(info)));
        }
        self.settings.as_ref().map(|(_, settings)| settings.clone()).unwrap_or_default()
    }

    /// Forgets all results about the recording.
    pub(super) fn forget_recording(&mut self) {
        (self.requests, self.usual_color) = Default::default();
        (self.picture.line_key, self.picture.key) = Default::default();
    }

    /// Stores the memory under the pointer and the selected memory, which are outlined.
    pub(super) fn set_highlights(&mut self, context: &Context<'_>, point: Option<(i32, i32)>) {
        self.picture.hovered = point.and_then(|point| self.hit_at(context.state, point));
        self.picture.selected = context.selected;
    }

    /// Returns the block or free range at a pixel; `None` where there is no row.
    pub(super) fn hit_at(&self, device: &DeviceState, (x, y): (i32, i32)) -> Option<Hit> {
        self.picture.scene.as_ref()?.layout.hit(&self.picture.line, device, x, y)
    }

    /// Returns short texts about the memory at a pixel: what it is, for what, and how old. The
    /// details panel says more.
    pub(super) fn texts_at(&self, context: &Context<'_>, shared: &mut SharedCaches, point: (i32, i32)) -> Vec<String> {
        let Some(scene) = &self.picture.scene else { return Vec::new() };
        let Some(hit) = self.hit_at(context.state, point) else {
            let kind = scene.layout.position_at(point.0, point.1).and_then(|at| self.picture.line.kind_at(at));
            return kind.map(|(kind, bytes)| vec![format!("{} {}", ByteSize(bytes), kind.name())]).unwrap_or_default();
        };
        let size = ByteSize(hit.size);
        let Some(block) = hit.block else {
            let what = if hit.size == hit.segment.size { "a whole free segment" } else { "free beside live blocks" };
            return vec![format!("{size} {what}")];
        };
        let lines = shared.groupings.get(GroupBy::Line, context.recording);
        let (group, category) = (lines.group_of(&block), lines.category_of(&block));
        let name = lines.cached_name(context.definitions(), group);
        let state = if block.pending_free { ", pending free" } else { "" };
        let age_events = Count(context.moment.saturating_sub(block.since_event)).of("event", "events");
        let age = context.recording.info().time_and(context.time_ns.saturating_sub(block.since_ns), age_events);
        vec![format!("{size} {name}"), format!("{}{state} · {age} old", category.name())]
    }

    /// Returns the command that selects the memory at a pixel, or clears its selection.
    pub(super) fn command_at(&self, context: &Context<'_>, point: (i32, i32)) -> Command {
        let hit = self.hit_at(context.state, point);
        let is_selected = hit.zip(context.selected).is_some_and(|(hit, selected)| hit.is_same_allocation(&selected));
        match hit.filter(|_| !is_selected) {
            Some(hit) => Command::SelectAddress(hit.address),
            None => Command::DeselectAllocation,
        }
    }

    /// Draws the outlines of the placement of a typed size, of the selection and of the memory
    /// under the pointer.
    pub(super) fn draw_outlines(&self, canvas: &mut Canvas<'_>, theme: &Theme) {
        let Picture { scene: Some(scene), line, failed, proposed, selected, hovered, .. } = &self.picture else {
            return;
        };
        let map = (line, &scene.layout);
        if let Some(FailedRequest { region: Some(region), blocks, .. }) = failed {
            device_map::draw_failure(canvas.bitmap, map, theme, *region, blocks);
        }
        if let Some(range) = *proposed {
            device_map::draw_placement(canvas.bitmap, map, theme, range);
        }
        for (hit, highlight) in [(selected, Highlight::Selected), (hovered, Highlight::Hovered)] {
            if let Some(hit) = hit {
                device_map::draw_highlight(canvas.bitmap, map, theme, (hit.address, hit.size), highlight);
            }
        }
    }

    /// Scrolls or zooms the map. The wheel zooms; with Alt or Shift it scrolls.
    pub(super) fn move_map(&mut self, input: PictureInput) -> bool {
        let Picture { scene: Some(scene), line, size, selected, grabbed, .. } = &mut self.picture else { return false };
        let (line, layout) = (&*line, &scene.layout);
        let zoomed = |factor: f64, point: (i32, i32)| layout.zoomed(line, *size, factor, point);
        let view = match input {
            PictureInput::Wheel { pixels: (x, y), alt, shift, .. } if alt || shift => layout.scrolled((x + y) as i32),
            PictureInput::Wheel { point, factor, .. } => zoomed(factor.powi(ZOOM_SPEED), point),
            PictureInput::Press(point) => {
                *grabbed = layout.control_at(point);
                let Some(control) = *grabbed else { return false };
                layout.moved_to(line, control, point)
            }
            PictureInput::Drag { point, pixels: (_, y), .. } => match *grabbed {
                Some(control) => layout.moved_to(line, control, point),
                None => layout.scrolled(-y),
            },
            PictureInput::Pinch(point, factor) => zoomed(factor, point),
            PictureInput::Zoom(factor) => {
                let middle = (i32::midpoint(layout.map.x0, layout.map.x1), i32::midpoint(layout.map.y0, layout.map.y1));
                let selected = selected.and_then(|hit| {
                    let area = layout.areas(line.position_of(hit.address)?, hit.size).next()?;
                    Some((i32::midpoint(area.x0, area.x1), i32::midpoint(area.y0, area.y1)))
                });
                zoomed(factor, selected.unwrap_or(middle))
            }
            PictureInput::DoubleClick | PictureInput::Fit => {
                MapView { sort: self.options.view.sort, ..MapView::default() }
            }
        };
        self.set_view(view);
        true
    }

    /// Shows another part of the device's memory. The next input of this frame continues from it.
    pub(super) fn set_view(&mut self, view: MapView) {
        self.options.view = view;
        if let Some(scene) = &mut self.picture.scene {
            scene.layout = Layout::new(&self.picture.line, self.picture.size, scene.layout.scale, view);
            self.options.view = scene.layout.view;
        }
    }
}

/// Returns the memory that the map highlights: that of a linked element, else the selected group.
fn lit_memory(context: &Context<'_>) -> Option<LinkedMemory> {
    context.lit.or(context.selected_group.map(|(by, group)| LinkedMemory::Group(by, group)))
}

/// Returns numbers that change with zoom and scroll position.
fn numbers(MapView { zoom, scroll, first_byte, .. }: MapView) -> Vec<u64> {
    let first_byte = first_byte.map_or(0, |byte| byte.saturating_add(1));
    vec![zoom.map_or(0, f64::to_bits), scroll.unsigned_abs().into(), first_byte]
}

/// Returns true if the categories of blocks will be inferred soon: the recording is being read.
fn is_inferring(context: &Context<'_>) -> bool {
    let progress = context.history.progress(context.recording);
    context.history.inferred_categories().is_none() && !progress.is_complete && progress.missing.is_empty()
}

/// Returns the property that colors show unless the user chooses one: the category if it is known
/// of most live bytes at the moment, else the site if there are several, else the size.
fn usual_color(context: &Context<'_>, shared: &mut SharedCaches) -> ColorBy {
    let recording = context.recording;
    if device_map::knows_categories(shared.groupings.get(GroupBy::Category, recording), context.state) {
        return ColorBy::Category;
    }
    if context.state.blocks().len() == 0 {
        return ColorBy::Category;
    }
    let has_stacks = shared.groupings.get(GroupBy::Site, recording).len() > 2;
    if has_stacks { ColorBy::Site } else { ColorBy::Size }
}
