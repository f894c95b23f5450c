//! The ways in which tools measure time.

use std::time::Instant;

use crate::device::Device;

/// The way in which a tool measures time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// The time of the host. On a GPU this is the time to queue work, not to compute.
    #[default]
    Host,
    /// The time until all work is done. The tool waits for the GPU at the beginning and at the end
    /// of each measurement, which slows the program.
    Synchronized,
}

impl Timing {
    /// Returns the time, after waiting for the device if this is
    /// [`Synchronized`](Self::Synchronized).
    pub(super) fn now(self, device: &Device) -> Instant {
        if self == Self::Synchronized {
            // Work that has failed is reported by the program's next call.
            let _ = device.synchronize();
        }
        Instant::now()
    }
}

/// Returns the nanoseconds from `start` to `end`.
pub(super) fn nanoseconds(start: Instant, end: Instant) -> u64 {
    u64::try_from(end.saturating_duration_since(start).as_nanos()).unwrap_or(u64::MAX)
}
