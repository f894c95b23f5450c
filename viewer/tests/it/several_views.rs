//! What several views share: filters, order of columns, copied tables, colors of groups, and the
//! events that commands visit.

use std::collections::HashMap;
use std::path::PathBuf;

use vramscope_draw::Color;
use vramscope_insight::group::GroupBy;
use vramscope_viewer::app::Session;
use vramscope_viewer::ui::{Element, Node, Tag};

use crate::testing::page::{draw_panes, elements, run, show, shown, text, visit};
use crate::testing::rows::{column, rows, sum};
use crate::testing::samples::Sample;
use crate::testing::{DEVICE, open, open_bytes, sample_session};

#[test]
fn invalid_filter_says_where_and_why() {
    let mut session = sample_session(Sample::Training);
    for view in ["events", "list"] {
        let content = show(&mut session, view, &[&format!("filter {view} model size>big")]);
        let shown = text(&content.content);
        assert!(shown.contains("at character 7, the size is invalid"), "{shown}");
        let wrong = elements(&content.content, Tag::Span).into_iter().find(|element| element.class == "wrong");
        assert_eq!(wrong.map(Element::text_content).as_deref(), Some("size>big"));
        let error = session.rows(view, r#"{"filter": "size>big"}"#).expect_err("an invalid filter");
        assert!(error.contains("the size is invalid"), "{error}");
    }
}

#[test]
fn most_important_columns_come_first() {
    // A pane is narrower than these tables: what users look for must not be scrolled out of sight.
    let check = |session: &mut Session, view: &str, commands: &[&str], expected: &[&str]| {
        let content = show(session, view, commands);
        let titles: Vec<String> =
            elements(&content.content, Tag::Th).into_iter().map(Element::text_content).take(expected.len()).collect();
        assert_eq!(titles, expected, "{view}");
    };
    let mut session = sample_session(Sample::Trouble);
    check(&mut session, "address", &["filter address 0x7f0000200000"], &["use", "size", "site", "allocated at"]);
    let pools = ["pool", "stream", "segments", "reserved", "allocated", "free", "releasable"];
    check(&mut session, "segments", &[], &pools);
}

#[test]
fn event_commands_visit_the_events_of_the_selection() {
    let mut session = sample_session(Sample::Trouble);
    let address = 0x7f00_0020_0000u64;
    let found = rows(&mut session, "address", &format!("{{\"filter\": \"{address:#x}\"}}"));
    let (allocated_at, freed_at) = (column(&found, "allocated_at")[5], column(&found, "freed_at")[5]);
    let select = format!("select-allocation {address:#x} {allocated_at}");
    run(&mut session, &["first", &select, "event 1"]);
    assert_eq!(session.model.state().event(), allocated_at);
    run(&mut session, &["event 1"]);
    assert_eq!(session.model.state().event(), freed_at);
    run(&mut session, &["event 1"]);
    assert_eq!(session.model.state().event(), column(&found, "free_completed_at")[5]);
    let (_, report) = run(&mut session, &["event 1"]);
    assert_eq!(report.messages, ["the selected allocation has no later event"]);
    run(&mut session, &["event -1"]);
    assert_eq!(session.model.state().event(), freed_at);
    // Without a selection, the events that match the filter.
    let failed = rows(&mut session, "events", r#"{"filter": "kind:oom"}"#);
    run(&mut session, &["deselect", "filter events kind:oom", "first", "event 1", "event 1"]);
    assert_eq!(session.model.state().event(), column(&failed, "event")[1]);
    run(&mut session, &["event -1"]);
    assert_eq!(session.model.state().event(), column(&failed, "event")[0]);
    let (_, report) = run(&mut session, &["event -1"]);
    assert_eq!(report.messages, ["there is no earlier event that matches the filter"]);
}

#[test]
fn tables_are_copied_with_all_rows() {
    let mut session = sample_session(Sample::Training);
    show(&mut session, "list", &["mode list all"]);
    let (_, report) = run(&mut session, &["scroll 0 50 10", "copy-table list"]);
    let all = rows(&mut session, "allocations", r#"{"mode": "all"}"#);
    let copied = report.clipboard.expect("a copied table");
    assert_eq!(copied.lines().count(), all.len() + 1);
    let headings: Vec<&str> = copied.lines().next().expect("headings").split('\t').collect();
    let bytes = headings.iter().position(|name| *name == "bytes").expect("a column of sizes");
    let copied: Vec<u64> = copied
        .lines()
        .skip(1)
        .map(|line| line.split('\t').nth(bytes).and_then(|cell| cell.parse().ok()).expect("a size in bytes"))
        .collect();
    assert_eq!(copied, column(&all, "bytes"));
    let content = show(&mut session, "sites", &[]);
    let button = elements(&content.controls, Tag::Button).into_iter().find(|button| button.class == "copy");
    assert_eq!(button.and_then(|button| button.command.as_deref()), Some("copy-table sites"));
    // Without a name, the view of the pane that was used last.
    let (_, report) = run(&mut session, &["copy-table"]);
    assert!(report.clipboard.expect("a copied table").starts_with("name\tbytes\t"));
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
        let [sites, _] = draw_panes(&mut session, &commands);
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
        let [flame, _] = draw_panes(&mut session, &["pane 0 flame"]);
        for (name, color) in bar_colors(&flame.content) {
            let name = name.trim_start_matches('\u{a0}');
            if let Some(expected) = colors.get(name).filter(|_| by == "category") {
                assert_eq!(color, *expected, "{by} {name}");
            }
        }
        let [peak, _] = draw_panes(&mut session, &[&format!("by peak {by}"), "pane 0 peak"]);
        for (name, color) in bar_colors(&peak.content) {
            if let Some(expected) = colors.get(&name) {
                assert_eq!(color, *expected, "{by} {name}");
            }
        }
    }
}

/// Opens a file of the folder `shared` beside the checkout, or returns `None` if it is missing.
fn open_shared(name: &str) -> Option<Session> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared").join(name);
    let bytes = std::fs::read(path).ok();
    if bytes.is_none() {
        println!("SKIPPED: {name} is not in ../shared");
    }
    Some(open_bytes(name, &bytes?))
}

#[test]
fn shared_recordings_have_the_labelled_answers() {
    for (name, leaks) in [("leak_outputs", true), ("healthy_train", false), ("oom_activations", false)] {
        let Some(mut session) = open_shared(&format!("labelled/{name}.pickle.zst")) else { continue };
        let text = shown(&mut session, "leaks", &[]);
        let verdict = text.lines().find(|line| line.contains("leak") || line.contains("Growth")).unwrap_or_default();
        println!("{name}: {verdict}");
        assert_eq!(verdict.starts_with("A leak"), leaks, "{text}");
        assert_eq!(verdict.contains("labelled.py:14 leak_outputs"), leaks, "{text}");
    }
    for name in ["gpt_varlen", "resnet50_train"] {
        let Some(mut session) = open_shared(&format!("snapshots/{name}.pickle.zst")) else { continue };
        let peak = session.model.recording().series(DEVICE).expect("it has events").peak_allocated();
        assert_eq!(sum(&rows(&mut session, "peak", r#"{"by": "line"}"#), "bytes"), peak.bytes);
        assert!(shown(&mut session, "leaks", &[]).contains("No leak found"));
    }
}
