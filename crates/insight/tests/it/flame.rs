//! Flame graphs against the stacks of all blocks.

use std::collections::HashMap;

use vramscope_insight::flame::{FlameGraph, FlameNodeKind, StackKey, StackKeys, StackWeights, Weight};
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::sites::live_groups;
use vramscope_trace::{
    Definitions, EventKind, Frame, FrameOrigin, Interner, Recording, Replay, Site, SiteId, StackId, frame_origin,
    is_python_frame,
};

use crate::recordings::snapshot;
use crate::sites::{lifetimes_of, random_moment};

/// Recordings with and without stacks, and of several devices.
const RECORDINGS: [&str; 5] = [
    "mlp_train.pickle.zst",
    "alloc_stacks.pickle.gz",
    "annotated.pickle.gz",
    "late.pickle.gz",
    "two_devices.pickle.gz",
];

/// Checks the order of the nodes and that the bytes of each node are those of its children and its
/// own.
fn check_structure(graph: &FlameGraph, total: Weight) {
    let root = &graph.nodes[0];
    assert_eq!(
        (root.bytes, root.blocks, root.depth, root.end),
        (total.bytes, total.blocks, 0, graph.nodes.len() as u32)
    );
    let mut path_ids = std::collections::HashSet::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let children: Vec<usize> = graph.children(index).collect();
        let below: u64 = children.iter().map(|&child| graph.nodes[child].bytes).sum();
        assert_eq!(node.bytes, below + node.self_bytes);
        assert!(children.iter().all(|&child| graph.nodes[child].parent as usize == index));
        assert!(children.iter().all(|&child| graph.nodes[child].depth == node.depth + 1));
        assert!(children.is_sorted_by(|&a, &b| graph.nodes[a].bytes >= graph.nodes[b].bytes));
        assert!(index == 0 || (node.parent as usize) < index);
        assert!(path_ids.insert(node.path_id), "{} is not unique", node.label);
        assert!(!node.label.is_empty());
    }
    let own: u64 = graph.nodes.iter().map(|node| node.self_bytes).sum();
    assert_eq!(own, total.bytes);
}

/// Returns the frames from the root to a node, innermost first.
fn path(graph: &FlameGraph, mut node: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    while node != 0 {
        match graph.nodes[node].kind {
            FlameNodeKind::Own(frame) | FlameNodeKind::Library { frame, .. } => frames.push(frame),
            FlameNodeKind::Root | FlameNodeKind::NoStack(_) | FlameNodeKind::Group(..) | FlameNodeKind::Part(_) => {}
        }
        node = graph.nodes[node].parent as usize;
    }
    frames
}

/// Returns the bytes of each distinct stack, innermost frame first; without stack, of the empty
/// one.
fn bytes_by_stack(definitions: &Definitions, weights: &StackWeights) -> HashMap<Vec<Frame>, u64> {
    let mut bytes = HashMap::new();
    for (key, weight) in weights.iter() {
        *bytes.entry(definitions.stack(definitions.site(key.site).stack).collect()).or_default() += weight.bytes;
    }
    bytes
}

/// Checks the graphs of `weights`, with and without folded frames, against the stacks.
fn check_graphs(recording: &Recording, weights: &StackWeights) {
    let definitions = recording.definitions();
    let complete = FlameGraph::new(definitions, weights, false);
    check_structure(&complete, weights.total());
    let mut found: HashMap<Vec<Frame>, u64> = HashMap::new();
    for (index, node) in complete.nodes.iter().enumerate().filter(|(_, node)| node.self_bytes > 0) {
        *found.entry(path(&complete, index)).or_default() += node.self_bytes;
    }
    let mut expected = bytes_by_stack(definitions, weights);
    expected.retain(|_, bytes| *bytes > 0);
    assert_eq!(found, expected);

    let folded = FlameGraph::new(definitions, weights, true);
    check_structure(&folded, weights.total());
    assert!(folded.nodes.len() <= complete.nodes.len());
    // A library node has no library node below it, and all own frames of each stack remain.
    for node in &folded.nodes[1..] {
        let parent = folded.nodes[node.parent as usize].kind;
        let is_library = |kind| matches!(kind, FlameNodeKind::Library { .. });
        assert!(!(is_library(node.kind) && is_library(parent)), "{}", node.label);
    }
    let mut own_found: HashMap<Vec<Frame>, u64> = HashMap::new();
    for (index, node) in folded.nodes.iter().enumerate().filter(|(_, node)| node.self_bytes > 0) {
        let mut frames = Vec::new();
        let mut at = index;
        while at != 0 {
            if let FlameNodeKind::Own(frame) = folded.nodes[at].kind {
                frames.push(frame);
            }
            at = folded.nodes[at].parent as usize;
        }
        *own_found.entry(frames).or_default() += node.self_bytes;
    }
    let mut own_expected: HashMap<Vec<Frame>, u64> = HashMap::new();
    for (mut frames, bytes) in bytes_by_stack(definitions, weights) {
        let has_python = frames.iter().any(|&frame| is_python_frame(definitions, frame));
        frames.retain(|&frame| frame_origin(definitions, frame, has_python) == FrameOrigin::Own);
        *own_expected.entry(frames).or_default() += bytes;
    }
    own_expected.retain(|_, bytes| *bytes > 0);
    assert_eq!(own_found, own_expected);
}

#[test]
fn graphs_of_live_bytes_contain_every_stack() {
    let mut random = fastrand::Rng::with_seed(13);
    for name in RECORDINGS {
        let recording = snapshot(name);
        let lifetimes = lifetimes_of(&recording);
        let mut replay = Replay::new();
        for _ in 0..5 {
            let moment = random_moment(&mut random, &recording);
            let state = replay.seek(&recording, moment).expect("the recording is complete");
            for (id, device) in state.devices() {
                let keys = StackKeys::new(recording.first_event());
                let weights = StackWeights::live(device, &keys);
                assert_eq!(weights.total().bytes, device.counters().active);
                assert_eq!(weights.total().blocks, device.blocks().len() as u64);
                check_graphs(&recording, &weights);
                if let Some(device) = lifetimes.device(id) {
                    assert_eq!(StackWeights::live_at(device, moment, &keys), weights);
                }
            }
        }
    }
}

#[test]
fn graphs_of_a_range_contain_every_allocation() {
    let mut random = fastrand::Rng::with_seed(14);
    for name in RECORDINGS {
        let recording = snapshot(name);
        let lifetimes = lifetimes_of(&recording);
        let mut replay = Replay::new();
        let from = random_moment(&mut random, &recording);
        let to = random.u64(from..=recording.end_event());
        for (id, device) in lifetimes.devices() {
            let weights = StackWeights::allocated_between(device, from, to, &StackKeys::new(recording.first_event()));
            // Every node's bytes are those of the sites below it.
            let graph = FlameGraph::new(recording.definitions(), &weights, true);
            let bytes: Vec<u64> = graph.nodes.iter().map(|node| node.bytes).collect();
            assert_eq!(graph.bytes_of(&weights), bytes);
            for node in &graph.nodes {
                let sites = graph.sites_below(node.path_id);
                let has = |site: SiteId, is_older: bool| sites.binary_search(&(site, is_older)).is_ok();
                let below = weights.iter().filter(|(key, _)| has(key.site, key.is_older));
                assert_eq!(below.map(|(.., weight)| weight.bytes).sum::<u64>(), node.bytes);
            }
            let mut expected = Weight::default();
            for index in from..to {
                let event = replay.event(&recording, index).expect("the recording is complete");
                if let Some(EventKind::BlockAllocated { size, .. }) =
                    event.filter(|event| event.device == id).map(|event| event.kind)
                {
                    expected.add(Weight { bytes: size, blocks: 1 });
                }
            }
            assert_eq!(weights.total(), expected, "{name} {from}..{to}");
            check_graphs(&recording, &weights);
        }
    }
}

/// Defines a site for each stack of (file, line) frames, outermost first, in functions `f`.
fn definitions_of(stacks: &[Vec<(&str, u32)>]) -> Definitions {
    let mut interner = Interner::default();
    for frames in stacks {
        let mut stack = StackId(0);
        for &(file, line) in frames {
            let (file, function) = (interner.string(file), interner.string("f"));
            let frame = interner.frame(Frame { function, file, line });
            stack = interner.stack(frame, stack);
        }
        interner.site(Site { stack, ..Site::default() });
    }
    let mut definitions = Definitions::default();
    interner.take_new().into_iter().for_each(|definition| definitions.define(definition));
    definitions
}

#[test]
fn runs_of_library_frames_become_one_node() {
    const TORCH: &str = "site-packages/torch/nn.py";
    let definitions = definitions_of(&[
        vec![("train.py", 1), (TORCH, 2), (TORCH, 3), ("net.py", 4), (TORCH, 5)],
        vec![("train.py", 1), (TORCH, 2), (TORCH, 3)],
        vec![("train.py", 1)],
    ]);
    let mut weights = StackWeights::default();
    for (site, bytes) in [(0, 7), (1, 40), (2, 20), (3, 10)] {
        let key = StackKey { site: SiteId(site), is_older: site == 0, ..StackKey::default() };
        weights.add(key, Weight { bytes, blocks: 1 });
    }
    let graph = FlameGraph::new(&definitions, &weights, true);
    check_structure(&graph, Weight { bytes: 77, blocks: 4 });
    let rows: Vec<(u32, &str, u64, u64)> =
        graph.nodes.iter().map(|node| (node.depth, node.label.as_str(), node.bytes, node.self_bytes)).collect();
    assert_eq!(
        rows,
        [
            (0, "all", 77, 0),
            (1, "train.py:1 f", 70, 10),
            (2, "nn.py:3 f (torch, 2 frames)", 60, 20),
            (3, "net.py:4 f", 40, 0),
            (4, "nn.py:5 f", 40, 40),
            (1, "allocated before recording began", 7, 7),
        ]
    );
}

#[test]
fn deep_stacks_have_bounded_depth() {
    let frames: Vec<(&str, u32)> = (1..=100_000).map(|line| ("train.py", line)).collect();
    let definitions = definitions_of(&[frames.clone(), frames[..99_999].to_vec()]);
    let mut weights = StackWeights::default();
    weights.add(StackKey { site: SiteId(1), ..StackKey::default() }, Weight { bytes: 5, blocks: 1 });
    weights.add(StackKey { site: SiteId(2), ..StackKey::default() }, Weight { bytes: 6, blocks: 1 });
    for fold_libraries in [false, true] {
        let graph = FlameGraph::new(&definitions, &weights, fold_libraries);
        check_structure(&graph, Weight { bytes: 11, blocks: 2 });
        assert_eq!(graph.nodes.len(), 513);
        assert_eq!(graph.nodes[512].self_bytes, 11);
    }
}

#[test]
fn graphs_by_group_have_the_bytes_of_the_groups() {
    for name in RECORDINGS {
        let recording = snapshot(name);
        let definitions = recording.definitions();
        let mut random = fastrand::Rng::with_seed(3);
        for by in [GroupBy::Function, GroupBy::Module, GroupBy::Category, GroupBy::File, GroupBy::Line] {
            let parts = if matches!(by, GroupBy::Module | GroupBy::File) { GroupBy::Line } else { GroupBy::Site };
            let (mut grouping, mut parts) = (Grouping::of(by, &recording), Grouping::of(parts, &recording));
            let mut replay = Replay::new();
            let moment = random_moment(&mut random, &recording);
            let state = replay.seek(&recording, moment).expect("a readable recording");
            for (_, device) in state.devices() {
                let weights = StackWeights::live(device, &StackKeys::of(&grouping));
                for is_folded in [true, false] {
                    let graph = FlameGraph::by_group(definitions, &weights, &mut grouping, &mut parts, is_folded);
                    check_structure(&graph, weights.total());
                    let mut bytes: HashMap<u32, u64> = HashMap::new();
                    for (of, group, sum) in
                        graph.nodes.iter().filter_map(|node| node.group.map(|(of, group)| (of, group, node.bytes)))
                    {
                        // A module's node contains the modules below it.
                        if of == by && by != GroupBy::Module {
                            *bytes.entry(group).or_default() += sum;
                        }
                    }
                    for row in live_groups(device, definitions, &mut grouping) {
                        if by != GroupBy::Module {
                            assert_eq!(bytes.remove(&row.group), Some(row.bytes), "{name} {by:?} {}", row.name);
                        }
                    }
                    assert!(bytes.is_empty(), "{name} {by:?}: {bytes:?}");
                }
            }
        }
    }
}
