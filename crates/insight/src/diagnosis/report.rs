//! The findings as JSON, with the fields of `diagnose --json`.

use serde::Serialize;

use super::finding::Finding;

/// One finding in the output of `diagnose --json`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct FindingReport {
    /// The family and the kind of the problem, such as `growth.outputs`.
    pub id: String,
    /// `critical`, `high`, `medium` or `low`.
    pub severity: &'static str,
    /// The device's number.
    pub device: u16,
    /// The numbers of the first and of the last event of the evidence.
    pub events: (u64, u64),
    /// The bytes that the problem costs.
    pub bytes: u64,
    /// The call of the program at fault, or sizes and stream where stacks are missing.
    pub site: String,
    /// One sentence that describes the problem.
    pub summary: String,
    /// One sentence that describes the remedy.
    pub remedy: Option<String>,
    /// Of growth: the steps after which the pool has all memory that it can get.
    pub steps_left: Option<u64>,
    /// Whether the remedy was simulated.
    pub checked: bool,
    /// Bytes by which the reserved peak of the simulated run is below the recorded one; of a
    /// failure, below that of the unchanged program with enough memory.
    pub saves_bytes: Option<u64>,
    /// The reserved peak of the simulated run.
    pub peak_reserved_bytes: Option<u64>,
    /// The simulation's result, as one sentence.
    pub check: Option<String>,
}

impl From<&Finding> for FindingReport {
    fn from(finding: &Finding) -> Self {
        let check = finding.check_text();
        Self {
            id: finding.problem.id(),
            severity: finding.severity.name(),
            device: finding.device.0,
            events: finding.events,
            bytes: finding.bytes,
            site: finding.site.clone(),
            summary: finding.summary.clone(),
            remedy: finding.remedy.clone(),
            steps_left: finding.steps_left,
            checked: finding.checked.is_some(),
            saves_bytes: finding.checked.map(|checked| checked.saves_bytes),
            peak_reserved_bytes: finding.checked.map(|checked| checked.peak_reserved_bytes),
            check,
        }
    }
}
