//! A group of consecutive rows of the table of allocations, stored as columns.

/// Maximum number of rows in a [`RowGroup`]. A row's number is its group's index times this number,
/// plus the row's index in the group.
pub(super) const GROUP_ROWS: usize = 1024;

/// Up to 1,024 consecutive rows of the table of allocations, stored as columns, and bounds of their
/// moments and addresses, which let a query skip the group.
#[derive(Clone, Debug)]
pub(super) struct RowGroup {
    /// The first moment of the first row; no row of the group starts earlier.
    pub(super) base: u64,
    /// Number of rows in all groups before.
    pub(super) first_index: usize,
    /// Whether the rows come from a full state, without a recorded allocating event.
    pub(super) start_unobserved: bool,
    /// Number of rows that are still active at the end.
    pub(super) open_rows: u16,
    /// The latest end of all rows that have one.
    pub(super) latest_end: u64,
    /// The lowest address of a block.
    pub(super) first_address: u64,
    /// The highest address after the last byte of a block.
    pub(super) end_address: u64,
    /// Columns of the table; see `allocation_table`. Values of this one are moments since `base`
    /// and never decrease.
    pub(super) first_moment: Vec<u16>,
    pub(super) allocated_for: Vec<u32>,
    pub(super) pending_for: Vec<u16>,
    pub(super) address: Vec<u32>,
    pub(super) size: Vec<u32>,
    pub(super) rounding: Vec<u16>,
    pub(super) origin: Vec<u32>,
}

impl RowGroup {
    /// Memory that one row of the table of allocations takes in all columns, in bytes.
    pub(super) const ROW_BYTES: usize = 4 * size_of::<u32>() + 3 * size_of::<u16>();

    /// Creates an empty group whose rows have first moments from `base` on. The groups before it
    /// have `first_index` rows.
    pub(super) fn new(base: u64, start_unobserved: bool, first_index: usize) -> Self {
        Self {
            base,
            first_index,
            start_unobserved,
            open_rows: 0,
            latest_end: 0,
            first_address: u64::MAX,
            end_address: 0,
            first_moment: Vec::with_capacity(GROUP_ROWS),
            allocated_for: Vec::with_capacity(GROUP_ROWS),
            pending_for: Vec::with_capacity(GROUP_ROWS),
            address: Vec::with_capacity(GROUP_ROWS),
            size: Vec::with_capacity(GROUP_ROWS),
            rounding: Vec::with_capacity(GROUP_ROWS),
            origin: Vec::with_capacity(GROUP_ROWS),
        }
    }

    /// Returns the number of rows in the group.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.first_moment.len()
    }

    /// Returns the first moment of the group's last row; no row of the group starts later.
    pub(super) fn last_first_moment(&self) -> u64 {
        self.base + u64::from(self.first_moment.last().copied().unwrap_or(0))
    }

    /// Returns the latest moment at which an allocation of the group ends; `u64::MAX` if one has
    /// not ended.
    pub(super) fn active_until(&self) -> u64 {
        if self.open_rows > 0 { u64::MAX } else { self.latest_end }
    }

    /// Returns true if `address` is between the lowest and the highest address of the group's
    /// blocks.
    pub(super) fn may_contain(&self, address: u64) -> bool {
        self.first_address <= address && address < self.end_address
    }

    /// Returns the first moment at which the allocation of row `index` (in the group) is known to
    /// exist.
    #[inline]
    pub(super) fn first_moment(&self, index: usize) -> u64 {
        self.base + u64::from(self.first_moment[index])
    }

    /// Returns how many rows of the group have a first moment of at most `moment`.
    pub(super) fn started_by(&self, moment: u64) -> usize {
        let Some(since) = moment.checked_sub(self.base) else { return 0 };
        self.first_moment.partition_point(|&first| u64::from(first) <= since)
    }

    /// Frees the columns' spare memory once no row will be added.
    pub(super) fn shrink(&mut self) {
        self.first_moment.shrink_to_fit();
        self.allocated_for.shrink_to_fit();
        self.pending_for.shrink_to_fit();
        self.address.shrink_to_fit();
        self.size.shrink_to_fit();
        self.rounding.shrink_to_fit();
        self.origin.shrink_to_fit();
    }

    /// Returns the number of rows that can be added without more memory.
    pub(super) fn spare_rows(&self) -> usize {
        self.first_moment.capacity() - self.first_moment.len()
    }
}
