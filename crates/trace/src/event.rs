//! Events: the changes of a GPU's memory that the allocator recorded, one at a time.
//!
//! Addresses, sizes and times are unsigned 64-bit integers; sizes are in bytes, times in
//! nanoseconds.

use std::fmt;

use crate::site::{SiteId, StringId};

/// A device: a GPU, identified by the index (from 0) that the recorded program used for it, pinned
/// host memory, or ordinary memory of the host. It is displayed as `device 0`, `pinned host memory`
/// or `CPU memory`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

impl DeviceId {
    /// Pinned host memory, which PyTorch's host allocator also manages in segments and blocks.
    pub const HOST: Self = Self(u16::MAX);
    /// Ordinary memory of the host, which profiler traces contain.
    pub const CPU: Self = Self(u16::MAX - 1);

    /// Returns true for a GPU, false for memory of the host.
    #[must_use]
    pub const fn is_gpu(self) -> bool {
        self.0 < Self::CPU.0
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::HOST => f.pad("pinned host memory"),
            Self::CPU => f.pad("CPU memory"),
            Self(number) => f.pad(&format!("device {number}")),
        }
    }
}

/// A CUDA stream, identified by its handle in the recorded program (0 is the default stream).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// The size class of a pool: small (requests of up to 1 MiB) or large. The allocator keeps small
/// and large blocks in separate segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolKind {
    /// Requests of up to 1 MiB, served from segments of 2 MiB (PyTorch's `small_pool`).
    #[default]
    Small,
    /// Requests of more than 1 MiB (PyTorch's `large_pool`).
    Large,
}

/// A private memory pool (PyTorch's `MempoolId_t`); `(0, 0)` is the default pool.
///
/// CUDA graphs and `torch.cuda.MemPool` have private pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MempoolId(pub u64, pub u64);

/// Identifies a pool of segments: its size class and the private pool it belongs to.
///
/// Blocks are reused, split and merged only within one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolKey {
    /// The size class.
    pub kind: PoolKind,
    /// The private pool, or the default pool.
    pub owner: MempoolId,
}

impl PoolKey {
    /// Returns the key of the pool that serves requests of size class `kind` outside of private
    /// pools.
    #[must_use]
    pub const fn default_of(kind: PoolKind) -> Self {
        Self { kind, owner: MempoolId(0, 0) }
    }
}

/// One event of a recording: what happened, when, and on which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The device on which it happened.
    pub device: DeviceId,
    /// Nanoseconds since the recording's time 0, see
    /// [`RecordingInfo::epoch_unix_ns`](crate::RecordingInfo::epoch_unix_ns).
    pub time_ns: u64,
    /// What happened.
    pub kind: EventKind,
}

/// The kind of an [`Event`] with its values. The field `site` is the place in the program that
/// caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The allocator obtained a segment from the driver (`segment_alloc`).
    SegmentAllocated {
        /// Address of the first byte.
        address: u64,
        /// Size in bytes.
        size: u64,
        /// The stream whose requests the segment serves.
        stream: StreamId,
        /// The pool that the segment belongs to.
        pool: PoolKey,
        /// Where the request that needed the segment was made.
        site: SiteId,
    },
    /// The allocator returned a segment to the driver (`segment_free`).
    SegmentFreed {
        /// Address of the segment's first byte.
        address: u64,
        /// Size in bytes.
        size: u64,
        /// Where the request that caused the release was made.
        site: SiteId,
    },
    /// Physical memory was mapped into an expandable segment (`segment_map`).
    ///
    /// Adjacent ranges of the same stream and pool form one segment.
    SegmentMapped {
        /// Address of the first byte of the mapped range.
        address: u64,
        /// Size of the mapped range in bytes.
        size: u64,
        /// The stream whose requests the segment serves.
        stream: StreamId,
        /// The pool that the segment belongs to.
        pool: PoolKey,
        /// Where the request that needed the memory was made.
        site: SiteId,
    },
    /// Physical memory was unmapped from an expandable segment (`segment_unmap`).
    SegmentUnmapped {
        /// Address of the first byte of the unmapped range.
        address: u64,
        /// Size of the unmapped range in bytes.
        size: u64,
        /// Where the request that caused the unmapping was made.
        site: SiteId,
    },
    /// The allocator returned a block to the program (`alloc`).
    BlockAllocated {
        /// Address of the first byte.
        address: u64,
        /// Size of the block in bytes, after rounding.
        size: u64,
        /// Size that the program requested, in bytes.
        requested: u64,
        /// The stream on which the block was allocated.
        stream: StreamId,
        /// The pool that served the request.
        pool: PoolKey,
        /// Where the request was made.
        site: SiteId,
    },
    /// The program freed a block (`free_requested`).
    ///
    /// The block stays active (pending free) until every stream that used it has finished with it.
    FreeRequested {
        /// Address of the block's first byte.
        address: u64,
        /// Where the block was freed.
        site: SiteId,
    },
    /// A freed block returned to its pool and can be reused (`free_completed`).
    FreeCompleted {
        /// Address of the block's first byte.
        address: u64,
        /// Where the block was freed.
        site: SiteId,
    },
    /// A request failed after every retry (`oom`).
    OutOfMemory {
        /// Requested size in bytes, after rounding.
        requested: u64,
        /// Bytes of device memory that were free.
        device_free: u64,
        /// The stream of the request.
        stream: StreamId,
        /// Where the request was made.
        site: SiteId,
    },
    /// The driver's report on the device's whole memory, see
    /// [`MemorySample`](crate::MemorySample).
    MemorySample {
        /// Bytes that this process holds outside the pool: CUDA context, modules, libraries.
        used_by_context: u64,
        /// Bytes that other processes hold.
        used_by_others: u64,
        /// Free bytes.
        free: u64,
    },
    /// A named moment that the program recorded, for example the start of a training step.
    Mark {
        /// Whether the mark begins a span, ends one, or is a single moment.
        stage: AnnotationStage,
        /// The mark's name.
        name: StringId,
        /// Address of the block that the mark is about; 0 for none.
        address: u64,
        /// Where the mark was made.
        site: SiteId,
    },
    /// Events are missing here; a full state follows.
    Gap {
        /// Number of missing events.
        lost: u64,
    },
}

/// The type of an event without its values, for filters and tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EventType {
    /// [`EventKind::SegmentAllocated`].
    SegmentAllocated,
    /// [`EventKind::SegmentFreed`].
    SegmentFreed,
    /// [`EventKind::SegmentMapped`].
    SegmentMapped,
    /// [`EventKind::SegmentUnmapped`].
    SegmentUnmapped,
    /// [`EventKind::BlockAllocated`].
    BlockAllocated,
    /// [`EventKind::FreeRequested`].
    FreeRequested,
    /// [`EventKind::FreeCompleted`].
    FreeCompleted,
    /// [`EventKind::OutOfMemory`].
    OutOfMemory,
    /// [`EventKind::MemorySample`].
    MemorySample,
    /// [`EventKind::Mark`].
    Mark,
    /// [`EventKind::Gap`].
    Gap,
}

impl EventType {
    /// All types, in the order of their values.
    pub const ALL: [Self; 11] = [
        Self::SegmentAllocated,
        Self::SegmentFreed,
        Self::SegmentMapped,
        Self::SegmentUnmapped,
        Self::BlockAllocated,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::OutOfMemory,
        Self::MemorySample,
        Self::Mark,
        Self::Gap,
    ];

    /// The name for users and the name in tables of each type, in the order of their values.
    const NAMES: [(&str, &str); 11] = [
        ("segment allocated", "segment_alloc"),
        ("segment freed", "segment_free"),
        ("segment mapped", "segment_map"),
        ("segment unmapped", "segment_unmap"),
        ("block allocated", "alloc"),
        ("free requested", "free_requested"),
        ("free completed", "free_completed"),
        ("out of memory", "oom"),
        ("memory sample", "memory_sample"),
        ("mark", "mark"),
        ("gap", "gap"),
    ];

    /// Returns the type's name for users, in lower case: `block allocated`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }

    /// Returns the type's name in exported tables and filters: PyTorch's `action` if PyTorch has
    /// one, such as `segment_alloc`.
    #[must_use]
    pub const fn action(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

impl EventKind {
    /// Returns the event's type, without its values.
    #[must_use]
    pub const fn event_type(&self) -> EventType {
        match self {
            Self::SegmentAllocated { .. } => EventType::SegmentAllocated,
            Self::SegmentFreed { .. } => EventType::SegmentFreed,
            Self::SegmentMapped { .. } => EventType::SegmentMapped,
            Self::SegmentUnmapped { .. } => EventType::SegmentUnmapped,
            Self::BlockAllocated { .. } => EventType::BlockAllocated,
            Self::FreeRequested { .. } => EventType::FreeRequested,
            Self::FreeCompleted { .. } => EventType::FreeCompleted,
            Self::OutOfMemory { .. } => EventType::OutOfMemory,
            Self::MemorySample { .. } => EventType::MemorySample,
            Self::Mark { .. } => EventType::Mark,
            Self::Gap { .. } => EventType::Gap,
        }
    }

    /// Returns the number of the event's site; `None` for kinds of events that have no site: memory
    /// samples and gaps.
    #[must_use]
    pub fn site(mut self) -> Option<SiteId> {
        self.site_mut().copied()
    }

    /// Returns the number of the event's site mutably, to replace it; `None` for kinds of events
    /// that have no site: memory samples and gaps.
    #[must_use]
    pub fn site_mut(&mut self) -> Option<&mut SiteId> {
        match self {
            Self::SegmentAllocated { site, .. }
            | Self::SegmentFreed { site, .. }
            | Self::SegmentMapped { site, .. }
            | Self::SegmentUnmapped { site, .. }
            | Self::BlockAllocated { site, .. }
            | Self::FreeRequested { site, .. }
            | Self::FreeCompleted { site, .. }
            | Self::OutOfMemory { site, .. }
            | Self::Mark { site, .. } => Some(site),
            Self::MemorySample { .. } | Self::Gap { .. } => None,
        }
    }
}

/// The stage of a mark or annotation: it begins a span, ends one, or is a single moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum AnnotationStage {
    /// A single moment.
    #[default]
    Instant,
    /// The beginning of a span.
    Begin,
    /// The end of the innermost open span with the same name.
    End,
}

/// A named moment that a PyTorch snapshot keeps beside its event history (`external_annotations`).
/// It is not an event and has no event number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// The device it belongs to.
    pub device: DeviceId,
    /// Nanoseconds since the recording's time 0.
    pub time_ns: u64,
    /// The moment it belongs to: it follows the first `at_event` events.
    pub at_event: u64,
    /// Whether it begins a span, ends one, or is a single moment.
    pub stage: AnnotationStage,
    /// Its name.
    pub name: StringId,
}

impl Annotation {
    /// Returns the mark `event` as an annotation at the moment `at_event`, the number of events
    /// before it; `None` if the event is no mark.
    #[inline]
    pub(crate) fn of_mark(event: &Event, at_event: u64) -> Option<Self> {
        let EventKind::Mark { stage, name, .. } = event.kind else { return None };
        Some(Self { device: event.device, time_ns: event.time_ns, at_event, stage, name })
    }
}

/// A new site for a live block, because the program learns only after the allocation what the block
/// is for.
///
/// The new site usually has the old stack with another category or scope: a tensor becomes a
/// parameter when a module registers it. A relabel is not an event and has no event number. It
/// takes effect with the event that follows it; after the last event, at the last moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relabel {
    /// The block's device.
    pub device: DeviceId,
    /// Nanoseconds since the recording's time 0.
    pub time_ns: u64,
    /// Address of the block's first byte.
    pub address: u64,
    /// The block's site from now on.
    pub site: SiteId,
}

/// A block as the event [`BlockAllocated`](EventKind::BlockAllocated) describes it, with its
/// device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocatedBlock {
    pub(crate) device: DeviceId,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) stream: StreamId,
    pub(crate) pool: PoolKey,
    pub(crate) site: SiteId,
}
