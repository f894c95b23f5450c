//! The recorded requests under other settings.

use serde::Serialize;
use vramscope_insight::what_if::{DeviceWorkload, FiguresReport, setting_that_needs_capacity};
use vramscope_pool::Settings;
use vramscope_pool::rerun::Simulation;
use vramscope_trace::{Encoder, Recording, RecordingInfo, Sink as _};

use crate::error::AnalysisError;
use crate::request::Observer;

/// Number of calls of the program between two reports of progress.
const CALLS_PER_STEP: usize = 1 << 16;

/// The answer to [`Request::WhatIf`](crate::Request::WhatIf).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WhatIfReport {
    device: u16,
    /// The settings of the simulated run; without a run, the recorded settings.
    alloc_conf: String,
    /// Maximum bytes that the simulated allocator may reserve; `None` for no limit.
    capacity_bytes: Option<u64>,
    /// First event at which the pool decides differently from the recorded allocator.
    unverified_from: Option<u64>,
    /// Whether events are missing and only those before the first gap are simulated.
    stops_at_gap: bool,
    recorded: FiguresReport,
    /// `None` if no settings were chosen.
    simulated: Option<FiguresReport>,
}

/// Runs the requests of a device of `recording` under the settings `alloc_conf`, and passes the
/// simulated run to `observer` as a recording. Without settings, returns the recorded figures.
pub(crate) fn what_if(
    recording: &Recording,
    device: &DeviceWorkload,
    alloc_conf: Option<&str>,
    capacity_bytes: Option<u64>,
    observer: &mut impl Observer,
) -> Result<WhatIfReport, AnalysisError> {
    let workload = &device.workload;
    let capacity_bytes = capacity_bytes.or(device.capacity_bytes);
    let simulated = alloc_conf.map(|conf| simulate(recording, device, conf, capacity_bytes, observer)).transpose()?;
    Ok(WhatIfReport {
        device: workload.device().0,
        alloc_conf: alloc_conf.unwrap_or(&recording.info().alloc_conf).to_owned(),
        capacity_bytes,
        unverified_from: workload.unverified_from,
        stops_at_gap: device.stops_at_gap,
        recorded: workload.recorded.into(),
        simulated,
    })
}

/// Runs the requests of a device, and passes the run to `observer` as a recording.
fn simulate(
    recording: &Recording,
    device: &DeviceWorkload,
    conf: &str,
    capacity_bytes: Option<u64>,
    observer: &mut impl Observer,
) -> Result<FiguresReport, AnalysisError> {
    let settings = Settings::parse(conf).map_err(|error| AnalysisError::Settings { conf: conf.to_owned(), error })?;
    if let (Some(setting), None) = (setting_that_needs_capacity(&settings), capacity_bytes) {
        return Err(AnalysisError::NeedsCapacity(setting));
    }
    let workload = &device.workload;
    let mut info = RecordingInfo { alloc_conf: settings.to_conf(), ..recording.info().clone() };
    info.devices.retain(|info| info.device == workload.device().0);
    info.devices.iter_mut().for_each(|info| info.uncertain_events = 0);
    let mut encoder = Encoder::new(&info);
    recording.definitions().iter().for_each(|definition| encoder.define(&definition));
    let mut run = Simulation::new(workload, &settings, capacity_bytes, encoder);
    loop {
        let has_more = run.advance(CALLS_PER_STEP);
        if !has_more {
            run.sink_mut().flush();
        }
        run.sink_mut().take_output().into_iter().for_each(|chunk| observer.part(chunk.bytes));
        if !has_more {
            return Ok(run.summary().into());
        }
        let (done, all) = run.progress();
        observer.progress(done as f64 / all as f64, "Simulating");
    }
}
