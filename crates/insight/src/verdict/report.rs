//! Verdicts as JSON, with the fields of `diagnose --json` and `autopsy --json`.

use serde::Serialize;

use vramscope_trace::Recording;

use super::answer::UnansweredRule;
use super::decision::Verdict;
use super::held::HeldMemory;
use crate::diagnosis::{Diagnosed, ExaminedDevice, FindingReport};
use crate::pools::ReservedBreakdown;

/// The output of `diagnose --json`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct DiagnosisReport {
    /// `found`, `nothing` or `cannot_tell`.
    pub status: &'static str,
    /// What to say first.
    pub verdict: VerdictReport,
    /// The rules that cannot answer, and what each lacks.
    pub unknown: Vec<UnansweredReport>,
    /// What the memory state shows, as sentences without their periods; empty with a history.
    pub state: Vec<String>,
    /// The reserved bytes of each device at the end of its last complete step.
    pub last_steps: Vec<LastStepReport>,
    /// All problems, the most serious first.
    pub findings: Vec<FindingReport>,
}

/// What the reserved bytes of a device consist of at the end of its last complete step.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct LastStepReport {
    /// The device's number.
    pub device: u16,
    /// Bytes of all segments.
    pub reserved_bytes: u64,
    /// Free bytes that share a segment, or a page of an expandable segment, with a live block.
    pub stuck_bytes: u64,
    /// Free bytes in whole free segments and pages.
    pub releasable_bytes: u64,
}

impl LastStepReport {
    /// Creates the report of a device; `None` if it has no complete step.
    fn new(device: &ExaminedDevice) -> Option<Self> {
        let ReservedBreakdown { reserved_bytes, stuck_bytes, releasable_bytes, .. } = device.at_last_step?;
        Some(Self { device: device.device.0, reserved_bytes, stuck_bytes, releasable_bytes })
    }
}

impl DiagnosisReport {
    /// Creates the report of a diagnosis whose remedies have been checked.
    #[must_use]
    pub fn new(recording: &Recording, diagnosed: &Diagnosed) -> Self {
        let verdict = Verdict::new(recording, diagnosed);
        Self {
            status: verdict.status.id(),
            unknown: verdict.unanswered.iter().map(UnansweredReport::from).collect(),
            state: verdict.held.iter().flat_map(HeldMemory::facts).collect(),
            last_steps: diagnosed.devices.iter().filter_map(LastStepReport::new).collect(),
            findings: diagnosed.findings.iter().map(FindingReport::from).collect(),
            verdict: VerdictReport::from(&verdict),
        }
    }
}

/// The verdict in the output of `diagnose --json`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct VerdictReport {
    /// One sentence, or two.
    pub summary: String,
    /// The id of a problem, `healthy`, `no_history` or `unknown`.
    pub cause: String,
    /// What helps, as one sentence; null if nothing is known.
    pub remedy: Option<String>,
    /// The remedy as lines to copy: a setting, or code.
    pub remedy_lines: Vec<String>,
    /// Bytes of the reserved peak that the remedy saves in a simulation; null if it was not
    /// simulated, and of a program that failed because it grows.
    pub saves_bytes: Option<u64>,
    /// Whether the remedy was simulated.
    pub checked: bool,
    /// `sure`, `likely` or `possible`.
    pub confidence: &'static str,
    /// The device's number; null in a recording without devices.
    pub device: Option<u16>,
    /// The number of the event that shows the problem best.
    pub event: Option<u64>,
    /// The call of the program at fault; null if it is unknown.
    pub site: Option<String>,
    /// The bytes that the problem costs.
    pub bytes: Option<u64>,
}

/// A rule without an answer in the output of `diagnose --json`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct UnansweredReport {
    /// The rule's name: a family of findings, or the id of one.
    pub rule: &'static str,
    /// What the recording lacks, and how to record it.
    pub needs: String,
}

impl From<&Verdict> for VerdictReport {
    fn from(verdict: &Verdict) -> Self {
        Self {
            summary: verdict.summary.clone(),
            cause: verdict.cause.id(),
            remedy: verdict.remedy.as_ref().map(|remedy| remedy.text.clone()),
            remedy_lines: verdict.remedy.iter().flat_map(|remedy| remedy.lines.clone()).collect(),
            saves_bytes: verdict.remedy.as_ref().and_then(|remedy| remedy.saves_bytes),
            checked: verdict.remedy.as_ref().is_some_and(|remedy| remedy.is_checked),
            confidence: verdict.confidence.id(),
            device: verdict.device.map(|device| device.0),
            event: verdict.event,
            site: verdict.site.clone(),
            bytes: verdict.bytes,
        }
    }
}

impl From<&UnansweredRule> for UnansweredReport {
    fn from(one: &UnansweredRule) -> Self {
        Self { rule: one.rule.id(), needs: one.needs() }
    }
}
