//! The problems that a recording shows.

use vramscope_insight::diagnosis::{Diagnosed, Diagnosis};
use vramscope_insight::history::History;
use vramscope_insight::what_if::DeviceWorkload;
use vramscope_pool::Settings;
use vramscope_trace::{FormatError, Recording};

use crate::error::AnalysisError;
use crate::request::Observer;

/// Number of events that are read between two reports of progress.
const EVENTS_PER_STEP: u64 = 1 << 18;
/// The text of the progress reports.
const STAGE: &str = "Looking for problems";

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
    for search in found.remedy_searches(recording, history, workload, *capacity_bytes) {
        let (one, mut search) = search?;
        while let Some(run) = search.next_run() {
            let result = run.simulate(search.program(workload));
            search.finish(&run, &result);
            let (done, all) = search.progress();
            observer.progress(done as f64 / all.max(1) as f64, "Trying what would have helped");
        }
        one.set_remedies(&search.into_remedies());
    }
    for one in found.findings_to_check(workload, settings, *capacity_bytes) {
        one.check(workload, *capacity_bytes);
    }
    Ok(())
}
