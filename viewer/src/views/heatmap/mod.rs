//! The heatmap: one row per segment, every block at its address.
//!
//! `segment_map` computes and draws the rows; other pictures show them, too.

mod map;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use vramscope_draw::{Canvas, Texture, Theme};
use vramscope_trace::{ByteSize, DeviceState};

use crate::command::{Command, Field};
use crate::link::{HeatmapZoom, Link};
use crate::segment_map::{self, ColorBy, Hit, LegendEntry, LegendSwatch, Scaling, SortBy, View as MapView};
use crate::ui::{Attribute, Element, Node, Tag, swatch};
use crate::view::{
    Context, PictureFrame, PictureInput, Pixel, Registered, SharedCaches, ShownMoment, StoredOptions, View,
    ViewContent, ViewInfo, choice, fit,
};

pub use map::Heatmap;
use map::MapOptions;

impl Registered for Heatmap {
    const INFO: ViewInfo = ViewInfo {
        picture_label: Some("One row per segment, every block at its address"),
        ..ViewInfo::new("heatmap", "Heatmap", ("Show the heatmap", &["1"]))
    };
}

/// Name of the view "Heatmap" in commands.
const VIEW: &str = Heatmap::INFO.name;

impl Heatmap {
    /// Returns scale, order of the rows, zoom and scroll position.
    pub fn map_view(&self) -> MapView {
        self.options.view
    }
}

impl View for Heatmap {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        let MapOptions { color_by, view, others } = &self.options;
        let colors = ColorBy::ALL.map(|color_by| match color_by {
            ColorBy::LastChange => (color_by.name(), "last change"),
            _ => (color_by.name(), color_by.name()),
        });
        let scalings = [(Scaling::EachSegment, "each segment"), (Scaling::Common, "one for all")];
        let orders = SortBy::ALL.map(|sort| match sort {
            SortBy::FreeShare => (sort.name(), "free share"),
            _ => (sort.name(), sort.name()),
        });
        let scalings = scalings.map(|(scaling, title)| (scaling.name(), title));
        let controls = [
            choice("color", Field::Color, color_by.name(), colors),
            choice("scale", Field::Mode(VIEW.into()), view.scaling.name(), scalings),
            choice("sort", Field::Sort(VIEW.into()), view.sort.name(), orders),
            fit::size_field(VIEW, &others.filter),
        ];
        let entries = self.picture.scene.as_ref().map_or(&[][..], |scene| &scene.legend);
        let mut content = ViewContent {
            legend: legend(entries, &self.options, context.theme),
            ..ViewContent::with_controls(controls)
        };
        content.content.extend(fit::fit_card(context, &others.filter, shared).map(Node::from));
        content
    }

    fn add_to_link(&self, link: &mut Link) {
        let (MapOptions { color_by, view, .. }, default) = (&self.options, MapView::default());
        link.color_by = (*color_by != ColorBy::default()).then_some(*color_by);
        link.scaling = (view.scaling != default.scaling).then_some(view.scaling);
        link.sort = (view.sort != default.sort).then_some(view.sort);
        let zoom = HeatmapZoom { rows: view.zoom, columns: view.column_zoom, column_start: view.column_start };
        link.zoom = (view.zoom > 1.0 || view.column_zoom > 1.0).then_some(zoom);
    }

    fn open_link(&mut self, link: &Link, is_complete: bool) {
        let MapOptions { color_by, view, .. } = &mut self.options;
        if is_complete {
            (*color_by, *view) = (ColorBy::default(), MapView { scroll: view.scroll, ..MapView::default() });
        }
        *color_by = link.color_by.unwrap_or(*color_by);
        (view.scaling, view.sort) = (link.scaling.unwrap_or(view.scaling), link.sort.unwrap_or(view.sort));
        if let Some(HeatmapZoom { rows, columns, column_start }) = link.zoom {
            (view.zoom, view.column_zoom, view.column_start) = (rows, columns, column_start);
        }
    }

    fn update_picture(&mut self, context: &Context<'_>, shared: &mut SharedCaches, frame: &PictureFrame<'_>) -> bool {
        self.compute(context, shared, frame);
        true
    }

    fn has_picture(&self) -> bool {
        self.picture.scene.is_some()
    }

    fn draw(&self, canvas: &mut Canvas<'_>, theme: &Theme) {
        if let Some(scene) = &self.picture.scene {
            segment_map::draw_on(scene, theme, canvas);
        }
    }

    fn hover(&mut self, context: &Context<'_>, _shared: &mut SharedCaches, point: Option<Pixel>) -> Vec<String> {
        self.set_highlights(context, point);
        // The details panel describes the memory under the pointer.
        Vec::new()
    }

    fn draw_highlights(&self, canvas: &mut Canvas<'_>, theme: &Theme, _moment: ShownMoment) {
        self.draw_outlines(canvas, theme);
    }

    fn click(&mut self, context: &Context<'_>, _shared: &mut SharedCaches, point: Pixel) -> Option<Command> {
        Some(self.command_at(context, point))
    }

    fn input(&mut self, device: &DeviceState, input: PictureInput) -> bool {
        self.move_map(device, input)
    }

    fn change_layout(&mut self) -> bool {
        let view = &mut self.options.view;
        view.scaling = match view.scaling {
            Scaling::EachSegment => Scaling::Common,
            Scaling::Common => Scaling::EachSegment,
        };
        view.scroll = 0;
        true
    }

    fn color_by(&mut self) -> Option<&mut ColorBy> {
        Some(&mut self.options.color_by)
    }

    fn hit(&self, device: &DeviceState, point: Pixel) -> Option<Hit> {
        self.hit_at(device, point)
    }

    fn reveal(&mut self, device: &DeviceState, address: u64) {
        let layout = self.picture.scene.as_ref().map(|scene| &scene.layout);
        if let Some(view) = layout.and_then(|layout| layout.reveal(address)) {
            self.set_view(device, view);
        }
    }

    fn device_changed(&mut self) {
        self.options.view = MapView::default();
    }
}

/// Returns the colors and textures of the heatmap with their meanings.
fn legend(entries: &[LegendEntry], options: &MapOptions, theme: &Theme) -> Vec<Node> {
    if entries.is_empty() {
        return Vec::new();
    }
    let entries = entries.iter().map(|entry| legend_item(entry, theme));
    // Names of groups and their number change with the moment: the list has a fixed height.
    let class = if options.color_by.group_by().is_some() { "entries groups" } else { "entries" };
    let mut list = Element::new(Tag::Ul).with_class(class).with_children(entries);
    if options.view.scaling == Scaling::EachSegment {
        let sample = Element::new(Tag::I).with_class("swatch swatch-heat");
        let text = Element::text(Tag::Span, "fragmentation 0–100%");
        list = list.with_child(Element::new(Tag::Li).with_child(sample).with_child(text));
    }
    vec![list.into()]
}

/// Returns an entry of the legend: sample, meaning, and live bytes in view if they are known.
fn legend_item(entry: &LegendEntry, theme: &Theme) -> Element {
    let text = Element::text(Tag::Span, &*entry.text).with_class("name").with(Attribute::Title, &*entry.text);
    let item = Element::new(Tag::Li).with_child(sample(entry.swatch, theme)).with_child(text);
    match entry.bytes {
        Some(bytes) => item.with_child(Element::text(Tag::Span, ByteSize(bytes).to_string()).with_class("bytes")),
        None => item,
    }
}

/// Returns a color sample with its texture.
fn sample(entry: LegendSwatch, theme: &Theme) -> Element {
    let color = entry.color(theme);
    match entry {
        LegendSwatch::Free => swatch(color).with_pattern("rising", theme.free_hatch),
        LegendSwatch::SubduedFree => swatch(color).with_pattern("rising", theme.free_colors(true).1),
        LegendSwatch::FreeSegment => swatch(color).with_pattern("rising", theme.cached_hatch),
        LegendSwatch::Badges(badges) if badges.is_expandable => swatch(color).with_class("swatch edge dashed"),
        LegendSwatch::Badges(_) => swatch(color).with_class("swatch edge"),
        _ => match entry.texture(theme) {
            (Texture::None, _) => swatch(color),
            (texture, ink) => swatch(color).with_pattern(texture.name(), ink),
        },
    }
}
