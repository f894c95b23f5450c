//! A device that the rules examined, with the evidence that they had.

use vramscope_trace::{DeviceId, Peak};

use super::finding::Finding;
use crate::evidence::DeviceEvidence;

/// A device that was examined.
#[derive(Clone, Debug)]
pub struct ExaminedDevice {
    /// The device.
    pub device: DeviceId,
    /// The evidence that the recording has about it.
    pub evidence: DeviceEvidence,
    /// Peak of the allocated bytes.
    pub peak_allocated: Peak,
    /// Peak of the reserved bytes.
    pub peak_reserved: Peak,
    /// Peak of the active bytes.
    pub peak_active_bytes: u64,
    /// Copies of the weights that steps may use: no problem that is known.
    pub kept_copies: Option<Finding>,
    /// Whether a simulated run of the unchanged program has the recorded reserved peak, so that
    /// other settings could be tried; `None` if no simulation was needed.
    pub is_reproduced: Option<bool>,
}

impl ExaminedDevice {
    /// Returns the bytes of the reserved peak that live blocks never needed at once.
    #[must_use]
    pub fn waste_bytes(&self) -> u64 {
        self.peak_reserved.bytes.saturating_sub(self.peak_active_bytes)
    }
}
