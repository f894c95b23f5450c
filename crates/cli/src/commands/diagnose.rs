//! `vramscope diagnose`: memory problems, where they come from and what helps.

use vramscope_insight::diagnosis::{DiagnosisReport, Finding};
use vramscope_trace::{ByteSize, Count, Recording};

use crate::error::Result;
use crate::input::Input;
use crate::operation::Operation;
use crate::recorded::FindingsArguments;
use crate::reports::diagnose::findings;
use crate::terminal;

/// Text after the options in `vramscope diagnose --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope diagnose run.vram
  vramscope diagnose run.pickle --limit-bytes 40GiB --json

Exit status: 0 without a finding, 1 with one or more";

/// Finds the memory problems of a recording and prints them. Returns false if there is one.
pub(crate) fn run(arguments: &FindingsArguments) -> Result<bool> {
    let operation = Operation::until_signal()?;
    let recording = Input::open(&arguments.file)?.into_recording()?;
    let found = findings(&arguments.file, &recording, arguments.limit_bytes, &operation)?;
    let is_healthy = found.is_empty();
    if arguments.json {
        terminal::print_json(&DiagnosisReport::from(found))?;
    } else {
        terminal::print(&text(&recording, &found))?;
    }
    Ok(is_healthy)
}

/// Returns all findings as text for the terminal.
fn text(recording: &Recording, findings: &[Finding]) -> String {
    if findings.is_empty() {
        return format!("No problem found in {}.\n", Count(recording.events()).of("event", "events"));
    }
    findings.iter().map(finding_text).collect::<Vec<_>>().join("\n")
}

/// Returns one finding as text: the problem, its bytes, its site, its evidence and the remedy.
fn finding_text(finding: &Finding) -> String {
    let events = match finding.events {
        (first, last) if first == last => format!("event {}", Count(first)),
        (first, last) => format!("events {} to {}", Count(first), Count(last)),
    };
    let mut text = format!(
        "{}: {} on {}, {events}: {}\n  at {}\n  {}\n",
        finding.severity.name().to_uppercase(),
        finding.problem.id(),
        finding.device,
        ByteSize(finding.bytes),
        finding.site,
        finding.summary
    );
    if let Some(remedy) = &finding.remedy {
        text += &format!("  Remedy: {remedy}\n");
    }
    if let Some(check) = finding.check_text() {
        text += &format!("  {check}\n");
    }
    text
}
