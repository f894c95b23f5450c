//! What a recording says of itself.

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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
}
