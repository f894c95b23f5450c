//! The size of a device and what others hold of it, as far as a recording shows it.

use super::failure::Failure;
use crate::advice::{CARDS, CONTEXT_BYTES, Card};

/// The least memory of a GPU that PyTorch is built for (compute capability 7.5 and later), in
/// bytes.
const MIN_DEVICE_BYTES: u64 = 2 << 30;

/// The size of a device's memory and the bytes outside of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The recorded size of the device in bytes.
    pub total_bytes: Option<u64>,
    /// Bytes that neither the pool holds nor the driver reported as free: other processes,
    /// libraries and, if `total_bytes` is known, the process's own context. Exact if `total_bytes`
    /// is known, else a lower bound; 0 if nothing shows them.
    pub outside_at_least_bytes: u64,
}

impl DeviceMemory {
    /// Finds the bytes outside of the pool at a failure, from the recorded size of the device.
    ///
    /// Without it, the result is a lower bound: from the most bytes that the pool obtained earlier
    /// in the recording, from the other processes' bytes in the last memory sample, and from the
    /// memory of the smallest possible device, less the process's context.
    pub(super) fn at(failure: &Failure, total_bytes: Option<u64>, most_obtainable_bytes: u64) -> Self {
        let known = total_bytes.unwrap_or(most_obtainable_bytes.max(MIN_DEVICE_BYTES - CONTEXT_BYTES));
        let missing = known.saturating_sub(failure.obtainable_bytes());
        let sampled = failure.others_bytes.filter(|_| total_bytes.is_none()).unwrap_or(0);
        Self { total_bytes, outside_at_least_bytes: missing.max(sampled) }
    }

    /// Returns an upper bound of the bytes that a pool can have on this device: the device's
    /// recorded size. Without it, returns the size of a known GPU on which a pool alone can obtain
    /// `obtainable_bytes`; `None` if there is no such GPU.
    pub(crate) fn most_bytes(self, obtainable_bytes: u64) -> Option<u64> {
        let is_whole = |card: &&Card| (card.usable_bytes()..=card.total_bytes).contains(&obtainable_bytes);
        self.total_bytes.or_else(|| CARDS.iter().find(is_whole).map(|card| card.total_bytes))
    }

    /// Returns true if more than a quarter of the device is held outside of the pool, beside what
    /// the process's context needs. The pool can obtain `obtainable_bytes`.
    pub(super) fn is_mostly_outside(self, obtainable_bytes: u64) -> bool {
        let context_bytes = if self.total_bytes.is_some() { CONTEXT_BYTES } else { 0 };
        let outside = self.outside_at_least_bytes.saturating_sub(context_bytes);
        outside > 0 && outside > obtainable_bytes.saturating_add(self.outside_at_least_bytes) / 4
    }
}
