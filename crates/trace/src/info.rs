//! Metadata of a recording, stored as JSON in its header chunk.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::event::DeviceId;
use crate::quantity::DurationNs;

/// Metadata of a recording: program, writer, clock, settings and devices.
///
/// Readers ignore unknown fields and use the default for missing ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordingInfo {
    /// The recorded program, or the name of the imported file.
    pub source: String,
    /// The program that wrote the recording, with its version.
    pub writer: String,
    /// Unix time of the events' time 0, in nanoseconds; 0 if unknown.
    pub epoch_unix_ns: u64,
    /// The allocator's settings in the syntax of `PYTORCH_CUDA_ALLOC_CONF`, for example
    /// `expandable_segments:True`.
    pub alloc_conf: String,
    /// All settings as the source wrote them, if it has more than `alloc_conf`: a PyTorch
    /// snapshot's `allocator_settings` as JSON.
    pub source_settings: String,
    /// Notes for the user on how the recording was made: values that an importer ignored, settings
    /// that it assumed, events that could not be recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub import_notes: Vec<String>,
    /// Whether the source has no times, so that the times of events only give their order.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lacks_times: bool,
    /// Metadata of each device.
    pub devices: Vec<DeviceInfo>,
}

impl RecordingInfo {
    /// Returns the text that shows a device to the user: its number and, if the recording has one,
    /// its name, as in `device 0: NVIDIA H200`.
    ///
    /// Pinned host memory is `pinned host memory`, whatever name an importer gave it. A device of
    /// one of several processes has its recorded name, which begins with the process: `rank 0 ·
    /// NVIDIA H200`.
    ///
    /// ```
    /// use vramscope_trace::{DeviceId, DeviceInfo, RecordingInfo};
    ///
    /// let gpu = DeviceInfo { device: 0, name: "NVIDIA H200".to_owned(), ..DeviceInfo::default() };
    /// let info = RecordingInfo { devices: vec![gpu], ..RecordingInfo::default() };
    /// assert_eq!(info.device_label(DeviceId(0)), "device 0: NVIDIA H200");
    /// assert_eq!(info.device_label(DeviceId(1)), "device 1");
    /// assert_eq!(info.device_label(DeviceId::HOST), "pinned host memory");
    /// ```
    #[must_use]
    pub fn device_label(&self, id: DeviceId) -> String {
        match self.device_info(id) {
            Some((name, true)) => name.to_owned(),
            Some((name, false)) if id != DeviceId::HOST => format!("{id}: {name}"),
            _ => id.to_string(),
        }
    }

    /// Returns a shorter text for a device, for labels: `device 0`, or the process of a device of
    /// one of several processes, as in `rank 0` or `rank 0, run 2`.
    #[must_use]
    pub fn device_short_label(&self, id: DeviceId) -> String {
        match self.device_info(id) {
            Some((name, true)) => name.split(" · ").next().unwrap_or(name).to_owned(),
            _ => id.to_string(),
        }
    }

    /// Returns a duration of `ns` nanoseconds as text; `not recorded` if the source has no times.
    #[must_use]
    pub fn duration_text(&self, ns: u64) -> String {
        if self.lacks_times { "not recorded".to_owned() } else { DurationNs(ns).to_string() }
    }

    /// Returns a duration of `ns` nanoseconds and a number of events, as in `1.2 ms · 40 events`;
    /// only the events if the source has no times.
    #[must_use]
    pub fn time_and(&self, ns: u64, events: String) -> String {
        if self.lacks_times { events } else { format!("{} · {events}", DurationNs(ns)) }
    }

    /// Returns the description of a device; `None` if the recording has none.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> Option<&DeviceInfo> {
        self.devices.iter().find(|info| info.device == id.0)
    }

    /// Returns the recorded name of a device and whether it is one of several processes' devices;
    /// `None` for a device without a name.
    fn device_info(&self, id: DeviceId) -> Option<(&str, bool)> {
        let info = self.device(id)?;
        let name = info.name.trim();
        (!name.is_empty()).then_some((name, info.rank.is_some() || !info.process.is_empty()))
    }
}

/// Where the segments of a device come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SegmentSource {
    /// The source lists them.
    #[default]
    Recorded,
    /// They were inferred: the allocator's rules explain all totals of the source.
    Inferred,
    /// They are unknown. Ranges of addresses that blocks have used stand for them, and reserved
    /// memory whose address is unknown is a range of its own.
    Unknown,
    /// A value of a later version, which this one treats as unknown.
    #[serde(other)]
    Other,
}

impl SegmentSource {
    /// Returns true if the source lists the segments.
    #[must_use]
    pub const fn is_recorded(&self) -> bool {
        matches!(self, Self::Recorded)
    }

    /// Returns the value's name for users, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Inferred => "inferred",
            Self::Unknown | Self::Other => "unknown",
        }
    }

    /// Returns true if the segments are neither recorded nor inferred.
    #[must_use]
    pub const fn is_unknown(self) -> bool {
        matches!(self, Self::Unknown | Self::Other)
    }
}

/// Metadata of one device of a recording: name, memory size, process, and whether its history is
/// complete.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceInfo {
    /// The device's number, as in [`DeviceId`](crate::DeviceId).
    pub device: u16,
    /// The device's name, for example `NVIDIA H200`.
    pub name: String,
    /// Total device memory in bytes; 0 if unknown.
    pub total_bytes: u64,
    /// Whether the recording began before the first allocation.
    pub history_complete: bool,
    /// Number of the device's events after which its memory state is certain.
    ///
    /// Not 0 for a history that began late, if its source lacks the sizes of blocks that were
    /// allocated before it and freed during it.
    pub uncertain_events: u64,
    /// Whether only the sizes of blocks are known: a block's requested size is its size.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lacks_requested: bool,
    /// Whether streams are unknown: all events have stream 0.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lacks_streams: bool,
    /// Where the segments come from.
    #[serde(skip_serializing_if = "SegmentSource::is_recorded")]
    pub segments: SegmentSource,
    /// The rank of the device's process, if several processes were recorded and it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The device's process, if several were recorded, for example `train.py, process 4711`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub process: String,
}

impl fmt::Debug for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, name, total_bytes, history_complete, uncertain_events, rank, process, .. } = self;
        let mut debug = f.debug_struct("DeviceInfo");
        debug.field("device", device).field("name", name).field("total_bytes", total_bytes);
        debug.field("history_complete", history_complete).field("uncertain_events", uncertain_events);
        // Omitted if absent, as in the header chunk, so that golden files from before these fields
        // existed stay valid.
        if self.lacks_requested || self.lacks_streams {
            debug.field("lacks_requested", &self.lacks_requested).field("lacks_streams", &self.lacks_streams);
        }
        if !self.segments.is_recorded() {
            debug.field("segments", &self.segments);
        }
        if let Some(rank) = rank {
            debug.field("rank", rank);
        }
        if !process.is_empty() {
            debug.field("process", process);
        }
        debug.finish()
    }
}
