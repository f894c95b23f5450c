//! The flame graph's controls, texts and table: who holds the memory, by call stack or by group.

use vramscope_insight::flame::{FlameGraph, FlameNodeKind};
use vramscope_insight::group::GroupBy;
use vramscope_trace::{ByteSize, Count};

use crate::flame::{BoxStyle, zoomed_node};
use crate::group_style::GroupStyle;
use crate::theme::Theme;
use crate::ui::{Attribute, Element, Tag, swatch};

use super::ViewKind;
use super::caches::Caches;
use super::context::{Context, ViewContent, ViewOptions};
use super::controls::{choice, group_choice, group_title};
use super::flame_cache::{Mode, Moment, grouping_of};
use super::table::{Cell, Column, Row, Table};

/// Name of the view in commands.
const VIEW: &str = ViewKind::Flame.name();
/// Maximum number of levels by which the names in the table are indented.
const MAX_INDENT: u32 = 24;
/// The groupings that the view offers, the default first.
const GROUPINGS: [GroupBy; 6] =
    [GroupBy::Stack, GroupBy::Function, GroupBy::Module, GroupBy::Category, GroupBy::File, GroupBy::Line];

/// Returns true if the view needs the lifetimes of the whole recording.
#[must_use]
pub fn needs_history(options: &ViewOptions) -> bool {
    Mode::of(options).moment != Moment::Shown
}

/// Returns the content of the view.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut Caches) -> ViewContent {
    let mode = Mode::of(options);
    let mut content = ViewContent {
        controls: controls(mode, options),
        legend: legend(options, context.theme),
        ..ViewContent::default()
    };
    let Caches { flame, groupings, block_groups, .. } = caches;
    if flame.update(context, options, groupings, block_groups).is_none() {
        content.content = ViewContent::message("Reading the recording…").content;
        return content;
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

/// Returns the fields that choose the mode.
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
    if matches!(by, GroupBy::Stack | GroupBy::Function | GroupBy::Line) {
        nodes.push(field("libraries", &folds).into());
    }
    if options.number.is_some() {
        nodes.push(Element::button("zoom out", "flame-zoom").with(Attribute::Title, "Show everything").into());
    }
    nodes
}

/// Returns the legend of the picture's colors.
fn legend(options: &ViewOptions, theme: &Theme) -> Vec<crate::ui::Node> {
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
            style => swatch(crate::flame::color_of(style, theme)),
        };
        Element::new(Tag::Li).with_child(sample).with_text(text)
    };
    vec![Element::new(Tag::Ul).with_children(entries.into_iter().map(item)).into()]
}

/// Returns the nodes from `focus` down as a tree of rows.
fn table(graph: &FlameGraph, styles: &[BoxStyle], focus: usize, context: &Context<'_>, options: &ViewOptions) -> Table {
    let theme = context.theme;
    let (column, caption) = match grouping_of(options) {
        GroupBy::Stack => ("call", "Bytes by call stack, callers above what they call"),
        by => (group_title(by), "Bytes by group, with what each consists of below it"),
    };
    let columns = vec![
        Column::text("name", column),
        Column::bar("bytes", "bytes"),
        Column::number("share", "share"),
        Column::number("self_bytes", "requested here"),
        Column::number("blocks", "blocks"),
    ];
    let mut table = Table::new(VIEW, caption, columns);
    let end = (graph.nodes[focus].end as usize).min(graph.nodes.len());
    let (first, count) = options.window();
    let count_of_all = end - focus;
    let first = (first as usize).min(count_of_all);
    let last = first.saturating_add(usize::try_from(count).unwrap_or(usize::MAX)).min(count_of_all);
    if options.limit.is_none() {
        table.window = Some((count_of_all as u64, first as u64));
    }
    let (total, top) = (graph.nodes[0].bytes.max(1), graph.nodes[focus].depth);
    for (index, node) in graph.nodes.iter().enumerate().take(focus + last).skip(focus + first) {
        let level = node.depth - top;
        let share = node.bytes as f64 / total as f64;
        // Scripts get the label as it is; the page indents it by no-break spaces.
        let indent = if options.limit.is_some() { 0 } else { level.min(MAX_INDENT) };
        let name = format!("{}{}", "\u{a0}\u{a0}".repeat(indent as usize), node.label);
        let command = if index == 0 { "flame-zoom".to_owned() } else { format!("flame-zoom {}", node.path_id) };
        table.rows.push(Row {
            color: Some(match styles.get(index) {
                Some(style) if index > 0 => crate::flame::color_of(*style, theme),
                _ => theme.faint,
            }),
            level: Some(level + 1),
            is_selected: index == focus && focus > 0,
            hidden: vec![
                ("level", Cell::Count(u64::from(node.depth))),
                ("is_library", Cell::Flag(matches!(node.kind, FlameNodeKind::Library { .. }))),
                ("path", Cell::Address(node.path_id)),
            ],
            ..Row::new(vec![
                name.into(),
                Cell::Bytes(node.bytes),
                Cell::Share(share),
                Cell::Bytes(node.self_bytes),
                Cell::Count(node.blocks),
            ])
            .with_share(share)
            .with_command(command)
        });
    }
    table
}
