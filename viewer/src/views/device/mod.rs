//! The device map: every byte of the device to one scale, by category or another property.
//!
//! `device_map` computes and draws it; other pictures show it, too.

mod failure;
mod map;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;
mod requests;

use vramscope_draw::{Canvas, Theme};
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{ByteSize, DeviceState, FormatError};

use crate::command::{Command, Field};
use crate::device_map::{self, ColorBy, Hit, LegendEntry, LegendSwatch, MapScene, SortBy, View as MapView};
use crate::link::{Link, MapZoom};
use crate::ui::{Element, Node, Tag, swatch};
use crate::view::{
    Context, PictureFrame, PictureInput, Pixel, Registered, SharedCaches, ShownMoment, StoredOptions, View,
    ViewContent, ViewInfo, Work, choice, fit, linked_item,
};

pub use map::Device;
use map::MapOptions;

impl Registered for Device {
    const INFO: ViewInfo = ViewInfo {
        picture_label: Some("Every byte of the device to one scale"),
        ..ViewInfo::new("device", "Device", ("Show the map of the device", &["1"]))
    };
}

/// Name of the view "Device" in commands.
const VIEW: &str = Device::INFO.name;

impl Device {
    /// Returns the map as last computed; `None` before the first picture.
    pub fn scene(&self) -> Option<&MapScene> {
        self.picture.scene.as_ref()
    }

    /// Returns the order of the segments, zoom and scroll position.
    pub fn map_view(&self) -> MapView {
        self.options.view
    }
}

impl View for Device {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        let color_by = self.shown_color(context, shared);
        let MapOptions { view, others, .. } = &self.options;
        let colors = ColorBy::ALL.map(|color_by| match color_by {
            ColorBy::LastChange => (color_by.name(), "last change"),
            _ => (color_by.name(), color_by.name()),
        });
        let orders = SortBy::ALL.map(|sort| match sort {
            SortBy::FreeShare => (sort.name(), "free share"),
            _ => (sort.name(), sort.name()),
        });
        let controls = [
            choice("color", Field::Color, color_by.name(), colors),
            choice("sort", Field::Sort(VIEW.into()), view.sort.name(), orders),
            fit::size_field(VIEW, &others.filter),
        ];
        let mut content = ViewContent {
            legend: legend(&self.picture.legend, color_by, context),
            picture_text: Some(picture_text(&self.picture.legend)),
            ..ViewContent::with_controls(controls)
        };
        if others.filter.is_empty() {
            content.content.extend(failure::failure_card(context, shared).map(Node::from));
        }
        content.content.extend(fit::fit_card(context, &others.filter, shared).map(Node::from));
        content
    }

    fn forget(&mut self) {
        self.forget_recording();
    }

    fn add_to_link(&self, link: &mut Link) {
        let MapOptions { color_by, view, .. } = &self.options;
        link.color_by = *color_by;
        link.sort = (view.sort != SortBy::default()).then_some(view.sort);
        let layout = self.picture.scene.as_ref().map(|scene| &scene.layout);
        let first_byte = layout.map_or(0.0, |layout| layout.shown().0);
        link.zoom = view.zoom.map(|zoom| MapZoom { zoom, first_byte: first_byte.ceil() as u64 });
    }

    fn open_link(&mut self, link: &Link, is_complete: bool) {
        let MapOptions { color_by, view, .. } = &mut self.options;
        if is_complete {
            (*color_by, *view) = (None, MapView { scroll: view.scroll, ..MapView::default() });
        }
        *color_by = link.color_by.or(*color_by);
        view.sort = link.sort.unwrap_or(view.sort);
        if let Some(MapZoom { zoom, first_byte }) = link.zoom {
            (view.zoom, view.first_byte) = (Some(zoom), Some(first_byte));
        }
    }

    fn work(
        &mut self,
        context: &Context<'_>,
        _shared: &mut SharedCaches,
        max_events: u64,
    ) -> Result<Work, FormatError> {
        Ok(self.requests.read(context, max_events))
    }

    fn update_picture(&mut self, context: &Context<'_>, shared: &mut SharedCaches, frame: &PictureFrame<'_>) -> bool {
        self.compute(context, shared, frame)
    }

    fn has_picture(&self) -> bool {
        self.picture.scene.is_some()
    }

    fn draw(&self, canvas: &mut Canvas<'_>, theme: &Theme) {
        if let Some(scene) = &self.picture.scene {
            device_map::draw_on(scene, theme, canvas);
        }
    }

    fn hover(&mut self, context: &Context<'_>, shared: &mut SharedCaches, point: Option<Pixel>) -> Vec<String> {
        self.set_highlights(context, point);
        point.map(|point| self.texts_at(context, shared, point)).unwrap_or_default()
    }

    fn draw_highlights(&self, canvas: &mut Canvas<'_>, theme: &Theme, _moment: ShownMoment) {
        self.draw_outlines(canvas, theme);
    }

    fn click(&mut self, context: &Context<'_>, _shared: &mut SharedCaches, point: Pixel) -> Option<Command> {
        Some(self.command_at(context, point))
    }

    fn input(&mut self, _device: &DeviceState, input: PictureInput) -> bool {
        self.move_map(input)
    }

    fn color_by(&self) -> Option<ColorBy> {
        Some(self.known_color())
    }

    fn set_color(&mut self, color_by: ColorBy) {
        self.options.color_by = Some(color_by);
    }

    fn hit(&self, device: &DeviceState, point: Pixel) -> Option<Hit> {
        self.hit_at(device, point)
    }

    fn reveal(&mut self, _device: &DeviceState, address: u64) {
        // The memory of a new moment is known with its picture.
        self.picture.revealed = Some(address);
    }

    fn device_changed(&mut self) {
        self.options.view = MapView { sort: self.options.view.sort, ..MapView::default() };
    }
}

/// Returns a short text of what the map shows, for screen readers; the details panel has a table of
/// it.
fn picture_text(entries: &[LegendEntry]) -> String {
    let mut parts: Vec<(&str, u64)> =
        entries.iter().filter_map(|entry| Some((&*entry.text, entry.bytes?))).filter(|(_, bytes)| *bytes > 0).collect();
    sort_by_key(&mut parts, |&(_, bytes)| std::cmp::Reverse(bytes));
    let parts: Vec<String> = parts.iter().map(|(name, bytes)| format!("{name} {}", ByteSize(*bytes))).collect();
    match parts.is_empty() {
        true => "Map of the device's memory".to_owned(),
        false => format!("Map of the device's memory: {}", parts.join(", ")),
    }
}

/// Returns the colors and textures of the map with their meanings.
fn legend(entries: &[LegendEntry], color_by: ColorBy, context: &Context<'_>) -> Vec<Node> {
    if entries.is_empty() {
        return Vec::new();
    }
    let entries = entries.iter().map(|entry| legend_item(entry, context));
    // Names of groups and their number change with the moment: the list has a fixed height.
    let class = if color_by.group_by().is_some() { "entries groups" } else { "entries" };
    vec![Element::new(Tag::Ul).with_class(class).with_children(entries).into()]
}

/// Returns an entry of the legend: sample, meaning, and bytes if they are known.
fn legend_item(entry: &LegendEntry, context: &Context<'_>) -> Element {
    let item = linked_item(sample(entry.swatch, context.theme), &entry.text, entry.memory, context.kept);
    match entry.bytes {
        Some(bytes) => item.with_child(Element::text(Tag::Span, ByteSize(bytes).to_string()).with_class("bytes")),
        None => item,
    }
}

/// Returns a color sample with its strokes.
fn sample(entry: LegendSwatch, theme: &Theme) -> Element {
    let style = entry.style(theme);
    match style.pattern() {
        Some(pattern) => swatch(style.color).with_pattern(pattern, style.ink),
        None => swatch(style.color),
    }
}
