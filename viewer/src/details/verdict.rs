//! The bar at the top of the page: what to say first about the recording, what helps, and the
//! figures of the moment.

use serde_json::Value;
use vramscope_trace::{ByteSize, Count, DeviceId, Percent};

use super::findings::finding_of_verdict;
use crate::command::{Command, PageCommand};
use crate::jobs::{Findings, Job, Jobs};
use crate::open::SaveFormat;
use crate::timeline::StepAt;
use crate::ui::{Attribute, Element, Node, Tag};

/// What a quick look at the memory of a device must tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MomentFigures {
    /// The device.
    pub device: DeviceId,
    /// Bytes of the device; `None` if they are not recorded.
    pub device_bytes: Option<u64>,
    /// Bytes of the device that are not free, as far as they are recorded: at least the reserved
    /// bytes.
    pub used_bytes: u64,
    /// Bytes of the pool's segments.
    pub reserved_bytes: u64,
    /// Bytes of the pool that are in no block.
    pub unused_bytes: u64,
    /// Whether the pool's bytes are those after the last complete step.
    pub is_after_step: bool,
    /// Size in bytes of the largest free block; `None` if the segments are unknown.
    pub largest_free_bytes: Option<u64>,
    /// Why the history does not begin with the program's first allocation; `None` if it does.
    pub incomplete_history: Option<&'static str>,
    /// Number of events that contradict the recorded memory state, so that figures may be wrong.
    pub inconsistencies: u64,
    /// Number of failed requests; `None` if the recording has no events.
    pub failures: Option<u64>,
    /// The step at the moment, and the number of the last step; `None` without steps.
    pub step: Option<(StepAt, u64)>,
}

/// Returns the content of the bar; nothing without a recording. `ended` says that the watched
/// program is gone.
pub fn elements(jobs: &Jobs, figures: &MomentFigures, ended: Option<&str>) -> Vec<Node> {
    let findings = &jobs.findings;
    let cause = findings.verdict["cause"].as_str().unwrap_or_default();
    let kind = match cause {
        _ if findings.error.is_some() => "quiet",
        "" | "healthy" | "no_history" | "unknown" => "quiet",
        cause if cause.starts_with("oom.") => "failure",
        _ => "found",
    };
    let said = Element::new(Tag::Div).with_class("said").with_children(sentences(jobs));
    let actions = Element::new(Tag::Div).with_class("actions").with_children(actions(findings));
    let list = Element::new(Tag::Ul)
        .with_class("moment-figures")
        .with(Attribute::AriaLabel, "Figures of the device's memory")
        .with_children(moment_figures(findings, figures));
    let class = format!("verdict-line {kind}");
    let ended = ended.map(|text| {
        let save = Element::button("Save", Command::Page(PageCommand::Save(SaveFormat::Recording)));
        Element::new(Tag::P).with_class("ended").with(Attribute::Role, "status").with_text(text).with_child(save)
    });
    let line = Element::new(Tag::Div).with_class(class).with_children([said, actions]);
    ended.into_iter().chain([line, list]).map(Node::from).collect()
}

/// Returns what to say first, and what helps.
fn sentences(jobs: &Jobs) -> Vec<Element> {
    let Findings { verdict, analyzed_events, error, .. } = &jobs.findings;
    let text = |name: &str| verdict[name].as_str().filter(|text| !text.is_empty());
    if let Some(error) = error {
        return vec![Element::text(Tag::P, error.as_str()).with_class("summary")];
    }
    let Some(summary) = text("summary") else {
        let status = match (jobs.running == Some(Job::Findings), analyzed_events) {
            (true, _) => "Looking for problems…",
            (false, None) => "Not examined for problems yet.",
            (false, Some(_)) => "The analysis returned no verdict.",
        };
        return vec![Element::text(Tag::P, status).with_class("summary").with(Attribute::Role, "status")];
    };
    let summary = Element::text(Tag::P, summary).with_class("summary");
    // The lines that follow a colon are behind the button that copies them.
    let remedy = text("remedy").map(|remedy| match remedy.strip_suffix(':') {
        Some(start) => format!("What helps: {start}, with the lines to copy."),
        None => format!("What helps: {remedy}"),
    });
    std::iter::once(summary).chain(remedy.map(|remedy| Element::text(Tag::P, remedy).with_class("note"))).collect()
}

/// Returns the buttons beside the verdict: copy the remedy, show the evidence, other findings.
fn actions(findings: &Findings) -> Vec<Element> {
    let Findings { list, verdict, analyzed_events, error, .. } = findings;
    let mut actions = Vec::new();
    if error.is_some() || (analyzed_events.is_none() && verdict.is_null()) {
        actions.push(Element::button("Look for problems", Command::FindProblems));
        return actions;
    }
    let lines: Vec<&str> = verdict["remedy_lines"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if let Some(first) = lines.first() {
        let name = if first.starts_with("export ") { "Copy the setting" } else { "Copy the code" };
        let copy = Element::button(name, Command::Page(PageCommand::Copy(lines.join("\n"))))
            .with(Attribute::Key, "remedy")
            .with(Attribute::Title, lines.join("\n"))
            .with_class("copy first");
        actions.push(copy);
    }
    let shown = finding_of_verdict(findings);
    let evidence = shown.map(Command::Finding).or(verdict["event"].as_u64().map(Command::seek));
    actions.extend(evidence.map(|command| {
        let title = "Show the moment, and the memory that the sentence is about";
        Element::button("Where to look", command).with(Attribute::Title, title)
    }));
    let others: Vec<(usize, &Value)> = list.iter().enumerate().filter(|(index, _)| Some(*index) != shown).collect();
    if !others.is_empty() {
        let item = |(index, finding): (usize, &Value)| {
            Element::button(finding["summary"].as_str().unwrap_or_default(), Command::Finding(index))
        };
        let count = Count(others.len() as u64).of("other finding", "other findings");
        let menu = Element::new(Tag::Details)
            .with_class("export others")
            .with(Attribute::Key, "others")
            .with_child(Element::text(Tag::Summary, format!("{count} ▾")))
            .with_child(Element::new(Tag::Div).with_children(others.into_iter().map(item)));
        actions.push(menu);
    }
    actions
}

/// Returns the figures: how full, how much is unused, growth, failures, and the step.
fn moment_figures(findings: &Findings, figures: &MomentFigures) -> Vec<Element> {
    let item = |name: &str, value: String, class: &'static str| {
        Element::new(Tag::Li)
            .with_class(class)
            .with_child(Element::text(Tag::Span, name).with_class("name"))
            .with_child(Element::text(Tag::Span, value).with_class("value"))
    };
    let full = match figures.device_bytes {
        Some(bytes) => {
            format!(
                "{} of {} ({})",
                ByteSize(figures.used_bytes),
                ByteSize(bytes),
                Percent::of(figures.used_bytes, bytes)
            )
        }
        None => format!("{} reserved; the device's size is not recorded", ByteSize(figures.reserved_bytes)),
    };
    let unused = format!(
        "{} of {} reserved ({})",
        ByteSize(figures.unused_bytes),
        ByteSize(figures.reserved_bytes),
        Percent::of(figures.unused_bytes, figures.reserved_bytes)
    );
    let segments_unknown = || "unknown, as are the segments".to_owned();
    let largest_free = figures.largest_free_bytes.map_or_else(segments_unknown, |bytes| ByteSize(bytes).to_string());
    let id = |finding: &Value| finding["id"].as_str().unwrap_or_default().to_owned();
    let is_of_device = |finding: &&Value| finding["device"] == u64::from(figures.device.0);
    let grows = findings.list.iter().filter(is_of_device).any(|finding| id(finding).starts_with("growth."));
    let growth = match findings.analyzed_events {
        _ if grows => ("yes", "found"),
        None => ("not examined yet", ""),
        Some(_) if findings.unanswered.iter().any(|rule| rule == "growth") => ("cannot be told", ""),
        Some(_) => ("no", ""),
    };
    let failed = match figures.failures {
        None => ("not recorded".to_owned(), ""),
        Some(0) => ("no".to_owned(), ""),
        Some(count) => (Count(count).of("request", "requests"), "failure"),
    };
    let mut items = vec![
        item("device full: ", full, ""),
        item(if figures.is_after_step { "unused after the last step: " } else { "unused now: " }, unused, ""),
        item("largest free block: ", largest_free, ""),
        item("growing: ", growth.0.to_owned(), growth.1),
        item("failed: ", failed.0, failed.1),
    ];
    if let Some(text) = figures.incomplete_history {
        items.push(item("history: ", text.to_owned(), ""));
    }
    if figures.inconsistencies > 0 {
        let text = format!(
            "{} contradict the memory state: figures may be wrong",
            Count(figures.inconsistencies).of("event", "events")
        );
        items.push(item("recording: ", text, "found"));
    }
    items.extend(figures.step.map(|(number, steps)| {
        let text = match number {
            StepAt::In(number) => format!("{} of {}", Count(number), Count(steps)),
            StepAt::After(number) => format!("after {} of {}", Count(number), Count(steps)),
            StepAt::BeforeFirst => format!("before the first of {}", Count(steps)),
        };
        item("step: ", text, "")
    }));
    items
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ui::plain_text;

    #[test]
    fn bar_says_verdict_remedy_and_moment_figures() {
        let mut jobs = Jobs::default();
        let figures = MomentFigures {
            device: DeviceId(0),
            device_bytes: Some(8 << 30),
            used_bytes: 2 << 30,
            reserved_bytes: 1 << 30,
            unused_bytes: 256 << 20,
            is_after_step: false,
            largest_free_bytes: Some(128 << 20),
            incomplete_history: None,
            inconsistencies: 0,
            failures: Some(2),
            step: Some((StepAt::In(3), 9)),
        };
        let all = |nodes: &[Node]| Element { children: nodes.to_vec(), ..Element::new(Tag::Div) }.text_content();
        let text = all(&elements(&jobs, &figures, None));
        assert!(text.contains("Not examined") && text.contains("Look for problems"), "{text}");
        let finding =
            |id: &str| json!({ "id": id, "device": 0, "events": [1, 2], "bytes": 3, "site": "a", "summary": id });
        let verdict = json!({
            "summary": "It waits.", "cause": "waste.reserved", "device": 0, "remedy": "Set it.", "event": 2,
            "remedy_lines": ["export PYTORCH_CUDA_ALLOC_CONF=x"],
        });
        let list = [finding("dominant.activations"), finding("waste.reserved"), finding("growth.cache")];
        let unknown = json!([{ "rule": "outside.growth", "needs": "" }]);
        jobs.findings.update(9, Ok(json!({ "verdict": verdict, "findings": list, "unknown": unknown })), false);
        let nodes = elements(&jobs, &figures, None);
        let text = all(&nodes);
        let expected = "It waits. What helps: Set it. Copy the setting Where to look 2 other findings ▾ \
                        dominant.activations \
                        growth.cache device full: 2 GiB of 8 GiB (25.0%) unused now: 256 MiB of 1 GiB reserved (25.0%) \
                        largest free block: 128 MiB growing: yes failed: 2 requests step: 3 of 9";
        assert_eq!(text.replace('\u{a0}', " "), expected);
        assert!(format!("{nodes:?}").contains("finding 1"), "the evidence of the verdict");
        let none = MomentFigures { device_bytes: None, failures: None, step: None, ..figures };
        let text = plain_text(&elements(&Jobs::default(), &none, Some("It ended.")));
        assert!(
            text.starts_with("It ended.") && text.contains("not recorded") && text.contains("the device's size"),
            "{text}"
        );
    }
}
