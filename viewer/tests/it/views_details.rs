//! The details panel, and commands that say why they do not apply.

use vramscope_insight::placement::recorded_settings;
use vramscope_insight::pools::device_usage;
use vramscope_trace::{EventKind, Replay};
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::protocol::{Action, FrameRequest};
use vramscope_viewer::ui::{Element, Node, Tag, plain_text};
use vramscope_viewer::units::unbroken_size;

use crate::testing::page::{elements, fact};
use crate::testing::{command, load_fixture, open};

/// Runs commands and draws; returns the details panel's content and the messages.
fn run(session: &mut Session, commands: &[&str]) -> (Vec<Node>, Vec<String>) {
    session.resend();
    let mut report = SessionReport::default();
    let mut details = None;
    let mut actions: Vec<Action> = commands.iter().map(command).collect();
    for _ in 0..20 {
        let request = FrameRequest { actions: std::mem::take(&mut actions), ..FrameRequest::default() };
        details = session.frame(&request, &PageFacts::default(), &mut report).details.or(details);
        while session.work(1 << 20).expect("a readable recording") {}
    }
    (details.unwrap_or_default(), report.messages)
}

/// Returns the texts of elements of a type, in order.
fn texts(nodes: &[Node], tag: Tag) -> Vec<String> {
    let mut found = Vec::new();
    for node in nodes {
        if let Node::Element(element) = node {
            found.extend(Some(element).filter(|element| element.tag == tag).map(Element::text_content));
            found.extend(texts(&element.children, tag));
        }
    }
    found
}

/// Returns the headings of the objects that the details describe.
fn subjects(details: &[Node]) -> Vec<String> {
    let headings = elements(details, Tag::H2).into_iter().filter(|heading| heading.class == "subject");
    headings.map(Element::text_content).collect()
}

#[test]
fn free_memory_of_the_device_is_releasable_or_stuck() {
    for name in ["tour/oom_frag.vram", "tour/gpt_varlen_expandable.vram"] {
        let mut session = open(name);
        let end = session.model.recording().end_event();
        for moment in [end / 3, end / 2, end] {
            let (details, _) = run(&mut session, &[&format!("seek {moment}")]);
            let usage =
                device_usage(session.model.device_state(), &recorded_settings(session.model.recording().info()));
            let size = |bytes| unbroken_size(bytes).replace('\u{a0}', " ");
            let expected = format!("{} in free segments", size(usage.releasable_bytes));
            assert_eq!(fact(&details, "releasable"), Some(expected), "{name} at {moment}");
            let expected = format!("{} beside live blocks", size(usage.stuck_bytes));
            assert_eq!(fact(&details, "stuck"), Some(expected), "{name} at {moment}");
        }
    }
}

#[test]
fn event_of_the_moment_is_described_beside_the_list_of_events() {
    let mut session = open("tour/mlp_train.vram");
    let recording = session.model.recording();
    let (mut replay, definitions) = (Replay::new(), recording.definitions());
    let mut free = |has_stack: bool| {
        (0..recording.end_event()).find(|&index| match replay.event(recording, index).expect("readable") {
            Some(event) => match event.kind {
                EventKind::FreeRequested { site, .. } => {
                    definitions.stack_definition(definitions.site(site).stack).is_some() == has_stack
                }
                _ => false,
            },
            None => false,
        })
    };
    let (with_stack, without) = (free(true).expect("one with a stack") + 1, free(false).expect("one without") + 1);
    let (details, _) = run(&mut session, &["pane 0 device", "pane 1 sites", &format!("seek {with_stack}")]);
    assert_eq!(subjects(&details), ["Device"]);
    let (details, _) = run(&mut session, &["pane 1 events"]);
    assert_eq!(subjects(&details), ["Event of this moment", "Device"]);
    assert_eq!(texts(&details, Tag::H3)[..2], ["Freed at copy", "Allocated at copy"]);
    assert!(fact(&details, "event").is_some_and(|text| text.ends_with("free requested")), "{details:?}");
    assert!(fact(&details, "allocated by").is_some());
    let (details, _) = run(&mut session, &[&format!("seek {without}")]);
    assert_eq!(texts(&details, Tag::H3)[0], "Freed at");
    let text = plain_text(&details);
    assert!(text.contains("Stack not recorded: "), "{text}");
    assert!(!text.contains("no line recorded"), "{text}");
    // The list says where the freed memory was allocated.
    let json = session.rows("events", "{\"filter\": \"kind:free\", \"limit\": 100000}").expect("the view has rows");
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).expect("valid JSON");
    assert!(rows.len() > 100 && rows.iter().all(|row| row["allocation_site"].is_string()));
}

#[test]
fn selected_allocation_says_where_it_was_freed_and_leads_to_where_it_is_live() {
    let mut session = open("tour/mlp_train.vram");
    let json = session.rows("allocations", "{\"mode\": \"all\", \"limit\": 100000}").expect("the view has rows");
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).expect("valid JSON");
    let freed = rows.iter().find(|row| row["freed_at"].is_u64()).expect("a freed allocation");
    let (address, since) = (freed["address"].as_str().expect("an address"), &freed["allocated_at"]);
    let select = format!("select-allocation {address} {since}");
    let (details, _) = run(&mut session, &["pane 1 sites", &format!("seek {since}"), &select]);
    assert!(texts(&details, Tag::H3).iter().any(|heading| heading.starts_with("Freed at")), "{details:?}");
    let (details, _) = run(&mut session, &["last"]);
    assert_eq!(subjects(&details), ["Selected allocation (not live at this moment) (Esc to deselect)"]);
    assert!(texts(&details, Tag::H3).iter().any(|heading| heading.starts_with("Freed at")), "{details:?}");
    let buttons = texts(&details, Tag::Button);
    assert!(buttons.iter().any(|text| text == "Go to where it is live"), "{buttons:?}");
    // Its range of time is selected by a command.
    let (_, messages) = run(&mut session, &["range-selection"]);
    assert_eq!(messages, [""; 0]);
    let range = (since.as_u64().expect("a number"), freed["freed_at"].as_u64().expect("a number"));
    assert_eq!(session.model.selected_range(), Some(range));
}

#[test]
fn history_over_its_limit_ends_with_a_message() {
    let mut session = Session::default();
    session.set_history_limit(20_000);
    let name = "tour/gpt_varlen.vram";
    session.model.show(name, load_fixture(name)).expect("a readable recording");
    let mut steps = 0;
    while session.work(1_000).expect("a readable recording") {
        steps += 1;
        assert!(steps < 1_000, "reading ends");
    }
    let (_, messages) = run(&mut session, &["last"]);
    assert!(messages[0].starts_with("Views of the whole recording end after "), "{messages:?}");
    assert!(session.reading_progress().is_some_and(|read| (0.01..0.99).contains(&read)));
    let end = session.model.recording().end_event();
    assert_eq!(session.model.state().event(), end, "every moment can be shown");
}

#[test]
fn commands_that_do_not_apply_say_why() {
    let mut session = open("tour/mlp_train.vram");
    run(&mut session, &["pane 0 sites", "pane 1 about", "first"]);
    for (command, expected) in [
        ("step -1", "this is the first moment of the recording"),
        ("range-clear", "no range of time is selected"),
        ("fit-picture", "no pane shows a picture that can be zoomed: press 1"),
        ("layout", "no pane shows a view with another layout"),
        ("reveal", "this view has no list that follows the moment"),
        ("select 1", "this device has no memory at this moment"),
    ] {
        assert_eq!(run(&mut session, &[command]).1, [expected], "{command}");
    }
    let (_, messages) = run(&mut session, &["range-selection"]);
    assert!(messages[0].starts_with("select an allocation, or go to a moment within a span"), "{messages:?}");
    let (_, messages) = run(&mut session, &["split", "swap"]);
    assert_eq!(messages, ["there is only one pane: press | for two"]);
}
