//! Reads the fields of PyTorch's `TraceEntry` (`c10/core/CachingDeviceAllocator.h`; before 2.8,
//! `c10/cuda/CUDACachingAllocator.h`).

use super::layouts::{ACTION, ADDRESS, DEVICE, SIZE, STREAM, TorchLayout};

/// The numbers of `TraceEntry::Action`, equal in all supported versions.
pub(crate) mod actions {
    /// A block was allocated.
    pub(crate) const ALLOC: u8 = 0;
    /// The program freed a block.
    pub(crate) const FREE_REQUESTED: u8 = 1;
    /// A freed block returned to its pool.
    pub(crate) const FREE_COMPLETED: u8 = 2;
    /// A segment was obtained from the driver.
    pub(crate) const SEGMENT_ALLOC: u8 = 3;
    /// A segment was returned to the driver.
    pub(crate) const SEGMENT_FREE: u8 = 4;
    /// Memory was mapped into an expandable segment.
    pub(crate) const SEGMENT_MAP: u8 = 5;
    /// Memory was unmapped from an expandable segment.
    pub(crate) const SEGMENT_UNMAP: u8 = 6;
    /// A snapshot was taken.
    pub(crate) const SNAPSHOT: u8 = 7;
    /// A request failed after every retry.
    pub(crate) const OOM: u8 = 8;
}

/// Returns true if a request for memory caused the trace entry with this action. `action` must be
/// less than 32.
#[inline]
pub(crate) fn is_request(action: u8) -> bool {
    // A bit mask is faster than comparing with each action.
    const REQUESTS: u32 =
        1 << actions::ALLOC | 1 << actions::SEGMENT_ALLOC | 1 << actions::SEGMENT_MAP | 1 << actions::OOM;
    REQUESTS >> action & 1 == 1
}

/// The fields of a trace entry that are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TraceEntry {
    pub(crate) action: u8,
    /// The address; for an out-of-memory the free bytes of the device.
    pub(crate) address: u64,
    /// Requested bytes of a block, all bytes of a segment.
    pub(crate) size: u64,
    pub(crate) stream: u64,
    /// The private pool's id; 0 in versions that do not report it.
    pub(crate) mempool: [u64; 2],
    /// The processor's time-stamp counter.
    pub(crate) time: u64,
}

impl TraceEntry {
    /// Returns true if a request for memory caused the entry, so that its call stack is recorded.
    #[inline]
    pub(crate) fn is_request(&self) -> bool {
        is_request(self.action)
    }
}

/// A reader of the trace entries of one version of PyTorch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryReader {
    time: usize,
    mempool: Option<usize>,
    actions: u32,
}

impl EntryReader {
    pub(crate) fn new(layout: &TorchLayout) -> Self {
        Self { time: layout.time, mempool: layout.mempool, actions: layout.actions }
    }

    /// Returns the number of the entry's device; `None` if it is negative or too large to be one.
    ///
    /// # Safety
    /// `entry` points to a `TraceEntry` of this version of PyTorch.
    #[inline]
    pub(crate) unsafe fn device(entry: *const u8) -> Option<usize> {
        // SAFETY: The caller guarantees an entry, whose device is an `int8_t` at this offset.
        let device = unsafe { entry.add(DEVICE).cast::<i8>().read() };
        usize::try_from(device).ok()
    }

    /// Returns true if the entry reports a snapshot. [`device`](Self::device) is then wrong; see
    /// [`snapshot_devices`](crate::snapshot_devices).
    ///
    /// # Safety
    /// `entry` points to a `TraceEntry` of this version of PyTorch.
    #[inline]
    pub(crate) unsafe fn is_snapshot(entry: *const u8) -> bool {
        // SAFETY: The caller guarantees an entry, whose action is a number at this offset.
        let action = unsafe { entry.add(ACTION).cast::<u32>().read() };
        action == u32::from(actions::SNAPSHOT)
    }

    /// Reads an entry; `None` if this version does not have the entry's action.
    ///
    /// # Safety
    /// `entry` points to a `TraceEntry` of this version of PyTorch.
    #[inline]
    pub(crate) unsafe fn read(&self, entry: *const u8) -> Option<TraceEntry> {
        // SAFETY: The caller guarantees an entry, and the layout's offsets are within it.
        unsafe {
            let word = |offset: usize| entry.add(offset).cast::<u64>().read();
            let action = entry.add(ACTION).cast::<u32>().read();
            if action >= self.actions {
                return None;
            }
            let mempool = self.mempool.map_or([0, 0], |offset| [word(offset), word(offset + 8)]);
            Some(TraceEntry {
                action: action as u8,
                address: word(ADDRESS),
                size: word(SIZE),
                stream: word(STREAM),
                mempool,
                time: word(self.time),
            })
        }
    }
}
