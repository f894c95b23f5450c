//! The heatmap's controls, legend, and where a request of a size would fit.

use vramscope_trace::ByteSize;

use crate::heatmap::{ColorBy, LegendEntry, LegendSwatch, Scaling, SortBy};
use crate::theme::{Texture, Theme};
use crate::ui::{Attribute, Element, Node, Tag, swatch};

use super::caches::Caches;
use super::context::{Context, ViewContent, ViewOptions};
use super::controls::choice;
use super::fit;
use super::kind::ViewKind;

/// Returns the content of the view.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut Caches) -> ViewContent {
    const VIEW: &str = ViewKind::Heatmap.name();
    let heatmap = &context.heatmap;
    let colors = ColorBy::ALL.map(|color_by| (color_by.name(), color_title(color_by)));
    let scalings = [(Scaling::EachSegment, "each segment"), (Scaling::Common, "one for all")];
    let orders = SortBy::ALL.map(|sort| (sort.name(), sort_title(sort)));
    let mut content = ViewContent {
        controls: vec![
            choice("color", "color", heatmap.color_by.name(), colors).into(),
            choice(
                "scale",
                &format!("mode {VIEW}"),
                heatmap.view.scaling.name(),
                scalings.map(|(scaling, title)| (scaling.name(), title)),
            )
            .into(),
            choice("sort", &format!("sort {VIEW}"), heatmap.view.sort.name(), orders).into(),
            fit::size_field(VIEW, &options.filter).into(),
        ],
        legend: legend(context),
        ..ViewContent::default()
    };
    if !options.filter.is_empty() {
        let settings = caches.settings(context);
        if let Some(found) = fit::fit(context, &options.filter, &settings, &mut caches.fit) {
            content.content.push(fit::fit_card(context, found).into());
        }
    }
    content
}

/// Returns the name of a coloring in menus.
const fn color_title(color_by: ColorBy) -> &'static str {
    match color_by {
        ColorBy::State => "state",
        ColorBy::Category => "category",
        ColorBy::Site => "site",
        ColorBy::Module => "module",
        ColorBy::Stream => "stream",
        ColorBy::Pool => "pool",
        ColorBy::Age => "age",
        ColorBy::LastChange => "last change",
        ColorBy::Size => "size",
    }
}

/// Returns the name of an order of rows in menus.
const fn sort_title(sort: SortBy) -> &'static str {
    match sort {
        SortBy::Address => "address",
        SortBy::Size => "size",
        SortBy::Pool => "pool",
        SortBy::FreeShare => "free share",
    }
}

/// Returns the legend: a list of color samples with their meanings.
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
    let (texture, ink) = match entry {
        LegendSwatch::Free => ("rising", theme.free_hatch),
        LegendSwatch::SubduedFree => ("rising", theme.free_colors(true).1),
        LegendSwatch::FreeSegment => ("rising", theme.cached_hatch),
        LegendSwatch::Badges(badges) if badges.is_expandable => {
            return swatch(color).with_class("swatch edge dashed");
        }
        LegendSwatch::Badges(_) => return swatch(color).with_class("swatch edge"),
        _ => match entry.texture(theme) {
            (Texture::None, _) => return swatch(color),
            (texture, ink) => (texture.name(), ink),
        },
    };
    let texture = Element::new(Tag::I).with_class(format!("texture texture-{texture}")).with_color(ink);
    swatch(color).with_child(texture)
}
