//! A flame graph as a list of nodes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use vramscope_trace::sort::{sort_by, sort_by_key};
use vramscope_trace::{Definitions, Frame, FrameOrigin, SiteId, frame_name};

use super::trie::{StackTrie, TrieNode};
use super::weights::{StackKey, StackWeights, Weight};
use crate::frames::{FactsCache, RecordedStacks, WhyNoStack, frame_label, library_name};
use crate::group::{BackwardCalls, GroupBy};

/// The kind of a flame graph's node, with its frame or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlameNodeKind {
    /// All blocks.
    Root,
    /// A frame of the program's own code.
    Own(Frame),
    /// A frame of a library or of the allocator; in a graph with folded library frames, a run of
    /// consecutive ones.
    Library {
        /// The frame; of a run, the innermost Python frame, or else that of a backward pass's
        /// operation, or else the innermost one outside of the allocator.
        frame: Frame,
        /// Number of frames in the run; 1 in a graph that is not folded.
        frames: u32,
    },
    /// Blocks without a call stack, for this reason.
    NoStack(WhyNoStack),
    /// A group of blocks, by its number.
    Group(GroupBy, u32),
    /// A part of a name, such as a folder or the outer part of a module's path. The number tells
    /// the parts of one graph apart.
    Part(u32),
}

/// A node of a flame graph: the blocks whose stacks begin with the frames on the path from the root
/// to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlameNode {
    /// Index of the parent in [`FlameGraph::nodes`]; that of the root is the root's own, 0.
    pub parent: u32,
    /// Number of nodes above it; 0 for the root.
    pub depth: u32,
    /// Index after the node's last descendant.
    pub end: u32,
    /// The frame or group of the node.
    pub kind: FlameNodeKind,
    /// The group that has all blocks of the node and its descendants, or whose name ends here:
    /// what blocks are grouped by, and the group's number. `None` in a graph of call stacks.
    pub group: Option<(GroupBy, u32)>,
    /// Text of the node: `train.py:66 gpt_step`, `linear.py:134 forward (torch, 3 frames)`.
    pub label: String,
    /// Bytes of its blocks, including the blocks of its descendants.
    pub bytes: u64,
    /// Bytes of the blocks whose stacks end here.
    pub self_bytes: u64,
    /// Number of its blocks, including the blocks of its descendants.
    pub blocks: u64,
    /// Hash of the complete names from the root to this node. It tells the node from others, also
    /// in the graphs of other moments and recordings.
    pub path_id: u64,
}

/// A tree of call stacks with the bytes that each part of a stack holds.
///
/// ```
/// use vramscope_insight::flame::{FlameGraph, StackKeys, StackWeights};
/// use vramscope_trace::{DeviceId, Recording};
///
/// let recording = Recording::new();
/// let mut state = recording.end_state().clone();
/// let device = state.device_mut(DeviceId(0));
/// let weights = StackWeights::live(device, &StackKeys::new(recording.first_event()));
/// let graph = FlameGraph::new(recording.definitions(), &weights, true);
/// assert_eq!(graph.nodes[0].bytes, device.counters().active);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlameGraph {
    /// Nodes in depth-first order, the root first; the children of a node by bytes, largest first,
    /// then by label.
    pub nodes: Vec<FlameNode>,
    /// The node at which the stack of blocks with a key ends, by its index. In ascending order.
    pub node_by_key: Vec<(StackKey, u32)>,
}

/// A node while the tree is built. Nodes are numbered after their parents; 0 is the root.
#[derive(Clone, Debug)]
pub(super) struct BuildNode {
    parent: u32,
    kind: FlameNodeKind,
    pub(super) group: Option<(GroupBy, u32)>,
    /// The text of a group or a part of a name.
    name: Option<Arc<str>>,
    /// Blocks whose stacks end at the node.
    pub(super) own: Weight,
    /// Blocks of the node and all its descendants.
    total: Weight,
}

/// A flame graph under construction.
#[derive(Debug)]
pub(super) struct Builder<'a> {
    pub(super) definitions: &'a Definitions,
    trie: StackTrie<'a>,
    pub(super) fold_libraries: bool,
    pub(super) nodes: Vec<BuildNode>,
    /// See [`FlameGraph::node_by_key`], with the numbers of the nodes.
    node_by_key: Vec<(StackKey, u32)>,
    /// The number of the node built for a node of the unfolded tree.
    by_trie_node: HashMap<u32, u32>,
    /// The number of the node of a kind below a parent.
    children: HashMap<(u32, FlameNodeKind), u32>,
    /// Nodes that a lookup has still to build, innermost first; empty between lookups.
    pending: Vec<u32>,
}

impl FlameGraph {
    /// Arranges weighted sites as a tree of their stacks.
    ///
    /// If `fold_libraries` is true, consecutive frames of libraries become one node. Frames further
    /// inwards than 512 others belong to the node of the 512th. Time and memory are linear in the
    /// number of distinct frames with their callers.
    #[must_use]
    pub fn new(definitions: &Definitions, weights: &StackWeights, fold_libraries: bool) -> Self {
        let recorded = RecordedStacks::new(definitions);
        let mut facts = FactsCache::default();
        let calls = BackwardCalls::new(definitions, &mut facts);
        let mut builder = Builder::new(definitions, fold_libraries);
        for (key, weight) in weights.iter() {
            let stack = definitions.site(key.site).stack;
            let of_stack = facts.get(definitions, stack);
            let node = if of_stack.frames == 0 {
                builder.no_stack(recorded.why_missing(key.is_older), &calls)
            } else {
                let end = builder.trie.node_of(stack, of_stack.has_python());
                builder.node_of(end)
            };
            builder.add_blocks(node, key, weight);
        }
        builder.finish()
    }

    /// Returns the bytes of each node, in the order of [`nodes`](Self::nodes), that the blocks in
    /// `weights` have. Blocks that the graph does not have are omitted.
    #[must_use]
    pub fn bytes_of(&self, weights: &StackWeights) -> Vec<u64> {
        let mut bytes = vec![0u64; self.nodes.len()];
        for (key, weight) in weights.iter() {
            if let Ok(index) = self.node_by_key.binary_search_by_key(&key, |(blocks, _)| *blocks) {
                let sum = &mut bytes[self.node_by_key[index].1 as usize];
                *sum = sum.saturating_add(weight.bytes);
            }
        }
        // Parents come before their children.
        for index in (1..self.nodes.len()).rev() {
            let parent = self.nodes[index].parent as usize;
            bytes[parent] = bytes[parent].saturating_add(bytes[index]);
        }
        bytes
    }

    /// Returns the sites of the blocks of a node and its descendants, each with whether these
    /// blocks are older than the recording, ascending; none if no node has the path id `path_id`.
    #[must_use]
    pub fn sites_below(&self, path_id: u64) -> Vec<(SiteId, bool)> {
        let Some(first) = self.nodes.iter().position(|node| node.path_id == path_id) else { return Vec::new() };
        let nodes = first as u32..self.nodes[first].end;
        let below = self.node_by_key.iter().filter(|(_, node)| nodes.contains(node));
        let mut sites: Vec<_> = below.map(|(key, _)| (key.site, key.is_older)).collect();
        sites.dedup();
        sites
    }

    /// Returns the children of a node, largest first.
    pub fn children(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let end = self.nodes.get(node).map_or(0, |node| node.end as usize);
        let mut next = node.saturating_add(1);
        std::iter::from_fn(move || {
            let child = next;
            next = self.nodes.get(child).filter(|_| child < end)?.end as usize;
            Some(child)
        })
    }
}

impl<'a> Builder<'a> {
    /// Creates a tree that has only the root.
    pub(super) fn new(definitions: &'a Definitions, fold_libraries: bool) -> Self {
        let mut builder = Self {
            definitions,
            trie: StackTrie::new(definitions),
            fold_libraries,
            nodes: Vec::new(),
            node_by_key: Vec::new(),
            by_trie_node: HashMap::new(),
            children: HashMap::new(),
            pending: Vec::new(),
        };
        builder.push(0, FlameNodeKind::Root, None);
        builder
    }

    /// Appends a node and returns its number.
    fn push(&mut self, parent: u32, kind: FlameNodeKind, name: Option<Arc<str>>) -> u32 {
        let (own, total) = (Weight::default(), Weight::default());
        self.nodes.push(BuildNode { parent, kind, group: None, name, own, total });
        u32::try_from(self.nodes.len() - 1).unwrap_or(0)
    }

    /// Adds blocks to the node at which their stack ends.
    pub(super) fn add_blocks(&mut self, node: u32, blocks: StackKey, weight: Weight) {
        self.nodes[node as usize].own.add(weight);
        self.node_by_key.push((blocks, node));
    }

    /// Returns the node for blocks without a stack. `calls` are the lines that call the backward
    /// pass.
    fn no_stack(&mut self, why: WhyNoStack, calls: &BackwardCalls) -> u32 {
        let definitions = self.definitions;
        let name = || calls.name_of(definitions, why).map(Arc::from);
        self.add_named(0, FlameNodeKind::NoStack(why), name)
    }

    /// Returns the node of a kind below `parent`, adding it if it is new.
    pub(super) fn add(&mut self, parent: u32, kind: FlameNodeKind) -> u32 {
        self.add_named(parent, kind, || None)
    }

    /// Returns the node of a kind below `parent`, adding it with the name that `name` returns if it
    /// is new.
    pub(super) fn add_named(
        &mut self,
        parent: u32,
        kind: FlameNodeKind,
        name: impl FnOnce() -> Option<Arc<str>>,
    ) -> u32 {
        if let Some(&known) = self.children.get(&(parent, kind)) {
            return known;
        }
        let node = self.push(parent, kind, name());
        self.children.insert((parent, kind), node);
        node
    }

    /// Returns the node of the stack that ends at node `end` of the [`StackTrie`], adding it and
    /// its callers.
    fn node_of(&mut self, end: u32) -> u32 {
        let mut next = end;
        let mut parent = 0;
        while next != 0 {
            if let Some(&known) = self.by_trie_node.get(&next) {
                parent = known;
                break;
            }
            self.pending.push(next);
            let TrieNode { parent: caller, origin, anchor, .. } = self.trie.nodes[next as usize];
            next = if self.fold_libraries && origin != FrameOrigin::Own { anchor } else { caller };
        }
        while let Some(node) = self.pending.pop() {
            let TrieNode { frame, origin, run, run_frame, .. } = self.trie.nodes[node as usize];
            let kind = match origin {
                FrameOrigin::Own => FlameNodeKind::Own(frame),
                _ if self.fold_libraries => FlameNodeKind::Library { frame: run_frame, frames: run },
                _ => FlameNodeKind::Library { frame, frames: 1 },
            };
            parent = self.add(parent, kind);
            self.by_trie_node.insert(node, parent);
        }
        parent
    }

    /// Sums up the nodes and puts them in depth-first order.
    pub(super) fn finish(mut self) -> FlameGraph {
        // Parents have smaller numbers than their children.
        for number in (0..self.nodes.len()).rev() {
            let own = self.nodes[number].own;
            self.nodes[number].total.add(own);
            let (parent, total) = (self.nodes[number].parent as usize, self.nodes[number].total);
            if number > 0 {
                self.nodes[parent].total.add(total);
            }
        }
        let mut children: Vec<Vec<(u32, String)>> = vec![Vec::new(); self.nodes.len()];
        for (number, node) in (0u32..).zip(&self.nodes).skip(1) {
            let label = node.name.as_ref().map_or_else(|| label(self.definitions, node.kind), |name| name.to_string());
            children[node.parent as usize].push((number, label));
        }
        let mut graph = FlameGraph { nodes: Vec::with_capacity(self.nodes.len()), node_by_key: Vec::new() };
        let mut indexes = vec![0; self.nodes.len()];
        // The numbers and labels of nodes to write with the index and depth of their parents, the
        // next one last.
        let mut stack = vec![(0u32, label(self.definitions, FlameNodeKind::Root), 0u32, 0u32)];
        while let Some((number, label, parent, depth)) = stack.pop() {
            let node = &self.nodes[number as usize];
            let index = u32::try_from(graph.nodes.len()).unwrap_or(u32::MAX);
            indexes[number as usize] = index;
            let parent_path = if number == 0 { 0 } else { graph.nodes[parent as usize].path_id };
            let mut below = std::mem::take(&mut children[number as usize]);
            sort_by(&mut below, |(a, a_label), (b, b_label)| {
                let bytes = |number: &u32| Reverse(self.nodes[*number as usize].total.bytes);
                (bytes(a), a_label, a).cmp(&(bytes(b), b_label, b))
            });
            stack.extend(below.into_iter().rev().map(|(number, label)| (number, label, index, depth + 1)));
            graph.nodes.push(FlameNode {
                parent,
                depth,
                end: index,
                kind: node.kind,
                group: node.group,
                path_id: path_id(parent_path, &complete_name(self.definitions, node.kind, &label)),
                label,
                bytes: node.total.bytes,
                self_bytes: node.own.bytes,
                blocks: node.total.blocks,
            });
        }
        // In depth-first order, the last descendant follows all others.
        for index in (0..graph.nodes.len()).rev() {
            let end = graph.nodes[index].end.max(u32::try_from(index + 1).unwrap_or(u32::MAX));
            graph.nodes[index].end = end;
            let parent = graph.nodes[index].parent as usize;
            graph.nodes[parent].end = graph.nodes[parent].end.max(end);
        }
        graph.node_by_key = self.node_by_key.iter().map(|&(blocks, node)| (blocks, indexes[node as usize])).collect();
        sort_by_key(&mut graph.node_by_key, |(blocks, _)| *blocks);
        graph
    }
}

/// Returns the text of a node; empty for a group or a part of a name.
fn label(definitions: &Definitions, kind: FlameNodeKind) -> String {
    match kind {
        FlameNodeKind::Root => "all".to_owned(),
        FlameNodeKind::Own(frame) | FlameNodeKind::Library { frame, frames: 1 } => frame_label(definitions, frame),
        FlameNodeKind::Library { frame, frames } => {
            let (function, file) = (definitions.string(frame.function), definitions.string(frame.file));
            let library = library_name(function, file).map_or_else(String::new, |name| format!("{name}, "));
            format!("{} ({library}{frames} frames)", frame_label(definitions, frame))
        }
        FlameNodeKind::NoStack(why) => why.name().to_owned(),
        // Nodes of groups and parts store their names themselves.
        FlameNodeKind::Group(..) | FlameNodeKind::Part(_) => String::new(),
    }
}

/// Returns the name of a node with complete paths and functions, which no sibling has; `label` is
/// its text.
fn complete_name(definitions: &Definitions, kind: FlameNodeKind, label: &str) -> String {
    match kind {
        FlameNodeKind::Root | FlameNodeKind::NoStack(_) | FlameNodeKind::Part(_) => label.to_owned(),
        // Groups may have equal names.
        FlameNodeKind::Group(by, group) => format!("{} {group} {label}", by.name()),
        FlameNodeKind::Own(frame) => frame_name(definitions, frame, false),
        FlameNodeKind::Library { frame, frames } => format!("{frames} {}", frame_name(definitions, frame, false)),
    }
}

/// Returns the path id of a node from its parent's and its complete name (FNV-1a, 64 bits).
fn path_id(parent: u64, name: &str) -> u64 {
    /// The start value of the hash, from FNV-1a's definition.
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    /// The multiplier of the hash, from FNV-1a's definition.
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let bytes = parent.to_le_bytes().into_iter().chain(name.bytes());
    bytes.fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}
