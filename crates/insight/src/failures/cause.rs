//! Why a request failed, in one word and in sentences.

use std::fmt::Write;

use vramscope_pool::Settings;
use vramscope_trace::{ByteSize, Count};

use super::cap::ReservedCap;
use super::device_memory::DeviceMemory;
use super::failure::Failure;

/// Why a request failed with out of memory. [`id`](Self::id) is the name in JSON.
///
/// The causes are tried in the order of their declaration; the first that applies is reported.
/// [`Failures`](super::Failures) finds causes in the allocator and the device.
/// [`Autopsy`](crate::autopsy::Autopsy) also examines the program, and finds the causes from
/// [`Leak`](Self::Leak) to [`Activations`](Self::Activations) where one of the last three applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OomCause {
    /// The request alone is larger than the cap or the device.
    NeverFits,
    /// Other processes or libraries hold much of the device.
    Outside,
    /// Whole segments were free, but were not released, as inside of `use_mem_pool`
    /// (pytorch/pytorch#159674).
    PoolWithoutRelease,
    /// A fitting block was pending free (pytorch/pytorch#175015) or had just been freed
    /// (pytorch/pytorch#189504).
    PendingFrees,
    /// A fitting block was free in the request's pool and stream.
    BlockNotUsed,
    /// A fitting block was free for another stream.
    OtherStream,
    /// Enough memory was free in private pools.
    PrivatePool,
    /// Memory grew from step to step until it was full.
    Leak,
    /// The optimizer's state did not fit when it was created.
    OptimizerState,
    /// The parameters alone fill the memory.
    Parameters,
    /// One temporary is a large part of the memory.
    Temporary,
    /// The activations of one step did not fit.
    Activations,
    /// Enough bytes were free in the request's pool and stream, but in blocks that are too small.
    Fragmentation,
    /// The segment that the request needed would have exceeded the cap.
    OverCap,
    /// The device had less free memory than the request needed.
    DeviceFull,
}

impl OomCause {
    /// All causes.
    const ALL: [Self; 15] = [
        Self::NeverFits,
        Self::Outside,
        Self::PoolWithoutRelease,
        Self::PendingFrees,
        Self::BlockNotUsed,
        Self::OtherStream,
        Self::PrivatePool,
        Self::Leak,
        Self::OptimizerState,
        Self::Parameters,
        Self::Temporary,
        Self::Activations,
        Self::Fragmentation,
        Self::OverCap,
        Self::DeviceFull,
    ];

    /// Returns the machine-readable name.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::NeverFits => "never_fits",
            Self::Outside => "outside",
            Self::PoolWithoutRelease => "pool_without_release",
            Self::PendingFrees => "pending_frees",
            Self::BlockNotUsed => "block_not_used",
            Self::OtherStream => "other_stream",
            Self::PrivatePool => "private_pool",
            Self::Leak => "leak",
            Self::OptimizerState => "optimizer_state",
            Self::Parameters => "parameters",
            Self::Temporary => "temporary",
            Self::Activations => "activations",
            Self::Fragmentation => "fragmentation",
            Self::OverCap => "over_cap",
            Self::DeviceFull => "device_full",
        }
    }

    /// Returns the cause with a machine-readable name; `None` for another text.
    #[must_use]
    pub fn from_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.id() == id)
    }

    /// Returns the cause's name for users, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NeverFits => "request larger than everything",
            Self::Outside => "memory outside of the pool",
            Self::PoolWithoutRelease => "cached segments were not released",
            Self::PendingFrees => "pending frees",
            Self::BlockNotUsed => "a free block was not used",
            Self::OtherStream => "free memory of another stream",
            Self::PrivatePool => "free memory in private pools",
            Self::Leak => "growth from step to step",
            Self::OptimizerState => "the optimizer's state",
            Self::Parameters => "the parameters",
            Self::Temporary => "one large temporary",
            Self::Activations => "the activations",
            Self::Fragmentation => "fragmentation",
            Self::OverCap => "over the cap",
            Self::DeviceFull => "device full",
        }
    }

    /// Returns true if the allocator's rules kept free memory from serving the request.
    #[must_use]
    pub const fn is_of_allocator(self) -> bool {
        use OomCause::{BlockNotUsed, Fragmentation, OtherStream, PendingFrees, PoolWithoutRelease, PrivatePool};
        matches!(self, PoolWithoutRelease | PendingFrees | BlockNotUsed | OtherStream | PrivatePool | Fragmentation)
    }

    /// Finds the cause of a failure under a cap.
    pub(super) fn of(failure: &Failure, cap: ReservedCap, device: DeviceMemory) -> Self {
        let (need, other) = (failure.rounded_bytes, &failure.free);
        let is_capped = failure.is_capped_by(cap);
        let held = failure.obtainable_bytes();
        // The request alone must exceed the bytes that the pool may use: an inferred cap counts
        // with its upper bound.
        let most_bytes =
            if is_capped { cap.most_bytes().unwrap_or(u64::MAX) } else { device.most_bytes(held).unwrap_or(u64::MAX) };
        if need > most_bytes {
            return Self::NeverFits;
        }
        if !is_capped && device.is_mostly_outside(held) {
            return Self::Outside;
        }
        if other.releasable_bytes >= need && failure.released == 0 {
            return Self::PoolWithoutRelease;
        }
        if failure.was_just_freed || other.with_pending_largest_bytes >= need {
            return Self::PendingFrees;
        }
        if failure.largest_own_bytes >= need {
            return Self::BlockNotUsed;
        }
        if other.other_streams.largest >= need {
            return Self::OtherStream;
        }
        if other.private_pools.total >= need && other.private_pools.total >= failure.own_free_bytes {
            return Self::PrivatePool;
        }
        if failure.own_free_bytes >= need {
            return Self::Fragmentation;
        }
        if is_capped { Self::OverCap } else { Self::DeviceFull }
    }

    /// Returns the number of the issue of pytorch/pytorch that describes the failure, if a known
    /// defect of PyTorch's allocator caused it.
    pub(super) fn pytorch_issue(self, failure: &Failure, settings: &Settings) -> Option<u32> {
        match self {
            Self::PendingFrees if failure.was_just_freed => Some(189_504),
            // A request waits for all pending frees before it fails, except inside of a pool.
            Self::PendingFrees => Some(175_015),
            Self::PoolWithoutRelease => Some(159_674),
            Self::BlockNotUsed if settings.expandable_segments && is_oversize(failure, settings) => Some(193_400),
            _ => None,
        }
    }

    /// Returns the cause of `failure` under `cap` as sentences for users. Causes that only an
    /// autopsy finds have the sentences of the limit that was reached.
    pub(super) fn summary(
        self,
        failure: &Failure,
        cap: ReservedCap,
        device: DeviceMemory,
        settings: &Settings,
    ) -> String {
        let (size, other) = (ByteSize(failure.rounded_bytes), &failure.free);
        let (own_free, largest_own) = (ByteSize(failure.own_free_bytes), ByteSize(failure.largest_own_bytes));
        let mut text = match self {
            Self::NeverFits => {
                let limit = match failure.is_capped_by(cap) {
                    true => cap.to_string(),
                    false => format!("the {} that the pool could get", ByteSize(failure.obtainable_bytes())),
                };
                return format!("{size} can never fit: it is more than {limit}.");
            }
            Self::Outside => {
                let bytes = ByteSize(device.outside_at_least_bytes);
                let bytes = if device.total_bytes.is_some() { bytes.to_string() } else { format!("at least {bytes}") };
                return format!(
                    "{size} failed because memory outside of the pool fills the device: the pool held {}, the driver \
                     had {} free, and other processes or libraries held {bytes}.",
                    ByteSize(failure.usage.reserved_bytes),
                    ByteSize(failure.device_free_bytes),
                );
            }
            Self::PoolWithoutRelease => format!(
                "{size} failed although {} of cached segments were free as a whole: they were not released, as \
                 happens inside of torch.cuda.use_mem_pool.",
                ByteSize(other.releasable_bytes)
            ),
            Self::PendingFrees if failure.was_just_freed => format!(
                "{size} failed although a block of {largest_own} had just been freed: the request waited for another \
                 stream that used it, and PyTorch does not look for free blocks again before it gives up."
            ),
            Self::PendingFrees => format!(
                "{size} failed although it would fit in memory whose free is pending: {} wait for another stream, \
                 and inside of torch.cuda.use_mem_pool or a graph capture no such free completes.",
                ByteSize(other.pending.total)
            ),
            Self::BlockNotUsed => {
                let reason = match settings.max_split_size_bytes {
                    Some(max) if is_oversize(failure, settings) => {
                        format!("blocks of max_split_size_mb ({}) or more are not split for it", ByteSize(max))
                    }
                    Some(max) if failure.rounded_bytes >= max => {
                        "with max_split_size_mb, a request of that size or more gets no block that is much larger"
                            .to_owned()
                    }
                    _ => "the request was made for a private pool, or this is a defect of the allocator".to_owned(),
                };
                format!("{size} failed although a block of {largest_own} was free in its pool and stream: {reason}.")
            }
            Self::OtherStream => format!(
                "{size} failed although a block of {} was free: it belongs to another stream, whose memory this \
                 request could not use.",
                ByteSize(other.other_streams.largest)
            ),
            Self::PrivatePool => format!(
                "{size} failed although {} was free in private pools (a CUDA graph or torch.cuda.MemPool), whose \
                 memory this request could not use.",
                ByteSize(other.private_pools.total)
            ),
            Self::Fragmentation => format!(
                "{size} failed by fragmentation: {own_free} was free in its pool and stream, but the largest free \
                 block was {largest_own}."
            ),
            _ if failure.is_capped_by(cap) => {
                format!("{size} failed because of a cap: only {own_free} was free in its pool and stream.")
            }
            _ => format!("{size} failed because the device was full."),
        };
        let (reserved, segment) = (ByteSize(failure.usage.reserved_bytes), ByteSize(failure.segment_bytes));
        let device_free = ByteSize(failure.device_free_bytes);
        // Writing to a string does not fail.
        let _ = if failure.is_capped_by(cap) {
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

/// Returns true if the largest free block is too large to be split for the request.
fn is_oversize(failure: &Failure, settings: &Settings) -> bool {
    settings.max_split_size_bytes.is_some_and(|max| failure.rounded_bytes < max && failure.largest_own_bytes >= max)
}
