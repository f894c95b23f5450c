//! Computes the positions and labels of a flame graph's boxes, without colors.

use vramscope_draw::picture::px;
use vramscope_draw::{Bitmap, GROUP_COLORS, GroupStyle, Rect, Typesetter};
use vramscope_insight::flame::{FlameGraph, FlameNode, FlameNodeKind};
use vramscope_trace::{ByteSize, Count, Definitions, Percent};

/// Font size of the boxes' labels, in units (pixels at scale 1).
pub(super) const TEXT: f32 = 11.0;
/// Height of a row of boxes, in units (pixels at scale 1).
const ROW: f32 = 18.0;
/// Height of a row of boxes with labels of two lines, in units (pixels at scale 1).
const TALL_ROW: f32 = 32.0;
/// Space around the graph, in units (pixels at scale 1).
const MARGIN: f32 = 8.0;
/// Width of the scroll bar, in units (pixels at scale 1).
const SCROLL_BAR: f32 = 5.0;
/// Minimum width of a box that gets a label, in units (pixels at scale 1).
const MIN_LABELLED: f32 = 26.0;
/// Space left and right of a label, in units (pixels at scale 1).
pub(super) const PADDING: f32 = 4.0;
/// Text in the middle of a graph without blocks.
const EMPTY: &str = "no memory is live here";

/// The inputs of a [`FlameScene`].
#[derive(Clone, Copy)]
pub(super) struct FlameContent<'a> {
    /// The nodes: frames of call stacks, or groups.
    pub graph: &'a FlameGraph,
    /// The style of each node, in the order of the graph's nodes; see [`box_styles`].
    pub styles: &'a [BoxStyle],
    /// Path id of the zoomed node, which is as wide as the picture; `None` for the root.
    pub zoom: Option<u64>,
}

/// The node, or the narrow nodes, that a box of the flame graph shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// One node, by its index in [`FlameGraph::nodes`].
    Node(u32),
    /// All children of a node that are less than a pixel wide.
    Other {
        /// Index of the parent node.
        parent: u32,
        /// Number of these children.
        nodes: u32,
        /// Bytes of these children.
        bytes: u64,
        /// Number of blocks of these children.
        blocks: u64,
    },
}

/// The style of a box, which decides its color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BoxStyle {
    /// The root, and the outer parts of names, such as folders.
    Root,
    /// A group of blocks, or a part of one.
    Group(GroupStyle),
    /// A frame of the program's own code; the number is the hue of its function, see
    /// [`function_hue`].
    Own(usize),
    /// A frame of a library; the number is the hue of its function, see [`function_hue`].
    Library(usize),
    /// Blocks without a call stack.
    NoStack,
    /// Nodes that are less than a pixel wide, in one box.
    Other,
}

/// A box of the flame graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FlameBox {
    /// The node that the box shows, or the narrow nodes.
    pub target: Target,
    /// The pixels of the box if the graph is not scrolled.
    pub area: Rect,
    /// The style of the box.
    pub style: BoxStyle,
    /// Whether the box is above the zoomed node: one of its callers.
    pub is_caller: bool,
    /// Whether other memory is lit.
    pub is_dim: bool,
    /// The lines of the label, shortened to fit into the box; empty if the box is too narrow or out
    /// of view. The second line is empty if one is enough.
    pub(super) label: [String; 2],
}

/// A flame graph ready to draw.
#[derive(Clone, Debug, Default)]
pub(super) struct FlameScene {
    /// All boxes; a box comes after the boxes above it.
    pub(super) boxes: Vec<FlameBox>,
    /// The part of the picture that shows the graph.
    pub view: Rect,
    /// Number of pixels by which the graph is scrolled down.
    pub scroll: i32,
    /// Maximum value of `scroll`.
    pub max_scroll: i32,
    /// Track and thumb of the scroll bar; `None` if all rows are in view.
    pub(super) scroll_bar: Option<(Rect, Rect)>,
    /// The text in the middle of an empty graph; `None` if the graph has blocks.
    pub(super) notice: Option<&'static str>,
    /// Bytes of the root node, which are all bytes of the graph.
    total_bytes: u64,
    pub(super) scale: f32,
}

/// Returns the hue of a function, from 0 to [`GROUP_COLORS`] − 1: a hash of its name. A function
/// has one hue in all recordings.
pub(super) fn function_hue(function: &str) -> usize {
    // FNV-1a, 32 bits.
    let hash = function.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash ^ (hash >> 16)) as usize % GROUP_COLORS
}

/// Returns the styles of a graph's nodes, in their order. For nodes of the kinds `Group` and
/// `Part`, `style_of` returns the style; `None` means the style of the parent node.
pub(super) fn box_styles(
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

/// Computes the boxes of a graph's nodes.
struct Placer<'a> {
    content: FlameContent<'a>,
    /// Height of a row of boxes in pixels.
    row_height: i32,
    /// The part of the picture that shows the graph.
    view: Rect,
    /// The boxes added so far.
    boxes: Vec<FlameBox>,
}

impl Placer<'_> {
    /// Adds a box from pixel column `columns.0` up to, but not including, `columns.1`, in row `row`
    /// of boxes counted from the top.
    fn add(&mut self, target: Target, columns: (i32, i32), row: u32, is_caller: bool) {
        let y0 = self.view.y0 + self.row_height * row as i32;
        let area = Rect::new(columns.0, y0, columns.1, y0 + self.row_height);
        let style = match target {
            Target::Node(node) => self.content.styles.get(node as usize).copied().unwrap_or(BoxStyle::Root),
            Target::Other { .. } => BoxStyle::Other,
        };
        self.boxes.push(FlameBox { target, area, style, is_caller, is_dim: false, label: Default::default() });
    }

    /// Adds the boxes of a node's descendants, below the node's own box from pixel column
    /// `columns.0` to `columns.1`. The widths of children are proportional to their bytes.
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
                // Children are in descending order, so all further ones are narrow as well.
                let (mut nodes, mut bytes, mut blocks) = (1, of_child.bytes, of_child.blocks);
                for narrow in children.by_ref().map(|narrow| &graph.nodes[narrow]) {
                    nodes += 1;
                    bytes = bytes.saturating_add(narrow.bytes);
                    blocks = blocks.saturating_add(narrow.blocks);
                }
                let (start, end) = (column(before), column(before.saturating_add(bytes)));
                // The box of narrow children needs a pixel: one of the node's own bytes right of
                // the children, or the last one of the sibling before.
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

    /// Makes the last box a pixel narrower if it ends at pixel column `end` and is at least two
    /// pixels wide. Returns true if it did.
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
    /// Computes the picture of `size` pixels (width, height) with `scale` pixels per unit, scrolled
    /// down by `scroll` pixels, which is clamped to the height of the graph.
    pub(super) fn new(
        content: FlameContent,
        size: (u32, u32),
        scale: f32,
        scroll: i32,
        typesetter: &Typesetter,
    ) -> Self {
        let (width, height) = (size.0.min(Bitmap::MAX_SIDE) as i32, size.1.min(Bitmap::MAX_SIDE) as i32);
        let margin = px(MARGIN, scale);
        let right = margin + px(SCROLL_BAR, scale);
        let view =
            Rect::new(margin, margin / 2, (width - right).max(margin + 1), (height - margin / 2).max(margin / 2 + 1));
        let mut scene = Self { view, scale, ..Self::default() };
        let Some(root) = content.graph.nodes.first().filter(|root| root.bytes > 0) else {
            scene.notice = Some(EMPTY);
            return scene;
        };
        scene.total_bytes = root.bytes;
        let focus = zoomed_node(content.graph, content.zoom);
        // Labels have two lines if all rows are in view then.
        let below = &content.graph.nodes[focus as usize..content.graph.nodes[focus as usize].end as usize];
        let rows = below.iter().map(|node| node.depth as i32 + 1).max().unwrap_or(1);
        let is_tall = rows.saturating_mul(px(TALL_ROW, scale)) <= view.height();
        let row_height = px(if is_tall { TALL_ROW } else { ROW }, scale).max(3);
        let mut placer = Placer { content, row_height, view, boxes: Vec::new() };
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
        scene.add_labels(content.graph, typesetter, is_tall);
        scene
    }

    /// Makes the boxes dim whose blocks are not lit; `lit` are the lit bytes of each node.
    pub(super) fn dim_others(&mut self, graph: &FlameGraph, lit: &[u64]) {
        let bytes = |node: usize| lit.get(node).copied().unwrap_or(0);
        for one in &mut self.boxes {
            one.is_dim = match one.target {
                Target::Node(node) => bytes(node as usize) == 0,
                Target::Other { parent, nodes, .. } => {
                    let children: Vec<usize> = graph.children(parent as usize).collect();
                    let narrow = children.len().saturating_sub(nodes as usize);
                    children.into_iter().skip(narrow).all(|child| bytes(child) == 0)
                }
            };
        }
    }

    /// Sets the labels of the boxes that are in view and wide enough.
    fn add_labels(&mut self, graph: &FlameGraph, typesetter: &Typesetter, is_tall: bool) {
        let (scale, visible) = (self.scale, self.view.y0 + self.scroll..self.view.y1 + self.scroll);
        for one in &mut self.boxes {
            if one.area.y1 <= visible.start || one.area.y0 >= visible.end || one.area.width() < px(MIN_LABELLED, scale)
            {
                continue;
            }
            let max_width = (one.area.width() - 2 * px(PADDING, scale)) as f32;
            let (name, bytes) = match one.target {
                Target::Node(node) => {
                    let node = &graph.nodes[node as usize];
                    (node.label.as_str(), node.bytes)
                }
                Target::Other { bytes, .. } => ("other", bytes),
            };
            let (size, bytes) = (TEXT * scale, ByteSize(bytes).to_string());
            let fit = |text: &str| {
                let line = typesetter.fit(text, size, max_width);
                // One or two letters and an ellipsis are of no use.
                Some(line).filter(|line| line.chars().count() > 3 || !line.ends_with('…')).unwrap_or_default()
            };
            let whole = format!("{name}  {bytes}");
            one.label = match is_tall && typesetter.width(&whole, size) > max_width {
                true => {
                    two_lines(name, &bytes, |text| typesetter.width(text, size) <= max_width).map(|line| fit(&line))
                }
                false => [fit(&whole), String::new()],
            };
            if one.label[0].is_empty() {
                one.label.swap(0, 1);
            }
        }
    }

    /// Returns the rectangles of the scroll bar's track and thumb; `None` if all rows are in view.
    /// `width` is the picture's width in pixels.
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

    /// Returns the pixels of a box in the scrolled picture that are in view.
    pub(super) fn visible_area(&self, one: &FlameBox) -> Rect {
        Rect { y0: one.area.y0 - self.scroll, y1: one.area.y1 - self.scroll, ..one.area }.intersect(self.view)
    }

    /// Returns all boxes, also those out of view.
    pub(super) fn boxes(&self) -> &[FlameBox] {
        &self.boxes
    }

    /// Returns the box at pixel (`x`, `y`); `None` where no box is.
    pub(super) fn hit(&self, (x, y): (i32, i32)) -> Option<&FlameBox> {
        self.boxes.iter().find(|one| self.visible_area(one).contains(x, y))
    }

    /// Returns lines of text about a box with this target: its label, its bytes with their share of
    /// the graph's bytes, and its number of blocks.
    pub(super) fn lines(&self, graph: &FlameGraph, target: Target) -> Vec<String> {
        let amount = |bytes: u64, blocks: u64| {
            let share = Percent::of(bytes, self.total_bytes);
            format!("{} ({share}) in {}", ByteSize(bytes), Count(blocks).of("block", "blocks"))
        };
        match target {
            Target::Node(node) => {
                let Some(node) = graph.nodes.get(node as usize) else { return Vec::new() };
                let mut lines = vec![node.label.clone(), amount(node.bytes, node.blocks)];
                lines.extend(
                    (node.self_bytes > 0 && node.self_bytes < node.bytes)
                        .then(|| format!("{} requested here itself", ByteSize(node.self_bytes))),
                );
                lines
            }
            Target::Other { nodes, bytes, blocks, .. } => {
                let title = format!("{} narrower than a pixel", Count(u64::from(nodes)).of("call", "calls"));
                vec![title, amount(bytes, blocks)]
            }
        }
    }

    /// Returns the path id of the node that a click on a box with this target makes as wide as the
    /// picture; for a box of narrow nodes, that of their parent. `None` for the root.
    pub(super) fn zoom_target(&self, graph: &FlameGraph, target: Target) -> Option<u64> {
        let (Target::Node(node) | Target::Other { parent: node, .. }) = target;
        graph.nodes.get(node as usize).filter(|_| node > 0).map(|node| node.path_id)
    }
}

/// Divides a label into two lines: the words of the name for which the first has room, and the rest
/// with the bytes. `has_room` tells whether a text fits into a line.
fn two_lines(name: &str, bytes: &str, has_room: impl Fn(&str) -> bool) -> [String; 2] {
    let ends = name.char_indices().filter(|(_, letter)| *letter == ' ').map(|(end, _)| end);
    let end = ends.filter(|&end| has_room(&name[..end])).last().unwrap_or(name.len());
    let end = if has_room(name) { name.len() } else { end };
    [name[..end].to_owned(), format!("{}  {bytes}", &name[end..]).trim_start().to_owned()]
}

/// Returns the index of the node with the path id `path_id`; 0, the root's index, if no node has
/// it or it is `None`.
pub(crate) fn zoomed_node(graph: &FlameGraph, path_id: Option<u64>) -> u32 {
    let found = path_id.and_then(|path_id| graph.nodes.iter().position(|node| node.path_id == path_id));
    found.unwrap_or(0) as u32
}

/// Returns the indexes of the ancestors of the node with index `node`, the root first.
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

#[cfg(test)]
mod label_tests {
    use super::two_lines;

    #[test]
    fn labels_break_between_words() {
        let lines = |name: &str, letters: usize| two_lines(name, "1 MiB", |text| text.chars().count() <= letters);
        assert_eq!(
            lines("train.py:49 forward (torch, 2 frames)", 20),
            ["train.py:49 forward", "(torch, 2 frames)  1 MiB"]
        );
        assert_eq!(lines("train.py:49 forward", 20), ["train.py:49 forward", "1 MiB"]);
        assert_eq!(lines("train.py:49", 5), ["train.py:49", "1 MiB"]);
    }
}
