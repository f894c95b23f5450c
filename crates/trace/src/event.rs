//! What happened to a GPU's memory, one event at a time.
//!
//! Events are numbered from 0 in the order in which they happened; "event number n" as a *moment* is the one after the
//! first n events have been applied. Addresses, sizes and times are unsigned 64-bit; sizes are in bytes, times in nanoseconds.

use crate::site::{SiteId, StringId};

/// A GPU, by the number that the recorded program gave it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

impl DeviceId {
    /// Pinned memory of the host, which is no GPU's: PyTorch's host allocator keeps segments and blocks of it, too.
    pub const HOST: Self = Self(u16::MAX);
}

/// A CUDA stream, by the value that the recorded program knew it by (0 is the default stream).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Which of the allocator's two size classes a segment serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolKind {
    /// Blocks of up to 1 MiB, in segments of 2 MiB.
    #[default]
    Small,
    /// Everything larger.
    Large,
}

/// The private memory pool (a CUDA graph's, or one that the program made) that owns a segment; `(0, 0)` is the default pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MempoolId(pub u64, pub u64);

/// A pool of segments: blocks are found, split and merged only within one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pool {
    /// The size class.
    pub kind: PoolKind,
    /// The private pool, or the default one.
    pub owner: MempoolId,
}

impl Pool {
    /// The default pool's size class `kind`.
    #[must_use]
    pub const fn default_of(kind: PoolKind) -> Self {
        Self { kind, owner: MempoolId(0, 0) }
    }
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The GPU it happened on.
    pub device: DeviceId,
    /// Nanoseconds; what time 0 is, the recording's [`Info`](crate::Info) says.
    pub time_ns: u64,
    /// What happened.
    pub kind: EventKind,
}

/// What happened. `site` is where in the program it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The driver gave the allocator a segment.
    SegmentAllocated {
        /// First byte.
        address: u64,
        /// Bytes.
        size: u64,
        /// The stream whose blocks it serves.
        stream: StreamId,
        /// The pool it belongs to.
        pool: Pool,
        /// Where the request came from.
        site: SiteId,
    },
    /// The allocator gave a segment back to the driver.
    SegmentFreed {
        /// First byte of the segment.
        address: u64,
        /// Bytes.
        size: u64,
        /// Where the request came from.
        site: SiteId,
    },
    /// Physical pages were mapped into an expandable segment. Ranges that touch and have the same stream and pool are one segment.
    SegmentMapped {
        /// First byte of the range.
        address: u64,
        /// Bytes.
        size: u64,
        /// The stream whose blocks it serves.
        stream: StreamId,
        /// The pool it belongs to.
        pool: Pool,
        /// Where the request came from.
        site: SiteId,
    },
    /// Physical pages were unmapped from an expandable segment.
    SegmentUnmapped {
        /// First byte of the range.
        address: u64,
        /// Bytes.
        size: u64,
        /// Where the request came from.
        site: SiteId,
    },
    /// A block was handed to the program.
    BlockAllocated {
        /// First byte.
        address: u64,
        /// Bytes of the block, after rounding.
        size: u64,
        /// Bytes asked for.
        requested: u64,
        /// The stream it was allocated on.
        stream: StreamId,
        /// The pool it was taken from.
        pool: Pool,
        /// Where the request came from.
        site: SiteId,
    },
    /// The program freed a block. It stays active until every stream that used it is done with it.
    FreeRequested {
        /// First byte of the block.
        address: u64,
        /// Where the free came from.
        site: SiteId,
    },
    /// The block went back to its pool and can be handed out again.
    FreeCompleted {
        /// First byte of the block.
        address: u64,
        /// Where the free came from.
        site: SiteId,
    },
    /// A request could not be served.
    OutOfMemory {
        /// Bytes asked for, after rounding.
        requested: u64,
        /// Bytes that the device had free.
        device_free: u64,
        /// The stream of the request.
        stream: StreamId,
        /// Where the request came from.
        site: SiteId,
    },
    /// What the driver said of the device's memory as a whole.
    MemorySample {
        /// Bytes held by this process outside the allocator: the context, modules, libraries.
        used_by_context: u64,
        /// Bytes held by other processes.
        used_by_others: u64,
        /// Bytes free.
        free: u64,
    },
    /// A step, a phase, an annotation, or anything else worth a name on the time axis.
    Mark {
        /// Whether it begins, ends, or just is.
        stage: Stage,
        /// Its name.
        name: StringId,
        /// The first byte of the block that it is about; 0 where it is about none.
        address: u64,
        /// Where it came from.
        site: SiteId,
    },
    /// Events are known to be missing here; a full state follows.
    Gap {
        /// How many.
        lost: u64,
    },
}

/// Whether a mark begins something, ends it, or stands alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// A moment.
    #[default]
    Instant,
    /// The beginning of a span.
    Begin,
    /// The end of the innermost open span of the same name.
    End,
}

/// A named moment that its source kept beside the history and not in it, so that it has no event number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// The GPU it belongs to.
    pub device: DeviceId,
    /// When.
    pub time_ns: u64,
    /// It stands after the first `at_event` events.
    pub at_event: u64,
    /// Whether it begins, ends, or just is.
    pub stage: Stage,
    /// Its name.
    pub name: StringId,
}
