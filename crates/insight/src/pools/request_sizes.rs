//! The sizes that a program requests, and which of them fit into a free block.

use vramscope_trace::{DeviceLifetimes, DeviceState, PoolKind};

/// Number of size classes for each power of two.
const PER_OCTAVE: usize = 4;
/// Number of size classes of a pool kind.
const CLASSES: usize = 64 * PER_OCTAVE;

/// The bytes that a program requests from the small and from the large pool, by size.
///
/// The two pools are counted apart, because a free block serves requests of its own pool only. The
/// size of a request is the size of its block, with rounding. A size class is a quarter of a power
/// of two wide.
#[derive(Clone, Debug)]
pub struct RequestSizes {
    /// Bytes of the requests of each size class, for each pool kind.
    bytes: [Vec<u64>; 2],
    /// The first row of the lifetimes that has not been added.
    next_row: u32,
}

impl Default for RequestSizes {
    fn default() -> Self {
        Self { bytes: [(); 2].map(|()| vec![0; CLASSES]), next_row: 0 }
    }
}

/// Returns the size class of a number of bytes: the classes of larger sizes have larger numbers.
fn class_of(bytes: u64) -> usize {
    let bytes = bytes.max(1);
    let octave = bytes.ilog2();
    let quarter = (u128::from(bytes) << 2 >> octave) as usize & 3;
    octave as usize * PER_OCTAVE + quarter
}

/// Returns the index of a pool kind.
const fn kind_index(kind: PoolKind) -> usize {
    match kind {
        PoolKind::Small => 0,
        PoolKind::Large => 1,
    }
}

impl RequestSizes {
    /// Returns the sizes of the live blocks of a device, for a recording without history.
    #[must_use]
    pub fn of_blocks(device: &DeviceState) -> Self {
        let mut sizes = Self::default();
        for block in device.blocks() {
            sizes.add(block.pool.kind, block.size);
        }
        sizes
    }

    /// Adds up to `max_rows` further allocations of a device (at least one). Returns true once all
    /// are added.
    pub fn step(&mut self, lifetimes: &DeviceLifetimes, max_rows: u32) -> bool {
        let rows = u32::try_from(lifetimes.len()).unwrap_or(u32::MAX);
        let end = self.next_row.saturating_add(max_rows.max(1)).min(rows);
        let kinds: Vec<PoolKind> = lifetimes.origins().map(|origin| origin.pool.kind).collect();
        lifetimes.for_each_row(self.next_row..end, |row| {
            let kind = kinds.get(row.origin as usize).copied().unwrap_or_default();
            self.add(kind, row.size);
        });
        self.next_row = end;
        end == rows
    }

    /// Returns the number of allocations that have been added by [`step`](Self::step).
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.next_row
    }

    /// Counts a request whose block has `bytes` bytes.
    fn add(&mut self, kind: PoolKind, bytes: u64) {
        let sum = &mut self.bytes[kind_index(kind)][class_of(bytes)];
        *sum = sum.saturating_add(bytes);
    }

    /// Returns the share of the requested bytes that is in requests too large for a free block of
    /// each size, for a quick lookup.
    #[must_use]
    pub fn unfit_shares(&self) -> UnfitShares {
        UnfitShares(self.bytes.each_ref().map(|classes| {
            let total = classes.iter().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
            let mut larger = 0u64;
            let mut shares = vec![1.0; classes.len()];
            for (share, &bytes) in shares.iter_mut().zip(classes).rev() {
                *share = if total == 0 { 1.0 } else { larger as f32 / total as f32 };
                larger = larger.saturating_add(bytes);
            }
            shares
        }))
    }
}

/// For each size of a free block, how much of the requested bytes it cannot serve.
#[derive(Clone, Debug)]
pub struct UnfitShares([Vec<f32>; 2]);

impl UnfitShares {
    /// Returns the share of the requested bytes (0 to 1) in requests that are larger than a free
    /// block of `bytes` bytes in a pool of this kind; 1 if no request is known.
    #[must_use]
    pub fn of(&self, kind: PoolKind, bytes: u64) -> f32 {
        // Requests of the block's own size class may be a little larger than the block.
        self.0[kind_index(kind)][class_of(bytes)]
    }
}
