//! The flame graph's controls, texts and table: who holds the memory, by call stack or by group.

mod cache;
mod draw;
mod scene;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;

use vramscope_insight::flame::{FlameGraph, FlameNode, FlameNodeKind};
use vramscope_insight::group::GroupBy;
use vramscope_trace::{ByteSize, Count};

use crate::draw::group_style::GroupStyle;
use crate::draw::theme::Theme;
use crate::ui::{Attribute, Element, Tag, swatch};

use super::ViewKind;
use crate::view::caches::SharedCaches;
use crate::view::context::{Context, ViewContent, ViewOptions};
use crate::view::controls::{choice, group_choice, group_title};
use crate::view::table::{Cell, Table};
use crate::view::table_builder::TableBuilder;

pub use cache::FlameCache;
use cache::{Mode, Moment, grouping_of};
pub use draw::{color_of, draw, draw_highlight};
pub(crate) use scene::zoomed_node;
pub use scene::{BoxStyle, FlameBox, FlameContent, FlameScene, Target, box_styles, function_hue};

/// Name of the view "Flame graph" in commands and links.
const VIEW: &str = ViewKind::Flame.name();
/// Maximum number of levels by which names in the flame graph's table are indented.
const MAX_INDENT: u32 = 24;
/// The groupings that the view "Flame graph" offers, the default first.
const GROUPINGS: [GroupBy; 6] =
    [GroupBy::Stack, GroupBy::Function, GroupBy::Module, GroupBy::Category, GroupBy::File, GroupBy::Line];

/// Returns true if the flame graph with these options needs the lifetimes of the whole recording.
#[must_use]
pub fn needs_history(options: &ViewOptions) -> bool {
    Mode::of(options).moment != Moment::Shown
}

/// Returns the content of the view "Flame graph" beside its picture: controls, legend, and the
/// nodes as a table.
#[must_use]
pub fn content(
    context: &Context<'_>,
    options: &ViewOptions,
    caches: &mut SharedCaches,
    flame: &mut FlameCache,
) -> ViewContent {
    let mode = Mode::of(options);
    let mut content = ViewContent {
        controls: controls(mode, options),
        legend: legend(options, context.theme),
        ..ViewContent::default()
    };
    if flame.update(context, options, caches).is_none() {
        return content.with_message("Reading the recording…");
    }
    let graph = flame.graph();
    let Some(root) = graph.nodes.first() else { return content };
    let focus = zoomed_node(graph, options.number) as usize;
    let what = mode.moment.description();
    let all = format!("{} in {} {what}", ByteSize(root.bytes), Count(root.blocks).of("block", "blocks"));
    let mut summary = Element::new(Tag::P).with_class("summary").with_text(match focus {
        0 => all,
        focus => {
            let node = &graph.nodes[focus];
            format!("{}: {} of {all}", node.label, ByteSize(node.bytes))
        }
    });
    if options.number.is_some() {
        summary = summary.with_child(Element::button("show all", "flame-zoom").with_class("link"));
    }
    content.content.push(summary.into());
    content.with_table(table(graph, flame.styles(), focus, context, options))
}

/// Returns the fields that choose the flame graph's moment and grouping, and whether library frames
/// are folded.
fn controls(mode: Mode, options: &ViewOptions) -> Vec<crate::ui::Node> {
    let moments = Moment::ALL.map(|moment| (Mode { moment, ..mode }.name(), moment.title()));
    let folds = [true, false]
        .map(|is_folded| (Mode { is_folded, ..mode }.name(), if is_folded { "folded" } else { "all frames" }));
    let command = format!("mode {VIEW}");
    let field = |label: &str, choices: &[(String, &'static str)]| {
        let choices = choices.iter().map(|(name, title)| (name.as_str(), *title));
        choice(label, &command, &mode.name(), choices)
    };
    let by = grouping_of(options);
    let mut nodes = vec![group_choice(VIEW, by, &GROUPINGS).into(), field("at", &moments).into()];
    nodes.extend(
        matches!(by, GroupBy::Stack | GroupBy::Function | GroupBy::Line).then(|| field("libraries", &folds).into()),
    );
    if options.number.is_some() {
        nodes.push(Element::button("zoom out", "flame-zoom").with(Attribute::Title, "Show everything").into());
    }
    nodes
}

/// Returns the legend of the flame graph's colors.
fn legend(options: &ViewOptions, theme: &Theme) -> Vec<crate::ui::Node> {
    /// The legend's entry for boxes that are merged because they are too narrow.
    const NARROW: (BoxStyle, &str) = (BoxStyle::Other, "boxes narrower than a pixel");
    let unknown = (BoxStyle::NoStack, "no call stack");
    let group = |text: &'static str| vec![(BoxStyle::Group(GroupStyle::Group(0)), text)];
    let mut entries = match grouping_of(options) {
        GroupBy::Function => group("a color for each function, its callers below it"),
        GroupBy::Line => group("a color for each line, its callers below it"),
        GroupBy::Module => group("a color for each module, its lines below it"),
        GroupBy::Category => group("a color for each category, its sites below it"),
        GroupBy::File => group("a color for each file, its lines below it"),
        _ => vec![(BoxStyle::Own(0), "your code, a color for each function"), (BoxStyle::Library(0), "library")],
    };
    entries.extend([unknown, NARROW]);
    let item = |(style, text): (BoxStyle, &str)| {
        let sample = match style {
            BoxStyle::Other => Element::new(Tag::I).with_class("swatch swatch-narrow"),
            style => swatch(crate::views::flame::color_of(style, theme)),
        };
        Element::new(Tag::Li).with_child(sample).with_text(text)
    };
    vec![Element::new(Tag::Ul).with_children(entries.into_iter().map(item)).into()]
}

/// Returns the flame graph's nodes from node `focus` down as a table whose rows form a tree.
fn table(graph: &FlameGraph, styles: &[BoxStyle], focus: usize, context: &Context<'_>, options: &ViewOptions) -> Table {
    let (column, caption) = match grouping_of(options) {
        GroupBy::Stack => ("call", "Bytes by call stack, callers above what they call"),
        by => (group_title(by), "Bytes by group, with what each consists of below it"),
    };
    let end = (graph.nodes[focus].end as usize).min(graph.nodes.len());
    let (first, count) = options.window();
    let count_of_all = end - focus;
    let first = (first as usize).min(count_of_all);
    let last = first.saturating_add(usize::try_from(count).unwrap_or(usize::MAX)).min(count_of_all);
    let (total, top) = (graph.nodes[0].bytes.max(1), graph.nodes[focus].depth);
    let share = |node: &FlameNode| node.bytes as f64 / total as f64;
    let is_scripted = options.limit.is_some();
    let nodes = graph.nodes.iter().enumerate().take(focus + last).skip(focus + first);
    let nodes: Vec<(usize, &FlameNode)> = nodes.collect();
    let mut table = TableBuilder::new(VIEW, caption, &nodes)
        .text("name", column, |(_, node)| {
            // Scripts get the label as it is; the page indents it by no-break spaces.
            let indent = if is_scripted { 0 } else { (node.depth - top).min(MAX_INDENT) };
            format!("{}{}", "\u{a0}\u{a0}".repeat(indent as usize), node.label)
        })
        .bar("bytes", "bytes", |(_, node)| node.bytes)
        .number("share", "share", |(_, node)| Cell::Share(share(node)))
        .bytes("self_bytes", "requested here", |(_, node)| node.self_bytes)
        .count("blocks", "blocks", |(_, node)| node.blocks)
        .hidden("level", |(_, node)| Cell::Count(node.depth.into()))
        .hidden("is_library", |(_, node)| Cell::Flag(matches!(node.kind, FlameNodeKind::Library { .. })))
        .hidden("path", |(_, node)| Cell::Address(node.path_id))
        .rows(|&(index, node), row| {
            row.color = Some(match styles.get(index) {
                Some(style) if index > 0 => crate::views::flame::color_of(*style, context.theme),
                _ => context.theme.faint,
            });
            (row.share, row.level) = (Some(share(node)), Some(node.depth - top + 1));
            row.is_selected = index == focus && focus > 0;
        })
        .commands(|&(index, node)| match index {
            0 => "flame-zoom".to_owned(),
            _ => format!("flame-zoom {}", node.path_id),
        })
        .build();
    table.window = (!is_scripted).then_some((count_of_all as u64, first as u64));
    table
}
