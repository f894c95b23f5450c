//! What the reserved bytes consist of.

use std::fmt;

use vramscope_trace::{ByteSize, Percent};

use super::usage::PoolUsage;

/// The parts of the reserved bytes. They add up to `reserved_bytes` in a consistent history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReservedBreakdown {
    /// Bytes of all segments.
    pub reserved_bytes: u64,
    /// Bytes that the program requested for allocated blocks.
    pub requested_bytes: u64,
    /// Bytes that rounding adds to these requests.
    pub rounding_bytes: u64,
    /// Bytes that the program freed but that wait for other streams.
    pub pending_bytes: u64,
    /// Free bytes that share a segment, or a page of an expandable segment, with a live block.
    pub stuck_bytes: u64,
    /// Free bytes in whole free segments and pages: `torch.cuda.empty_cache()` releases them.
    pub releasable_bytes: u64,
}

impl fmt::Display for ReservedBreakdown {
    /// Writes the parts that are not 0, each with its share of the reserved bytes: `requested 982
    /// MiB (96.0%), stuck 41 MiB (4.0%)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("requested", self.requested_bytes),
            ("rounding", self.rounding_bytes),
            ("pending free", self.pending_bytes),
            ("stuck", self.stuck_bytes),
            ("releasable", self.releasable_bytes),
        ];
        let mut separator = "";
        for (name, bytes) in parts.into_iter().filter(|&(_, bytes)| bytes > 0) {
            write!(f, "{separator}{name} {} ({})", ByteSize(bytes), Percent::of(bytes, self.reserved_bytes))?;
            separator = ", ";
        }
        Ok(())
    }
}

impl From<&PoolUsage> for ReservedBreakdown {
    fn from(usage: &PoolUsage) -> Self {
        // Blocks that are pending free count as requested in PyTorch's counter.
        let live_bytes = usage.allocated_bytes.saturating_add(usage.pending_bytes);
        let rounding_bytes = live_bytes.saturating_sub(usage.requested_bytes).min(usage.allocated_bytes);
        Self {
            reserved_bytes: usage.reserved_bytes,
            requested_bytes: usage.allocated_bytes - rounding_bytes,
            rounding_bytes,
            pending_bytes: usage.pending_bytes,
            stuck_bytes: usage.stuck_bytes,
            releasable_bytes: usage.releasable_bytes,
        }
    }
}
