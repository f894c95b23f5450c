//! The list of allocations, as the page and scripts get it.

use serde_json::Value;
use vramscope_insight::history::History;
use vramscope_trace::DeviceId;
use vramscope_viewer::ui::{Attribute, Tag};

use crate::testing::page::{attribute, elements, show, text};
use crate::testing::rows::{column, rows};
use crate::testing::samples::{Sample, states};
use crate::testing::{sample_recording, sample_session};

#[test]
fn live_allocations_add_up_to_the_active_bytes() {
    for sample in [Sample::Training, Sample::Trouble, Sample::TwoGpus] {
        let mut session = sample_session(sample);
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
    let mut session = sample_session(Sample::Training);
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
    let mut session = sample_session(Sample::Training);
    let found = rows(&mut session, "allocations", r#"{"from": 129, "to": 180, "sort": "-allocated_at"}"#);
    let recording = sample_recording(Sample::Training);
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
    let mut session = sample_session(Sample::Training);
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
    let mut session = sample_session(Sample::Training);
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
