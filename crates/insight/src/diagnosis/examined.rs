//! A device that the rules examined, with the evidence that they had.

use vramscope_trace::{DeviceId, Peak};

use super::finding::{Finding, MIN_OVER_RESERVED_PERCENT, is_share};
use super::rule::Rule;
use crate::evidence::{DeviceEvidence, Evidence};
use crate::pools::ReservedBreakdown;

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
    /// The bytes that the pool can get: a cap, or the device's size; `None` if neither is known.
    pub capacity_bytes: Option<u64>,
    /// Copies of the weights that steps may use: no problem that is known.
    pub kept_copies: Option<Finding>,
    /// Whether the history has no steps, but is long enough to compare periods of it.
    pub has_periods: bool,
    /// Whether a simulated run of the unchanged program has the recorded reserved peak, so that
    /// other settings could be tried; `None` if no simulation was needed.
    pub is_reproduced: Option<bool>,
    /// What the reserved bytes consist of at the end of the last complete step; `None` without
    /// steps.
    pub at_last_step: Option<ReservedBreakdown>,
    /// Other settings that reserve less in a simulation, but too little for a finding.
    pub lesser_saving: Option<Finding>,
}

impl ExaminedDevice {
    /// Returns the bytes of the reserved peak that live blocks never needed at once.
    #[must_use]
    pub fn waste_bytes(&self) -> u64 {
        self.peak_reserved.bytes.saturating_sub(self.peak_active_bytes)
    }

    /// Returns true if little of the reserved peak is waste.
    #[must_use]
    pub fn is_lean(&self) -> bool {
        !is_share(self.waste_bytes(), MIN_OVER_RESERVED_PERCENT, self.peak_reserved.bytes)
    }

    /// Returns the evidence without which a rule has no answer about this device.
    #[must_use]
    pub fn missing(&self, rule: Rule) -> Vec<Evidence> {
        let mut missing = self.evidence.missing(rule.needs());
        // Periods of a long history without steps are compared instead.
        if rule == Rule::Growth && self.has_periods {
            missing.retain(|one| *one != Evidence::Steps);
        }
        if rule == Rule::Waste && missing.is_empty() && self.is_reproduced == Some(false) && !self.is_lean() {
            missing.push(Evidence::Reproduction);
        }
        missing
    }
}
