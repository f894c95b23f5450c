//! Measurement of allocated bytes over nested intervals of a program.

use std::cell::{Cell, RefCell};

use super::text_table::difference;
use crate::device::Device;
use crate::operation::{MemoryChange, OperationObserver};

/// The allocated bytes of a device in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Interval {
    /// Allocated bytes at the beginning.
    pub(super) before: u64,
    /// Maximum of the allocated bytes within the interval.
    pub(super) peak: u64,
    /// Allocated bytes at the end.
    pub(super) after: u64,
}

/// An observer that measures the allocated bytes of nested intervals. It computes its own peaks: it
/// neither reads nor resets the allocator's peaks.
pub(super) struct Intervals {
    device: Device,
    /// Bytes at the beginning and peak so far of each open interval, the innermost last. When an
    /// interval ends, its peak raises the peak of the outer interval.
    open: RefCell<Vec<(u64, u64)>>,
    /// Changes of the allocated bytes while no interval was open, and in discarded intervals.
    outside: Cell<i64>,
    /// Changes of the allocated bytes since the outermost open interval began.
    within: Cell<i64>,
}

impl Intervals {
    pub(super) fn new(device: &Device) -> Self {
        Self { device: device.clone(), open: RefCell::default(), outside: Cell::new(0), within: Cell::new(0) }
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Begins an interval inside the open intervals.
    pub(super) fn begin(&self) {
        let now = self.device.memory().allocated_bytes();
        self.open.borrow_mut().push((now, now));
    }

    /// Ends the innermost interval. Returns `None` if none is open.
    pub(super) fn end(&self) -> Option<Interval> {
        let after = self.device.memory().allocated_bytes();
        let (before, peak) = self.open.borrow_mut().pop()?;
        let peak = peak.max(after);
        self.raise_peak(peak);
        if self.open.borrow().is_empty() {
            self.within.set(0);
        }
        Some(Interval { before, peak, after })
    }

    /// Discards the open intervals.
    pub(super) fn clear(&self) {
        self.open.borrow_mut().clear();
        self.outside.set(self.outside.get() + self.within.take());
    }

    /// Returns the change of the allocated bytes outside of the intervals that have ended.
    pub(super) fn outside_bytes(&self) -> i64 {
        self.outside.get() + self.within.get()
    }

    /// Raises the peak of the innermost open interval to at least `bytes`.
    fn raise_peak(&self, bytes: u64) {
        if let Some((_, peak)) = self.open.borrow_mut().last_mut() {
            *peak = (*peak).max(bytes);
        }
    }
}

impl OperationObserver for Intervals {
    fn memory_changed(&self, change: &MemoryChange<'_>) {
        if change.device.is(&self.device) {
            self.raise_peak(change.allocated_before.max(change.allocated_after));
            let sum = if self.open.borrow().is_empty() { &self.outside } else { &self.within };
            sum.set(sum.get() + difference(change.allocated_after, change.allocated_before));
        }
    }
}
