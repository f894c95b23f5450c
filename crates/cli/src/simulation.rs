//! What `simulate` and `advise` share: the requests of each device, and the figures of a run.

use std::path::Path;

use clap::Args;
use serde::Serialize;
use vramscope_pool::rerun::{History, RunSummary, Workload};
use vramscope_trace::{ByteSize, DeviceId, Recording};

use crate::error::{CommandError, Result};
use crate::operation::Operation;
use crate::recorded;

/// The memory limits of the recorded and of the simulated allocator.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct LimitArguments {
    /// Most bytes that the simulated allocator may reserve, such as 40GiB [default: --limit-bytes;
    /// else the limit that the recorded out-of-memory errors imply; else the device's memory; else
    /// unlimited]
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<ByteSize>,
    /// Memory limit that the recorded process ran under, such as 40GiB; recordings do not contain
    /// it
    #[arg(long, value_name = "SIZE")]
    pub(crate) limit_bytes: Option<ByteSize>,
}

/// The recorded requests of one device, to be simulated.
pub(crate) struct DeviceWorkload {
    pub(crate) workload: Workload,
    /// Most bytes that the simulated allocator may reserve; `None` for no limit.
    pub(crate) capacity_bytes: Option<u64>,
    /// Whether the capacity is the largest with which the recorded requests that failed still fail;
    /// the true one may be smaller.
    pub(crate) is_capacity_estimated: bool,
    /// Whether events are missing and `workload` has only those before the first gap.
    pub(crate) stops_at_gap: bool,
}

/// Reads the requests of all devices of a recording.
///
/// Reports each device with missing events. `path` is for error messages.
pub(crate) fn workloads(
    path: &Path,
    recording: &Recording,
    limits: &LimitArguments,
    operation: &Operation,
) -> Result<Vec<DeviceWorkload>> {
    let histories = first_histories(path, recording, operation)?;
    histories.into_iter().map(|history| DeviceWorkload::new(path, recording, history, limits)).collect()
}

/// The history of a device, up to the first missing events.
pub(crate) struct FirstHistory {
    pub(crate) history: History,
    /// Whether events are missing after it.
    pub(crate) stops_at_gap: bool,
}

/// Reads the histories of all devices of a recording, up to the first missing events.
///
/// Reports each device with missing events. `path` is for error messages.
pub(crate) fn first_histories(path: &Path, recording: &Recording, operation: &Operation) -> Result<Vec<FirstHistory>> {
    let stops_at_gap = recorded::has_missing_events(recording);
    let mut devices: Vec<FirstHistory> = Vec::new();
    for history in recorded::histories(path, recording)? {
        match devices.last_mut().filter(|earlier| earlier.history.device() == history.device()) {
            // Requests before and after missing events do not belong to one program run.
            Some(earlier) => earlier.stops_at_gap = true,
            None => devices.push(FirstHistory { history, stops_at_gap }),
        }
    }
    for device in devices.iter().filter(|device| device.stops_at_gap) {
        let device = device.history.device();
        operation.message(format_args!("{device}: events are missing; only those before are simulated"));
    }
    Ok(devices)
}

impl DeviceWorkload {
    /// Reconstructs the requests of a device. `path` is for error messages.
    pub(crate) fn new(
        path: &Path,
        recording: &Recording,
        first: FirstHistory,
        limits: &LimitArguments,
    ) -> Result<Self> {
        let FirstHistory { history, stops_at_gap } = first;
        let device = history.device();
        let settings = recorded::settings(path, recording, limits.limit_bytes)?;
        let workload = Workload::new(history, &settings).map_err(|error| CommandError::file(path, error))?;
        let given = limits.capacity.or(limits.limit_bytes).map(|ByteSize(bytes)| bytes);
        let capacity_bytes = given.or(workload.recorded_capacity_bytes);
        let is_capacity_estimated = given.is_none() && capacity_bytes.is_some();
        let capacity_bytes = capacity_bytes.or_else(|| device_bytes(recording, device));
        Ok(Self { workload, capacity_bytes, is_capacity_estimated, stops_at_gap })
    }
}

/// Returns the size of a recorded device's memory in bytes, or `None` if the recording lacks it.
fn device_bytes(recording: &Recording, device: DeviceId) -> Option<u64> {
    recording.info().device(device).map(|info| info.total_bytes).filter(|&bytes| bytes > 0)
}

/// Peaks and error counts of one device, as recorded or as simulated, in the output of
/// `simulate --json` and `advise --json`; fragmentation is 0 to 1.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct FiguresReport {
    pub(crate) peak_allocated_bytes: u64,
    pub(crate) peak_reserved_bytes: u64,
    pub(crate) ooms: u64,
    pub(crate) retries: u64,
    pub(crate) device_allocations: u64,
    pub(crate) peak_fragmentation: f64,
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
