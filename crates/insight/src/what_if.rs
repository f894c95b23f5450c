//! The recorded requests of each device, ready to be simulated under other settings or with another
//! memory size.

use serde::Serialize;
use vramscope_pool::Settings;
use vramscope_pool::rerun::{History, RunSummary, StartStateError, Workload};
use vramscope_trace::{DeviceId, FormatError, IncidentKind, Recording};

/// The history of a device, up to the first missing events.
#[derive(Clone, Debug)]
pub struct FirstHistory {
    /// The history.
    pub history: History,
    /// Whether events are missing after it.
    pub stops_at_gap: bool,
}

/// Reads the histories of all devices of a recording, up to the first missing events.
///
/// # Errors
/// If a chunk cannot be read.
pub fn first_histories(recording: &Recording) -> Result<Vec<FirstHistory>, FormatError> {
    let stops_at_gap = has_missing_events(recording);
    let mut devices: Vec<FirstHistory> = Vec::new();
    for history in History::from_recording(recording)? {
        match devices.last_mut().filter(|earlier| earlier.history.device() == history.device()) {
            // Requests before and after missing events do not belong to one program run.
            Some(earlier) => earlier.stops_at_gap = true,
            None => devices.push(FirstHistory { history, stops_at_gap }),
        }
    }
    Ok(devices)
}

/// The recorded requests of one device.
#[derive(Clone, Debug)]
pub struct DeviceWorkload {
    /// The requests.
    pub workload: Workload,
    /// Maximum bytes that the simulated allocator may reserve; `None` for no limit.
    pub capacity_bytes: Option<u64>,
    /// Whether the capacity is the largest with which the recorded requests that failed still fail;
    /// the true one may be smaller.
    pub is_capacity_estimated: bool,
    /// Whether events are missing and `workload` has only the events before the first gap.
    pub stops_at_gap: bool,
}

impl DeviceWorkload {
    /// Reconstructs the requests of a device of a recording.
    ///
    /// `settings` are the recorded ones, with the cap as `limit_bytes` if it is known. Without
    /// `capacity_bytes`, the simulated allocator may reserve as much as the recorded one: the cap,
    /// else the cap that the recorded out-of-memory errors imply, else the device's memory.
    ///
    /// # Errors
    /// If the recording begins with a memory state that no allocator can have.
    pub fn new(
        recording: &Recording,
        first: FirstHistory,
        settings: &Settings,
        capacity_bytes: Option<u64>,
    ) -> Result<Self, StartStateError> {
        let FirstHistory { history, stops_at_gap } = first;
        let device = history.device();
        let workload = Workload::new(history, settings)?;
        let given = capacity_bytes.or(settings.limit_bytes);
        let capacity_bytes = given.or(workload.recorded_capacity_bytes);
        let is_capacity_estimated = given.is_none() && capacity_bytes.is_some();
        let capacity_bytes = capacity_bytes.or_else(|| device_bytes(recording, device));
        Ok(Self { workload, capacity_bytes, is_capacity_estimated, stops_at_gap })
    }
}

/// Peaks and error counts of one device, as recorded or as simulated, in the output of
/// `simulate --json` and `advise --json`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct FiguresReport {
    /// The peak of the allocated bytes.
    pub peak_allocated_bytes: u64,
    /// The peak of the reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Number of requests that failed with out of memory.
    pub ooms: u64,
    /// Number of times that cached segments were released for a request.
    pub retries: u64,
    /// Number of segments and ranges obtained from the driver.
    pub device_allocations: u64,
    /// The peak of the fragmentation, from 0 to 1.
    pub peak_fragmentation: f64,
}

impl From<RunSummary> for FiguresReport {
    fn from(figures: RunSummary) -> Self {
        Self {
            peak_allocated_bytes: figures.peak_allocated_bytes,
            peak_reserved_bytes: figures.peak_reserved_bytes,
            ooms: figures.ooms,
            retries: figures.retries,
            device_allocations: figures.device_allocations,
            peak_fragmentation: figures.peak_fragmentation,
        }
    }
}

/// Returns the name of a setting that is a share of the memory that the allocator may reserve, if
/// one of `settings` is: a simulation needs a capacity then.
#[must_use]
pub fn setting_that_needs_capacity(settings: &Settings) -> Option<&'static str> {
    if settings.garbage_collection_threshold > 0.0 {
        Some("garbage_collection_threshold")
    } else if settings.per_process_memory_fraction < 1.0 {
        Some("per_process_memory_fraction")
    } else {
        None
    }
}

/// Returns true if a recording lacks the events of some event numbers, because they were lost on
/// their way or are damaged. Its histories end there.
fn has_missing_events(recording: &Recording) -> bool {
    let gaps = recording.incidents().iter().filter(|incident| matches!(incident.kind, IncidentKind::Gap { .. }));
    // A gap that the recorded program reported is itself an event.
    gaps.into_iter().any(|gap| recording.next_event(gap.at_event) != Some(gap.at_event))
}

/// Returns the size of a recorded device's memory in bytes, or `None` if the recording lacks it.
fn device_bytes(recording: &Recording, device: DeviceId) -> Option<u64> {
    recording.info().device(device).map(|info| info.total_bytes).filter(|&bytes| bytes > 0)
}
