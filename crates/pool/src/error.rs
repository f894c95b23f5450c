//! What can go wrong. In every case the pool has the blocks that it had before the call. What a request may have done before it failed stays
//! done: cached segments given back, pages mapped or unmapped, frees completed that had waited for other streams.

use std::fmt;

use vramscope_trace::{DeviceId, MempoolId, StreamId};

use crate::device::DeviceError;
use crate::settings::Settings;

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq)]
pub enum AllocateError {
    /// There is no room, even with everything given back that could be. In a box, because a hit should not carry it around.
    OutOfMemory(Box<OutOfMemory>),
    /// More bytes were asked for than any device can have; the pool did not try.
    TooLarge {
        /// Bytes asked for.
        requested: u64,
    },
    /// The private pool that was asked cannot serve.
    Mempool(MempoolError),
    /// The device failed in another way.
    Device(DeviceError),
}

/// A request that there was no room for, and what stood in its way.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfMemory {
    /// The device's number.
    pub device: DeviceId,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes of the segment that the device would not give.
    pub segment_bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// Bytes that the device had free.
    pub device_free_bytes: u64,
    /// Bytes that the device has.
    pub device_total_bytes: u64,
    /// The pool's own limit, where one is set.
    pub limit_bytes: Option<u64>,
    /// Bytes handed out to the program.
    pub allocated_bytes: u64,
    /// Bytes in the pool's segments.
    pub reserved_bytes: u64,
    /// Bytes of the free blocks in private pools, which no other pool can use.
    pub private_pool_bytes: u64,
    /// Bytes of the largest free block that the pool holds.
    pub largest_free_bytes: u64,
    /// Bytes of the device that this process holds in all, with what is outside of the pool; `None` where nobody knows.
    pub process_bytes: Option<u64>,
    /// Bytes of the device that other processes hold; `None` where nobody knows.
    pub others_bytes: Option<u64>,
    /// The settings under which there was no room.
    pub settings: Settings,
}

/// Why a free was refused, or a use on another stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FreeError {
    /// The address lies in free memory of the pool: freed before, or never handed out.
    NotLive {
        /// The address given.
        address: u64,
    },
    /// The address lies inside a live block but is not its first.
    InsideBlock {
        /// The address given.
        address: u64,
        /// The block's first address.
        block: u64,
    },
    /// The address is in none of the pool's segments.
    Foreign {
        /// The address given.
        address: u64,
    },
    /// The device failed to mark where the uses on other streams end.
    Device(DeviceError),
}

/// Why something could not be done with a private pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MempoolError {
    /// There is none of that id.
    Unknown(MempoolId),
    /// The id is the default pool's, (0, 0).
    Default,
    /// Allocations are diverted to it already.
    AlreadyDiverted(MempoolId),
    /// No allocations are diverted to it.
    NotDiverted(MempoolId),
    /// Everyone who used it has released it.
    InUseNoMore(MempoolId),
}

/// Bytes for people, as PyTorch writes them: a unit begins above its first whole one.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.into_iter().find(|&(unit, _)| self.0 > unit) {
            Some((unit, name)) => write!(f, "{:.2} {name}", self.0 as f64 / unit as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

impl OutOfMemory {
    /// Bytes in the pool's segments that are not allocated and do not belong to a private pool.
    #[must_use]
    pub fn unallocated_bytes(&self) -> u64 {
        self.reserved_bytes.saturating_sub(self.allocated_bytes).saturating_sub(self.private_pool_bytes)
    }

    /// Settings under which there might have been room, each with what it would do, as the end of a message; empty where none would
    /// help. (A `garbage_collection_threshold` never does: all that it could have given back was given back before this error.)
    #[must_use]
    pub fn remedies(&self) -> String {
        const MIB: u64 = 1 << 20;
        let Self { settings, segment_bytes, .. } = self;
        let mut remedies = Vec::new();
        let is_fragmented = self.unallocated_bytes() >= self.requested && self.largest_free_bytes < self.requested;
        if is_fragmented && !settings.expandable_segments {
            remedies.push("expandable_segments:True would put what is unallocated to use".to_owned());
            // Blocks of this size and more would then not have been cut up for smaller ones.
            let whole = self.requested / MIB * MIB;
            if whole >= settings.large_segment_size && settings.max_split_size.is_none_or(|max| max > whole) {
                remedies.push(format!("max_split_size_mb:{} would keep blocks for such requests whole", whole / MIB));
            }
        }
        let needed = self.reserved_bytes.saturating_add(*segment_bytes);
        // Where the limit is one in bytes, raising the share would not move it.
        let by_share =
            self.settings.limit_bytes.is_none_or(|bytes| self.limit_bytes.is_some_and(|limit| limit < bytes));
        let by_limit = by_share && self.limit_bytes.is_some_and(|limit| needed > limit);
        if by_limit && *segment_bytes <= self.device_free_bytes {
            // Rounded up, so that what is written here is enough.
            let thousandths = (needed as f64 / self.device_total_bytes.max(1) as f64 * 1000.0).ceil().min(1000.0);
            let fraction = thousandths / 1000.0;
            remedies.push(format!(
                "the device has room, and per_process_memory_fraction:{fraction} would let the pool use it"
            ));
        }
        remedies.join("; ")
    }
}

impl fmt::Display for OutOfMemory {
    /// What PyTorch says, and in its order, so that what people and scripts look for is where they look for it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory. Tried to allocate {}. ", Size(self.segment_bytes))?;
        write!(f, "Device {} has a total capacity of {} ", self.device.0, Size(self.device_total_bytes))?;
        write!(f, "of which {} is free. ", Size(self.device_free_bytes))?;
        if let Some(bytes) = self.process_bytes {
            write!(f, "Including memory outside of the pool, this process has {} memory in use. ", Size(bytes))?;
        }
        if let Some(bytes) = self.others_bytes {
            write!(f, "Other processes have {} memory in use. ", Size(bytes))?;
        }
        if let Some(limit) = self.limit_bytes {
            write!(f, "{} allowed; ", Size(limit))?;
        }
        let in_use = self.allocated_bytes.saturating_add(self.private_pool_bytes);
        write!(f, "Of the allocated memory {} is allocated by the program, ", Size(in_use))?;
        if self.private_pool_bytes > 0 {
            write!(f, "with {} allocated in private pools (e.g., CUDA Graphs), ", Size(self.private_pool_bytes))?;
        }
        write!(f, "and {} is reserved by the pool but unallocated. ", Size(self.unallocated_bytes()))?;
        write!(f, "The largest free block has {}", Size(self.largest_free_bytes))?;
        match self.remedies() {
            remedies if remedies.is_empty() => Ok(()),
            remedies => write!(f, ". Settings that might help: {remedies}"),
        }
    }
}

impl fmt::Display for AllocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(details) => details.fmt(f),
            // As PyTorch says it, and where people and scripts look for it.
            Self::TooLarge { requested } => {
                write!(f, "out of memory. Tried to allocate more than 1EB memory ({requested} bytes)")
            }
            Self::Mempool(error) => error.fmt(f),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLive { address } => {
                write!(f, "{address:#x} is not allocated: it was freed before or never handed out")
            }
            Self::InsideBlock { address, block } => {
                write!(f, "{address:#x} lies inside the block at {block:#x}, and only its first address can be freed")
            }
            Self::Foreign { address } => write!(f, "{address:#x} is not memory of this pool"),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for MempoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (MempoolId(first, second), what) = match *self {
            Self::Unknown(mempool) => (mempool, "there is no such pool"),
            Self::Default => (MempoolId::default(), "that is the name of the default pool"),
            Self::AlreadyDiverted(mempool) => (mempool, "allocations go to it already"),
            Self::NotDiverted(mempool) => (mempool, "no allocations go to it"),
            Self::InUseNoMore(mempool) => (mempool, "it was released by everyone who used it"),
        };
        write!(f, "private pool ({first}, {second}): {what}")
    }
}

impl std::error::Error for OutOfMemory {}
impl std::error::Error for AllocateError {}
impl std::error::Error for FreeError {}
impl std::error::Error for MempoolError {}

impl From<DeviceError> for AllocateError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl From<DeviceError> for FreeError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl From<MempoolError> for AllocateError {
    fn from(error: MempoolError) -> Self {
        Self::Mempool(error)
    }
}
