//! Why a request failed, in one word and in sentences.

use std::fmt::Write;

use vramscope_trace::{ByteSize, Count};

use super::cap::ReservedCap;
use super::failure::Failure;

/// Why the memory of the allocator and the device did not serve a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureCause {
    /// More than the cap or the device's whole memory was requested.
    TooLarge,
    /// Enough bytes were free in the request's pool and stream, but in blocks that are too small.
    Fragmented,
    /// Another pool or stream had a free block that is large enough.
    OtherPool,
    /// The request's own pool and stream had a free block that is large enough. The request
    /// belonged to a private pool, or a setting kept the block from being used.
    BlockNotUsed,
    /// The segment that the request needed would have exceeded the cap.
    OverCap,
    /// The device had less free memory than the request needed.
    DeviceFull,
}

impl FailureCause {
    /// Returns the cause's name for users, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooLarge => "request larger than everything",
            Self::Fragmented => "fragmentation",
            Self::OtherPool => "free memory in another pool or stream",
            Self::BlockNotUsed => "a free block was not used",
            Self::OverCap => "over the cap",
            Self::DeviceFull => "device full",
        }
    }

    /// Finds the cause of a failure under a cap, on a device of `total_bytes` (0: unknown).
    pub(super) fn of(failure: &Failure, cap: ReservedCap, total_bytes: u64) -> Self {
        let obtainable_bytes = match cap.most_bytes() {
            Some(most_bytes) => most_bytes,
            // Without a cap: everything that the allocator holds and what the driver has left.
            None => failure.usage.reserved_bytes.saturating_add(failure.device_free_bytes),
        };
        let wanted_bytes = failure.rounded_bytes;
        if wanted_bytes > obtainable_bytes || (total_bytes > 0 && wanted_bytes > total_bytes) {
            Self::TooLarge
        } else if failure.largest_own_bytes >= wanted_bytes {
            Self::BlockNotUsed
        } else if failure.own_free_bytes >= wanted_bytes {
            Self::Fragmented
        } else if failure.largest.is_some_and(|largest| largest.bytes >= wanted_bytes) {
            Self::OtherPool
        } else if cap != ReservedCap::None && failure.reservation().shows_cap() {
            Self::OverCap
        } else {
            Self::DeviceFull
        }
    }

    /// Returns the cause of `failure` under `cap` as sentences for users.
    pub(super) fn summary(self, failure: &Failure, cap: ReservedCap) -> String {
        let size = ByteSize(failure.rounded_bytes);
        let (own_free, largest_own) = (ByteSize(failure.own_free_bytes), ByteSize(failure.largest_own_bytes));
        let mut text = match self {
            Self::TooLarge => format!("{size} is more than the allocator could ever reserve here."),
            Self::Fragmented => format!(
                "{size} failed by fragmentation: {own_free} was free in its pool and stream, but the largest free \
                 block was {largest_own}."
            ),
            Self::OtherPool => {
                let largest = ByteSize(failure.largest.map_or(0, |largest| largest.bytes));
                format!(
                    "{size} failed although a block of {largest} was free: it belongs to another pool or stream, \
                     whose memory this request could not use."
                )
            }
            Self::BlockNotUsed => format!(
                "{size} failed although a block of {largest_own} was free in the default pool: the request was made \
                 for a private pool, or the allocator's settings kept the block from being used."
            ),
            Self::OverCap => {
                format!("{size} failed because of a cap: only {own_free} was free in its pool and stream.")
            }
            Self::DeviceFull => format!("{size} failed because the device was full."),
        };
        let (reserved, segment) = (ByteSize(failure.usage.reserved_bytes), ByteSize(failure.segment_bytes));
        let device_free = ByteSize(failure.device_free_bytes);
        // Writing to a string does not fail.
        let _ = if failure.reservation().shows_cap() && cap != ReservedCap::None {
            let asked = if failure.segment_bytes == failure.rounded_bytes { "asked" } else { "for a new segment" };
            write!(
                text,
                " A new segment would have exceeded {cap} ({reserved} reserved + {segment} {asked} > cap), although \
                 the device had {device_free} free."
            )
        } else {
            write!(text, " A new segment of {segment} did not fit in the device's free {device_free}.")
        };
        if failure.released > 0 {
            let segments = Count(failure.released).of("free segment", "free segments");
            let _ = write!(text, " {segments} ({}) had been released for it.", ByteSize(failure.released_bytes));
        }
        text
    }
}
