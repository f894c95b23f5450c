//! Computes where the boxes of a flame graph are, without colors.

use vramscope_insight::flame::{FlameGraph, FlameNode, FlameNodeKind};
use vramscope_trace::{ByteSize, Count, Definitions, Percent};

use crate::bitmap::{Bitmap, Rect};
use crate::group_style::GroupStyle;
use crate::picture::px;
use crate::text::Typesetter;
use crate::theme::GROUP_COLORS;

/// Font size of the boxes' labels, in units (pixels at scale 1).
pub(super) const TEXT: f32 = 11.0;
/// Height of a row of boxes, in units (pixels at scale 1).
const ROW: f32 = 18.0;
/// Space around the graph, in units (pixels at scale 1).
const MARGIN: f32 = 8.0;
/// Width of the scroll bar, in units (pixels at scale 1).
const SCROLL_BAR: f32 = 5.0;
/// Minimum width of a box with a label, in units (pixels at scale 1).
const MIN_LABELLED: f32 = 26.0;
/// Space left and right of a label, in units (pixels at scale 1).
pub(super) const PADDING: f32 = 4.0;
/// Text in the middle of a graph without blocks.
const EMPTY: &str = "no memory is live here";

/// The inputs of a flame graph's picture.
#[derive(Clone, Copy)]
pub struct FlameContent<'a> {
    /// The nodes.
    pub graph: &'a FlameGraph,
    /// How each node is painted, see [`box_styles`].
    pub styles: &'a [BoxStyle],
    /// Path id of the node that is as wide as the picture; `None` for the root.
    pub zoom: Option<u64>,
}

/// The node of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A node, by its index in the graph.
    Node(u32),
    /// The children of a node that are less than a pixel wide.
    Other {
        /// Index of the node.
        parent: u32,
        /// Number of children.
        nodes: u32,
        /// Their bytes.
        bytes: u64,
        /// Number of their blocks.
        blocks: u64,
    },
}

/// How a box is painted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoxStyle {
    /// The root, and the outer parts of names, such as folders.
    Root,
    /// A group of blocks, or a part of one.
    Group(GroupStyle),
    /// A frame of the program's own code; the number chooses the hue.
    Own(usize),
    /// A frame of a library; the number chooses the hue.
    Library(usize),
    /// Blocks without a call stack.
    NoStack,
    /// Several narrow boxes.
    Other,
}

/// A box of the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlameBox {
    /// The node of the box.
    pub target: Target,
    /// The pixels that it fills if the graph is not scrolled.
    pub area: Rect,
    /// How it is painted.
    pub style: BoxStyle,
    /// Whether it is a caller of the node that is as wide as the picture.
    pub is_caller: bool,
    /// The text that fits into it.
    pub(super) label: String,
}

/// A flame graph ready to draw.
#[derive(Clone, Debug, Default)]
pub struct FlameScene {
    /// Boxes, the upper row first.
    pub(super) boxes: Vec<FlameBox>,
    /// The part of the picture that shows the graph.
    pub view: Rect,
    /// Number of pixels by which the graph is scrolled down.
    pub scroll: i32,
    /// Greatest value of `scroll`.
    pub max_scroll: i32,
    /// Track and thumb of the scroll bar; `None` if all rows are in view.
    pub(super) scroll_bar: Option<(Rect, Rect)>,
    /// The text in the middle of an empty graph.
    pub(super) notice: Option<&'static str>,
    /// Bytes of the root.
    total_bytes: u64,
    pub(super) scale: f32,
}

/// Returns the number that chooses the hue of a function; it does not depend on the recording.
#[must_use]
pub fn function_hue(function: &str) -> usize {
    // FNV-1a, 32 bits.
    let hash = function.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash ^ (hash >> 16)) as usize % GROUP_COLORS
}

/// Returns the styles of the nodes of a graph. `style_of` returns the style of a node that is a
/// group of the graph's grouping, or `None` for other nodes, which look like the group that
/// contains them.
#[must_use]
pub fn box_styles(
    graph: &FlameGraph,
    definitions: &Definitions,
    style_of: &mut dyn FnMut(&FlameNode) -> Option<BoxStyle>,
) -> Vec<BoxStyle> {
    let mut styles: Vec<BoxStyle> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let outer = styles.get(node.parent as usize).copied().filter(|style| *style != BoxStyle::Root);
        let hue = |frame: vramscope_trace::Frame| function_hue(definitions.string(frame.function));
        let style = match node.kind {
            FlameNodeKind::NoStack(_) => BoxStyle::NoStack,
            FlameNodeKind::Own(frame) => match outer {
                Some(style @ (BoxStyle::Group(_) | BoxStyle::NoStack)) => style,
                _ => BoxStyle::Own(hue(frame)),
            },
            FlameNodeKind::Library { frame, .. } => match outer {
                Some(style @ (BoxStyle::Group(_) | BoxStyle::NoStack)) => style,
                _ => BoxStyle::Library(hue(frame)),
            },
            FlameNodeKind::Root => BoxStyle::Root,
            FlameNodeKind::Group(..) | FlameNodeKind::Part(_) => style_of(node).or(outer).unwrap_or(BoxStyle::Root),
        };
        styles.push(style);
    }
    styles
}

/// Places the boxes of a graph.
struct Placer<'a> {
    content: FlameContent<'a>,
    row_height: i32,
    view: Rect,
    boxes: Vec<FlameBox>,
}

impl Placer<'_> {
    /// Adds a box from pixel column `columns.0` to `columns.1` in a row.
    fn add(&mut self, target: Target, columns: (i32, i32), row: u32, is_caller: bool) {
        let y0 = self.view.y0 + self.row_height * row as i32;
        let area = Rect::new(columns.0, y0, columns.1, y0 + self.row_height);
        let style = match target {
            Target::Node(node) => self.content.styles.get(node as usize).copied().unwrap_or(BoxStyle::Root),
            Target::Other { .. } => BoxStyle::Other,
        };
        self.boxes.push(FlameBox { target, area, style, is_caller, label: String::new() });
    }

    /// Adds the boxes of a node's descendants; the node's own is from `columns.0` to `columns.1`.
    fn add_descendants(&mut self, node: u32, columns: (i32, i32)) {
        let graph = self.content.graph;
        let mut pending = vec![(node, columns)];
        while let Some((index, (x0, x1))) = pending.pop() {
            let node = &graph.nodes[index as usize];
            let per_byte = f64::from(x1 - x0) / node.bytes.max(1) as f64;
            let column = |bytes: u64| (x0 + (bytes as f64 * per_byte).round() as i32).min(x1);
            let mut before = 0u64;
            let mut children = graph.children(index as usize);
            while let Some(child) = children.next() {
                let of_child = &graph.nodes[child];
                if of_child.bytes as f64 * per_byte >= 1.0 {
                    let end = before.saturating_add(of_child.bytes);
                    let columns = (column(before), column(end));
                    self.add(Target::Node(child as u32), columns, of_child.depth, false);
                    pending.push((child as u32, columns));
                    before = end;
                    continue;
                }
                // All further children are narrower still.
                let (mut nodes, mut bytes, mut blocks) = (1, of_child.bytes, of_child.blocks);
                for narrow in children.by_ref().map(|narrow| &graph.nodes[narrow]) {
                    nodes += 1;
                    bytes = bytes.saturating_add(narrow.bytes);
                    blocks = blocks.saturating_add(narrow.blocks);
                }
                let (start, end) = (column(before), column(before.saturating_add(bytes)));
                // At least a pixel: that of the stacks that end here, or that of the sibling
                // before.
                let columns = match () {
                    () if end > start => (start, end),
                    () if end < x1 => (start, end + 1),
                    () if self.shorten_last(start) => (start - 1, start),
                    () => continue,
                };
                self.add(Target::Other { parent: index, nodes, bytes, blocks }, columns, of_child.depth, false);
            }
        }
    }

    /// Makes the last box a pixel narrower if it ends at column `end` and keeps a pixel.
    fn shorten_last(&mut self, end: i32) -> bool {
        match self.boxes.last_mut().filter(|last| last.area.x1 == end && last.area.width() >= 2) {
            Some(last) => {
                last.area.x1 -= 1;
                true
            }
            None => false,
        }
    }
}

impl FlameScene {
    /// Computes the picture of `size` pixels with `scale` pixels per unit, scrolled down by
    /// `scroll` pixels, at most to its end.
    #[must_use]
    pub fn new(content: FlameContent, size: (u32, u32), scale: f32, scroll: i32, typesetter: &Typesetter) -> Self {
        let (width, height) = (size.0.min(Bitmap::MAX_SIDE) as i32, size.1.min(Bitmap::MAX_SIDE) as i32);
        let margin = px(MARGIN, scale);
        let right = margin + px(SCROLL_BAR, scale);
        let view =
            Rect::new(margin, margin / 2, (width - right).max(margin + 1), (height - margin / 2).max(margin / 2 + 1));
        let row_height = px(ROW, scale).max(3);
        let mut scene = Self { view, scale, ..Self::default() };
        let Some(root) = content.graph.nodes.first().filter(|root| root.bytes > 0) else {
            scene.notice = Some(EMPTY);
            return scene;
        };
        scene.total_bytes = root.bytes;
        let mut placer = Placer { content, row_height, view, boxes: Vec::new() };
        let focus = zoomed_node(content.graph, content.zoom);
        for caller in callers(content.graph, focus) {
            let depth = content.graph.nodes[caller as usize].depth;
            placer.add(Target::Node(caller), (view.x0, view.x1), depth, true);
        }
        placer.add(Target::Node(focus), (view.x0, view.x1), content.graph.nodes[focus as usize].depth, false);
        placer.add_descendants(focus, (view.x0, view.x1));
        scene.boxes = placer.boxes;
        let bottom = scene.boxes.iter().map(|one| one.area.y1).max().unwrap_or(view.y0);
        scene.max_scroll = (bottom - view.y1).max(0);
        scene.scroll = scroll.clamp(0, scene.max_scroll);
        scene.scroll_bar = scene.scroll_bar(width);
        scene.add_labels(content.graph, typesetter);
        scene
    }

    /// Sets the texts of the boxes in view that have room for one.
    fn add_labels(&mut self, graph: &FlameGraph, typesetter: &Typesetter) {
        let (scale, visible) = (self.scale, self.view.y0 + self.scroll..self.view.y1 + self.scroll);
        for one in &mut self.boxes {
            if one.area.y1 <= visible.start || one.area.y0 >= visible.end || one.area.width() < px(MIN_LABELLED, scale)
            {
                continue;
            }
            let max_width = (one.area.width() - 2 * px(PADDING, scale)) as f32;
            let text = match one.target {
                Target::Node(node) => {
                    let node = &graph.nodes[node as usize];
                    format!("{}  {}", node.label, ByteSize(node.bytes))
                }
                Target::Other { bytes, .. } => format!("other  {}", ByteSize(bytes)),
            };
            let label = typesetter.fit(&text, TEXT * scale, max_width);
            // One or two letters and an ellipsis are of no use.
            if label.chars().count() > 3 || !label.ends_with('…') {
                one.label = label;
            }
        }
    }

    /// Returns track and thumb of the scroll bar; `None` if all rows are in view.
    fn scroll_bar(&self, width: i32) -> Option<(Rect, Rect)> {
        if self.max_scroll == 0 {
            return None;
        }
        let x1 = width - px(2.0, self.scale);
        let track = Rect { x0: x1 - px(SCROLL_BAR, self.scale), x1, ..self.view };
        let total = f64::from(self.max_scroll + track.height());
        let to_track = |pixels: i32| (f64::from(pixels) / total * f64::from(track.height())) as i32;
        let y0 = track.y0 + to_track(self.scroll);
        let y1 = (y0 + to_track(track.height()).max(px(16.0, self.scale))).min(track.y1);
        Some((track, Rect { y0, y1, ..track }))
    }

    /// Returns the pixels of a box in the picture, as far as they are in view.
    #[must_use]
    pub fn visible_area(&self, one: &FlameBox) -> Rect {
        Rect { y0: one.area.y0 - self.scroll, y1: one.area.y1 - self.scroll, ..one.area }.intersect(self.view)
    }

    /// Returns all boxes, also those out of view.
    #[must_use]
    pub fn boxes(&self) -> &[FlameBox] {
        &self.boxes
    }

    /// Returns the box at pixel (`x`, `y`); `None` where no box is.
    #[must_use]
    pub fn hit(&self, (x, y): (i32, i32)) -> Option<&FlameBox> {
        self.boxes.iter().find(|one| self.visible_area(one).contains(x, y))
    }

    /// Returns the box of a node, by its path id; `None` if it has none.
    #[must_use]
    pub fn box_of(&self, graph: &FlameGraph, path_id: u64) -> Option<&FlameBox> {
        self.boxes.iter().find(|one| match one.target {
            Target::Node(node) => graph.nodes.get(node as usize).is_some_and(|node| node.path_id == path_id),
            Target::Other { .. } => false,
        })
    }

    /// Returns lines of text about a box: its label, bytes, share and blocks.
    #[must_use]
    pub fn lines(&self, graph: &FlameGraph, target: Target) -> Vec<String> {
        let amount = |bytes: u64, blocks: u64| {
            let share = Percent::of(bytes, self.total_bytes);
            format!("{} ({share}) in {}", ByteSize(bytes), Count(blocks).of("block", "blocks"))
        };
        match target {
            Target::Node(node) => {
                let Some(node) = graph.nodes.get(node as usize) else { return Vec::new() };
                let mut lines = vec![node.label.clone(), amount(node.bytes, node.blocks)];
                if node.self_bytes > 0 && node.self_bytes < node.bytes {
                    lines.push(format!("{} requested here itself", ByteSize(node.self_bytes)));
                }
                lines
            }
            Target::Other { nodes, bytes, blocks, .. } => {
                let title = format!("{} narrower than a pixel", Count(u64::from(nodes)).of("call", "calls"));
                vec![title, amount(bytes, blocks)]
            }
        }
    }

    /// Returns the command that a click on a box runs: it makes the box's node as wide as the
    /// picture, or the parent of narrow boxes.
    #[must_use]
    pub fn command(&self, graph: &FlameGraph, target: Target) -> String {
        let (Target::Node(node) | Target::Other { parent: node, .. }) = target;
        match graph.nodes.get(node as usize).filter(|_| node > 0) {
            Some(node) => format!("flame-zoom {}", node.path_id),
            None => "flame-zoom".to_owned(),
        }
    }
}

/// Returns the index of the node with a path id; 0, the root's, if no node has it.
pub(crate) fn zoomed_node(graph: &FlameGraph, path_id: Option<u64>) -> u32 {
    let found = path_id.and_then(|path_id| graph.nodes.iter().position(|node| node.path_id == path_id));
    found.unwrap_or(0) as u32
}

/// Returns the callers of a node, the root first.
fn callers(graph: &FlameGraph, node: u32) -> Vec<u32> {
    let mut callers = Vec::new();
    let mut next = node;
    while next != 0 {
        next = graph.nodes[next as usize].parent;
        callers.push(next);
    }
    callers.reverse();
    callers
}
