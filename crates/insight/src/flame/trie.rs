//! The call stacks of all weighted sites as one tree, before frames are folded.

use std::collections::HashMap;

use vramscope_trace::{
    Definitions, Frame, FrameId, FrameOrigin, StackId, frame_origin, is_backward_operation, is_python_frame,
};

/// Maximum number of frames of a stack that become nodes. Blocks of deeper stacks count for the
/// last of these nodes.
pub(super) const MAX_DEPTH: u32 = 512;

/// A frame with all its callers.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrieNode {
    /// The calling node; 0 is the root, which has no frame.
    pub(super) parent: u32,
    pub(super) frame: Frame,
    pub(super) origin: FrameOrigin,
    /// Number of frames from the outermost one to this one.
    pub(super) depth: u32,
    /// The nearest caller that is the program's own frame, or the root.
    pub(super) anchor: u32,
    /// Number of frames that are folded into one node with this one: itself, and its callers up to
    /// the anchor.
    pub(super) run: u32,
    /// For a library frame, the frame that names the run of library frames: the innermost of the
    /// most informative frames.
    pub(super) run_frame: Frame,
    /// How much `run_frame` tells about a request.
    run_rank: FrameRank,
}

/// How much a library frame tells about a request, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FrameRank {
    Allocator,
    Native,
    /// A C++ function that runs one operation of a backward pass.
    BackwardOperation,
    Python,
}

impl FrameRank {
    /// Returns how much a frame of this origin tells.
    fn of(definitions: &Definitions, frame: Frame, origin: FrameOrigin) -> Self {
        match () {
            () if is_python_frame(definitions, frame) => Self::Python,
            () if is_backward_operation(definitions, frame) => Self::BackwardOperation,
            () if origin == FrameOrigin::Allocator => Self::Allocator,
            () => Self::Native,
        }
    }
}

/// A tree of call stacks. Nodes are numbered after their callers.
#[derive(Debug)]
pub(super) struct StackTrie<'a> {
    definitions: &'a Definitions,
    pub(super) nodes: Vec<TrieNode>,
    children: HashMap<(u32, Frame, FrameOrigin), u32>,
    /// The node of a stack; the flag tells whether the complete stack has Python frames.
    by_stack: HashMap<(StackId, bool), u32>,
    /// Stacks whose nodes a lookup has still to add, innermost first; empty between lookups.
    pending: Vec<(StackId, FrameId)>,
}

impl<'a> StackTrie<'a> {
    /// Creates a tree that has only the root.
    pub(super) fn new(definitions: &'a Definitions) -> Self {
        let frame = Frame::default();
        let root = TrieNode {
            parent: 0,
            frame,
            origin: FrameOrigin::Own,
            depth: 0,
            anchor: 0,
            run: 0,
            run_frame: frame,
            run_rank: FrameRank::Allocator,
        };
        Self { definitions, nodes: vec![root], children: HashMap::new(), by_stack: HashMap::new(), pending: Vec::new() }
    }

    /// Returns the node of a stack, adding its frames. `has_python` tells whether any of them runs
    /// Python code.
    pub(super) fn node_of(&mut self, stack: StackId, has_python: bool) -> u32 {
        let mut next = stack;
        let mut node = 0;
        while let Some(definition) = self.definitions.stack_definition(next) {
            if let Some(&known) = self.by_stack.get(&(next, has_python)) {
                node = known;
                break;
            }
            self.pending.push((next, definition.frame));
            next = definition.caller;
        }
        while let Some((stack, frame)) = self.pending.pop() {
            let frame = self.definitions.frame(frame).unwrap_or_default();
            node = self.child(node, frame, has_python);
            self.by_stack.insert((stack, has_python), node);
        }
        node
    }

    /// Returns the node of a frame called from `parent`; `parent` itself at the maximal depth.
    fn child(&mut self, parent: u32, frame: Frame, has_python: bool) -> u32 {
        let caller = self.nodes[parent as usize];
        let number = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        if caller.depth >= MAX_DEPTH || number == u32::MAX {
            return parent;
        }
        let origin = frame_origin(self.definitions, frame, has_python);
        let (definitions, nodes) = (self.definitions, &mut self.nodes);
        *self.children.entry((parent, frame, origin)).or_insert_with(|| {
            let rank = FrameRank::of(definitions, frame, origin);
            let is_in_run = parent != 0 && caller.origin != FrameOrigin::Own;
            let (anchor, run) = if is_in_run { (caller.anchor, caller.run + 1) } else { (parent, 1) };
            let (run_frame, run_rank) =
                if is_in_run && caller.run_rank > rank { (caller.run_frame, caller.run_rank) } else { (frame, rank) };
            nodes.push(TrieNode { parent, frame, origin, depth: caller.depth + 1, anchor, run, run_frame, run_rank });
            number
        })
    }
}
