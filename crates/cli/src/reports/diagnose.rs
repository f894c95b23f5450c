//! What `diagnose` finds in a recording, and its report as JSON.

use std::path::Path;

use serde::Serialize;
use vramscope_insight::autopsy::RemedySearch;
use vramscope_insight::diagnosis::{Diagnosed, Diagnosis, Finding, reproduces_peak};
use vramscope_trace::{ByteSize, Recording};

use crate::error::{CommandError, Result};
use crate::history::read_history;
use crate::operation::Operation;
use crate::recorded;
use crate::reports::autopsy::{self, MAX_CHECKED};
use crate::simulation::{self, LimitArguments};

/// Number of events that are visited at a time.
const EVENTS_PER_STEP: u64 = 100_000;

/// The output of `diagnose --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct Report {
    pub(crate) findings: Vec<FindingReport>,
}

/// One finding in the output of `diagnose --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct FindingReport {
    pub(crate) id: String,
    pub(crate) severity: &'static str,
    pub(crate) device: u16,
    /// The numbers of the first and of the last event of the evidence.
    pub(crate) events: (u64, u64),
    pub(crate) bytes: u64,
    pub(crate) site: String,
    pub(crate) summary: String,
    pub(crate) remedy: Option<String>,
    /// Of growth: the steps after which the pool has all memory that it can get.
    pub(crate) steps_left: Option<u64>,
    /// Whether the remedy was simulated.
    pub(crate) checked: bool,
    /// Bytes by which the reserved peak of the simulated run is below the recorded one.
    pub(crate) saves_bytes: Option<u64>,
    /// The reserved peak of the simulated run.
    pub(crate) peak_reserved_bytes: Option<u64>,
}

/// Finds the memory problems of a recording, and simulates their remedies. `limit_bytes` is the
/// limit that the recorded process ran under; `path` is for error messages.
pub(crate) fn findings(
    path: &Path,
    recording: &Recording,
    limit_bytes: Option<ByteSize>,
    operation: &Operation,
) -> Result<Vec<Finding>> {
    let settings = recorded::settings(path, recording, limit_bytes)?;
    let history = read_history(path, recording, operation)?;
    let error = |error| CommandError::file(path, error);
    let mut diagnosis = Diagnosis::new(recording, &history, &settings).map_err(error)?;
    let bar = operation.stage("Looking for problems".to_owned());
    bar.set_length(recording.events());
    while !diagnosis.step(recording, EVENTS_PER_STEP).map_err(error)? {
        operation.check()?;
        bar.inc(EVENTS_PER_STEP);
    }
    let Diagnosed { mut findings, autopsy } = diagnosis.finish(recording, &history).map_err(error)?;
    bar.finish_and_clear();
    if findings.iter().any(|one| one.can_be_checked() || one.failure_in(&autopsy).is_some()) {
        let limits = LimitArguments { capacity: None, limit_bytes };
        let workloads = simulation::workloads(path, recording, &limits, operation)?;
        for device in workloads.iter().filter(|device| !device.stops_at_gap) {
            let (workload, capacity_bytes) = (&device.workload, device.capacity_bytes);
            let of_device = findings.iter_mut().filter(|one| one.device == workload.device());
            let failures = of_device.filter_map(|one| one.failure_in(&autopsy).map(|oom| (one, oom)));
            for (one, oom) in failures.take(MAX_CHECKED) {
                let search = RemedySearch::new(recording, &history, &autopsy, oom, workload, capacity_bytes);
                one.set_remedies(&autopsy::check(search.map_err(error)?, workload, operation)?);
            }
            let is_of_device = |one: &&mut Finding| one.device == workload.device() && one.can_be_checked();
            let mut to_check = findings.iter_mut().filter(is_of_device).peekable();
            if to_check.peek().is_none() || !reproduces_peak(workload, &settings, capacity_bytes) {
                continue;
            }
            for one in to_check {
                operation.check()?;
                one.check(workload, capacity_bytes);
            }
        }
    }
    Ok(findings)
}

impl Report {
    /// Creates the report of some findings.
    pub(crate) fn new(findings: Vec<Finding>) -> Self {
        Self { findings: findings.into_iter().map(FindingReport::from).collect() }
    }
}

impl From<Finding> for FindingReport {
    fn from(finding: Finding) -> Self {
        Self {
            id: finding.problem.id(),
            severity: finding.severity.name(),
            device: finding.device.0,
            events: finding.events,
            bytes: finding.bytes,
            site: finding.site,
            summary: finding.summary,
            remedy: finding.remedy,
            steps_left: finding.steps_left,
            checked: finding.checked.is_some(),
            saves_bytes: finding.checked.map(|checked| checked.saves_bytes),
            peak_reserved_bytes: finding.checked.map(|checked| checked.peak_reserved_bytes),
        }
    }
}
