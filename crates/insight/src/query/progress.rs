//! The progress of a scan over events or allocations.

/// How far a scan that runs in steps has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanProgress {
    /// Items (events or rows) that were visited.
    pub done: u64,
    /// Items in all.
    pub total: u64,
}

impl ScanProgress {
    /// Returns true if all items were visited.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.done >= self.total
    }
}
