//! The causes of an out-of-memory error.

use std::fmt;

/// Why a request failed with out of memory. [`id`](Self::id) is the name in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OomCause {
    /// The request is larger than the cap or the device.
    NeverFits,
    /// Other processes or libraries hold most of the device.
    Outside,
    /// A fitting block was pending free or had just been freed (pytorch/pytorch#189504).
    PendingFrees,
    /// Cached segments were not released, as inside of `use_mem_pool` (pytorch/pytorch#159674).
    PoolWithoutRelease,
    /// Enough memory was free, but in a private pool.
    PrivatePool,
    /// Enough memory was free, but for another stream.
    OtherStream,
    /// Memory grew from step to step until it was full.
    Leak,
    /// Enough bytes were free, but in blocks that are too small.
    Fragmentation,
    /// The parameters alone fill the memory.
    Parameters,
    /// The optimizer's state did not fit when it was created.
    OptimizerState,
    /// One temporary is a large part of the memory.
    Temporary,
    /// The activations of one step did not fit.
    Activations,
    /// The cap was reached, for no cause above.
    OverCap,
    /// The device was full, for no cause above.
    DeviceFull,
}

impl OomCause {
    /// Returns the machine-readable name.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::NeverFits => "never_fits",
            Self::Outside => "outside",
            Self::PendingFrees => "pending_frees",
            Self::PoolWithoutRelease => "pool_without_release",
            Self::PrivatePool => "private_pool",
            Self::OtherStream => "other_stream",
            Self::Leak => "leak",
            Self::Fragmentation => "fragmentation",
            Self::Parameters => "parameters",
            Self::OptimizerState => "optimizer_state",
            Self::Temporary => "temporary",
            Self::Activations => "activations",
            Self::OverCap => "over_cap",
            Self::DeviceFull => "device_full",
        }
    }

    /// Returns the number of the issue of pytorch/pytorch that describes the cause, if it is a
    /// defect of PyTorch's allocator.
    #[must_use]
    pub const fn pytorch_issue(self) -> Option<u32> {
        match self {
            Self::PendingFrees => Some(189_504),
            Self::PoolWithoutRelease => Some(159_674),
            _ => None,
        }
    }
}

impl fmt::Display for OomCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}
