//! The list of events, as the page and scripts get it.

use serde_json::Value;
use vramscope_trace::{EventType, Replay};
use vramscope_viewer::app::Session;
use vramscope_viewer::ui::{Attribute, Element, Tag};

use crate::testing::page::{attribute, elements, run, show};
use crate::testing::rows::{column, rows};
use crate::testing::samples::Sample;
use crate::testing::{sample_recording, sample_session};

#[test]
fn event_rows_equal_the_recording() {
    let mut session = sample_session(Sample::Trouble);
    let recording = sample_recording(Sample::Trouble);
    let found = rows(&mut session, "events", "");
    let mut replay = Replay::new();
    for (row, number) in found.iter().zip(1..) {
        assert_eq!(row["event"], number);
        let event = replay.event(&recording, number - 1).expect("a readable recording");
        let kind = event.map_or("not recorded", |event| event.kind.event_type().name());
        assert_eq!(row["kind"], kind);
        assert_eq!(row["time_ns"].as_u64(), event.map(|event| event.time_ns));
    }
    assert_eq!(found.len() as u64, recording.end_event());
    let failed = rows(&mut session, "events", r#"{"filter": "kind:oom"}"#);
    let is_oom = |row: &&Value| row["kind"] == EventType::OutOfMemory.name();
    assert_eq!(failed, found.iter().filter(is_oom).cloned().collect::<Vec<_>>());
    let range = rows(&mut session, "events", r#"{"from": 9, "to": 19}"#);
    assert_eq!(range, found[9..19]);
    let range = rows(&mut session, "events", r#"{"from": 9, "to": 90, "filter": "kind:oom"}"#);
    let is_inside = |row: &Value| (10..=90).contains(&row["event"].as_u64().expect("a number"));
    assert_eq!(range, failed.iter().filter(|row| is_inside(row)).cloned().collect::<Vec<_>>());
    let newest = rows(&mut session, "events", r#"{"sort": "event", "limit": 3}"#);
    assert_eq!(column(&newest, "event"), [0, 1, 2].map(|back| found.len() as u64 - back));
}

#[test]
fn list_of_events_keeps_the_moment_in_view() {
    let mut session = sample_session(Sample::Trouble);
    let content = show(&mut session, "events", &["seek 100"]);
    let list = elements(&content.content, Tag::Div).into_iter().find(|element| element.class == "virtual");
    let list = list.expect("a long list").clone();
    let request = attribute(&list, Attribute::ScrollTo).expect("a request to scroll").to_owned();
    assert!(request.starts_with("99 "), "{request}");
    let selected: Vec<String> = elements(&content.content, Tag::Tr)
        .into_iter()
        .filter(|row| attribute(row, Attribute::AriaSelected) == Some("true"))
        .map(Element::text_content)
        .collect();
    assert_eq!(selected.len(), 1);
    assert!(selected[0].starts_with("100 "), "{selected:?}");
    // The user scrolls away: the list stays where it is.
    let after = |session: &mut Session, commands: &[&str]| {
        session.resend();
        let (content, _) = run(session, commands);
        let content = content.expect("the pane has content");
        let list = elements(&content.content, Tag::Div).into_iter().find(|element| element.class == "virtual").cloned();
        attribute(&list.expect("a long list"), Attribute::ScrollTo).expect("a request").to_owned()
    };
    assert_eq!(after(&mut session, &["scroll 0 0 20", "seek 101"]), request);
    assert!(after(&mut session, &["reveal events"]).starts_with("100 "));
    assert!(after(&mut session, &["scroll 0 95 20", "step 1"]).starts_with("101 "));
}
