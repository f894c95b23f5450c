//! The flame graph, as the page and scripts get it.

use std::collections::HashMap;

use serde_json::Value;
use vramscope_trace::{Recording, Replay};
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::protocol::{Action, FrameRequest, Pointer, PointerKind, Screen, Surface};

use crate::testing::page::{draw_panes, text};
use crate::testing::rows::{number, rows, sum};
use crate::testing::{command, open, view_pictures};

/// Returns the active bytes and the number of blocks at a moment.
fn active(recording: &Recording, event: u64, session: &Session) -> (u64, u64) {
    let mut replay = Replay::new();
    let state = replay.seek(recording, event).expect("a readable recording");
    let device = state.device(session.model.device());
    device.map_or((0, 0), |device| (device.counters().active, device.blocks().len() as u64))
}

/// Checks that levels, bytes and blocks of the rows make a tree.
fn check_tree(rows: &[Value]) {
    let mut callers: Vec<(u64, u64, u64)> = Vec::new();
    for row in rows {
        let level = number(row, "level") as usize;
        assert!(level <= callers.len(), "{row}");
        for (bytes, own, _) in callers.drain(level..).rev() {
            assert!(own <= bytes);
        }
        if let Some((caller, ..)) = callers.last() {
            assert!(number(row, "bytes") <= *caller, "{row}");
        }
        callers.push((number(row, "bytes"), number(row, "self_bytes"), number(row, "blocks")));
    }
}

#[test]
fn rows_add_up_to_the_active_bytes() {
    for name in ["mlp_train.pickle.zst", "alloc_stacks.pickle.gz", "ring.pickle.zst", "graphs.pickle.zst"] {
        let mut session = open(name);
        let end = session.model.recording().end_event();
        let mut random = fastrand::Rng::with_seed(9);
        for _ in 0..20 {
            let event = random.u64(session.model.recording().first_event()..=end);
            let (bytes, blocks) = active(session.model.recording(), event, &session);
            for mode in ["moment", "moment-unfolded"] {
                let rows = rows(&mut session, "flame", &format!(r#"{{"event": {event}, "mode": "{mode}"}}"#));
                let own: u64 = rows.iter().map(|row| number(row, "self_bytes")).sum();
                assert_eq!(
                    (number(&rows[0], "bytes"), number(&rows[0], "blocks"), own),
                    (bytes, blocks, bytes),
                    "{name}"
                );
                check_tree(&rows);
            }
        }
        let peak = session.model.peak_event(vramscope_viewer::model::PeakKind::Allocated);
        let at_peak = rows(&mut session, "flame", &format!(r#"{{"event": {peak}}}"#));
        assert_eq!(rows(&mut session, "flame", r#"{"mode": "peak"}"#), at_peak, "{name}");
    }
}

#[test]
fn range_has_the_bytes_that_were_allocated_in_it() {
    let mut session = open("mlp_train.pickle.zst");
    let rows = rows(&mut session, "flame", r#"{"mode": "range", "from": 100, "to": 900}"#);
    let mut replay = Replay::new();
    let recording = session.model.recording();
    let allocated: u64 = (100..900)
        .filter_map(|index| match replay.event(recording, index).expect("a readable recording")?.kind {
            vramscope_trace::EventKind::BlockAllocated { size, .. } => Some(size),
            _ => None,
        })
        .sum();
    assert_eq!(number(&rows[0], "bytes"), allocated);
}

/// Runs actions and returns the text of the left pane, which shows the flame graph.
fn shown(session: &mut Session, actions: Vec<Action>) -> String {
    session.resend();
    let mut report = SessionReport::default();
    let frame = session.frame(&FrameRequest { actions, ..FrameRequest::default() }, &PageFacts::default(), &mut report);
    assert_eq!(report, SessionReport::default());
    let [Some(pane), _] = frame.panes else { panic!("the pane has content") };
    assert_eq!(pane.view, "flame");
    let texts = pane.content.iter().map(|node| match node {
        vramscope_viewer::ui::Node::Element(element) => element.text_content(),
        vramscope_viewer::ui::Node::Text(text) => text.clone(),
    });
    texts.collect::<Vec<_>>().join("\n").replace('\u{a0}', " ")
}

/// Returns the actions of a click on a pixel of the left picture.
fn click(x: f64, y: f64) -> Vec<Action> {
    let pointer =
        |kind| Pointer { surface: Surface::Left, kind, x, y, shift: false, ctrl: false, alt: false, is_touch: false };
    [PointerKind::Down, PointerKind::Up].map(|kind| Action::Pointer(pointer(kind))).to_vec()
}

#[test]
fn click_zooms_into_a_call_and_out_again() {
    let mut session = open("mlp_train.pickle.zst");
    let screen = Screen { sizes: [(900, 160), (700, 300), (0, 0)], scale: 1.0, is_dark: true };
    let request = FrameRequest { screen: Some(screen), ..FrameRequest::default() };
    let _ = session.frame(&request, &PageFacts::default(), &mut SessionReport::default());
    let all = shown(&mut session, vec![command("pane 0 flame")]);
    assert!(all.contains("live at this moment") && !all.contains("show all"), "{all}");
    // The third row of boxes, below the root and the program's outermost frame.
    let zoomed = shown(&mut session, click(40.0, 4.0 + 2.5 * 18.0));
    assert!(zoomed.contains("show all") && zoomed.contains(" of "), "{zoomed}");
    assert!(zoomed.lines().count() <= all.lines().count());
    let root = shown(&mut session, click(40.0, 10.0));
    assert_eq!(root, all);
    let again = shown(&mut session, click(40.0, 4.0 + 2.5 * 18.0));
    assert_eq!(again, zoomed);
    let escaped = shown(&mut session, vec![command("deselect")]);
    assert_eq!(escaped, all);
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
    let [pane, _] = draw_panes(&mut session, &["pane 0 flame", "by flame category"]);
    assert!(text(&pane.legend).contains("a color for each category"), "{}", text(&pane.legend));
    assert!(session.link().fragment().contains("flame;by:category"));
    let zoom = rows(&mut session, "flame", r#"{"by": "category"}"#)[1]["path"].clone();
    let zoom = u64::from_str_radix(zoom.as_str().expect("a text").trim_start_matches("0x"), 16).expect("a number");
    let [pane, _] = draw_panes(&mut session, &[&format!("number flame {zoom}")]);
    assert!(text(&pane.content).contains("show all"));
    let [pane, _] = draw_panes(&mut session, &["by flame line"]);
    assert!(!text(&pane.content).contains("show all"), "another grouping shows everything");
}

#[test]
fn flame_graph_looks_as_before() {
    let mut session = open("tour/gpt_varlen.vram");
    let actions = [command("pane 0 flame"), command("peak-reserved")];
    view_pictures::check(&mut session, &actions, Surface::Left, "views/flame", "flame");
}
