//! The list of findings and failures beside the panes.

use serde_json::Value;
use vramscope_draw::Theme;
use vramscope_insight::pools::PartKind;
use vramscope_trace::{ByteSize, Category, Count, DeviceId};

use crate::command::Command;
use crate::jobs::{Findings, Jobs};
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

/// Returns the part of the device's memory that a finding is about; `None` if it is about blocks,
/// or about no part.
pub fn memory_part(finding: &Value) -> Option<PartKind> {
    let id = finding["id"].as_str().unwrap_or_default();
    let category = match id.split_once('.')? {
        ("fragmentation", "ignored_threshold") | ("waste", "rounding") => return None,
        ("fragmentation", _) => return Some(PartKind::Stuck),
        ("waste", _) => return Some(PartKind::Releasable),
        ("outside", _) => return Some(PartKind::Outside),
        ("dominant", "optimizer") => Category::OptimizerState,
        ("dominant", "gradients") => Category::Gradient,
        ("dominant", "activations") => Category::Activation,
        _ => return None,
    };
    Some(PartKind::Category(category))
}

/// Returns the index of the finding that the verdict is about; `None` if it is about none.
pub fn finding_of_verdict(findings: &Findings) -> Option<usize> {
    let verdict = &findings.verdict;
    let cause = verdict["cause"].as_str()?;
    let is_about = |finding: &Value| finding["device"] == verdict["device"] && finding["id"] == cause;
    let is_same = |finding: &&Value| is_about(finding) && finding["site"] == verdict["site"];
    let exact = findings.list.iter().position(|finding| is_same(&finding));
    exact.or_else(|| findings.list.iter().position(is_about))
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

/// Returns the section of the page with the list of findings; `None` if it is empty. `is_live`
/// tells whether the recording still grows; `title_of` returns the title of the view about a topic.
pub fn section(jobs: &Jobs, is_live: bool, theme: &Theme, title_of: fn(Topic) -> &'static str) -> Option<Element> {
    let Findings { list, saves, .. } = &jobs.findings;
    if list.is_empty() && !is_live {
        return None;
    }
    let mut section = Element::new(Tag::Details)
        .with_class("findings")
        .with(Attribute::Key, "findings")
        .with(Attribute::Open, "")
        .with_child(Element::text(Tag::Summary, format!("Findings ({})", Count(list.len() as u64))));
    let items = list.iter().enumerate().map(|(index, finding)| item(index, finding, theme, title_of));
    if !list.is_empty() {
        let items = Element::new(Tag::Ul).with(Attribute::AriaLabel, "Problems of this recording").with_children(items);
        section = section.with_child(items);
    }
    if is_live {
        let save = Element::button("Save when one appears", Command::SaveFindings)
            .with(Attribute::AriaPressed, saves.to_string())
            .with(Attribute::Title, "Save the recording as a file whenever a new problem appears");
        section = section.with_child(save);
    }
    Some(section)
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
    let title = format!("{}: {severity}", text("id"));
    let link = Element::button(text("summary"), Command::Finding(index))
        .with_class("link")
        .with(Attribute::Title, format!("{title}. Show it in {}", title_of(topic(finding))));
    let mut facts = vec![format!("{severity} severity")];
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
