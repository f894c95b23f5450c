//! The list of events, the list of allocations, the address history, and copying tables.

use crate::testing::{command, load};
use serde_json::Value;
use vramscope_insight::history::History;
use vramscope_trace::{DeviceId, EventType, Recording, Replay};
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::protocol::{Action, FrameRequest, PaneContent};
use vramscope_viewer::ui::{Attribute, Element, Node, Tag};

use crate::testing::samples::{Sample, bytes, states};

/// Opens a sample in a session, with one pane, and reads it completely.
fn open(sample: Sample) -> Session {
    let mut session = Session::default();
    session.model.show("drawn.vram", load("drawn.vram", &bytes(sample))).expect("a readable recording");
    while session.work(1 << 20).expect("a readable recording") {}
    session
}

/// Runs commands, and draws until nothing changes; returns the last content of the left pane and
/// what was reported.
fn run(session: &mut Session, commands: &[&str]) -> (Option<PaneContent>, SessionReport) {
    let mut report = SessionReport::default();
    let mut content = None;
    let mut actions: Vec<Action> = commands.iter().map(command).collect();
    for _ in 0..100 {
        let request = FrameRequest { actions: std::mem::take(&mut actions), ..FrameRequest::default() };
        let [left, right] = session.frame(&request, &PageFacts::default(), &mut report).panes;
        let has_changed = left.is_some() || right.is_some();
        content = left.or(content);
        let has_more = session.work(1 << 20).expect("a readable recording");
        if !has_changed && !has_more && !session.model.has_changed() {
            break;
        }
    }
    (content, report)
}

/// Shows a view in the left pane after `commands`, and returns the pane's content.
fn show(session: &mut Session, view: &str, commands: &[&str]) -> PaneContent {
    session.resend();
    let pane = format!("pane 0 {view}");
    let commands: Vec<&str> = commands.iter().copied().chain([pane.as_str()]).collect();
    let (content, report) = run(session, &commands);
    assert_eq!(report.messages, [""; 0]);
    content.expect("the pane has content")
}

/// Returns the elements of a type below nodes, in order.
fn elements(nodes: &[Node], tag: Tag) -> Vec<&Element> {
    let mut found = Vec::new();
    for node in nodes {
        if let Node::Element(element) = node {
            found.extend(Some(element).filter(|element| element.tag == tag));
            found.extend(elements(&element.children, tag));
        }
    }
    found
}

/// Returns the text of all nodes.
fn text(nodes: &[Node]) -> String {
    let root = Element { children: nodes.to_vec(), ..Element::new(Tag::Div) };
    root.text_content().replace('\u{a0}', " ")
}

/// Returns an attribute of an element.
fn attribute(element: &Element, name: Attribute) -> Option<&str> {
    element.attributes.iter().find(|(other, _)| *other == name).map(|(_, value)| value.as_str())
}

/// Returns the rows of a view for scripts.
fn rows(session: &mut Session, view: &str, options: &str) -> Vec<Value> {
    let json = session.rows(view, options).expect("the view has rows");
    serde_json::from_str(&json).expect("rows are valid JSON")
}

/// Returns the numbers in a column; 0 where nothing is known.
fn column(rows: &[Value], name: &str) -> Vec<u64> {
    rows.iter().map(|row| row[name].as_u64().unwrap_or(0)).collect()
}

fn recording(sample: Sample) -> Recording {
    let mut recording = Recording::new();
    recording.push(&bytes(sample)).expect("a valid recording");
    recording
}

#[test]
fn event_rows_equal_the_recording() {
    let mut session = open(Sample::Trouble);
    let recording = recording(Sample::Trouble);
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
    let mut session = open(Sample::Trouble);
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

#[test]
fn invalid_filter_says_where_and_why() {
    let mut session = open(Sample::Training);
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
fn live_allocations_add_up_to_the_active_bytes() {
    for sample in [Sample::Training, Sample::Trouble, Sample::TwoGpus] {
        let mut session = open(sample);
        for (event, state) in states(sample).iter().enumerate().step_by(7) {
            let active = state.device(DeviceId(0)).map_or(0, |device| device.counters().active);
            let found = rows(&mut session, "allocations", &format!("{{\"event\": {event}}}"));
            assert_eq!(column(&found, "bytes").iter().sum::<u64>(), active, "event {event}");
            assert!(column(&found, "bytes").is_sorted_by(|one, next| one >= next));
        }
    }
}

#[test]
fn list_shows_totals_and_can_be_sorted_by_every_key() {
    let mut session = open(Sample::Training);
    let content = show(&mut session, "list", &["seek 200", "deselect"]);
    let device = states(Sample::Training)[200].device(DeviceId(0)).cloned().expect("it has events");
    let shown = text(&content.legend);
    let size = vramscope_trace::ByteSize(device.counters().active).to_string();
    assert!(
        shown.starts_with(&format!("{} allocations live at this moment, {size}", device.blocks().len())),
        "{shown}"
    );
    let all = rows(&mut session, "allocations", r#"{"mode": "all"}"#);
    for name in ["bytes", "requested_bytes", "address", "allocated_at", "freed_at", "lifetime_ns", "age_ns", "site"] {
        let sorted = rows(&mut session, "allocations", &format!("{{\"mode\": \"all\", \"sort\": \"-{name}\"}}"));
        assert_eq!(sorted.len(), all.len());
        let key = |row: &Value| match &row[name] {
            Value::String(text) if name == "address" => (u64::from_str_radix(&text[2..], 16).ok(), String::new()),
            Value::String(text) => (None, text.clone()),
            // What is never freed is last; what has no age is first.
            Value::Null => (Some(if name == "age_ns" { 0 } else { u64::MAX }), String::new()),
            number => (number.as_u64(), String::new()),
        };
        assert!(sorted.iter().map(key).is_sorted(), "{name}");
    }
    let error = session.rows("allocations", r#"{"sort": "color"}"#).expect_err("no such column");
    assert!(error.contains("cannot be sorted by \"color\""), "{error}");
}

#[test]
fn allocations_made_in_a_range_were_made_there() {
    let mut session = open(Sample::Training);
    let found = rows(&mut session, "allocations", r#"{"from": 129, "to": 180, "sort": "-allocated_at"}"#);
    let recording = recording(Sample::Training);
    let mut history = History::new();
    history.extend(&recording, u64::MAX).expect("a readable recording");
    let lifetimes = history.lifetimes(DeviceId(0)).expect("it has events");
    let expected: Vec<u64> =
        lifetimes.iter().map(|one| one.first_moment).filter(|moment| (130..=180).contains(moment)).collect();
    assert_eq!(column(&found, "allocated_at"), expected);
    let sites = rows(&mut session, "sites", r#"{"from": 129, "to": 180, "mode": "range", "by": "site"}"#);
    assert_eq!(column(&sites, "bytes").iter().sum::<u64>(), column(&found, "bytes").iter().sum::<u64>());
}

#[test]
fn blocks_older_than_some_steps_are_found() {
    let mut session = open(Sample::Training);
    let end = session.model.recording().end_event();
    session.model.seek(end).expect("a loaded moment");
    let old = rows(&mut session, "allocations", r#"{"filter": "age>3steps"}"#);
    let all = rows(&mut session, "allocations", "");
    assert!(all.len() > 100, "the parameters and the optimizer's state are live");
    // Five steps began since; the first one at the moment at which the last of them was allocated.
    assert_eq!(old.len(), all.len());
    assert_eq!(rows(&mut session, "allocations", r#"{"filter": "age>5steps"}"#).len(), 0);
}

#[test]
fn clicked_allocation_is_selected() {
    let mut session = open(Sample::Training);
    let content = show(&mut session, "list", &["seek 200"]);
    let commands: Vec<&str> =
        elements(&content.content, Tag::Tr).into_iter().filter_map(|row| row.command.as_deref()).collect();
    let command = commands[3].to_owned();
    let content = show(&mut session, "list", &[&command]);
    let selected: Vec<&str> = elements(&content.content, Tag::Tr)
        .into_iter()
        .filter(|row| attribute(row, Attribute::AriaSelected) == Some("true"))
        .filter_map(|row| row.command.as_deref())
        .collect();
    assert_eq!(selected, [command.as_str()]);
    let (address, since) = command["select-allocation ".len()..].split_once(' ').expect("two arguments");
    assert_eq!(format!("{:#x}", session.model.selection().expect("a selection")), address);
    assert_eq!(session.model.selected_since().expect("an allocation").to_string(), since);
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
    let mut session = open(Sample::Trouble);
    check(&mut session, "address", &["filter address 0x7f0000200000"], &["use", "size", "site", "allocated at"]);
    let pools = ["pool", "stream", "segments", "reserved", "allocated", "free", "releasable"];
    check(&mut session, "segments", &[], &pools);
}

#[test]
fn address_history_has_every_use_in_order() {
    let mut session = open(Sample::Trouble);
    let address = 0x7f00_0020_0000u64;
    let recording = recording(Sample::Trouble);
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
    let uses = rows(&mut open(Sample::Trouble), "address", r#"{"filter": "0x7f0000200000"}"#);
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

#[test]
fn event_commands_visit_the_events_of_the_selection() {
    let mut session = open(Sample::Trouble);
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
    let mut session = open(Sample::Training);
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

#[test]
fn pools_have_a_column_of_pending_bytes_only_if_some_are_pending() {
    let mut session = open(Sample::Training);
    let end = session.model.recording().end_event();
    let mut seen = [false; 2];
    for event in (0..=end).step_by(3) {
        let content = show(&mut session, "segments", &[&format!("seek {event}")]);
        let titles = elements(&content.content, Tag::Th);
        let is_shown = titles.into_iter().any(|title| title.text_content() == "pending free");
        let rows = rows(&mut session, "segments", "{}");
        let pending = |row: &Value| row["pending_bytes"].as_u64().expect("scripts always get the bytes");
        assert_eq!(is_shown, rows.iter().map(pending).sum::<u64>() > 0, "event {event}");
        seen[usize::from(is_shown)] = true;
    }
    assert_eq!(seen, [true; 2]);
}
