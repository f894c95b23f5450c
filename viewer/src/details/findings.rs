//! The list of findings and failures beside the panes.

use serde_json::Value;
use vramscope_draw::Theme;
use vramscope_trace::{ByteSize, Count, DeviceId};

use crate::command::Command;
use crate::jobs::{Findings, Job, Jobs};
use crate::ui::{Attribute, Element, Tag};
use crate::view::Topic;

/// Returns the device of a finding, and the moment of its last event; `None` if it lacks one.
pub fn moment(finding: &Value) -> Option<(u16, u64)> {
    let device = u16::try_from(finding["device"].as_u64()?).ok()?;
    Some((device, finding["events"][1].as_u64()?))
}

/// Returns the question whose view shows what a finding is about, by the first part of the
/// finding's id.
pub fn topic(finding: &Value) -> Topic {
    let id = finding["id"].as_str().unwrap_or_default();
    match id.split('.').next().unwrap_or_default() {
        "oom" => Topic::Failures,
        "growth" => Topic::Growth,
        "fragmentation" | "waste" => Topic::Fragmentation,
        "peak" if id == "peak.temporary" => Topic::Temporaries,
        "peak" | "dominant" => Topic::Peak,
        _ => Topic::Pools,
    }
}

/// Returns the finding about the request of a device that failed at event number `event`; `None` if
/// the recording was not analyzed.
pub fn of_failure(jobs: &Jobs, device: DeviceId, event: u64) -> Option<&Value> {
    let is_about = |finding: &&Value| {
        let events = [0, 1].map(|index| finding["events"][index].as_u64().unwrap_or(0));
        let is_failure = finding["id"].as_str().is_some_and(|id| id.starts_with("oom."));
        is_failure && finding["device"] == device.0 && (events[0]..=events[1]).contains(&event)
    };
    jobs.findings.list.iter().find(is_about)
}

/// Returns the section of the page with the list of findings. `is_live` tells whether the recording
/// still grows; `title_of` returns the title of the view about a topic.
pub fn section(jobs: &Jobs, is_live: bool, theme: &Theme, title_of: fn(Topic) -> &'static str) -> Element {
    let Findings { list, analyzed_events, error, saves, verdict, .. } = &jobs.findings;
    let title =
        if list.is_empty() { "Findings".to_owned() } else { format!("Findings ({})", Count(list.len() as u64)) };
    let mut section = Element::new(Tag::Details)
        .with_class("findings")
        .with(Attribute::Key, "findings")
        .with(Attribute::Open, "")
        .with_child(Element::text(Tag::Summary, title));
    section = section.with_children(verdict_elements(verdict, !list.is_empty()));
    let items = list.iter().enumerate().map(|(index, finding)| item(index, finding, theme, title_of));
    if !list.is_empty() {
        let items = Element::new(Tag::Ul).with(Attribute::AriaLabel, "Problems of this recording").with_children(items);
        section = section.with_child(items);
    }
    let note = |text: &str| Element::text(Tag::P, text).with_class("nothing").with(Attribute::Role, "status");
    let is_running = jobs.running == Some(Job::Findings);
    section = match (error, analyzed_events) {
        (Some(error), _) => section
            .with_child(Element::text(Tag::P, error.as_str()).with_class("filter-error"))
            .with_child(Element::button("Look for problems", Command::FindProblems)),
        (None, None) if is_running => section.with_child(note("Looking for problems…")),
        (None, None) => section.with_child(Element::button("Look for problems", Command::FindProblems)),
        _ => section,
    };
    if is_live {
        let save = Element::button("Save when one appears", Command::SaveFindings)
            .with(Attribute::AriaPressed, saves.to_string())
            .with(Attribute::Title, "Save the recording as a file whenever a new problem appears");
        section = section.with_child(save);
    }
    section
}

/// Creates the paragraphs of the verdict: what to say first and, unless the list of findings says
/// it, what helps, with lines to copy.
fn verdict_elements(verdict: &Value, has_findings: bool) -> Vec<Element> {
    let text = |name: &str| verdict[name].as_str().filter(|text| !text.is_empty());
    let summary = text("summary").map(|summary| Element::text(Tag::P, summary));
    let remedy = text("remedy").filter(|_| !has_findings);
    let lines = verdict["remedy_lines"].as_array().filter(|_| !has_findings);
    let lines = lines.into_iter().flatten().filter_map(Value::as_str).map(|line| Element::text(Tag::Code, line));
    let remedy = remedy.map(|remedy| Element::text(Tag::P, remedy).with_class("note"));
    summary.into_iter().chain(remedy).chain(lines).collect()
}

/// Creates the list item of finding number `index`; a click shows the finding's view and moment.
fn item(index: usize, finding: &Value, theme: &Theme, title_of: fn(Topic) -> &'static str) -> Element {
    let text = |name: &str| finding[name].as_str().unwrap_or_default();
    let severity = text("severity");
    let color = match severity {
        "critical" => theme.alarm,
        "high" => theme.free,
        _ => theme.dim,
    };
    let title = format!("{severity}: {}", text("id"));
    let link = Element::button(text("summary"), Command::Finding(index))
        .with_class("link")
        .with(Attribute::Title, format!("{title}. Show it in {}", title_of(topic(finding))));
    let mut facts = vec![title];
    facts.extend(finding["bytes"].as_u64().filter(|&bytes| bytes > 0).map(|bytes| ByteSize(bytes).to_string()));
    let steps = finding["steps_left"].as_u64();
    facts.extend(steps.map(|steps| format!("full in {}", Count(steps).of("step", "steps"))));
    facts.extend(moment(finding).map(|(_, event)| format!("event {}", Count(event))));
    facts.extend(Some(text("site").to_owned()).filter(|site| !site.is_empty()));
    let item = Element::new(Tag::Li)
        .with(Attribute::Key, index.to_string())
        .with_color(color)
        .with_child(link)
        .with_child(Element::text(Tag::P, facts.join(" · ")).with_class("note"));
    let Some(remedy) = finding["remedy"].as_str() else { return item };
    let mut remedy = format!("What helps: {remedy}");
    if let Some(check) = finding["check"].as_str() {
        remedy = format!("{remedy} {check}");
    }
    item.with_child(Element::text(Tag::P, remedy).with_class("note"))
}
