//! The view that compares two recordings, devices or moments, as the page and scripts get it.

use std::collections::HashMap;

use serde_json::Value;
use vramscope_insight::difference::MatchingNames;
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::history::History;
use vramscope_insight::matching::MatchedSites;
use vramscope_insight::sites::live_groups;
use vramscope_trace::{DeviceId, DeviceState, Recording, Replay};
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::protocol::{
    Action, FrameRequest, PageUpdate, PaneContent, Pointer, PointerKind, Screen, Surface,
};
use vramscope_viewer::ui::Node;
use vramscope_viewer::view::Topic;
use vramscope_viewer::views::ViewId;

use crate::testing::page::draw_panes;
use crate::testing::{command, load_fixture, open, view_pictures};

/// Runs commands and draws until nothing changes; returns the last frame that had a content of the
/// view, with that content.
fn run(session: &mut Session, commands: &[&str]) -> (PageUpdate, PaneContent) {
    session.show("compare").expect("the view exists");
    session.resend();
    let actions = commands.iter().map(command).collect();
    let screen = Screen { sizes: [(900, 120), (900, 500), (900, 500)], scale: 1.0, is_dark: false };
    let mut request = FrameRequest { actions, screen: Some(screen), ..FrameRequest::default() };
    let mut last = None;
    for _ in 0..100 {
        let mut report = SessionReport::default();
        let frame = session.frame(&request, &PageFacts::default(), &mut report);
        assert_eq!(report, SessionReport::default());
        request = FrameRequest::default();
        let content = frame.panes.iter().flatten().find(|content| content.view == "compare").cloned();
        last = content.map(|content| (frame, content)).or(last);
        session.work(0).expect("a readable recording");
        if !session.model.has_changed() {
            break;
        }
    }
    last.expect("a pane shows the view")
}

/// Returns the text of nodes, without no-break spaces.
fn text(nodes: &[Node]) -> String {
    let mut text = String::new();
    for node in nodes {
        match node {
            Node::Text(piece) => text.push_str(piece),
            Node::Element(element) => text.push_str(&element.text_content()),
        }
        text.push('\n');
    }
    text.replace('\u{a0}', " ")
}

/// Returns the rows that scripts get.
fn rows(session: &mut Session, options: &str) -> Vec<Value> {
    let rows = session.rows("compare", options).expect("the view has rows");
    serde_json::from_str(&rows).expect("a list of objects")
}

/// Returns the memory of a device at a moment.
fn device_at(recording: &Recording, device: DeviceId, event: u64) -> DeviceState {
    let mut replay = Replay::new();
    let state = replay.seek(recording, event).expect("the recording is complete");
    state.device(device).cloned().unwrap_or_default()
}

/// Returns the live bytes and blocks of a memory state by name of their group.
fn by_name(recording: &Recording, (id, device): (DeviceId, &DeviceState), by: GroupBy) -> HashMap<String, (u64, u64)> {
    let history = History::of(recording).expect("the recording is complete");
    let mut grouping = Grouping::of(by, recording).with_categories(&history.categories(id));
    let mut sums: HashMap<String, (u64, u64)> = HashMap::new();
    for group in live_groups(device, recording.definitions(), &mut grouping) {
        let sum = sums.entry(group.name.to_string()).or_default();
        *sum = (sum.0 + group.bytes, sum.1 + group.blocks);
    }
    sums
}

/// Checks that rows are those of two memory states and add up to the difference of their active
/// bytes.
#[track_caller]
fn check_rows(
    rows: &[Value],
    by: GroupBy,
    a: (&Recording, DeviceId, &DeviceState),
    b: (&Recording, DeviceId, &DeviceState),
) {
    let names = MatchingNames::new(
        &MatchedSites::by_stacks(a.0.definitions(), b.0.definitions()),
        (a.0.definitions(), &mut Grouping::of(by, a.0)),
        (b.0.definitions(), &mut Grouping::of(by, b.0)),
    );
    let mut expected = [HashMap::new(), by_name(b.0, (b.1, b.2), by)];
    for (name, (bytes, blocks)) in by_name(a.0, (a.1, a.2), by) {
        let sum: &mut (u64, u64) = expected[0].entry(names.name_in_b(&name.into()).to_string()).or_default();
        *sum = (sum.0 + bytes, sum.1 + blocks);
    }
    let mut sum = 0;
    for row in rows {
        let name = row["b_name"].as_str().or(row["name"].as_str()).expect("a name");
        let mut of = |index: usize| expected[index].remove(name).unwrap_or_default();
        let (a, b) = (of(0), of(1));
        assert_eq!((row["a_bytes"].as_u64(), row["a_blocks"].as_u64()), (Some(a.0), Some(a.1)), "{by:?} {name}");
        assert_eq!((row["b_bytes"].as_u64(), row["b_blocks"].as_u64()), (Some(b.0), Some(b.1)), "{by:?} {name}");
        let change = row["change_bytes"].as_i64().expect("a number");
        assert_eq!(change, b.0 as i64 - a.0 as i64, "{by:?} {name}");
        let kind = match (a.1, b.1) {
            (0, _) => "new",
            (_, 0) => "gone",
            _ if change > 0 => "grown",
            _ if change < 0 => "shrunk",
            _ => "same",
        };
        assert_eq!(row["kind"], kind, "{by:?} {name}");
        sum += change;
    }
    assert!(expected.iter().all(HashMap::is_empty), "{by:?}: {expected:?}");
    assert_eq!(sum, b.2.counters().active as i64 - a.2.counters().active as i64, "{by:?}");
}

#[test]
fn nothing_to_compare_says_what_to_do() {
    let mut session = open("mlp_train.pickle.zst");
    let (_, content) = run(&mut session, &[]);
    assert!(!content.has_picture);
    let shown = text(&content.content);
    assert!(shown.contains("Open a second recording…") && shown.contains("Pin this moment"), "{shown}");
    assert!(session.rows("compare", "").is_err());
}

#[test]
fn pinned_moment_is_compared_with_the_moment_on_the_screen() {
    let mut session = open("mlp_train.pickle.zst");
    run(&mut session, &["seek 200", "pin-moment", "seek 900"]);
    let recording = load_fixture("mlp_train.pickle.zst").recording;
    let device = session.model.device();
    for by in GroupBy::ALL {
        for moment in [900, 350, 200] {
            let rows = rows(&mut session, &format!(r#"{{"by": "{}", "event": {moment}}}"#, by.name()));
            let [a, b] = [200, moment].map(|event| device_at(&recording, device, event));
            check_rows(&rows, by, (&recording, device, &a), (&recording, device, &b));
            assert_eq!(moment == 200, rows.iter().all(|row| row["kind"] == "same"));
        }
    }
    let (_, content) = run(&mut session, &["seek 200"]);
    let shown = text(&content.content);
    assert!(shown.contains("A and B hold the same: "), "{shown}");
    assert!(text(&content.legend).contains("A: pinned moment event 200 "), "{}", text(&content.legend));
    let table = text(&run(&mut session, &["seek 900"]).1.content);
    assert!(table.contains("1 shrunk (−7.71 MiB), 3 the same"), "{table}");
    assert!(table.contains("B holds 7.71 MiB less than A (88.3 MiB instead of 96.0 MiB): "), "{table}");
    assert!(table.contains("128 MiB in 7 segments; A is 37.5% fragmented, B 49.7%."), "{table}");
}

#[test]
fn ends_of_the_selected_range_are_compared() {
    let mut session = open("mlp_train.pickle.zst");
    session.model.select_range(Some((300, 700)));
    let rows = rows(&mut session, r#"{"by": "line"}"#);
    let recording = load_fixture("mlp_train.pickle.zst").recording;
    let device = session.model.device();
    let [a, b] = [300, 700].map(|event| device_at(&recording, device, event));
    check_rows(&rows, GroupBy::Line, (&recording, device, &a), (&recording, device, &b));
}

#[test]
fn second_recording_is_compared_at_every_choice_of_moments() {
    let (first, second) =
        (load_fixture("mlp_train.pickle.zst").recording, load_fixture("frag_a_expandable.pickle.zst").recording);
    let mut session = open("mlp_train.pickle.zst");
    let device = session.model.device();
    let file = load_fixture("frag_a_expandable.pickle.zst");
    session.compare_with("frag_a_expandable.pickle.zst", file.recording).expect("both have events");
    let moment = session.model.state().event();
    let (peak_a, peak_b) = [&first, &second]
        .map(|recording| recording.series(device).expect("the device has events").peak_allocated().event)
        .into();
    let from_start_ns = session.model.time_ns() - first.start_ns();
    let same_time = second.event_at_time(second.start_ns() + from_start_ns);
    for (mode, a, b) in
        [("peaks", peak_a, peak_b), ("ends", first.end_event(), second.end_event()), ("moment", moment, same_time)]
    {
        for by in [GroupBy::Line, GroupBy::Site, GroupBy::Size] {
            let rows = rows(&mut session, &format!(r#"{{"mode": "{mode}", "by": "{}"}}"#, by.name()));
            let (a, b) = (device_at(&first, device, a), device_at(&second, device, b));
            check_rows(&rows, by, (&first, device, &a), (&second, device, &b));
        }
    }
    let (frame, content) = run(&mut session, &[]);
    let shown = text(&content.content);
    let reserved = second.series(device).expect("the device has events").peak_reserved().bytes;
    assert!(shown.contains(&vramscope_trace::ByteSize(reserved).to_string()), "{shown}");
    assert!(shown.contains("expandable_segments:True") && shown.contains("— expandable"), "{shown}");
    let legend = text(&content.legend);
    assert!(legend.contains("A: mlp_train.pickle.zst at its peak"), "{legend}");
    assert!(legend.contains("B: frag_a_expandable.pickle.zst at its peak"), "{legend}");
    assert!(legend.contains(&format!("event {} of B", vramscope_trace::Count(peak_b))), "{legend}");
    assert!(content.has_picture);
    assert!(frame.pictures.iter().any(|(surface, ..)| *surface != Surface::Timeline), "{:?}", frame.pictures);
    let (_, content) = run(&mut session, &["compare-close"]);
    assert!(!content.has_picture, "nothing is left to compare with");
}

#[test]
fn same_steps_are_compared_at_their_peaks() {
    let recording = load_fixture("mlp_train.pickle.zst").recording;
    let mut session = open("mlp_train.pickle.zst");
    session.compare_with("again", load_fixture("mlp_train.pickle.zst").recording).expect("both have events");
    let rows = rows(&mut session, r#"{"mode": "step"}"#);
    assert!(!rows.is_empty() && rows.iter().all(|row| row["kind"] == "same"), "{rows:?}");
    let (_, content) = run(&mut session, &["mode compare step", "seek 500"]);
    assert!(text(&content.legend).contains("at the peak of step "), "{}", text(&content.legend));
    drop(recording);
    let mut session = open("mlp_train.pickle.zst");
    session.compare_with("ring", load_fixture("ring_small.pickle.gz").recording).expect("both have events");
    let error = session.rows("compare", r#"{"mode": "step"}"#).expect_err("the other has no such step");
    assert!(error.starts_with("B has no step"), "{error}");
}

#[test]
fn devices_of_one_recording_are_compared() {
    let recording = load_fixture("two_devices.pickle.gz").recording;
    let mut session = open("two_devices.pickle.gz");
    let devices: Vec<DeviceId> = recording.devices().collect();
    let shown = session.model.device();
    let other = devices.iter().copied().find(|device| *device != shown).expect("there are two");
    for (mode, at) in [("ends", recording.end_event()), ("moment", session.model.state().event())] {
        let rows = rows(&mut session, &format!(r#"{{"mode": "{mode}", "by": "line"}}"#));
        let [a, b] = [shown, other].map(|device| device_at(&recording, device, at));
        check_rows(&rows, GroupBy::Line, (&recording, shown, &a), (&recording, other, &b));
    }
    let (_, content) = run(&mut session, &[]);
    assert!(text(&content.legend).contains(&format!("B: {}", recording.info().device_label(other))));
}

#[test]
fn table_is_sorted_and_limited() {
    let mut session = open("mlp_train.pickle.zst");
    run(&mut session, &["seek 200", "pin-moment", "seek 900"]);
    let by_size = rows(&mut session, r#"{"sort": "b_bytes"}"#);
    assert!(by_size.is_sorted_by(|one, next| one["b_bytes"].as_u64() >= next["b_bytes"].as_u64()));
    let by_name = rows(&mut session, r#"{"sort": "-name", "limit": 3}"#);
    assert!(by_name.len() == 3 && by_name.is_sorted_by_key(|row| row["name"].as_str().map(str::to_owned)));
    let (_, content) = run(&mut session, &["sort compare change_bytes"]);
    assert!(text(&content.content).contains("change ↓"));
}

#[test]
fn recordings_that_cannot_be_compared_are_refused() {
    let mut session = Session::default();
    assert!(session.compare_with("x", load_fixture("ring_small.pickle.gz").recording).is_err());
    let mut session = open("ring_small.pickle.gz");
    assert!(session.compare_with("x", Recording::new()).is_err());
}

#[test]
fn recordings_with_steps_are_compared_on_one_axis_of_steps() {
    let mut session = open("tour/gpt_varlen.vram");
    let other = load_fixture("tour/gpt_varlen_expandable.vram").recording;
    session.compare_with("gpt_varlen_expandable.vram", other).expect("both have events");
    let mut under_pointer = |command: &str| {
        draw_panes(&mut session, &[command]);
        let surface = session.panes.surface_of(ViewId::about(Topic::Comparison)).expect("a pane shows it");
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

#[test]
fn two_compared_recordings_look_as_before() {
    let mut session = open("tour/gpt_varlen.vram");
    let second = load_fixture("tour/gpt_varlen_expandable.vram").recording;
    session.compare_with("gpt_varlen_expandable.vram", second).expect("both have events");
    view_pictures::check(&mut session, &[command("pane 0 compare")], Surface::Left, "views/compare", "recordings");
}

#[test]
fn pinned_moment_looks_as_before() {
    let mut session = open("mlp_train.pickle.zst");
    let actions = ["pane 0 compare", "seek 200", "pin-moment", "seek 900"].map(command);
    view_pictures::check(&mut session, &actions, Surface::Left, "views/compare", "pinned_moment");
}
