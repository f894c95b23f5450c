//! `vramscope diagnose`: memory problems, where they come from and what helps.

use std::collections::BTreeMap;

use vramscope_insight::diagnosis::Finding;
use vramscope_insight::verdict::{DiagnosisReport, UnansweredRule, Verdict};
use vramscope_trace::{ByteSize, Count};

use crate::answer::Answer;
use crate::error::Result;
use crate::input::Input;
use crate::operation::Operation;
use crate::recorded::FindingsArguments;
use crate::reports::diagnose::problems;
use crate::terminal;

/// Text after the options in `vramscope diagnose --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope diagnose run.vram
  vramscope diagnose run.pickle --limit-bytes 40GiB --json

Exit status: 0 without a finding, 1 with one or more, 3 if the recording lacks what rules need";

/// Finds the memory problems of a recording and prints them. The answer is negative if there is
/// one.
pub(crate) fn run(arguments: &FindingsArguments) -> Result<Answer> {
    let operation = Operation::until_signal()?;
    let recording = Input::open(&arguments.file)?.into_recording()?;
    let diagnosed = problems(&arguments.file, &recording, arguments.limit_bytes, &operation)?.diagnosed;
    let verdict = Verdict::new(&recording, &diagnosed);
    if arguments.json {
        terminal::print_json(&DiagnosisReport::new(&recording, &diagnosed))?;
    } else {
        terminal::print(&text(&verdict, &diagnosed.findings))?;
    }
    Ok(verdict.status.into())
}

/// Returns the verdict, all findings and the unanswered questions as text for the terminal.
fn text(verdict: &Verdict, findings: &[Finding]) -> String {
    let mut parts = vec![verdict_text(verdict)];
    if let Some(held) = &verdict.held {
        parts.push(held.facts().iter().map(|fact| format!("  {fact}\n")).collect());
    }
    parts.extend(findings.iter().map(finding_text));
    parts.extend(unanswered_text(&verdict.unanswered));
    parts.join("\n")
}

/// Returns the verdict as text: what to say first, how certain it is, and what helps.
pub(crate) fn verdict_text(verdict: &Verdict) -> String {
    let mut text = format!("{}\n", verdict.summary);
    if let Some(remedy) = &verdict.remedy {
        text += &format!("{}\n", remedy.text);
        text.extend(remedy.lines.iter().map(|line| format!("    {line}\n")));
    }
    text
}

/// Returns the rules that cannot answer as text; `None` if each can.
fn unanswered_text(unanswered: &[UnansweredRule]) -> Option<String> {
    if unanswered.is_empty() {
        return None;
    }
    let mut subjects: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for one in unanswered {
        subjects.entry(one.needs()).or_default().push(one.rule.subject());
    }
    let line = |(needs, subjects): (String, Vec<&str>)| format!("Cannot tell: {}. {needs}\n", subjects.join(", "));
    Some(subjects.into_iter().map(line).collect())
}

/// Returns one finding as text: the problem, its bytes, its site, its evidence and the remedy.
fn finding_text(finding: &Finding) -> String {
    let events = match finding.events {
        (first, last) if first == last => format!("event {}", Count(first)),
        (first, last) => format!("events {} to {}", Count(first), Count(last)),
    };
    let mut text = format!(
        "{}: {} on {}, {events}: {}\n",
        finding.severity.name().to_uppercase(),
        finding.problem.id(),
        finding.device,
        ByteSize(finding.bytes),
    );
    if !finding.site.is_empty() {
        text += &format!("  at {}\n", finding.site);
    }
    text += &format!("  {}\n", finding.summary);
    if let Some(remedy) = &finding.remedy {
        text += &format!("  Remedy: {remedy}\n");
    }
    if let Some(check) = finding.check_text() {
        text += &format!("  {check}\n");
    }
    text
}
