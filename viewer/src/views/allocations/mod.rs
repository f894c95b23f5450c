//! Allocations over time: every allocation as a band, stacked or by address, and the table of the
//! live allocations.
//!
//! The plot has the timeline's left and right edges, so that a pixel column shows equal moments in
//! both. In the stacked layout, each column shows the live allocations at the column's moment of
//! the most live bytes, older ones below; allocations less than a pixel high are added up by color
//! on top. In the layout by address, every allocation is a rectangle at its address.
//!
//! [`vramscope_insight::bands`] and [`vramscope_insight::address_map`] compute both layouts; an
//! [`AllocationsScene`] adds positions and texts.

mod draw;
mod geometry;
mod labels;
mod layers;
mod lines;
mod outline;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;
mod picture;
mod scene;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;

use vramscope_draw::picture::{draw_moment, draw_notice, draw_pointer_text};
use vramscope_draw::{Canvas, GroupStyle, MomentAxis, Theme, draw_ticks};
use vramscope_insight::composition::OTHER_LAYER;
use vramscope_insight::group::GroupBy;
use vramscope_insight::incremental::AllocationSearch;
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{ByteSize, DeviceState, FormatError};

use crate::command::Command;
use crate::device_map::Highlight;
use crate::linked_memory::LinkedMemory;
use crate::ui::{Attribute, Element, Tag, swatch};
use crate::view::{
    Context, Options, PictureFrame, PictureInput, PictureKey, Pixel, Registered, SharedCaches, ShownMoment,
    StoredOptions, View, ViewContent, ViewInfo, Work, group_choice, live_allocations, mode_choice,
};

pub use geometry::Geometry;
use layers::{Layout, composition_now, group_command, grouping_of, is_by_address, layers, selected_layer};
pub use outline::Outline;
use picture::PictureSource;
pub use scene::{AllocationsLayout, AllocationsScene, Target};

/// The view "Allocations over time".
#[derive(Default)]
pub struct Allocations {
    options: Options<Layout>,
    source: PictureSource,
    /// The search of the live allocations in the table.
    live: AllocationSearch,
    picture: Picture,
}

/// The picture of all allocations over time.
#[derive(Default)]
struct Picture {
    key: Option<PictureKey>,
    /// The emphasized or outlined allocations.
    emphasis: [u64; 5],
    scene: Option<AllocationsScene>,
    axis: MomentAxis,
    /// Text in place of a picture that cannot be computed yet.
    waiting: Option<String>,
    scale: f32,
    /// When the scene was computed, by the page's clock, in milliseconds.
    computed_ms: f64,
    /// The outlines of the allocation under the pointer and of the selected one.
    outlines: Vec<(Outline, Highlight)>,
}

impl Registered for Allocations {
    const INFO: ViewInfo = ViewInfo {
        picture_label: Some("Every allocation as a band over time"),
        needs_history: true,
        ..ViewInfo::new("allocations", "Allocations over time", ("Show allocations as bands over time", &["2"]))
    };
}

/// Name of the view in commands and links.
const VIEW: &str = Allocations::INFO.name;
/// Minimum time in milliseconds between two computations of the picture while its recording grows.
const LEAST_INTERVAL_MS: f64 = 250.0;
/// Changes of allocations that take about as long as reading an event of the recording.
const CHANGES_PER_EVENT: u64 = 3;
/// Text on the picture while the smaller allocations are not drawn yet.
const PAINTING: &str = "Drawing the smaller allocations…";
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

impl View for Allocations {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, &self.options, (shared, &mut self.live))
    }

    fn forget(&mut self) {
        (self.source, self.live, self.picture) = Default::default();
    }

    fn work(&mut self, context: &Context<'_>, shared: &mut SharedCaches, max_events: u64) -> Result<Work, FormatError> {
        let max_changes = usize::try_from(max_events.saturating_mul(CHANGES_PER_EVENT)).unwrap_or(usize::MAX);
        let shown = |source: &PictureSource, shared: &mut SharedCaches| {
            let waiting = waiting_text(context, &self.options, shared, source);
            (waiting, picture::picture_key(context, &self.options, shared, source))
        };
        let before = shown(&self.source, shared);
        let has_more = advance(context, &self.options, (shared, &mut self.source), max_changes)?;
        Ok(Work { has_more, has_changed: before != shown(&self.source, shared) })
    }

    fn update_picture(&mut self, context: &Context<'_>, shared: &mut SharedCaches, frame: &PictureFrame<'_>) -> bool {
        self.compute(context, shared, frame)
    }

    fn has_picture(&self) -> bool {
        self.picture.waiting.is_some() || self.picture.scene.is_some()
    }

    fn draw(&self, canvas: &mut Canvas<'_>, theme: &Theme) {
        let Picture { scene, axis, waiting, scale, .. } = &self.picture;
        match (scene, waiting) {
            (_, Some(text)) => draw_notice(canvas, text, *scale, theme),
            (Some(scene), None) => {
                draw::draw_on(scene, theme, canvas);
                draw_ticks(canvas, axis, scene.geometry.plot.y1, *scale, theme);
            }
            (None, None) => {}
        }
    }

    fn hover(&mut self, context: &Context<'_>, shared: &mut SharedCaches, point: Option<Pixel>) -> Vec<String> {
        self.picture.outlines = self.outlines(context, shared, point);
        let Some((scene, point)) = self.picture.shown().zip(point) else { return Vec::new() };
        lines::lines(context, &self.options, (shared, &self.source.indexes), scene, point)
    }

    fn linked(&mut self, context: &Context<'_>, shared: &mut SharedCaches, point: Pixel) -> Vec<LinkedMemory> {
        let target = self.picture.shown().and_then(|scene| scene.hit(point));
        picture::linked(context, &self.options, shared, target).unwrap_or_default()
    }

    fn draw_highlights(&self, canvas: &mut Canvas<'_>, theme: &Theme, moment: ShownMoment) {
        let Some(scene) = self.picture.shown() else { return };
        let (plot, scale) = (scene.geometry.plot, self.picture.scale);
        for (outline, highlight) in &self.picture.outlines {
            draw::draw_outline(canvas.bitmap, scene, theme, outline, *highlight);
        }
        draw_moment(canvas.bitmap, &self.picture.axis, moment, (plot.y0, plot.y1), scale, theme);
        if !scene.is_complete() {
            draw_pointer_text(canvas, &[PAINTING.to_owned()], (plot.x0, plot.y0), scale, theme);
        }
    }

    fn click(&mut self, context: &Context<'_>, shared: &mut SharedCaches, point: Pixel) -> Option<Command> {
        picture::command(context, &self.options, shared, self.picture.shown()?.hit(point)?)
    }

    fn moment_axis(&self) -> Option<&MomentAxis> {
        self.picture.shown().map(|_| &self.picture.axis)
    }

    fn input(&mut self, _device: &DeviceState, input: PictureInput) -> bool {
        let Some(scene) = self.picture.shown() else { return false };
        let is_by_address = matches!(scene.layout(), AllocationsLayout::ByAddress(_));
        let zoom = match input {
            PictureInput::Wheel { point, factor, ctrl: true, .. } => picture::zoom_at(scene, point.1, 1.0 / factor),
            PictureInput::Wheel { pixels: (_, y), alt: true, .. } => picture::scroll_by(scene, -y),
            PictureInput::DoubleClick => None,
            _ => return false,
        };
        self.source.zoom = zoom.map(|range| (is_by_address, range));
        // A double click also shows the whole recording.
        input != PictureInput::DoubleClick
    }

    fn change_layout(&mut self) -> bool {
        let other = if is_by_address(&self.options) { Layout::Stacked } else { Layout::ByAddress };
        self.options.mode = Some(other);
        true
    }
}

impl Picture {
    /// Returns the scene; `None` while a text is shown in its place.
    fn shown(&self) -> Option<&AllocationsScene> {
        self.scene.as_ref().filter(|_| self.waiting.is_none())
    }
}

impl Allocations {
    /// Returns the picture; `None` if it has not been computed yet.
    pub fn scene(&self) -> Option<&AllocationsScene> {
        self.picture.shown()
    }

    /// Computes the picture again if its inputs have changed. If the picture is an address map,
    /// each call paints a bounded part of it. Returns true if the picture must be drawn.
    fn compute(&mut self, context: &Context<'_>, shared: &mut SharedCaches, frame: &PictureFrame<'_>) -> bool {
        let axis = frame.axis();
        self.picture.scale = frame.scale;
        let waiting = waiting_text(context, &self.options, shared, &self.source);
        let numbers = picture::picture_key(context, &self.options, shared, &self.source);
        let Some(numbers) = numbers.filter(|_| waiting.is_none() && axis.edges().len() > 1) else {
            let text = Some(waiting.unwrap_or_default());
            let key = Some(frame.key(Vec::new()));
            let has_changed = self.picture.waiting != text || self.picture.key != key;
            (self.picture.waiting, self.picture.key) = (text, key);
            return has_changed;
        };
        let until = numbers.until.len();
        let key = frame.chart_key([&*numbers.until, &numbers.chosen].concat());
        if self.picture.key.as_ref() != Some(&key) {
            if self.picture.shown().is_some() && self.is_too_early(frame, &key, until) {
                shared.is_unfinished = true;
                return self.emphasize(context, shared, numbers.emphasis);
            }
            let geometry = Geometry::new(key.size, key.scale);
            let scene = picture::scene(context, &self.options, (shared, &self.source), (axis.edges(), geometry));
            let Some(scene) = scene else { return false };
            shared.is_unfinished |= !scene.is_complete();
            self.picture = Picture {
                key: Some(key),
                emphasis: numbers.emphasis,
                scene: Some(scene),
                axis: axis.clone(),
                waiting: None,
                computed_ms: frame.clock_ms,
                ..std::mem::take(&mut self.picture)
            };
            return true;
        }
        let is_emphasized = self.emphasize(context, shared, numbers.emphasis);
        let Some(scene) = self.picture.scene.as_mut().filter(|scene| !scene.is_complete()) else {
            return is_emphasized;
        };
        shared.is_unfinished |= picture::paint(context, &self.options, (shared, &self.source), scene);
        true
    }

    /// Emphasizes and outlines other allocations than before in the picture. Returns true if they
    /// are others.
    fn emphasize(&mut self, context: &Context<'_>, shared: &mut SharedCaches, emphasis: [u64; 5]) -> bool {
        let Some(scene) = self.picture.scene.as_mut().filter(|_| self.picture.emphasis != emphasis) else {
            return false;
        };
        picture::emphasize(context, &self.options, shared, scene);
        self.picture.emphasis = emphasis;
        true
    }

    /// Returns true if the picture should not be recomputed yet: the last one is less than 250 ms
    /// old, and since then only the recording has grown. The first `until` numbers of the key grow
    /// with the recording.
    fn is_too_early(&self, frame: &PictureFrame<'_>, key: &PictureKey, until: usize) -> bool {
        let Some(before) = &self.picture.key else { return false };
        let has_grown = before.numbers.get(..until) != key.numbers.get(..until) || frame.is_following;
        let is_same = before.numbers.get(until..) == key.numbers.get(until..)
            && (before.size, before.scale, before.is_dark) == (key.size, key.scale, key.is_dark);
        let age_ms = frame.clock_ms - self.picture.computed_ms;
        frame.is_growing && has_grown && is_same && (0.0..LEAST_INTERVAL_MS).contains(&age_ms)
    }

    /// Returns the outlines of the allocation at the pointer's pixel and of the selected one.
    fn outlines(
        &self,
        context: &Context<'_>,
        shared: &mut SharedCaches,
        point: Option<Pixel>,
    ) -> Vec<(Outline, Highlight)> {
        let Some(scene) = self.picture.shown() else { return Vec::new() };
        let hovered = point.and_then(|point| match scene.hit(point) {
            Some(Target::Allocation { row }) => Some(row),
            _ => None,
        });
        let rows = [(hovered, Highlight::Hovered), (picture::selected_row(context), Highlight::Selected)];
        let mut outline = |row| picture::outline(context, &self.options, shared, scene, row);
        rows.into_iter().filter_map(|(row, highlight)| Some((outline(row?), highlight))).collect()
    }
}

/// Advances the index behind the picture of all allocations by about `max_changes` changes of
/// allocations. Returns true if there are more changes that can be read at once.
///
/// # Errors
/// If an event cannot be read.
fn advance(
    context: &Context<'_>,
    options: &Options<Layout>,
    (caches, source): (&mut SharedCaches, &mut PictureSource),
    max_changes: usize,
) -> Result<bool, FormatError> {
    let history = context.device_history().filter(|_| context.history.is_nearly_read(context.recording));
    let Some(history) = history else { return Ok(false) };
    let key = (context.device, grouping_of(options));
    let mut is_done = caches.compositions.step(context.recording, context.history, key, max_changes);
    is_done &= source.indexes.step_index(&history, max_changes);
    if is_by_address(options) {
        let (has_segments, missing) = source.indexes.step_segments(&history, max_changes as u64)?;
        is_done &= has_segments;
        if !missing.is_empty() {
            caches.missing = missing;
        }
    }
    Ok(!is_done)
}

/// Returns the text that is shown in place of the picture of all allocations until that can be
/// computed; then `None`.
fn waiting_text(
    context: &Context<'_>,
    options: &Options<Layout>,
    caches: &mut SharedCaches,
    source: &PictureSource,
) -> Option<String> {
    let Some(history) = context.device_history() else {
        let text = if context.is_history_complete { "Nothing was allocated on this device." } else { READING };
        return Some(text.to_owned());
    };
    if !context.history.is_nearly_read(context.recording) {
        let first = context.recording.first_event();
        let read = context.history.until().saturating_sub(first);
        let known = context.recording.end_event().saturating_sub(first);
        return Some(format!("Reading the recording: {}", tenths(read, known)));
    }
    if picture::picture_key(context, options, caches, source).is_some() {
        return None;
    }
    let (done, total) = source.indexes.progress(&history);
    if done < total {
        return Some(format!("Arranging the allocations: {}", tenths(done, total)));
    }
    let (done, total) = source.indexes.segment_progress(&history);
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
fn content(
    context: &Context<'_>,
    options: &Options<Layout>,
    (caches, search): (&mut SharedCaches, &mut AllocationSearch),
) -> ViewContent {
    let by = grouping_of(options);
    let layout = options.mode.unwrap_or(Layout::Stacked);
    let mut content = ViewContent::with_controls([
        mode_choice("layout", VIEW, &layout, Layout::MENU),
        group_choice(VIEW, by, &GROUPINGS),
    ]);
    content.legend.push(legend(context, by, caches).into());
    if context.history.until() < context.moment || context.lifetimes().is_none() {
        return content;
    }
    let (summary, table) = live_allocations(VIEW, context, options, (caches, search));
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
        let command = group_command(context, by, caches, &layer.name);
        let memory = match command {
            Some(Command::Group(by, group, _)) => Some(LinkedMemory::Group(by, group)),
            _ => None,
        };
        let name = match command {
            Some(command) => Element::button(&*layer.name, command).with_class("link name"),
            None => Element::text(Tag::Span, &*layer.name).with_class("name"),
        };
        let name = name.with(Attribute::Title, &*layer.name);
        let item = legend_item(sample(layer.style, context.theme), name, bytes);
        let item = if let Some(memory) = memory { item.with_light(memory) } else { item };
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
