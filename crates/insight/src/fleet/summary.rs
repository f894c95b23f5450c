//! The summary that a process sends ten times a second.

use serde::{Deserialize, Serialize};

/// A process's memory at one moment, in about 200 bytes when encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Its number among the summaries of the process, from 0; a missing number is a lost summary.
    pub number: u64,
    /// When it was made, by the process's clock.
    pub time_unix_ns: u64,
    /// Events recorded so far.
    pub events: u64,
    /// Events missing from the recording so far.
    pub lost_events: u64,
    /// The current step of the training run; `None` if the marks show no steps.
    pub step: Option<u64>,
    /// Name of the last mark; empty without marks.
    pub mark: String,
    /// Totals of each device.
    pub devices: Vec<DeviceSummary>,
    /// Names of sites, by the numbers in [`DeviceSummary::sites`]. Each name is sent when it
    /// appears first, and repeated for servers that come later.
    pub names: Vec<(u32, String)>,
    /// When an earlier summary was acknowledged, from which the clock's offset is estimated.
    pub acknowledged: Option<Acknowledged>,
}

/// When the broker's acknowledgement of an earlier summary arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    /// The number of that summary.
    pub number: u64,
    /// When its acknowledgement arrived, by the process's clock.
    pub time_unix_ns: u64,
}

/// The totals of one device at one moment; sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSummary {
    /// Number of the device in its process.
    pub device: u16,
    /// Allocated bytes.
    pub allocated: u64,
    /// Reserved bytes: the bytes of all segments.
    pub reserved: u64,
    /// Active bytes: allocated bytes and bytes of blocks that are pending free.
    pub active: u64,
    /// Bytes that the program requested for the active blocks.
    pub requested: u64,
    /// Free bytes in segments.
    pub free: u64,
    /// The largest free block.
    pub largest_free: u64,
    /// Number of segments.
    pub segments: u32,
    /// Number of active blocks.
    pub blocks: u32,
    /// Requests that failed with out of memory so far.
    pub ooms: u32,
    /// The sites that hold most: the number of each site's name, and bytes.
    pub sites: Vec<(u32, u64)>,
}

impl Summary {
    /// Returns the sums over all devices; `device`, `largest_free` and `sites` come from the device
    /// with the most reserved bytes.
    #[must_use]
    pub fn total(&self) -> DeviceSummary {
        let largest = self.devices.iter().max_by_key(|device| device.reserved).cloned().unwrap_or_default();
        let sum = |field: fn(&DeviceSummary) -> u64| self.devices.iter().map(field).fold(0, u64::saturating_add);
        let count = |field: fn(&DeviceSummary) -> u32| self.devices.iter().map(field).fold(0, u32::saturating_add);
        DeviceSummary {
            allocated: sum(|device| device.allocated),
            reserved: sum(|device| device.reserved),
            active: sum(|device| device.active),
            requested: sum(|device| device.requested),
            free: sum(|device| device.free),
            segments: count(|device| device.segments),
            blocks: count(|device| device.blocks),
            ooms: count(|device| device.ooms),
            ..largest
        }
    }
}

impl DeviceSummary {
    /// Returns the external fragmentation, from 0 to 1: 1 − largest free block ÷ free bytes in
    /// segments, and 0 if nothing is free.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        let space = vramscope_trace::FreeSpace { total: self.free, largest: self.largest_free, blocks: 0 };
        space.fragmentation()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_sums_over_the_devices() {
        let device = |device, reserved, largest_free| DeviceSummary {
            device,
            reserved,
            allocated: reserved / 2,
            free: reserved / 2,
            largest_free,
            ..DeviceSummary::default()
        };
        let summary = Summary { devices: vec![device(0, 100, 10), device(1, 300, 75)], ..Summary::default() };
        let total = summary.total();
        assert_eq!((total.reserved, total.allocated, total.device, total.largest_free), (400, 200, 1, 75));
        assert!((total.fragmentation() - (1.0 - 75.0 / 200.0)).abs() < 1e-9);
        assert_eq!(Summary::default().total(), DeviceSummary::default());
    }
}
