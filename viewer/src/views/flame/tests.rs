//! Checks that the painted pixels, the objects under them, and the graph agree.

use vramscope_draw::{Bitmap, Canvas, Color, Rect, Theme, Typesetter};
use vramscope_insight::flame::{FlameGraph, FlameNode, FlameNodeKind};
use vramscope_trace::{Definition, Definitions, Frame as StackFrame, Interner};

use super::draw::fill;
use super::scene::box_styles;
use super::*;

/// Draws a scene on a bitmap.
fn draw(scene: &FlameScene, theme: &Theme, bitmap: &mut Bitmap, typesetter: &mut Typesetter) {
    super::draw::draw_on(scene, theme, &mut Canvas { bitmap, typesetter });
}

/// Returns a random graph and its styles. The bytes of a node are those of its children and its own
/// `self_bytes`.
fn graph(seed: u64) -> (FlameGraph, Vec<BoxStyle>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut interner, mut definitions) = (Interner::default(), Definitions::default());
    let mut nodes: Vec<FlameNode> = Vec::new();
    let mut pending = vec![(0u32, 0u32, 1u64 << 34)];
    while let Some((parent, depth, bytes)) = pending.pop() {
        let index = nodes.len() as u32;
        let function = interner.string(&format!("function {}", random.u32(0..40)));
        let frame = StackFrame { function, line: index, ..StackFrame::default() };
        let kind = match (index, random.u32(0..3)) {
            (0, _) => FlameNodeKind::Root,
            (_, 0) => FlameNodeKind::Library { frame, frames: 1 },
            _ => FlameNodeKind::Own(frame),
        };
        let own = if random.bool() || depth >= 30 { random.u64(0..=bytes) } else { 0 };
        let mut rest = bytes - if depth >= 30 || bytes < 1024 { bytes } else { own };
        let mut children = Vec::new();
        while rest > 0 {
            let child = if children.len() > 60 { rest } else { random.u64(1..=rest) };
            children.push(child);
            rest -= child;
        }
        children.sort_unstable();
        let self_bytes = bytes - children.iter().sum::<u64>();
        pending.extend(children.into_iter().map(|child| (index, depth + 1, child)));
        let path_id = u64::from(index) + 1;
        let label = format!("node {index}");
        let end = index + 1;
        nodes.push(FlameNode { parent, depth, end, kind, group: None, label, bytes, self_bytes, blocks: 1, path_id });
        if nodes.len() > 4_000 {
            break;
        }
    }
    // Children omitted at the limit of nodes count as own bytes of their parents.
    for index in (1..nodes.len()).rev() {
        let (parent, end) = (nodes[index].parent as usize, nodes[index].end);
        nodes[parent].end = nodes[parent].end.max(end);
    }
    for index in 0..nodes.len() {
        let graph = FlameGraph { nodes: std::mem::take(&mut nodes), ..FlameGraph::default() };
        let below: u64 = graph.children(index).map(|child| graph.nodes[child].bytes).sum();
        nodes = graph.nodes;
        nodes[index].self_bytes = nodes[index].bytes - below;
    }
    let new: Vec<Definition> = interner.take_new();
    new.into_iter().for_each(|definition| definitions.define(definition));
    let graph = FlameGraph { nodes, ..FlameGraph::default() };
    let styles = box_styles(&graph, &definitions, &mut |_| None);
    (graph, styles)
}

/// The sizes, scales and scroll positions of the tested pictures.
const PICTURES: [((u32, u32), f32, i32); 4] =
    [((900, 400), 1.0, 0), ((400, 160), 1.0, 90), ((1200, 700), 2.0, 30), ((333, 222), 1.5, 100_000)];

#[test]
fn widths_add_up_in_every_row() {
    for seed in 1..6 {
        let (graph, styles) = graph(seed);
        for (size, scale, scroll) in PICTURES {
            let content = FlameContent { graph: &graph, styles: &styles, zoom: None };
            let scene = FlameScene::new(content, size, scale, scroll, &Typesetter::new());
            let areas: Vec<(Target, Rect)> = scene.boxes().iter().map(|one| (one.target, one.area)).collect();
            assert_eq!(areas[0], (Target::Node(0), Rect { x0: scene.view.x0, x1: scene.view.x1, ..areas[0].1 }));
            for (target, area) in &areas {
                assert!(area.width() >= 1, "{target:?}");
                let Target::Node(node) = *target else { continue };
                let is_child = |other: &Target| match *other {
                    Target::Node(child) => child != 0 && graph.nodes[child as usize].parent == node,
                    Target::Other { parent, .. } => parent == node,
                };
                let mut below: Vec<&Rect> =
                    areas.iter().filter(|(other, _)| is_child(other)).map(|(_, area)| area).collect();
                below.sort_by_key(|area| area.x0);
                // Children are side by side, below their caller, and as wide as their bytes.
                let mut x = area.x0;
                for child in below {
                    assert!(child.x0 == x && child.x1 <= area.x1 && child.y0 == area.y1, "below {node}");
                    x = child.x1;
                }
                let of_node = &graph.nodes[node as usize];
                let part = 1.0 - of_node.self_bytes as f64 / of_node.bytes as f64;
                let expected = part * f64::from(area.width());
                assert!(
                    (f64::from(x - area.x0) - expected).abs() <= 1.5,
                    "below {node}: {} of {expected}",
                    x - area.x0
                );
            }
        }
    }
}

#[test]
fn hit_returns_the_box_painted_at_a_pixel() {
    let theme = Theme::new(true);
    let mut hits = 0;
    for (seed, (size, scale, scroll)) in (10..).zip(PICTURES) {
        let (graph, styles) = graph(seed);
        let content = FlameContent { graph: &graph, styles: &styles, zoom: None };
        let mut scene = FlameScene::new(content, size, scale, scroll, &Typesetter::new());
        scene.boxes.iter_mut().for_each(|one| one.label = Default::default());
        let mut bitmap = Bitmap::new(size.0, size.1, Color::default());
        draw(&scene, &theme, &mut bitmap, &mut Typesetter::new());
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..1_000 {
            let (x, y) = (random.i32(scene.view.x0..scene.view.x1), random.i32(scene.view.y0..scene.view.y1));
            let painted = bitmap.pixel(x, y).expect("inside of the picture");
            match scene.hit((x, y)) {
                Some(one) => {
                    hits += 1;
                    let is_painted =
                        painted == fill(one, &theme) || one.style == BoxStyle::Other && painted == theme.dim;
                    // Boxes are separated by gaps of the background's color.
                    let is_gap = painted == theme.background;
                    assert!(is_painted || is_gap, "{one:?} at {x}, {y} is {painted:?}");
                    let lines = scene.lines(&graph, one.target);
                    assert!(lines.len() >= 2 && lines[1].contains("block"));
                }
                None => assert_eq!(painted, theme.background, "at {x}, {y}"),
            }
        }
    }
    assert!(hits > 400, "{hits} points show a box");
}

#[test]
fn zoomed_node_is_as_wide_as_the_picture() {
    let (graph, styles) = graph(3);
    let node = graph.nodes.iter().rposition(|node| node.depth == 3).expect("a deep graph");
    let zoom = Some(graph.nodes[node].path_id);
    let scene =
        FlameScene::new(FlameContent { graph: &graph, styles: &styles, zoom }, (800, 300), 1.0, 0, &Typesetter::new());
    let widths: Vec<(Target, i32, bool)> =
        scene.boxes()[..4].iter().map(|one| (one.target, one.area.width(), one.is_caller)).collect();
    assert!(widths.iter().all(|&(_, width, _)| width == scene.view.width()));
    assert_eq!(widths[3].0, Target::Node(node as u32));
    assert_eq!(widths.iter().map(|&(.., is_caller)| is_caller).collect::<Vec<_>>(), [true, true, true, false]);
    assert_eq!(scene.zoom_target(&graph, widths[3].0), Some(node as u64 + 1));
    assert_eq!(scene.zoom_target(&graph, Target::Node(0)), None);
    let unknown = FlameContent { graph: &graph, styles: &styles, zoom: Some(u64::MAX) };
    let scene = FlameScene::new(unknown, (800, 300), 1.0, 0, &Typesetter::new());
    assert_eq!(scene.boxes()[0].target, Target::Node(0));
    assert!(!scene.boxes()[0].is_caller);
}

#[test]
fn tiny_and_empty_pictures_are_drawn() {
    let (graph, styles) = graph(4);
    let empty = FlameGraph::default();
    for size in [(0, 0), (1, 1), (30, 9), (12, 500)] {
        for graph in [&graph, &empty] {
            let content = FlameContent { graph, styles: &styles, zoom: None };
            let scene = FlameScene::new(content, size, 2.0, 7, &Typesetter::new());
            let mut bitmap = Bitmap::new(size.0, size.1, Color::default());
            draw(&scene, &Theme::new(false), &mut bitmap, &mut Typesetter::new());
        }
    }
    let content = FlameContent { graph: &empty, styles: &styles, zoom: None };
    assert!(FlameScene::new(content, (300, 100), 1.0, 0, &Typesetter::new()).notice.is_some());
}
