//! The allocated bytes of nested intervals of a program.

use std::cell::{Cell, RefCell};

use super::text_table::difference;
use crate::device::Device;
use crate::operation::{MemoryChange, OperationObserver};

/// The allocated bytes of one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Interval {
    /// At the beginning.
    pub(super) before: u64,
    /// The most within.
    pub(super) peak: u64,
    /// At the end.
    pub(super) after: u64,
}

/// Measures the allocated bytes of nested intervals. The peaks are its own: those of the allocator
/// are neither read nor reset.
pub(super) struct Intervals {
    device: Device,
    /// Bytes before and peak so far of the open intervals, the innermost last. A peak is passed on
    /// to the outer interval when the inner one ends.
    open: RefCell<Vec<(u64, u64)>>,
    /// Changes of the allocated bytes while no interval was open, and in intervals that were
    /// forgotten.
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

    /// Begins an interval inside those that are open.
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

    /// Forgets the open intervals.
    pub(super) fn clear(&self) {
        self.open.borrow_mut().clear();
        self.outside.set(self.outside.get() + self.within.take());
    }

    /// Returns how the allocated bytes changed outside of the intervals that have ended.
    pub(super) fn outside_bytes(&self) -> i64 {
        self.outside.get() + self.within.get()
    }

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
