//! The numbers of a recording in progress.

use std::time::Duration;

use vramscope_trace::{Counters, DeviceInfo, DeviceState, FreeSpace, MemorySample};

/// What a recording came to so far. The recorder says so about once a second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The program's name.
    pub program: String,
    /// Events that were recorded.
    pub events: u64,
    /// Events that are known to be lost.
    pub lost_events: u64,
    /// How often the program had to wait because a queue was full.
    pub waits: u64,
    /// For how long in all.
    pub waited: Duration,
    /// Bytes of the recording's file, where there is one.
    pub file_bytes: Option<u64>,
    /// Each device, in the order of their numbers.
    pub devices: Vec<DeviceFigures>,
}

/// A device's memory at the last event that was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFigures {
    /// What is known of the device.
    pub info: DeviceInfo,
    /// Bytes allocated, active, reserved and requested.
    pub counters: Counters,
    /// Free space inside segments.
    pub free_space: FreeSpace,
    /// What the driver last said of the device, if it did.
    pub sample: Option<MemorySample>,
    /// Segments.
    pub segments: u64,
    /// Blocks that are active.
    pub blocks: u64,
    /// Requests that there was no room for.
    pub out_of_memory: u64,
}

impl DeviceFigures {
    /// A device whose memory is in this state. It costs a look at every block.
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
