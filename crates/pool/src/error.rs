//! The errors of the pool.
//!
//! After any error, the pool's allocated blocks are unchanged. A failed request may have released
//! cached segments, mapped or unmapped pages, and completed pending frees.

use std::fmt;

use vramscope_trace::{DeviceId, MempoolId, StreamId};

use crate::device::DeviceError;
use crate::settings::Settings;

/// The reason why a request for memory failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AllocateError {
    /// There is not enough memory, even after all cached segments were released.
    // Boxed to keep the result of a hit small.
    #[error(transparent)]
    OutOfMemory(Box<OutOfMemory>),
    /// The request is for [`MAX_REQUEST_BYTES`](crate::MAX_REQUEST_BYTES) or more, and was refused
    /// without an attempt.
    // The wording is PyTorch's, so that scripts that search for it find it.
    #[error("out of memory. Tried to allocate more than 1EB memory ({requested} bytes)")]
    TooLarge {
        /// Requested bytes.
        requested: u64,
    },
    /// The private pool cannot serve requests.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    /// The device failed in another way than for lack of memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A request that failed for lack of memory, with the state of the pool at that moment.
///
/// Displayed, it is PyTorch's message with a suggestion of [settings](Self::remedies) added.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct OutOfMemory {
    /// The device number.
    pub device: DeviceId,
    /// Bytes that the program requested.
    pub requested: u64,
    /// Bytes of the segment that could not be obtained from the device.
    pub segment_bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// Free bytes of the device.
    pub device_free_bytes: u64,
    /// Total bytes of the device.
    pub device_total_bytes: u64,
    /// Limit of the reserved bytes; `None` without a limit.
    pub limit_bytes: Option<u64>,
    /// Bytes of allocated blocks.
    pub allocated_bytes: u64,
    /// Bytes of all segments of the pool.
    pub reserved_bytes: u64,
    /// Bytes of free blocks in private pools, which requests of other pools cannot use.
    pub private_pool_bytes: u64,
    /// Bytes of the largest free block of the pool.
    pub largest_free_bytes: u64,
    /// Bytes of device memory that this process holds, including memory outside of the pool; `None`
    /// if unknown.
    pub process_bytes: Option<u64>,
    /// Bytes of device memory that other processes hold; `None` if unknown.
    pub other_processes_bytes: Option<u64>,
    /// The settings in effect.
    pub settings: Settings,
}

/// The reason why a block could not be freed, or a stream's use of it not be recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreeError {
    /// The address is in free memory of the pool: it was freed before, or never allocated.
    #[error("{address:#x} is not allocated: it was already freed or never allocated")]
    NotAllocated {
        /// The given address.
        address: u64,
    },
    /// The address is inside an allocated block but is not its first address.
    #[error("{address:#x} is inside the block at {block:#x}: free a block by its first address")]
    InsideBlock {
        /// The given address.
        address: u64,
        /// The block's first address.
        block: u64,
    },
    /// The address is in none of the pool's segments.
    #[error("{address:#x} is not in this pool's memory")]
    UnknownAddress {
        /// The given address.
        address: u64,
    },
    /// The device could not record the events that mark the end of other streams' use.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The reason why a private pool could not be created, selected, deselected, used or released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MempoolError {
    /// No private pool has this id.
    #[error("private pool ({}, {}) does not exist", .0.0, .0.1)]
    Unknown(MempoolId),
    /// The id is that of the default pool, (0, 0).
    #[error("private pool (0, 0) cannot be created: the id is reserved for the default pool")]
    DefaultPool,
    /// The pool is already selected for requests.
    #[error("private pool ({}, {}) is already selected for allocations", .0.0, .0.1)]
    AlreadySelected(MempoolId),
    /// The pool is not selected for requests.
    #[error("private pool ({}, {}) is not selected for allocations", .0.0, .0.1)]
    NotSelected(MempoolId),
    /// The pool has lost its last user and cannot be used again.
    #[error("private pool ({}, {}) was released by all of its users", .0.0, .0.1)]
    Released(MempoolId),
}

/// Displays a number of bytes as PyTorch's messages do: with two decimals in the largest of GiB,
/// MiB and KiB that the number exceeds, otherwise in bytes.
struct PyTorchSize(u64);

impl fmt::Display for PyTorchSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The size of each unit in bytes and the unit's name, largest first.
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.into_iter().find(|&(unit, _)| self.0 > unit) {
            Some((unit, name)) => write!(f, "{:.2} {name}", self.0 as f64 / unit as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

impl OutOfMemory {
    /// Returns the bytes of the pool's segments that are not allocated, without the free blocks of
    /// private pools.
    #[must_use]
    pub fn unallocated_bytes(&self) -> u64 {
        self.reserved_bytes.saturating_sub(self.allocated_bytes).saturating_sub(self.private_pool_bytes)
    }

    /// Returns the settings that might have prevented the failure, each with its effect, separated
    /// by semicolons; empty if none would help.
    ///
    /// `garbage_collection_threshold` is never suggested: everything that it could have released
    /// was released before this error.
    #[must_use]
    pub fn remedies(&self) -> String {
        /// The number of bytes in a MiB.
        const MIB: u64 = 1 << 20;
        let Self { settings, segment_bytes, .. } = self;
        let mut remedies = Vec::new();
        let is_fragmented = self.unallocated_bytes() >= self.requested && self.largest_free_bytes < self.requested;
        if is_fragmented && !settings.expandable_segments {
            remedies.push("expandable_segments:True would let requests use the unallocated memory".to_owned());
            // Free blocks of this size would then not have been split for smaller requests.
            let whole = self.requested / MIB * MIB;
            if whole >= settings.large_segment_size_bytes && settings.max_split_size_bytes.is_none_or(|max| max > whole)
            {
                remedies
                    .push(format!("max_split_size_mb:{} would keep blocks of this size from being split", whole / MIB));
            }
        }
        let needed = self.reserved_bytes.saturating_add(*segment_bytes);
        // Raising the fraction has no effect if the limit in bytes is the smaller one.
        let fraction_applies =
            self.settings.limit_bytes.is_none_or(|bytes| self.limit_bytes.is_some_and(|limit| limit < bytes));
        let limit_is_cause = fraction_applies && self.limit_bytes.is_some_and(|limit| needed > limit);
        if limit_is_cause && *segment_bytes <= self.device_free_bytes {
            // Rounded up, so that the suggested fraction is enough.
            let thousandths = (needed as f64 / self.device_total_bytes.max(1) as f64 * 1000.0).ceil().min(1000.0);
            let fraction = thousandths / 1000.0;
            remedies.push(format!(
                "the device has enough free memory: per_process_memory_fraction:{fraction} would let the pool use it"
            ));
        }
        remedies.join("; ")
    }
}

impl fmt::Display for OutOfMemory {
    // PyTorch's wording and order, so that scripts that search its message find what they expect.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory. Tried to allocate {}. ", PyTorchSize(self.segment_bytes))?;
        write!(f, "Device {} has a total capacity of {} ", self.device.0, PyTorchSize(self.device_total_bytes))?;
        write!(f, "of which {} is free. ", PyTorchSize(self.device_free_bytes))?;
        if let Some(bytes) = self.process_bytes {
            write!(f, "Including memory outside of the pool, this process has {} memory in use. ", PyTorchSize(bytes))?;
        }
        if let Some(bytes) = self.other_processes_bytes {
            write!(f, "Other processes have {} memory in use. ", PyTorchSize(bytes))?;
        }
        if let Some(limit) = self.limit_bytes {
            write!(f, "{} allowed; ", PyTorchSize(limit))?;
        }
        let in_use = self.allocated_bytes.saturating_add(self.private_pool_bytes);
        write!(f, "Of the allocated memory {} is allocated by the program, ", PyTorchSize(in_use))?;
        if self.private_pool_bytes > 0 {
            write!(
                f,
                "with {} allocated in private pools (e.g., CUDA Graphs), ",
                PyTorchSize(self.private_pool_bytes)
            )?;
        }
        write!(f, "and {} is reserved by the pool but unallocated. ", PyTorchSize(self.unallocated_bytes()))?;
        write!(f, "The largest free block has {}", PyTorchSize(self.largest_free_bytes))?;
        match self.remedies() {
            remedies if remedies.is_empty() => Ok(()),
            remedies => write!(f, ". Settings that might help: {remedies}"),
        }
    }
}
