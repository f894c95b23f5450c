//! What a recording says of itself.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is known of a recording before its first event. Readers ignore fields that they do not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Info {
    /// The program that was recorded, or the name of the file that was imported.
    pub source: String,
    /// What wrote the recording.
    pub writer: String,
    /// Nanoseconds since 1970 at time 0 of the events; 0 where the source did not say.
    pub epoch_unix_ns: u64,
    /// The allocator's settings in its own syntax, `expandable_segments:True`.
    pub alloc_conf: String,
    /// The settings as the source wrote them, where that says more: a PyTorch snapshot's `allocator_settings` as JSON.
    pub source_settings: String,
    /// What is known of each device.
    pub devices: Vec<DeviceInfo>,
}

/// What is known of a device before its first event.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceInfo {
    /// Its number.
    pub device: u16,
    /// Its name, `NVIDIA H200`.
    pub name: String,
    /// Bytes of memory on it; 0 where the source did not say.
    pub total_bytes: u64,
    /// Whether the recording holds every event since the allocator was empty.
    pub history_complete: bool,
    /// How many of the device's events come before its memory state is certain: the source of a history that began late does not say
    /// how large each block was that was there before and then freed.
    pub uncertain_events: u64,
    /// The rank of the process that it belongs to, where several are recorded together and each was given one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The process that it belongs to, where several are recorded together: `train.py, process 4711`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub process: String,
}

impl fmt::Debug for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, name, total_bytes, history_complete, uncertain_events, rank, process } = self;
        let mut told = f.debug_struct("DeviceInfo");
        told.field("device", device).field("name", name).field("total_bytes", total_bytes);
        told.field("history_complete", history_complete).field("uncertain_events", uncertain_events);
        // As in the head, what is not said is not there: what was told of a recording before these fields were known is told still.
        if let Some(rank) = rank {
            told.field("rank", rank);
        }
        if !process.is_empty() {
            told.field("process", process);
        }
        told.finish()
    }
}
