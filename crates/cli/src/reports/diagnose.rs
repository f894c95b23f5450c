//! The findings of `diagnose` in a recording.

use std::path::Path;

use vramscope_insight::diagnosis::{Diagnosis, Finding};
use vramscope_trace::{ByteSize, Recording};

use crate::error::{CommandError, Result};
use crate::history::read_history;
use crate::operation::Operation;
use crate::recorded;
use crate::reports::autopsy;
use crate::simulation::{self, LimitArguments};

/// Number of events that are visited at a time.
const EVENTS_PER_STEP: u64 = 100_000;

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
    let mut found = diagnosis.finish(recording, &history).map_err(error)?;
    bar.finish_and_clear();
    if !found.devices_to_check().is_empty() {
        let limits = LimitArguments { capacity: None, limit_bytes };
        let workloads = simulation::workloads(path, recording, &limits, operation)?;
        for device in workloads.iter().filter(|device| !device.stops_at_gap) {
            let (workload, capacity_bytes) = (&device.workload, device.capacity_bytes);
            for search in found.remedy_searches(recording, &history, workload, capacity_bytes) {
                let (one, search) = search.map_err(error)?;
                one.set_remedies(&autopsy::check(search, workload, operation)?);
            }
            for one in found.findings_to_check(workload, &settings, capacity_bytes) {
                operation.check()?;
                one.check(workload, capacity_bytes);
            }
        }
    }
    Ok(found.findings)
}
