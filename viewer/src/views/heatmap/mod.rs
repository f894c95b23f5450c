//! The heatmap's controls, legend, and where a request of a size would fit.

use vramscope_trace::ByteSize;

use crate::draw::theme::{Texture, Theme};
use crate::segment_map::{ColorBy, LegendEntry, LegendSwatch, Scaling, SortBy};
use crate::ui::{Attribute, Element, Node, Tag, swatch};

use super::ViewKind;
use crate::view::caches::SharedCaches;
use crate::view::context::{Context, ViewContent, ViewOptions};
use crate::view::controls::choice;
use crate::view::fit;

/// Returns the content of the view "Heatmap" beside its picture: controls, legend, and where a
/// request of the typed size would fit.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut SharedCaches) -> ViewContent {
    /// Name of the view "Heatmap" in commands.
    const VIEW: &str = ViewKind::Heatmap.name();
    let heatmap = &context.heatmap;
    let colors = ColorBy::ALL.map(|color_by| match color_by {
        ColorBy::LastChange => (color_by.name(), "last change"),
        _ => (color_by.name(), color_by.name()),
    });
    let scalings = [(Scaling::EachSegment, "each segment"), (Scaling::Common, "one for all")];
    let orders = SortBy::ALL.map(|sort| match sort {
        SortBy::FreeShare => (sort.name(), "free share"),
        _ => (sort.name(), sort.name()),
    });
    let scaling = heatmap.view.scaling.name();
    let controls = [
        choice("color", "color", heatmap.color_by.name(), colors),
        choice("scale", &format!("mode {VIEW}"), scaling, scalings.map(|(scaling, title)| (scaling.name(), title))),
        choice("sort", &format!("sort {VIEW}"), heatmap.view.sort.name(), orders),
        fit::size_field(VIEW, &options.filter),
    ];
    let mut content = ViewContent { legend: legend(context), ..ViewContent::with_controls(controls) };
    if !options.filter.is_empty() {
        let settings = caches.settings(context);
        content.content.extend(
            fit::fit(context, &options.filter, &settings, &mut caches.fit)
                .map(|found| fit::fit_card(context, found).into()),
        );
    }
    content
}

/// Returns the colors and textures of the heatmap with their meanings.
fn legend(context: &Context<'_>) -> Vec<Node> {
    let heatmap = &context.heatmap;
    if heatmap.legend.is_empty() {
        return Vec::new();
    }
    let entries = heatmap.legend.iter().map(|entry| legend_item(entry, context.theme));
    // Names of groups and their number change with the moment: the list has a fixed height.
    let class = if heatmap.color_by.group_by().is_some() { "entries groups" } else { "entries" };
    let mut list = Element::new(Tag::Ul).with_class(class).with_children(entries);
    if heatmap.view.scaling == Scaling::EachSegment {
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
