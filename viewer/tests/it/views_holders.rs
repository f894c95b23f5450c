//! Who holds the memory, as the page shows it: groups in the flame graph, a filter, colors that all
//! views share, and the holders on the card of a failure.

use std::collections::HashMap;

use crate::testing::{command, load_fixture, open};
use serde_json::Value;
use vramscope_draw::bitmap::Color;
use vramscope_insight::group::GroupBy;
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::command::Topic;
use vramscope_viewer::protocol::{Action, FrameRequest, PaneContent, Pointer, PointerKind, Screen, Surface};
use vramscope_viewer::ui::{Element, Node, Tag};

/// Runs commands, draws until nothing changes, and returns the contents of both panes.
fn run(session: &mut Session, commands: &[&str]) -> [PaneContent; 2] {
    session.resend();
    let actions = commands.iter().map(command).collect();
    let screen = Screen { sizes: [(900, 160), (700, 400), (700, 400)], scale: 1.0, is_dark: false };
    let mut request = FrameRequest { actions, screen: Some(screen), ..FrameRequest::default() };
    let mut panes: [Option<PaneContent>; 2] = [None, None];
    for _ in 0..100 {
        let mut report = SessionReport::default();
        let frame = session.frame(&request, &PageFacts::default(), &mut report);
        assert_eq!(report, SessionReport::default());
        request = FrameRequest::default();
        for (known, new) in panes.iter_mut().zip(frame.panes) {
            *known = new.or(known.take());
        }
        while session.work(100_000).expect("a readable recording") {}
        if !session.model.has_changed() {
            break;
        }
    }
    panes.map(|pane| pane.expect("both panes have content"))
}

/// Calls `visit` for every element of some nodes.
fn visit<'a>(nodes: &'a [Node], each: &mut dyn FnMut(&'a Element)) {
    for node in nodes {
        if let Node::Element(element) = node {
            each(element);
            visit(&element.children, each);
        }
    }
}

/// Returns the text of nodes, without no-break spaces.
fn text(nodes: &[Node]) -> String {
    let mut texts = Vec::new();
    for node in nodes {
        texts.push(match node {
            Node::Element(element) => element.text_content(),
            Node::Text(text) => text.clone(),
        });
    }
    texts.join("\n").replace('\u{a0}', " ")
}

fn rows(session: &mut Session, view: &str, options: &str) -> Vec<Value> {
    serde_json::from_str(&session.rows(view, options).expect("the view has rows")).expect("a list of objects")
}

fn sum(rows: &[Value], field: &str) -> u64 {
    rows.iter().map(|row| row[field].as_u64().expect("a number")).sum()
}

#[test]
fn flame_graph_by_group_has_the_bytes_of_the_table() {
    let mut session = open("tour/gpt_varlen.vram");
    for by in ["function", "module", "category", "file", "line"] {
        let options = format!(r#"{{"by": "{by}"}}"#);
        let flame = rows(&mut session, "flame", &options);
        let sites = rows(&mut session, "sites", &options);
        assert_eq!(sum(&flame, "self_bytes"), sum(&sites, "bytes"), "{by}");
        assert_eq!(flame[0]["bytes"].as_u64(), Some(sum(&sites, "bytes")), "{by}");
        if matches!(by, "function" | "category" | "line") {
            let top: HashMap<&str, u64> = flame
                .iter()
                .filter(|row| row["level"] == 1)
                .map(|row| (row["name"].as_str().expect("a text"), row["bytes"].as_u64().expect("a number")))
                .collect();
            for row in &sites {
                assert_eq!(
                    top.get(row["name"].as_str().expect("a text")).copied(),
                    row["bytes"].as_u64(),
                    "{by} {row}"
                );
            }
        }
    }
    let [pane, _] = run(&mut session, &["pane 0 flame", "by flame category"]);
    assert!(text(&pane.legend).contains("a color for each category"), "{}", text(&pane.legend));
    assert!(session.link().fragment().contains("flame;by:category"));
    let zoom = rows(&mut session, "flame", r#"{"by": "category"}"#)[1]["path"].clone();
    let zoom = u64::from_str_radix(zoom.as_str().expect("a text").trim_start_matches("0x"), 16).expect("a number");
    let [pane, _] = run(&mut session, &[&format!("number flame {zoom}")]);
    assert!(text(&pane.content).contains("show all"));
    let [pane, _] = run(&mut session, &["by flame line"]);
    assert!(!text(&pane.content).contains("show all"), "another grouping shows everything");
}

#[test]
fn own_line_comes_first_in_the_name_of_a_site() {
    let mut session = open("tour/gpt_varlen.vram");
    let sites = rows(&mut session, "sites", r#"{"by": "site"}"#);
    assert!(sites.iter().any(|row| row["name"] == "train.py:65 · cross_entropy"), "{sites:?}");
}

#[test]
fn filter_of_sites_keeps_matching_rows_and_dims_other_blocks() {
    let mut session = open("tour/gpt_varlen.vram");
    let blocks = rows(&mut session, "blocks", "{}");
    let large: Vec<Value> = blocks.into_iter().filter(|block| block["bytes"].as_u64() > Some(50 << 20)).collect();
    for options in [r#"{"filter": ">50MiB"}"#, r#"{"filter": ">50MiB", "mode": "peak"}"#] {
        let kept = rows(&mut session, "sites", options);
        assert_eq!((sum(&kept, "bytes"), sum(&kept, "blocks")), (sum(&large, "bytes"), large.len() as u64));
    }
    let all = rows(&mut session, "sites", r#"{"mode": "range", "from": 100, "to": 9000}"#);
    let kept = rows(&mut session, "sites", r#"{"mode": "range", "from": 100, "to": 9000, "filter": ">50MiB"}"#);
    let others = rows(&mut session, "sites", r#"{"mode": "range", "from": 100, "to": 9000, "filter": "-size>50MiB"}"#);
    assert_eq!(sum(&kept, "allocations") + sum(&others, "allocations"), sum(&all, "allocations"));
    assert!(session.rows("sites", r#"{"filter": "size>"}"#).expect_err("invalid").contains("filter"));

    for view in ["heatmap", "allocations"] {
        run(&mut session, &[&format!("pane 0 {view}"), "pane 1 sites", "filter sites "]);
        let plain = session.pixels(Surface::Left).to_vec();
        let [_, sites] = run(&mut session, &["filter sites >50MiB"]);
        assert!(text(&sites.content).contains("size more than 50 MiB"), "{}", text(&sites.content));
        assert_ne!(session.pixels(Surface::Left), plain, "{view}: others are dim");
        run(&mut session, &["filter sites "]);
        assert_eq!(session.pixels(Surface::Left), plain, "{view}");
    }
}

/// Returns the colors of a table's bars by the text of the row's first cell, where no other row has
/// the same text.
fn bar_colors(content: &[Node]) -> HashMap<String, Color> {
    let mut colors: HashMap<String, Option<Color>> = HashMap::new();
    visit(content, &mut |element| {
        if element.tag != Tag::Tr {
            return;
        }
        let (mut name, mut color) = (None, None);
        visit(&element.children, &mut |cell| {
            name.get_or_insert_with(|| cell.text_content());
            color = color.or(cell.color);
        });
        if let (Some(name), Some(color)) = (name, color) {
            colors.entry(name).and_modify(|known| *known = None).or_insert(Some(color));
        }
    });
    colors.into_iter().filter_map(|(name, color)| Some((name, color?))).collect()
}

#[test]
fn groups_have_the_same_color_in_every_view() {
    let mut session = open("tour/gpt_varlen.vram");
    for by in [GroupBy::Site, GroupBy::Category, GroupBy::Module] {
        let by = by.name();
        let commands =
            [format!("by sites {by}"), format!("by flame {by}"), format!("by allocations {by}"), format!("stack {by}")];
        let mut commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        commands.extend(["pane 0 sites", "pane 1 allocations"]);
        let [sites, _] = run(&mut session, &commands);
        let colors = bar_colors(&sites.content);
        assert!(!colors.is_empty());
        let stack = session.timeline().and_then(|timeline| timeline.stack.clone()).expect("the timeline is stacked");
        let mut compared = 0;
        for layer in &stack.layers {
            let is_unique = stack.layers.iter().filter(|other| other.name == layer.name).count() == 1;
            if let Some(color) = colors.get(&*layer.name).filter(|_| is_unique) {
                assert_eq!(*color, layer.color, "{by} {}", layer.name);
                compared += 1;
            }
        }
        assert!(compared > 0, "{by}");
        if by == "site" {
            continue;
        }
        let [flame, _] = run(&mut session, &["pane 0 flame"]);
        for (name, color) in bar_colors(&flame.content) {
            let name = name.trim_start_matches('\u{a0}');
            if let Some(expected) = colors.get(name).filter(|_| by == "category") {
                assert_eq!(color, *expected, "{by} {name}");
            }
        }
        let [peak, _] = run(&mut session, &[&format!("by peak {by}"), "pane 0 peak"]);
        for (name, color) in bar_colors(&peak.content) {
            if let Some(expected) = colors.get(&name) {
                assert_eq!(color, *expected, "{by} {name}");
            }
        }
    }
}

#[test]
fn holders_on_the_card_of_a_failure_can_be_selected() {
    let mut session = open("tour/oom_frag.vram");
    let [_, pane] = run(&mut session, &["pane 1 failures"]);
    let shown = text(&pane.content);
    for part in
        ["requested 61.4 MiB", "cap about 3 GiB (inferred)", "free in its pool and stream", "releasable", "stuck"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let mut commands = Vec::new();
    visit(&pane.content, &mut |element| {
        if element.tag == Tag::Li {
            visit(&element.children, &mut |link| commands.extend(link.command.clone()));
        }
    });
    let block =
        commands.iter().find(|command| command.starts_with("select-allocation")).expect("a block is in the way");
    run(&mut session, &[block]);
    assert_eq!(session.model.state().event(), 447);
    assert!(session.model.selected().is_some(), "it is live when the request fails");
    let site = commands.iter().rev().find(|command| command.starts_with("group site")).expect("a site holds memory");
    run(&mut session, &[site]);
    let selected = session.model.selected_group();
    assert_eq!(selected.map(|(by, _)| by), Some(GroupBy::Site));
    assert!(session.model.state().event() > 447, "the last failure is a later one");
    run(&mut session, &[site]);
    assert_eq!(session.model.selected_group(), selected, "the site stays selected");
}

#[test]
fn recordings_with_steps_are_compared_on_one_axis_of_steps() {
    let mut session = open("tour/gpt_varlen.vram");
    let other = load_fixture("tour/gpt_varlen_expandable.vram").recording;
    session.compare_with("gpt_varlen_expandable.vram", other).expect("both have events");
    let mut under_pointer = |command: &str| {
        run(&mut session, &[command]);
        let surface = session
            .panes
            .surface_of(vramscope_viewer::views::ViewId::about(Topic::Comparison))
            .expect("a pane shows it");
        let (kind, x, y) = (PointerKind::Move, 400.0, 150.0);
        let pointer = Pointer { surface, kind, x, y, shift: false, ctrl: false, alt: false, is_touch: false };
        let request = FrameRequest { actions: vec![Action::Pointer(pointer)], ..FrameRequest::default() };
        let frame = session.frame(&request, &PageFacts::default(), &mut SessionReport::default());
        let state: Value = serde_json::from_str(&frame.state).expect("an object");
        state["view"]["pointer_text"][0].as_str().unwrap_or_default().to_owned()
    };
    assert!(under_pointer("number compare 0").starts_with("step "));
    assert!(under_pointer("number compare 1").starts_with("event "));
    assert!(under_pointer("number compare 2").ends_with(" after the start"));
}
