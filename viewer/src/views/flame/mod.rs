//! The flame graph: bytes by call stack, the outermost frame at the top, or by group.
//!
//! Every node is a box as wide as its bytes, below its caller or the group that it is a part of;
//! the largest child is leftmost. The space right of a box's children stands for blocks whose
//! stacks end there. Children narrower than a pixel are one hatched box, so that widths still add
//! up. A click on a box makes it as wide as the picture, with its callers above.
//!
//! [`vramscope_insight::flame`] computes the nodes; a `FlameScene` adds positions and texts.

mod cache;
mod draw;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;
mod scene;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;

use vramscope_draw::{Canvas, GroupStyle, Theme};
use vramscope_insight::flame::{FlameGraph, FlameNode, FlameNodeKind};
use vramscope_insight::group::GroupBy;
use vramscope_trace::{ByteSize, Count, DeviceState};

use crate::command::{Command, Field, OptionChange};
use crate::linked_memory::LinkedMemory;
use crate::ui::{Attribute, Element, Tag, swatch};
use crate::view::{
    Cell, Context, Options, PictureFrame, PictureInput, PictureKey, Pixel, Registered, SharedCaches, ShownMoment,
    StoredOptions, Table, TableBuilder, View, ViewContent, ViewInfo, ViewMode, choice, group_choice, group_title,
};

use cache::{FlameCache, Mode, Moment, grouping_of};
use draw::color_of;
use scene::{BoxStyle, FlameContent, FlameScene, Target, zoomed_node};

/// The view "Flame graph". Its number is the path id of the node that is as wide as the picture.
#[derive(Default)]
pub struct Flame {
    options: Options<Mode>,
    cache: FlameCache,
    scene: Option<FlameScene>,
    key: Option<PictureKey>,
    /// The target of the box under the pointer.
    hovered: Option<Target>,
    /// Pixels by which the graph is scrolled down.
    scroll: i32,
}

impl Registered for Flame {
    const INFO: ViewInfo = ViewInfo {
        picture_label: Some("Bytes by call stack, or by group"),
        ..ViewInfo::new("flame", "Flame graph", ("Show the call stacks as a flame graph", &["4"]))
    };
}

/// Name of the view in commands and links.
const VIEW: &str = Flame::INFO.name;
/// Maximum number of levels by which names in the flame graph's table are indented.
const MAX_INDENT: u32 = 24;
/// The groupings that the view "Flame graph" offers, the default first.
const GROUPINGS: [GroupBy; 6] =
    [GroupBy::Stack, GroupBy::Function, GroupBy::Module, GroupBy::Category, GroupBy::File, GroupBy::Line];

impl View for Flame {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, &self.options, shared, &mut self.cache)
    }

    fn forget(&mut self) {
        (self.cache, self.key) = (FlameCache::default(), None);
    }

    fn wants_history(&self) -> bool {
        Mode::of(&self.options).moment != Moment::Shown
    }

    fn regrouped(&mut self) {
        self.options.number = None;
    }

    fn deselect(&mut self) -> bool {
        self.options.number.take().is_some()
    }

    fn update_picture(&mut self, context: &Context<'_>, shared: &mut SharedCaches, frame: &PictureFrame<'_>) -> bool {
        let zoom = self.options.number;
        let graph = self.cache.update(context, &self.options, shared).is_some();
        let revision = if graph { self.cache.revision() } else { 0 };
        if self.key.as_ref().is_some_and(|key| key.numbers.get(1) != Some(&zoom.unwrap_or(0))) {
            self.scroll = 0;
        }
        let lit = context.lit.map_or([u64::MAX; 3], LinkedMemory::numbers);
        let key = |scroll: i32| {
            let categories = if context.lit.is_some() { context.history.categories_generation() } else { 0 };
            let numbers = [revision, zoom.unwrap_or(0), scroll.unsigned_abs().into(), categories];
            frame.key(numbers.into_iter().chain(lit).collect())
        };
        if self.scene.is_some() && self.key.as_ref() == Some(&key(self.scroll)) {
            return false;
        }
        let empty = FlameGraph::default();
        let graph = if revision > 0 { self.cache.graph() } else { &empty };
        let content = FlameContent { graph, styles: self.cache.styles(), zoom };
        let mut scene = FlameScene::new(content, frame.size, frame.scale, self.scroll, context.typesetter);
        if let Some(lit) = self.cache.lit_bytes(context, shared).map(<[u64]>::to_vec) {
            scene.dim_others(self.cache.graph(), &lit);
        }
        self.scroll = scene.scroll;
        (self.key, self.scene) = (Some(key(self.scroll)), Some(scene));
        true
    }

    fn has_picture(&self) -> bool {
        self.scene.is_some()
    }

    fn draw(&self, canvas: &mut Canvas<'_>, theme: &Theme) {
        if let Some(scene) = &self.scene {
            draw::draw_on(scene, theme, canvas);
        }
    }

    fn hover(&mut self, _context: &Context<'_>, _shared: &mut SharedCaches, point: Option<Pixel>) -> Vec<String> {
        let Some(scene) = &self.scene else { return Vec::new() };
        self.hovered = point.and_then(|point| scene.hit(point)).map(|hovered| hovered.target);
        self.hovered.map(|target| scene.lines(self.cache.graph(), target)).unwrap_or_default()
    }

    fn linked(&mut self, _context: &Context<'_>, _shared: &mut SharedCaches, point: Pixel) -> Vec<LinkedMemory> {
        let graph = self.cache.graph();
        let node = match self.scene.as_ref().and_then(|scene| scene.hit(point)).map(|hit| hit.target) {
            Some(Target::Node(node)) => graph.nodes.get(node as usize),
            _ => None,
        };
        node.and_then(|node| memory_of(graph, node, &self.options)).into_iter().collect()
    }

    fn draw_highlights(&self, canvas: &mut Canvas<'_>, theme: &Theme, _moment: ShownMoment) {
        let hovered = |scene: &FlameScene| scene.boxes().iter().find(|one| Some(one.target) == self.hovered).cloned();
        if let Some((scene, hovered)) = self.scene.as_ref().and_then(|scene| Some((scene, hovered(scene)?))) {
            draw::draw_highlight(canvas.bitmap, scene, theme, &hovered);
        }
    }

    fn click(&mut self, _context: &Context<'_>, _shared: &mut SharedCaches, point: Pixel) -> Option<Command> {
        let scene = self.scene.as_ref()?;
        let node = scene.zoom_target(self.cache.graph(), scene.hit(point)?.target);
        Some(zoom_command(node))
    }

    fn input(&mut self, _device: &DeviceState, input: PictureInput) -> bool {
        let pixels = match input {
            PictureInput::Wheel { pixels: (_, y), .. } => y as i32,
            PictureInput::Drag { pixels: (_, y), is_touch: true, .. } => -y,
            _ => return false,
        };
        let Some(scene) = &self.scene else { return false };
        self.scroll = self.scroll.saturating_add(pixels).clamp(0, scene.max_scroll);
        true
    }
}

/// Returns the command that makes the node with a path id as wide as the picture; `None` shows all.
fn zoom_command(path_id: Option<u64>) -> Command {
    Command::Set(VIEW.into(), OptionChange::Number(path_id))
}

/// Returns the memory that a node stands for: its group or that of the nearest node above it that
/// has one, or all blocks below it in a graph of call stacks. `None` for all blocks.
fn memory_of(graph: &FlameGraph, node: &FlameNode, options: &Options<Mode>) -> Option<LinkedMemory> {
    if node.depth == 0 {
        return None;
    }
    if grouping_of(options) == GroupBy::Stack {
        let is_folded = Mode::of(options).is_folded;
        return Some(LinkedMemory::Call { path_id: node.path_id, is_folded });
    }
    let mut next = node;
    while next.group.is_none() && next.depth > 0 {
        next = graph.nodes.get(next.parent as usize)?;
    }
    next.group.map(|(by, group)| LinkedMemory::Group(by, group))
}

/// Returns the content of the view "Flame graph" beside its picture: controls, legend, and the
/// nodes as a table.
fn content(
    context: &Context<'_>,
    options: &Options<Mode>,
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
        summary = summary.with_child(Element::button("show all", zoom_command(None)).with_class("link"));
    }
    content.content.push(summary.into());
    content.with_table(table(graph, flame.styles(), focus, context, options))
}

/// Returns the fields that choose the flame graph's moment and grouping, and whether library frames
/// are folded.
fn controls(mode: Mode, options: &Options<Mode>) -> Vec<crate::ui::Node> {
    let moments = Moment::ALL.map(|moment| (Mode { moment, ..mode }.name(), moment.title()));
    let folds = [true, false]
        .map(|is_folded| (Mode { is_folded, ..mode }.name(), if is_folded { "folded" } else { "all frames" }));
    let field = |label: &str, choices: &[(String, &'static str)]| {
        let choices = choices.iter().map(|(name, title)| (name.as_str(), *title));
        choice(label, Field::Mode(VIEW.into()), &mode.name(), choices)
    };
    let by = grouping_of(options);
    let mut nodes = vec![group_choice(VIEW, by, &GROUPINGS).into(), field("at", &moments).into()];
    nodes.extend(
        matches!(by, GroupBy::Stack | GroupBy::Function | GroupBy::Line).then(|| field("libraries", &folds).into()),
    );
    if options.number.is_some() {
        nodes.push(Element::button("zoom out", zoom_command(None)).with(Attribute::Title, "Show everything").into());
    }
    nodes
}

/// Returns the legend of the flame graph's colors.
fn legend(options: &Options<Mode>, theme: &Theme) -> Vec<crate::ui::Node> {
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
            style => swatch(color_of(style, theme)),
        };
        Element::new(Tag::Li).with_child(sample).with_text(text)
    };
    vec![Element::new(Tag::Ul).with_children(entries.into_iter().map(item)).into()]
}

/// Returns the flame graph's nodes from node `focus` down as a table whose rows form a tree.
fn table(
    graph: &FlameGraph,
    styles: &[BoxStyle],
    focus: usize,
    context: &Context<'_>,
    options: &Options<Mode>,
) -> Table {
    let (column, caption) = match grouping_of(options) {
        GroupBy::Stack => ("call", "Bytes by call stack, callers above what they call"),
        by => (group_title(by), "Bytes by group, with what each consists of below it"),
    };
    let end = (graph.nodes[focus].end as usize).min(graph.nodes.len());
    let (first, count) = options.rows.window();
    let count_of_all = end - focus;
    let first = (first as usize).min(count_of_all);
    let last = first.saturating_add(usize::try_from(count).unwrap_or(usize::MAX)).min(count_of_all);
    let (total, top) = (graph.nodes[0].bytes.max(1), graph.nodes[focus].depth);
    let share = |node: &FlameNode| node.bytes as f64 / total as f64;
    let is_scripted = options.rows.limit.is_some();
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
                Some(style) if index > 0 => color_of(*style, context.theme),
                _ => context.theme.faint,
            });
            row.light = memory_of(graph, node, options);
            (row.share, row.level) = (Some(share(node)), Some(node.depth - top + 1));
            row.is_selected = index == focus && focus > 0;
        })
        .commands(|&(index, node)| match index {
            0 => zoom_command(None),
            _ => zoom_command(Some(node.path_id)),
        })
        .build();
    table.window = (!is_scripted).then_some((count_of_all as u64, first as u64));
    table
}
