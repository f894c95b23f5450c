//! The layout of a chunk of events: columns, operations, and the state that writer and reader keep.

use crate::event::{DeviceId, PoolKey, StreamId};

/// Maximum number of events that a reader accepts in one chunk; more is an error.
pub(super) const MAX_EVENTS: u32 = 1 << 16;
/// Maximum number of decompressed bytes that a reader accepts in the columns of one chunk of
/// events; more is an error.
pub(super) const MAX_COLUMNS_LEN: usize = 4 << 20;

/// Flag of a chunk of events: some event has an earlier time than the event before it. Time
/// differences are then signed (zigzag-encoded).
pub(super) const TIME_GOES_BACK: u8 = 1;
/// Flag of a chunk of events: no event contradicts the memory state before it.
pub(super) const CONSISTENT: u8 = 2;

/// Number of columns of a chunk of events, including the columns of relabels.
pub(super) const COLUMNS: usize = 17;
/// Number of columns of a chunk of events that older readers skip: the columns of relabels.
pub(super) const OPTIONAL_COLUMNS: usize = 5;
/// Maximum number of relabels that a reader accepts in one chunk; more is an error.
pub(super) const MAX_RELABELS: usize = 1 << 16;

/// Codes of the operations.
pub(super) mod operation {
    /// Code of an operation of a chunk of events: a block was allocated.
    pub(crate) const ALLOCATED: u8 = 0;
    /// Code of an operation of a chunk of events: a free was requested and completed by two
    /// consecutive events.
    pub(crate) const FREED: u8 = 1;
    /// Code of an operation of a chunk of events: a free was requested; its completion is another
    /// operation.
    pub(crate) const FREE_REQUESTED: u8 = 2;
    /// Code of an operation of a chunk of events: a free that an earlier operation requested was
    /// completed.
    pub(crate) const FREE_COMPLETED: u8 = 3;
    /// Code of an operation of a chunk of events: any other event; its fields are in
    /// [`OTHER_EVENTS`](super::column::OTHER_EVENTS).
    pub(crate) const OTHER: u8 = 4;
}

/// Numbers of the columns. They are also the ids, except for the columns of relabels.
pub(super) mod column {
    /// Column id in a chunk of events. Per operation: its code, one byte.
    pub(crate) const OPERATIONS: u8 = 0;
    /// Column id in a chunk of events. Per operation: time since the previous event, in the unit
    /// that the chunk begins with.
    pub(crate) const TIMES: u8 = 1;
    /// Column id in a chunk of events. Per `FREED`: time from the free request to its completion,
    /// in the unit that the chunk begins with.
    pub(crate) const COMPLETION_DELAYS: u8 = 2;
    /// Column id in a chunk of events. Per allocation: the number (from 0) of its shape in
    /// [`SHAPE_TABLE`].
    pub(crate) const SHAPES: u8 = 3;
    /// Column id in a chunk of events. Per allocation: the position of its address among the last
    /// 255 likely addresses (`AddressCandidates`), 1 for the newest; 0 if it is not among them.
    pub(crate) const ADDRESS_CANDIDATES: u8 = 4;
    /// Column id in a chunk of events. Per allocation with 0 in [`ADDRESS_CANDIDATES`]: its
    /// address, as the difference to the previous address in this column.
    pub(crate) const ADDRESSES: u8 = 5;
    /// Column id in a chunk of events. Per allocation: the number of its site.
    pub(crate) const SITES: u8 = 6;
    /// Column id in a chunk of events. Per free: how many allocations ago the block was allocated
    /// (from 1); 0 if it was not allocated in this chunk.
    pub(crate) const ALLOCATION_AGES: u8 = 7;
    /// Column id in a chunk of events. Per free of a block from before the chunk: its device, and
    /// its address as the difference to the previous address in this column.
    pub(crate) const OLDER_BLOCKS: u8 = 8;
    /// Column id in a chunk of events. Per free: the number of its site.
    pub(crate) const FREE_SITES: u8 = 9;
    /// Column id in a chunk of events. Per shape (the fields that many allocations have in common):
    /// device, stream, pool, requested size, size − requested size.
    pub(crate) const SHAPE_TABLE: u8 = 10;
    /// Column id in a chunk of events. Per event that is neither an allocation nor a free: all its
    /// fields.
    pub(crate) const OTHER_EVENTS: u8 = 11;
    /// Column in a chunk of events, with id 64. First the number of relabels since the last event
    /// that earlier chunks contain; then, per relabel, the number of the chunk's events between the
    /// previous relabel and this one.
    pub(crate) const RELABEL_POSITIONS: u8 = 12;
    /// Column in a chunk of events, with id 65. Per relabel: its device.
    pub(crate) const RELABEL_DEVICES: u8 = 13;
    /// Column in a chunk of events, with id 66. Per relabel: its time in nanoseconds, as the
    /// difference to that of the previous relabel, or to the time that the chunk begins with.
    pub(crate) const RELABEL_TIMES: u8 = 14;
    /// Column in a chunk of events, with id 67. Per relabel: the block's address, as the difference
    /// to the previous address in this column.
    pub(crate) const RELABEL_ADDRESSES: u8 = 15;
    /// Column in a chunk of events, with id 68. Per relabel: the number of the site, as the
    /// difference to the previous number in this column.
    pub(crate) const RELABEL_SITES: u8 = 16;
}

/// The fields that many allocations of a chunk have in common, stored once in a table: everything
/// but time, address and site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct AllocationShape {
    pub(super) device: DeviceId,
    pub(super) stream: StreamId,
    pub(super) pool: PoolKey,
    pub(super) requested: u64,
    pub(super) size: u64,
}

/// The last 255 likely addresses of the next allocation: ends of allocated blocks, and addresses of
/// freed blocks. An allocation at one of them stores one byte instead of an address.
#[derive(Clone, Debug)]
pub(super) struct AddressCandidates {
    /// The candidate with number n (from 0) is at index n modulo 256.
    ring: [u64; 256],
    /// Number of candidates added since the start of the chunk.
    count: usize,
}

impl Default for AddressCandidates {
    fn default() -> Self {
        Self { ring: [0; 256], count: 0 }
    }
}

impl AddressCandidates {
    /// Removes all candidates, because every chunk starts without candidates.
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds an address as the newest candidate. Only the last 255 can be found.
    #[inline]
    pub(super) fn push(&mut self, address: u64) {
        self.ring[self.count % 256] = address;
        self.count += 1;
    }

    /// Returns the candidate that was added `ago` candidates ago (1 is the newest); `None` if fewer
    /// were added.
    #[inline]
    pub(super) fn get(&self, ago: u8) -> Option<u64> {
        let index = self.count.checked_sub(usize::from(ago))?;
        Some(self.ring[index % 256])
    }

    /// Returns how many candidates ago `address` was last added (1 is the newest); 0 if it is not
    /// among the last 255.
    #[inline]
    pub(super) fn find(&self, address: u64) -> u8 {
        let newest = self.count % 256;
        let oldest = self.count.min(255);
        let found = |slots: &[u64]| slots.iter().rev().position(|&other| other == address);
        let ago = match found(&self.ring[..newest]) {
            Some(behind) => behind + 1,
            // The slots from `newest` on are from the previous pass around the ring, or unused.
            None => match found(&self.ring[newest..]) {
                Some(behind) => newest + behind + 1,
                None => return 0,
            },
        };
        if ago <= oldest { ago as u8 } else { 0 }
    }
}
