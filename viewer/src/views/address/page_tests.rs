//! The history of an address, as the page and scripts get it.

use serde_json::Value;
use vramscope_insight::history::History;
use vramscope_trace::DeviceId;
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::protocol::FrameRequest;
use vramscope_viewer::ui::{Attribute, Element, Tag};

use crate::testing::page::{attribute, elements, show};
use crate::testing::rows::{column, rows};
use crate::testing::samples::{Sample, bytes};
use crate::testing::{command, load, sample_recording, sample_session};

#[test]
fn address_history_has_every_use_in_order() {
    let mut session = sample_session(Sample::Trouble);
    let address = 0x7f00_0020_0000u64;
    let recording = sample_recording(Sample::Trouble);
    let mut history = History::new();
    history.extend(&recording, u64::MAX).expect("a readable recording");
    let expected: Vec<_> = history.lifetimes(DeviceId(0)).expect("it has events").history_of(address).collect();
    assert!(expected.len() > 40);
    let found = rows(&mut session, "address", &format!("{{\"filter\": \"{address:#x}\"}}"));
    let starts: Vec<u64> = expected.iter().map(|one| one.first_moment).collect();
    assert_eq!(column(&found, "allocated_at"), starts);
    assert_eq!(column(&found, "number"), (1..=starts.len() as u64).collect::<Vec<_>>());
    for (row, pair) in found[1..].iter().zip(expected.windows(2)) {
        let free_since = pair[0].active_until.expect("the next use follows its end");
        assert_eq!(row["free_before_events"], pair[1].first_moment - free_since);
        let free_ns = history.time_ns(pair[1].first_moment) - history.time_ns(free_since);
        assert_eq!(row["free_before_ns"], free_ns);
    }
    assert_eq!(found[0]["free_before_ns"], Value::Null);
    // The selected address, at a moment at which it is used.
    let at = expected[30].first_moment;
    let content =
        show(&mut session, "address", &[&format!("seek {at}"), &format!("select-allocation {address:#x} {at}")]);
    let current: Vec<String> = elements(&content.content, Tag::Tr)
        .into_iter()
        .filter(|row| attribute(row, Attribute::AriaCurrent).is_some())
        .map(Element::text_content)
        .collect();
    assert_eq!(current.len(), 1);
    assert!(current[0].starts_with("31 "), "{current:?}");
    let error = session.rows("address", r#"{"filter": "adam"}"#).expect_err("no address");
    assert!(error.contains("is not an address"), "{error}");
}

#[test]
fn address_history_scrolls_once_its_moment_is_read() {
    let mut session = Session::default();
    session.model.show("drawn.vram", load("drawn.vram", &bytes(Sample::Trouble))).expect("a readable recording");
    let frame = |session: &mut Session, commands: &[&str]| {
        let actions = commands.iter().map(command).collect();
        let request = FrameRequest { actions, ..FrameRequest::default() };
        let [left, _] = session.frame(&request, &PageFacts::default(), &mut SessionReport::default()).panes;
        left.map(|content| {
            let current = elements(&content.content, Tag::Tr)
                .into_iter()
                .any(|row| attribute(row, Attribute::AriaCurrent).is_some());
            let lists = elements(&content.content, Tag::Div);
            let request = lists.into_iter().find_map(|list| attribute(list, Attribute::ScrollTo).map(str::to_owned));
            (current, request)
        })
    };
    let uses = rows(&mut sample_session(Sample::Trouble), "address", r#"{"filter": "0x7f0000200000"}"#);
    let last = format!("seek {}", column(&uses, "allocated_at").last().expect("the address was used"));
    let shown = frame(&mut session, &["pane 0 address", "filter address 0x7f0000200000", &last]);
    assert_eq!(shown, Some((false, None)), "before the recording is read");
    while session.work(64).expect("a readable recording") {
        if let Some(shown) = frame(&mut session, &[]) {
            assert_eq!(shown, (false, None), "while the recording is read");
        }
    }
    let shown = (0..10).filter_map(|_| frame(&mut session, &[])).last().expect("the recording is read");
    assert!(shown.0 && shown.1.is_some(), "{shown:?}");
}
