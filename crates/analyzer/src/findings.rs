//! The problems that a recording shows.

use serde::Serialize;
use vramscope_insight::autopsy::{Autopsy, RemedySearch};
use vramscope_insight::diagnosis::{Diagnosed, Diagnosis, Finding, reproduces_peak};
use vramscope_insight::history::History;
use vramscope_insight::what_if::DeviceWorkload;
use vramscope_pool::Settings;
use vramscope_trace::{FormatError, Recording};

use crate::error::AnalysisError;
use crate::request::Observer;

/// Number of events that are read between two reports of progress.
const EVENTS_PER_STEP: u64 = 1 << 18;
/// The most different failures of a device whose remedies are simulated.
const MAX_CHECKED: usize = 8;
/// What is being done.
const STAGE: &str = "Looking for problems";

/// The answer to [`Request::Findings`](crate::Request::Findings).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FindingsReport {
    /// The most serious first.
    findings: Vec<FindingReport>,
}

/// A problem, with the fields of the output of `diagnose --json`.
#[derive(Clone, Debug, Serialize)]
struct FindingReport {
    id: String,
    severity: &'static str,
    device: u16,
    /// The first and the last event of the evidence.
    events: (u64, u64),
    bytes: u64,
    site: String,
    summary: String,
    remedy: Option<String>,
    /// Of growth: the steps after which the pool has all memory that it can get.
    steps_left: Option<u64>,
    /// Whether the remedy was simulated.
    checked: bool,
    /// Bytes by which the reserved peak of the simulated run is below the recorded one.
    saves_bytes: Option<u64>,
    /// The reserved peak of the simulated run.
    peak_reserved_bytes: Option<u64>,
}

/// Finds the problems of a recording. `settings` are the recorded ones.
pub(crate) fn findings(
    recording: &Recording,
    settings: &Settings,
    observer: &mut impl Observer,
) -> Result<(Diagnosed, History), AnalysisError> {
    let mut history = History::new();
    loop {
        let progress = history.extend(recording, EVENTS_PER_STEP)?;
        observer.progress(progress.events as f64 / progress.known_events.max(1) as f64 / 2.0, STAGE);
        if progress.is_complete {
            break;
        }
    }
    let mut diagnosis = Diagnosis::new(recording, &history, settings)?;
    while !diagnosis.step(recording, EVENTS_PER_STEP)? {
        observer.progress(0.5, STAGE);
    }
    Ok((diagnosis.finish(recording, &history)?, history))
}

/// Returns true if a finding has remedies to simulate.
pub(crate) fn has_remedies(finding: &Finding, autopsy: &Autopsy) -> bool {
    finding.can_be_checked() || finding.failure_in(autopsy).is_some()
}

/// Simulates the remedies of the findings about one device.
pub(crate) fn check(
    found: &mut Diagnosed,
    recording: &Recording,
    history: &History,
    device: &DeviceWorkload,
    settings: &Settings,
    observer: &mut impl Observer,
) -> Result<(), FormatError> {
    let DeviceWorkload { workload, capacity_bytes, .. } = device;
    let Diagnosed { findings, autopsy } = found;
    let mut of_device: Vec<&mut Finding> = findings.iter_mut().filter(|one| one.device == workload.device()).collect();
    let failures = of_device.iter_mut().filter_map(|one| one.failure_in(autopsy).map(|oom| (one, oom)));
    for (one, oom) in failures.take(MAX_CHECKED) {
        let mut search = RemedySearch::new(recording, history, autopsy, oom, workload, *capacity_bytes)?;
        while let Some(run) = search.next_run() {
            let result = run.simulate(search.program(workload));
            search.finish(&run, &result);
            let (done, all) = search.progress();
            observer.progress(done as f64 / all.max(1) as f64, "Trying what would have helped");
        }
        one.set_remedies(&search.into_remedies());
    }
    let mut others = of_device.into_iter().filter(|one| one.can_be_checked()).peekable();
    if others.peek().is_some() && reproduces_peak(workload, settings, *capacity_bytes) {
        others.for_each(|one| one.check(workload, *capacity_bytes));
    }
    Ok(())
}

impl From<Vec<Finding>> for FindingsReport {
    fn from(findings: Vec<Finding>) -> Self {
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
