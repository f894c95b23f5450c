//! What an autopsy finds about one out-of-memory event.

use vramscope_trace::Category;

use super::cause::OomCause;
use super::contents::Holder;
use super::free_memory::FreeMemory;
use crate::failures::{Failure, ReservedCap};
use crate::placement::BlockingRegion;

/// One out-of-memory event with its cause.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfMemory {
    /// The request and the memory at that moment.
    pub failure: Failure,
    /// The cap on the reserved bytes.
    pub cap: ReservedCap,
    /// Bytes of the device that neither the pool holds nor the driver reported as free: the
    /// process's context, libraries and other processes. `None` if the device's size is unknown.
    pub outside_bytes: Option<u64>,
    /// The size of the device in bytes, recorded or that of the next larger GPU; 0: unknown.
    pub total_bytes: u64,
    /// What was free.
    pub free: FreeMemory,
    /// The smallest set of live blocks whose freeing would make room in the request's pool and
    /// stream.
    pub pinning: Option<BlockingRegion>,
    /// Why it failed.
    pub cause: OomCause,
    /// Why it failed, as one sentence.
    pub summary: String,
    /// The line of the program to look at: that of the request, or the one that grows.
    pub site: String,
    /// The line of the program that made the request.
    pub request_line: String,
    /// The lines that grow from step to step.
    pub growing: Vec<String>,
    /// Live bytes by line and category, most first. They add up to the active bytes.
    pub holders: Vec<Holder>,
    /// The first moment of the step in which it failed, approximately.
    pub step_began: u64,
}

impl OutOfMemory {
    /// Returns the bytes that a request can obtain at most: the cap, or what the pool holds and the
    /// driver has.
    #[must_use]
    pub fn obtainable_bytes(&self) -> u64 {
        let held = self.failure.usage.reserved_bytes.saturating_add(self.failure.device_free_bytes);
        if self.is_capped() { self.cap.most_bytes().map_or(held, |cap| cap.min(held)) } else { held }
    }

    /// Returns the bytes that the allocator could certainly reserve: a known cap, or what it held
    /// and the driver had. Where the cap is inferred with wide bounds, the lower bound counts.
    pub(super) fn certain_bytes(&self) -> u64 {
        let held = self.failure.usage.reserved_bytes.saturating_add(self.failure.device_free_bytes);
        let cap = match self.cap {
            _ if !self.is_capped() => held,
            ReservedCap::None => held,
            ReservedCap::Exact { bytes } => bytes,
            ReservedCap::Bounds { at_least_bytes, below_bytes } => {
                let is_close = below_bytes - at_least_bytes <= at_least_bytes / 8;
                if is_close { self.cap.about_bytes().unwrap_or(at_least_bytes) } else { at_least_bytes }
            }
        };
        cap.min(held)
    }

    /// Returns true if a cap refused the segment, not the driver.
    #[must_use]
    pub fn is_capped(&self) -> bool {
        self.cap != ReservedCap::None && self.failure.device_free_bytes >= self.failure.segment_bytes
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
}
