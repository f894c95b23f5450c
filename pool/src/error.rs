//! What can go wrong. In every case the pool is as it was before the call, but for cached segments that it may have given back.

use std::fmt;

use vramscope_trace::StreamId;

use crate::device::DeviceError;

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocateError {
    /// There is no room, even with everything given back that could be.
    OutOfMemory(OutOfMemory),
    /// More bytes were asked for than any device can have; the pool did not try.
    TooLarge {
        /// Bytes asked for.
        requested: u64,
    },
    /// The device failed in another way.
    Device(DeviceError),
}

/// A request that there was no room for, and what stood in its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
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
    /// Bytes of the largest free block that the pool holds.
    pub largest_free_bytes: u64,
}

/// Why a free was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

/// Bytes for people.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.into_iter().find(|&(unit, _)| self.0 >= unit) {
            Some((unit, name)) => write!(f, "{:.2} {name}", self.0 as f64 / unit as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory: tried to allocate {}, for which ", Size(self.requested))?;
        write!(f, "a segment of {} was needed. ", Size(self.segment_bytes))?;
        write!(f, "The device has {} of {} free. ", Size(self.device_free_bytes), Size(self.device_total_bytes))?;
        if let Some(limit) = self.limit_bytes {
            write!(f, "The pool may hold {}. ", Size(limit))?;
        }
        let unallocated = self.reserved_bytes.saturating_sub(self.allocated_bytes);
        write!(f, "It holds {}, of which {} is allocated and ", Size(self.reserved_bytes), Size(self.allocated_bytes))?;
        write!(f, "{} is not; the largest free block is {}", Size(unallocated), Size(self.largest_free_bytes))
    }
}

impl fmt::Display for AllocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(details) => details.fmt(f),
            Self::TooLarge { requested } => write!(f, "a request of {requested} bytes is more than any device has"),
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
        }
    }
}

impl std::error::Error for OutOfMemory {}
impl std::error::Error for AllocateError {}
impl std::error::Error for FreeError {}

impl From<DeviceError> for AllocateError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}
