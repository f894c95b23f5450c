//! The result of an autopsy for one out-of-memory event, or several equal ones.

use vramscope_trace::Category;

use super::contents::Holder;
use crate::failures::{DeviceMemory, Failure, OomCause, ReservedCap};
use crate::placement::BlockingRegion;

/// A live block between free ranges, which could become one range without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// The line of the program that requested it.
    pub site: String,
}

/// One out-of-memory event with its cause, and the number of equal ones.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfMemory {
    /// The first failure, and the memory at that moment.
    pub failure: Failure,
    /// The numbers of the events at which a request of equal device, site, size and stream failed,
    /// including this one.
    pub events: Vec<u64>,
    /// The cap on the reserved bytes.
    pub cap: ReservedCap,
    /// The device's size and what others hold of it.
    pub device: DeviceMemory,
    /// The smallest set of live blocks whose freeing would make room in the request's pool and
    /// stream.
    pub pinning: Option<BlockingRegion>,
    /// The largest of these blocks, with their sites.
    pub pins: Vec<Pin>,
    /// Why it failed.
    pub cause: OomCause,
    /// The issue of pytorch/pytorch that describes the failure, if a known defect of PyTorch's
    /// allocator caused it.
    pub pytorch_issue: Option<u32>,
    /// Why it failed, as one sentence or two.
    pub summary: String,
    /// The line or call of the program to look at: that of the request, or the one that grows. Of a
    /// request without a call stack, its size and stream.
    pub site: String,
    /// The line of the program that made the request; `None` without a call stack.
    pub request_line: Option<String>,
    /// Live bytes by line and category, most first. They add up to the active bytes.
    pub holders: Vec<Holder>,
    /// The first moment of the step in which it failed, approximately.
    pub step_began: u64,
    /// The moments at which complete steps before it begin, and the moment at which its own step
    /// begins. Empty without steps.
    pub(super) step_starts: Vec<u64>,
    /// Whether a complete step follows in the recording.
    pub is_continued: bool,
    /// The numbers of the lines that grow from step to step.
    pub(super) growing: std::collections::BTreeSet<u32>,
}

impl OutOfMemory {
    /// Returns the maximum bytes that a request can obtain: the bytes that the cap permits, or the
    /// bytes that the pool holds and the driver has. Of an inferred cap, the upper bound counts.
    #[must_use]
    pub fn obtainable_bytes(&self) -> u64 {
        let held = self.failure.obtainable_bytes();
        if self.is_capped() { self.cap.most_bytes().map_or(held, |cap| cap.min(held)) } else { held }
    }

    /// Returns the bytes that the allocator could certainly reserve: a known cap, or the bytes that
    /// it held and the driver had. Of an inferred cap, the lower bound counts.
    pub(super) fn certain_bytes(&self) -> u64 {
        let held = self.failure.obtainable_bytes();
        match self.cap {
            ReservedCap::Exact { bytes } if self.is_capped() => bytes.min(held),
            ReservedCap::Bounds { at_least_bytes, .. } if self.is_capped() => at_least_bytes.min(held),
            _ => held,
        }
    }

    /// Returns the number of the last event at which an equal request failed.
    #[must_use]
    pub fn last_event(&self) -> u64 {
        self.events.last().copied().unwrap_or(self.failure.event)
    }

    /// Returns true if a cap refused the segment, not the driver.
    #[must_use]
    pub fn is_capped(&self) -> bool {
        self.failure.is_capped_by(self.cap)
    }

    /// Returns the bytes of a category among the holders.
    #[must_use]
    pub fn category_bytes(&self, category: Category) -> u64 {
        self.holders.iter().filter(|holder| holder.category == category).map(|holder| holder.bytes).sum()
    }

    /// Returns the live bytes: allocated or pending free.
    #[must_use]
    pub fn active_bytes(&self) -> u64 {
        self.holders.iter().map(|holder| holder.bytes).sum()
    }

    /// Returns where the request was made, as a phrase: `train.py:24 step`, or `the failed request`
    /// without a call stack.
    pub(super) fn request_place(&self) -> &str {
        self.request_line.as_deref().unwrap_or("the failed request")
    }
}
