//! The requests of each device and the memory limits, for `simulate` and `advise`.

use std::path::Path;

use clap::Args;
use vramscope_insight::what_if::{self, DeviceWorkload, FirstHistory};
use vramscope_pool::Settings;
use vramscope_trace::{ByteSize, Recording};

use crate::error::{CommandError, Result};
use crate::number::parse_device_bytes;
use crate::operation::Operation;
use crate::recorded;

/// The memory limits of the recorded and of the simulated allocator.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct LimitArguments {
    /// Most bytes that the simulated allocator may reserve, such as 40GiB [default: --limit-bytes;
    /// else the limit that the recorded out-of-memory errors imply; else the device's memory; else
    /// unlimited]
    #[arg(long, value_name = "SIZE", value_parser = parse_device_bytes)]
    pub(crate) capacity: Option<ByteSize>,
    /// Memory limit that the recorded process ran under, such as 40GiB; recordings do not contain
    /// it
    #[arg(long, value_name = "SIZE", value_parser = parse_device_bytes)]
    pub(crate) limit_bytes: Option<ByteSize>,
}

/// Reads the requests of all devices of a recording.
///
/// Prints a message for each device with missing events. `path` is for error messages.
pub(crate) fn workloads(
    path: &Path,
    recording: &Recording,
    limits: &LimitArguments,
    operation: &Operation,
) -> Result<Vec<DeviceWorkload>> {
    recorded::check_requests(path, recording, false)?;
    let settings = recorded::settings(path, recording, limits.limit_bytes)?;
    let histories = first_histories(path, recording, operation)?;
    let workload = |history| device_workload(path, recording, history, &settings, limits);
    histories.into_iter().map(workload).collect()
}

/// Reads the histories of all devices of a recording, up to the first missing events.
///
/// Prints a message for each device with missing events. `path` is for error messages.
pub(crate) fn first_histories(path: &Path, recording: &Recording, operation: &Operation) -> Result<Vec<FirstHistory>> {
    let devices = what_if::first_histories(recording).map_err(|error| CommandError::file(path, error))?;
    for device in devices.iter().filter(|device| device.stops_at_gap) {
        let device = device.history.device();
        operation.message(format_args!("{device}: events are missing; only those before are simulated"));
    }
    Ok(devices)
}

/// Reconstructs the requests of a device. `settings` are the recorded ones; `path` is for error
/// messages.
pub(crate) fn device_workload(
    path: &Path,
    recording: &Recording,
    first: FirstHistory,
    settings: &Settings,
    limits: &LimitArguments,
) -> Result<DeviceWorkload> {
    let capacity_bytes = limits.capacity.map(|ByteSize(bytes)| bytes);
    DeviceWorkload::new(recording, first, settings, capacity_bytes).map_err(|error| CommandError::file(path, error))
}
