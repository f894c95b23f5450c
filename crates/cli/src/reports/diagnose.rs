//! The findings of `diagnose` in a recording.

use std::path::Path;
use std::thread;

use vramscope_insight::autopsy::{Remedies, RemedySearch};
use vramscope_insight::diagnosis::{Diagnosed, Diagnosis};
use vramscope_insight::history::History;
use vramscope_insight::what_if::DeviceWorkload;
use vramscope_pool::Settings;
use vramscope_pool::rerun::Workload;
use vramscope_trace::{ByteSize, DeviceId, Recording};

use crate::error::{CommandError, Result};
use crate::history::read_history;
use crate::operation::Operation;
use crate::recorded;
use crate::simulation::{self, LimitArguments};

/// Number of events that are visited at a time.
const EVENTS_PER_STEP: u64 = 100_000;

/// The problems of a recording with their checked remedies, and what was read for them.
pub(crate) struct Problems {
    pub(crate) settings: Settings,
    pub(crate) history: History,
    pub(crate) diagnosed: Diagnosed,
    /// The requests of each device; empty if no remedy had to be simulated.
    pub(crate) workloads: Vec<DeviceWorkload>,
    /// The remedies of failures, by device and number of the first event.
    pub(crate) remedies: Vec<((DeviceId, u64), Remedies)>,
}

/// Finds the memory problems of a recording, and simulates their remedies. `limit_bytes` is the
/// limit that the recorded process ran under; `path` is for error messages.
pub(crate) fn problems(
    path: &Path,
    recording: &Recording,
    limit_bytes: Option<ByteSize>,
    operation: &Operation,
) -> Result<Problems> {
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
    let mut diagnosed = diagnosis.finish(recording, &history).map_err(error)?;
    bar.finish_and_clear();
    let (mut workloads, mut remedies) = (Vec::new(), Vec::new());
    if !diagnosed.devices_to_check().is_empty() {
        let limits = LimitArguments { capacity: None, limit_bytes };
        workloads = simulation::workloads(path, recording, &limits, operation)?;
        for device in workloads.iter().filter(|device| !device.stops_at_gap) {
            let (workload, capacity_bytes) = (&device.workload, device.capacity_bytes);
            for search in diagnosed.remedy_searches(recording, &history, workload, capacity_bytes) {
                let (one, search) = search.map_err(error)?;
                let found = check(search, workload, operation)?;
                one.set_remedies(&found);
                remedies.push(((one.device, one.events.0), found));
            }
            for one in diagnosed.findings_to_check(workload, &settings, capacity_bytes) {
                operation.check()?;
                one.check(workload, capacity_bytes);
            }
        }
    }
    diagnosed.adopt_proven();
    Ok(Problems { settings, history, diagnosed, workloads, remedies })
}

/// Makes the runs of a search, as many at once as there are processors.
pub(crate) fn check(mut search: RemedySearch, workload: &Workload, operation: &Operation) -> Result<Remedies> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let bar = operation.stage("Checking remedies".to_owned());
    loop {
        operation.check()?;
        let (done, all) = search.progress();
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        let runs: Vec<_> = std::iter::from_fn(|| search.next_run()).take(threads).collect();
        if runs.is_empty() {
            bar.finish_and_clear();
            return Ok(search.into_remedies());
        }
        let program = search.program(workload);
        let results: Vec<_> = thread::scope(|scope| {
            let running: Vec<_> = runs.iter().map(|run| scope.spawn(|| run.simulate(program))).collect();
            let join = |run: thread::ScopedJoinHandle<'_, _>| {
                run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            running.into_iter().map(join).collect()
        });
        for (run, result) in runs.iter().zip(&results) {
            search.finish(run, result);
        }
    }
}
