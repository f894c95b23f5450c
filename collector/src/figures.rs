//! Current totals of a recording in progress.

use std::time::Duration;

use vramscope_trace::{Counters, DeviceInfo, DeviceState, FreeSpace, MemorySample};

/// Current totals of a recording in progress: numbers of recorded and lost events, file size, and
/// each device's memory. The recorder updates them about once a second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The program's name.
    pub program: String,
    /// Number of recorded events.
    pub events: u64,
    /// Number of events missing from the recording, for example because a queue was full.
    pub lost_events: u64,
    /// How often the program waited because a queue was full.
    pub waits: u64,
    /// Total time that the program waited, over all `waits`.
    pub waited: Duration,
    /// Size of the recording's file in bytes; `None` without a file.
    pub file_bytes: Option<u64>,
    /// Totals by device, in order of device number.
    pub devices: Vec<DeviceFigures>,
}

/// One device's memory after the last recorded event: bytes by state (allocated, active, reserved,
/// requested), free space, and numbers of segments and active blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFigures {
    /// Name and total memory of the device.
    pub info: DeviceInfo,
    /// Allocated, active, reserved and requested bytes.
    pub counters: Counters,
    /// Free space inside segments.
    pub free_space: FreeSpace,
    /// The newest sample of the whole device's memory, if its driver reports one.
    pub sample: Option<MemorySample>,
    /// Number of segments.
    pub segments: u64,
    /// Number of active blocks.
    pub blocks: u64,
    /// Number of requests that failed with out of memory.
    pub out_of_memory: u64,
}

impl DeviceFigures {
    /// Computes a device's bytes, free space and numbers of blocks from its memory state. Visits
    /// every block, so the time grows with the number of blocks.
    #[must_use]
    pub fn of(info: DeviceInfo, state: &DeviceState) -> Self {
        Self {
            info,
            counters: state.counters(),
            free_space: state.free_space(),
            sample: state.sample(),
            segments: state.segments().len() as u64,
            blocks: state.blocks().len() as u64,
            out_of_memory: state.ooms(),
        }
    }
}
