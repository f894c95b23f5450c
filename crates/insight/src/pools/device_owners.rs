//! Who holds the memory of a device: this program's pool, its other memory, other processes.

use vramscope_trace::{DeviceId, DeviceState, RecordingInfo};

/// The memory of a device by owner at one moment, in bytes. What the recording does not say is
/// `None`.
///
/// If the device's size is known, the bytes of all owners and the unknown rest add up to it; see
/// [`unknown_bytes`](Self::unknown_bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceOwners {
    /// Total memory of the device.
    pub device_bytes: Option<u64>,
    /// Bytes of the pool's segments.
    pub reserved_bytes: u64,
    /// Bytes that this process holds outside the pool: CUDA context, modules, libraries.
    pub outside_bytes: Option<u64>,
    /// Bytes that other processes hold.
    pub others_bytes: Option<u64>,
    /// Free bytes of the driver.
    pub free_bytes: Option<u64>,
    /// Whether the segments are unknown, and with them what free memory of the pool consists of.
    pub lacks_segments: bool,
}

impl DeviceOwners {
    /// Returns the owners of a device at the moment of `state`. The bytes of the pool are exact.
    /// The others are from the driver's last memory sample, as far as the pool leaves room for
    /// them.
    #[must_use]
    pub fn new(info: &RecordingInfo, id: DeviceId, state: &DeviceState) -> Self {
        let reserved_bytes = state.counters().reserved;
        let recorded = info.device(id).map_or(0, |device| device.total_bytes);
        let device_bytes = Some(recorded).filter(|&bytes| bytes >= reserved_bytes.max(1));
        let lacks_segments = info.device(id).is_some_and(|device| device.segments.is_unknown());
        let Some(sample) = state.sample() else {
            return Self { device_bytes, reserved_bytes, lacks_segments, ..Self::default() };
        };
        // The pool may have grown since the sample: what it took was free then.
        let left = device_bytes.unwrap_or(u64::MAX) - reserved_bytes;
        let outside = sample.used_by_context.min(left);
        let others = sample.used_by_others.min(left - outside);
        let free = sample.free.min(left - outside - others);
        Self {
            device_bytes,
            reserved_bytes,
            outside_bytes: Some(outside),
            others_bytes: Some(others),
            free_bytes: Some(free),
            lacks_segments,
        }
    }

    /// Returns the bytes of the device of which the recording does not say who holds them; 0 if the
    /// device's size is unknown.
    #[must_use]
    pub fn unknown_bytes(&self) -> u64 {
        let known = [self.outside_bytes, self.others_bytes, self.free_bytes].into_iter().flatten();
        let known = known.fold(self.reserved_bytes, u64::saturating_add);
        self.device_bytes.map_or(0, |bytes| bytes.saturating_sub(known))
    }
}
